//! The totals of a trace, computed by reading it.

use std::ops::ControlFlow;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::chunks::{Chunk, Disk, Lanes};
use super::container::Kind;
use super::hash::ContentHash;
use super::lanes::{Code, OpenEvents, OpenSlices};
use super::summary::Summary;
use super::touched::Touched;
use crate::error::TraceError;
use crate::model::{Block, Slice};

/// The totals of a file that ended early, from the chunks' headers, the touched pages and the events.
pub(super) fn recover(
    disk: &mut Disk,
    chunks: &[Chunk],
    lanes: &Lanes,
) -> Result<Summary, TraceError> {
    let mut touched = Touched::new();
    let mut hash = Xxh3::new();
    let mut summary = Summary {
        instructions: lanes.instructions,
        loads: lanes.loads,
        stores: lanes.stores,
        blocks: lanes.blocks,
        ..Summary::default()
    };
    for chunk in chunks {
        hash.update(&chunk.header.encode());
        match chunk.header.kind {
            Kind::Definitions => summary.code_bytes += u64::from(chunk.header.b),
            Kind::Touched => {
                let payload = disk.payload(chunk)?;
                touched.merge(&payload).map_err(|what| disk.malformed(chunk, what))?;
            }
            Kind::Events => {
                let mut events = OpenEvents::open(disk, chunk)?;
                while let Some((_, event)) = events.next(disk)? {
                    summary.count(&event, &mut touched);
                }
            }
            Kind::Slices | Kind::Summary | Kind::Index => {}
        }
    }
    summary.set_touched(&touched);
    summary.hash = format!("partial-{:032x}", hash.digest128());
    Ok(summary)
}

/// Reads every chunk and compares the totals with those stored; nothing was read yet of `code`.
pub(super) fn verify(
    disk: &mut Disk,
    chunks: &[Chunk],
    code: &mut Code,
    summary: &Summary,
    ended_early: bool,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), TraceError> {
    let mut hash = ContentHash::new();
    let (mut touched, mut noted) = (Touched::new(), Touched::new());
    let (mut slices, mut slice) = (None, Slice::default());
    let mut found = Summary::default();
    for (index, chunk) in chunks.iter().enumerate() {
        if progress(chunk.offset, disk.file_bytes).is_break() {
            return Err(TraceError::stopped(&disk.path));
        }
        match chunk.header.kind {
            Kind::Definitions => {
                let known = code.blocks.len();
                code.read_until(disk, chunks, index + 1)?;
                for block in &code.blocks[known..] {
                    hash.define(block);
                    touch_code(block, &mut touched);
                }
            }
            Kind::Events => {
                let mut events = OpenEvents::open(disk, chunk)?;
                while let Some((epoch, event)) = events.next(disk)? {
                    hash.event(epoch, &event);
                    found.count(&event, &mut touched);
                }
            }
            Kind::Slices => {
                let open = OpenSlices::open(slices.take(), disk, chunk, &code.blocks)?;
                let open = slices.insert(open);
                while let Some(run) = open.peek() {
                    found.instructions += open.read(disk, &mut slice)?;
                    touched.thread(run.thread);
                    hash.slice(run.thread, run.epoch, &slice.blocks, &slice.addresses);
                    touch_data(&slice, &code.blocks, &mut touched);
                }
                found.loads += u64::from(chunk.header.a);
                found.stores += u64::from(chunk.header.b);
            }
            Kind::Touched => {
                let payload = disk.payload(chunk)?;
                noted.merge(&payload).map_err(|what| disk.malformed(chunk, what))?;
            }
            Kind::Summary | Kind::Index => {
                disk.payload(chunk)?;
            }
        }
    }
    let end = chunks.last().map_or(0, |chunk| chunk.offset);
    found.blocks = code.blocks.len() as u64;
    found.code_bytes = code.code_bytes();
    if ended_early {
        // What touched the pages that were noted may have been lost.
        found.threads = summary.threads;
        found.footprint_bytes = summary.footprint_bytes;
        found.touched.clone_from(&summary.touched);
        found.hash.clone_from(&summary.hash);
    } else {
        found.set_touched(&touched);
        found.hash = hash.hex();
        if !touched.was_noted_in(&noted) {
            return Err(disk.damaged(end, "the touched pages are not those that were noted"));
        }
    }
    found.stopped.clone_from(&summary.stopped);
    if found != *summary {
        return Err(disk.damaged(end, "the totals are not those of the content"));
    }
    let _ = progress(disk.file_bytes, disk.file_bytes);
    Ok(())
}

/// Notes the pages of a block's instructions.
fn touch_code(block: &Block, touched: &mut Touched) {
    for instruction in &block.instructions {
        touched.touch(instruction.pc, u64::from(instruction.length.max(1)));
    }
}

/// Notes the pages that a slice's accesses touch.
fn touch_data(slice: &Slice, blocks: &[Arc<Block>], touched: &mut Touched) {
    let accesses = slice.blocks.iter().flat_map(|&id| &blocks[id as usize].accesses);
    for (access, &address) in accesses.zip(&slice.addresses) {
        touched.touch(address, u64::from(access.size));
    }
}
