//! The out-of-order core.
//!
//! Instructions are taken in program order, and for each the cycles are computed in which it is
//! dispatched, has its operands, gets its translation and data, is done, and retires:
//!
//! - dispatch and retirement proceed in order, `width` a cycle; dispatch waits for room in the
//!   window (reorder buffer), the load queue and the store queue, and for the front end;
//! - an instruction starts when the registers it reads are ready: loads and their translations
//!   start when the address registers are, so independent misses and walks overlap, and dependent
//!   ones do not. No constant says how much overlaps;
//! - a store translates and asks for its line as soon as its address is known, retires when its data
//!   is, and leaves the store queue in order; a load of what a store is still to write waits for the
//!   store's data;
//! - a mispredicted branch holds dispatch until it is resolved and the front end is refilled.
//!
//! What cycles go to is counted as they pass ([`stack`]): whatever an instruction that has not retired
//! waits for, from the cycle on in which the one before it retired. Results of others are never among
//! it: their instructions are older, so they have retired, and waited for them themselves.
//!
//! Not modelled: issue ports, memory-order violations, wrong-path execution, but for loads of
//! instructions that are on both ways of a mispredicted branch ([`reconvergence`]), where the
//! machine has it.

pub mod branch;
pub mod decode;
pub mod kernel;
mod reconvergence;
pub mod stack;

use flatwalk_os::OsError;
use flatwalk_paging::{AccessKind, Address, Gva, Hpa};
use flatwalk_trace::Access;

use crate::config::machine;
use crate::core::branch::{Branch, Predictor};
use crate::core::decode::{DecodedBlock, FEW_READS, FEW_WRITES, Kind, NO_READ, NO_WRITE, Op};
use crate::core::kernel::KernelTime;
use crate::core::reconvergence::Reconvergence;
pub use crate::core::reconvergence::ReconvergenceStatistics;
use crate::core::stack::{CycleStack, Part};
use crate::counts::{Visitor, add};
use crate::memory::hierarchy::{Hierarchy, Requester, Response};
use crate::memory::line::{
    LINE_SHIFT, PAGE_BYTES, PAGE_SHIFT, last_byte, page_offset, page_start, untranslated,
};
use crate::mmu::blame::Blame;
use crate::mmu::event::{Request, Stopped};
use crate::mmu::prefetch::DataAccess;
use crate::mmu::{Missed, Mmu, Translated};
use crate::system::costs::{Cost, Costs};
use crate::system::{Handled, System};

/// Slots of the table that finds a load's pending store.
const FORWARDING: usize = 512;

/// A queue of bounded length that is entered and left in order: the cycle in which each of the last
/// entries is left, twice as many as have room at a time.
#[derive(Clone, Debug)]
struct Queue {
    entries: u32,
    leaves: Vec<u64>,
    /// Where the next one's goes.
    next: usize,
    /// Where that one's is whose place the next one takes.
    before: usize,
}

impl Queue {
    fn new(entries: u32) -> Self {
        let before = entries as usize;
        Self { entries, leaves: vec![0; 2 * before], next: 0, before }
    }

    /// The cycle from which on there is room for one more.
    #[inline]
    fn room(&self) -> u64 {
        self.leaves[self.before]
    }

    /// The same for the one that comes after `ahead` others, or if that is less than 0 for one that came before
    /// the next. 0 if it needs the place of one that is forgotten; the end of time if it needs that of one that
    /// has not entered.
    fn room_after(&self, ahead: i64) -> u64 {
        match usize::try_from(ahead + i64::from(self.entries)) {
            Err(_) => 0,
            Ok(places) if places >= self.leaves.len() => u64::MAX,
            Ok(places) => {
                let place = self.next + places;
                self.leaves[place.checked_sub(self.leaves.len()).unwrap_or(place)]
            }
        }
    }

    #[inline]
    fn push(&mut self, leaves: u64) {
        self.leaves[self.next] = leaves;
        let following = |place| if place + 1 == self.leaves.len() { 0 } else { place + 1 };
        (self.next, self.before) = (following(self.next), following(self.before));
    }
}

/// A stage that passes `width` instructions a cycle, in order.
#[derive(Clone, Copy, Debug)]
struct Stage {
    width: u64,
    /// What 2^64 - 1 is divided by `width`: to divide a place by `width`, the one behind it is
    /// multiplied by this. That is exact below 2^64 / `width`^2 cycles: 2^52 for the widest, which
    /// is days at any frequency.
    reciprocal: u64,
    /// The next free place, counted from cycle 0 on, `width` to a cycle.
    place: u64,
    /// The cycle in which the last instruction passed.
    cycle: u64,
}

impl Stage {
    fn new(width: u32) -> Self {
        let width = u64::from(width);
        Self { width, reciprocal: u64::MAX / width, place: 0, cycle: 0 }
    }

    /// The cycle in which the next instruction passes, not before `at`.
    #[inline]
    fn pass(&mut self, at: u64) -> u64 {
        self.place = self.place.max(at * self.width) + 1;
        self.cycle = ((u128::from(self.place) * u128::from(self.reciprocal)) >> 64) as u64;
        self.cycle
    }
}

/// What the core did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreStatistics {
    /// Instructions retired.
    pub instructions: u64,
    /// Data loads (accesses, not instructions).
    pub loads: u64,
    /// Data stores.
    pub stores: u64,
    /// Cycles in which retirement waited for an instruction whose translation was outstanding.
    pub translation_cycles: u64,
    /// Of these, those of page-fault handlers.
    pub translation_fault_cycles: u64,
    /// Cycles spent in page-fault handlers.
    pub fault_cycles: u64,
    /// Cycles spent in system calls that change the address space.
    pub call_cycles: u64,
    /// Cycles that both spent on merging nodes or taking them apart.
    pub merge_cycles: u64,
    /// What all cycles went to.
    pub stack: CycleStack,
    /// Of these, what kernels did, refills not included.
    pub kernel: CycleStack,
}

add!(CoreStatistics {
    instructions,
    loads,
    stores,
    translation_cycles,
    translation_fault_cycles,
    fault_cycles,
    call_cycles,
    merge_cycles,
    stack,
    kernel
});

/// What a core works with.
pub struct Environment<'a> {
    /// Translation.
    pub mmu: &'a mut Mmu,
    /// Caches and memory.
    pub caches: &'a mut Hierarchy,
    /// What is translated, and the operating system that answers faults.
    pub system: &'a mut System,
    /// What that costs.
    pub costs: Costs<'a>,
}

/// The core.
#[derive(Clone, Debug)]
pub struct Core {
    dispatch: Stage,
    retire: Stage,
    frontend: u64,
    /// Cycle in which each register is ready.
    registers: [u64; 256],
    window: Queue,
    load_queue: Queue,
    store_queue: Queue,
    last_store_leaves: u64,
    /// Earliest cycle for the next dispatch, set by the front end.
    fetched: u64,
    /// All cycles before this one are in the stack, and those in which instructions before have retired.
    accounted: u64,
    /// So many cycles later is the data of the load under way, because its walk had to wait for a walker;
    /// those that are in the stack excluded.
    queued: u64,
    /// The instruction and the address of that load.
    queued_for: (u64, u64),
    /// A fault lets the front end be refilled until this cycle, which has not been accounted for; or 0.
    refilled: u64,
    /// What that counts as.
    refill: Part,
    line: u64,
    /// Page of the last fetch and where it lies.
    code_page: Option<(u64, Hpa)>,
    /// The branch at the end of the last block, until it is known where it went, and when it is resolved.
    pending: Option<(Branch, u64)>,
    predictor: Predictor,
    /// What is loaded past branches that were predicted wrongly, on a machine that does that.
    reconvergence: Option<Box<Reconvergence>>,
    /// No load of that kind names a cycle before.
    held: u64,
    /// By 8-byte word: address and the cycle in which its data is ready.
    stores: Box<[(u64, u64); FORWARDING]>,
    /// The last of these cycles so far.
    stored_by: u64,
    /// What it did.
    pub statistics: CoreStatistics,
    /// What kernels did on it since the start, whether time passed or not.
    pub kernel: KernelTime,
}

impl Core {
    /// A core as configured, that has run nothing.
    pub fn new(config: &machine::Core) -> Self {
        Self {
            dispatch: Stage::new(config.width),
            retire: Stage::new(config.width),
            frontend: config.frontend_cycles,
            registers: [0; 256],
            window: Queue::new(config.window),
            load_queue: Queue::new(config.load_queue),
            store_queue: Queue::new(config.store_queue),
            last_store_leaves: 0,
            fetched: 0,
            accounted: 0,
            queued: 0,
            queued_for: (0, 0),
            refilled: 0,
            refill: Part::PageFaults,
            line: u64::MAX,
            code_page: None,
            pending: None,
            predictor: Predictor::new(config),
            reconvergence: config
                .reconvergence_instructions
                .filter(|&most| most > 0)
                .map(|most| Box::new(Reconvergence::new(most))),
            held: u64::MAX,
            stores: Box::new([(u64::MAX, 0); FORWARDING]),
            stored_by: 0,
            statistics: CoreStatistics::default(),
            kernel: KernelTime::default(),
        }
    }

    /// The cycle in which the last instruction retired.
    pub fn cycle(&self) -> u64 {
        self.retire.cycle
    }

    /// The predictors, for their statistics.
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// The core predicts for itself from now on, as `predictor` did so far.
    pub fn predict_as(&mut self, predictor: &Predictor) {
        self.predictor.continue_as(predictor);
    }

    /// Shows its counts; state and cycles are none.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.statistics);
        visit(&mut self.predictor.statistics);
        if let Some(reconvergence) = &mut self.reconvergence {
            visit(&mut reconvergence.statistics);
        }
    }

    /// What was loaded past mispredicted branches; `None` on a machine that does not do that.
    pub fn reconvergence(&self) -> Option<ReconvergenceStatistics> {
        self.reconvergence.as_ref().map(|reconvergence| reconvergence.statistics)
    }

    /// Waits until all is done, as at a system call or when another thread takes the core.
    pub fn drain(&mut self) {
        self.fetched = self.fetched.max(self.retire.cycle);
        self.pending = None;
        self.forget_code();
        self.end_runs();
    }

    /// The next fetch looks anew where its page lies.
    pub fn forget_code(&mut self) {
        self.line = u64::MAX;
        self.code_page = None;
    }

    /// What was executed past mispredicted branches is thrown away.
    fn end_runs(&mut self) {
        if let Some(reconvergence) = &mut self.reconvergence {
            reconvergence.drain();
            self.held = u64::MAX;
        }
    }

    /// Lets the kernel carry out a system call that changes the address space and costs `cost`.
    pub fn call(&mut self, cost: Cost) {
        self.statistics.call_cycles += cost.cycles();
        self.kernel.call(cost);
        self.stop_for(Part::SystemCalls, cost);
    }

    /// A fault that a system call's work raises, as the host has not backed what the guest's kernel writes.
    pub fn fault_in_call(&mut self, cost: Cost, by_host: bool) {
        self.statistics.fault_cycles += cost.cycles();
        self.kernel.fault_in_call(cost, by_host);
        self.stop_for(Part::of_fault(by_host), cost);
    }

    /// Waits until all is done, and then for a kernel's work.
    fn stop_for(&mut self, part: Part, cost: Cost) {
        self.account_refill();
        self.drain();
        self.fetched = self.account_work(part, cost, self.fetched);
        self.retire.pass(self.fetched);
    }

    /// The cycle from which on the core waits for nothing that it has begun.
    pub fn settled(&self) -> u64 {
        self.retire.cycle.max(self.refilled)
    }

    /// Waits until cycle `until`, or until [`Core::settled`] if that is later, which counts as `part`.
    pub fn wait_until(&mut self, part: Part, until: u64) {
        let until = until.max(self.settled());
        self.account_refill();
        self.drain();
        let counted = self.account(part, 0, until);
        if part == Part::Shootdowns {
            self.statistics.kernel.count(part, counted);
        }
        if until > self.retire.cycle {
            self.fetched = self.fetched.max(until);
            self.retire.pass(until);
        }
    }

    /// Lets `cycles` pass in which nothing is simulated.
    pub fn pass(&mut self, cycles: u64) {
        self.drain();
        self.fetched += cycles;
        self.retire.pass(self.fetched);
    }

    /// A block runs in no time: the branch predictors learn from it. `predicted` as in [`Core::run`].
    #[inline]
    pub fn warm(&mut self, block: &DecodedBlock, predicted: Option<bool>) {
        self.predict(block.pc(), predicted);
        self.await_branch(block, self.retire.cycle);
    }

    /// The branch at the end of `block`, if there is one, is resolved in cycle `resolved`.
    #[inline]
    fn await_branch(&mut self, block: &DecodedBlock, resolved: u64) {
        self.pending = Branch::ending(block).map(|branch| (branch, resolved));
    }

    /// Retirement waits from `from` to `until`: whatever of that has not been accounted for goes to `part`.
    /// Returns how much that is.
    #[inline]
    fn account(&mut self, part: Part, from: u64, until: u64) -> u64 {
        let from = from.max(self.accounted).max(self.retire.cycle);
        if until <= from {
            return 0;
        }
        self.accounted = until;
        self.statistics.stack.count(part, until - from);
        until - from
    }

    /// The same of data that is asked for at cycle `at`.
    #[inline]
    fn account_data(&mut self, at: u64, response: Response, blame: &mut Blame) {
        if self.queued > 0 {
            self.account_queued(response.ready, blame);
        }
        let from = at.max(self.accounted).max(self.retire.cycle);
        if response.ready > from {
            self.accounted = response.ready;
            self.statistics.stack.add_data(response.awaited(), response.ready - from);
        }
    }

    /// The same of what a wait for a walker delays until `until`: so much of it counts as that wait.
    #[cold]
    fn account_queued(&mut self, until: u64, blame: &mut Blame) {
        let from = self.accounted.max(self.retire.cycle);
        let waited = self.account(Part::WalkQueue, from, until.min(from + self.queued));
        let (instruction, address) = self.queued_for;
        blame.wait(instruction, address, waited);
        self.queued = 0;
    }

    /// The same of a translation that `instruction` asked for at `asked`, that was known at `ready`, and
    /// took its time as `timeline` says.
    #[inline(never)]
    fn account_translation(
        &mut self,
        Request { address, kind, .. }: Request,
        instruction: u64,
        (asked, ready): (u64, u64),
        (timeline, blame): Missed<'_>,
    ) {
        if kind == AccessKind::Fetch {
            let waited = self.account(Part::InstructionTranslation, asked, ready);
            return blame.wait(instruction, address.raw(), waited);
        }
        let from = asked.max(self.accounted).max(self.retire.cycle);
        self.accounted = self.accounted.max(if ready > from { ready } else { 0 });
        blame.wait(instruction, address.raw(), ready.saturating_sub(from));
        let stack = &mut self.statistics.stack;
        let queued = timeline.divide(from, ready, |spent, cycles| {
            stack.count(Part::of_translation(spent), cycles);
        });
        self.queued = if kind == AccessKind::Load { queued } else { 0 };
        self.queued_for = (instruction, address.raw());
    }

    /// The same of a kernel's work from cycle `start` on, which counts as `part` but for some of it; when
    /// that is done.
    fn account_work(&mut self, part: Part, cost: Cost, start: u64) -> u64 {
        self.statistics.merge_cycles += cost.merges;
        kernel::parts(part, cost).into_iter().fold(start, |now, (part, cycles)| {
            let counted = self.account(part, now, now + cycles);
            self.statistics.kernel.count(part, counted);
            now + cycles
        })
    }

    /// The same of the front end's being refilled after a fault. The operation that faulted has retired,
    /// and another one follows.
    #[inline]
    fn account_refill(&mut self) {
        if self.refilled > 0 {
            self.account(self.refill, 0, self.refilled);
            self.refilled = 0;
        }
    }

    /// Runs one block whose accesses go to `addresses`. `predicted`: whether the branch that led to it was
    /// predicted; `None` where the core is to predict it.
    ///
    /// # Errors
    /// When the operating system cannot handle a fault.
    pub fn run(
        &mut self,
        block: &DecodedBlock,
        predicted: Option<bool>,
        addresses: &[u64],
        env: &mut Environment<'_>,
    ) -> Result<(), OsError> {
        self.account_refill();
        if self.reconvergence.is_some() {
            self.run_ahead(block, predicted, addresses, env);
        } else {
            self.resolve_branch(block.pc(), predicted);
        }
        let mut next_access = 0;
        let mut done = 0;
        let last: *const Op = &raw const block.ops[block.ops.len() - 1];
        for op in &block.ops {
            if op.new_line && op.pc >> LINE_SHIFT != self.line {
                self.fetch(op.pc, env)?;
            }
            done = match op.kind {
                Kind::Plain => self.plain(op),
                Kind::Load | Kind::Store => {
                    let size = block.accesses[next_access].size;
                    let address = addresses[next_access];
                    next_access += 1;
                    if op.kind == Kind::Load {
                        self.load(op, address, size, env)?
                    } else {
                        self.store(op, address, size, env)?
                    }
                }
                Kind::General => {
                    let its = next_access..next_access + usize::from(op.accesses);
                    next_access = its.end;
                    self.general(op, &block.accesses[its.clone()], &addresses[its], env)?
                }
            };
            // Nothing is accounted for at the end of a block that has not been waited for.
            if self.refilled > 0 && !std::ptr::eq(op, last) {
                self.account_refill();
            }
        }
        debug_assert!(self.accounted <= self.retire.cycle);
        debug_assert_eq!(self.registers[usize::from(NO_READ)], 0);
        self.registers[usize::from(NO_WRITE)] = 0;
        let s = &mut self.statistics;
        s.instructions += block.ops.len() as u64;
        s.loads += u64::from(block.loads);
        s.stores += block.accesses.len() as u64 - u64::from(block.loads);
        self.await_branch(block, done);
        Ok(())
    }

    /// The cycle in which all of these registers are ready, not before `at`.
    #[inline]
    fn ready(&self, registers: &[u8], at: u64) -> u64 {
        registers.iter().fold(at, |ready, &r| ready.max(self.registers[usize::from(r)]))
    }

    /// These registers are ready at `done`.
    #[inline]
    fn write(&mut self, registers: &[u8], done: u64) {
        for &r in registers {
            self.registers[usize::from(r)] = done;
        }
    }

    /// The next operation retires, not before `at`; returns when.
    #[inline]
    fn retire(&mut self, at: u64) -> u64 {
        let retired = self.retire.pass(at);
        debug_assert!(self.accounted <= retired, "what is accounted for is waited for");
        self.window.push(retired);
        retired
    }

    /// Dispatches an operation that makes an access when there is `room` in its queues; returns when its
    /// operands could be ready first.
    #[inline]
    fn dispatch_access(&mut self, room: u64, env: &mut Environment<'_>) -> u64 {
        let dispatched = self.dispatch.pass(self.fetched.max(self.window.room()).max(room));
        let frontier = dispatched.min(self.held);
        env.mmu.advance(frontier);
        env.caches.advance(frontier);
        dispatched + 1
    }

    /// Notes that between `asked` and `translated` an operation waited for its translation, and that
    /// retirement waited for the operation from `before` to `retired`.
    #[inline]
    fn count_wait(&mut self, (asked, translated): (u64, u64), before: u64, retired: u64) {
        if translated > asked {
            self.statistics.translation_cycles +=
                translated.min(retired).saturating_sub(asked.max(before));
        }
    }

    /// A plain operation; returns when it is done, as the other kinds do.
    #[inline]
    fn plain(&mut self, op: &Op) -> u64 {
        let first = self.dispatch.pass(self.fetched.max(self.window.room())) + 1;
        let done = self.ready(&op.reads[..FEW_READS], first) + u64::from(op.latency);
        self.write(&op.writes[..FEW_WRITES], done);
        self.retire(done);
        done
    }

    /// An operation that loads `size` bytes.
    #[inline]
    fn load(
        &mut self,
        op: &Op,
        address: u64,
        size: u16,
        env: &mut Environment<'_>,
    ) -> Result<u64, OsError> {
        let first = self.dispatch_access(self.load_queue.room(), env);
        let asked = self.ready(&op.address_reads, first);
        let loaded = self.access(op.pc, (address, size, false), asked, env)?;
        let operands_ready = self.ready(&op.reads[..FEW_READS], loaded.ready.max(first));
        let done = operands_ready + u64::from(op.latency);
        self.write(&op.writes[..FEW_WRITES], done);
        let before = self.retire.cycle;
        let retired = self.retire(done);
        self.load_queue.push(retired);
        self.count_wait((asked, loaded.translated), before, retired);
        Ok(done)
    }

    /// An operation that stores `size` bytes.
    #[inline]
    fn store(
        &mut self,
        op: &Op,
        address: u64,
        size: u16,
        env: &mut Environment<'_>,
    ) -> Result<u64, OsError> {
        let room = self.store_queue.room();
        self.account(Part::StoreQueue, 0, room);
        let first = self.dispatch_access(room, env);
        let asked = self.ready(&op.address_reads, first);
        let stored = self.access(op.pc, (address, size, true), asked, env)?;
        let done = self.ready(&op.reads[..FEW_READS], first) + u64::from(op.latency);
        self.write(&op.writes[..FEW_WRITES], done);
        let before = self.retire.cycle;
        let retired = self.retire(done.max(stored.translated));
        self.note_store(address, size, done);
        self.leave_store_queue(stored.ready, retired);
        self.count_wait((asked, stored.translated), before, retired);
        Ok(done)
    }

    /// Any operation.
    fn general(
        &mut self,
        op: &Op,
        accesses: &[Access],
        addresses: &[u64],
        env: &mut Environment<'_>,
    ) -> Result<u64, OsError> {
        let stores = op.accesses > op.loads;
        let loads_room = if op.loads > 0 { self.load_queue.room() } else { 0 };
        let stores_room = if stores { self.store_queue.room() } else { 0 };
        self.account(Part::StoreQueue, 0, stores_room);
        let first = self.dispatch_access(loads_room.max(stores_room), env);
        let asked = self.ready(&op.address_reads, first);
        // One that computes an address and accesses nothing waits for its registers, too.
        let mut operands_ready = if accesses.is_empty() { asked } else { first };
        let mut translated = 0;
        let mut line_there = 0;
        let mut walked = asked;
        for (access, &address) in accesses.iter().zip(addresses) {
            let times = self.access(op.pc, (address, access.size, access.store), asked, env)?;
            walked = walked.max(times.translated);
            if access.store {
                translated = times.translated.max(translated);
                line_there = times.ready.max(line_there);
            } else {
                operands_ready = operands_ready.max(times.ready);
            }
        }
        let done = self.ready(&op.reads, operands_ready) + u64::from(op.latency);
        self.write(&op.writes, done);
        if op.pointers[0] != NO_WRITE {
            self.write(&op.pointers, asked + 1);
        }
        let before = self.retire.cycle;
        let retired = self.retire(done.max(translated));
        if op.loads > 0 {
            self.load_queue.push(retired);
        }
        if stores {
            for (access, &address) in accesses.iter().zip(addresses) {
                if access.store {
                    self.note_store(address, access.size, done);
                }
            }
            self.leave_store_queue(line_there, retired);
        }
        self.count_wait((asked, walked), before, retired);
        Ok(done)
    }

    /// A store's data is ready at `done`, for loads of the same words.
    #[inline]
    fn note_store(&mut self, address: u64, size: u16, done: u64) {
        self.stored_by = self.stored_by.max(done);
        let (mut word, last) = (address >> 3, last_byte(address, size) >> 3);
        loop {
            self.stores[word as usize % FORWARDING] = (word, done);
            if word >= last {
                return;
            }
            word += 1;
        }
    }

    /// The cycle in which all data is ready that stores are to write between `address` and `last`.
    #[inline]
    fn stored(&self, address: u64, last: u64) -> u64 {
        let (mut word, last) = (address >> 3, last >> 3);
        let mut ready = 0;
        loop {
            let (known, data) = self.stores[word as usize % FORWARDING];
            if known == word {
                ready = data.max(ready);
            }
            if word >= last {
                return ready;
            }
            word += 1;
        }
    }

    /// A store that retires at `retired` leaves the store queue, behind those before it, when its line
    /// is there.
    #[inline]
    fn leave_store_queue(&mut self, line_there: u64, retired: u64) {
        self.last_store_leaves = (self.last_store_leaves + 1).max(line_there).max(retired);
        self.store_queue.push(self.last_store_leaves);
    }

    /// The last block's branch went to `next`. The cycle in which it is resolved, if it was mispredicted.
    #[inline]
    fn predict(&mut self, next: u64, predicted: Option<bool>) -> Option<u64> {
        let (branch, resolved) = self.pending.take()?;
        let right = match predicted {
            None => branch.is_predicted(&mut self.predictor, next),
            Some(right) => {
                self.predictor.count(right);
                right
            }
        };
        (!right).then_some(resolved)
    }

    /// The same, and the front end waits for it. True if it was mispredicted.
    #[inline]
    fn resolve_branch(&mut self, next: u64, predicted: Option<bool>) -> bool {
        let Some(resolved) = self.predict(next, predicted) else { return false };
        let refilled = resolved + self.frontend;
        self.account(Part::BranchMispredictions, resolved, refilled);
        self.fetched = self.fetched.max(refilled);
        true
    }

    /// Fetches the line of code that `pc` lies in. Hits are hidden by the front end's pipeline.
    fn fetch(&mut self, pc: u64, env: &mut Environment<'_>) -> Result<(), OsError> {
        self.line = pc >> LINE_SHIFT;
        let at = self.fetched.max(self.dispatch.cycle);
        let frontier = at.min(self.held);
        env.mmu.advance(frontier);
        env.caches.advance(frontier);
        let page = pc >> PAGE_SHIFT;
        let physical = match self.code_page {
            Some((known, frame)) if known == page => frame.offset(page_offset(pc)),
            // Without instruction TLBs code is taken to lie where its address says.
            _ if !env.mmu.translates_fetches() => untranslated(pc),
            _ => {
                let t = self.translate(pc, pc, AccessKind::Fetch, at, env)?;
                self.account_refill();
                self.code_page = Some((page, Hpa::new(page_start(t.physical.raw()))));
                self.fetched = self.fetched.max(t.ready);
                let idle = t.ready.saturating_sub(at.max(self.retire.cycle));
                self.statistics.translation_cycles += idle;
                t.physical
            }
        };
        let at = self.fetched.max(at);
        let response = env.caches.access(physical, at, false, Requester::Fetch);
        let stall = (response.ready - at).saturating_sub(env.caches.l1i_latency());
        if stall > 0 {
            self.fetched = at + stall;
            self.account(Part::InstructionFetch, at, self.fetched);
        }
        Ok(())
    }

    /// One data access of `instruction`, to `size` bytes: when its translation and when its data is there.
    #[inline(always)]
    fn access(
        &mut self,
        instruction: u64,
        (address, size, store): (u64, u16, bool),
        at: u64,
        env: &mut Environment<'_>,
    ) -> Result<AccessTimes, OsError> {
        let last = last_byte(address, size);
        let kind = if store { AccessKind::Store } else { AccessKind::Load };
        let mut times = if address >> LINE_SHIFT == last >> LINE_SHIFT {
            let t = self.translate(instruction, address, kind, at, env)?;
            let response = access_line(instruction, address, t, store, env);
            if !store {
                self.account_data(t.ready, response, &mut env.mmu.blame);
            }
            AccessTimes { translated: t.ready, ready: response.ready }
        } else {
            self.access_across(instruction, (address, last), kind, at, env)?
        };
        if !store {
            let latency = env.caches.l1d_latency();
            // Most loads come behind the data of all stores so far.
            if self.stored_by + latency > times.ready {
                let ready = self.stored(address, last) + latency;
                if ready > times.ready {
                    self.account(Part::DataL1, times.ready, ready);
                    times.ready = ready;
                }
            }
        }
        Ok(times)
    }

    /// An access that crosses lines or pages takes as long as its slowest part.
    #[cold]
    fn access_across(
        &mut self,
        instruction: u64,
        (address, last): (u64, u64),
        kind: AccessKind,
        at: u64,
        env: &mut Environment<'_>,
    ) -> Result<AccessTimes, OsError> {
        let store = kind == AccessKind::Store;
        let mut times = AccessTimes { translated: 0, ready: 0 };
        let mut from = address;
        loop {
            let t = self.translate(instruction, from, kind, at, env)?;
            times.translated = times.translated.max(t.ready);
            let page_last = from | (PAGE_BYTES - 1);
            let more_lines = (last.min(page_last) >> LINE_SHIFT) - (from >> LINE_SHIFT);
            for line in 0..=more_lines {
                let from =
                    if line == 0 { from } else { ((from >> LINE_SHIFT) + line) << LINE_SHIFT };
                let physical = page_start(t.physical.raw()) | page_offset(from);
                let t = Translated { physical: Hpa::new(physical), ..t };
                let response = access_line(instruction, from, t, store, env);
                if !store {
                    self.account_data(t.ready, response, &mut env.mmu.blame);
                }
                times.ready = times.ready.max(response.ready);
            }
            if last <= page_last || page_last == u64::MAX {
                return Ok(times);
            }
            from = page_last + 1;
        }
    }

    /// Translates, and lets the operating system handle faults until that succeeds.
    #[inline(always)]
    fn translate(
        &mut self,
        instruction: u64,
        address: u64,
        kind: AccessKind,
        at: u64,
        env: &mut Environment<'_>,
    ) -> Result<Translated, OsError> {
        let request = Request { address: Gva::new(address), kind, at };
        let translated = match env.mmu.translate(request, || instruction, env.system, env.caches) {
            Ok(translated) => translated,
            Err(stopped) => self.fault(request, instruction, stopped, env)?,
        };
        // Most are known at once.
        if translated.ready > at {
            let Mmu { timeline, blame, .. } = &mut *env.mmu;
            self.account_translation(
                request,
                instruction,
                (at, translated.ready),
                (timeline, blame),
            );
        }
        Ok(translated)
    }

    /// A fault: the handler starts when everything older has retired, and all that is younger starts
    /// anew behind it.
    #[cold]
    fn fault(
        &mut self,
        request: Request,
        instruction: u64,
        stopped: Stopped,
        env: &mut Environment<'_>,
    ) -> Result<Translated, OsError> {
        self.end_runs();
        let Environment { mmu, caches, system, costs } = env;
        let mut asked = request.at;
        let handle = |handled: &Handled, at: u64, of: Missed<'_>, caches: &mut Hierarchy| {
            if !handled.flushes.is_empty() {
                self.code_page = None;
            }
            self.account_translation(request, instruction, (asked, at), of);
            let cost = costs.fault(handled, caches.l1d_latency());
            let part = Part::of_fault(handled.by_host);
            self.statistics.fault_cycles += cost.cycles();
            self.kernel.fault(cost, handled.by_host);
            let start = at.max(self.retire.cycle);
            let from = start.max(self.accounted);
            let resume = self.account_work(part, cost, start);
            self.statistics.translation_fault_cycles += resume.saturating_sub(from);
            (self.refill, self.refilled) = (part, resume + self.frontend);
            self.fetched = self.fetched.max(self.refilled);
            asked = resume;
            resume
        };
        mmu.translate_after_fault(request, stopped, system, *caches, handle)
    }
}

/// A load or store of `instruction` to the line that `address` is in, translated.
#[inline(always)]
fn access_line(
    instruction: u64,
    address: u64,
    Translated { physical, ready: at }: Translated,
    store: bool,
    env: &mut Environment<'_>,
) -> Response {
    if env.caches.prefetches() {
        let access = DataAccess { instruction, address, physical, at, store };
        return env.mmu.access_and_prefetch(access, env.system, env.caches);
    }
    env.caches.access(physical, at, store, Requester::Data)
}

#[derive(Clone, Copy, Debug)]
struct AccessTimes {
    translated: u64,
    ready: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_queue_knows_whose_place_is_taken() {
        let mut queue = Queue::new(3);
        assert_eq!((queue.room(), queue.room_after(2), queue.room_after(3)), (0, 0, u64::MAX));
        for leaves in (10..=70).step_by(10) {
            queue.push(leaves);
        }
        // The next one takes the place of the third last, which leaves in cycle 50.
        assert_eq!(queue.room(), 50);
        let after = [3, 2, 1, 0, -1, -2, -3].map(|ahead| queue.room_after(ahead));
        assert_eq!(after, [u64::MAX, 70, 60, 50, 40, 30, 20]);
        assert_eq!(queue.room_after(-4), 0, "who left in cycle 10 is forgotten");
    }

    proptest! {
        #[test]
        fn a_stage_passes_its_width_in_each_cycle(
            width in 1u32..=64,
            start_bits in 0u32..52,
            waits in prop::collection::vec(prop_oneof![Just(0), 0u64..4, 0u64..1 << 44], 1..200),
        ) {
            let mut stage = Stage::new(width);
            // Some begin far from 0, and all end below 2^52.
            let mut at = ((1 << start_bits) - 1_u64).min((1 << 52) - (200 << 44) - 201);
            let mut place = 0;
            for wait in waits {
                at += wait;
                place = (at * u64::from(width)).max(place);
                prop_assert_eq!(stage.pass(at), place / u64::from(width));
                place += 1;
            }
        }
    }

    #[test]
    fn a_stage_divides_exactly_up_to_its_last_cycles() {
        for width in 1..=64 {
            let stage = Stage::new(width);
            for cycle in [0, 1, 1 << 51, (1 << 52) - 1] {
                for place in 0..width {
                    let before = cycle * u64::from(width) + u64::from(place);
                    assert_eq!(Stage { place: before, ..stage }.pass(0), cycle);
                }
            }
        }
    }
}
