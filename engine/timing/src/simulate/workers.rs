//! The threads that simulate.

/// What surrounds a thread's work, which it calls once.
pub type Around = fn(&mut (dyn FnMut() + Send));

/// How many threads simulate, and what surrounds the work of each.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// 0: one per core of this machine.
    pub threads: usize,
    /// For an embedder whose threads have to be known to it, as Python's.
    pub around: Around,
}

impl From<usize> for Workers {
    /// As many threads, with nothing around their work.
    fn from(threads: usize) -> Self {
        Self { threads, around: |work| work() }
    }
}

impl Workers {
    /// How many threads `pieces` of work take.
    pub(super) fn count(&self, pieces: usize) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.threads == 0 { cores() } else { self.threads };
        threads.clamp(1, pieces.max(1))
    }

    /// Does a thread's work on this thread.
    pub(super) fn surround(&self, work: impl FnOnce() + Send) {
        let mut work = Some(work);
        (self.around)(&mut || {
            if let Some(work) = work.take() {
                work();
            }
        });
    }
}
