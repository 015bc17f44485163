//! The walk of one table without a tree, with its caches of side lines.

use flatwalk_os::PhysicalMemory;
use flatwalk_paging::keyed::{Keyed, MOST_SIDE, Probe, SideLines};
use flatwalk_paging::{
    AccessKind, Address, Entry, EntryMemory, EntryMemoryMut, Leaf, Level, Line, Physical, Rights,
};

use super::{Place, Translates, WalkPorts};
use crate::config::machine::WalkEnd;
use crate::memory::hierarchy::Response;
use crate::memory::reader::TableReader;
use crate::memory::simulator_prefetch::prefetch;
use crate::mmu::event::{Read, Stage, Stopped, WalkObserver, stopped};
use crate::mmu::side_cache::{Found, SideCache};

/// One stage: its table, and its caches of side lines.
///
/// All first reads are made in the cycle in which the page's number is hashed and the caches have
/// answered; where they lead to further ones, as in a chain, each of those follows on its own.
/// The walk ends with the one that finds the entry, or with the last ([`WalkEnd`]); a page fault
/// always with the last. Side lines that the caches lack are read afterwards, but those that the walk
/// needs, one after the other, before its first reads.
pub(super) struct KeyedStage<'a, In, A: Physical> {
    pub(super) stage: Stage,
    pub(super) table: &'a Keyed<In, A>,
    pub(super) memory: &'a mut PhysicalMemory<A>,
    pub(super) side: &'a mut SideCache,
}

/// The side lines that a walk has before its first reads.
struct Known {
    lines: SideLines,
    /// When they are there.
    ready: u64,
    /// Keys of those that are to be read afterwards.
    missing: [Option<u64>; MOST_SIDE],
}

impl<In: Address, A: Physical> KeyedStage<'_, In, A> {
    /// Looks side lines up, and reads those that are missing and needed.
    #[inline]
    fn side_lines<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<Known, Stopped> {
        self.side.begin();
        let (table, start) = (self.table, if R::TIMED { at + self.side.latency() } else { at });
        let mut known =
            Known { lines: SideLines::default(), ready: start, missing: [None; MOST_SIDE] };
        for (structure, &needed) in table.side_needed().iter().enumerate() {
            let Some(key) = table.side_key(structure, input, &known.lines) else { continue };
            let now = if needed { known.ready } else { at };
            match (self.side.look_up(structure, key, now), needed) {
                (Some(Found::Here(line)), _) => known.lines.set(structure, line),
                (Some(Found::Later(line, ready)), true) => {
                    known.lines.set(structure, line);
                    known.ready = known.ready.max(ready);
                }
                (Some(Found::Missing), false) => known.missing[structure] = Some(key),
                (None | Some(Found::Later(..)), false) => {}
                (None | Some(Found::Missing), true) => {
                    let (line, ready) =
                        self.read_side(input, structure, key, known.ready, entries, ports)?;
                    known.ready = ready;
                    if let Some(line) = line {
                        self.side.insert(structure, key, line, ready);
                        known.lines.set(structure, line);
                    }
                }
            }
        }
        Ok(known)
    }

    /// Reads line `key` of a side structure from cycle `at` on, wherever it can be. Returns it, if it is
    /// anywhere, and when all reads are done.
    #[cold]
    fn read_side<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        structure: usize,
        key: u64,
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Option<Line>, u64), Stopped> {
        let (mut kept, mut ready) = (None, at);
        for probe in self.table.side_probes(structure, key).as_slice() {
            let (place, placed) = entries.place(probe.at, false, at, ports)?;
            let line = self.memory.read_line(probe.at);
            let response = ports.reader.read_entry(place, placed, false);
            let found = self.table.is_side_line(structure, key, &line);
            self.record(input, probe, Entry::ABSENT, found, placed, response, ports.observer);
            ready = ready.max(response.ready);
            kept = found.then_some(line).or(kept);
        }
        Ok((kept, ready))
    }

    /// Reads the side lines that are `missing`, from cycle `at` on.
    #[cold]
    fn refill<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        missing: [Option<u64>; MOST_SIDE],
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) {
        for (structure, key) in missing.into_iter().enumerate() {
            let Some(key) = key else { continue };
            // Nobody waits for it, so nobody sees to a page that the host has not backed.
            let Ok((line, ready)) = self.read_side(input, structure, key, at, entries, ports)
            else {
                return;
            };
            // Where there is no line, it would say nothing.
            self.side.insert(structure, key, line.unwrap_or_default(), ready);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all of it is noted")]
    #[inline]
    fn record(
        &self,
        input: In,
        probe: &Probe<A>,
        entry: Entry,
        found: bool,
        asked: u64,
        response: Response,
        observer: &mut impl WalkObserver,
    ) {
        observer.read(&Read {
            stage: self.stage,
            input: input.raw(),
            class: probe.class,
            node: probe.base.raw(),
            top: probe.level,
            level: probe.level,
            entry_address: probe.at.raw(),
            entry,
            rights: Rights::ALL,
            line: Some(probe.noted(found)),
            asked,
            response,
        });
    }
}

impl<In: Address, A: Physical> Translates<In, A> for KeyedStage<'_, In, A> {
    fn within(&self, address: u64, level: Level) -> u64 {
        self.table.geometry().within(address, level)
    }

    fn known(&self, input: In) -> Option<(A, Level)> {
        self.table.translate(&*self.memory, input).ok().map(|leaf| (leaf.frame, leaf.level))
    }

    #[inline]
    fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        kind: AccessKind,
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Leaf<A>, u64), Stopped> {
        let Known { lines, ready: start, missing } = self.side_lines(input, at, entries, ports)?;
        let probes = self.table.probes(input, &lines);
        // So that the simulator's own reads, too, are under way together.
        for probe in probes.as_slice() {
            prefetch(self.memory.word(probe.at));
        }
        let (mut found, mut last) = (None, start);
        for first in probes.as_slice() {
            let (mut next, mut now) = (Some(*first), start);
            // What a read leads to is read after it, but at the same time as the other reads.
            while let Some(probe) = next {
                let (place, placed) = entries.place(probe.at, false, now, ports)?;
                ports.reader.prefetch_hint(place);
                let line = self.memory.read_line(probe.at);
                let answer = self.table.answer(input, &probe, &line);
                let leaf = answer.leaf();
                next = answer.next();
                let touched = leaf
                    .filter(|leaf| leaf.rights.permit(kind))
                    .map(|leaf| (leaf, leaf.entry.touched(kind == AccessKind::Store)))
                    .filter(|(leaf, entry)| *entry != leaf.entry);
                if let Some((leaf, entry)) = touched {
                    self.memory.write(leaf.entry_address, entry.0);
                }
                let response = ports.reader.read_entry(place, placed, touched.is_some());
                let entry = leaf.map_or(Entry::ABSENT, |leaf| leaf.entry);
                self.record(input, &probe, entry, leaf.is_some(), placed, response, ports.observer);
                now = response.ready;
                last = last.max(now);
                if let Some(leaf) = leaf {
                    let entry = touched.map_or(leaf.entry, |(_, entry)| entry);
                    found = Some((Leaf { entry, ..leaf }, now));
                }
            }
        }
        let Some((leaf, ready)) = found else {
            return Err(stopped(self.stage, input.raw(), last, false));
        };
        let now = match self.side.end() {
            WalkEnd::MatchingProbe => ready,
            WalkEnd::LastProbe => last,
        };
        if !leaf.rights.permit(kind) {
            return Err(stopped(self.stage, input.raw(), now, true));
        }
        if missing.iter().any(Option::is_some) {
            self.refill(input, missing, now, entries, ports);
        }
        Ok((leaf, now))
    }
}
