//! Page tables that are written in Python: a table for each page size.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

use flatwalk_paging::keyed::by_size::{BySize, SizeTable};
use flatwalk_paging::keyed::{
    Answer, Design, LineRead, MakeStore, Probe, ReadWords, Store, leaf_of,
};
use flatwalk_paging::prototypes::{DESIGNS, Prototype};
use flatwalk_paging::{
    Entry, EntryMemory, Geometry, LINE_BYTES, Leaf, Level, Line, NodeStatistics, Physical, Resizes,
    TableError, TableMemory, page_name,
};
use pyo3::prelude::*;

use super::Hooked;
use super::memory::{Blocks, with_memory};

/// Lines that a walk reads one after the other for one page size, at most.
const MOST_LINES: u8 = u8::MAX;
const ADDRESS: &str = "the address of a word, a number of 64 bits";

/// Makes a class of Python's known as an organisation.
pub fn register(prototype: Prototype, object: Py<PyAny>) {
    let design = PythonDesign { class: prototype.class.clone(), object };
    DESIGNS.register(prototype, Arc::new(design));
}

/// What tables of a class are like.
#[derive(Debug)]
struct PythonDesign {
    class: String,
    object: Py<PyAny>,
}

impl<Out: Physical> MakeStore<Out> for PythonDesign {
    fn make(&self, geometry: Geometry) -> Box<dyn Store<Out>> {
        let maker = Arc::new(Hooked::new(&self.object));
        Box::new(BySize::<Out, PythonTable<Out>>::new(geometry, maker))
    }
}

impl Design for PythonDesign {
    fn explain(&self, read: &LineRead, _bits: &str) -> ReadWords {
        let &LineRead { level, way, number, found, .. } = read;
        let hook = if way == 0 { "first" } else { "answer" };
        ReadWords {
            table: page_name(level).to_owned(),
            place: format!("read {way}"),
            index: number,
            found_by: format!("{}.{hook} leads to line {number} of a block", self.class),
            meaning: (!found).then(|| "does not hold the page".to_owned()),
        }
    }
}

/// The table for pages of one size.
#[derive(Debug)]
struct PythonTable<Out> {
    hooked: Hooked,
    geometry: Geometry,
    level: Level,
    blocks: Blocks,
    /// Pages that are in it, by number.
    pages: HashSet<u64>,
    out: PhantomData<Out>,
}

impl<Out: Physical> Clone for PythonTable<Out> {
    fn clone(&self) -> Self {
        let hooked = self.hooked.another("copy", ());
        Self { hooked, blocks: self.blocks.clone(), pages: self.pages.clone(), ..*self }
    }
}

impl<Out: Physical> PythonTable<Out> {
    /// Calls a hook that changes the table; false if it was refused memory.
    fn change_by(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        hook: &'static str,
        arguments: &[u64],
    ) -> bool {
        let Self { hooked, blocks, .. } = self;
        with_memory(memory, blocks, || hooked.ask("change", (hook, arguments), "a truth value"))
    }

    /// The read of the word at `at`, which `hook` gave, after `way` others.
    fn probe(&self, hook: &'static str, at: u64, way: u8) -> Probe<Out> {
        match self.blocks.check(at) {
            Ok(base) => Probe::word(Out::new(at), Out::new(base), self.level, way),
            Err(words) => {
                self.hooked.wrong(hook, &format!("returned what cannot be read: {words}"))
            }
        }
    }
}

impl<Out: Physical> SizeTable<Out> for PythonTable<Out> {
    /// What makes the Python objects.
    type Parameters = Arc<Hooked>;

    fn new(
        memory: &mut dyn TableMemory<Out>,
        maker: &Arc<Hooked>,
        geometry: Geometry,
        level: Level,
    ) -> Result<Self, TableError> {
        let shape = (geometry.page_shift(), geometry.index_bits(), geometry.levels(), level);
        let hooked = maker.another("table", shape);
        let blocks = Blocks::default();
        let (pages, out) = (HashSet::new(), PhantomData);
        let mut table = Self { hooked, geometry, level, blocks, pages, out };
        if table.change_by(memory, "create", &[]) {
            return Ok(table);
        }
        table.destroy(memory);
        Err(TableError::OutOfMemory)
    }

    /// Found as a walk finds it, for the same lines.
    fn entry(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Entry> {
        let mut probe = self.first(number);
        loop {
            match self.answer(number, &probe, &memory.read_line(probe.at)) {
                Answer::Leaf(leaf) => return Some(leaf.entry),
                Answer::Follow(next) => probe = next,
                Answer::Nothing | Answer::Fault(_) => return None,
            }
        }
    }

    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        // Whoever inserts has looked for it, and found nothing.
        if self.pages.contains(&number) {
            let words = format!(
                "does not find page number {number:#x}, which was inserted and has not been removed"
            );
            self.hooked.wrong("answer", &words);
        }
        if !self.change_by(memory, "insert", &[number, entry.0]) {
            return Err(TableError::OutOfMemory);
        }
        self.pages.insert(number);
        Ok(())
    }

    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, number: u64) {
        if !self.change_by(memory, "remove", &[number]) {
            self.hooked.wrong("remove", "was refused memory: a page goes without any");
        }
        self.pages.remove(&number);
    }

    fn change(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        _number: u64,
        leaf: &Leaf<Out>,
        entry: Entry,
    ) -> Result<(), TableError> {
        if !self.change_by(memory, "change", &[leaf.entry_address.raw(), entry.0]) {
            self.hooked.wrong("change", "was refused memory: an entry is changed without any");
        }
        Ok(())
    }

    fn statistics(&self) -> Vec<NodeStatistics> {
        self.blocks.statistics(self.level, self.pages.len() as u64)
    }

    fn resizes(&self) -> Resizes {
        let counts = self.hooked.ask("resizes", (), "four counts");
        let (grown, shrunk, refused, curtailed) = counts;
        Resizes { grown, shrunk, refused, curtailed }
    }

    fn destroy(mut self, memory: &mut dyn TableMemory<Out>) {
        self.blocks.free_all(memory);
    }

    fn first(&self, number: u64) -> Probe<Out> {
        self.probe("first", self.hooked.ask("first", (number,), ADDRESS), 0)
    }

    fn answer(&self, number: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        let at = probe.at.raw() + u64::from(probe.word) * 8;
        let answer: Option<(bool, u64)> =
            self.hooked.ask("answer", (number, at, *line), "Found, Next or None");
        match answer {
            None => Answer::Nothing,
            Some((true, at)) => {
                let index = at.wrapping_sub(probe.at.raw()) / 8;
                if !at.is_multiple_of(8) || at < probe.at.raw() || index >= LINE_BYTES / 8 {
                    let words = format!("found an entry at {at:#x}, which is not in the line read");
                    self.hooked.wrong("answer", &words);
                }
                leaf_of(self.geometry, self.level, probe.at, line, index)
            }
            Some((false, at)) if probe.way + 1 < MOST_LINES => {
                Answer::Follow(self.probe("answer", at, probe.way + 1))
            }
            Some((false, _)) => {
                let words = format!("reads more than {MOST_LINES} lines for page {number:#x}");
                self.hooked.wrong("answer", &words)
            }
        }
    }
}
