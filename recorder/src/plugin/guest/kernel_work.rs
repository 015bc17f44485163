//! How much the kernel executes for the program.

use std::sync::atomic::{AtomicU64, Ordering};

/// Instructions of the kernel so far, and which of them were repetitions of a string instruction; QEMU
/// itself adds to these.
static EXECUTED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The words that QEMU adds to: the kernel's instructions, and the repetitions among them.
pub fn counters() -> [*mut u64; 2] {
    [EXECUTED[0].as_ptr(), EXECUTED[1].as_ptr()]
}

/// The kernel's instructions so far, and the repetitions among them.
pub fn executed() -> [u64; 2] {
    [&EXECUTED[0], &EXECUTED[1]].map(|count| count.load(Ordering::Relaxed))
}

/// The kernel's work for the program: what it executes between two returns to user mode is cut where it
/// turns to another thread. The program's are the pieces that begin or end in it.
#[derive(Debug, Default)]
pub struct KernelWork {
    /// Where the piece under way began, and whether the program ran before.
    since: [u64; 2],
    is_own: bool,
    /// Of all pieces since recording began.
    pub spent: [u64; 2],
}

impl KernelWork {
    /// The program's work begins here.
    pub fn begin(now: [u64; 2]) -> KernelWork {
        KernelWork { since: now, is_own: true, spent: [0; 2] }
    }

    /// A piece ends, with the program going on in user mode or not.
    pub fn cut(&mut self, now: [u64; 2], goes_on: bool) {
        if self.is_own || goes_on {
            for (spent, (now, since)) in self.spent.iter_mut().zip(now.iter().zip(self.since)) {
                *spent += now - since;
            }
        }
        self.since = now;
        self.is_own = goes_on;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_works_for_the_program_before_and_after_it_runs() {
        let mut work = KernelWork::begin([100, 10]);
        // A system call of the program's, which sleeps; another thread's; what follows until the
        // program goes on.
        for (now, goes_on) in [([150, 11], false), ([950, 500], false), ([960, 503], true)] {
            work.cut(now, goes_on);
        }
        assert_eq!(work.spent, [60, 4]);
        // An interrupt that turns to another program, and that program's own.
        for (now, goes_on) in [([1000, 503], false), ([2000, 600], false), ([2001, 600], false)] {
            work.cut(now, goes_on);
        }
        assert_eq!(work.spent, [100, 4]);
    }
}
