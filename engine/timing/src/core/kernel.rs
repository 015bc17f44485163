//! Time that the operating systems' work takes.

use crate::core::stack::{CycleStack, Part};
use crate::counts::{Add, add};
use crate::system::costs::Cost;

/// What the work of the process's kernel, and of the host's, takes in cycles: where a clock runs,
/// and what it would take where none does. It depends on nothing that a cache holds, so that of a
/// sampled run all of it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelTime {
    /// By what it goes to: no other parts than those of kernels.
    pub stack: CycleStack,
    /// All of faults.
    pub faults: u64,
    /// Of these, those of accesses; the others are in system calls.
    pub access_faults: u64,
    /// All of system calls.
    pub calls: u64,
}

add!(KernelTime { stack, faults, access_faults, calls });

impl KernelTime {
    /// An access's fault, handled by the host or not.
    pub(crate) fn fault(&mut self, cost: Cost, by_host: bool) {
        self.access_faults += cost.cycles();
        self.fault_in_call(cost, by_host);
    }

    /// The same of a fault that a system call's work raises.
    pub(crate) fn fault_in_call(&mut self, cost: Cost, by_host: bool) {
        self.faults += cost.cycles();
        self.count(Part::of_fault(by_host), cost);
    }

    /// A system call.
    pub(crate) fn call(&mut self, cost: Cost) {
        self.calls += cost.cycles();
        self.count(Part::SystemCalls, cost);
    }

    fn count(&mut self, part: Part, cost: Cost) {
        for (part, cycles) in parts(part, cost) {
            self.stack.count(part, cycles);
        }
    }

    /// An interrupt for another core's sake.
    pub(crate) fn shootdown(&mut self, cycles: u64) {
        self.stack.count(Part::Shootdowns, cycles);
    }

    /// What was added since `start`.
    pub(crate) fn since(self, start: Self) -> Self {
        Self {
            stack: self.stack.since(start.stack),
            faults: self.faults - start.faults,
            access_faults: self.access_faults - start.access_faults,
            calls: self.calls - start.calls,
        }
    }

    /// The sum of several.
    pub(crate) fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum.add(&one);
            sum
        })
    }
}

/// By what a kernel's work goes to, in the order of time: `part` is of all but the others.
pub(super) fn parts(part: Part, cost: Cost) -> [(Part, u64); 4] {
    let Cost { work, merges, exits, shootdowns } = cost;
    [
        (part, work),
        (Part::Merges, merges),
        (Part::GuestExits, exits),
        (Part::Shootdowns, shootdowns),
    ]
}
