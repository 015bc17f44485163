//! What runs while no time passes: all that is warmed, and runs without a clock.

use flatwalk_os::OsError;
use flatwalk_paging::{AccessKind, Address, Gva, Hpa};
use flatwalk_trace::Access;

use super::{Run, costs};
use crate::core::kernel::KernelTime;
use crate::counts::{Add, Aside};
use crate::driver::look_ahead;
use crate::driver::piece::{Mispredicted, Uses};
use crate::memory::hierarchy::Requester;
use crate::memory::line::{
    LINE_SHIFT, PAGE_BYTES, PAGE_SHIFT, last_byte, page_offset, page_start, untranslated,
};
use crate::memory::reader::{NoClock, TableReader, Warming};
use crate::mmu::event::{Request, Stopped};
use crate::mmu::prefetch::DataAccess;
use crate::mmu::{Mmu, Translated};
use crate::system::System;
use crate::system::costs::Costs;

/// Where the page begins that `at` lies in.
fn page_of(at: Hpa) -> Hpa {
    Hpa::new(page_start(at.raw()))
}

/// What works while no time passes.
struct Untimed<'a, R> {
    mmu: &'a mut Mmu,
    system: &'a mut System,
    reader: R,
    /// The cycle that it is all the time.
    at: u64,
    /// What kernels do, and what that would take.
    kernel: Option<(Costs<'a>, u64, KernelTime)>,
}

impl Untimed<'_, Warming<'_>> {
    /// An access that goes through the caches; `instruction` gives the address of its instruction.
    #[inline(always)]
    fn access(
        &mut self,
        address: u64,
        Access { size, store, .. }: Access,
        instruction: impl Fn() -> u64 + Copy,
    ) -> Result<(), OsError> {
        let kind = if store { AccessKind::Store } else { AccessKind::Load };
        let physical = self.translate(address, kind, instruction)?;
        self.access_line(address, physical, store, instruction);
        let last = last_byte(address, size);
        if address >> LINE_SHIFT == last >> LINE_SHIFT {
            Ok(())
        } else {
            self.access_rest((address, last), physical, kind, instruction())
        }
    }

    /// The line that `address` is in, at `physical`.
    #[inline(always)]
    fn access_line(
        &mut self,
        address: u64,
        physical: Hpa,
        store: bool,
        instruction: impl FnOnce() -> u64,
    ) {
        if self.reader.0.prefetches() {
            let Self { mmu, system, reader, at, .. } = self;
            let instruction = instruction();
            let access = DataAccess { instruction, address, physical, at: *at, store };
            mmu.access_and_prefetch(access, system, reader);
        } else {
            self.reader.0.warm(physical, store, Requester::Data);
        }
    }

    /// The lines of an access from `address` to `last` behind the first, which lies at `physical`.
    #[cold]
    fn access_rest(
        &mut self,
        (address, last): (u64, u64),
        mut physical: Hpa,
        kind: AccessKind,
        instruction: u64,
    ) -> Result<(), OsError> {
        let store = kind == AccessKind::Store;
        let mut at = address;
        while at >> LINE_SHIFT != last >> LINE_SHIFT {
            let line = (at >> LINE_SHIFT).wrapping_add(1) << LINE_SHIFT;
            physical = if line.is_multiple_of(PAGE_BYTES) {
                self.translate(line, kind, || instruction)?
            } else {
                physical.offset(line - at)
            };
            self.access_line(line, physical, store, || instruction);
            at = line;
        }
        Ok(())
    }
}

impl<R: TableReader> Untimed<'_, R> {
    /// The pages of an access from `address` to `last` behind the first.
    #[cold]
    fn translate_rest(
        &mut self,
        (address, last): (u64, u64),
        kind: AccessKind,
        instruction: u64,
    ) -> Result<(), OsError> {
        let mut at = address;
        while at >> PAGE_SHIFT != last >> PAGE_SHIFT {
            at = (at >> PAGE_SHIFT).wrapping_add(1) << PAGE_SHIFT;
            self.translate(at, kind, || instruction)?;
        }
        Ok(())
    }

    /// Where `address` lies; faults are handled.
    #[inline(always)]
    fn translate(
        &mut self,
        address: u64,
        kind: AccessKind,
        instruction: impl FnOnce() -> u64,
    ) -> Result<Hpa, OsError> {
        let request = Request { address: Gva::new(address), kind, at: self.at };
        let Self { mmu, system, reader, .. } = self;
        let translated = match mmu.translate(request, instruction, system, reader) {
            Ok(translated) => translated,
            Err(stopped) => self.fault(request, stopped)?,
        };
        Ok(translated.physical)
    }

    #[cold]
    fn fault(&mut self, request: Request, stopped: Stopped) -> Result<Translated, OsError> {
        let Self { mmu, system, reader, at, kernel } = self;
        mmu.translate_after_fault(request, stopped, system, reader, |handled, _, _, _| {
            if let Some((costs, l1d_latency, kernel)) = kernel {
                kernel.fault(costs.fault(handled, *l1d_latency), handled.by_host);
            }
            *at
        })
    }
}

impl Run {
    /// A stretch of so many instructions was passed over in which `threads` used entries of the page table.
    /// Where page-table priority spares their lines, those stay for longer than any warm-up is. So they are
    /// brought here, and those that are not spared go. Nothing of it is counted. Of the lines that came
    /// into the cores' own caches, each thread has its part by its uses.
    pub(super) fn use_entries(&mut self, threads: &[Uses], instructions: u64) {
        if self.timed.is_none() || !self.protects_page_tables() {
            return;
        }
        let [l2, llc] = self.fills(instructions);
        let all: u64 = threads.iter().map(|uses| uses.times).sum();
        let current = self.own.number;
        let parts = threads.iter().map(|uses| uses.parts.len()).max().unwrap_or(0);
        let cores = 1 + self.cores.parked.len();
        for part in 0..parts {
            let half = |fills: u64| fills >> part >> 2;
            let mut core = 0;
            self.on_each_core(|run| {
                let core_of = |uses: &Uses| run.cores.has(uses.thread).unwrap_or(current);
                let mine: Vec<_> =
                    threads.iter().filter(|uses| core_of(uses) == run.own.number).collect();
                let times: u64 = mine.iter().map(|uses| uses.times).sum();
                let own = (u128::from(l2) * u128::from(times) / u128::from(all.max(1))) as u64;
                // Those of the cache that they share come before the first core's uses, and behind the last's.
                let shared = |is_now| if is_now { half(llc) } else { 0 };
                let counted = Aside::take(|visit| run.counts(visit));
                run.pass_over([half(own), shared(core == 0)]);
                mine.iter().filter_map(|uses| uses.parts.get(part)).for_each(|addresses| {
                    run.walk_untimed(addresses);
                });
                core += 1;
                run.pass_over([half(own), shared(core == cores)]);
                counted.put_back(|visit| run.counts(visit));
            });
        }
    }

    /// So many lines came into L2 and the last-level cache.
    fn pass_over(&mut self, fills: [u64; 2]) {
        if let Some((_, caches)) = &mut self.timed {
            caches.pass_over(fills);
        }
    }

    /// Translates `addresses`, of the trace, to have in the caches what that reads.
    fn walk_untimed(&mut self, addresses: &[u64]) {
        let Self { system, mmu, timed, relocation, .. } = self;
        let Some((core, caches)) = timed else { return };
        let at = core.cycle();
        let reader = &mut Warming(caches);
        for &address in addresses {
            let address = relocation.as_ref().map_or(address, |r| r.address(address));
            let (address, kind) = (Gva::new(address), AccessKind::Load);
            // A page that has left memory since has no entry any more.
            let _ = mmu.translate(Request { address, kind, at }, || 0, system, reader);
        }
    }

    /// Lines that came into L2 and the last-level cache in so many instructions, as in the last window.
    fn fills(&self, instructions: u64) -> [u64; 2] {
        let Some(window) = self.windows.last() else { return [0; 2] };
        let [_, l2, llc] = window.caches;
        [l2, llc].map(|cache| {
            let misses = cache.data_misses + cache.table_misses + cache.prefetch_misses;
            let all = u128::from(misses) * u128::from(instructions);
            (all / u128::from(window.instructions.max(1))) as u64
        })
    }

    /// Runs blocks until `stop` instructions without a clock; returns how many blocks.
    pub(super) fn run_functional(
        &mut self,
        blocks: &[u32],
        rest: &mut &[u64],
        stop: u64,
    ) -> Result<usize, OsError> {
        let (mmu, system) = (&mut self.mmu, &mut self.system);
        let costs = costs(&self.configuration, self.merge_cycles, self.cores.are_several());
        let kernel = self.timed.as_ref().map(|(_, caches)| caches.l1d_latency());
        let kernel = kernel.map(|l1d_latency| (costs, l1d_latency, KernelTime::default()));
        let mut untimed = Untimed { mmu, system, reader: NoClock, at: 0, kernel };
        let mut done = blocks.len();
        let fetches = untimed.mmu.translates_fetches();
        for (i, &id) in blocks.iter().enumerate() {
            let block = &*self.blocks[id as usize];
            let (addresses, remaining) = rest.split_at(block.accesses.len());
            *rest = remaining;
            self.look_ahead.look(
                look_ahead::window(remaining, addresses.len()),
                untimed.system,
                None,
            );
            if fetches {
                let last = block.ops[block.ops.len() - 1].pc;
                for pc in [block.pc(), last] {
                    if pc >> PAGE_SHIFT != self.own.code_page.0 {
                        let physical = untimed.translate(pc, AccessKind::Fetch, || pc)?;
                        self.own.code_page = (pc >> PAGE_SHIFT, page_of(physical));
                    }
                }
            }
            for (access, &address) in block.accesses.iter().zip(addresses) {
                let kind = if access.store { AccessKind::Store } else { AccessKind::Load };
                let instruction = || block.instruction(access);
                untimed.translate(address, kind, instruction)?;
                let last = last_byte(address, access.size);
                if last >> PAGE_SHIFT != address >> PAGE_SHIFT {
                    untimed.translate_rest((address, last), kind, instruction())?;
                }
            }
            let n = block.ops.len() as u64;
            let loads = u64::from(block.loads);
            self.own.instructions += n;
            self.own.counts.instructions += n;
            self.own.counts.loads += loads;
            self.own.counts.stores += addresses.len() as u64 - loads;
            if self.own.instructions >= stop {
                done = i + 1;
                break;
            }
        }
        if let (Some((.., kernel)), Some((core, _))) = (untimed.kernel, &mut self.timed) {
            core.kernel.add(&kernel);
        }
        Ok(done)
    }

    /// The same, and what caches, memory's rows and branch predictors hold changes as if time had passed.
    pub(super) fn run_warm(
        &mut self,
        blocks: &[u32],
        (mispredicted, first): (Option<&Mispredicted>, usize),
        rest: &mut &[u64],
        stop: u64,
    ) -> Result<usize, OsError> {
        let Some((core, caches)) = &mut self.timed else { return Ok(blocks.len()) };
        let (mmu, system) = (&mut self.mmu, &mut self.system);
        let costs = costs(&self.configuration, self.merge_cycles, self.cores.are_several());
        let kernel = Some((costs, caches.l1d_latency(), KernelTime::default()));
        let reader = Warming(caches);
        let mut untimed = Untimed { mmu, system, reader, at: core.cycle(), kernel };
        let fetches = untimed.mmu.translates_fetches();
        let mut done = blocks.len();
        for (i, &id) in blocks.iter().enumerate() {
            let block = &*self.blocks[id as usize];
            let (addresses, remaining) = rest.split_at(block.accesses.len());
            *rest = remaining;
            let soon = look_ahead::window(remaining, addresses.len());
            self.look_ahead.look(soon, untimed.system, Some(&*untimed.reader.0));
            core.warm(block, mispredicted.map(|all| all.is_right(first + i)));
            for &pc in &block.lines {
                if pc >> LINE_SHIFT == self.own.code_line {
                    continue;
                }
                self.own.code_line = pc >> LINE_SHIFT;
                if pc >> PAGE_SHIFT != self.own.code_page.0 {
                    let physical = if fetches {
                        untimed.translate(pc, AccessKind::Fetch, || pc)?
                    } else {
                        untranslated(pc)
                    };
                    self.own.code_page = (pc >> PAGE_SHIFT, page_of(physical));
                }
                let physical = self.own.code_page.1.offset(page_offset(pc));
                untimed.reader.0.warm(physical, false, Requester::Fetch);
            }
            for (access, &address) in block.accesses.iter().zip(addresses) {
                untimed.access(address, *access, || block.instruction(access))?;
            }
            self.own.instructions += block.ops.len() as u64;
            if self.own.instructions >= stop {
                done = i + 1;
                break;
            }
        }
        if let Some((.., kernel)) = untimed.kernel {
            core.kernel.add(&kernel);
        }
        Ok(done)
    }
}
