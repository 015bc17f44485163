//! Simulated physical memory: real 8-byte words. Only those that are touched take memory of the
//! simulator's machine.

use std::marker::PhantomData;

use flatwalk_paging::{EntryMemory, EntryMemoryMut, Hpa, Line, Physical};
use memmap2::{MmapMut, MmapOptions};

use crate::buddy::FRAME_BYTES;
use crate::error::OsError;

/// Physical memory from address 0 on. Everything reads as zero at first.
///
/// Words are little-endian, as on the simulated machines. All of it is mapped without reserving
/// memory for it, so that 64 GiB can be simulated on a far smaller machine.
///
/// A guest's memory is addressed by guest-physical addresses; it holds what the hypervisor's pages
/// behind them would hold.
#[derive(Debug)]
pub struct PhysicalMemory<A = Hpa> {
    bytes: MmapMut,
    /// One bit for each 4 KiB that has been written since it was last zeroed.
    written: Vec<u64>,
    addresses: PhantomData<A>,
}

impl<A: Physical> PhysicalMemory<A> {
    /// Memory of `size_bytes`, rounded up to whole frames of 4 KiB.
    ///
    /// # Errors
    /// [`OsError::MemorySize`] when the simulator has not that much address space.
    pub fn new(size_bytes: u64) -> Result<Self, OsError> {
        let failed = |source| OsError::MemorySize { bytes: size_bytes, source };
        let frames = size_bytes.div_ceil(FRAME_BYTES).max(1);
        let length = frames
            .checked_mul(FRAME_BYTES)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        let bytes = MmapOptions::new().len(length).no_reserve_swap().map_anon().map_err(failed)?;
        // Page tables stay close together (see `Frames`) and data is never stored. So large pages cost
        // nothing here and save the simulator TLB misses. It works without them too.
        bytes.advise(memmap2::Advice::HugePage).ok();
        let written = vec![0; frames.div_ceil(64) as usize];
        Ok(Self { bytes, written, addresses: PhantomData })
    }

    /// Asks for small pages, as what is touched will lie far apart: large pages would be mostly empty.
    pub fn expect_scattered(&mut self) {
        self.bytes.advise(memmap2::Advice::NoHugePage).ok();
    }

    /// The bytes of the word at `at`. One bounds check only: every simulated page walk comes here.
    #[inline]
    pub fn word(&self, at: A) -> &[u8; 8] {
        &self.bytes.as_chunks::<8>().0[(at.raw() / 8) as usize]
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Makes the 2^`size_shift` bytes at `at` read as zero. `size_shift` is at least 12.
    pub fn zero(&mut self, at: A, size_shift: u8) {
        let first = at.raw() / FRAME_BYTES;
        let end = first + (1 << (size_shift - 12));
        let mut frame = first;
        while frame < end {
            let word = self.written[(frame / 64) as usize] >> (frame % 64);
            // Skip to the next frame that was written, at most to the end of this word of bits.
            let clean = u64::from(word.trailing_zeros()).min(64 - frame % 64);
            if clean > 0 {
                frame += clean;
                continue;
            }
            self.written[(frame / 64) as usize] &= !(1 << (frame % 64));
            let start = (frame * FRAME_BYTES) as usize;
            self.bytes[start..start + FRAME_BYTES as usize].fill(0);
            frame += 1;
        }
    }
}

impl<A: Physical> EntryMemory<A> for PhysicalMemory<A> {
    #[inline]
    fn read(&self, at: A) -> u64 {
        u64::from_le_bytes(*self.word(at))
    }

    #[inline]
    fn read_line(&self, at: A) -> Line {
        let words = self.bytes.as_chunks::<64>().0[(at.raw() / 64) as usize];
        let words = words.as_chunks::<8>().0;
        std::array::from_fn(|i| u64::from_le_bytes(words[i]))
    }
}

impl<A: Physical> EntryMemoryMut<A> for PhysicalMemory<A> {
    #[inline]
    fn write(&mut self, at: A, value: u64) {
        self.bytes.as_chunks_mut::<8>().0[(at.raw() / 8) as usize] = value.to_le_bytes();
        let frame = at.raw() / FRAME_BYTES;
        self.written[(frame / 64) as usize] |= 1 << (frame % 64);
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::Address;

    use super::*;

    #[test]
    fn words_read_back_and_untouched_ones_are_zero() {
        let mut memory = PhysicalMemory::<Hpa>::new(1 << 36).unwrap();
        assert_eq!(memory.size_bytes(), 1 << 36);
        for at in [0, 8, 4096, (1 << 36) - 8] {
            assert_eq!(memory.read(Hpa::new(at)), 0);
            memory.write(Hpa::new(at), 0x0123_4567_89ab_cdef ^ at);
        }
        for at in [0, 8, 4096, (1 << 36) - 8] {
            assert_eq!(memory.read(Hpa::new(at)), 0x0123_4567_89ab_cdef ^ at);
        }
        assert_eq!(memory.read(Hpa::new(16)), 0);
    }

    #[test]
    fn zeroing_reaches_every_frame_of_the_block_and_no_other() {
        let mut memory = PhysicalMemory::<Hpa>::new(8 << 20).unwrap();
        let frames: Vec<u64> =
            (0..8 << 20).step_by(4096 * 7).chain([2 << 20, (4 << 20) - 8]).collect();
        for &at in &frames {
            memory.write(Hpa::new(at), 1);
        }
        memory.zero(Hpa::new(2 << 20), 21);
        for &at in &frames {
            let zeroed = (2 << 20..4 << 20).contains(&at);
            assert_eq!(memory.read(Hpa::new(at)), u64::from(!zeroed), "{at:#x}");
        }
        memory.write(Hpa::new(0x3000), 5);
        memory.zero(Hpa::new(0x3000), 12);
        assert_eq!(memory.read(Hpa::new(0x3000)), 0);
    }

    #[test]
    fn an_impossible_size_is_an_error_with_a_remedy() {
        let error = PhysicalMemory::<Hpa>::new(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("memory_bytes"), "{error}");
    }
}
