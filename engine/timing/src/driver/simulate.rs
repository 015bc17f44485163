//! One trace through many runs: read and decoded once, simulated on all cores.
//!
//! A producer reads the trace and cuts it into windows. Workers take a run and the next window that
//! it has not seen, always the run that is furthest behind. A window is dropped when every run has
//! seen it, and the producer waits when too many are alive: memory is bounded however long the trace.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatwalk_os::OsError;
use flatwalk_trace::{Item, Slice, Source, SourceInfo, TraceError};

use crate::ConfigError;
use crate::core::decode::BlockDecoder;
use crate::driver::run::{Piece, Run, RunConfiguration};
use crate::report::result::RunResult;

/// Which part of the trace is simulated, in instructions of all threads together. Cuts are made
/// between blocks, so that a part may be longer by less than a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Left out at the start; changes of the address space are carried out.
    pub skip: u64,
    /// Simulated, but not counted.
    pub warmup: u64,
    /// Simulated and counted after that; `None`: all.
    pub instructions: Option<u64>,
}

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
    /// In the order of the configurations.
    pub runs: Vec<RunResult>,
}

/// Instructions per window, about.
const WINDOW: u64 = 1 << 19;
/// Windows alive at most.
const ALIVE: usize = 4;

/// A run waiting for a worker.
struct Waiting {
    index: usize,
    next_window: usize,
    run: Box<Run>,
}

#[derive(Default)]
struct State {
    windows: VecDeque<Arc<Vec<Piece>>>,
    /// Number of the first window in `windows`.
    first: usize,
    /// Windows in all, once the trace has ended.
    total: Option<usize>,
    waiting: Vec<Waiting>,
    /// Window that each busy run is at.
    busy: Vec<usize>,
    finished: Vec<(usize, Box<Run>)>,
    /// Instructions simulated, summed over runs.
    instructions: u64,
    failure: Option<SimulateError>,
}

impl State {
    /// Drops the windows that every run has seen.
    fn drop_seen(&mut self) {
        let waiting = self.waiting.iter().map(|w| w.next_window);
        let needed = waiting.chain(self.busy.iter().copied()).min();
        let Some(needed) = needed else {
            self.windows.clear();
            return;
        };
        while self.first < needed && !self.windows.is_empty() {
            self.windows.pop_front();
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
}

/// Runs `source` through every configuration on `threads` worker threads (0: one per core).
/// `progress` is called about ten times a second with the instructions that an average run has done; when
/// it breaks, everything stops.
///
/// # Errors
/// See [`SimulateError`].
pub fn simulate(
    mut source: Box<dyn Source>,
    configurations: Vec<RunConfiguration>,
    limits: Limits,
    seed: u64,
    threads: usize,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Simulation, SimulateError> {
    let info = source.info().clone();
    let runs = configurations.len();
    let mut state = State::default();
    for (index, configuration) in configurations.into_iter().enumerate() {
        let (scheme, machine) =
            (configuration.scheme.name.clone(), configuration.machine.name.clone());
        let run = Run::new(configuration, &info, limits.warmup, seed)
            .map_err(|error| SimulateError::Configuration { scheme, machine, error })?;
        state.waiting.push(Waiting { index, next_window: 0, run: Box::new(run) });
    }
    let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads }.clamp(1, runs.max(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(error) = produce(&mut *source, limits, &shared) {
                shared.fail(error);
            }
        });
        for _ in 0..threads {
            scope.spawn(|| work(&shared));
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
    if let Some(failure) = state.failure {
        return Err(failure);
    }
    state.finished.sort_by_key(|&(index, _)| index);
    let results = state.finished.iter().map(|(_, run)| RunResult::new(run, &info.name, seed));
    let instructions = state.finished.first().map_or(0, |(_, run)| run.instructions());
    Ok(Simulation { runs: results.collect(), instructions, info })
}

/// Reads the trace into windows.
fn produce(source: &mut dyn Source, limits: Limits, shared: &Shared) -> Result<(), SimulateError> {
    let mut reader = WindowReader::new(source, limits);
    loop {
        let window = reader.next_window()?;
        let mut state = shared.lock();
        while state.windows.len() >= ALIVE && state.failure.is_none() {
            state = shared.wait(state);
        }
        if state.failure.is_some() {
            return Ok(());
        }
        let ended = window.is_none();
        state.windows.extend(window.map(Arc::new));
        if ended {
            state.total = Some(state.first + state.windows.len());
        }
        shared.changed.notify_all();
        if ended {
            return Ok(());
        }
    }
}

/// Takes runs a window further until all have seen all.
fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.failure.is_some() {
            return;
        }
        let end = state.first + state.windows.len();
        let total = state.total;
        while let Some(at) = state.waiting.iter().position(|w| Some(w.next_window) == total) {
            let done = state.waiting.swap_remove(at);
            state.finished.push((done.index, done.run));
            shared.changed.notify_all();
        }
        let ready = state.waiting.iter().enumerate().filter(|(_, w)| w.next_window < end);
        let behind = ready.min_by_key(|(_, w)| (w.next_window, w.index)).map(|(at, _)| at);
        let Some(at) = behind else {
            if state.waiting.is_empty() && state.busy.is_empty() {
                return;
            }
            state = shared.wait(state);
            continue;
        };
        let mut job = state.waiting.swap_remove(at);
        let number = job.next_window;
        let window = Arc::clone(&state.windows[number - state.first]);
        state.busy.push(number);
        drop(state);
        let before = job.run.instructions();
        let result = window.iter().try_for_each(|piece| job.run.take(piece));
        drop(window);
        state = shared.lock();
        let at = state.busy.iter().position(|&n| n == number).expect("it was pushed above");
        state.busy.swap_remove(at);
        state.instructions += job.run.instructions() - before;
        if let Err(error) = result {
            let scheme = job.run.configuration.scheme.name.clone();
            let instructions = job.run.instructions();
            state.failure.get_or_insert(SimulateError::Os { scheme, instructions, error });
        }
        job.next_window += 1;
        state.waiting.push(job);
        state.drop_seen();
        shared.changed.notify_all();
    }
}

/// Cuts a source into windows of decoded pieces.
pub(crate) struct WindowReader<'a> {
    source: &'a mut dyn Source,
    decoder: BlockDecoder,
    /// Instructions and accesses of each block.
    sizes: Vec<(u32, u32)>,
    skip: u64,
    left: u64,
    ended: bool,
}

impl<'a> WindowReader<'a> {
    pub(crate) fn new(source: &'a mut dyn Source, limits: Limits) -> Self {
        let left = limits.instructions.map_or(u64::MAX, |n| n.saturating_add(limits.warmup));
        Self {
            source,
            decoder: BlockDecoder::default(),
            sizes: Vec::new(),
            skip: limits.skip,
            left,
            ended: false,
        }
    }

    /// The next window; `None` at the end.
    pub(crate) fn next_window(&mut self) -> Result<Option<Vec<Piece>>, TraceError> {
        let mut window = Vec::new();
        let mut instructions = 0;
        while instructions < WINDOW && self.left > 0 && !self.ended {
            match self.source.next_item()? {
                None => self.ended = true,
                Some(Item::Define { block, .. }) => {
                    self.sizes.push((block.instructions.len() as u32, block.accesses.len() as u32));
                    window.push(Piece::Define(Arc::new(self.decoder.decode(&block))));
                }
                Some(Item::Event(event)) => window.push(Piece::Event(event)),
                Some(Item::Slice(slice)) => {
                    let (slice, n) = self.cut(slice);
                    instructions += n;
                    if !slice.blocks.is_empty() {
                        window.push(Piece::Slice(slice));
                    }
                }
            }
        }
        Ok((!window.is_empty()).then_some(window))
    }

    /// The part of a slice that is to be simulated, and its instructions.
    fn cut(&mut self, mut slice: Slice) -> (Slice, u64) {
        let sizes = &self.sizes;
        let count = |blocks: &[u32], enough: u64| {
            let (mut n, mut taken, mut accesses) = (0u64, 0, 0);
            for &id in blocks {
                if n >= enough {
                    break;
                }
                let (instructions, used) = sizes[id as usize];
                n += u64::from(instructions);
                accesses += used as usize;
                taken += 1;
            }
            (n, taken, accesses)
        };
        if self.skip > 0 {
            let (n, blocks, accesses) = count(&slice.blocks, self.skip);
            self.skip = self.skip.saturating_sub(n);
            slice.blocks.drain(..blocks);
            slice.addresses.drain(..accesses);
        }
        let (n, blocks, accesses) = count(&slice.blocks, self.left);
        slice.blocks.truncate(blocks);
        slice.addresses.truncate(accesses);
        self.left = self.left.saturating_sub(n);
        (slice, n)
    }
}
