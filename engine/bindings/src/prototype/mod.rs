//! Prototypes: page tables and mechanisms whose hooks are methods of Python objects.
//!
//! The objects are adapters of `flatwalk.prototypes.adapters`, which call the user's. What these give is input from
//! outside: each answer is checked here before the engine sees it.

pub mod mechanism;
pub mod memory;
pub mod organisation;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flatwalk_paging::prototypes::Prototype;
use flatwalk_timing::Workers;
use pyo3::call::PyCallArgs;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;

use crate::read;
use crate::reports::Reports;

/// True once a class is known: its hooks may be called.
static ANY: AtomicBool = AtomicBool::new(false);

/// Does work that may call hooks. Python makes a state for a thread that calls it, and gives it up with the last call
/// that is under way: around the work, there is one call always, so that its hooks do not map and unmap a state each.
pub fn with_thread_state<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if ANY.load(Ordering::Relaxed) { Python::attach(|py| py.detach(work)) } else { work() }
}

/// As many threads, whose work may call hooks.
pub fn workers(threads: usize) -> Workers {
    Workers { threads, around: |work| with_thread_state(work) }
}

/// Time in which some hook of Python's was running.
struct Clock {
    running: u32,
    since: Option<Instant>,
    total: Duration,
    calls: u64,
}

static CLOCK: Mutex<Clock> =
    Mutex::new(Clock { running: 0, since: None, total: Duration::ZERO, calls: 0 });

/// While it lives, a hook of Python's is running.
struct Running;

impl Running {
    fn begin() -> Self {
        let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
        clock.calls += 1;
        clock.running += 1;
        if clock.running == 1 {
            clock.since = Some(Instant::now());
        }
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
        clock.running -= 1;
        if clock.running == 0 {
            let since = clock.since.take();
            clock.total += since.map_or(Duration::ZERO, |since| since.elapsed());
        }
    }
}

/// Seconds in which some hook of Python's was running, and how many were called, since the process began.
#[pyfunction]
pub fn prototype_time() -> (f64, u64) {
    let clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    (clock.total.as_secs_f64(), clock.calls)
}

/// An object of Python's whose hooks the engine calls, in the work that it belongs to.
#[derive(Debug)]
pub struct Hooked {
    object: Py<PyAny>,
    reports: Arc<Reports>,
}

impl Hooked {
    /// For the work that this thread does.
    pub fn new(object: &Py<PyAny>) -> Self {
        let object = Python::attach(|py| object.clone_ref(py));
        Self { object, reports: Reports::current() }
    }

    /// What `method` gives. An exception, and what is not a `T`, leaves the engine.
    pub fn ask<T>(
        &self,
        method: &'static str,
        arguments: impl for<'py> PyCallArgs<'py>,
        expected: &str,
    ) -> T
    where
        T: for<'py> FromPyObjectOwned<'py>,
    {
        if self.reports.stops() {
            std::panic::resume_unwind(Box::new("stopped".to_owned()));
        }
        let answer = Python::attach(|py| {
            let running = Running::begin();
            let inside = self.reports.enter_hook(py)?;
            let answer = self.object.bind(py).call_method1(method, arguments);
            drop((inside, running));
            let answer = answer?;
            match answer.extract::<T>() {
                Ok(answer) => Ok(answer),
                Err(_) => Err(self.wrong_words(
                    py,
                    method,
                    &format!("returned {}, which is not {expected}", answer.repr()?),
                )),
            }
        });
        answer.unwrap_or_else(|raised| self.reports.leave(raised))
    }

    /// Another such object, which `method` gives.
    pub fn another(&self, method: &'static str, arguments: impl for<'py> PyCallArgs<'py>) -> Self {
        let object = self.ask(method, arguments, "an object");
        Self { object, reports: Arc::clone(&self.reports) }
    }

    /// Leaves the engine: what `method` gave cannot be.
    pub fn wrong(&self, method: &'static str, words: &str) -> ! {
        let raised = Python::attach(|py| self.wrong_words(py, method, words));
        self.reports.leave(raised)
    }

    /// The exception for an answer that cannot be, which names the user's code.
    fn wrong_words(&self, py: Python<'_>, method: &str, words: &str) -> PyErr {
        match self.object.bind(py).call_method1("wrong", (method, words)) {
            Ok(raised) => PyErr::from_value(raised),
            Err(raised) => raised,
        }
    }
}

/// Makes a class known by the hash of its code, so that schemes can name it.
#[pyfunction]
pub fn register_prototype(kind: &str, prototype: &str, object: Py<PyAny>) -> PyResult<()> {
    let prototype: Prototype = read(prototype)?;
    ANY.store(true, Ordering::Relaxed);
    match kind {
        "organisation" => organisation::register(prototype, object),
        "mechanism" => mechanism::register(prototype, object)?,
        other => return Err(crate::error(format!("`{other}` is not a kind of prototype"))),
    }
    Ok(())
}
