//! What a workload costs: processor time until its first access, accesses a second after that, and
//! memory.
//!
//! ```text
//! cargo run --release -p flatwalk-workloads --example rate -- NAME SIZE_BYTES [ACCESSES]
//! ```

use std::error::Error;

use flatwalk_trace::{Item, Source, TraceError};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, size_bytes, rest @ ..] = arguments.as_slice() else {
        return Err("usage: rate NAME SIZE_BYTES [ACCESSES]".into());
    };
    let limit = rest.first().map_or(Ok(100_000_000), |limit| limit.parse())?;
    let start = processor_seconds()?;
    let mut source = flatwalk_workloads::open(
        name,
        &flatwalk_workloads::Arguments::new(size_bytes.parse()?, 1),
    )?;
    run(&mut *source, 1)?;
    let begun = processor_seconds()?;
    let accesses = run(&mut *source, limit)?;
    let rate = accesses as f64 / (processor_seconds()? - begun) / 1e6;
    println!(
        "{}: first access after {:.2} s, then {accesses} at {:.0} M/s; {} MiB of memory",
        source.info().name,
        begun - start,
        rate,
        most_memory()? >> 20,
    );
    Ok(())
}

/// Takes slices until they have `limit` accesses or the workload ends; returns how many they have.
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

/// Time that this thread has had on a processor, as the kernel's `schedstat` says.
fn processor_seconds() -> Result<f64, Box<dyn Error>> {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = statistics.split(' ').next().ok_or("schedstat is empty")?;
    Ok(nanoseconds.parse::<f64>()? / 1e9)
}

/// The most memory that this process has had resident, in bytes, as the kernel's `VmHWM` says.
fn most_memory() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}
