//! Full buffers, on their way to the collector and back.

use std::sync::atomic::Ordering;

use super::region::{BUFFERS, IN_FLIGHT, Region, Stopped, Submission};

impl Region {
    /// Hands a buffer over. The caller holds the process's pool lock.
    ///
    /// # Errors
    /// When the collector wants no more.
    pub fn submit(
        &self,
        slot: u32,
        buffer: u32,
        thread: u32,
        words: u32,
        sequence: u64,
    ) -> Result<(), Stopped> {
        let tail = self.full_tail.0.load(Ordering::Relaxed);
        if tail - self.full_head.0.load(Ordering::Acquire) >= IN_FLIGHT {
            self.wait_for_room(|| tail - self.full_head.0.load(Ordering::Acquire) < IN_FLIGHT)?;
        }
        let entry = &self.full[tail as usize % BUFFERS];
        entry.slot.store(slot, Ordering::Relaxed);
        entry.buffer.store(buffer, Ordering::Relaxed);
        entry.thread.store(thread, Ordering::Relaxed);
        entry.words.store(words, Ordering::Relaxed);
        entry.sequence.store(sequence, Ordering::Relaxed);
        self.full_tail.0.store(tail + 1, Ordering::Release);
        self.ring_submitted();
        Ok(())
    }

    /// How many submissions wait.
    ///
    /// # Errors
    /// A description, when the ring is not as the recorder leaves it.
    pub fn submissions(&self) -> Result<u64, &'static str> {
        let head = self.full_head.0.load(Ordering::Relaxed);
        let waiting = self.full_tail.0.load(Ordering::Acquire).wrapping_sub(head);
        if waiting <= IN_FLIGHT { Ok(waiting) } else { Err("its ring of buffers runs over") }
    }

    /// The submission that waits longest, if [`Region::submissions`] says that one does.
    pub fn next_submission(&self) -> &Submission {
        &self.full[self.full_head.0.load(Ordering::Relaxed) as usize % BUFFERS]
    }

    /// Whether a buffer of `slot` waits.
    ///
    /// # Errors
    /// As [`Region::submissions`].
    pub fn has_submission_of(&self, slot: usize) -> Result<bool, &'static str> {
        let head = self.full_head.0.load(Ordering::Relaxed);
        Ok((0..self.submissions()?).any(|waiting| {
            let submission = &self.full[head.wrapping_add(waiting) as usize % BUFFERS];
            submission.slot.load(Ordering::Relaxed) as usize == slot
        }))
    }

    /// Takes the submission just seen off the ring and gives its buffer back.
    pub fn submission_done(&self, buffer: u32) {
        let tail = self.free_tail.0.load(Ordering::Relaxed);
        self.free[tail as usize % BUFFERS].store(buffer, Ordering::Relaxed);
        self.free_tail.0.store(tail.wrapping_add(1), Ordering::Release);
        self.full_head.0.fetch_add(1, Ordering::Release);
        self.ring_drained();
    }

    /// A buffer that came back. The caller holds the process's pool lock.
    pub fn take_free(&self) -> Option<u32> {
        let head = self.free_head.0.load(Ordering::Relaxed);
        if self.free_tail.0.load(Ordering::Acquire) == head {
            return None;
        }
        let buffer = self.free[head as usize % BUFFERS].load(Ordering::Relaxed);
        self.free_head.0.store(head + 1, Ordering::Relaxed);
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::region::with_region;

    #[test]
    fn buffers_are_taken_in_order_and_come_back() {
        with_region(|region| {
            assert_eq!(region.take_free(), None);
            for buffer in 0..10 {
                region.submit(buffer % 3, buffer, 7, 100 + buffer, 2).unwrap();
            }
            assert_eq!(region.has_submission_of(2), Ok(true));
            assert_eq!(region.has_submission_of(3), Ok(false));
            for buffer in 0..10 {
                assert_eq!(region.submissions(), Ok(10 - u64::from(buffer)));
                let submission = region.next_submission();
                assert_eq!(submission.buffer.load(Ordering::Relaxed), buffer);
                assert_eq!(submission.words.load(Ordering::Relaxed), 100 + buffer);
                region.submission_done(buffer);
                assert_eq!(region.take_free(), Some(buffer));
            }
            assert_eq!(region.submissions(), Ok(0));
        });
    }
}
