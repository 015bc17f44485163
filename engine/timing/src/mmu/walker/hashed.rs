//! The walk of one table that is hashed, with its cuckoo walk caches.

use flatwalk_os::PhysicalMemory;
use flatwalk_paging::hashed::{Answer, Part, Probe};
use flatwalk_paging::{
    AccessKind, Address, Entry, EntryMemory, EntryMemoryMut, Hashed, Leaf, Level, Physical, Rights,
};

use super::{Place, Translates, WalkPorts};
use crate::config::machine::WalkEnd;
use crate::memory::hierarchy::Response;
use crate::memory::reader::TableReader;
use crate::memory::simulator_prefetch::prefetch;
use crate::mmu::cwc::Cwc;
use crate::mmu::event::{LineRead, Read, Stage, Stopped, WalkObserver, stopped, walk_table_count};

/// One stage: its table, which is hashed, and its cuckoo walk caches.
///
/// All first reads are made in the cycle in which the page's number is hashed and the caches have
/// answered; where they lead to further ones, as in a chain, each of those follows on its own.
/// The walk ends with the one that finds the entry, or with the last ([`WalkEnd`]); a page fault
/// always with the last. Lines of walk tables that the caches lack are read afterwards.
pub(super) struct HashedStage<'a, In, A> {
    pub(super) stage: Stage,
    pub(super) table: &'a Hashed<In, A>,
    pub(super) memory: &'a mut PhysicalMemory<A>,
    pub(super) cwc: &'a mut Cwc,
}

impl<In: Address, A: Physical> HashedStage<'_, In, A> {
    /// Reads the lines of walk tables that are `missing`, from cycle `at` on.
    #[cold]
    fn refill<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        missing: [bool; 2],
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) {
        for (level, _) in (2..).zip(missing).filter(|&(_, missing)| missing) {
            let Some((key, probes)) = self.table.walk_table_probes(input, level) else { continue };
            // Where there is no line, nothing of that size or a smaller one is mapped.
            let (mut kept, mut ready) = ([0; 8], at);
            for probe in probes.as_slice() {
                // Nobody waits for it, so nobody sees to a page that the host has not backed.
                let Ok((place, placed)) = entries.place(probe.at, false, at, ports) else { return };
                let line = self.memory.read_line(probe.at);
                let response = ports.reader.read_entry(place, placed, false);
                let found = Hashed::<In, A>::is_walk_table_line(&line, key);
                self.record(input, probe, Entry::ABSENT, found, placed, response, ports.observer);
                ready = ready.max(response.ready);
                kept = if found { line } else { kept };
            }
            self.cwc.insert(level, key, kept, ready);
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
        let level = match probe.part {
            Part::WalkTable(level) => walk_table_count(level),
            Part::Pages(level)
            | Part::Chain(level)
            | Part::Open(level)
            | Part::Anchor(level)
            | Part::Frame(level) => level,
        };
        let Probe { part, way, .. } = *probe;
        observer.read(&Read {
            stage: self.stage,
            input: input.raw(),
            node: probe.base.raw(),
            top: level,
            level,
            entry_address: probe.at.raw(),
            entry,
            rights: Rights::ALL,
            line: Some(LineRead { part, way, number: probe.line(), found }),
            asked,
            response,
        });
    }
}

impl<In: Address, A: Physical> Translates<In, A> for HashedStage<'_, In, A> {
    fn span(&self, level: Level) -> u64 {
        self.table.geometry().span(level)
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
        let known = self.cwc.look_up(self.table, input, at);
        let start = if R::TIMED { at + self.cwc.latency() } else { at };
        let probes = self.table.probes(input, known.hint);
        // So that the host's reads, too, are under way together.
        for probe in probes.as_slice() {
            prefetch(self.memory.word(probe.at));
        }
        let (mut found, mut last) = (None, start);
        for first in probes.as_slice() {
            let (mut next, mut now) = (Some(*first), start);
            // What a read leads to is read after it; beside the other reads, though.
            while let Some(probe) = next {
                let (place, placed) = entries.place(probe.at, false, now, ports)?;
                ports.reader.prefetch_hint(place);
                let line = self.memory.read_line(probe.at);
                let answer = self.table.answer(input, &probe, &line);
                let leaf = match answer {
                    Answer::Leaf(leaf) => Some(leaf),
                    Answer::Nothing | Answer::Follow(_) | Answer::Fault(_) => None,
                };
                next = match answer {
                    Answer::Follow(next) => Some(next),
                    Answer::Nothing | Answer::Leaf(_) | Answer::Fault(_) => None,
                };
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
        let now = match self.cwc.end() {
            WalkEnd::MatchingProbe => ready,
            WalkEnd::LastProbe => last,
        };
        if !leaf.rights.permit(kind) {
            return Err(stopped(self.stage, input.raw(), now, true));
        }
        if known.missing != [false; 2] {
            self.refill(input, known.missing, now, entries, ports);
        }
        Ok((leaf, now))
    }
}
