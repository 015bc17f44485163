//! Where the items of one process go: into its trace, or, of a sample, aside until it is known which remain.

use std::path::Path;

use flatwalk_trace::{Block, BlockId, Event, Header, Slice, Summary, TraceError, Writer};

use crate::sample::Sample;

/// A trace under construction.
#[derive(Debug)]
pub struct Output {
    writer: Writer,
    pub sample: Option<Sample>,
}

impl Output {
    /// Begins the trace in the file at `path`; of segments, it will be a sample.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn create(path: &Path, header: Header) -> Result<Output, TraceError> {
        let sample = header.segment_instructions.map(|_| Sample::create(path)).transpose()?;
        Ok(Output { writer: Writer::create(path, header)?, sample })
    }

    /// Defines the next block.
    ///
    /// # Errors
    /// As [`Writer::define`].
    pub fn define(&mut self, block: Block) -> Result<BlockId, TraceError> {
        if let Some(sample) = &mut self.sample {
            sample.define(&block);
        }
        self.writer.define(block)
    }

    /// Adds the event that starts `epoch`.
    ///
    /// # Errors
    /// When it cannot be stored, or the disk fails.
    pub fn event(&mut self, epoch: u64, event: &Event) -> Result<(), TraceError> {
        match &mut self.sample {
            Some(sample) => sample.event(epoch, event),
            None => self.writer.event(epoch, event),
        }
    }

    /// Adds a slice. If it is of no segment that is still there, returns how many instructions it has.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn slice(&mut self, epoch: u64, slice: &Slice) -> Result<u64, TraceError> {
        match &mut self.sample {
            Some(sample) => sample.slice(epoch, slice),
            None => self.writer.slice(epoch, slice).map(|()| 0),
        }
    }

    /// Instructions in the trace so far.
    pub fn instructions(&self) -> u64 {
        self.sample.as_ref().map_or_else(|| self.writer.instructions(), Sample::instructions)
    }

    /// Completes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> Result<Summary, TraceError> {
        let written = self.sample.map_or(Ok(()), |sample| sample.write(&mut self.writer));
        let finished = self.writer.finish();
        written.and(finished)
    }
}
