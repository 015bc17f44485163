//! `flatwalk-host BENCH [PARAMETERS]`: takes one measurement in this fresh process and prints it as one
//! line of JSON. Repetition, order and statistics are the caller's (`flatwalk host`): every measurement
//! that enters a statistic comes from a process of its own, so that the placement of memory is part of
//! what varies. `flatwalk-host cpuid` measures nothing: it prints what a processor says of itself.
//!
//! PARAMETERS is a JSON object; `flatwalk-host BENCH '{}'` names what is missing. An error is
//! one line on standard error, with exit status 1 (the kernel refused) or 2 (wrong parameters).

mod controls;
mod counters;
mod cpuid;
mod ebizzy;
mod error;
mod flush;
mod gups;
mod median;
mod pagefault;
mod random;
mod region;
mod sys;
#[cfg(test)]
mod testing;
mod tlb;
mod walk;

use std::process::ExitCode;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::controls::{Controls, Readings};
use crate::counters::{Count, Counters, EventSpec};
use crate::error::{Attempt, Error};

/// The parameters of every bench.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request<P> {
    /// Processors to run on: thread `i` on `cpus[i % len]`. Empty: wherever the kernel chooses.
    #[serde(default)]
    cpus: Vec<usize>,
    /// NUMA node that memory comes from.
    node: Option<u32>,
    /// What to count.
    #[serde(default)]
    events: Vec<EventSpec>,
    /// The bench's own parameters.
    bench: P,
}

/// The answer of every bench.
#[derive(Debug, Serialize)]
struct Response<R> {
    #[serde(flatten)]
    result: R,
    counts: Vec<Count>,
    /// Times that the kernel took the processor away during the measured part.
    preemptions: u64,
    /// See [`controls`]: the slower of before and after.
    controls_nanoseconds: Readings,
    notes: Vec<String>,
}

/// What a bench works with, and what it reports in addition to its result.
struct Context {
    cpus: Vec<usize>,
    counters: Counters,
    preemptions: u64,
    notes: Vec<String>,
}

impl Context {
    /// Runs `work` with the counters on.
    fn measured<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let before = sys::preemptions();
        self.counters.enable();
        let result = work();
        self.counters.disable();
        self.preemptions += sys::preemptions() - before;
        result
    }
}

fn run<P: DeserializeOwned, R: Serialize>(
    parameters: &str,
    bench: impl FnOnce(&P, &mut Context) -> Result<R, Error>,
) -> Result<String, Error> {
    let request: Request<P> = serde_json::from_str(parameters).map_err(Error::Parameters)?;
    let mut notes = Vec::new();
    if let Some(&cpu) = request.cpus.first()
        && let Err(error) = sys::pin(cpu)
    {
        notes.push(format!("not pinned to processor {cpu}: {error}"));
    }
    if let Some(node) = request.node
        && let Err(error) = sys::bind_memory(node)
    {
        notes.push(format!("memory not bound to node {node}: {error}"));
    }
    let counters = Counters::open(&request.events, &mut notes);
    let mut context = Context { cpus: request.cpus, counters, preemptions: 0, notes };
    let controls = Controls::new().attempting(|| "memory for the controls".to_owned())?;
    let before = controls.measure();
    let result = bench(&request.bench, &mut context)?;
    let controls_nanoseconds = before.slower(controls.measure());
    let counts = context.counters.read(&mut context.notes);
    let response = Response {
        result,
        counts,
        preemptions: context.preemptions,
        controls_nanoseconds,
        notes: context.notes,
    };
    serde_json::to_string(&response).map_err(Error::Parameters)
}

fn dispatch(arguments: &[String]) -> Result<String, Error> {
    let (bench, parameters) = match arguments {
        [bench] => (bench.as_str(), "{}"),
        [bench, parameters] => (bench.as_str(), parameters.as_str()),
        _ => return Err(Error::Usage),
    };
    match bench {
        "pagefault" => run(parameters, pagefault::measure),
        "gups" => run(parameters, gups::measure),
        "walk" => run(parameters, walk::measure),
        "ebizzy" => run(parameters, ebizzy::measure),
        "tlb" => run(parameters, tlb::measure),
        "cpuid" => {
            let request = serde_json::from_str(parameters).map_err(Error::Parameters)?;
            serde_json::to_string(&cpuid::ask(&request)?).map_err(Error::Parameters)
        }
        _ => Err(Error::Usage),
    }
}

fn main() -> ExitCode {
    sys::end_with_parent();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.status())
        }
    }
}
