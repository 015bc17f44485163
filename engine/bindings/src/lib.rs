//! `flatwalk._engine`: the engine for Python. JSON in, JSON out, and nothing else.
//!
//! Every error is an `EngineError` whose message says what is wrong, where, and how to fix it.

// Python hands over owned values.
#![allow(clippy::needless_pass_by_value)]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use flatwalk_timing::report::response::TraceSummary;
use flatwalk_timing::{Kind, Limits, Response, RunConfiguration, RunResult, Sampling};
use flatwalk_trace::{Format, Source};
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

create_exception!(_engine, EngineError, PyException, "The engine could not do what was asked.");

/// Where a trace comes from.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum SourceRequest {
    /// A file in any known format.
    Trace(PathBuf),
    /// A built-in workload.
    Workload { name: String, size_bytes: u64 },
    /// A process's mapping, and accesses to it.
    Mapping(flatwalk_workloads::mapping::Mapping),
    /// Addresses that come with the request.
    Addresses { name: String, instructions_per_access: u64 },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulateRequest {
    source: SourceRequest,
    runs: Vec<RunConfiguration>,
    instructions: Option<u64>,
    #[serde(default)]
    warmup: u64,
    #[serde(default)]
    skip: u64,
    #[serde(default)]
    sampling: Option<Sampling>,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    threads: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MixRequest {
    /// By core.
    sources: Vec<SourceRequest>,
    runs: Vec<RunConfiguration>,
    /// For each core.
    instructions: u64,
    #[serde(default)]
    warmup: u64,
    #[serde(default)]
    skip: u64,
    /// The first core's; each further core has the next number.
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    threads: usize,
}

#[derive(Debug, Serialize)]
struct MixResponse {
    version: &'static str,
    /// By configuration: the cores' results.
    runs: Vec<Vec<RunResult>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WalkRequest {
    source: SourceRequest,
    run: RunConfiguration,
    /// Run before, so that the structures are warm.
    instructions: u64,
    /// Default: the last data address used.
    address: Option<u64>,
    #[serde(default)]
    seed: u64,
}

fn error(message: impl std::fmt::Display) -> PyErr {
    EngineError::new_err(message.to_string())
}

fn read<'a, T: Deserialize<'a>>(request: &'a str) -> PyResult<T> {
    let deserializer = &mut serde_json::Deserializer::from_str(request);
    serde_path_to_error::deserialize(deserializer)
        .map_err(|e| error(format!("`{}`: {}", e.path(), e.inner())))
}

fn write(response: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(response).map_err(error)
}

fn open(request: &SourceRequest, seed: u64) -> Result<Box<dyn Source>, String> {
    fn words(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    match request {
        SourceRequest::Trace(path) => flatwalk_trace::open(path).map_err(words),
        SourceRequest::Workload { name, size_bytes } => {
            flatwalk_workloads::open(name, *size_bytes, seed).map_err(words)
        }
        SourceRequest::Mapping(mapping) => {
            flatwalk_workloads::mapping::open(mapping.clone(), seed).map_err(words)
        }
        SourceRequest::Addresses { .. } => Err("the source has no addresses with it".into()),
    }
}

/// Addresses in a buffer of Python's.
struct Buffer(PyBuffer<u64>);

impl Buffer {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(object).map_err(|e| {
            error(format!("addresses must be unsigned 64-bit numbers, as of a NumPy array: {e}"))
        })?;
        if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
            return Err(error("addresses must be one-dimensional and contiguous"));
        }
        Ok(Self(buffer))
    }
}

impl flatwalk_workloads::addresses::Addresses for Buffer {
    fn count(&self) -> u64 {
        self.0.item_count() as u64
    }

    fn read(&mut self, from: u64, into: &mut [u64]) {
        Python::attach(|py| {
            // It is contiguous, and has the address that `from` names.
            let all = self.0.as_slice(py).unwrap_or_default();
            for (to, cell) in into.iter_mut().zip(&all[from as usize..]) {
                *to = cell.get();
            }
        });
    }
}

/// How long a call may take to end after a signal. What takes longer goes on until the process ends.
const GRACE: Duration = Duration::from_millis(500);
/// How often signals are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Calls back into Python, and keeps the exception if there is one.
struct Progress {
    callback: Option<Py<PyAny>>,
    raised: Option<PyErr>,
    /// Set when nobody waits for the answer any more.
    stopped: Arc<AtomicBool>,
}

impl Progress {
    fn report(&mut self, done: u64, total: Option<u64>) -> ControlFlow<()> {
        let reported = Python::attach(|py| {
            if self.stopped.load(Ordering::Relaxed) {
                return Ok(ControlFlow::Break(()));
            }
            if let Some(callback) = &self.callback {
                callback.call1(py, (done, total))?;
            }
            Ok(ControlFlow::Continue(()))
        });
        reported.unwrap_or_else(|raised| {
            self.raised = Some(raised);
            ControlFlow::Break(())
        })
    }
}

/// Does `work` on a thread of its own and looks for signals meanwhile, as not all work calls back.
///
/// # Errors
/// What `work` says, or the exception that a signal or the callback raised.
fn attended<T, E, W>(py: Python<'_>, callback: Option<Py<PyAny>>, work: W) -> PyResult<T>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
    W: FnOnce(&mut Progress) -> Result<T, E> + Send + 'static,
{
    let stopped = Arc::new(AtomicBool::new(false));
    let mut progress = Progress { callback, raised: None, stopped: stopped.clone() };
    let (sender, mut receiver) = mpsc::channel();
    // As much stack as a main thread usually has.
    let worker = thread::Builder::new().stack_size(8 << 20).spawn(move || {
        let result = work(&mut progress);
        // Nobody listens if it took too long to stop.
        let _ = sender.send((progress.raised, result));
    })?;
    let mut signal = None;
    loop {
        let received;
        (received, receiver) = py.detach(move || (receiver.recv_timeout(LOOK), receiver));
        match received {
            Ok((raised, result)) => {
                let raised = signal.map(|(raised, _)| raised).or(raised);
                return raised.map_or_else(|| result.map_err(error), Err);
            }
            Err(RecvTimeoutError::Disconnected) => {
                // It panicked.
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                return Err(error("the engine ended without an answer; please report this"));
            }
            Err(RecvTimeoutError::Timeout) => {
                if signal.is_none()
                    && let Err(raised) = py.check_signals()
                {
                    stopped.store(true, Ordering::Relaxed);
                    signal = Some((raised, Instant::now()));
                }
                if let Some((raised, since)) = signal.take() {
                    if since.elapsed() > GRACE {
                        return Err(raised);
                    }
                    signal = Some((raised, since));
                }
            }
        }
    }
}

/// The engine's version.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Runs one trace through several configurations. `addresses` are those of the source `addresses`: a
/// buffer of unsigned 64-bit numbers, such as a NumPy array, which is not copied.
#[pyfunction]
#[pyo3(signature = (request, progress=None, addresses=None))]
fn simulate(
    py: Python<'_>,
    request: &str,
    progress: Option<Py<PyAny>>,
    addresses: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let request: SimulateRequest = read(request)?;
    let given = match (&request.source, addresses) {
        (SourceRequest::Addresses { name, instructions_per_access }, Some(addresses)) => {
            let addresses = Box::new(Buffer::new(addresses)?);
            let open =
                || flatwalk_workloads::addresses::open(name, addresses, *instructions_per_access);
            Some(py.detach(open).map_err(error)?)
        }
        (_, None) => None,
        (_, Some(_)) => return Err(error("addresses are given, and another source")),
    };
    let SimulateRequest { skip, warmup, instructions, sampling, seed, .. } = request;
    let limits = Limits { skip, warmup, instructions, sampling };
    let simulation = attended(py, progress, move |progress| {
        let source = given.map_or_else(|| open(&request.source, seed), Ok)?;
        let total = limits.simulated(source.info(), seed);
        let report = &mut |done| progress.report(done, total);
        flatwalk_timing::simulate(source, request.runs, &limits, seed, request.threads, report)
            .map_err(|error| error.to_string())
    })?;
    write(&Response {
        schema: Response::SCHEMA,
        version: version(),
        trace: TraceSummary {
            name: simulation.info.name,
            hash: simulation.info.hash,
            instructions: simulation.instructions,
            skip,
            warmup,
        },
        sampling: simulation.sampled,
        runs: simulation.runs,
    })
}

/// Runs several programs together, on the cores of one machine, under each configuration.
#[pyfunction]
#[pyo3(signature = (request, progress=None))]
fn simulate_mix(py: Python<'_>, request: &str, progress: Option<Py<PyAny>>) -> PyResult<String> {
    let request: MixRequest = read(request)?;
    let cores = request.sources.len();
    let MixRequest { warmup, skip, seed, threads, .. } = request;
    let limits = Limits { skip, warmup, instructions: Some(request.instructions), sampling: None };
    let total = request.instructions.saturating_add(warmup).saturating_mul(cores as u64);
    let runs = attended(py, progress, move |progress| {
        let open_core = |core: usize| open(&request.sources[core], seed + core as u64);
        let report = &mut |done: u64| progress.report(done.min(total), Some(total));
        let runs = &request.runs;
        flatwalk_timing::simulate_mix(&open_core, cores, runs, &limits, seed, threads, report)
    })?;
    write(&MixResponse { version: version(), runs })
}

/// Explains one translation.
#[pyfunction]
fn walk(py: Python<'_>, request: &str) -> PyResult<String> {
    let request: WalkRequest = read(request)?;
    write(&attended(py, None, move |_| {
        let mut source = open(&request.source, request.seed)?;
        flatwalk_timing::report::explain::explain(
            &mut *source,
            request.run,
            request.instructions,
            request.address,
            request.seed,
        )
        .map_err(|error| error.to_string())
    })?)
}

fn parse_format(name: &str) -> PyResult<Format> {
    Format::from_name(name).ok_or_else(|| {
        let known = Format::ALL.map(Format::name).join(", ");
        error(format!("`{name}` is not a trace format; the formats are {known}"))
    })
}

/// What is in a trace.
#[pyfunction]
#[pyo3(signature = (path, verify=false, progress=None))]
fn trace_info(
    py: Python<'_>,
    path: PathBuf,
    verify: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    write(&attended(py, progress, move |progress| {
        flatwalk_trace::info(&path, verify, &mut |done, total| progress.report(done, Some(total)))
    })?)
}

/// Turns a trace of another format into flatwalk's own.
#[pyfunction]
#[pyo3(signature = (source, target, format=None, progress=None))]
fn trace_import(
    py: Python<'_>,
    source: PathBuf,
    target: PathBuf,
    format: Option<&str>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let format = format.map(parse_format).transpose()?;
    write(&attended(py, progress, move |progress| {
        let report = &mut |done, total| progress.report(done, Some(total));
        flatwalk_trace::import_to_file(&source, &target, format, report)
    })?)
}

/// Writes a trace in another format.
#[pyfunction]
#[pyo3(signature = (source, target, format="champsim", progress=None))]
fn trace_export(
    py: Python<'_>,
    source: PathBuf,
    target: PathBuf,
    format: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let format = parse_format(format)?;
    write(&attended(py, progress, move |progress| {
        let report = &mut |done, total| progress.report(done, Some(total));
        flatwalk_trace::export_to_file(&source, &target, format, report)
    })?)
}

/// The built-in workloads.
#[pyfunction]
fn workloads() -> PyResult<String> {
    write(&flatwalk_workloads::REGISTRY)
}

fn kind(name: &str) -> PyResult<Kind> {
    Kind::from_name(name).ok_or_else(|| {
        let known = Kind::ALL.map(Kind::name).join(", ");
        error(format!("`{name}` has no schema; known are {known}"))
    })
}

/// Every problem of a machine, scheme, mix, experiment, configuration or answer.
#[pyfunction]
#[pyo3(signature = (kind, value))]
fn check(kind: &str, value: &str) -> PyResult<String> {
    write(&self::kind(kind)?.check(&read(value)?))
}

/// The JSON Schema of a kind.
#[pyfunction]
fn schema(kind: &str) -> PyResult<String> {
    write(self::kind(kind)?.schema())
}

/// Every key of a kind, with all that there is to know of it.
#[pyfunction]
fn describe(kind: &str) -> PyResult<String> {
    write(&self::kind(kind)?.describe())
}

#[pymodule]
fn _engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("EngineError", module.py().get_type::<EngineError>())?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_mix, module)?)?;
    module.add_function(wrap_pyfunction!(walk, module)?)?;
    module.add_function(wrap_pyfunction!(trace_info, module)?)?;
    module.add_function(wrap_pyfunction!(trace_import, module)?)?;
    module.add_function(wrap_pyfunction!(trace_export, module)?)?;
    module.add_function(wrap_pyfunction!(workloads, module)?)?;
    module.add_function(wrap_pyfunction!(check, module)?)?;
    module.add_function(wrap_pyfunction!(schema, module)?)?;
    module.add_function(wrap_pyfunction!(describe, module)?)
}
