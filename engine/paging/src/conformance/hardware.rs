//! Hardware whose caches forget only what they are told to.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::memory::Memory;
use super::sizes::Sizes;
use crate::addr::{Address, Gva, Hpa};
use crate::entry::Entry;
use crate::geometry::Level;
use crate::keyed::{Answer, Keyed, SideLines};
use crate::mapping::Flush;
use crate::memory::{EntryMemory, EntryMemoryMut, Line};
use crate::table::PageTable;
use crate::walk::{Fault, Leaf, NodeRef, Step, Walk};

/// Caches of what walks read, which forget only what they are told to.
#[derive(Default)]
pub(super) struct Hardware {
    /// Nodes of a tree by first and last address that they serve, and topmost level.
    nodes: BTreeMap<(u64, u64, Level), NodeRef<Hpa>>,
    /// Side lines by structure and key.
    lines: BTreeMap<(usize, u64), Line>,
}

impl Hardware {
    pub(super) fn flush(&mut self, table: &PageTable<Gva, Hpa>, flush: Option<Flush<Gva>>) {
        let Some(flush) = flush.filter(|flush| flush.tables) else { return };
        let (first, last) = (flush.start.raw(), flush.last.raw());
        self.nodes.retain(|&(start, end, _), _| start > last || end < first);
        let PageTable::Keyed(table) = table else { return };
        if (first, last) == (0, u64::MAX) {
            self.lines.clear();
            return;
        }
        if self.lines.is_empty() {
            return;
        }
        // Those that serve an address of the range, which is a page's.
        let step = ((last - first) / 512).max(table.geometry().span(1));
        let addresses = (first..=last).step_by(step as usize).chain([last]).map(Gva::new);
        let mut stale = BTreeSet::new();
        for address in addresses {
            for structure in 0..table.side_needed().len() {
                let key = table.side_key(structure, address, &SideLines::default());
                stale.extend(key.map(|key| (structure, key)));
            }
        }
        self.lines.retain(|line, _| !stale.contains(line));
    }

    /// Walks with what is cached, keeps everything that may be kept, and sets the bits that hardware
    /// sets. Fails for what no table may do.
    pub(super) fn walk(
        &mut self,
        memory: &mut Memory,
        table: &PageTable<Gva, Hpa>,
        input: Gva,
        store: bool,
    ) -> Result<Result<Leaf<Hpa>, Fault<Hpa>>, TestCaseError> {
        let found = match table {
            PageTable::Tree(tree) => {
                let sizes = Sizes::of(tree.geometry());
                let known = self
                    .nodes
                    .iter()
                    .filter(|((start, end, _), _)| (*start..=*end).contains(&input.raw()));
                let from = known.min_by_key(|((.., level), _)| *level).map(|(_, node)| *node);
                let mut walk = Walk::from(tree.geometry(), from.unwrap_or(tree.root()), input);
                loop {
                    match walk.feed(Entry(memory.read(walk.entry_address()))) {
                        Step::Table(node) => {
                            let bytes = u64::try_from(sizes.entry(node.level + 1)).unwrap();
                            let start = input.raw() - input.raw() % bytes;
                            self.nodes.insert((start, start + (bytes - 1), node.level), node);
                        }
                        Step::Leaf(leaf) => break Ok(leaf),
                        Step::Fault(fault) => break Err(fault),
                    }
                }
            }
            PageTable::Keyed(table) => self.walk_keyed(memory, table, input)?,
        };
        if let Ok(leaf) = &found {
            memory.write(leaf.entry_address, leaf.entry.touched(store).0);
        }
        Ok(found)
    }

    fn walk_keyed(
        &mut self,
        memory: &Memory,
        table: &Keyed<Gva, Hpa>,
        input: Gva,
    ) -> Result<Result<Leaf<Hpa>, Fault<Hpa>>, TestCaseError> {
        let read = |structure, key| {
            let probes = table.side_probes(structure, key);
            let mut lines = probes.as_slice().iter().map(|probe| memory.read_line(probe.at));
            lines.find(|line| table.is_side_line(structure, key, line))
        };
        let mut known = SideLines::default();
        for (structure, &needed) in table.side_needed().iter().enumerate() {
            let Some(key) = table.side_key(structure, input, &known) else { continue };
            if needed
                && !self.lines.contains_key(&(structure, key))
                && let Some(line) = read(structure, key)
            {
                self.lines.insert((structure, key), line);
            }
            if let Some(line) = self.lines.get(&(structure, key)) {
                known.set(structure, *line);
            }
        }
        let mut found = Err(table.not_present(input));
        for first in table.probes(input, &known).as_slice() {
            let mut probe = *first;
            loop {
                match table.answer(input, &probe, &memory.read_line(probe.at)) {
                    Answer::Nothing => break,
                    Answer::Follow(next) => probe = next,
                    Answer::Leaf(leaf) => {
                        prop_assert!(found.is_err(), "{input:?} has two entries");
                        found = Ok(leaf);
                        break;
                    }
                    Answer::Fault(fault) => return Ok(Err(fault)),
                }
            }
        }
        if found.is_ok() {
            for (structure, _) in table.side_needed().iter().enumerate().filter(|(_, n)| !**n) {
                let Some(key) = table.side_key(structure, input, &known) else { continue };
                self.lines.insert((structure, key), read(structure, key).unwrap_or([0; 8]));
            }
        }
        Ok(found)
    }
}
