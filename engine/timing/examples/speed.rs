//! How fast one configuration is simulated on one core, machine `skylake-server`, all small pages:
//!
//!     cargo run --release -p flatwalk-timing --example speed -- SOURCE [SCHEME [MODE [INSTRUCTIONS]]]
//!
//! SOURCE is a trace's path, or a workload as `gups:8589934592` (size in bytes); SCHEME is `radix4`
//! unless given, MODE `timing` or `functional`, INSTRUCTIONS the number simulated (all). Time is
//! that of the whole simulation, reading the trace and populating the workload's memory included.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use flatwalk_timing::run::GuestFrames;
use flatwalk_timing::{Limits, Machine, Mode, RunConfiguration, Scheme, simulate};
use flatwalk_trace::Source;
use serde::de::DeserializeOwned;

fn shipped<T: DeserializeOwned>(kind: &str, name: &str) -> Result<T, Box<dyn Error>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/flatwalk/data");
    Ok(toml::from_str(&std::fs::read_to_string(data.join(kind).join(format!("{name}.toml")))?)?)
}

fn open(source: &str) -> Result<Box<dyn Source>, Box<dyn Error>> {
    if let Some((name, size)) = source.split_once(':') {
        return Ok(flatwalk_workloads::open(name, size.parse()?, 1)?);
    }
    Ok(flatwalk_trace::open(Path::new(source))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let source = arguments.next().ok_or("no source; see the top of this file")?;
    let scheme = arguments.next().unwrap_or_else(|| "radix4".to_owned());
    let mode = match arguments.next().as_deref() {
        None | Some("timing") => Mode::Timing,
        Some("functional") => Mode::Functional,
        Some(other) => return Err(format!("`{other}` is no mode: timing or functional").into()),
    };
    let instructions = arguments.next().map(|n| n.parse()).transpose()?;
    let configuration = RunConfiguration {
        scheme: shipped::<Scheme>("schemes", &scheme)?,
        machine: shipped::<Machine>("machines", "skylake-server")?,
        large_pages: Some(0),
        thp: None,
        fragmentation: 0.0,
        host_large_pages: 0,
        guest_frames: GuestFrames::Compact,
        mode,
        context_switch_ms: None,
        memory_bytes: None,
    };
    let limits = Limits { instructions, ..Limits::default() };
    let start = Instant::now();
    let go_on = &mut |_| ControlFlow::Continue(());
    let simulation = simulate(open(&source)?, vec![configuration], limits, 1, 1, go_on)?;
    let seconds = start.elapsed().as_secs_f64();
    let run = &simulation.runs[0];
    let per_second = |count: u64| count as f64 / seconds / 1e6;
    println!(
        "{source} {scheme}: {seconds:.2} s, {:.1} M instructions/s, {:.1} M accesses/s, {:.2} M walks/s",
        per_second(run.instructions),
        per_second(run.loads + run.stores),
        per_second(run.walks),
    );
    Ok(())
}
