//! LZ4's frames, one after another.

use std::io::{BufRead, Read, Result};

use lz4_flex::frame::FrameDecoder;

/// What a file's frames hold.
pub(super) struct Frames<R: BufRead>(FrameDecoder<R>);

impl<R: BufRead> Frames<R> {
    pub(super) fn new(reader: R) -> Self {
        Self(FrameDecoder::new(reader))
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            // The decoder says that nothing is left at the end of each frame.
            let read = self.0.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.0.get_mut().fill_buf()?.is_empty() {
                return Ok(read);
            }
        }
    }
}
