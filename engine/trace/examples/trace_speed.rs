//! How fast a trace is decoded and encoded, and how small it is: `trace_speed TRACE [LEVEL]`.
//!
//! Reads the trace (in any format) into memory, up to 200 M instructions, writes it again, reads that
//! several times, of which the fastest counts.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use flatwalk_trace::{Header, Item, Options, Reader, Source, Writer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("usage: trace_speed TRACE [LEVEL]")?;
    let level = arguments
        .next()
        .map_or(Ok(Options::default().level), |level| level.to_string_lossy().parse())?;
    let mut source = flatwalk_trace::open(Path::new(&path))?;
    let (mut items, mut lengths, mut instructions) = (Vec::new(), Vec::new(), 0_u64);
    while let Some(item) = source.next_item()? {
        match &item {
            Item::Define { block, .. } => lengths.push(block.instructions.len() as u64),
            Item::Slice(slice) => {
                instructions += slice.blocks.iter().map(|&id| lengths[id as usize]).sum::<u64>();
            }
            Item::Event(_) => {}
        }
        items.push(item);
        if instructions > 200_000_000 {
            break;
        }
    }

    let file = std::env::temp_dir().join(format!("trace_speed.{}", std::process::id()));
    let start = Instant::now();
    let header = Header {
        name: "speed".into(),
        origin: "speed".into(),
        architecture: "unknown".into(),
        segment_instructions: None,
        gap_pages: false,
    };
    let mut writer = Writer::with_options(&file, header, Options { level })?;
    let mut epoch = 0;
    for item in &items {
        match item {
            Item::Define { block, .. } => {
                writer.define((**block).clone())?;
            }
            Item::Slice(slice) => writer.slice(epoch, slice)?,
            Item::Event(event) => {
                epoch += 1;
                writer.event(epoch, event)?;
            }
        }
    }
    let summary = writer.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = std::fs::metadata(&file)?.len();
    let accesses = summary.loads + summary.stores;
    println!(
        "{instructions} instructions, {accesses} accesses, {} blocks, {bytes} bytes",
        summary.blocks
    );
    println!("{:.3} bytes an instruction", bytes as f64 / instructions as f64);
    println!("encoding: {:.1} M instructions/s", instructions as f64 / seconds / 1e6);

    let (mut seconds, mut sum) = (f64::MAX, 0_u64);
    for _ in 0..8 {
        let start = Instant::now();
        let mut reader = Reader::open(&file)?;
        while let Some(item) = reader.next_item()? {
            if let Item::Slice(slice) = item {
                sum = sum.wrapping_add(slice.addresses.last().copied().unwrap_or_default());
            }
        }
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    println!(
        "decoding: {:.1} M accesses/s, {:.1} M instructions/s (check {sum:x})",
        accesses as f64 / seconds / 1e6,
        instructions as f64 / seconds / 1e6
    );
    std::fs::remove_file(&file)?;
    Ok(())
}
