//! What work of the engine's says to Python while it is done, and is told by it.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

thread_local! {
    /// Those of the work that this thread was started for.
    static CURRENT: RefCell<Option<Arc<Reports>>> = const { RefCell::new(None) };
    /// What Python calls this thread.
    static IDENTITY: Cell<Option<u64>> = const { Cell::new(None) };
}

/// What the engine says while it works, and is told.
#[derive(Debug, Default)]
pub struct Reports {
    /// The latest: what is done, and of how much.
    latest: Mutex<Option<(u64, Option<u64>)>>,
    stop: AtomicBool,
    /// What a prototype raised.
    raised: Mutex<Option<PyErr>>,
    /// The threads that run a prototype's hook, as Python numbers them.
    inside: Mutex<Vec<u64>>,
}

/// While it lives, a hook runs on this thread.
pub struct Inside<'a>(&'a Reports);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut inside = self.0.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let own = IDENTITY.get();
        if let Some(at) = inside.iter().rposition(|&thread| Some(thread) == own) {
            inside.swap_remove(at);
        }
    }
}

impl Reports {
    /// Those of the work that this thread was started for.
    pub fn current() -> Arc<Self> {
        CURRENT.with_borrow(|current| current.clone().unwrap_or_default())
    }

    /// Becomes those of the work that this thread does.
    pub fn make_current(self: &Arc<Self>) {
        CURRENT.set(Some(Arc::clone(self)));
    }

    /// Notes how far the work is; breaks if it is to stop.
    pub fn report(&self, done: u64, total: Option<u64>) -> ControlFlow<()> {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some((done, total));
        if self.stops() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// True if the work is to stop.
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Leaves the engine, whatever it is doing, because a prototype raised an exception: the hooks of
    /// tables and mechanisms cannot fail, so that the engine's own need no checks.
    pub fn leave(&self, raised: PyErr) -> ! {
        let words = raised.to_string();
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(raised);
        // Unlike a panic, this prints nothing.
        std::panic::resume_unwind(Box::new(words))
    }

    /// What a prototype raised, once.
    pub fn take_raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Notes that this thread runs a prototype's hook.
    pub fn enter_hook(&self, py: Python<'_>) -> PyResult<Inside<'_>> {
        let thread = match IDENTITY.get() {
            Some(thread) => thread,
            None => py.import("threading")?.call_method0("get_ident")?.extract()?,
        };
        IDENTITY.set(Some(thread));
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(Inside(self))
    }

    /// Stops the work: at its next report, or where a hook runs, in that.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !inside.is_empty() {
            // If it fails, the thread is left behind.
            let _ = Python::attach(|py| {
                py.import("flatwalk.prototypes.adapters")?
                    .call_method1("interrupt", (inside,))
                    .map(drop)
            });
        }
    }

    /// Lets Python handle signals, and know of the progress.
    pub fn pass_on(&self, callback: Option<&Py<PyAny>>) -> PyResult<()> {
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        Python::attach(|py| {
            py.check_signals()?;
            match (callback, latest) {
                (Some(callback), Some(latest)) => callback.call1(py, latest).map(drop),
                _ => Ok(()),
            }
        })
    }
}
