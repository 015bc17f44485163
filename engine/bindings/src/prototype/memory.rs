//! Simulated memory for a table that is written in Python: there while the engine calls one of its hooks,
//! and only in the blocks that it allocated.

use std::collections::BTreeMap;

use flatwalk_paging::{Level, NodeStatistics, Physical, TableMemory, page_name};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use scoped_tls_hkt::scoped_thread_local;

/// log2 of the bytes that a block has, at least and at most.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 12..=40;

scoped_thread_local!(static mut MEMORY: for<'a> &'a mut (dyn Access + 'a));

/// The blocks of memory that a table has.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// By address: the name's number, and log2 of the bytes.
    live: BTreeMap<u64, (usize, u8)>,
    /// In the order in which they were first used.
    names: Vec<String>,
}

impl Blocks {
    /// Where the block begins that `at` is in.
    pub fn base(&self, at: u64) -> Option<u64> {
        let (&base, &(_, shift)) = self.live.range(..=at).next_back()?;
        (at - base < 1 << shift).then_some(base)
    }

    /// Refuses what is not the address of a word of theirs.
    pub fn check(&self, at: u64) -> Result<u64, String> {
        if !at.is_multiple_of(8) {
            return Err(format!("{at:#x} is not the address of an 8-byte word"));
        }
        self.base(at).ok_or_else(|| {
            format!("{at:#x} is outside of the memory that this table allocated and has not freed")
        })
    }

    /// What memory they take, for pages of `level`; `used` entries are in them.
    pub fn statistics(&self, level: Level, used: u64) -> Vec<NodeStatistics> {
        let mut kinds = BTreeMap::<(usize, u8), u64>::new();
        for &kind in self.live.values() {
            *kinds.entry(kind).or_default() += 1;
        }
        let named = kinds.into_iter().map(|((name, shift), count)| {
            (format!("{} {}", page_name(level), self.names[name]), 1 << shift, count)
        });
        flatwalk_paging::keyed::statistics_of(named, level, used)
    }

    /// Gives all back.
    pub fn free_all<Out: Physical>(&mut self, memory: &mut dyn TableMemory<Out>) {
        for (at, (_, shift)) in std::mem::take(&mut self.live) {
            memory.free(Out::new(at), shift);
        }
    }
}

/// Memory, as a hook may use it.
trait Access {
    fn read(&self, at: u64) -> Result<u64, String>;
    fn write(&mut self, at: u64, word: u64) -> Result<(), String>;
    fn allocate(&mut self, bytes: u64, name: &str) -> Result<Option<u64>, String>;
    fn free(&mut self, at: u64) -> Result<(), String>;
}

struct Table<'a, Out: Physical> {
    memory: &'a mut dyn TableMemory<Out>,
    blocks: &'a mut Blocks,
}

impl<Out: Physical> Access for Table<'_, Out> {
    fn read(&self, at: u64) -> Result<u64, String> {
        self.blocks.check(at)?;
        Ok(self.memory.read(Out::new(at)))
    }

    fn write(&mut self, at: u64, word: u64) -> Result<(), String> {
        self.blocks.check(at)?;
        self.memory.write(Out::new(at), word);
        Ok(())
    }

    fn allocate(&mut self, bytes: u64, name: &str) -> Result<Option<u64>, String> {
        let shift = bytes.checked_ilog2().map_or(0, |shift| shift as u8);
        if !bytes.is_power_of_two() || !BLOCK_SHIFTS.contains(&shift) {
            return Err(format!("a block has 4096 bytes, or a larger power of two, not {bytes}"));
        }
        let Some(at) = self.memory.allocate(shift) else { return Ok(None) };
        let names = &mut self.blocks.names;
        let number = names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        self.blocks.live.insert(at.raw(), (number, shift));
        Ok(Some(at.raw()))
    }

    fn free(&mut self, at: u64) -> Result<(), String> {
        let (_, shift) =
            self.blocks.live.remove(&at).ok_or_else(|| {
                format!("{at:#x} is not the address of a block that is allocated")
            })?;
        self.memory.free(Out::new(at), shift);
        Ok(())
    }
}

/// Calls `hook` with the memory of the table that has `blocks`.
pub fn with_memory<Out: Physical, T>(
    memory: &mut dyn TableMemory<Out>,
    blocks: &mut Blocks,
    hook: impl FnOnce() -> T,
) -> T {
    MEMORY.set(&mut Table { memory, blocks }, hook)
}

/// What `use_it` does with the memory of the hook that is running.
fn memory<T>(use_it: impl FnOnce(&mut dyn Access) -> Result<T, String>) -> PyResult<T> {
    if !MEMORY.is_set() {
        let words = "memory is there while the table is changed, not here: a walk reads what `first` and \
                     `answer` return";
        return Err(PyValueError::new_err(words));
    }
    MEMORY.with(|memory| use_it(memory)).map_err(PyValueError::new_err)
}

/// The word at `at`.
#[pyfunction]
pub fn memory_read(at: u64) -> PyResult<u64> {
    memory(|memory| memory.read(at))
}

/// Stores a word at `at`.
#[pyfunction]
pub fn memory_write(at: u64, word: u64) -> PyResult<()> {
    memory(|memory| memory.write(at, word))
}

/// A block of zeros, if there is one.
#[pyfunction]
pub fn memory_allocate(size_bytes: u64, name: &str) -> PyResult<Option<u64>> {
    memory(|memory| memory.allocate(size_bytes, name))
}

/// Gives a block back.
#[pyfunction]
pub fn memory_free(at: u64) -> PyResult<()> {
    memory(|memory| memory.free(at))
}
