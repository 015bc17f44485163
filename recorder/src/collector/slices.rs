//! Slices in bytes, for where they are put aside: quickly written and read, and in half of what they take in
//! memory, since the blocks of most programs have small numbers and addresses have much in common.

use flatwalk_trace::Slice;

/// So many addresses, or numbers of blocks, have a width in common.
const PART: usize = 4096;
/// Stands for the upper halves of addresses that differ in them.
const WHOLE: u32 = u32::MAX;

/// Appends a slice and its epoch.
pub fn put(bytes: &mut Vec<u8>, epoch: u64, slice: &Slice) {
    bytes.extend_from_slice(&epoch.to_le_bytes());
    for number in [slice.thread, slice.blocks.len() as u32, slice.addresses.len() as u32] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for part in slice.blocks.chunks(PART) {
        let all = part.iter().fold(0, |all, id| all | id);
        bytes.push(u8::from(all >> 16 == 0));
        if all >> 16 == 0 {
            put_numbers(bytes, part, |&id| (id as u16).to_le_bytes());
        } else {
            put_numbers(bytes, part, |id| id.to_le_bytes());
        }
    }
    for part in slice.addresses.chunks(PART) {
        let first = part.first().map_or(0, |address| address >> 32);
        let differ = part.iter().fold(0, |differ, address| differ | ((address >> 32) ^ first)) != 0;
        let upper = if differ { WHOLE } else { first as u32 };
        bytes.extend_from_slice(&upper.to_le_bytes());
        if upper == WHOLE {
            put_numbers(bytes, part, |address| address.to_le_bytes());
        } else {
            put_numbers(bytes, part, |&address| (address as u32).to_le_bytes());
        }
    }
}

fn put_numbers<T, const N: usize>(bytes: &mut Vec<u8>, from: &[T], number: impl Fn(&T) -> [u8; N]) {
    let start = bytes.len();
    bytes.resize(start + N * from.len(), 0);
    for (to, from) in bytes[start..].as_chunks_mut().0.iter_mut().zip(from) {
        *to = number(from);
    }
}

/// Takes the slice in front of `bytes`, to `slice`; returns its epoch. `None` if there is none.
pub fn take(bytes: &mut &[u8], slice: &mut Slice) -> Option<u64> {
    let epoch = u64::from_le_bytes(take_array(bytes)?);
    slice.thread = u32::from_le_bytes(take_array(bytes)?);
    let blocks = u32::from_le_bytes(take_array(bytes)?) as usize;
    let addresses = u32::from_le_bytes(take_array(bytes)?) as usize;
    slice.blocks.clear();
    slice.addresses.clear();
    for start in (0..blocks).step_by(PART) {
        let count = PART.min(blocks - start);
        if take_array(bytes)? == [1] {
            let numbers = take_numbers(bytes, count)?.iter();
            slice.blocks.extend(numbers.map(|&id| u32::from(u16::from_le_bytes(id))));
        } else {
            slice
                .blocks
                .extend(take_numbers(bytes, count)?.iter().map(|&id| u32::from_le_bytes(id)));
        }
    }
    for start in (0..addresses).step_by(PART) {
        let count = PART.min(addresses - start);
        let upper = u32::from_le_bytes(take_array(bytes)?);
        if upper == WHOLE {
            let numbers = take_numbers(bytes, count)?.iter();
            slice.addresses.extend(numbers.map(|&address| u64::from_le_bytes(address)));
        } else {
            let (numbers, upper) = (take_numbers(bytes, count)?.iter(), u64::from(upper) << 32);
            let addresses = numbers.map(|&lower| upper | u64::from(u32::from_le_bytes(lower)));
            slice.addresses.extend(addresses);
        }
    }
    Some(epoch)
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

fn take_numbers<'a, const N: usize>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [[u8; N]]> {
    let (numbers, rest) = bytes.split_at_checked(N * count)?;
    *bytes = rest;
    Some(numbers.as_chunks().0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slices_come_back_as_they_were(
            slices in prop::collection::vec(
                (any::<u64>(), any::<u32>(), any::<[u64; 4]>(), 0..9000_usize, 0..9000_usize),
                0..5,
            ),
        ) {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for (epoch, thread, [id, ids, address, addresses], blocks, accesses) in slices {
                // Numbers and addresses of all widths, and some that cannot be.
                let (id, ids) = (id >> (id % 64), ids | 1);
                let numbers = (0..blocks as u64).map(|at| (id ^ (at.wrapping_mul(ids) >> 50)) as u32).collect();
                let spread = addresses % 64;
                let addresses = (0..accesses as u64)
                    .map(|at| address ^ (at.wrapping_mul(addresses) >> spread))
                    .collect();
                let slice = Slice { thread, blocks: numbers, addresses };
                put(&mut bytes, epoch, &slice);
                expected.push((epoch, slice));
            }
            let mut rest = &bytes[..];
            for (epoch, slice) in expected {
                let mut taken = Slice::default();
                prop_assert_eq!(take(&mut rest, &mut taken), Some(epoch));
                prop_assert_eq!(taken, slice);
            }
            prop_assert_eq!(take(&mut rest, &mut Slice::default()), None);
            // What was cut off is no slice.
            if let Some((_, cut)) = bytes.split_last() {
                let (mut rest, mut left) = (&bytes[..cut.len()], 0);
                while take(&mut rest, &mut Slice::default()).is_some() {
                    left += 1;
                }
                prop_assert!(left < 5);
            }
        }
    }
}
