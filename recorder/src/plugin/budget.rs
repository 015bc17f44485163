//! How many instructions are yet to be skipped, to be recorded and to be passed over between segments, in
//! the whole process. Threads take them in grants, so that they seldom meet here.

use std::sync::atomic::Ordering;

use crate::channel::region::Slot;
use crate::plugin::connection::region;
use crate::plugin::lock::Lock;
use crate::plugin::options::Options;
use crate::plugin::sample::Sample;

/// A budget without end.
pub const UNLIMITED: i64 = i64::MAX / 2;
/// Instructions that a thread takes off the common budget at a time, at most.
pub const GRANT: i64 = 1 << 16;
/// All threads together may hold one of so many parts of what is left: when that is spent, what a thread holds that
/// gets no processor just then is lost to the segment.
const HELD: i64 = 64;

/// Instructions yet to skip, to record and to pass over.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    skip: i64,
    /// Nothing has been recorded yet, nor could it be: what is given back to `skip` counts.
    is_skipping: bool,
    /// Of the segment under way, if it is a sample.
    record: i64,
    gap: i64,
    /// A gap is under way, or pauses: what is given back to `gap` counts.
    is_in_gap: bool,
    /// What the limit leaves for what comes after `record` and `gap`.
    later: i64,
    sample: Option<Sample>,
}

/// A part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Part {
    /// What is to be skipped.
    Skip = 1,
    /// What is to be recorded.
    Record,
    /// What lies between two segments.
    Gap,
}

/// In [`Slot::part`]: what is left there is of no part.
const NO_PART: u32 = 0;

impl Part {
    fn of(slot: u32) -> Option<Part> {
        [Part::Skip, Part::Record, Part::Gap].into_iter().find(|&part| part as u32 == slot)
    }
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
            is_skipping: options.skip > 0,
            record: 0,
            gap: 0,
            is_in_gap: false,
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

    /// What a thread did not spend of its grant from `part` is there for others. Of a part that is
    /// over nobody wants any more.
    fn take_back(&mut self, part: Part, unspent: i64) {
        let counts = match part {
            Part::Skip => self.is_skipping,
            Part::Record => true,
            Part::Gap => self.is_in_gap,
        };
        let available = self.part(part);
        if counts && *available < UNLIMITED {
            *available += unspent.max(0);
        }
    }
}

static BUDGET: Lock<Budget> = Lock::new(Budget {
    skip: 0,
    is_skipping: false,
    record: UNLIMITED,
    gap: 0,
    is_in_gap: false,
    later: 0,
    sample: None,
});

/// At installation: what there is to record.
pub fn set_up(options: &Options) {
    BUDGET.renew(Budget::of(options));
}

/// In a forked child, whose parent had `parent` left: what is to be skipped it shares with its
/// parent; what is to be recorded is its own.
pub fn renew(options: &Options, parent: Budget) {
    let Budget { skip, is_skipping, .. } = parent;
    BUDGET.renew(Budget { skip, is_skipping, ..Budget::of(options) });
}

/// What is left, grants that are not yet spent included where a child shares with its parent.
pub fn left(slots: &[Slot]) -> Budget {
    BUDGET.with(|budget| {
        let mut left = *budget;
        for slot in slots {
            if Part::of(slot.part.load(Ordering::Relaxed)) == Some(Part::Skip) {
                left.take_back(Part::Skip, slot.left.load(Ordering::Relaxed));
            }
        }
        left
    })
}

/// Whether instructions are yet to be skipped.
pub fn has_to_skip() -> bool {
    BUDGET.with(|budget| budget.is_skipping)
}

/// All that was to be skipped has been.
pub fn end_skip() {
    BUDGET.with(|budget| (budget.skip, budget.is_skipping) = (0, false));
}

/// Whether a part is not at its end, now that all threads have given back what they did not spend:
/// what is less is not worth another reset.
pub fn remains(part: Part) -> bool {
    BUDGET.with(|budget| *budget.part(part) > GRANT / 16)
}

/// Whether the next segment has yet to begin.
pub fn is_in_gap() -> bool {
    BUDGET.with(|budget| budget.is_in_gap)
}

/// The number of the segment that runs or comes next, if it is a sample.
pub fn segment() -> Option<u64> {
    BUDGET.with(|budget| budget.sample.map(|sample| sample.index()))
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
        budget.is_in_gap = true;
        Next::Gap(step.thinned)
    })
}

/// A gap is at its end: false if the limit was reached.
pub fn begin_segment() -> bool {
    BUDGET.with(|budget| {
        budget.is_in_gap = false;
        budget.begin()
    })
}

/// Takes instructions off the gap that were not granted before.
pub fn pass(instructions: i64) {
    BUDGET.with(|budget| budget.gap -= instructions);
}

/// Takes instructions off the budget for the slot's thread; false if it is spent.
pub fn grant(slot: &Slot, part: Part) -> bool {
    let left = slot.left.load(Ordering::Relaxed);
    let threads = region().used_slots().len().max(1) as i64;
    let (granted, part) = BUDGET.with(|budget| {
        let available = budget.part(part);
        if *available >= UNLIMITED {
            return (UNLIMITED, NO_PART);
        }
        let share = *available / (HELD * threads);
        let granted = (*available).min(GRANT.min(share).max(-left)).max(0);
        *available -= granted;
        (granted, part as u32)
    });
    slot.left.store(left.max(-UNLIMITED) + granted, Ordering::Relaxed);
    slot.part.store(part, Ordering::Relaxed);
    left + granted >= 0
}

/// Gives back what the slot's thread did not spend of its grant, whatever part that is of: its next block
/// asks anew, since it has an instruction at least.
pub fn give_back(slot: &Slot) {
    let unspent = slot.left.swap(0, Ordering::Relaxed);
    if let Some(part) = Part::of(slot.part.swap(NO_PART, Ordering::Relaxed)) {
        BUDGET.with(|budget| budget.take_back(part, unspent));
    }
}

/// Whether what the slot's thread may execute was taken off the budget.
pub fn has_grant(slot: &Slot) -> bool {
    Part::of(slot.part.load(Ordering::Relaxed)).is_some()
}

/// The slot's thread may execute so many instructions that are of no part of the budget.
pub fn lend(slot: &Slot, instructions: i64) {
    give_back(slot);
    slot.left.store(instructions, Ordering::Relaxed);
}
