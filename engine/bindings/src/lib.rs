//! `flatwalk._engine`: the engine for Python. JSON in, JSON out, and nothing else.
//!
//! Every error is an `EngineError` whose message says what is wrong, where, and how to fix it.

// Python hands over owned values.
#![allow(clippy::needless_pass_by_value)]

use std::ops::ControlFlow;
use std::path::PathBuf;

use flatwalk_timing::report::response::TraceSummary;
use flatwalk_timing::{
    Kind, Limits, Response, RunConfiguration, RunResult, Sampling, SimulateError,
};
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

fn open(request: &SourceRequest, seed: u64) -> PyResult<Box<dyn Source>> {
    match request {
        SourceRequest::Trace(path) => flatwalk_trace::open(path).map_err(error),
        SourceRequest::Workload { name, size_bytes } => {
            flatwalk_workloads::open(name, *size_bytes, seed).map_err(error)
        }
        SourceRequest::Mapping(mapping) => {
            flatwalk_workloads::mapping::open(mapping.clone(), seed).map_err(error)
        }
        SourceRequest::Addresses { .. } => Err(error("the source has no addresses with it")),
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

/// Calls back into Python, and keeps the exception if there is one.
struct Progress {
    callback: Option<Py<PyAny>>,
    raised: Option<PyErr>,
}

impl Progress {
    fn new(callback: Option<Py<PyAny>>) -> Self {
        Self { callback, raised: None }
    }

    fn report(&mut self, done: u64, total: Option<u64>) -> ControlFlow<()> {
        let reported = Python::attach(|py| {
            py.check_signals()?;
            match &self.callback {
                Some(callback) => callback.call1(py, (done, total)).map(drop),
                None => Ok(()),
            }
        });
        match reported {
            Ok(()) => ControlFlow::Continue(()),
            Err(raised) => {
                self.raised = Some(raised);
                ControlFlow::Break(())
            }
        }
    }

    /// The engine's answer, or the exception with which Python stopped the engine.
    fn answer<T, E: std::fmt::Display>(self, result: Result<T, E>) -> PyResult<T> {
        match (self.raised, result) {
            (Some(raised), _) => Err(raised),
            (None, Ok(answer)) => Ok(answer),
            (None, Err(e)) => Err(error(e)),
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
    let mut request: SimulateRequest = read(request)?;
    let source = match (&request.source, addresses) {
        (SourceRequest::Addresses { name, instructions_per_access }, Some(addresses)) => {
            let addresses = Box::new(Buffer::new(addresses)?);
            let open =
                || flatwalk_workloads::addresses::open(name, addresses, *instructions_per_access);
            py.detach(open).map_err(error)?
        }
        (source, None) => open(source, request.seed)?,
        (_, Some(_)) => return Err(error("addresses are given, and another source")),
    };
    let SimulateRequest { skip, warmup, instructions, sampling, seed, .. } = request;
    let limits = Limits { skip, warmup, instructions, sampling };
    let total = limits.simulated(source.info(), seed);
    let mut progress = Progress::new(progress);
    let runs = std::mem::take(&mut request.runs);
    let result = py.detach(|| {
        let report = &mut |done| progress.report(done, total);
        flatwalk_timing::simulate(source, runs, &limits, seed, request.threads, report)
    });
    let simulation = progress.answer(result)?;
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
    let open_core = |core: usize| {
        open(&request.sources[core], seed + core as u64).map_err(|error| error.to_string())
    };
    let mut progress = Progress::new(progress);
    let result = py.detach(|| {
        let report = &mut |done: u64| progress.report(done.min(total), Some(total));
        let runs = &request.runs;
        flatwalk_timing::simulate_mix(&open_core, cores, runs, &limits, seed, threads, report)
    });
    let runs = progress.answer(result)?;
    write(&MixResponse { version: version(), runs })
}

/// Explains one translation.
#[pyfunction]
fn walk(py: Python<'_>, request: &str) -> PyResult<String> {
    let request: WalkRequest = read(request)?;
    let mut source = open(&request.source, request.seed)?;
    let result: Result<_, SimulateError> = py.detach(|| {
        flatwalk_timing::report::explain::explain(
            &mut *source,
            request.run,
            request.instructions,
            request.address,
            request.seed,
        )
    });
    write(&result.map_err(error)?)
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
    let mut progress = Progress::new(progress);
    let result = py.detach(|| {
        flatwalk_trace::info(&path, verify, &mut |done, total| progress.report(done, Some(total)))
    });
    write(&progress.answer(result)?)
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
    let mut progress = Progress::new(progress);
    let result = py.detach(|| {
        let report = &mut |done, total| progress.report(done, Some(total));
        flatwalk_trace::import_to_file(&source, &target, format, report)
    });
    write(&progress.answer(result)?)
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
    let mut progress = Progress::new(progress);
    let result = py.detach(|| {
        let report = &mut |done, total| progress.report(done, Some(total));
        flatwalk_trace::export_to_file(&source, &target, format, report)
    });
    write(&progress.answer(result)?)
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
