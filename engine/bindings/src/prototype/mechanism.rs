//! Mechanisms that are written in Python.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use flatwalk_paging::prototypes::Prototype;
use flatwalk_paging::{AccessKind, Address, Flush, Gva};
use flatwalk_timing::counts::{Add, Visitor};
use flatwalk_timing::memory::reader::MemoryPort;
use flatwalk_timing::mmu::event::{Found, Stopped};
use flatwalk_timing::mmu::mechanism::{Hooks, Mechanism, Miss, ResultView, figures};
use flatwalk_timing::mmu::tlb::{Tlb, Translation};
use flatwalk_timing::prototypes::{Figures, MECHANISMS, NAME};
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use scoped_tls_hkt::scoped_thread_local;
use serde_json::{Map, Value};

use super::Hooked;

/// Cycles that a prefetch may be put off, at most.
const LATEST: u64 = 1 << 32;

scoped_thread_local!(static mut MISS: for<'a> &'a mut (dyn Access + 'a));

/// Makes a class of Python's known as a mechanism.
pub fn register(prototype: Prototype, object: Py<PyAny>) {
    let class = prototype.class.clone();
    let make = move || -> Box<dyn Mechanism> {
        let hooked = Hooked::new(&object).another("begin", ());
        let has: Vec<String> = hooked.ask("has", (), "names of hooks");
        let (class, figures) = (class.clone(), Figures::default());
        Box::new(PythonMechanism { hooked, class, has, figures, walked: 0 })
    };
    MECHANISMS.register(prototype, Arc::new(make));
}

/// A translation that a walk found: its number, the address that was walked for, the page's level and bytes,
/// and the cycle in which it is known.
type Walked = (u64, u64, u8, u64, u64);

/// A miss, as a hook may use it.
trait Access {
    fn holds(&self, address: u64) -> bool;
    fn walk(&mut self, address: u64, at: u64) -> Result<Option<Walked>, String>;
    fn insert(&mut self, number: u64) -> Result<(), String>;
}

/// A miss while a hook runs.
struct Missed<'a, 'b> {
    miss: &'a mut Miss<'b>,
    /// Number of the first of `found`.
    first: u64,
    /// What prefetches found, for which address, and when that was asked for.
    found: Vec<(u64, Found, u64)>,
}

impl Access for Missed<'_, '_> {
    fn holds(&self, address: u64) -> bool {
        self.miss.tlb.holds(address)
    }

    fn walk(&mut self, address: u64, at: u64) -> Result<Option<Walked>, String> {
        let now = self.miss.request.at;
        if !(now..=now.saturating_add(LATEST)).contains(&at) {
            return Err(format!("no walk can begin in cycle {at}: it is cycle {now}"));
        }
        if !self.miss.geometry.is_canonical(address) {
            return Ok(None);
        }
        let Some((found, _)) = self.miss.prefetch_walk(Gva::new(address), at) else {
            return Ok(None);
        };
        let number = self.first + self.found.len() as u64;
        self.found.push((address, found, at));
        let bytes = self.miss.geometry.span(found.level);
        Ok(Some((number, address, found.level, bytes, found.ready)))
    }

    fn insert(&mut self, number: u64) -> Result<(), String> {
        let place = number.checked_sub(self.first);
        let found = place.and_then(|place| self.found.get(place as usize));
        let &(address, found, at) = found.ok_or(
            "a translation can be inserted only by the hook that walked for it: the page may be gone \
             later",
        )?;
        self.miss.tlb.insert(address, found.translation(at));
        Ok(())
    }
}

/// What `use_it` does with the miss of the hook that is running.
fn miss<T>(use_it: impl FnOnce(&mut dyn Access) -> Result<T, String>) -> PyResult<T> {
    if !MISS.is_set() {
        return Err(PyValueError::new_err("a miss is there until its hook returns, and not here"));
    }
    // A table of Python's that fails leaves the engine, but not through the interpreter.
    catch_unwind(AssertUnwindSafe(|| MISS.with(|miss| use_it(miss))))
        .unwrap_or_else(|_| Err(String::new()))
        .map_err(|words| match words.as_str() {
            "" => PyRuntimeError::new_err("the walk failed"),
            _ => PyValueError::new_err(words),
        })
}

/// Whether the last-level TLB has an entry for an address.
#[pyfunction]
pub fn miss_holds(address: u64) -> PyResult<bool> {
    miss(|miss| Ok(miss.holds(address)))
}

/// Walks for a prefetch.
#[pyfunction]
pub fn miss_walk(address: u64, at: u64) -> PyResult<Option<Walked>> {
    miss(|miss| miss.walk(address, at))
}

/// Puts what a prefetch found into the last-level TLB.
#[pyfunction]
pub fn miss_insert(number: u64) -> PyResult<()> {
    miss(|miss| miss.insert(number))
}

/// The mechanism.
#[derive(Debug)]
struct PythonMechanism {
    hooked: Hooked,
    class: String,
    /// The hooks that it has.
    has: Vec<String>,
    figures: Figures,
    /// Translations that prefetches have found.
    walked: u64,
}

impl PythonMechanism {
    fn has(&self, hook: &str) -> bool {
        self.has.iter().any(|one| one == hook)
    }

    /// Calls a hook, and adds what it counted.
    fn call(&mut self, method: &'static str, arguments: impl for<'py> PyCallArgs<'py>) {
        let counted: BTreeMap<String, u64> = self.hooked.ask(method, arguments, "counts by name");
        self.figures.add(&Figures(counted));
    }

    /// Calls a hook with a miss.
    fn call_with(&mut self, hook: &'static str, miss: &mut Miss<'_>, found: Option<&Found>) {
        if !self.has(hook) {
            return;
        }
        let request = miss.request;
        let kind = match request.kind {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::Fetch => "fetch",
        };
        let address = request.address.raw();
        let found = found.map(|found| {
            (u64::MAX, address, found.level, miss.geometry.span(found.level), found.ready)
        });
        let arguments = (hook, address, request.at, kind, found);
        let mut missed = Missed { miss, first: self.walked, found: Vec::new() };
        MISS.set(&mut missed, || self.call("miss", arguments));
        self.walked += missed.found.len() as u64;
    }
}

impl Mechanism for PythonMechanism {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        let hooked = self.hooked.another("copy", ());
        let (class, has) = (self.class.clone(), self.has.clone());
        Box::new(Self { hooked, class, has, figures: self.figures.clone(), walked: self.walked })
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        Hooks {
            look_up: self.has("missed"),
            walk: self.has("before_walk") || self.has("after_walk"),
            fill: self.has("filled") || self.has("evicted"),
            ..Hooks::default()
        }
    }

    fn look_up(&mut self, miss: &mut Miss<'_>) -> Result<Found, u64> {
        self.call_with("missed", miss, None);
        Err(miss.request.at)
    }

    fn before_walk(&mut self, miss: &mut Miss<'_>) {
        self.call_with("before_walk", miss, None);
    }

    fn after_walk(&mut self, miss: &mut Miss<'_>, result: &mut Result<Found, Stopped>) {
        self.call_with("after_walk", miss, result.as_ref().ok());
    }

    fn filled(&mut self, address: Gva, entry: &Translation, _port: &mut dyn MemoryPort) {
        if self.has("filled") {
            self.call("call", ("filled", address.raw(), entry.level));
        }
    }

    fn evicted(&mut self, page: Gva, entry: &Translation, _port: &mut dyn MemoryPort) {
        if self.has("evicted") {
            self.call("call", ("evicted", page.raw(), entry.level));
        }
    }

    fn flush(&mut self, flush: &Flush<Gva>, _tlb: &mut Tlb) {
        if flush.leaves && self.has("flush") {
            self.call("call", ("flush", flush.start.raw(), flush.length_bytes));
        }
    }

    fn switch_context(&mut self) {
        if self.has("switch_context") {
            self.call("call", ("switch_context",));
        }
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.figures);
    }

    fn result(&self, _view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&self.figures))
    }

    fn words(&self, _view: &ResultView<'_>) -> Vec<String> {
        let counts: Vec<_> =
            self.figures.0.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if counts.is_empty() {
            return Vec::new();
        }
        vec![format!("{} counted {}", self.class, counts.join(", "))]
    }
}
