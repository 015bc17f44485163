//! Several programs on the cores of one machine: private TLBs, page-walk caches, L1 and L2; a shared
//! last-level cache and memory (Park et al., ASPLOS 2022, section 7.1, "Multicore").
//!
//! Cores take turns. The one whose clock is furthest behind runs a few blocks, so that requests reach
//! the shared cache in the order of time but for what a turn and a core's window reach ahead; slots
//! are booked in time whatever the order ([`crate::memory::slots`]). What is shared is one object that each
//! core has during its turn; counts stay with the core. Ties go to the first core: the same mix, seed
//! and configuration give the same figures.
//!
//! Every core measures as many instructions after its own warm-up, and goes on after them until the
//! last core is done, so that all are measured among others that run. Programs share no memory: lines
//! carry the number of their core as the owner, which also keeps their addresses apart. Each has an
//! equal part of the machine's memory.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatwalk_symbols::Symbols;
use flatwalk_trace::{Slice, Source};

use crate::ConfigError;
use crate::config::machine::Multicore;
use crate::driver::cores::TURN;
use crate::driver::piece::{Piece, first_blocks};
use crate::driver::predictions::Predictors;
use crate::driver::run::{Mode, Run, RunConfiguration};
use crate::driver::sampling::Limits;
use crate::driver::simulate::{SimulateError, StretchReader, os_failure};
use crate::driver::workers::Workers;
use crate::mechanisms;
use crate::memory::hierarchy::SharedCaches;
use crate::memory::replacement::{ReplacementPolicy, Turn};
use crate::report::result::RunResult;

/// Opens the source of a core's program. The error is reported as it is.
pub type Open<'a> = dyn Fn(usize) -> Result<Box<dyn Source>, String> + Sync + 'a;

/// Runs the programs that `open` gives for `cores` cores together, once under each configuration, on
/// the threads of `workers`, which may be their number. `limits` are each core's. Returns the
/// cores' results by configuration. `progress` is called with the instructions that an average configuration
/// has done, all cores together; when it breaks, everything stops.
///
/// # Errors
/// See [`SimulateError`].
pub fn simulate_mix(
    open: &Open<'_>,
    cores: usize,
    configurations: &[RunConfiguration],
    limits: &Limits,
    seed: u64,
    workers: impl Into<Workers>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Vec<Vec<RunResult>>, SimulateError> {
    let workers = workers.into();
    let results: Mutex<Vec<Option<Vec<RunResult>>>> = Mutex::new(vec![None; configurations.len()]);
    let failure: Mutex<Option<SimulateError>> = Mutex::new(None);
    // What a worker left with that panicked.
    let panic: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let (next, done, running) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicUsize::new(0));
    let stop = AtomicBool::new(false);
    let lock = PoisonError::into_inner;
    let threads = workers.count(configurations.len());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(configuration) = configurations.get(index) else { break };
            let progress = ProgressHandle { done: &done, stop: &stop };
            match one(open, cores, configuration, limits, seed, &progress) {
                Ok(result) => results.lock().unwrap_or_else(lock)[index] = Some(result),
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        running.store(threads, Ordering::Relaxed);
        for _ in 0..threads {
            scope.spawn(|| {
                let work = || workers.surround(work);
                if let Err(left) = catch_unwind(AssertUnwindSafe(work)) {
                    panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(left);
                    stop.store(true, Ordering::Relaxed);
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while running.load(Ordering::Relaxed) > 0 {
            let average = done.load(Ordering::Relaxed) / configurations.len().max(1) as u64;
            if progress(average).is_break() {
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(SimulateError::Stopped);
                stop.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    if let Some(left) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(left);
    }
    if let Some(failure) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(failure);
    }
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(results.into_iter().flatten().collect())
}

/// Where a mix reports its progress, and learns that it is to stop.
struct ProgressHandle<'a> {
    done: &'a AtomicU64,
    stop: &'a AtomicBool,
}

/// A core and its program.
struct Member<'a> {
    run: Run,
    reader: StretchReader<'a>,
    name: String,
    /// Of the stretch that it is at.
    pieces: std::vec::IntoIter<Piece>,
    /// A slice, and its first block and address that have not been run.
    slice: Option<(Slice, usize, usize)>,
    ended: bool,
    result: Option<RunResult>,
}

impl Member<'_> {
    /// The core's time, in cycles.
    fn clock(&self) -> u64 {
        self.run.timed.as_ref().map_or(0, |(core, _)| core.cycle())
    }

    /// No request of this core names a time before this.
    fn frontier(&self) -> u64 {
        self.run.timed.as_ref().map_or(0, |(_, caches)| caches.frontier())
    }

    /// The replacement policy that its scheme wants of a cache that cores share, if it does.
    fn shared_policy(&self) -> Option<Box<dyn ReplacementPolicy>> {
        let (_, caches) = self.run.timed.as_ref()?;
        let [_, llc] = caches.policies();
        llc?.for_shared_cache()
    }

    /// Runs a few blocks, or carries out what comes before them.
    fn turn(&mut self) -> Result<(), SimulateError> {
        let Some((slice, block, address)) = &mut self.slice else {
            return self.next_piece();
        };
        let (count, accesses, _) =
            first_blocks(&slice.blocks[*block..], TURN, |id| self.run.block(id));
        let (blocks, addresses) = (*block + count, *address + accesses);
        let part = Slice {
            thread: slice.thread,
            blocks: slice.blocks[*block..blocks].to_vec(),
            addresses: slice.addresses[*address..addresses].to_vec(),
        };
        (*block, *address) = (blocks, addresses);
        if blocks == slice.blocks.len() {
            self.slice = None;
        }
        self.take(&Piece::Slice(part))
    }

    fn next_piece(&mut self) -> Result<(), SimulateError> {
        let Some(piece) = self.pieces.next() else {
            match self.reader.next_stretch()? {
                Some(stretch) => self.pieces = stretch.into_iter(),
                None => self.ended = true,
            }
            return Ok(());
        };
        if let Piece::Slice(slice) = piece {
            self.slice = Some((slice, 0, 0));
            return Ok(());
        }
        self.take(&piece)
    }

    fn take(&mut self, piece: &Piece) -> Result<(), SimulateError> {
        self.run.take(piece).map_err(|error| os_failure(&self.run, error))
    }
}

/// One configuration.
fn one(
    open: &Open<'_>,
    cores: usize,
    configuration: &RunConfiguration,
    limits: &Limits,
    seed: u64,
    progress: &ProgressHandle<'_>,
) -> Result<Vec<RunResult>, SimulateError> {
    let refused = |error| SimulateError::Configuration {
        scheme: configuration.scheme.name.clone(),
        machine: configuration.machine.name.clone(),
        error,
    };
    let multicore = fitting(configuration, cores).map_err(refused)?;
    let mut configuration = configuration.clone();
    let machine = configuration.machine.clone();
    let memory = configuration.memory_bytes.unwrap_or(machine.os.memory_bytes);
    // Whole gigabytes, as a machine's memory is.
    let part = (memory / u64::from(multicore.cores)) & !((1 << 30) - 1);
    configuration.memory_bytes = Some(part.max(1 << 30));
    // Each program has one core.
    configuration.cores = Some(1);
    let sources: Result<Vec<_>, _> = (0..cores).map(open).collect();
    let mut sources = sources.map_err(SimulateError::Source)?;
    let mut members = Vec::new();
    for (core, source) in sources.iter_mut().enumerate() {
        let info = source.info().clone();
        let mut run =
            Run::new(configuration.clone(), &info, seed + core as u64).map_err(refused)?;
        if let Some((_, caches)) = &mut run.timed {
            caches.own(core as u64);
        }
        // Every core runs on until the last one is done.
        let reader = StretchReader::new(
            &mut **source,
            &Limits { instructions: None, ..limits.clone() },
            seed,
            Predictors::default(),
        );
        members.push(Member {
            run,
            reader,
            name: info.name,
            pieces: Vec::new().into_iter(),
            slice: None,
            ended: false,
            result: None,
        });
    }
    let policy = match members.first().and_then(Member::shared_policy) {
        Some(policy) => policy,
        None => mechanisms::shared_policy(&machine, multicore).map_err(refused)?,
    };
    let shared = SharedCaches::new(&machine, policy, seed);
    let mut shared = shared.ok_or_else(|| refused(ConfigError::NotTimed(machine.name.clone())))?;
    let wanted = limits.instructions.map_or(u64::MAX, |n| n.saturating_add(limits.warmup));
    let spares =
        |(core, member): (usize, &Member<'_>)| u64::from(member.run.protects_page_tables()) << core;
    let mut protected = members.iter().enumerate().map(spares).sum::<u64>();
    let mut symbols = Symbols::default();
    while members.iter().any(|member| member.result.is_none()) {
        let live = members.iter().enumerate().filter(|(_, member)| !member.ended);
        let next = live.min_by_key(|(_, member)| member.clock());
        let Some((turn, _)) = next else { break };
        if progress.stop.load(Ordering::Relaxed) {
            return Err(SimulateError::Stopped);
        }
        let others = members.iter().enumerate().filter(|&(i, other)| i != turn && !other.ended);
        let others = others.map(|(_, other)| other.frontier()).min().unwrap_or(u64::MAX);
        let member = &mut members[turn];
        if let Some((_, caches)) = &mut member.run.timed {
            shared.begin_turn(Turn { owner: turn as u64, protected });
            caches.share(&mut shared, others);
        }
        let before = member.run.instructions();
        member.turn()?;
        progress.done.fetch_add(member.run.instructions() - before, Ordering::Relaxed);
        protected = protected & !(1 << turn) | u64::from(member.run.protects_page_tables()) << turn;
        if member.result.is_none() && (member.ended || member.run.instructions() >= wanted) {
            let seed = seed + turn as u64;
            let result = RunResult::new(&member.run, &member.name, seed, &mut symbols);
            member.result = Some(result);
        }
        if let Some((_, caches)) = &mut member.run.timed {
            caches.share(&mut shared, u64::MAX);
        }
    }
    Ok(members.into_iter().filter_map(|member| member.result).collect())
}

/// The machine's cores, if `cores` programs fit them and can be timed.
fn fitting(configuration: &RunConfiguration, cores: usize) -> Result<Multicore, ConfigError> {
    let machine = &configuration.machine;
    machine.validate()?;
    let value = |key: &str, problem: String| ConfigError::Value { key: key.to_owned(), problem };
    let multicore = machine.multicore.ok_or_else(|| {
        value(
            "multicore",
            format!("machine `{}` has no such section: it has one core", machine.name),
        )
    })?;
    if cores == 0 || cores > multicore.cores as usize {
        let problem = format!("{} cannot run {cores} programs at once", multicore.cores);
        return Err(value("multicore.cores", problem));
    }
    if configuration.mode != Mode::Timing {
        return Err(value("mode", "cores that share nothing but time need `timing`".to_owned()));
    }
    Ok(multicore)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::machine::Isolation;
    use crate::config::machine::Memory;
    use crate::driver::simulate::simulate;
    use crate::mechanisms::page_table_priority::{Mode as Priority, Settings};
    use crate::tests::testing::Panicking;
    use flatwalk_os::Placement;

    const SIZE: u64 = 16 << 20;

    fn open(core: usize) -> Result<Box<dyn Source>, String> {
        flatwalk_workloads::open("gups", &flatwalk_workloads::Arguments::new(SIZE, core as u64))
            .map_err(|error| error.to_string())
    }

    fn configuration(priority: Option<Priority>, isolation: Isolation) -> RunConfiguration {
        let mut machine = crate::tests::testing::machine();
        machine.multicore = Some(Multicore { cores: 2, isolation });
        let mut scheme = crate::tests::testing::scheme(4, &[]);
        if let Some(mode) = priority {
            scheme.mechanisms.set("page_table_priority", Settings { mode });
        }
        RunConfiguration {
            scheme,
            machine,
            settings: serde_json::Map::new(),
            large_pages: Some(0),
            thp: None,
            fragmentation: 0.0,
            host_large_pages: 0,
            guest_frames: Placement::Compact,
            frames: Placement::Compact,
            mode: Mode::Timing,
            context_switch_ms: None,
            memory_bytes: None,
            cores: None,
        }
    }

    const LIMITS: Limits =
        Limits { skip: 0, warmup: 20_000, instructions: Some(40_000), sampling: None };

    fn mix(cores: usize, configuration: &RunConfiguration) -> Vec<RunResult> {
        mix_from(0, cores, configuration)
    }

    /// The programs of `cores` cores from `first` on.
    fn mix_from(first: usize, cores: usize, configuration: &RunConfiguration) -> Vec<RunResult> {
        let one = std::slice::from_ref(configuration);
        let go_on = &mut |_| ControlFlow::Continue(());
        let open = |core| open(first + core);
        simulate_mix(&open, cores, one, &LIMITS, first as u64, 1, go_on).unwrap().remove(0)
    }

    fn look_ups(run: &RunResult, name: &str) -> (u64, u64) {
        let cache = run.caches.iter().find(|cache| cache.name == name).unwrap();
        (cache.data_misses, cache.table_misses)
    }

    #[test]
    fn a_program_that_shares_with_nobody_runs_as_on_a_machine_of_its_own() {
        for priority in [None, Some(Priority::Always)] {
            let configuration = configuration(priority, Isolation::Owners);
            let shared = mix(1, &configuration).remove(0);
            let memory_bytes = Some(configuration.machine.os.memory_bytes / 2);
            let alone = RunConfiguration { memory_bytes, ..configuration };
            let go_on = &mut |_| ControlFlow::Continue(());
            let source = open(0).unwrap();
            let mut own = simulate(source, vec![alone], &LIMITS, 0, 1, go_on).unwrap();
            let own = own.runs.remove(0);
            // A turn may go on for some blocks after the last instruction that is wanted.
            let close = |a: u64, b: u64| a.abs_diff(b) * 100 < a;
            assert!(close(own.cycles.unwrap(), shared.cycles.unwrap()), "{priority:?}");
            assert!(close(own.walks, shared.walks), "{priority:?}");
            let misses = look_ups(&own, "LLC");
            assert!(close(misses.1, look_ups(&shared, "LLC").1), "{priority:?} {misses:?}");
        }
    }

    #[test]
    fn programs_together_are_slower_and_always_the_same() {
        let mut configuration = configuration(None, Isolation::Owners);
        // A line in 16 cycles: one program leaves some of that free, two want more than there is.
        let memory = Memory::Fixed { latency_ns: 100.0, bandwidth_gbs: 4.0 };
        configuration.machine.memory = Some(memory);
        let (together, again) = (mix(2, &configuration), mix(2, &configuration));
        assert_eq!(together.len(), 2);
        for (core, (run, other)) in together.iter().zip(&again).enumerate() {
            let alone = mix_from(core, 1, &configuration);
            assert_eq!(run.cycles, other.cycles);
            assert!((40_000..41_000).contains(&run.instructions), "{}", run.instructions);
            let (ipc, alone) = (run.ipc.unwrap(), alone[0].ipc.unwrap());
            assert!(ipc < alone, "{ipc} in company, {alone} alone");
        }
        assert_ne!(together[0].cycles, together[1].cycles, "programs have seeds of their own");
    }

    #[test]
    fn priority_keeps_tables_in_the_shared_cache() {
        for isolation in [Isolation::Owners, Isolation::Ways] {
            let misses = |priority| -> u64 {
                let runs = mix(2, &configuration(priority, isolation));
                runs.iter().map(|run| look_ups(run, "LLC").1).sum()
            };
            let (without, with) = (misses(None), misses(Some(Priority::Always)));
            assert!(with < without / 2, "{isolation:?}: {with} of {without} misses");
        }
    }

    #[test]
    fn a_worker_that_panics_ends_the_mix_with_what_it_left() {
        let configurations = vec![configuration(None, Isolation::Owners); 2];
        let open = |core| open_panicking(core, 1);
        let go_on = &mut |_| ControlFlow::Continue(());
        let mixed = catch_unwind(AssertUnwindSafe(|| {
            simulate_mix(&open, 2, &configurations, &LIMITS, 0, 2, go_on).map(drop)
        }));
        assert_eq!(mixed.unwrap_err().downcast_ref(), Some(&Panicking::LEFT));
    }

    /// As [`open`]; the program of core `bad` panics where its first piece is read.
    fn open_panicking(core: usize, bad: usize) -> Result<Box<dyn Source>, String> {
        let source = open(core)?;
        if core == bad { Ok(Box::new(Panicking(source.info().clone()))) } else { Ok(source) }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let configuration = configuration(None, Isolation::Owners);
        let refusal = |cores, configuration: &RunConfiguration| {
            let one = std::slice::from_ref(configuration);
            let go_on = &mut |_| ControlFlow::Continue(());
            simulate_mix(&open, cores, one, &LIMITS, 1, 1, go_on).unwrap_err().to_string()
        };
        assert!(refusal(3, &configuration).contains("multicore.cores"));
        let functional = RunConfiguration { mode: Mode::Functional, ..configuration.clone() };
        assert!(refusal(2, &functional).contains("mode"));
        let mut single = configuration;
        single.machine.multicore = None;
        assert!(refusal(2, &single).contains("multicore"));
        let stop = &mut |_| ControlFlow::Break(());
        single.machine.multicore = Some(Multicore { cores: 2, isolation: Isolation::Owners });
        let endless = Limits { instructions: None, ..LIMITS };
        let stopped = simulate_mix(&open, 2, &[single], &endless, 1, 1, stop);
        assert!(matches!(stopped, Err(SimulateError::Stopped)));
    }
}
