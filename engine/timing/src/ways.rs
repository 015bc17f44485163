//! The ways of a set: finding a tag among them, and the one to replace.
//!
//! Several ways are looked at together: where among them a search would end the host cannot foretell,
//! and its vector units compare all of them in the time of one.

/// Ways that are compared together, as many as one of the host's vector registers holds.
const TOGETHER: usize = 4;

/// The way whose word is `wanted` where `mask` has ones. No two are.
#[inline]
pub fn find_masked(words: &[u64], mask: u64, wanted: u64) -> Option<usize> {
    let (fours, rest) = words.as_chunks::<TOGETHER>();
    for (number, four) in fours.iter().enumerate() {
        let mut equal = 0;
        for (way, word) in four.iter().enumerate() {
            equal |= u32::from(word & mask == wanted) << way;
        }
        if equal != 0 {
            return Some(number * TOGETHER + equal.trailing_zeros() as usize);
        }
    }
    let way = rest.iter().position(|word| word & mask == wanted)?;
    Some(fours.len() * TOGETHER + way)
}

/// The way whose word is `wanted`. No two are.
#[inline]
pub fn find(words: &[u64], wanted: u64) -> Option<usize> {
    find_masked(words, u64::MAX, wanted)
}

/// Bits of a stamp that hold the way.
const WAY_BITS: u32 = 16;
/// Ways that a set has at most.
pub const MOST: u32 = 1 << WAY_BITS;

/// When a way was last used, and below it the way: so the least stamp of a set names the way that was
/// not used for longest.
#[inline]
fn stamp(clock: u64, way: usize) -> i64 {
    (clock << WAY_BITS | way as u64).cast_signed()
}

/// The way that was not used for longest.
#[inline]
fn oldest(stamps: &[i64]) -> usize {
    let (fours, rest) = stamps.as_chunks::<TOGETHER>();
    let mut least = [i64::MAX; TOGETHER];
    for four in fours {
        least = std::array::from_fn(|way| least[way].min(four[way]));
    }
    let mut least = least.into_iter().fold(i64::MAX, i64::min);
    for &stamp in rest {
        least = least.min(stamp);
    }
    least.cast_unsigned() as usize & ((1 << WAY_BITS) - 1)
}

/// A place in [`Sets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    place: usize,
    way: usize,
}

/// Sets of tagged values with least-recently-used replacement: what TLBs and page-walk caches are made
/// of. No tag is 0: that is what places have that hold nothing, and which are filled first.
#[derive(Clone, Debug)]
pub struct Sets<V> {
    ways: usize,
    set_mask: u64,
    tags: Vec<u64>,
    stamps: Vec<i64>,
    values: Vec<V>,
    /// Uses and insertions so far.
    clock: u64,
}

impl<V: Copy> Sets<V> {
    /// `entries` of them, `ways` to a set, which hold nothing: `none` stands there instead. There may
    /// be no entries; sets are a power of two.
    pub fn new(entries: u32, ways: u32, none: V) -> Self {
        let (entries, ways) = (entries as usize, ways as usize);
        Self {
            ways,
            set_mask: (entries / ways.max(1)).saturating_sub(1) as u64,
            tags: vec![0; entries],
            stamps: (0..entries).map(|place| stamp(0, place % ways)).collect(),
            values: vec![none; entries],
            clock: 0,
        }
    }

    /// Where the set starts that `index` selects.
    #[inline]
    fn start(&self, index: u64) -> usize {
        (index & self.set_mask) as usize * self.ways
    }

    /// Where `tag` is, in the set that `index` selects.
    #[inline]
    pub fn find(&self, index: u64, tag: u64) -> Option<Slot> {
        let start = self.start(index);
        let way = find(&self.tags[start..start + self.ways], tag)?;
        Some(Slot { place: start + way, way })
    }

    /// What is there.
    #[inline]
    pub fn value(&self, slot: Slot) -> &V {
        &self.values[slot.place]
    }

    /// Makes it the most recently used of its set.
    #[inline]
    pub fn touch(&mut self, slot: Slot) {
        self.clock += 1;
        self.stamps[slot.place] = stamp(self.clock, slot.way);
    }

    /// Puts a value in the set that `index` selects, where `tag` is already or in the place of what
    /// was not used for longest. Returns where, and the tag that was there, 0 for none. There are
    /// entries.
    #[inline]
    pub fn insert(&mut self, index: u64, tag: u64, value: V) -> (Slot, u64) {
        let start = self.start(index);
        let set = start..start + self.ways;
        let found = find(&self.tags[set.clone()], tag);
        let way = found.unwrap_or_else(|| oldest(&self.stamps[set]));
        let slot = Slot { place: start + way, way };
        let old = std::mem::replace(&mut self.tags[slot.place], tag);
        self.values[slot.place] = value;
        self.touch(slot);
        (slot, old)
    }

    /// Drops what has a tag for which `gone` says so.
    pub fn drop_where(&mut self, mut gone: impl FnMut(u64) -> bool) {
        for (place, tag) in self.tags.iter_mut().enumerate() {
            if *tag != 0 && gone(*tag) {
                *tag = 0;
                self.stamps[place] = stamp(0, place % self.ways);
            }
        }
    }

    /// Tags of all places, 0 where nothing is.
    pub fn tags(&self) -> &[u64] {
        &self.tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_way_of_any_number_is_found() {
        for ways in 0..=70 {
            let words: Vec<u64> = (0..ways).map(|way| way << 8 | 0x3f).collect();
            for way in 0..ways {
                assert_eq!(find_masked(&words, !0xff, way << 8), Some(way as usize));
                assert_eq!(find(&words, way << 8 | 0x3f), Some(way as usize));
            }
            assert_eq!(find_masked(&words, !0xff, ways << 8), None);
            assert_eq!(find(&words, 0), None);
        }
    }

    #[test]
    fn what_is_empty_goes_first_and_then_what_is_oldest() {
        for ways in 1..20 {
            let mut sets = Sets::new(2 * ways, ways, 0);
            // Odd tags go to the second set.
            let tags: Vec<u64> = (0..ways).map(|n| 2 * u64::from(n) + 101).collect();
            for &tag in &tags {
                assert_eq!(sets.insert(tag, tag, tag).1, 0, "there is room");
            }
            let first = sets.find(tags[0], tags[0]).unwrap();
            assert_eq!(*sets.value(first), tags[0]);
            sets.touch(first);
            assert_eq!(sets.insert(tags[0], tags[0], 7).1, tags[0], "it is replaced");
            for &tag in tags[1..].iter().chain(&tags[..1]) {
                assert_eq!(sets.insert(1, tag + 1000, 0).1, tag, "the oldest goes");
            }
            sets.drop_where(|tag| tag == tags[0] + 1000);
            assert_eq!(sets.find(1, tags[0] + 1000), None);
            assert_eq!(sets.insert(1, 1, 0).1, 0, "what is empty goes first");
            assert!(sets.tags()[..ways as usize].iter().all(|&tag| tag == 0), "the other set");
        }
    }
}
