//! The cycle stack: what the core's cycles went to.
//!
//! Instructions retire in order, so every cycle in which retirement stands still has one instruction
//! that it waits for, and that one's time line says what for. A cycle is counted when it is certain
//! that it will be waited for, once, in the order of time; `base` is all that are not. So the parts
//! add up to the cycles, whatever overlaps.

use schemars::JsonSchema;
use serde::Serialize;

use crate::counts::Add;
use crate::memory::hierarchy::Served;
use crate::mmu::timeline::Spent;

/// What a cycle went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// None of the others: instructions retire, or wait for results of instructions that do not load,
    /// for the width of the core, or for the pipeline to fill.
    Base,
    /// The front end is refilled after a branch that was predicted wrongly. Until such a branch is
    /// resolved, what it waits for counts.
    BranchMispredictions,
    /// A line of code is not in the L1 instruction cache.
    InstructionFetch,
    /// The translation of a line of code: TLBs and walk.
    InstructionTranslation,
    /// A load's data comes from the L1 data cache, or from a store before it.
    DataL1,
    /// From L2. Waiting for a free MSHR on the way to it counts here, as in the next two.
    DataL2,
    /// From the last-level cache.
    DataLlc,
    /// From memory.
    DataDram,
    /// A store finds the store queue full.
    StoreQueue,
    /// Data's translation: look-ups of TLBs, but for the L1's first cycle.
    Tlb,
    /// Look-ups of mechanisms between the L2 TLB's miss and the walk, reads of memory included.
    Mechanisms,
    /// An access whose walk has had to wait for a free page walker, for as long as it did.
    WalkQueue,
    /// Walks while they wait for no entry: page-walk caches, the nested TLB, hashing, handlers in
    /// software.
    WalkLookups,
    /// An entry that a walk reads comes from the L1 data cache.
    WalkL1,
    /// From L2.
    WalkL2,
    /// From the last-level cache.
    WalkLlc,
    /// From memory.
    WalkDram,
    /// The kernel handles page faults, and the front end is refilled.
    PageFaults,
    /// The host handles faults of a guest, exits included, and the front end is refilled.
    HostFaults,
    /// The kernel carries out system calls that change the address space.
    SystemCalls,
    /// In handlers and system calls, page-table nodes are merged or taken apart because of their density.
    Merges,
    /// In handlers and system calls, the guest is left because of its shadowed table.
    GuestExits,
    /// TLBs are flushed for all cores that run the program: this one is interrupted for another's sake,
    /// or waits until all others have been.
    Shootdowns,
    /// No thread runs on the core, as others do.
    Idle,
}

impl Part {
    /// All, in the order of output.
    pub const ALL: [Self; 24] = [
        Self::Base,
        Self::BranchMispredictions,
        Self::InstructionFetch,
        Self::InstructionTranslation,
        Self::DataL1,
        Self::DataL2,
        Self::DataLlc,
        Self::DataDram,
        Self::StoreQueue,
        Self::Tlb,
        Self::Mechanisms,
        Self::WalkQueue,
        Self::WalkLookups,
        Self::WalkL1,
        Self::WalkL2,
        Self::WalkLlc,
        Self::WalkDram,
        Self::PageFaults,
        Self::HostFaults,
        Self::SystemCalls,
        Self::Merges,
        Self::GuestExits,
        Self::Shootdowns,
        Self::Idle,
    ];

    /// Whether it is a wait for a translation: TLBs, mechanisms and walks, of data or code.
    pub fn is_translation(self) -> bool {
        match self {
            Self::InstructionTranslation
            | Self::Tlb
            | Self::Mechanisms
            | Self::WalkQueue
            | Self::WalkLookups
            | Self::WalkL1
            | Self::WalkL2
            | Self::WalkLlc
            | Self::WalkDram => true,
            Self::Base
            | Self::BranchMispredictions
            | Self::InstructionFetch
            | Self::DataL1
            | Self::DataL2
            | Self::DataLlc
            | Self::DataDram
            | Self::StoreQueue
            | Self::PageFaults
            | Self::HostFaults
            | Self::SystemCalls
            | Self::Merges
            | Self::GuestExits
            | Self::Shootdowns
            | Self::Idle => false,
        }
    }

    /// Of a fault that the host handles, or the process's own kernel.
    pub(super) fn of_fault(by_host: bool) -> Self {
        if by_host { Self::HostFaults } else { Self::PageFaults }
    }

    /// Of a translation of data.
    pub(super) fn of_translation(spent: Spent) -> Self {
        match spent {
            Spent::Tlb => Self::Tlb,
            Spent::Mechanism => Self::Mechanisms,
            Spent::Queue => Self::WalkQueue,
            Spent::LookUps => Self::WalkLookups,
            Spent::Read(Served::L1) => Self::WalkL1,
            Spent::Read(Served::L2) => Self::WalkL2,
            Spent::Read(Served::Llc) => Self::WalkLlc,
            Spent::Read(Served::Dram) => Self::WalkDram,
        }
    }
}

/// Cycles by what they went to; those of [`Part::Base`] are all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CycleStack([u64; Part::ALL.len()]);

impl Add for CycleStack {
    fn add(&mut self, more: &Self) {
        self.0.add(&more.0);
    }
}

impl CycleStack {
    #[inline]
    pub(crate) fn count(&mut self, part: Part, cycles: u64) {
        self.0[part as usize] += cycles;
    }

    /// The same of a load that waits for data from there.
    #[inline]
    pub(super) fn add_data(&mut self, from: Served, cycles: u64) {
        self.0[Part::DataL1 as usize + from as usize] += cycles;
    }

    /// What went to `part`; of [`Part::Base`] nothing is counted.
    pub(crate) fn of(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// `part` has so many cycles.
    pub(crate) fn set(&mut self, part: Part, cycles: u64) {
        self.0[part as usize] = cycles;
    }

    /// Of some parts, each with its cycles.
    pub(crate) fn of_parts(parts: impl IntoIterator<Item = (Part, u64)>) -> Self {
        let mut stack = Self::default();
        parts.into_iter().for_each(|(part, cycles)| stack.count(part, cycles));
        stack
    }

    /// All that is counted.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What is in `before`, and in this one, gives way to `after`.
    pub(crate) fn replace(&mut self, before: &Self, after: &Self) {
        for (part, (before, after)) in self.0.iter_mut().zip(before.0.iter().zip(after.0)) {
            *part = *part - before + after;
        }
    }

    /// What was added since `start`.
    pub(crate) fn since(self, start: Self) -> Self {
        Self(std::array::from_fn(|part| self.0[part] - start.0[part]))
    }

    /// The average of `cores` cores whose stacks this is the sum of, each of `cycles` cycles. What is
    /// divided is sums of parts, so that the parts add up to `cycles`.
    pub fn average(self, cycles: u64, cores: u64) -> impl Iterator<Item = (Part, u64)> {
        self.parts(cores * cycles).scan(0, move |sum, (part, cycles)| {
            let before = *sum / cores;
            *sum += cycles;
            Some((part, *sum / cores - before))
        })
    }

    /// All parts in the order of output, where there were `cycles` altogether.
    pub fn parts(self, cycles: u64) -> impl Iterator<Item = (Part, u64)> {
        let waited = self.0.iter().sum();
        debug_assert!(waited <= cycles, "{waited} of {cycles} cycles are accounted for: {self:?}");
        let base = cycles.saturating_sub(waited);
        let all = Part::ALL.into_iter().zip(self.0);
        all.map(move |(part, counted)| (part, if part == Part::Base { base } else { counted }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_stand_in_their_order() {
        assert!(Part::ALL.iter().enumerate().all(|(place, &part)| part as usize == place));
        let levels = [Served::L1, Served::L2, Served::Llc, Served::Dram];
        let data = [Part::DataL1, Part::DataL2, Part::DataLlc, Part::DataDram];
        for (served, part) in levels.into_iter().zip(data) {
            let (mut by_level, mut by_part) = (CycleStack::default(), CycleStack::default());
            by_level.add_data(served, 3);
            by_part.count(part, 3);
            assert_eq!(by_level, by_part);
        }
    }
}
