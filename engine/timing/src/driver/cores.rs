//! The cores that a program's threads run on: which thread has which, and when each has its turn.
//!
//! A thread gets the core with the fewest living threads when it first runs, the first of several, and
//! keeps it. A core begins to exist with its first thread.
//!
//! A trace says in which order stretches of threads were recorded, and no more: what two threads do
//! within a few stretches may have been at the same time. So the slices between two events wait in
//! queues, up to [`QUANTUM`] instructions for each core, and then whichever core's clock is furthest behind
//! runs a few blocks, as in a mix ([`crate::simulate::mix`]). Requests reach what is shared in the order of time but
//! for a turn. The recorded order holds between quanta: a core begins one no earlier than the quantum
//! before began anywhere. It is idle until then; so are cores without work. What changes the address
//! space, and where windows begin and end, is done between all slices before and all after it. A thread that
//! slept goes on no earlier than its waker made the call that woke it.

use std::collections::{BTreeSet, HashMap, VecDeque};

use flatwalk_paging::Hpa;
use flatwalk_trace::{Slice, ThreadId};
use rustc_hash::FxBuildHasher;

use crate::core::Core;
use crate::core::decode::DecodedBlock;
use crate::core::kernel::KernelTime;
use crate::counts::{Aside, add};
use crate::driver::piece::first_blocks;
use crate::memory::hierarchy::Private;
use crate::memory::replacement::ReplacementPolicy;
use crate::mmu::Mmu;

/// Instructions of each core that may be at the same time. A recorder submits what a thread did a buffer at a
/// time, which may be more, in the order in which they were full: a quantum ends within one if it has to.
pub(crate) const QUANTUM: u64 = 1 << 16;
/// Instructions in a turn, at least.
pub(crate) const TURN: u64 = 64;
/// Instructions between two looks at the clock, where other processes take the cores.
pub(super) const CLOCK: u64 = 10_000;

/// What a new core is made of: parts that have run nothing.
pub(super) struct Fresh {
    pub(super) mmu: Mmu,
    pub(super) core: Option<Box<Core>>,
    pub(super) private: Option<Private>,
    /// Of the last-level cache, once there are several.
    pub(super) policy: Box<dyn ReplacementPolicy>,
}

/// A core while another one has its turn. What its caches hold is in the hierarchy.
pub(super) struct Parked {
    pub(super) mmu: Mmu,
    pub(super) core: Option<Box<Core>>,
    pub(super) own: Own,
}

/// What a run keeps of a core, besides its hardware.
pub(super) struct Own {
    /// The core's number.
    pub(super) number: usize,
    /// The thread that ran last.
    pub(super) thread: Option<ThreadId>,
    /// Page of the last fetch and where it lies, while no time passes.
    pub(super) code_page: (u64, Hpa),
    /// Line of the last fetch, while caches are warmed.
    pub(super) code_line: u64,
    /// All instructions, measured or not.
    pub(super) instructions: u64,
    pub(super) counts: Counts,
    /// What was counted in windows, while none is under way.
    pub(super) aside: Option<Aside>,
    /// Instructions at which a mechanism looks at the core next.
    pub(super) observation: u64,
    pub(super) switches: Switches,
    /// Cycles of windows that had ended before the core began to exist.
    pub(super) missed: u64,
    /// Its clock when the window under way began, or when it began to exist if that was later …
    pub(super) began: u64,
    /// … and its cycles in windows that have ended.
    pub(super) passed: u64,
    /// Threads that ran in windows.
    pub(super) threads: BTreeSet<ThreadId>,
    /// What kernels had done on it before the part that is sampled.
    pub(super) kernel_before: KernelTime,
}

impl Own {
    /// Of a core that has run nothing.
    pub(super) fn new(number: usize, observation: u64, switches: Switches) -> Self {
        Self {
            number,
            thread: None,
            code_page: no_page(),
            code_line: u64::MAX,
            instructions: 0,
            counts: Counts::default(),
            aside: None,
            observation,
            switches,
            missed: 0,
            began: 0,
            passed: 0,
            threads: BTreeSet::new(),
            kernel_before: KernelTime::default(),
        }
    }
}

/// No page of code.
pub(super) fn no_page() -> (u64, Hpa) {
    (u64::MAX, Hpa::default())
}

/// What is counted without hardware.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) instructions: u64,
    pub(super) loads: u64,
    pub(super) stores: u64,
}

add!(Counts { instructions, loads, stores });

/// When other processes take a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switches {
    /// Cycles between them; `None`: never.
    pub(super) every: Option<u64>,
    /// Cycle of the next.
    pub(super) next: u64,
    /// Instructions at which the clock is looked at next.
    pub(super) look: u64,
    /// So far, in the measured part.
    pub(super) count: u64,
}

impl Switches {
    /// Of a core that has run nothing, whose clock says `now`.
    pub(super) fn new(every: Option<u64>, now: u64) -> Self {
        let [next, look] = every.map_or([u64::MAX; 2], |every| [now + every, CLOCK]);
        Self { every, next, look, count: 0 }
    }
}

/// What waits for a core's turn.
enum Queued {
    /// A slice, and its first block and address that have not been run.
    Slice { start: Start, slice: Slice, block: usize, address: usize },
    /// The call with this number, which may wake another core's thread.
    Wake(u64),
}

/// When a thread may begin at the earliest.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// In this cycle.
    At(u64),
    /// When the call with this number is made.
    Woken(u64),
}

/// Calls that may wake others, of which it is remembered when they were made. What is forgotten wakes nobody.
const MOST_WAKES: usize = 1 << 16;

/// Which threads run where, and what waits to be run.
pub(super) struct Cores {
    most: usize,
    fresh: Box<Fresh>,
    /// All but the one that has its turn, in the order in which the hierarchy has them.
    pub(super) parked: Vec<Parked>,
    by_thread: HashMap<ThreadId, usize, FxBuildHasher>,
    /// Threads that have not run since they started or were woken.
    starts: HashMap<ThreadId, Start, FxBuildHasher>,
    /// The cycles in which calls that may wake others were made; `None` for those that are in queues.
    wakes: HashMap<u64, Option<u64>, FxBuildHasher>,
    /// By core: living threads.
    living: Vec<usize>,
    /// By core: what waits.
    queues: Vec<VecDeque<Queued>>,
    /// Instructions taken in the quantum, and in the one before.
    taken: u64,
    taken_before: u64,
    /// Quanta that have ended since time began to pass.
    ended: u32,
    /// They have been enough before.
    drifted: bool,
    /// Cycle in which the quantum began anywhere …
    began: u64,
    /// … and the one before: no core names a cycle before this any more.
    pub(super) floor: u64,
}

/// A few blocks of a thread.
pub(super) struct Batch {
    pub(super) at: u64,
    pub(super) slice: Slice,
    pub(super) blocks: std::ops::Range<usize>,
    pub(super) addresses: std::ops::Range<usize>,
}

impl Cores {
    /// At most `most` cores, the further ones made of `fresh`.
    pub(super) fn new(most: u32, fresh: Fresh) -> Self {
        Self {
            most: most as usize,
            fresh: Box::new(fresh),
            parked: Vec::new(),
            by_thread: HashMap::default(),
            starts: HashMap::default(),
            wakes: HashMap::default(),
            living: vec![0],
            queues: vec![VecDeque::new()],
            taken: 0,
            taken_before: 0,
            ended: 0,
            drifted: false,
            began: 0,
            floor: 0,
        }
    }

    /// There are several.
    pub(super) fn are_several(&self) -> bool {
        !self.parked.is_empty()
    }

    /// The core of a thread, which may be a new one.
    pub(super) fn of(&mut self, thread: ThreadId) -> usize {
        if let Some(core) = self.has(thread) {
            return core;
        }
        let may_grow = self.living.len() < self.most && self.living.iter().all(|&n| n > 0);
        let fewest = (0..self.living.len()).min_by_key(|&core| self.living[core]);
        let core = if may_grow { self.living.len() } else { fewest.unwrap_or(0) };
        if may_grow {
            self.living.push(0);
            self.queues.push(VecDeque::new());
        }
        self.living[core] += 1;
        self.by_thread.insert(thread, core);
        core
    }

    /// The core of a thread that has run.
    pub(super) fn has(&self, thread: ThreadId) -> Option<usize> {
        self.by_thread.get(&thread).copied()
    }

    /// The thread starts in cycle `at`.
    pub(super) fn start_thread(&mut self, thread: ThreadId, at: u64) {
        self.starts.insert(thread, Start::At(at));
    }

    /// What waits for the core is followed by the call `number`, which may wake others.
    pub(super) fn queue_wake(&mut self, core: usize, number: u64) {
        if self.wakes.len() >= MOST_WAKES {
            self.wakes.retain(|_, at| at.is_none());
            if self.wakes.len() >= MOST_WAKES {
                return;
            }
        }
        self.wakes.insert(number, None);
        self.queues[core].push_back(Queued::Wake(number));
    }

    /// The call that the core comes to next, if it comes to one before anything else.
    pub(super) fn next_wake(&mut self, core: usize) -> Option<u64> {
        let &Queued::Wake(number) = self.queues[core].front()? else { return None };
        self.queues[core].pop_front();
        Some(number)
    }

    /// The call `number` is made in cycle `at`.
    pub(super) fn wake(&mut self, number: u64, at: u64) {
        self.wakes.insert(number, Some(at));
    }

    /// The thread slept, and the call `number` woke it. If that is not known, it is not known when.
    pub(super) fn woken(&mut self, thread: ThreadId, number: u64) {
        if self.by_thread.contains_key(&thread) && self.wakes.contains_key(&number) {
            self.starts.insert(thread, Start::Woken(number));
        }
    }

    /// What is known of who starts and wakes whom is of a part in which time passed, and that is over.
    pub(super) fn forget_starts(&mut self) {
        self.starts.clear();
        self.wakes.clear();
    }

    /// The thread has ended.
    pub(super) fn end_thread(&mut self, thread: ThreadId) {
        self.starts.remove(&thread);
        if let Some(core) = self.by_thread.remove(&thread) {
            self.living[core] -= 1;
        }
    }

    /// The parts of the next new core, if there is one that has not been made.
    pub(super) fn start(&mut self) -> Option<&Fresh> {
        (self.living.len() > self.parked.len() + 1).then_some(&*self.fresh)
    }

    /// A slice of `instructions` waits for its core's turn. True if all that waits is to be run now.
    pub(super) fn queue(&mut self, core: usize, slice: Slice, instructions: u64) -> bool {
        let start = self.starts.remove(&slice.thread).unwrap_or(Start::At(0));
        self.queues[core].push_back(Queued::Slice { start, slice, block: 0, address: 0 });
        self.taken += instructions;
        self.taken >= self.quantum()
    }

    /// The cores that something waits for.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        (0..self.queues.len()).filter(|&core| !self.queues[core].is_empty())
    }

    /// When what waits for the core may begin at the earliest; `None` if that is decided on another core.
    pub(super) fn earliest(&self, core: usize) -> Option<u64> {
        match self.queues[core].front() {
            Some(Queued::Slice { start, .. }) => self.when(*start),
            Some(Queued::Wake(_)) | None => Some(0),
        }
    }

    fn when(&self, start: Start) -> Option<u64> {
        match start {
            Start::At(at) => Some(at),
            Start::Woken(number) => self.wakes.get(&number).map_or(Some(0), |&at| at),
        }
    }

    /// A few of the blocks that wait for the core.
    pub(super) fn take<'a>(
        &mut self,
        core: usize,
        of: impl Fn(u32) -> &'a DecodedBlock,
    ) -> Option<Batch> {
        let Some(Queued::Slice { start, slice, block, address }) = self.queues[core].pop_front()
        else {
            return None;
        };
        let at = self.when(start).unwrap_or(0);
        let (count, accesses, _) = first_blocks(&slice.blocks[block..], TURN, of);
        let (blocks, addresses) = (block..block + count, address..address + accesses);
        Some(Batch { at, slice, blocks, addresses })
    }

    /// What is left of a batch's slice waits again.
    pub(super) fn put_back(&mut self, core: usize, batch: Batch) {
        let Batch { at, slice, blocks, addresses } = batch;
        if blocks.end < slice.blocks.len() {
            let (start, block, address) = (Start::At(at), blocks.end, addresses.end);
            let rest = Queued::Slice { start, slice, block, address };
            self.queues[core].push_front(rest);
        }
    }

    /// Another quantum begins, if this one is over, where the last clock says `now`.
    pub(super) fn next_quantum(&mut self, now: u64) {
        if self.taken >= self.quantum() {
            (self.taken_before, self.taken) = (self.taken, 0);
            (self.floor, self.began) = (self.began, now);
            self.ended = self.ended.saturating_add(1);
            let floor = self.floor;
            // No core goes back behind it.
            self.wakes.retain(|_, at| at.is_none_or(|at| at > floor));
        }
    }

    /// Instructions that the quantum has room for, at least one.
    pub(super) fn left(&self) -> u64 {
        self.quantum().saturating_sub(self.taken).max(1)
    }

    /// Instructions of a quantum, of all cores.
    fn quantum(&self) -> u64 {
        QUANTUM * self.queues.len() as u64
    }

    /// All clocks are at `now`: what was at the same time before does not matter any more.
    pub(super) fn restart(&mut self, now: u64) {
        (self.taken_before, self.taken, self.ended) = (0, 0, 0);
        (self.floor, self.began) = (now, now);
    }

    /// Time passes again; of the clocks, the first is at `floor` and the last at `began`.
    pub(super) fn resume(&mut self, floor: u64, began: u64) {
        self.drifted |= self.have_drifted();
        (self.taken_before, self.taken, self.ended) = (0, 0, 0);
        (self.floor, self.began) = (floor, began);
    }

    /// It is known how far cores are ahead and behind.
    pub(super) fn know_drift(&self) -> bool {
        self.are_several() && (self.drifted || self.have_drifted())
    }

    /// Cores are as far ahead and behind as they are later on: what one may do depends on two quanta.
    pub(super) fn have_drifted(&self) -> bool {
        self.ended >= 3
    }

    /// Where [`Self::floor`] will have got to by now, if it goes as evenly as instructions are
    /// taken: it is at the beginning of the quantum before when a quantum begins, and at its own
    /// when it ends.
    pub(super) fn even_floor(&self) -> u64 {
        let (taken, of) = (self.taken.min(self.taken_before), self.taken_before.max(1));
        let ahead = u128::from(self.began - self.floor) * u128::from(taken) / u128::from(of);
        self.floor + ahead as u64
    }
}
