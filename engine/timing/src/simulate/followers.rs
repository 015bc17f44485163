//! Several followers of one source: it is read once, and each takes all of it, on all cores of this machine.
//!
//! A producer reads the source and cuts it into stretches. Workers take a follower and the next stretch that
//! it has not seen, always the follower that is furthest behind. A stretch is dropped when every one has
//! seen it, and the producer waits when too many are alive: memory is bounded however long the source.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::error::SimulateError;
use crate::simulate::workers::Workers;

/// What takes a source's stretches, one after the other.
pub(super) trait Follower: Send {
    /// A part of the source.
    type Stretch: Send + Sync;

    /// Takes the next stretch.
    ///
    /// # Errors
    /// See [`SimulateError`]; [`SimulateError::Stopped`] once `progress` says so.
    fn follow(&mut self, stretch: &Self::Stretch, progress: &Progress)
    -> Result<(), SimulateError>;
}

/// Where followers say how far they are, and learn that they are to stop.
#[derive(Debug, Default)]
pub(super) struct Progress {
    instructions: AtomicU64,
    is_stopped: AtomicBool,
}

impl Progress {
    /// So many more instructions have been simulated.
    ///
    /// # Errors
    /// [`SimulateError::Stopped`] if this was for nothing: something has failed, or the caller wants no more.
    pub(super) fn advance(&self, instructions: u64) -> Result<(), SimulateError> {
        self.instructions.fetch_add(instructions, Ordering::Relaxed);
        if self.is_stopped.load(Ordering::Relaxed) { Err(SimulateError::Stopped) } else { Ok(()) }
    }
}

/// A follower waiting for a worker.
struct Waiting<F> {
    index: usize,
    next_stretch: usize,
    follower: F,
}

struct State<F: Follower> {
    stretches: VecDeque<Arc<F::Stretch>>,
    /// Number of the first of `stretches`.
    first: usize,
    /// Stretches in all, once the source has ended.
    total: Option<usize>,
    waiting: Vec<Waiting<F>>,
    /// Stretch that each busy follower is at.
    busy: Vec<usize>,
    finished: Vec<(usize, F)>,
    failure: Option<SimulateError>,
    /// What a thread left with that panicked.
    panic: Option<Box<dyn Any + Send>>,
}

impl<F: Follower> State<F> {
    /// Drops the stretches that every follower has seen.
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

struct Shared<F: Follower> {
    state: Mutex<State<F>>,
    changed: Condvar,
    progress: Progress,
    /// Stretches alive at most.
    alive: usize,
}

impl<F: Follower> Shared<F> {
    /// A panic in one thread ends the scope anyway; the others may see its state.
    fn lock(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, State<F>>) -> MutexGuard<'a, State<F>> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: SimulateError) {
        self.lock().failure.get_or_insert(failure);
        self.progress.is_stopped.store(true, Ordering::Relaxed);
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

/// Lets all `followers` take what `produce` gives, until that is nothing, on the threads of `workers`; at
/// most `alive` stretches are in memory. `progress` is called about ten times a second with the
/// instructions that an average follower has done; when it breaks, everything stops. Returns the
/// followers, in their order.
///
/// # Errors
/// See [`SimulateError`].
pub(super) fn follow_all<F: Follower>(
    followers: Vec<F>,
    produce: impl FnMut() -> Result<Option<F::Stretch>, SimulateError> + Send,
    alive: usize,
    workers: Workers,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Vec<F>, SimulateError> {
    let count = followers.len();
    if count == 0 {
        return Ok(followers);
    }
    let waiting = followers.into_iter().enumerate();
    let waiting = waiting.map(|(index, follower)| Waiting { index, next_stretch: 0, follower });
    let state = State {
        stretches: VecDeque::new(),
        first: 0,
        total: None,
        waiting: waiting.collect(),
        busy: Vec::new(),
        finished: Vec::new(),
        failure: None,
        panic: None,
    };
    let (changed, own) = (Condvar::new(), Progress::default());
    let shared = Shared { state: Mutex::new(state), changed, progress: own, alive };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            shared.guard(|| {
                if let Err(error) = read(produce, &shared) {
                    shared.fail(error);
                }
            });
        });
        for _ in 0..workers.count(count) {
            scope.spawn(|| workers.surround(|| shared.guard(|| work(&shared))));
        }
        let mut state = shared.lock();
        while state.failure.is_none() && state.finished.len() < count {
            drop(state);
            let done = shared.progress.instructions.load(Ordering::Relaxed);
            if progress(done / count as u64).is_break() {
                shared.fail(SimulateError::Stopped);
            }
            state = shared.lock();
            if state.failure.is_none() && state.finished.len() < count {
                let tenth = Duration::from_millis(100);
                let waited = shared.changed.wait_timeout_while(state, tenth, |s| {
                    s.failure.is_none() && s.finished.len() < count
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
    Ok(state.finished.into_iter().map(|(_, follower)| follower).collect())
}

/// Reads the source into stretches.
fn read<F: Follower>(
    mut produce: impl FnMut() -> Result<Option<F::Stretch>, SimulateError>,
    shared: &Shared<F>,
) -> Result<(), SimulateError> {
    loop {
        let stretch = produce()?;
        let mut state = shared.lock();
        while state.stretches.len() >= shared.alive && state.failure.is_none() {
            state = shared.wait(state);
        }
        if state.failure.is_some() {
            return Ok(());
        }
        let ended = stretch.is_none();
        state.stretches.extend(stretch.map(Arc::new));
        if ended {
            state.total = Some(state.first + state.stretches.len());
        }
        shared.changed.notify_all();
        if ended {
            return Ok(());
        }
    }
}

/// Takes followers a stretch further until all have seen all.
fn work<F: Follower>(shared: &Shared<F>) {
    let mut state = shared.lock();
    loop {
        if state.failure.is_some() {
            return;
        }
        let end = state.first + state.stretches.len();
        let total = state.total;
        while let Some(at) = state.waiting.iter().position(|w| Some(w.next_stretch) == total) {
            let done = state.waiting.swap_remove(at);
            state.finished.push((done.index, done.follower));
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
        let result = job.follower.follow(&stretch, &shared.progress);
        drop(stretch);
        state = shared.lock();
        let at = state.busy.iter().position(|&n| n == number).expect("it was pushed above");
        state.busy.swap_remove(at);
        if let Err(error) = result {
            state.failure.get_or_insert(error);
            shared.progress.is_stopped.store(true, Ordering::Relaxed);
        }
        job.next_stretch += 1;
        state.waiting.push(job);
        state.drop_seen();
        shared.changed.notify_all();
    }
}
