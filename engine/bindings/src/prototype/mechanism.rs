//! Mechanisms that are written in Python.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use flatwalk_paging::prototypes::Prototype;
use flatwalk_paging::{AccessKind, Address, Flush, Geometry, Gva, Hpa, Rights};
use flatwalk_timing::counts::{Add, Visitor};
use flatwalk_timing::memory::hierarchy::Served;
use flatwalk_timing::memory::reader::MemoryPort;
use flatwalk_timing::mmu::event::{Found, Stopped};
use flatwalk_timing::mmu::mechanism::{Hooks, Mechanism, Miss, ResultView, figures};
use flatwalk_timing::mmu::tlb::{Tlb, Translation};
use flatwalk_timing::prototypes::{Figures, Known, MECHANISMS, NAME, Place};
use flatwalk_timing::system::System;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use scoped_tls_hkt::scoped_thread_local;
use serde_json::{Map, Value};

use super::Hooked;

/// Cycles that anything can be put off, at most.
const LATEST: u64 = 1 << 32;
/// What the lines of memory are called that such mechanisms read.
const READ_NAME: &str = "mechanism";

scoped_thread_local!(static mut MISS: for<'a> &'a mut (dyn Access + 'a));

/// Makes a class of Python's known as a mechanism.
pub fn register(prototype: Prototype, object: Py<PyAny>) -> PyResult<()> {
    let class = prototype.class.clone();
    let memory_bytes =
        Python::attach(|py| object.bind(py).call_method0("memory_bytes")?.extract::<u64>())?;
    let make = move |place| -> Box<dyn Mechanism> {
        let hooked = Hooked::new(&object).another("begin", ());
        let has: Vec<String> = hooked.ask("has", (), "names of hooks");
        let (class, figures) = (class.clone(), Figures::default());
        Box::new(PythonMechanism { hooked, class, has, figures, place, memory_bytes })
    };
    MECHANISMS.register(prototype, Known { memory_bytes, make: Arc::new(make) });
    Ok(())
}

/// A translation as Python has it: an address of the page, level and bytes of the page, the cycle in which it
/// is known, the page's physical address, what it permits, whether its dirty bit is set, and the cycle in
/// which it was asked for.
type Given = (u64, u8, u64, u64, u64, u8, bool, u64);

/// Bits of what a page permits, as Python has it.
const WRITE: u8 = 1;
const USER: u8 = 2;
const EXECUTE: u8 = 4;

/// What was found for an address, as Python has it.
fn give(geometry: Geometry, address: u64, found: &Found, asked: u64) -> Given {
    let &Found { frame, level, rights: Rights { write, user, execute }, dirty, ready } = found;
    let flag = |on: bool, bit| if on { bit } else { 0 };
    let rights = flag(write, WRITE) | flag(user, USER) | flag(execute, EXECUTE);
    (address, level, geometry.span(level), ready, frame.raw(), rights, dirty, asked)
}

/// The translation that Python gives back at cycle `now`: it must be that of the page that is there now.
fn take(
    given: Given,
    now: u64,
    geometry: Geometry,
    system: &System,
) -> Result<(Found, u64), String> {
    let (address, level, _, ready, frame, rights, dirty, asked) = given;
    if !(asked..=now.saturating_add(LATEST)).contains(&ready) {
        return Err(format!("no translation is known in cycle {ready}: it is cycle {now}"));
    }
    let is = |bit| rights & bit != 0;
    let rights = Rights { write: is(WRITE), user: is(USER), execute: is(EXECUTE) };
    let mut is_there = false;
    if (1..=geometry.levels()).contains(&level) {
        let span = geometry.span(level);
        system.visit(address & !(span - 1), span, &mut |page| {
            let first = page.input.raw();
            let within = (first..=first + (geometry.span(page.level) - 1)).contains(&address);
            let more = |asked: bool, permitted: bool| asked && !permitted;
            let permitted = page.attributes.rights;
            let too_much = more(rights.write, permitted.write)
                || more(rights.user, permitted.user)
                || more(rights.execute, permitted.execute)
                || more(dirty, page.attributes.dirty);
            is_there |= within && page.level == level && page.frame.raw() == frame && !too_much;
        });
    }
    if !is_there {
        return Err(format!(
            "the translation of {address:#x} is not that of the page that is there now: forget it in \
             `flush` and `switch_context`"
        ));
    }
    Ok((Found { frame: Hpa::new(frame), level, rights, dirty, ready }, asked))
}

/// A miss, as a hook may use it.
trait Access {
    fn holds(&self, address: u64) -> bool;
    fn walk(&mut self, address: u64, at: u64) -> Result<Option<Given>, String>;
    fn insert(&mut self, given: Given) -> Result<(), String>;
    fn wait(&mut self, cycles: u64) -> Result<u64, String>;
    fn read(&mut self, offset: u64, bypass: bool) -> Result<(&'static str, u64), String>;
    fn write(&mut self, offset: u64, at: u64) -> Result<(), String>;
}

/// A miss while a hook runs.
struct Missed<'a, 'b> {
    miss: &'a mut Miss<'b>,
    /// Cycle that the hook has come to.
    now: u64,
    /// It looks the translation up, which may take time.
    looks_up: bool,
    /// Memory of the mechanism's own.
    memory: (Hpa, u64),
}

impl Missed<'_, '_> {
    /// Refuses cycles that are over, and those far away.
    fn check_time(&self, at: u64, what: &str) -> Result<(), String> {
        let now = self.miss.request.at;
        if (now..=now.saturating_add(LATEST)).contains(&at) {
            return Ok(());
        }
        Err(format!("{what} in cycle {at}: it is cycle {now}"))
    }

    /// Refuses what takes time where nobody waits for the hook.
    fn check_looks_up(&self) -> Result<(), String> {
        let words =
            "only `missed` can take time: the walk that follows, or what it returns, waits for it";
        if self.looks_up { Ok(()) } else { Err(words.to_owned()) }
    }

    /// Where `offset` is in memory.
    fn place(&self, offset: u64) -> Result<Hpa, String> {
        let (base, bytes) = self.memory;
        if offset < bytes {
            return Ok(base.offset(offset & !63));
        }
        Err(format!(
            "byte {offset} is outside of the mechanism's memory: `memory_bytes` is {bytes}"
        ))
    }
}

impl Access for Missed<'_, '_> {
    fn holds(&self, address: u64) -> bool {
        self.miss.tlb.holds(address)
    }

    fn walk(&mut self, address: u64, at: u64) -> Result<Option<Given>, String> {
        self.check_time(at, "no walk can begin")?;
        if !self.miss.geometry.is_canonical(address) {
            return Ok(None);
        }
        let found = self.miss.prefetch_walk(Gva::new(address), at);
        Ok(found.map(|(found, _)| give(self.miss.geometry, address, &found, at)))
    }

    fn insert(&mut self, given: Given) -> Result<(), String> {
        let (found, asked) = take(given, self.now, self.miss.geometry, self.miss.system)?;
        self.miss.tlb.insert(given.0, found.translation(asked));
        Ok(())
    }

    fn wait(&mut self, cycles: u64) -> Result<u64, String> {
        self.check_looks_up()?;
        if self.miss.port.is_timed() {
            let at = self.now.saturating_add(cycles);
            self.check_time(at, "nothing can be done")?;
            self.now = at;
        }
        Ok(self.now)
    }

    fn read(&mut self, offset: u64, bypass: bool) -> Result<(&'static str, u64), String> {
        self.check_looks_up()?;
        let line = self.place(offset)?;
        let (response, _) = self.miss.port.read_translations(line, self.now, bypass, false);
        let served = response.served();
        self.miss.log.mechanism_read(served);
        self.now = response.ready;
        let place = match served {
            Served::L1 => "L1D",
            Served::L2 => "L2",
            Served::Llc => "LLC",
            Served::Dram => "DRAM",
        };
        Ok((place, self.now))
    }

    fn write(&mut self, offset: u64, at: u64) -> Result<(), String> {
        self.check_time(at, "nothing can be written")?;
        let line = self.place(offset)?;
        self.miss.port.write_translations(line, at);
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
pub fn miss_walk(address: u64, at: u64) -> PyResult<Option<Given>> {
    miss(|miss| miss.walk(address, at))
}

/// Puts a translation into the last-level TLB.
#[pyfunction]
pub fn miss_insert(translation: Given) -> PyResult<()> {
    miss(|miss| miss.insert(translation))
}

/// Lets time pass; returns the cycle then.
#[pyfunction]
pub fn miss_wait(cycles: u64) -> PyResult<u64> {
    miss(|miss| miss.wait(cycles))
}

/// Reads a line of the mechanism's memory; returns who had it, and the cycle in which it is there.
#[pyfunction]
pub fn miss_read(offset: u64, bypass: bool) -> PyResult<(&'static str, u64)> {
    miss(|miss| miss.read(offset, bypass))
}

/// Writes into a line of it, for which nobody waits.
#[pyfunction]
pub fn miss_write(offset: u64, at: u64) -> PyResult<()> {
    miss(|miss| miss.write(offset, at))
}

/// The mechanism.
#[derive(Debug)]
struct PythonMechanism {
    hooked: Hooked,
    class: String,
    /// The hooks that it has.
    has: Vec<String>,
    figures: Figures,
    place: Place,
    memory_bytes: u64,
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

    /// Calls a hook with a miss; returns the cycle then, and the answer that it gave.
    fn call_with(
        &mut self,
        hook: &'static str,
        miss: &mut Miss<'_>,
        found: Option<&Found>,
    ) -> (u64, Option<Given>) {
        let request = miss.request;
        let kind = match request.kind {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::Fetch => "fetch",
        };
        let address = request.address.raw();
        let found = found.map(|found| give(miss.geometry, address, found, request.at));
        let arguments = (hook, address, request.at, kind, found);
        let (looks_up, memory) = (hook == "missed", (self.place.memory, self.memory_bytes));
        let mut missed = Missed { miss, now: request.at, looks_up, memory };
        let (counted, answer): (BTreeMap<String, u64>, Option<Given>) = MISS
            .set(&mut missed, || self.hooked.ask("miss", arguments, "counts and a translation"));
        let now = missed.now;
        self.figures.add(&Figures(counted));
        (now, answer)
    }
}

impl Mechanism for PythonMechanism {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        let hooked = self.hooked.another("copy", ());
        let (class, has, figures) = (self.class.clone(), self.has.clone(), self.figures.clone());
        Box::new(Self { hooked, class, has, figures, ..*self })
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        Hooks {
            look_up: self.has("missed"),
            look_up_in_walker: self.has("missed") && self.has("takes_walker"),
            populate: self.has("populated"),
            walk: self.has("before_walk") || self.has("after_walk"),
            fill: self.has("filled") || self.has("evicted"),
            ..Hooks::default()
        }
    }

    fn look_up(&mut self, miss: &mut Miss<'_>) -> Result<Found, u64> {
        let (now, answer) = self.call_with("missed", miss, None);
        let given = answer.ok_or(now)?;
        match take(given, now, miss.geometry, miss.system) {
            Ok((found, _)) => Ok(Found { ready: found.ready.max(now), ..found }),
            Err(words) => self.hooked.wrong("missed", &format!("returned what cannot be: {words}")),
        }
    }

    fn before_walk(&mut self, miss: &mut Miss<'_>) {
        if self.has("before_walk") {
            self.call_with("before_walk", miss, None);
        }
    }

    fn after_walk(&mut self, miss: &mut Miss<'_>, result: &mut Result<Found, Stopped>) {
        if self.has("after_walk") {
            self.call_with("after_walk", miss, result.as_ref().ok());
        }
    }

    fn populated(&mut self, address: Gva, found: &Found) {
        if self.has("populated") {
            self.call("populated", (give(self.place.geometry, address.raw(), found, 0),));
        }
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
            self.call("call", ("flush", flush.start.raw(), flush.length_bytes()));
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

    fn read_name(&self) -> Option<&'static str> {
        (self.memory_bytes > 0).then_some(READ_NAME)
    }

    fn result(&self, _view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&BTreeMap::from([(&self.class, &self.figures)])))
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
