//! The control ring: definitions of code, events and messages, in the order in which they were sent.

use std::sync::atomic::Ordering;

use super::region::{CONTROL_WORDS, Region, Stopped};

/// A record of the control ring: a block's address, then length and bytes of each instruction.
pub const CONTROL_DEFINE: u64 = 1;
/// An event: epoch, then JSON.
pub const CONTROL_EVENT: u64 = 2;
/// Something the user should read.
pub const CONTROL_WARNING: u64 = 3;
/// Why the recording is worthless, as text. The process ends.
pub const CONTROL_FAILURE: u64 = 4;
/// Of a guest: how many walks and how many accesses were checked, how many instructions its kernel executed
/// for the program while that was recorded, and how many of these were repetitions; each a `u64`.
pub const CONTROL_CHECKED: u64 = 5;
/// The process has forked: its child's number, a `u64`. The child will introduce itself.
pub const CONTROL_FORK: u64 = 7;

/// Of a sample: an epoch, in which nothing but this happened, and what; each a `u64`. One of `MARK_…`,
/// with two numbers.
pub const CONTROL_MARK: u64 = 6;
/// The segment with this number begins.
pub const MARK_BEGIN: u64 = 0;
/// The segment has ended, and a gap begins.
pub const MARK_END: u64 = 1;
/// Of the segments so far, only those remain that are chosen in blocks of the first number, a power
/// of two, with the second as seed (see [`chosen`](super::sample::chosen)).
pub const MARK_THIN: u64 = 2;

impl Region {
    /// Appends a control record. The caller holds the process's control lock.
    ///
    /// # Errors
    /// When the collector wants no more.
    pub fn push_control(&self, kind: u64, payload: &[u8]) -> Result<(), Stopped> {
        let words = 1 + payload.len().div_ceil(8) as u64;
        let tail = self.control_tail.0.load(Ordering::Relaxed);
        let room =
            || tail + words - self.control_head.0.load(Ordering::Acquire) <= CONTROL_WORDS as u64;
        if !room() {
            self.wait_for_room(room)?;
        }
        let put = |position: u64, word: u64| {
            self.control[position as usize % CONTROL_WORDS].store(word, Ordering::Relaxed);
        };
        put(tail, kind << 32 | payload.len() as u64);
        for (index, bytes) in payload.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            put(tail + 1 + index as u64, u64::from_le_bytes(word));
        }
        self.control_tail.0.store(tail + words, Ordering::Release);
        Ok(())
    }

    /// Takes the next control record: its kind, and its payload in `payload`.
    ///
    /// # Errors
    /// A description, when the ring is not as the recorder leaves it.
    pub fn take_control(&self, payload: &mut Vec<u8>) -> Result<Option<u64>, &'static str> {
        let head = self.control_head.0.load(Ordering::Relaxed);
        let available = self.control_tail.0.load(Ordering::Acquire).wrapping_sub(head);
        if available == 0 {
            return Ok(None);
        }
        if available > CONTROL_WORDS as u64 {
            return Err("its control ring runs over");
        }
        let get =
            |position: u64| self.control[position as usize % CONTROL_WORDS].load(Ordering::Relaxed);
        let header = get(head);
        let (kind, length) = (header >> 32, (header & 0xffff_ffff) as usize);
        let words = 1 + length.div_ceil(8) as u64;
        if words > available {
            return Err("a control record is longer than what was written");
        }
        payload.clear();
        for position in 1..words {
            payload.extend_from_slice(&get(head.wrapping_add(position)).to_le_bytes());
        }
        payload.truncate(length);
        self.control_head.0.store(head.wrapping_add(words), Ordering::Release);
        Ok(Some(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::region::with_region;

    #[test]
    fn control_records_arrive_as_they_were_sent() {
        with_region(|region| {
            let mut payload = Vec::new();
            // Several times round the ring.
            for number in 0..50_000_u32 {
                let sent: Vec<u8> = (0..number % 700).map(|byte| (byte ^ number) as u8).collect();
                region.push_control(CONTROL_EVENT, &sent).unwrap();
                assert_eq!(region.take_control(&mut payload), Ok(Some(CONTROL_EVENT)));
                assert_eq!(payload, sent);
            }
            assert_eq!(region.take_control(&mut payload), Ok(None));
            assert!(region.is_idle());
        });
    }
}
