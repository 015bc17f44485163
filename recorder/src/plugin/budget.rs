//! How many instructions are yet to be skipped, to be recorded and to be passed over between segments, in
//! the whole process. Threads take them in grants, so that they seldom meet here.

use std::sync::atomic::Ordering;

use crate::channel::region::Slot;
use crate::plugin::lock::Lock;
use crate::plugin::options::Options;
use crate::plugin::sample::Sample;

/// A budget without end.
pub const UNLIMITED: i64 = i64::MAX / 2;
/// Instructions that a thread takes off the common budget at a time.
pub const GRANT: i64 = 1 << 16;

/// Instructions yet to skip, to record and to pass over.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    skip: i64,
    /// Of the segment under way, if it is a sample.
    record: i64,
    gap: i64,
    /// What the limit leaves for what comes after `record` and `gap`.
    later: i64,
    sample: Option<Sample>,
}

/// A part of the budget.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// What is to be skipped.
    Skip,
    /// What is to be recorded.
    Record,
    /// What lies between two segments.
    Gap,
}

/// What comes after a segment.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// Nothing: the limit is reached.
    End,
    /// It goes on: another thread was here before.
    Same,
    /// What is to be thought of the segments so far (see [`Step::thinned`]), and a gap, or the
    /// segment with this number.
    Gap(Option<(u64, u64)>),
    /// As above.
    Segment(Option<(u64, u64)>, u64),
}

impl Budget {
    /// What the user gave a process.
    fn of(options: &Options) -> Budget {
        let clamp = |instructions| i64::try_from(instructions).unwrap_or(UNLIMITED).min(UNLIMITED);
        let mut budget = Budget {
            skip: clamp(options.skip),
            record: 0,
            gap: 0,
            later: options.limit.map_or(UNLIMITED, clamp),
            sample: options
                .segment
                .map(|length| Sample::new(options.windows, length, options.seed)),
        };
        budget.begin();
        budget
    }

    /// Begins a segment, or all that there is; false if the limit was reached.
    fn begin(&mut self) -> bool {
        self.record = self.take(self.sample.map_or(UNLIMITED, |sample| sample.length as i64));
        self.record > 0
    }

    /// So much of what the limit leaves, if it leaves so much.
    fn take(&mut self, instructions: i64) -> i64 {
        let taken = instructions.clamp(0, self.later);
        if self.later < UNLIMITED {
            self.later -= taken;
        }
        taken
    }

    fn part(&mut self, part: Part) -> &mut i64 {
        match part {
            Part::Skip => &mut self.skip,
            Part::Record => &mut self.record,
            Part::Gap => &mut self.gap,
        }
    }
}

static BUDGET: Lock<Budget> =
    Lock::new(Budget { skip: 0, record: UNLIMITED, gap: 0, later: 0, sample: None });

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

/// Whether instructions are yet to be passed over before the next segment.
pub fn is_in_gap() -> bool {
    left().gap > 0
}

/// The number of the segment that runs or comes next, if it is a sample.
pub fn segment() -> Option<u64> {
    left().sample.map(|sample| sample.index())
}

/// All that there was to record is granted.
pub fn end_segment() -> Next {
    BUDGET.with(|budget| {
        if budget.record > 0 {
            return Next::Same;
        }
        let Some(sample) = &mut budget.sample else { return Next::End };
        if budget.later == 0 {
            return Next::End;
        }
        let step = sample.advance();
        if step.gap == 0 {
            budget.begin();
            return Next::Segment(step.thinned, step.index);
        }
        budget.gap = budget.take(i64::try_from(step.gap).unwrap_or(UNLIMITED).min(UNLIMITED - 1));
        Next::Gap(step.thinned)
    })
}

/// A gap is at its end: false if the limit was reached.
pub fn begin_segment() -> bool {
    BUDGET.with(Budget::begin)
}

/// Takes instructions off the gap that were not granted before.
pub fn pass(instructions: i64) {
    BUDGET.with(|budget| budget.gap -= instructions);
}

/// Takes instructions off the budget for the slot's thread; false if it is spent.
pub fn grant(slot: &Slot, part: Part) -> bool {
    let left = slot.left.load(Ordering::Relaxed);
    let granted = BUDGET.with(|budget| {
        let available = budget.part(part);
        if *available >= UNLIMITED {
            return UNLIMITED;
        }
        let granted = (*available).min(GRANT.max(-left)).max(0);
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
