//! How fast configurations are simulated on one core, machine `skylake-server`, all small pages:
//!
//!     cargo run --release -p flatwalk-timing --example speed -- SOURCE [SCHEMES [MODE [INSTRUCTIONS]]]
//!
//! SOURCE is a trace's path, or a workload as `gups:8589934592` (size in bytes); SCHEMES are names with
//! commas between them, `radix4` unless given, MODE `timing` or `functional`, INSTRUCTIONS the number
//! simulated (all). Time is that of the whole simulation, reading the trace and populating the workload's
//! memory included. Of several schemes each is simulated three times, in turns, and its best time is held
//! against the first scheme's: on a machine that does other things too, only such a ratio means anything.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use flatwalk_os::Placement;
use flatwalk_timing::{
    Limits, Machine, Mode, Places, RunConfiguration, Sampling, Scheme, simulate,
};
use flatwalk_trace::Source;
use serde::de::DeserializeOwned;

fn shipped<T: DeserializeOwned>(kind: &str, name: &str) -> Result<T, Box<dyn Error>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/flatwalk/data");
    Ok(toml::from_str(&std::fs::read_to_string(data.join(kind).join(format!("{name}.toml")))?)?)
}

fn open(source: &str) -> Result<Box<dyn Source>, Box<dyn Error>> {
    if let Some((name, size)) = source.split_once(':') {
        return Ok(flatwalk_workloads::open(
            name,
            &flatwalk_workloads::Arguments::new(size.parse()?, 1),
        )?);
    }
    Ok(flatwalk_trace::open(Path::new(source))?)
}

/// Times that each of several schemes is simulated.
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let source = arguments.next().ok_or("no source; see the top of this file")?;
    let schemes = arguments.next().unwrap_or_else(|| "radix4".to_owned());
    let schemes: Vec<&str> = schemes.split(',').collect();
    let how = match arguments.next().as_deref() {
        None | Some("timing") => (Mode::Timing, false),
        Some("functional") => (Mode::Functional, false),
        Some("warming") => (Mode::Timing, true),
        Some(other) => {
            return Err(format!("`{other}` is not a mode: timing, functional or warming").into());
        }
    };
    let instructions = arguments.next().map(|n| n.parse()).transpose()?;
    let rounds = if schemes.len() > 1 { ROUNDS } else { 1 };
    let mut best = vec![(f64::INFINITY, String::new()); schemes.len()];
    for _ in 0..rounds {
        for (scheme, best) in schemes.iter().zip(&mut best) {
            let (seconds, told) = run(&source, scheme, how, instructions)?;
            if seconds < best.0 {
                *best = (seconds, told);
            }
        }
    }
    let first = best[0].0;
    for (scheme, (seconds, told)) in schemes.iter().zip(best) {
        let ratio = first / seconds;
        println!("{source} {scheme}: {seconds:.2} s, {told}; {ratio:.2} of {}'s speed", schemes[0]);
    }
    Ok(())
}

/// Seconds that a simulation took, and its rates.
fn run(
    source: &str,
    scheme: &str,
    (mode, is_warmed): (Mode, bool),
    instructions: Option<u64>,
) -> Result<(f64, String), Box<dyn Error>> {
    let configuration = RunConfiguration {
        scheme: shipped::<Scheme>("schemes", scheme)?,
        machine: shipped::<Machine>("machines", "skylake-server")?,
        settings: serde_json::Map::new(),
        large_pages: Some(0),
        thp: None,
        fragmentation: 0.0,
        host_large_pages: 0,
        guest_frames: Placement::Compact,
        frames: Placement::Apart,
        mode,
        context_switch_ms: None,
        memory_bytes: None,
        cores: None,
    };
    // All but the last thousandth is warmed.
    let window = instructions.unwrap_or(0) / 1000;
    let warmup = instructions.unwrap_or(0) - window;
    let limits = Limits {
        skip: if is_warmed { warmup } else { 0 },
        instructions: if is_warmed { Some(window + 1) } else { instructions },
        sampling: is_warmed.then_some(Sampling {
            windows: 1,
            window,
            warmup,
            filling: 0,
            after: 0,
            places: Places::Spread,
        }),
        ..Limits::default()
    };
    let start = Instant::now();
    let go_on = &mut |_| ControlFlow::Continue(());
    let simulation = simulate(open(source)?, vec![configuration], &limits, 1, 1, go_on)?;
    let seconds = start.elapsed().as_secs_f64();
    let run = &simulation.runs[0];
    let scale = simulation.instructions as f64 / run.instructions as f64;
    let per_second = |count: u64| count as f64 / seconds / 1e6;
    let told = format!(
        "{:.1} M instructions/s, {:.1} M accesses/s, {:.2} M walks/s",
        per_second(simulation.instructions),
        per_second(run.loads + run.stores) * scale,
        per_second(run.walks) * scale,
    );
    Ok((seconds, told))
}
