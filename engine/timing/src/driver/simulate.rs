//! One trace through many runs: read and decoded once, simulated on all cores.
//!
//! A producer reads the trace and cuts it into stretches. Workers take a run and the next stretch that
//! it has not seen, always the run that is furthest behind. A stretch is dropped when every run has
//! seen it, and the producer waits when too many are alive: memory is bounded however long the trace.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatwalk_os::OsError;
use flatwalk_symbols::Symbols;
use flatwalk_trace::{Event, Item, Slice, Source, SourceInfo, ThreadId, TraceError};

use crate::ConfigError;
use crate::core::decode::{BlockDecoder, DecodedBlock};
use crate::driver::piece::{Phase, Piece, first_blocks};
use crate::driver::predictions::Predictors;
use crate::driver::run::{Run, RunConfiguration, is_call};
use crate::driver::sampling::{Limits, Sampled, Schedule};
use crate::driver::touched::Touched;
use crate::driver::workers::Workers;
use crate::memory::line::LINE_SHIFT;
use crate::report::result::RunResult;

/// Why a simulation ended without results.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A program of a mix could not be opened.
    #[error("{0}")]
    Source(String),
    /// A configuration that cannot be.
    #[error("scheme `{scheme}` on machine `{machine}`: {error}")]
    Configuration {
        /// The run's scheme.
        scheme: String,
        /// The run's machine.
        machine: String,
        /// What is wrong.
        error: ConfigError,
    },
    /// The operating-system model could not go on.
    #[error("scheme `{scheme}`, after {instructions} instructions: {error}")]
    Os {
        /// The run's scheme.
        scheme: String,
        /// How far it had come.
        instructions: u64,
        /// Why.
        error: OsError,
    },
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// What came out.
#[derive(Debug)]
pub struct Simulation {
    /// The trace.
    pub info: SourceInfo,
    /// Instructions simulated per run, warm-up included.
    pub instructions: u64,
    /// What was measured of it.
    pub sampled: Sampled,
    /// In the order of the configurations.
    pub runs: Vec<RunResult>,
}

/// Instructions per stretch that are simulated, about …
const STRETCH: u64 = 1 << 19;
/// … or that are passed over.
const PASSED: u64 = 1 << 24;
/// Stretches alive at most.
const ALIVE: usize = 4;

/// A run waiting for a worker.
struct Waiting {
    index: usize,
    next_stretch: usize,
    run: Box<Run>,
}

#[derive(Default)]
struct State {
    stretches: VecDeque<Arc<Vec<Piece>>>,
    /// Number of the first of `stretches`.
    first: usize,
    /// Stretches in all, once the trace has ended.
    total: Option<usize>,
    waiting: Vec<Waiting>,
    /// Stretch that each busy run is at.
    busy: Vec<usize>,
    finished: Vec<(usize, Box<Run>)>,
    /// Instructions simulated, summed over runs.
    instructions: u64,
    failure: Option<SimulateError>,
    /// What a thread left with that panicked.
    panic: Option<Box<dyn Any + Send>>,
    /// What was measured, once the trace has ended.
    sampled: Option<Sampled>,
}

impl State {
    /// Drops the stretches that every run has seen.
    fn drop_seen(&mut self) {
        let waiting = self.waiting.iter().map(|w| w.next_stretch);
        let needed = waiting.chain(self.busy.iter().copied()).min();
        let Some(needed) = needed else {
            self.stretches.clear();
            return;
        };
        while self.first < needed && !self.stretches.is_empty() {
            self.stretches.pop_front();
            self.first += 1;
        }
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// A panic in one thread ends the scope anyway; the others may see its state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: SimulateError) {
        self.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    /// Does a thread's work. If that panics, the others wait for nothing more: they end, too.
    fn guard(&self, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.lock().panic.get_or_insert(panic);
            self.fail(SimulateError::Stopped);
        }
    }
}

/// Runs `source` through every configuration on the threads of `workers`, which may be their number.
/// `progress` is called about ten times a second with the instructions that an average run has done; when
/// it breaks, everything stops.
///
/// # Errors
/// See [`SimulateError`].
pub fn simulate(
    mut source: Box<dyn Source>,
    configurations: Vec<RunConfiguration>,
    limits: &Limits,
    seed: u64,
    workers: impl Into<Workers>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Simulation, SimulateError> {
    let workers = workers.into();
    let info = source.info().clone();
    let runs = configurations.len();
    let (mut state, mut predictors) = (State::default(), Predictors::default());
    for (index, configuration) in configurations.into_iter().enumerate() {
        let (scheme, machine) =
            (configuration.scheme.name.clone(), configuration.machine.name.clone());
        let mut run = Run::new(configuration, &info, seed)
            .map_err(|error| SimulateError::Configuration { scheme, machine, error })?;
        run.share_predictions(&mut predictors);
        state.waiting.push(Waiting { index, next_stretch: 0, run: Box::new(run) });
    }
    let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            shared.guard(|| {
                let reader = StretchReader::new(&mut *source, limits, seed, predictors);
                if let Err(error) = produce(reader, &shared) {
                    shared.fail(error);
                }
            });
        });
        for _ in 0..workers.count(runs) {
            scope.spawn(|| workers.surround(|| shared.guard(|| work(&shared))));
        }
        let mut state = shared.lock();
        while state.failure.is_none() && state.finished.len() < runs {
            let done = state.instructions / runs.max(1) as u64;
            drop(state);
            if progress(done).is_break() {
                shared.fail(SimulateError::Stopped);
            }
            state = shared.lock();
            if state.failure.is_none() && state.finished.len() < runs {
                let tenth = Duration::from_millis(100);
                let waited = shared.changed.wait_timeout_while(state, tenth, |s| {
                    s.failure.is_none() && s.finished.len() < runs
                });
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    });
    let mut state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(panic) = state.panic {
        resume_unwind(panic);
    }
    if let Some(failure) = state.failure {
        return Err(failure);
    }
    state.finished.sort_by_key(|&(index, _)| index);
    for (_, run) in &mut state.finished {
        run.end().map_err(|error| os_failure(run, error))?;
    }
    let mut symbols = Symbols::default();
    let result = |(_, run): &(_, Box<Run>)| RunResult::new(run, &info.name, seed, &mut symbols);
    let results = state.finished.iter().map(result);
    let instructions = state.finished.first().map_or(0, |(_, run)| run.instructions());
    let sampled = state.sampled.expect("every run has finished, so the trace has ended");
    Ok(Simulation { runs: results.collect(), instructions, sampled, info })
}

/// Reads the trace into stretches.
fn produce(mut reader: StretchReader<'_>, shared: &Shared) -> Result<(), SimulateError> {
    loop {
        let stretch = reader.next_stretch()?;
        let mut state = shared.lock();
        while state.stretches.len() >= ALIVE && state.failure.is_none() {
            state = shared.wait(state);
        }
        if state.failure.is_some() {
            return Ok(());
        }
        let ended = stretch.is_none();
        state.stretches.extend(stretch.map(Arc::new));
        if ended {
            state.total = Some(state.first + state.stretches.len());
            state.sampled = Some(reader.summary());
        }
        shared.changed.notify_all();
        if ended {
            return Ok(());
        }
    }
}

/// The operating system of a run could not go on.
pub(super) fn os_failure(run: &Run, error: OsError) -> SimulateError {
    let scheme = run.configuration.scheme.name.clone();
    SimulateError::Os { scheme, instructions: run.instructions(), error }
}

/// Takes runs a window further until all have seen all.
fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.failure.is_some() {
            return;
        }
        let end = state.first + state.stretches.len();
        let total = state.total;
        while let Some(at) = state.waiting.iter().position(|w| Some(w.next_stretch) == total) {
            let done = state.waiting.swap_remove(at);
            state.finished.push((done.index, done.run));
            shared.changed.notify_all();
        }
        let ready = state.waiting.iter().enumerate().filter(|(_, w)| w.next_stretch < end);
        let behind = ready.min_by_key(|(_, w)| (w.next_stretch, w.index)).map(|(at, _)| at);
        let Some(at) = behind else {
            if state.waiting.is_empty() && state.busy.is_empty() {
                return;
            }
            state = shared.wait(state);
            continue;
        };
        let mut job = state.waiting.swap_remove(at);
        let number = job.next_stretch;
        let stretch = Arc::clone(&state.stretches[number - state.first]);
        state.busy.push(number);
        drop(state);
        let before = job.run.instructions();
        let result = stretch.iter().try_for_each(|piece| job.run.take(piece));
        drop(stretch);
        state = shared.lock();
        let at = state.busy.iter().position(|&n| n == number).expect("it was pushed above");
        state.busy.swap_remove(at);
        state.instructions += job.run.instructions() - before;
        if let Err(error) = result {
            state.failure.get_or_insert(os_failure(&job.run, error));
        }
        job.next_stretch += 1;
        state.waiting.push(job);
        state.drop_seen();
        shared.changed.notify_all();
    }
}

/// Cuts a source into stretches of decoded pieces, as a schedule says.
pub(crate) struct StretchReader<'a> {
    source: &'a mut dyn Source,
    decoder: BlockDecoder,
    blocks: Vec<Arc<DecodedBlock>>,
    predictors: Predictors,
    schedule: Schedule,
    /// Instructions that the program has executed, gaps included.
    position: u64,
    /// What is done now …
    phase: Phase,
    /// … up to this position.
    until: u64,
    /// What is left of a slice at a cut.
    rest: Option<Slice>,
    /// Pages in memory, where what is passed over is to be followed …
    touched: Option<Touched>,
    /// … and the blocks whose code was.
    executed: Vec<bool>,
    ended: bool,
    windows: u64,
    measured: u64,
    /// The window under way has instructions.
    counted: bool,
    /// Threads that have run and not ended.
    threads: BTreeSet<ThreadId>,
}

impl<'a> StretchReader<'a> {
    /// Of `source`, whose branches `predictors` predict for some runs.
    pub(crate) fn new(
        source: &'a mut dyn Source,
        limits: &Limits,
        seed: u64,
        predictors: Predictors,
    ) -> Self {
        let schedule = Schedule::new(limits, source.info(), seed);
        Self {
            source,
            decoder: BlockDecoder::default(),
            blocks: Vec::new(),
            predictors,
            schedule,
            position: 0,
            phase: Phase::Pass,
            until: 0,
            rest: None,
            touched: (limits.skip > 0 || limits.sampling.is_some()).then(Touched::default),
            executed: Vec::new(),
            ended: false,
            windows: 0,
            measured: 0,
            counted: false,
            threads: BTreeSet::new(),
        }
    }

    /// What was measured of what has been read.
    pub(crate) fn summary(&self) -> Sampled {
        self.schedule.summary(self.position, self.windows, self.measured)
    }

    /// The next stretch; `None` at the end.
    pub(crate) fn next_stretch(&mut self) -> Result<Option<Vec<Piece>>, TraceError> {
        let mut pieces = Vec::new();
        let (mut simulated, mut passed) = (0, 0);
        while simulated < STRETCH && passed < PASSED && !self.ended {
            if self.position >= self.until {
                self.enter(&mut pieces);
                continue;
            }
            let item = match self.rest.take() {
                Some(slice) => Some(Item::Slice(slice)),
                None => self.source.next_item()?,
            };
            match item {
                None => self.ended = true,
                Some(Item::Define { block, .. }) => {
                    let block = Arc::new(self.decoder.decode(&block));
                    self.blocks.push(Arc::clone(&block));
                    self.executed.push(false);
                    pieces.push(Piece::Define(block));
                }
                Some(Item::Event(Event::Gap { instructions })) => {
                    self.position = self.position.saturating_add(instructions);
                    if instructions > 0 {
                        // Even if what comes next is all warmed or run, a part has been passed over.
                        self.predictors.drain();
                        pieces.push(Piece::Phase { phase: Phase::Pass, at: self.position });
                    }
                    self.schedule.begin_segment(self.position);
                    self.until = self.position;
                }
                Some(Item::Event(event)) => {
                    self.show_touched(&mut pieces);
                    if let Some(touched) = &mut self.touched {
                        touched.apply(&event);
                    }
                    if let Event::ThreadExit { thread } = event {
                        self.threads.remove(&thread);
                    }
                    if is_call(&event) {
                        self.predictors.drain();
                    }
                    pieces.push(Piece::Event(event));
                }
                Some(Item::Slice(slice)) => {
                    let (slice, n) = self.cut(slice);
                    self.position += n;
                    if self.threads.insert(slice.thread) {
                        self.schedule.have_threads(self.threads.len());
                    }
                    if let Some(touched) = &mut self.touched {
                        follow(&slice, &self.blocks, &mut self.executed, touched);
                    }
                    if self.phase == Phase::Pass {
                        passed += n;
                        continue;
                    }
                    simulated += n;
                    if self.phase == Phase::Measured {
                        self.measured += n;
                        self.windows += u64::from(!self.counted);
                        self.counted = true;
                    }
                    pieces.extend(self.predictors.predict(&slice, &self.blocks));
                    pieces.push(Piece::Slice(slice));
                }
            }
        }
        if self.ended {
            self.show_touched(&mut pieces);
        }
        Ok((!pieces.is_empty() || !self.ended).then_some(pieces))
    }

    /// Begins the phase that is due.
    fn enter(&mut self, pieces: &mut Vec<Piece>) {
        if self.phase == Phase::Pass {
            self.schedule.end_pass(self.position);
        }
        let Some((phase, until)) = self.schedule.at(self.position) else {
            self.ended = true;
            return;
        };
        self.show_touched(pieces);
        if !phase.has_clock() {
            self.predictors.drain();
        }
        (self.phase, self.until, self.counted) = (phase, until, false);
        pieces.push(Piece::Phase { phase, at: self.position });
    }

    /// Lets runs have in memory what was touched where they were not run; elsewhere they touch it
    /// themselves.
    fn show_touched(&mut self, pieces: &mut Vec<Piece>) {
        if let Some(touched) = &mut self.touched {
            let is_passing = self.phase == Phase::Pass;
            pieces.extend(touched.take().filter(|_| is_passing).map(Piece::Event));
        }
    }

    /// The part of a slice that belongs to the phase, at least a block, and its instructions; keeps the
    /// rest.
    fn cut(&mut self, mut slice: Slice) -> (Slice, u64) {
        let enough = self.until - self.position;
        let (taken, accesses, n) =
            first_blocks(&slice.blocks, enough, |id| &self.blocks[id as usize]);
        if taken < slice.blocks.len() {
            let rest = Slice {
                thread: slice.thread,
                blocks: slice.blocks.split_off(taken),
                addresses: slice.addresses.split_off(accesses),
            };
            self.rest = Some(rest);
        }
        (slice, n)
    }
}

/// Notes the pages that a slice touches.
fn follow(
    slice: &Slice,
    blocks: &[Arc<DecodedBlock>],
    executed: &mut [bool],
    touched: &mut Touched,
) {
    let mut addresses = slice.addresses.iter();
    for &id in &slice.blocks {
        let block = &*blocks[id as usize];
        if !std::mem::replace(&mut executed[id as usize], true) {
            block.lines.iter().for_each(|&line| touched.touch(line, false));
        }
        for (access, &address) in block.accesses.iter().zip(&mut addresses) {
            touched.touch(address, access.store);
            let last = address.wrapping_add(u64::from(access.size.max(1)) - 1);
            if address >> LINE_SHIFT != last >> LINE_SHIFT {
                touched.touch(last, access.store);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sampling::{Places, Sampling};
    use crate::tests::testing::{DATA, Panicking, Pieces, Scenario, branching_block, scheme};

    #[test]
    fn a_gap_is_passed_over_even_if_a_whole_segment_is_warmed() {
        let slice =
            || Item::Slice(Slice { thread: 0, blocks: vec![0; 500], addresses: Vec::new() });
        let gap = |instructions| Item::Event(Event::Gap { instructions });
        // The third segment adjoins the second.
        let items = vec![branching_block(0), slice(), gap(9_000), slice(), gap(0), slice()];
        let mut source = Pieces::new(items, 3_000, Some((9_000, 1_000)));
        let sampling = Sampling { windows: 3, window: 100, warmup: 5_000, places: Places::Spread };
        let limits = Limits { sampling: Some(sampling), ..Limits::default() };
        let mut reader = StretchReader::new(&mut source, &limits, 1, Predictors::default());
        let mut phases = Vec::new();
        while let Some(pieces) = reader.next_stretch().unwrap() {
            phases.extend(pieces.into_iter().filter_map(|piece| match piece {
                Piece::Phase { phase, at } => Some((phase, at)),
                _ => None,
            }));
        }
        let starts = [Phase::Pass, Phase::Measured].map(|phase| {
            let its = phases.iter().filter(|&&(other, _)| other == phase);
            its.map(|&(_, at)| at).collect::<Vec<_>>()
        });
        assert_eq!(starts, [vec![10_000], vec![900, 10_900, 11_900]], "{phases:?}");
    }

    #[test]
    fn a_reader_that_panics_ends_the_simulation_with_what_it_left() {
        let run = Scenario::new(scheme(4, &[])).start(&[(DATA, 1 << 12)], true);
        let open =
            flatwalk_workloads::open("gups", &flatwalk_workloads::Arguments::new(16 << 20, 0))
                .unwrap();
        let source = Box::new(Panicking(open.info().clone()));
        let limits = Limits { skip: 0, warmup: 0, instructions: Some(1), sampling: None };
        let go_on = &mut |_| ControlFlow::Continue(());
        let simulated = catch_unwind(AssertUnwindSafe(|| {
            simulate(source, vec![run.configuration], &limits, 0, 1, go_on).map(drop)
        }));
        assert_eq!(simulated.unwrap_err().downcast_ref(), Some(&Panicking::LEFT));
    }
}
