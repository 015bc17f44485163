//! Simulated physical memory: real 8-byte words. Only those that are touched take memory and address
//! space of the simulator's machine.

use std::marker::PhantomData;
use std::num::NonZeroU32;

use flatwalk_paging::{EntryMemory, EntryMemoryMut, Hpa, Line, Physical};
use memmap2::{MmapMut, MmapOptions};

use crate::buddy::FRAME_BYTES;
use crate::error::OsError;

/// Memory is kept in pieces of this size, that of the smallest node: one of 2 MiB of which a word is used
/// takes no more.
const PIECE_SHIFT: u32 = 12;
const PIECE_BYTES: usize = 1 << PIECE_SHIFT;
const PIECE_WORDS: usize = PIECE_BYTES / 8;
/// Address space that is asked for at first, as much as a large page of the simulator's machine.
const FIRST_BYTES: usize = 2 << 20;

/// Physical memory from address 0 on. Everything reads as zero at first.
///
/// Words are little-endian, as on the simulated machines. Page tables alone are stored, never data, and of
/// them the pieces that were written, one behind the other. So 64 GiB can be simulated on a far smaller
/// machine, however far apart what is used lies.
///
/// A guest's memory is addressed by guest-physical addresses; it holds what the hypervisor's pages
/// behind them would hold.
#[derive(Debug)]
pub struct PhysicalMemory<A = Hpa> {
    size_bytes: u64,
    /// By piece: its number in `store`; 0 while it has not been written.
    places: Vec<u32>,
    /// The first piece reads as zero: it stands for all that have not been written.
    store: MmapMut,
    /// Pieces of `store` that are in use.
    used: usize,
    /// One bit for each 4 KiB that has been written since it was last zeroed.
    written: Vec<u64>,
    addresses: PhantomData<A>,
}

/// A piece of [`PhysicalMemory`], as one that looks at its words again and again may remember it.
/// All words of 4 KiB that begin at a multiple of that are in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece(NonZeroU32);

/// Memory for `bytes` of pieces.
fn reserve(bytes: usize) -> std::io::Result<MmapMut> {
    let store = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
    // It is filled from the front. So large pages cost nothing and save the simulator TLB misses. It works
    // without them too.
    store.advise(memmap2::Advice::HugePage).ok();
    Ok(store)
}

impl<A: Physical> PhysicalMemory<A> {
    /// Memory of `size_bytes`, rounded up to whole frames of 4 KiB.
    ///
    /// # Errors
    /// [`OsError::MemorySize`] when the simulator has no memory to keep account of so much.
    pub fn new(size_bytes: u64) -> Result<Self, OsError> {
        let failed = |source| OsError::MemorySize { bytes: size_bytes, source };
        let frames = size_bytes.div_ceil(FRAME_BYTES).max(1);
        let rounded = frames
            .checked_mul(FRAME_BYTES)
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        let pieces = rounded.div_ceil(PIECE_BYTES as u64) as usize;
        let store = reserve(FIRST_BYTES).map_err(failed)?;
        Ok(Self {
            size_bytes: rounded,
            places: vec![0; pieces],
            store,
            used: 1,
            written: vec![0; frames.div_ceil(64) as usize],
            addresses: PhantomData,
        })
    }

    /// The number in `store` of the word at `at`.
    #[inline]
    fn place(&self, at: A) -> usize {
        Self::place_in(*self.note(at), at)
    }

    #[inline]
    fn place_in(piece: u32, at: A) -> usize {
        let word = (at.raw() / 8) as usize % PIECE_WORDS;
        piece as usize * PIECE_WORDS + word
    }

    /// What says which piece the word at `at` is in. Who is to look at that word later can have
    /// this at hand by then.
    #[inline]
    pub fn note(&self, at: A) -> &u32 {
        &self.places[(at.raw() >> PIECE_SHIFT) as usize]
    }

    /// The piece that the word at `at` is in, from now on; `None` while nothing has been written there.
    #[inline]
    pub fn piece(&self, at: A) -> Option<Piece> {
        NonZeroU32::new(*self.note(at)).map(Piece)
    }

    /// The bytes of the word at `at`, of which it is known in which piece it is.
    #[inline]
    pub fn word_in(&self, piece: Piece, at: A) -> &[u8; 8] {
        &self.store.as_chunks::<8>().0[Self::place_in(piece.0.get(), at)]
    }

    /// The bytes of the word at `at`. Every simulated page walk comes here.
    #[inline]
    pub fn word(&self, at: A) -> &[u8; 8] {
        &self.store.as_chunks::<8>().0[self.place(at)]
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Makes a piece for the word at `at`, which has none.
    #[cold]
    fn add_piece(&mut self, at: A) {
        let start = self.used * PIECE_BYTES;
        if start == self.store.len() {
            let bytes = 2 * start;
            // As where a `Vec` cannot grow.
            let layout = std::alloc::Layout::array::<u8>(bytes).expect("memory is far smaller");
            let mut store =
                reserve(bytes).unwrap_or_else(|_| std::alloc::handle_alloc_error(layout));
            store[..start].copy_from_slice(&self.store);
            self.store = store;
        }
        self.places[(at.raw() >> PIECE_SHIFT) as usize] = self.used as u32;
        self.used += 1;
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
            let start = 8 * self.place(A::new(frame * FRAME_BYTES));
            self.store[start..start + FRAME_BYTES as usize].fill(0);
            frame += 1;
        }
    }

    /// Copies the 2^`size_shift` bytes at `from` to `to`, which read as zero.
    pub(crate) fn copy(&mut self, from: A, to: A, size_shift: u8) {
        if (0..1 << size_shift).step_by(PIECE_BYTES).all(|at| self.piece(from.offset(at)).is_none())
        {
            return;
        }
        for at in (0..1 << size_shift).step_by(8) {
            let word = self.read(from.offset(at));
            if word != 0 {
                self.write(to.offset(at), word);
            }
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
        let words = self.store.as_chunks::<64>().0[self.place(at) / 8];
        let words = words.as_chunks::<8>().0;
        std::array::from_fn(|i| u64::from_le_bytes(words[i]))
    }
}

impl<A: Physical> EntryMemoryMut<A> for PhysicalMemory<A> {
    #[inline]
    fn write(&mut self, at: A, value: u64) {
        if self.places[(at.raw() >> PIECE_SHIFT) as usize] == 0 {
            self.add_piece(at);
        }
        let place = self.place(at);
        self.store.as_chunks_mut::<8>().0[place] = value.to_le_bytes();
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
    fn words_far_apart_take_little() {
        let mut memory = PhysicalMemory::<Hpa>::new(1 << 40).unwrap();
        let far: Vec<u64> = (0..1 << 40).step_by(1 << 28).collect();
        for (number, &at) in far.iter().enumerate() {
            memory.write(Hpa::new(at + 24), number as u64 + 1);
            // Writing again, and reading elsewhere, takes no more.
            memory.write(Hpa::new(at + 32), 7);
            assert_eq!(memory.read(Hpa::new(at + (1 << 20))), 0);
        }
        assert_eq!(memory.used, 1 + far.len());
        assert!(memory.store.len() <= 2 * memory.used * PIECE_BYTES);
        for (number, &at) in far.iter().enumerate() {
            assert_eq!(memory.read(Hpa::new(at + 24)), number as u64 + 1);
            assert_eq!(memory.read_line(Hpa::new(at)), [0, 0, 0, number as u64 + 1, 7, 0, 0, 0]);
        }
    }

    #[test]
    fn a_piece_stays_where_it_is() {
        let mut memory = PhysicalMemory::<Hpa>::new(1 << 36).unwrap();
        let at = Hpa::new(0x1238);
        assert_eq!(memory.piece(at), None);
        memory.write(at, 7);
        let piece = memory.piece(at).unwrap();
        assert_eq!(memory.piece(Hpa::new(0x1ff8)), Some(piece));
        // Others make the store grow.
        (0..4096).for_each(|n| memory.write(Hpa::new(n << 20), n));
        assert_eq!(memory.piece(at), Some(piece));
        assert_eq!(memory.word_in(piece, at), &7_u64.to_le_bytes());
        memory.zero(Hpa::new(0x1000), 12);
        assert_eq!((memory.piece(at), memory.word_in(piece, at)), (Some(piece), &[0; 8]));
    }

    #[test]
    fn an_impossible_size_is_an_error_with_a_remedy() {
        let error = PhysicalMemory::<Hpa>::new(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("memory_bytes"), "{error}");
    }
}
