//! Which core has its turn, what waits for one, and how far their clocks are.

use flatwalk_os::OsError;
use flatwalk_trace::{Slice, ThreadId};

use super::{Run, costs, next_observation};
use crate::core::Core;
use crate::core::kernel::KernelTime;
use crate::core::stack::Part;
use crate::counts::forget;
use crate::driver::cores::{Batch, Own, Parked, Switches, no_page};
use crate::driver::look_ahead;
use crate::driver::piece::{Phase, first_blocks};
use crate::memory::replacement::Turn;
use crate::mmu::Mmu;
use crate::mmu::mechanism::Mechanism;

impl Run {
    /// Blocks, of which the first has a place in its slice, run on their thread's core: now, or at
    /// its turn. Behind their addresses may be some that are only looked ahead at.
    pub(super) fn dispatch(
        &mut self,
        thread: ThreadId,
        (blocks, first): (&[u32], usize),
        addresses: &[u64],
    ) -> Result<(), OsError> {
        let core = self.cores.of(thread);
        if let Some(fresh) = self.cores.start() {
            let (mut timed, mut missed) = (fresh.core.clone(), 0);
            if let Some(core) = &mut timed {
                // What was before the measured part is not counted.
                core.wait_until(Part::Idle, self.started);
                forget(|visit| core.counts(visit));
                // But in windows that have ended the core was idle.
                missed = self.windows.iter().map(|window| window.cycles).sum();
            }
            let switches = Switches::new(self.own.switches.every, self.started);
            let parked = Parked {
                mmu: fresh.mmu.for_another_core(),
                core: timed,
                own: Own {
                    missed,
                    began: self.started,
                    ..Own::new(core, next_observation(&fresh.mmu), switches)
                },
            };
            let (private, policy) = (fresh.private.clone(), fresh.policy.clone());
            if let (Some((_, caches)), Some(private)) = (&mut self.timed, private) {
                caches.add_core(private, policy);
            }
            self.add_core(parked);
        }
        if !self.cores.are_several() {
            return self.slice(thread, (blocks, first), addresses);
        }
        if !self.has_queues() {
            self.turn_to(core);
            return self.slice(thread, (blocks, first), addresses);
        }
        let (mut blocks, mut addresses) = (blocks, addresses);
        while !blocks.is_empty() {
            let (count, accesses, instructions) =
                first_blocks(blocks, self.cores.left(), |id| &self.blocks[id as usize]);
            let (now, later) = blocks.split_at(count);
            let (own, others) = addresses.split_at(accesses);
            let slice = Slice { thread, blocks: now.to_vec(), addresses: own.to_vec() };
            (blocks, addresses) = (later, others);
            if self.cores.queue(core, slice, instructions) {
                self.run_waiting()?;
                self.cores.next_quantum(self.clock());
            }
        }
        Ok(())
    }

    /// Another core begins to exist.
    fn add_core(&mut self, mut core: Parked) {
        self.mmu.keep_flushes();
        core.mmu.keep_flushes();
        self.cores.parked.push(core);
    }

    /// Runs all slices that wait, always on the core that is furthest behind.
    pub(super) fn run_waiting(&mut self) -> Result<(), OsError> {
        let next = |run: &Self| {
            // What wakes a thread was queued before it, so there is always one that may begin.
            run.cores.waiting().min_by_key(|&core| {
                let earliest = run.cores.earliest(core);
                (earliest.is_none(), earliest.unwrap_or(0).max(run.clock_of(core)))
            })
        };
        while let Some(core) = next(self) {
            self.turn_to(core);
            let blocks = &self.blocks;
            let Some(batch) = self.cores.take(core, |id| &blocks[id as usize]) else { break };
            self.wait_until(batch.at);
            let Batch { slice, blocks, addresses, .. } = &batch;
            let (blocks, addresses) = (blocks.clone(), addresses.clone());
            let (first, blocks) = (blocks.start, &slice.blocks[blocks]);
            let addresses = look_ahead::with_sight(&slice.addresses, addresses);
            self.slice(slice.thread, (blocks, first), addresses)?;
            self.cores.put_back(core, batch);
            self.make_calls(core);
        }
        Ok(())
    }

    /// Slices wait for their core's turn: time passes, and there are several cores.
    pub(super) fn has_queues(&self) -> bool {
        self.cores.are_several() && self.timed.is_some() && self.phase.has_clock()
    }

    /// The core makes the calls that it has come to and that may wake others.
    pub(super) fn make_calls(&mut self, core: usize) {
        while let Some(number) = self.cores.next_wake(core) {
            let at = self.settled_of(core);
            self.cores.wake(number, at);
        }
    }

    /// The core that has its turn is idle until cycle `at`.
    fn wait_until(&mut self, at: u64) {
        if let Some((core, _)) = &mut self.timed
            && core.settled() < at
        {
            core.wait_until(Part::Idle, at);
        }
    }

    /// The clock of the core that is furthest ahead; 0 without one.
    pub(super) fn clock(&self) -> u64 {
        self.timed_cores().map(Core::cycle).max().unwrap_or(0)
    }

    /// The mean of all cores' clocks; 0 without one.
    pub(super) fn mean_clock(&self) -> u64 {
        self.timed_cores().map(Core::cycle).sum::<u64>() / (self.cores.parked.len() as u64 + 1)
    }

    /// The clock of the core that has its turn; 0 without one.
    pub(super) fn own_clock(&self) -> u64 {
        self.timed.as_ref().map_or(0, |(core, _)| core.cycle())
    }

    /// What kernels did on the core that has its turn, since the start.
    pub(super) fn own_kernel(&self) -> KernelTime {
        self.timed.as_ref().map_or_else(KernelTime::default, |(core, _)| core.kernel)
    }

    /// The clock of a core; 0 without one.
    fn clock_of(&self, number: usize) -> u64 {
        self.timed_core(number).map_or(0, Core::cycle)
    }

    /// When a core has completed what it has begun; 0 without one.
    fn settled_of(&self, number: usize) -> u64 {
        self.timed_core(number).map_or(0, Core::settled)
    }

    fn timed_core(&self, number: usize) -> Option<&Core> {
        match self.cores.parked.iter().find(|core| core.own.number == number) {
            Some(parked) => parked.core.as_deref(),
            None => self.timed.as_ref().map(|(core, _)| &**core),
        }
    }

    /// The core `number` has its turn. What the one before flushed, it flushes, and so do all others.
    fn turn_to(&mut self, number: usize) {
        if self.own.number != number {
            self.tell_flushes(true, self.phase.has_clock());
            let place = self.cores.parked.iter().position(|core| core.own.number == number);
            if let Some(place) = place {
                self.exchange(place);
            }
        }
        let floor = self.cores.floor;
        self.wait_until(floor);
        let protected = self.mmus().flat_map(Mmu::mechanisms).any(Mechanism::protects_page_tables);
        if let Some((_, caches)) = &mut self.timed {
            caches.begin_turn(Turn { owner: 0, protected: protected.into() }, floor);
        }
    }

    /// The parked core at `place` and the one that has its turn change places.
    fn exchange(&mut self, place: usize) {
        let parked = &mut self.cores.parked[place];
        self.mmu.hand_over(&mut parked.mmu);
        std::mem::swap(&mut self.mmu, &mut parked.mmu);
        std::mem::swap(&mut self.own, &mut parked.own);
        if let (Some((core, caches)), Some(other)) = (&mut self.timed, &mut parked.core) {
            std::mem::swap(core, other);
            caches.exchange(place);
        }
    }

    /// Does something for each core, as if it had its turn.
    pub(crate) fn on_each_core(&mut self, mut act: impl FnMut(&mut Self)) {
        act(self);
        for place in 0..self.cores.parked.len() {
            self.exchange(place);
            act(self);
            self.exchange(place);
        }
    }

    /// All other cores flush what this one did: each is interrupted, which takes time at all, and
    /// now if there is a clock.
    pub(super) fn tell_flushes(&mut self, takes_time: bool, has_clock: bool) {
        let flushes = self.mmu.take_flushes();
        if flushes.is_empty() {
            return;
        }
        let costs = costs(&self.configuration, self.merge_cycles, true);
        for Parked { mmu, core, own } in &mut self.cores.parked {
            own.code_page = no_page();
            for flushes in &flushes {
                mmu.carry_out_here(flushes);
                if let Some(core) = core {
                    let cycles = if takes_time { costs.shootdown(flushes) } else { 0 };
                    core.kernel.shootdown(cycles);
                    let cycles = if has_clock { cycles } else { 0 };
                    core.wait_until(Part::Shootdowns, core.settled() + cycles);
                }
            }
        }
    }

    /// All time that has passed is counted, where what is counted begins or ends. No core waits for
    /// the one that is furthest ahead: it would wait for what the cut leaves to others. Cores
    /// without work were idle up to `floor`. Clocks then add up to a multiple of their number, so
    /// that their mean is exact.
    fn settle(&mut self, floor: u64) {
        let count = self.cores.parked.len() as u64 + 1;
        if self.timed.is_some() && count > 1 {
            let (mut sum, mut last) = (0, (u64::MAX, 0));
            self.on_each_core(|run| {
                let clock = run.idle_until(floor);
                sum += clock;
                last = last.min((clock, run.own.number));
            });
            let rest = sum.next_multiple_of(count) - sum;
            self.on_each_core(|run| {
                if run.own.number == last.1 {
                    run.idle_until(last.0 + rest);
                }
            });
        }
        self.started = self.mean_clock();
    }

    /// The core that has its turn completes what it has begun, and is idle until cycle `at`; its clock then.
    pub(crate) fn idle_until(&mut self, at: u64) -> u64 {
        let Some((core, _)) = &mut self.timed else { return 0 };
        core.wait_until(Part::Idle, at);
        core.cycle()
    }

    /// Time has passed up to here, and goes on with `phase` if that has a clock. Where a window
    /// begins or ends that does not follow another, cores without work have come as far as the
    /// present quantum has: how far they are behind depends on that, and must not be in the
    /// window's time. Between two windows it does not matter, and they keep what they may do at the
    /// same time as others.
    pub(super) fn cut(&mut self, phase: Phase) {
        let is_between = self.phase == phase;
        let begins = !is_between && phase == Phase::Measured;
        // Without a clock no core is ahead.
        if begins && self.timed.is_some() && self.cores.are_several() {
            self.early_windows += u64::from(!self.cores.have_drifted());
        }
        self.settle(if is_between { self.cores.floor } else { self.cores.even_floor() });
    }

    /// Time passes again. How far each core was ahead or behind when it last did is the best that
    /// is known of how far they are now; where they never were, all begin at one time.
    pub(super) fn resume(&mut self) {
        self.cores.forget_starts();
        if !self.cores.know_drift() {
            return self.align();
        }
        let clocks = || self.timed_cores().map(Core::settled);
        let (first, last) = (clocks().min().unwrap_or(0), clocks().max().unwrap_or(0));
        self.cores.resume(first, last);
        self.started = self.mean_clock();
    }

    /// All cores wait for the one that is furthest ahead.
    pub(super) fn align(&mut self) {
        if self.cores.are_several() {
            let mut latest = 0;
            let settled = |run: &Self| run.timed.as_ref().map_or(0, |(core, _)| core.settled());
            self.on_each_core(|run| latest = settled(run).max(latest));
            self.on_each_core(|run| {
                run.idle_until(latest);
            });
            self.cores.restart(latest);
        }
        self.started = self.clock();
    }
}
