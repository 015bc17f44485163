//! `flatwalk._engine`: the engine for Python. JSON in, JSON out; and what tables of Python are called by.
//!
//! Every error is an `EngineError` whose message says what is wrong, where, and how to fix it.

// Python hands over owned values.
#![allow(clippy::needless_pass_by_value)]

mod attend;
mod prototype;
mod reports;

use std::io;
use std::path::PathBuf;

use attend::attend;

use flatwalk_paging::conformance;
use flatwalk_timing::config::schema::Problem;
use flatwalk_timing::report::response::TraceSummary;
use flatwalk_timing::{
    Kind, Limits, Response, RunConfiguration, RunResult, Sampled, Sampling, Scheme,
};
use flatwalk_trace::{Format, Source};
use flatwalk_workloads::{Arguments, ArrayOrder, Keys, Traced};
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PySlice};
use serde::{Deserialize, Serialize};

create_exception!(_engine, EngineError, PyException, "The engine could not do what was asked.");

/// Where a trace comes from.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum SourceRequest {
    /// A file in any known format.
    Trace(PathBuf),
    /// A built-in workload.
    Workload {
        name: String,
        size_bytes: u64,
        #[serde(default)]
        array_order: ArrayOrder,
        #[serde(default)]
        keys: Keys,
        #[serde(default = "instructions_per_access")]
        instructions_per_access: u64,
        #[serde(default)]
        traced: Traced,
    },
    /// A process's mapping, and accesses to it.
    Mapping(flatwalk_workloads::mapping::Mapping),
    /// Addresses that come with the request.
    Addresses { name: String, instructions_per_access: u64 },
}

fn instructions_per_access() -> u64 {
    flatwalk_workloads::INSTRUCTIONS_PER_ACCESS
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
    programs: Vec<ProgramRequest>,
    runs: Vec<RunConfiguration>,
    /// The first core's; each further core has the next number.
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    threads: usize,
}

/// A program of a mix, and what of it is measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramRequest {
    source: SourceRequest,
    #[serde(default)]
    skip: u64,
    #[serde(default)]
    warmup: u64,
    instructions: Option<u64>,
    #[serde(default)]
    sampling: Option<Sampling>,
}

#[derive(Debug, Serialize)]
struct MixResponse {
    version: &'static str,
    /// By configuration: the cores' results.
    runs: Vec<Vec<RunResult>>,
    /// By core: what was measured of its program.
    sampling: Vec<Sampled>,
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
    match request {
        SourceRequest::Trace(path) => flatwalk_trace::open(path).map_err(|error| error.to_string()),
        &SourceRequest::Workload {
            ref name,
            size_bytes,
            array_order,
            keys,
            instructions_per_access,
            traced,
        } => {
            let arguments =
                Arguments { size_bytes, seed, array_order, keys, instructions_per_access, traced };
            flatwalk_workloads::open(name, &arguments).map_err(|error| error.to_string())
        }
        SourceRequest::Mapping(mapping) => flatwalk_workloads::mapping::open(mapping.clone(), seed)
            .map_err(|error| error.to_string()),
        SourceRequest::Addresses { .. } => Err("the source has no addresses with it".into()),
    }
}

/// Addresses in a buffer of Python's, read piece by piece.
struct Buffer {
    view: Py<PyMemoryView>,
    count: u64,
}

impl Buffer {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u64>::get(object).map_err(|e| {
            error(format!("addresses must be unsigned 64-bit numbers, as of a NumPy array: {e}"))
        })?;
        if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
            return Err(error("addresses must be one-dimensional and contiguous"));
        }
        let view = PyMemoryView::from(object)?.unbind();
        Ok(Self { view, count: buffer.item_count() as u64 })
    }
}

impl flatwalk_workloads::addresses::Addresses for Buffer {
    fn count(&self) -> u64 {
        self.count
    }

    fn read(&mut self, from: u64, into: &mut [u64]) -> io::Result<()> {
        let read = Python::attach(|py| {
            let from = isize::try_from(from)?;
            let piece = PySlice::new(py, from, from + isize::try_from(into.len())?, 1);
            PyBuffer::<u64>::get(&self.view.bind(py).get_item(piece)?)?.copy_to_slice(py, into)
        });
        read.map_err(|raised: PyErr| io::Error::other(raised.to_string()))
    }
}

/// The engine's version.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Runs one trace through several configurations. `addresses` are those of the source `addresses`: a
/// buffer of unsigned 64-bit numbers, such as an array of `numpy`, which is not copied.
#[pyfunction]
#[pyo3(signature = (request, progress=None, addresses=None))]
fn simulate(
    py: Python<'_>,
    request: &str,
    progress: Option<Py<PyAny>>,
    addresses: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let request: SimulateRequest = read(request)?;
    let addresses = addresses.map(Buffer::new).transpose()?;
    let SimulateRequest { skip, warmup, instructions, sampling, seed, threads, .. } = request;
    let limits = Limits { skip, warmup, instructions, sampling };
    let simulation = attend(py, progress.as_ref(), move |reports| {
        let source = match (&request.source, addresses) {
            (SourceRequest::Addresses { name, instructions_per_access }, Some(addresses)) => {
                let addresses = Box::new(addresses);
                flatwalk_workloads::addresses::open(name, addresses, *instructions_per_access)
                    .map_err(|error| error.to_string())?
            }
            (source, None) => open(source, seed)?,
            (_, Some(_)) => return Err("addresses are given, and another source".to_owned()),
        };
        let total = limits.simulated(source.info(), seed);
        let report = &mut |done| reports.report(done, total);
        let workers = prototype::workers(threads);
        flatwalk_timing::simulate(source, request.runs, &limits, seed, workers, report)
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
    let MixRequest { programs, runs, seed, threads } = read(request)?;
    let limits: Vec<_> = (programs.iter())
        .map(|&ProgramRequest { skip, warmup, instructions, ref sampling, .. }| Limits {
            skip,
            warmup,
            instructions,
            sampling: sampling.clone(),
        })
        .collect();
    let mixed = attend(py, progress.as_ref(), move |reports| {
        let open_core = |core: usize| open(&programs[core].source, seed.wrapping_add(core as u64));
        let report = &mut |done: u64, total: Option<u64>| {
            reports.report(total.map_or(done, |total| done.min(total)), total)
        };
        let workers = prototype::workers(threads);
        flatwalk_timing::simulate_mix(&open_core, &runs, &limits, seed, workers, report)
    })?;
    write(&MixResponse { version: version(), runs: mixed.runs, sampling: mixed.sampled })
}

/// Explains one translation.
#[pyfunction]
fn walk(py: Python<'_>, request: &str) -> PyResult<String> {
    let request: WalkRequest = read(request)?;
    let explanation = attend(py, None, move |_| {
        let mut source = open(&request.source, request.seed)?;
        flatwalk_timing::report::explain::explain(
            &mut *source,
            request.run,
            request.instructions,
            request.address,
            request.seed,
        )
        .map_err(|error| error.to_string())
    })?;
    write(&explanation)
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
    let info = attend(py, progress.as_ref(), move |reports| {
        flatwalk_trace::info(&path, verify, &mut |done, total| reports.report(done, Some(total)))
    })?;
    write(&info)
}

/// Notes in a complete trace what stopped its program before it ended by itself.
#[pyfunction]
fn trace_stopped(path: PathBuf, what: &str) -> PyResult<()> {
    flatwalk_trace::note_stopped(&path, what).map_err(error)
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
    let info = attend(py, progress.as_ref(), move |reports| {
        let report = &mut |done, total| reports.report(done, Some(total));
        flatwalk_trace::import_to_file(&source, &target, format, report)
    })?;
    write(&info)
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
    let exported = attend(py, progress.as_ref(), move |reports| {
        let report = &mut |done, total| reports.report(done, Some(total));
        flatwalk_trace::export_to_file(&source, &target, format, report)
    })?;
    write(&exported)
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

/// The problem of a configuration that so many programs are to run together under, if there is one.
#[pyfunction]
fn check_mix(run: &str, programs: usize) -> PyResult<String> {
    let problem = flatwalk_timing::check_mix(&read(run)?, programs).err().map(Problem::from);
    write(&problem)
}

/// Checks that tables of a scheme do what they are told; gives the problem with the shortest list of steps
/// that shows it, if they do not.
#[pyfunction]
fn check_organisation(
    py: Python<'_>,
    scheme: &str,
    seed: u64,
    cases: u32,
) -> PyResult<Option<(String, Vec<String>)>> {
    let scheme: Scheme = read(scheme)?;
    let layout = scheme.layout().map_err(error)?;
    attend(py, None, move |reports| {
        let failure = conformance::check(&layout, cases, Some(seed)).err();
        // What was raised is the problem, which the steps lead to.
        drop(reports.take_raised());
        Ok::<_, String>(failure.map(|failure| (failure.problem, failure.steps)))
    })
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
    module.add_function(wrap_pyfunction!(trace_stopped, module)?)?;
    module.add_function(wrap_pyfunction!(trace_import, module)?)?;
    module.add_function(wrap_pyfunction!(trace_export, module)?)?;
    module.add_function(wrap_pyfunction!(workloads, module)?)?;
    module.add_function(wrap_pyfunction!(check, module)?)?;
    module.add_function(wrap_pyfunction!(schema, module)?)?;
    module.add_function(wrap_pyfunction!(describe, module)?)?;
    module.add_function(wrap_pyfunction!(check_mix, module)?)?;
    module.add_function(wrap_pyfunction!(check_organisation, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::register_prototype, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::prototype_time, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::memory::memory_read, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::memory::memory_write, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::memory::memory_allocate, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::memory::memory_free, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::mechanism::miss_holds, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::mechanism::miss_walk, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::mechanism::miss_insert, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::mechanism::miss_wait, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::mechanism::miss_read, module)?)?;
    module.add_function(wrap_pyfunction!(prototype::mechanism::miss_write, module)?)
}
