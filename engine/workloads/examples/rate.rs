//! What a workload costs: time until its first access, accesses a second after that, and resident
//! memory.
//!
//! ```text
//! cargo run --release -p flatwalk-workloads --example rate -- NAME SIZE_BYTES [ACCESSES]
//! ```

use std::error::Error;
use std::time::Instant;

use flatwalk_trace::{Item, Source, TraceError};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, size_bytes, rest @ ..] = arguments.as_slice() else {
        return Err("usage: rate NAME SIZE_BYTES [ACCESSES]".into());
    };
    let limit = rest.first().map_or(Ok(100_000_000), |limit| limit.parse())?;
    let start = Instant::now();
    let mut source = flatwalk_workloads::open(name, size_bytes.parse()?, 1)?;
    run(&mut *source, 1)?;
    let (set_up, start) = (start.elapsed(), Instant::now());
    let accesses = run(&mut *source, limit)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}: first access after {:.2} s, then {accesses} at {:.0} M/s; {} MiB resident",
        source.info().name,
        set_up.as_secs_f64(),
        accesses as f64 / seconds / 1e6,
        resident()? >> 20,
    );
    Ok(())
}

/// Takes slices until they have `limit` accesses or the workload ends; how many they have.
fn run(source: &mut dyn Source, limit: u64) -> Result<u64, TraceError> {
    let mut accesses = 0;
    while accesses < limit
        && let Some(item) = source.next_item()?
    {
        if let Item::Slice(slice) = item {
            accesses += slice.addresses.len() as u64;
        }
    }
    Ok(accesses)
}

/// Resident memory of this process in bytes, as the kernel's `VmRSS` says.
fn resident() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}
