//! Flushing the caches.

use std::io;

use crate::sys::{Mapping, Pages, page_bytes};

/// Memory that is written between measurements, in order to flush the caches.
#[derive(Debug)]
pub struct Flusher {
    memory: Mapping,
}

impl Flusher {
    /// `bytes` should be twice what all caches hold.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let flusher = Self { memory: Mapping::aligned(bytes, page_bytes(), Pages::Small)? };
        flusher.flush();
        Ok(flusher)
    }

    /// Writes every line. The pages are small, so the TLBs and the page-walk caches lose their
    /// entries, too.
    pub fn flush(&self) {
        for offset in (0..self.memory.length()).step_by(64) {
            self.memory.store(offset, offset as u8);
        }
    }
}
