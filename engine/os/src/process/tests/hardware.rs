//! A model of hardware that caches all it can.

use std::collections::BTreeMap;

use flatwalk_paging::keyed::{Answer, SideLines};
use flatwalk_paging::{Entry, EntryMemory, Flush, Level, Line, NodeRef, Rights, Shape, Step, Walk};

use super::*;

/// Hardware that caches everything it sees until it has to flush it.
#[derive(Default)]
pub(super) struct Hardware {
    /// By page: frame of the page itself, rights, level.
    tlb: BTreeMap<u64, (u64, Rights, Level)>,
    /// By level of the node and address of what it covers.
    walk_cache: BTreeMap<(Level, u64), NodeRef<Hpa>>,
    /// Side lines by structure and key.
    lines: BTreeMap<(usize, u64), Line>,
}

impl Hardware {
    pub(super) fn fill(&mut self, process: &Process) {
        for mapping in mappings(process) {
            match &process.table {
                PageTable::Tree(tree) => {
                    let mut walk = tree.walk(mapping.input);
                    while let Step::Table(partial) =
                        walk.feed(Entry(process.memory().read(walk.entry_address())))
                    {
                        let span = process.geometry.span(partial.level + 1);
                        let covered = mapping.input.raw() & !(span - 1);
                        self.walk_cache.insert((partial.level, covered), partial);
                    }
                }
                PageTable::Keyed(table) => {
                    let mut known = SideLines::default();
                    for structure in 0..table.side_needed().len() {
                        let Some(key) = table.side_key(structure, mapping.input, &known) else {
                            continue;
                        };
                        for probe in table.side_probes(structure, key).as_slice() {
                            let line = process.memory().read_line(probe.at);
                            if table.is_side_line(structure, key, &line) {
                                self.lines.insert((structure, key), line);
                                known.set(structure, line);
                            }
                        }
                    }
                }
            }
            for (page, frame) in process.pages_of(&mapping).enumerate_frames(mapping.frame) {
                self.tlb.insert(page, (frame, mapping.attributes.rights, mapping.level));
            }
        }
    }

    pub(super) fn flush(&mut self, geometry: Geometry, flushes: &[Flush<Gva>]) {
        for flush in flushes {
            let (first, last) = (flush.start.raw(), flush.last.raw());
            if flush.leaves {
                self.tlb.retain(|page, _| !(first / PAGE..=last / PAGE).contains(page));
            }
            if flush.tables {
                self.lines.clear();
                self.walk_cache.retain(|&(level, covered), _| {
                    covered > last || covered + (geometry.span(level + 1) - 1) < first
                });
            }
        }
    }

    /// Panics if anything cached is stale.
    pub(super) fn check(&self, process: &Process) {
        let mut pages = BTreeMap::new();
        for mapping in mappings(process) {
            for (page, frame) in process.pages_of(&mapping).enumerate_frames(mapping.frame) {
                pages.insert(page, (frame, mapping.attributes.rights, mapping.level));
            }
        }
        for (page, cached) in &self.tlb {
            // A large page split in place translates as before: its old entry does no harm.
            let now = pages.get(page).map(|&(frame, rights, _)| (frame, rights));
            assert_eq!(now, Some((cached.0, cached.1)), "stale TLB entry for page {page:#x}");
        }
        if let PageTable::Keyed(table) = &process.table {
            for mapping in mappings(process) {
                let mut known = SideLines::default();
                for structure in 0..table.side_needed().len() {
                    let key = table.side_key(structure, mapping.input, &known);
                    if let Some(line) = key.and_then(|key| self.lines.get(&(structure, key))) {
                        known.set(structure, *line);
                    }
                }
                // Without a line that it needs, a walk reads that.
                let needed = |(structure, &needed): (usize, &bool)| {
                    !needed || known.get(structure).is_some()
                };
                if !table.side_needed().iter().enumerate().all(needed) {
                    continue;
                }
                let probes = table.probes(mapping.input, &known);
                let found = probes.as_slice().iter().any(|first| {
                    let mut probe = *first;
                    loop {
                        let line = process.memory().read_line(probe.at);
                        match table.answer(mapping.input, &probe, &line) {
                            Answer::Follow(next) => probe = next,
                            answer => break matches!(answer, Answer::Leaf(_)),
                        }
                    }
                });
                assert!(found, "stale side line for {:?}", mapping.input);
            }
        }
        for (&(level, covered), cached) in &self.walk_cache {
            if process.policy.layout.density().is_some() {
                // Walks may bypass a merged node that is in use nevertheless.
                let last = covered + (process.geometry.span(level + 1) - 1);
                for (&page, &(frame, ..)) in pages.range(covered / PAGE..=last / PAGE) {
                    let walk = Walk::from(process.geometry, *cached, Gva::new(page * PAGE));
                    let Ok(leaf) = walk.finish(|at| process.memory().read(at)) else {
                        panic!("stale walk-cache entry for {covered:#x}");
                    };
                    let within = process.geometry.within(page * PAGE, leaf.level);
                    assert_eq!(leaf.frame.raw() + within, frame, "stale walk-cache entry");
                }
                continue;
            }
            let tree = process.table.tree().expect("it has nodes");
            let mut walk = tree.walk(Gva::new(covered));
            while walk.at().level > level {
                let step = walk.feed(Entry(process.memory().read(walk.entry_address())));
                assert!(matches!(step, Step::Table(_)), "stale walk-cache entry for {covered:#x}");
            }
            assert_eq!(walk.at(), *cached, "stale walk-cache entry for {covered:#x}");
        }
    }
}
