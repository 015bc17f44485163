//! Loads past mispredicted branches: what comes after the two ways of a branch have joined again is loaded
//! before the branch is resolved.
//!
//! A core goes on down the wrong way while a branch is unresolved. If that way soon joins the right
//! one, what it then executes are the program's own instructions, and those whose operands neither
//! way has changed make the accesses that they will make again, once the branch is resolved. Until
//! then lines and translations are on their way: most of what the wrong path does for the caches
//! (Eyerman, Van den Steen, Heirman and Hur, "Simulating Wrong-Path Instructions in Decoupled
//! Functional-First Simulation", ISPASS 2023, "convergence exploitation"). A trace has the right
//! path alone, so only these instructions can be known; docs/adr/0018 has the alternatives.
//!
//! - A conditional branch that jumps forward joins at its target. The target is known once the
//!   branch was taken; what lies between, the *body*, once it was not: how many instructions, and
//!   which registers it writes. If the body is longer than the machine's
//!   `reconvergence_instructions`, the branch does not join.
//! - When such a branch was predicted wrongly, a *run* begins in the cycle after its dispatch: what
//!   the program executes from the join on is dispatched, the machine's width a cycle, as long as
//!   window and queues have room, until the branch is resolved. Where the wrong way leads through
//!   the body, that is dispatched first.
//! - Registers that the body writes are unknown from the join on, and so is all that depends on
//!   them. Loads whose address is known translate and ask for their line, walks included. Faults
//!   have no effect.
//! - Other branches of a run that are predicted wrongly go the wrong way in it too, and join or end it.
//! - All is executed again once the branch is resolved, in the usual way and in its usual time.
//!   Data prefetchers see a load when it is made first. They see it again, and then find its line,
//!   and no step from its last address.
//!
//! Not modelled: accesses of the wrong way itself, joins behind both a then and an else part,
//! loops, and calls and returns that were predicted wrongly; stores of a run; and branches of a run
//! that are resolved in it.

use flatwalk_paging::{AccessKind, Address, Gva};
use flatwalk_trace::Access;

use super::branch::Branch;
use super::decode::{Control, DecodedBlock, Op};
use super::{Core, Environment, Stage, access_line, last_byte};
use crate::counts::add;
use crate::memory::line::LINE_SHIFT;
use crate::mmu::event::Request;

/// Branches whose bodies are known, each at its address modulo their number.
const BODIES: usize = 4096;
/// Bodies that are being learnt at once: of branches within one another.
const LEARNING: usize = 4;
/// Runs at once. One that would be another is left out; a window has few more mispredicted branches.
const RUNS: usize = 64;
/// When what depends on an unknown register is ready.
const NEVER: u64 = u64::MAX >> 1;

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconvergenceStatistics {
    /// Mispredicted branches behind which a run began.
    pub runs: u64,
    /// Loads that asked for their lines in a run.
    pub loads: u64,
}

add!(ReconvergenceStatistics { runs, loads });

/// Places that instructions take: in the window, in the load queue and in the store queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places {
    window: i64,
    loads: i64,
    stores: i64,
}

impl Places {
    fn of(op: &Op) -> Self {
        let stores = op.accesses > op.loads;
        Self { window: 1, loads: i64::from(op.loads > 0), stores: i64::from(stores) }
    }

    fn add(&mut self, more: Self, times: i64) {
        self.window += times * more.window;
        self.loads += times * more.loads;
        self.stores += times * more.stores;
    }
}

/// Registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Registers([u64; 4]);

impl Registers {
    fn add(&mut self, register: u8) {
        self.0[usize::from(register >> 6)] |= 1 << (register & 63);
    }

    fn or(self, more: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | more.0[word]))
    }

    fn has(self, register: usize) -> bool {
        self.0[register >> 6] >> (register & 63) & 1 != 0
    }
}

/// What a conditional branch jumps over.
#[derive(Clone, Copy, Debug, Default)]
struct Body {
    /// Address of the branch.
    branch: u64,
    /// Where it joins: its target.
    join: u64,
    /// What is between, once it was executed: its places when that was last, and all registers that it
    /// has written.
    seen: Option<(Places, Registers)>,
}

/// A body that is being executed.
#[derive(Clone, Copy, Debug)]
struct Learning {
    branch: u64,
    join: u64,
    places: Places,
    written: Registers,
}

/// What is executed beyond a branch that was predicted wrongly.
#[derive(Clone, Debug)]
struct Run {
    /// Cycle in which the branch is resolved.
    resolved: u64,
    dispatch: Stage,
    /// Cycle in which each register is ready.
    ready: [u64; 256],
    /// Where the program's way joins the run's, which is there already; and how many instructions before it
    /// at most.
    awaited: Option<(u64, u32)>,
    /// So many more places than the program's instructions do the run's take.
    more: Places,
}

impl Run {
    /// The registers are unknown.
    fn forget(&mut self, registers: Registers) {
        for (number, ready) in self.ready.iter_mut().enumerate() {
            if registers.has(number) {
                *ready = NEVER;
            }
        }
    }

    /// The run goes the wrong way of a branch as well. False if that ends it.
    fn mispredict(&mut self, body: Option<&Body>, taken: bool, most: u32) -> bool {
        if self.awaited.is_some() {
            return true; // It has not gone this way.
        }
        match body {
            Some(Body { seen: Some((places, written)), .. }) if taken => {
                self.dispatch.place += places.window.unsigned_abs();
                self.more.add(*places, 1);
                self.forget(*written);
                true
            }
            Some(Body { join, .. }) if !taken => {
                self.awaited = Some((*join, most));
                true
            }
            _ => false,
        }
    }

    /// The program's next instruction is part of a body that the run has jumped over, if it has. `None`: the
    /// body is too long.
    fn is_absent(&mut self, op: &Op) -> Option<bool> {
        let Some((join, left)) = self.awaited else { return Some(false) };
        if op.pc == join {
            self.awaited = None;
            return Some(false);
        }
        self.awaited = Some((join, left.checked_sub(1)?));
        let mut written = Registers::default();
        op.written().for_each(|register| written.add(register));
        self.forget(written);
        self.more.add(Places::of(op), -1);
        Some(true)
    }

    fn ready(&self, registers: &[u8], at: u64) -> u64 {
        registers.iter().fold(at, |ready, &r| ready.max(self.ready[usize::from(r)]))
    }
}

/// What the core knows of joins, and what runs ahead.
#[derive(Clone, Debug)]
pub(super) struct Reconvergence {
    /// Instructions of the longest body.
    most: u32,
    bodies: Vec<Body>,
    learning: Vec<Learning>,
    /// Oldest first.
    runs: Vec<Run>,
    /// What came of it.
    pub statistics: ReconvergenceStatistics,
}

impl Reconvergence {
    pub fn new(most: u32) -> Self {
        Self {
            most,
            bodies: vec![Body::default(); BODIES],
            learning: Vec::new(),
            runs: Vec::new(),
            statistics: ReconvergenceStatistics::default(),
        }
    }

    /// All that is under way is given up.
    pub fn drain(&mut self) {
        self.runs.clear();
        self.learning.clear();
    }

    fn body(&mut self, branch: u64) -> &mut Body {
        &mut self.bodies[branch as usize % BODIES]
    }

    /// The branch went to `next`: what that says of its body. Returns whether it jumped there, and
    /// its body if that is known; `None` for one that cannot join.
    fn learn(&mut self, branch: &Branch, next: u64) -> Option<(bool, Body)> {
        let behind = branch.fall_through.filter(|_| branch.control == Control::Conditional)?;
        let taken = next != behind;
        let body = self.body(branch.pc);
        if taken {
            if next < behind {
                return None;
            }
            if (body.branch, body.join) != (branch.pc, next) {
                *body = Body { branch: branch.pc, join: next, seen: None };
            }
        } else if body.branch != branch.pc || body.join == 0 {
            return None;
        }
        let body = *body;
        let known = |one: &Learning| one.branch == branch.pc;
        if !taken && self.learning.len() < LEARNING && !self.learning.iter().any(known) {
            let (places, written) = <(Places, Registers)>::default();
            let Body { branch, join, .. } = body;
            self.learning.push(Learning { branch, join, places, written });
        }
        Some((taken, body))
    }

    /// An instruction is executed: bodies that it belongs to, or that end before it.
    fn execute(&mut self, op: &Op) {
        let Self { learning, bodies, most, .. } = self;
        learning.retain_mut(|one| {
            if op.pc != one.join {
                one.places.add(Places::of(op), 1);
                op.written().for_each(|register| one.written.add(register));
                return one.places.window <= i64::from(*most);
            }
            let body = &mut bodies[one.branch as usize % BODIES];
            if (body.branch, body.join) == (one.branch, one.join) {
                let written = body.seen.map(|(_, written)| written).unwrap_or_default();
                body.seen = Some((one.places, written.or(one.written)));
            }
            false
        });
    }
}

impl Core {
    /// The branch before `block` is resolved, and loads of the block are made that can be made before.
    #[inline(never)]
    pub(super) fn run_ahead(
        &mut self,
        block: &DecodedBlock,
        predicted: Option<bool>,
        addresses: &[u64],
        env: &mut Environment<'_>,
    ) {
        let pending = self.pending;
        let mispredicted = self.resolve_branch(block.pc(), predicted);
        let Some(mut ahead) = self.reconvergence.take() else { return };
        if let Some((branch, resolved)) = pending {
            let learnt = ahead.learn(&branch, block.pc());
            if mispredicted {
                self.begin_run(&mut ahead, learnt, resolved);
            }
        }
        let mut done = Places::default();
        let mut next_access = 0;
        for op in &block.ops {
            if !ahead.learning.is_empty() {
                ahead.execute(op);
            }
            let its = next_access..next_access + usize::from(op.accesses);
            next_access = its.end;
            if !ahead.runs.is_empty() {
                let accesses = block.accesses[its.clone()].iter().zip(&addresses[its]);
                let loads: Vec<_> = accesses.filter(|(access, _)| !access.store).collect();
                self.run_ahead_by(&mut ahead, op, done, &loads, env);
            }
            done.add(Places::of(op), 1);
        }
        self.held = ahead.runs.iter().map(|run| run.dispatch.cycle).min().unwrap_or(u64::MAX);
        self.reconvergence = Some(ahead);
    }

    /// A branch was predicted wrongly that is resolved in cycle `resolved`: runs go the wrong way,
    /// and another one begins.
    fn begin_run(
        &mut self,
        ahead: &mut Reconvergence,
        learnt: Option<(bool, Body)>,
        resolved: u64,
    ) {
        let most = ahead.most;
        let mispredict = |run: &mut Run| match &learnt {
            Some((taken, body)) => run.mispredict(Some(body), *taken, most),
            None => run.mispredict(None, true, most),
        };
        ahead.runs.retain_mut(mispredict);
        if ahead.runs.len() < RUNS && self.dispatch.cycle < resolved {
            let mut run = Run {
                resolved,
                dispatch: self.dispatch,
                ready: self.registers,
                awaited: None,
                more: Places::default(),
            };
            if mispredict(&mut run) {
                ahead.runs.push(run);
                ahead.statistics.runs += 1;
            }
        }
    }

    /// All runs execute an instruction that comes after those that take up the places `done`.
    fn run_ahead_by(
        &mut self,
        ahead: &mut Reconvergence,
        op: &Op,
        done: Places,
        loads: &[(&Access, &u64)],
        env: &mut Environment<'_>,
    ) {
        let latency = env.caches.l1d_latency();
        // When its data is there: who executes it first makes its loads.
        let mut data: Option<u64> = None;
        let Reconvergence { runs, statistics, .. } = ahead;
        runs.retain_mut(|run| {
            match run.is_absent(op) {
                None => return false,
                Some(true) => return true,
                Some(false) => {}
            }
            let mut room = self.window.room_after(done.window + run.more.window);
            if op.loads > 0 {
                room = room.max(self.load_queue.room_after(done.loads + run.more.loads));
            }
            if op.accesses > op.loads {
                room = room.max(self.store_queue.room_after(done.stores + run.more.stores));
            }
            if room >= run.resolved || run.dispatch.pass(room) >= run.resolved {
                return false;
            }
            let first = run.dispatch.cycle + 1;
            let asked = run.ready(&op.address_reads, first);
            let mut ready = asked;
            if !loads.is_empty() && asked < run.resolved {
                let there = if let Some(there) = data {
                    there.max(asked + latency)
                } else {
                    statistics.loads += loads.len() as u64;
                    self.load_ahead(op.pc, loads, asked, env).unwrap_or(NEVER)
                };
                data = Some(there);
                ready = there;
            }
            let start = run.ready(&op.reads, ready);
            // What has not begun by then is not executed; a load has begun when it asked.
            let begins = if loads.is_empty() { start } else { asked };
            let known = begins < run.resolved && start < NEVER;
            let written = if known { start + u64::from(op.latency) } else { NEVER };
            for &register in &op.writes {
                run.ready[usize::from(register)] = written;
            }
            let moved = if asked < run.resolved { asked + 1 } else { NEVER };
            for &register in &op.pointers {
                run.ready[usize::from(register)] = moved;
            }
            true
        });
    }

    /// Makes the loads of `instruction` at cycle `asked`; when their data is there, unless one of
    /// them faults.
    fn load_ahead(
        &self,
        instruction: u64,
        loads: &[(&Access, &u64)],
        asked: u64,
        env: &mut Environment<'_>,
    ) -> Option<u64> {
        let mut there = asked;
        for &(access, &address) in loads {
            let last = last_byte(address, access.size);
            // Its first line and its last one.
            let lines = 1 + usize::from(address >> LINE_SHIFT != last >> LINE_SHIFT);
            for at in [address, last >> LINE_SHIFT << LINE_SHIFT].into_iter().take(lines) {
                let request = Request { address: Gva::new(at), kind: AccessKind::Load, at: asked };
                let place =
                    env.mmu.translate(request, || instruction, env.system, env.caches).ok()?;
                let line = access_line(instruction, at, place, false, env);
                there = there.max(line.ready);
            }
            there = there.max(self.stored(address, last) + env.caches.l1d_latency());
        }
        Some(there)
    }
}
