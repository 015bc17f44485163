//! How many instructions are yet to be skipped and to be recorded, in the whole process. Threads take
//! them in grants, so that they seldom meet here.

use std::sync::atomic::Ordering;

use crate::channel::region::Slot;
use crate::plugin::lock::Lock;
use crate::plugin::options::Options;

/// A budget without end.
pub const UNLIMITED: i64 = i64::MAX / 2;
/// Instructions that a thread takes off the common budget at a time.
const GRANT: i64 = 1 << 16;

/// Instructions yet to skip and to record.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    skip: i64,
    record: i64,
}

/// A part of the budget.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// What is to be skipped.
    Skip,
    /// What is to be recorded.
    Record,
}

impl Budget {
    /// What the user gave a process.
    fn of(options: &Options) -> Budget {
        let clamp = |instructions| i64::try_from(instructions).unwrap_or(UNLIMITED).min(UNLIMITED);
        Budget { skip: clamp(options.skip), record: options.limit.map_or(UNLIMITED, clamp) }
    }

    fn part(&mut self, part: Part) -> &mut i64 {
        match part {
            Part::Skip => &mut self.skip,
            Part::Record => &mut self.record,
        }
    }
}

static BUDGET: Lock<Budget> = Lock::new(Budget { skip: 0, record: UNLIMITED });

/// At installation: what there is to record.
pub fn set_up(options: &Options) {
    BUDGET.renew(Budget::of(options));
}

/// In a forked child, whose parent had `parent` left: what is to be skipped it shares with its
/// parent; what is to be recorded is its own.
pub fn renew(options: &Options, parent: Budget) {
    BUDGET.renew(Budget { skip: parent.skip, ..Budget::of(options) });
}

/// What is left.
pub fn left() -> Budget {
    BUDGET.with(|budget| *budget)
}

/// Whether instructions are yet to be skipped.
pub fn has_to_skip() -> bool {
    left().skip > 0
}

/// Takes instructions off the budget for the slot's thread; false if it is spent.
pub fn grant(slot: &Slot, part: Part) -> bool {
    let left = slot.left.load(Ordering::Relaxed);
    let granted = BUDGET.with(|budget| {
        let available = budget.part(part);
        if *available >= UNLIMITED {
            return UNLIMITED;
        }
        let granted = (*available).min(GRANT.max(-left));
        *available -= granted;
        granted
    });
    slot.left.store(left.max(-UNLIMITED) + granted, Ordering::Relaxed);
    left + granted >= 0
}

/// Gives back what a thread did not spend of its grant.
pub fn give_back(part: Part, unspent: i64) {
    BUDGET.with(|budget| {
        let available = budget.part(part);
        if *available < UNLIMITED {
            *available += unspent.max(0);
        }
    });
}
