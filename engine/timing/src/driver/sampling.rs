//! Which part of a source is measured, and what is done with the rest.
//!
//! [`Limits`] ask for one part, for windows spread over a longer one (as Wunderlich et al., "SMARTS", ISCA
//! 2003, but each at random in its stretch), or for windows at given places (as SimPoint chooses them:
//! Sherwood et al., ASPLOS 2002). A [`Schedule`] follows a source and says at each of its
//! instructions what is to be done there, up to where. Positions count the instructions of all threads
//! together, gaps of a sampled recording included.

use flatwalk_os::Random;
use flatwalk_trace::SourceInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::driver::cores::QUANTUM;
use crate::driver::piece::Phase;

/// Windows of a part of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// How many. A sampled recording has one in each of its segments instead.
    pub windows: u64,
    /// Instructions of each.
    pub window: u64,
    /// Instructions that are warmed before each, the last [`DETAILED`] of them, or more where there
    /// are several threads, with the clock running.
    pub warmup: u64,
    /// So many instructions are warmed or measured before windows have no more warm-up than that:
    /// those before the first ones reach back further, as far as the window before. Caches hold
    /// nothing at first, and what they keep over gaps takes longer to come than
    /// [`Sampling::warmup`]. A sampled recording has no more than its segments.
    #[serde(default)]
    pub filling: u64,
    /// Instructions behind each that run on with the clock, uncounted, so that other programs of a mix have
    /// company; a recording has none.
    #[serde(default)]
    pub after: u64,
    /// Where they are.
    #[serde(default)]
    pub places: Places,
}

impl Sampling {
    /// Windows begin at multiples of this.
    fn grain(&self) -> u64 {
        if self.places == Places::Aligned { self.window } else { 1 }
    }

    /// Where the first window may begin if so many instructions are left out.
    fn begin(&self, skip: u64) -> u64 {
        skip.div_ceil(self.grain()).saturating_mul(self.grain())
    }

    /// What is warmed of the instructions before `first`, if windows fill what comes from there on.
    pub(crate) fn warmed_before(&self, first: u64) -> u64 {
        self.warmup.max(self.filling).min(first)
    }
}

/// Where windows are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Places {
    /// One begins at random in each of as many stretches of equal length, from a window's length before
    /// what is sampled to its end, so that its first and its last instructions are met as often as
    /// all others, if by a part of a window; no period of the program is in step with them. One
    /// that would begin within the window before it comes when that has ended.
    #[default]
    Spread,
    /// The same, but each begins at a multiple of its length, as intervals of SimPoint do.
    Aligned,
    /// At these instructions, whatever [`Sampling::windows`] says.
    At(Vec<u64>),
}

/// Instructions before a window that run with the clock, so that queues and the reorder buffer are as
/// full as they are in the window.
pub const DETAILED: u64 = 50_000;
/// Quanta ([`QUANTUM`]) a core before a window of several threads that run with the clock, so that
/// each core is as far ahead or behind as it is in the window: when the clock begins to run they
/// are as they were at the end of the last window, where another thread may have had its turn, and
/// what a core may do depends on the two quanta before.
const DETAILED_QUANTA: u64 = 5;

/// Instructions before a window on several cores that run with the clock.
pub(crate) fn clock_before(cores: u64) -> u64 {
    DETAILED_QUANTA * QUANTUM * cores
}

/// Goes into the seed: whoever draws has a word of its own, so that each draws its own sequence of
/// the one seed.
const SEED_WORD: u64 = u64::from_be_bytes(*b"\0\0sample");
/// What is shorter than so many times its windows together is measured whole: most of it has to be warmed
/// anyway, and windows that are close to each other would be where the program's loops want
/// them, as one must make way for another.
const MOST_MEASURED: u64 = 2;
/// Windows that a part is divided into that is measured as one.
const DIVISIONS: u64 = 40;
/// Instructions of each where it is not known how long the part is.
const DIVISION: u64 = 1 << 20;

/// Which part of a source is measured, in instructions of all threads together. Cuts are made between
/// blocks, so that a part may be longer by less than a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Left out at the start; pages that are touched there are in memory later on.
    pub skip: u64,
    /// Simulated with the clock, but not counted; with sampling nothing, as windows have their own.
    pub warmup: u64,
    /// The part that is measured, or sampled; `None`: to the end.
    pub instructions: Option<u64>,
    /// Windows instead of the whole part.
    pub sampling: Option<Sampling>,
}

impl Limits {
    /// Instructions that a run over a source described by `info` simulates, about; `None` where that is
    /// not known.
    pub fn simulated(&self, info: &SourceInfo, seed: u64) -> Option<u64> {
        Schedule::new(self, info, seed).simulated()
    }
}

/// What was measured of a source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Sampled {
    /// Whether windows were spread over more than what was measured.
    pub sampled: bool,
    /// Whether windows have their part of all work of kernels that was done since the window
    /// before: what that takes is known of all that they stand for. `false`: they have what came in
    /// them.
    pub kernels_followed: bool,
    /// Windows measured.
    pub windows: u64,
    /// Instructions of a window; the last may have fewer.
    pub window_instructions: u64,
    /// Instructions that were warmed before each, or before the one part.
    pub warmup_instructions: u64,
    /// Instructions that were warmed or measured until windows had no more warm-up than that; absent where
    /// none had more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filling_instructions: Option<u64>,
    /// Instructions before the part that was sampled or measured.
    pub first_instruction: u64,
    /// Instructions of the whole source, from first to last; absent where they are not known.
    pub instructions_total: Option<u64>,
    /// Instructions measured.
    pub instructions_measured: u64,
    /// Instructions that the windows stand for: what they are spread over, or themselves.
    pub instructions_represented: u64,
    /// Share that was measured: of what windows are spread over, or of the whole source; absent where
    /// its length is not known.
    pub coverage: Option<f64>,
}

/// Where the windows of a source are.
#[derive(Clone, Debug)]
enum Windows {
    /// One after the other from `first` on, until `end`; the warm-up is before the first.
    Adjacent { first: u64, end: u64 },
    /// Each of these, of which the starts rise, until `end`.
    Listed { listed: Vec<Listed>, end: u64 },
    /// At the end of each segment of a recording, of which `segment` instructions are recorded, from
    /// `first` on.
    Segments { segment: u64, first: u64, end: u64 },
}

/// A window at a place that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    /// The first instruction that is warmed.
    warm: u64,
    start: u64,
    /// The first instruction behind it.
    end: u64,
}

impl Listed {
    /// Windows from one instruction to another each, which rise, with the warm-up that `sampling` says.
    fn all(windows: impl IntoIterator<Item = (u64, u64)>, sampling: &Sampling) -> Vec<Self> {
        // Where the window before ends, and what is to be warmed or measured still until caches are full.
        let (mut ended, mut left) = (0_u64, sampling.filling);
        let listed = |(start, end): (u64, u64)| {
            let between = start.saturating_sub(ended);
            let warmed = sampling.warmup.max(left).min(between);
            ended = end;
            left = left.saturating_sub(warmed.saturating_add(end - start));
            Self { warm: start - warmed, start, end }
        };
        windows.into_iter().map(listed).collect()
    }

    /// The first of some windows that has not ended at `position`.
    fn next(listed: &[Self], position: u64) -> Option<Self> {
        let has_ended = |one: &Self| one.end <= position;
        listed.get(listed.partition_point(has_ended)).copied()
    }
}

/// Segments of a recording, each of so many instructions: one ends at the end of a block, a little before or
/// behind where it should.
fn segments(recorded: u64, segment: u64) -> u64 {
    recorded.saturating_add(segment / 2) / segment
}

/// What to do at each instruction.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    windows: Windows,
    sampling: Sampling,
    first_instruction: u64,
    total: Option<u64>,
    /// Instructions that are not in gaps.
    recorded: Option<u64>,
    /// All pages are known that are touched, in gaps too.
    names_pages: bool,
    /// First instruction of the segment under way.
    segment_start: u64,
    /// Instructions before a window that run with the clock, as far as the warm-up goes.
    detailed: u64,
}

impl Schedule {
    /// The schedule for a source described by `info`.
    pub(crate) fn new(limits: &Limits, info: &SourceInfo, seed: u64) -> Self {
        let &Limits { skip, warmup, instructions, ref sampling } = limits;
        let total = info.instructions.map(|n| n.saturating_add(info.gap_instructions));
        let after = |n: u64| instructions.map_or(u64::MAX, |length| n.saturating_add(length));
        let available = total.map_or(u64::MAX, |total| total.saturating_sub(skip));
        let (windows, sampling) = match sampling {
            None => {
                let first = skip.saturating_add(warmup);
                let known = available.saturating_sub(warmup).min(instructions.unwrap_or(u64::MAX));
                let window =
                    if known == u64::MAX { DIVISION } else { known.div_ceil(DIVISIONS).max(1) };
                let (windows, places) = (DIVISIONS, Places::Spread);
                let sampling = Sampling { windows, window, warmup, filling: 0, after: 0, places };
                (Windows::Adjacent { first, end: after(first) }, sampling)
            }
            Some(sampling) => {
                let sampling = Sampling {
                    windows: sampling.windows.max(1),
                    window: sampling.window.max(1),
                    ..sampling.clone()
                };
                let length = available.min(instructions.unwrap_or(u64::MAX));
                Self::spread(sampling, skip, length, info, seed)
            }
        };
        let is_listed = matches!(windows, Windows::Listed { .. });
        let mut schedule = Self {
            windows,
            first_instruction: if is_listed { sampling.begin(skip) } else { skip },
            sampling,
            total,
            recorded: info.instructions,
            names_pages: info.gap_instructions == 0 || info.gap_pages,
            segment_start: 0,
            detailed: DETAILED,
        };
        if limits.sampling.is_some() && instructions.is_none_or(|length| length >= available) {
            schedule.measure_on();
        }
        schedule
    }

    /// Windows of the sampled part of `length` instructions from `skip` on, and their lengths.
    fn spread(
        sampling: Sampling,
        skip: u64,
        length: u64,
        info: &SourceInfo,
        seed: u64,
    ) -> (Windows, Sampling) {
        let Sampling { windows, window, .. } = sampling;
        let end = skip.saturating_add(length);
        let from = |start: u64| (start, start.saturating_add(window));
        if let Places::At(starts) = &sampling.places {
            let mut starts = starts.clone();
            starts.sort_unstable();
            starts.dedup();
            let listed = Listed::all(starts.into_iter().map(from), &sampling);
            return (Windows::Listed { listed, end }, sampling);
        }
        if info.gap_instructions > 0
            && let Some(segment) = info.segment_instructions
        {
            return (Windows::Segments { segment: segment.max(1), first: skip, end }, sampling);
        }
        let mut random = Random::new(seed ^ SEED_WORD);
        // One of each of as many stretches of some numbers.
        let mut spread = |all: u64| {
            let bound = move |number: u64| {
                let before = u128::from(all) * u128::from(number) / u128::from(windows);
                u64::try_from(before).expect("no more than all")
            };
            (0..windows)
                .map(|number| (bound(number), bound(number + 1)))
                .map(|(from, to)| from + random.below(to - from))
                .collect::<Vec<u64>>()
        };
        let listed = if sampling.places == Places::Aligned {
            let (grain, begin) = (sampling.grain(), sampling.begin(skip));
            let whole = end.saturating_sub(begin) / grain;
            if whole == 0 {
                // Less than one of them: that is measured.
                let warmup = sampling.warmed_before(begin);
                let sampling = Sampling { warmup, ..sampling };
                return (Windows::Adjacent { first: begin, end }, sampling);
            }
            let numbers = if whole <= windows { (0..whole).collect() } else { spread(whole) };
            Listed::all(numbers.into_iter().map(|number| from(begin + number * grain)), &sampling)
        } else {
            if length / windows < MOST_MEASURED.saturating_mul(window) {
                // All of it is measured.
                let window = length.div_ceil(windows).max(1);
                let warmup = sampling.warmed_before(skip);
                return (
                    Windows::Adjacent { first: skip, end },
                    Sampling { window, warmup, ..sampling },
                );
            }
            // Counted from a window's length, less one, before what is sampled: each meets some of it.
            let before = window - 1;
            let mut ended = 0;
            let windows = spread(length.saturating_add(before)).into_iter().map(|number| {
                let start = number.saturating_sub(before).max(ended);
                // What comes before is not there; whichever comes late has all of its length.
                ended = if number < before { number + 1 } else { start.saturating_add(window) };
                (start.saturating_add(skip), ended.saturating_add(skip).min(end))
            });
            Listed::all(windows, &sampling)
        };
        (Windows::Listed { listed, end }, sampling)
    }

    /// What was passed over ended at `position`, up to a block behind where it should: one part moves by
    /// as much.
    pub(crate) fn end_pass(&mut self, position: u64) {
        if let Windows::Adjacent { first, end } = &mut self.windows {
            let late = position.saturating_sub(*first - self.sampling.warmup);
            *first += late;
            *end = end.saturating_add(late);
        }
    }

    /// Threads that are alive run on so many cores, which there are from now on.
    pub(crate) fn have_cores(&mut self, cores: usize) {
        if cores > 1 {
            self.detailed = self.detailed.max(clock_before(cores as u64));
        }
    }

    /// One part goes on to the end of the source, as if it were longer.
    pub(crate) fn measure_on(&mut self) {
        if let Windows::Adjacent { end, .. } = &mut self.windows {
            *end = u64::MAX;
        }
    }

    /// How far to run on behind the window that has ended at `position`, or at a block's end soon after it:
    /// up to what is done with the clock before the next.
    pub(crate) fn run_on(&self, position: u64) -> Option<u64> {
        let Windows::Listed { listed, end } = &self.windows else { return None };
        let next = Listed::next(listed, position);
        let next = next.map_or(*end, |next| next.start - self.clock_before(next));
        let after = self.sampling.after;
        let until = position.saturating_add(after).min(next).min(*end);
        (until > position).then_some(until)
    }

    /// A gap of the recording begins or ends at `position`.
    pub(crate) fn begin_segment(&mut self, position: u64) {
        self.segment_start = position;
    }

    /// Whether something between windows is left out.
    pub(crate) fn is_sampled(&self) -> bool {
        !matches!(self.windows, Windows::Adjacent { .. })
    }

    /// Whether all is known that kernels do in what the windows stand for, as they are spread over
    /// it. Intervals that SimPoint is to weigh keep what comes in them.
    fn follows_kernels(&self) -> bool {
        self.is_sampled() && self.sampling.places == Places::Spread && self.names_pages
    }

    /// Windows that there will be, about; `None` where that is not known. A recording's segments are taken to
    /// be as many to an instruction everywhere.
    pub(crate) fn expected_windows(&self) -> Option<u64> {
        match self.windows {
            Windows::Adjacent { first, end } => {
                let end = self.total.map_or(end, |total| total.min(end));
                let length = end.saturating_sub(first);
                (end < u64::MAX).then(|| length.div_ceil(self.sampling.window))
            }
            Windows::Listed { ref listed, .. } => Some(listed.len() as u64),
            Windows::Segments { segment, first, end } => {
                let (recorded, total) = self.recorded.zip(self.total)?;
                let (part, total) =
                    (total.min(end).saturating_sub(first), u128::from(total.max(1)));
                let windows = u128::from(segments(recorded, segment)) * u128::from(part);
                u64::try_from((windows + total / 2) / total).ok()
            }
        }
    }

    /// What is done at `position`, and up to where; `None` after the end.
    pub(crate) fn at(&self, position: u64) -> Option<(Phase, u64)> {
        let (phase, until) = self.planned(position)?;
        // It is noted where what windows stand for begins.
        let is_before = position < self.first_instruction;
        Some((phase, if is_before { until.min(self.first_instruction) } else { until }))
    }

    /// The same behind the source's last instruction: kernels go on.
    pub(crate) fn behind(&self, position: u64) -> Option<(Phase, u64)> {
        let has_ended = self.total.is_some_and(|total| position >= total) && position < u64::MAX;
        let is_there = self.is_sampled() && has_ended;
        is_there.then_some((Phase::Pass, u64::MAX))
    }

    fn planned(&self, position: u64) -> Option<(Phase, u64)> {
        let Sampling { window, warmup, .. } = self.sampling;
        match self.windows {
            Windows::Adjacent { first, end } => {
                if position >= end {
                    None
                } else if position < first - warmup {
                    Some((Phase::Pass, first - warmup))
                } else if position < first {
                    Some((Phase::Detailed, first))
                } else {
                    let past = (position - first) / window + 1;
                    Some((
                        Phase::Measured,
                        past.saturating_mul(window).saturating_add(first).min(end),
                    ))
                }
            }
            Windows::Listed { ref listed, end } => {
                if position >= end {
                    return None;
                }
                let Some(next) = Listed::next(listed, position) else {
                    return Some((Phase::Pass, end));
                };
                let (phase, until) = self.before(position, next);
                Some((phase, until.min(end)))
            }
            Windows::Segments { segment, first, end } => {
                if position >= end {
                    return None;
                }
                // Segments between which nothing is left out follow each other.
                let number = position.saturating_sub(self.segment_start) / segment;
                // A header may say anything.
                let segment_end =
                    (number + 1).saturating_mul(segment).saturating_add(self.segment_start);
                let start = segment_end - window.min(segment);
                if start < first {
                    return Some((Phase::Pass, segment_end.min(end)));
                }
                let warm = start.saturating_sub(warmup);
                let window = Listed { warm, start, end: start.saturating_add(window) };
                let (phase, until) = self.before(position, window);
                Some((phase, until.min(segment_end).min(end)))
            }
        }
    }

    /// Instructions before a window that run with the clock.
    fn clock_before(&self, window: Listed) -> u64 {
        self.detailed.min(self.sampling.warmup).min(window.start - window.warm)
    }

    /// What is done at `position`, before the end of a window.
    fn before(&self, position: u64, window: Listed) -> (Phase, u64) {
        let Listed { warm, start, end } = window;
        let detailed = start - self.clock_before(window);
        if position >= start {
            (Phase::Measured, end)
        } else if position >= detailed {
            (Phase::Detailed, start)
        } else if position >= warm {
            (Phase::Warm, detailed)
        } else {
            (Phase::Pass, warm)
        }
    }

    /// Instructions that a run of the plan simulates, about.
    fn simulated(&self) -> Option<u64> {
        let Sampling { window, warmup, after, .. } = self.sampling;
        match self.windows {
            Windows::Adjacent { first, end } => {
                let end = self.total.map_or(end, |total| total.min(end));
                (end < u64::MAX).then(|| end.saturating_sub(first - warmup))
            }
            Windows::Listed { ref listed, .. } => {
                let mut before = 0;
                let each = listed.iter().map(|&Listed { warm, end, .. }| {
                    let simulated = end - warm.max(before);
                    before = end;
                    simulated
                });
                Some(each.sum::<u64>() + listed.len() as u64 * after)
            }
            Windows::Segments { segment, .. } => {
                let recorded = self.recorded?;
                Some(segments(recorded, segment) * (window + warmup).min(segment))
            }
        }
    }

    /// What was measured, once the source was followed to `position`, which is its end if it has
    /// `ended`: `windows` windows of `measured` instructions together.
    pub(crate) fn summary(
        &self,
        position: u64,
        has_ended: bool,
        windows: u64,
        measured: u64,
    ) -> Sampled {
        let sampled = self.is_sampled();
        let first = self.first_instruction;
        let total = self.total.or(has_ended.then_some(position));
        // The gap in which it ended may reach beyond what was asked for.
        let position = match self.windows {
            Windows::Segments { end, .. } => position.min(end),
            Windows::Adjacent { .. } | Windows::Listed { .. } => position,
        };
        let represented = if sampled { position.saturating_sub(first) } else { measured };
        let whole = if sampled { Some(represented) } else { total };
        let Sampling { window, warmup, filling, .. } = self.sampling;
        let recorded = match self.windows {
            Windows::Segments { segment, .. } => segment.saturating_sub(window),
            Windows::Adjacent { .. } | Windows::Listed { .. } => u64::MAX,
        };
        let is_filled = matches!(self.windows, Windows::Listed { .. }) && filling > warmup;
        Sampled {
            sampled,
            kernels_followed: self.follows_kernels() && windows > 0,
            windows,
            window_instructions: window,
            warmup_instructions: warmup.min(recorded),
            filling_instructions: is_filled.then_some(filling),
            first_instruction: first,
            instructions_total: total,
            instructions_measured: measured,
            instructions_represented: represented,
            coverage: whole.filter(|&whole| whole > 0).map(|whole| measured as f64 / whole as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(instructions: Option<u64>, gap: u64, segment: Option<u64>) -> SourceInfo {
        SourceInfo {
            name: String::new(),
            hash: String::new(),
            instructions,
            touched: Vec::new(),
            gap_instructions: gap,
            segment_instructions: segment,
            gap_pages: false,
        }
    }

    /// All stretches of a schedule, followed without any gap.
    fn stretches(schedule: &Schedule, length: u64) -> Vec<(Phase, u64, u64)> {
        let (mut at, mut all) = (0, Vec::new());
        while at < length
            && let Some((phase, until)) = schedule.at(at)
        {
            assert!(until > at, "{phase:?} at {at} ends at {until}");
            let until = until.min(length);
            // What is before the part that is sampled ends within a phase.
            match all.last_mut() {
                Some((before, _, to)) if *before == phase && phase != Phase::Measured => {
                    *to = until;
                }
                _ => all.push((phase, at, until)),
            }
            at = until;
        }
        all
    }

    const SAMPLING: Sampling = Sampling {
        windows: 10,
        window: 1_000,
        warmup: 80_000,
        filling: 0,
        after: 0,
        places: Places::Spread,
    };

    fn sampled(skip: u64, instructions: Option<u64>) -> Limits {
        Limits { skip, warmup: 0, instructions, sampling: Some(SAMPLING) }
    }

    #[test]
    fn one_part_is_divided() {
        let limits = Limits { skip: 100, warmup: 50, instructions: Some(400), sampling: None };
        let schedule = Schedule::new(&limits, &info(Some(10_000), 0, None), 1);
        let all = stretches(&schedule, 10_000);
        assert_eq!(all[..2], [(Phase::Pass, 0, 100), (Phase::Detailed, 100, 150)]);
        assert_eq!((all[2], all.len()), ((Phase::Measured, 150, 160), 2 + 40));
        assert_eq!(all.last(), Some(&(Phase::Measured, 540, 550)));
    }

    #[test]
    fn windows_are_spread_each_in_its_stretch_after_its_warm_up() {
        for seed in 0..50 {
            let limits = sampled(90_000, Some(2_000_000));
            let schedule = Schedule::new(&limits, &info(None, 0, None), seed);
            let all = stretches(&schedule, 3_000_000);
            let starts: Vec<_> =
                all.iter().filter(|s| s.0 == Phase::Measured).map(|s| (s.1, s.2 - s.1)).collect();
            assert_eq!(starts.len(), 10);
            assert!(starts[1..9].iter().all(|&(_, length)| length == 1_000));
            // The part of the first that there is, and of the last.
            assert!((1..=1_000).contains(&starts[0].1) && starts[0].0 >= 90_000);
            let left = 2_090_000 - starts[9].0;
            assert_eq!(starts[9].1, left.min(1_000));
            for (number, &(start, length)) in starts.iter().enumerate() {
                let begins = if number == 0 { start + length } else { start + 1_000 } - 90_001;
                let stretch = 200_099 * number as u64;
                assert!((stretch..=stretch + 200_099).contains(&begins), "{number}: {begins}");
            }
            let mut ended = 0;
            for (at, stretch) in all.iter().enumerate().filter(|(_, s)| s.0 == Phase::Measured) {
                // What lies between two windows that are close to each other is all of the warm-up.
                let warm = (stretch.1 - 80_000).max(ended);
                let detailed = (stretch.1 - DETAILED).max(ended);
                let before: Vec<_> =
                    all[..at].iter().filter(|s| s.1 >= ended && s.0 != Phase::Pass).collect();
                let expected =
                    [(Phase::Warm, warm, detailed), (Phase::Detailed, detailed, stretch.1)];
                assert!(before.into_iter().eq(expected.iter().filter(|s| s.1 < s.2)));
                ended = stretch.2;
            }
            assert_eq!(all.last().map(|s| s.2), Some(2_090_000));
        }
    }

    #[test]
    fn a_window_is_anywhere_in_its_stretch_wherever_the_one_before_is() {
        let pairs = (0..1600).map(|seed| {
            let length = 2_000_000 - 999;
            let schedule = Schedule::new(&sampled(0, Some(length)), &info(None, 0, None), seed);
            let found = measured(&schedule, length);
            [4, 5].map(|number| (found[number].1 - 1 - 200_000 * number as u64) / 50_000)
        });
        let mut seen = [[0_u32; 4]; 4];
        pairs.for_each(|[before, here]| seen[before as usize][here as usize] += 1);
        // A hundred of each are to be expected; 5 of their deviations are 50.
        assert!(seen.iter().flatten().all(|count| (50..=150).contains(count)), "{seen:?}");
    }

    #[test]
    fn every_instruction_is_met_as_often_as_every_other() {
        const SEEDS: u64 = 4_000;
        // Where windows are a half, a fifth and a twentieth of it: the ends of stretches, too, and its own.
        for length in [20_001, 50_000, 200_000] {
            let mut met = vec![0_u64; length as usize / 250];
            for seed in 0..SEEDS {
                let limits = sampled(70, Some(length));
                let schedule = Schedule::new(&limits, &info(None, 0, None), seed);
                for (start, end) in measured(&schedule, 70 + length) {
                    assert!(start >= 70 && start < end && end <= 70 + length);
                    let is_in = |at: u64| (start..end).contains(&(70 + at));
                    let places = met.iter_mut().zip((125..).step_by(250));
                    places.for_each(|(met, at)| *met += u64::from(is_in(at)));
                }
            }
            let share = 10_000.0 / (length + 999) as f64;
            let expected = SEEDS as f64 * share;
            // Five deviations, and what windows that make way for others do.
            let most = 5.0 * (expected * (1.0 - share)).sqrt() + expected * share * share / 2.0;
            for (number, &met) in met.iter().enumerate() {
                let off = (met as f64 - expected).abs();
                assert!(off <= most, "{length}, {number}: {met}, not {expected}");
            }
        }
    }

    #[test]
    fn what_is_short_is_measured_whole() {
        for (length, window) in [(9_500, 950), (19_999, 2_000)] {
            let schedule = Schedule::new(&sampled(0, None), &info(Some(length), 0, None), 1);
            let all = stretches(&schedule, length);
            assert!(all.iter().all(|s| s.0 == Phase::Measured), "{all:?}");
            assert_eq!((all.len(), all[0].2), (10, window));
            let summary = schedule.summary(length, true, 10, length);
            assert!(!summary.sampled && summary.coverage == Some(1.0));
        }
        let schedule = Schedule::new(&sampled(0, None), &info(Some(20_000), 0, None), 1);
        assert!(schedule.is_sampled());
    }

    #[test]
    fn a_segment_is_measured_at_its_end() {
        let recorded = info(Some(300_000), 1_000_000, Some(100_000));
        let mut schedule = Schedule::new(&sampled(0, None), &recorded, 1);
        assert_eq!(schedule.at(0), Some((Phase::Pass, 19_000)));
        schedule.begin_segment(500_000);
        assert_eq!(schedule.at(500_000), Some((Phase::Pass, 519_000)));
        assert_eq!(schedule.at(519_000), Some((Phase::Warm, 549_000)));
        assert_eq!(schedule.at(549_000), Some((Phase::Detailed, 599_000)));
        assert_eq!(schedule.at(599_000), Some((Phase::Measured, 600_000)));
        // The next one may adjoin.
        assert_eq!(schedule.at(600_000), Some((Phase::Pass, 619_000)));
        assert_eq!(schedule.at(699_000), Some((Phase::Measured, 700_000)));
        // One that ends early: what comes in the gap is not of the window.
        assert_eq!(schedule.at(599_990), Some((Phase::Measured, 600_000)));
        schedule.begin_segment(599_990);
        assert_eq!(schedule.at(599_990), Some((Phase::Pass, 618_990)));
        schedule.begin_segment(1_250_000);
        assert_eq!(schedule.at(1_250_000), Some((Phase::Pass, 1_269_000)));
        assert_eq!(schedule.at(1_299_000), Some((Phase::Detailed, 1_300_000)));
        assert_eq!(schedule.at(1_300_000), None);
    }

    #[test]
    fn a_gap_at_the_end_stands_for_no_more_than_was_asked_for() {
        let recorded = info(Some(300_000), 1_000_000, Some(100_000));
        let part = Schedule::new(&sampled(0, Some(700_000)), &recorded, 1);
        let summary = part.summary(900_000, false, 2, 2_000);
        assert_eq!(summary.instructions_represented, 700_000);
        assert_eq!(summary.instructions_total, Some(1_300_000));
    }

    #[test]
    fn a_window_of_a_segment_has_no_more_warm_up_than_the_segment() {
        let warmed = |segment| {
            let schedule = Schedule::new(&sampled(0, None), &info(Some(300_000), 1, segment), 1);
            schedule.summary(300_001, true, 3, 3_000).warmup_instructions
        };
        assert_eq!(warmed(Some(100_000)), 80_000);
        assert_eq!(warmed(Some(50_000)), 49_000);
        assert_eq!(warmed(None), 80_000);
    }

    #[test]
    fn a_segment_that_no_recording_can_have_ends_with_it() {
        for segment in [u64::MAX, u64::MAX / 2, 1 << 62] {
            let limits = sampled(0, None);
            let mut schedule = Schedule::new(&limits, &info(Some(1 << 40), 1, Some(segment)), 1);
            for start in [0, 300_001, 1 << 40] {
                schedule.begin_segment(start);
                assert_eq!(schedule.at(start).map(|(phase, _)| phase), Some(Phase::Pass));
            }
            assert_eq!(schedule.expected_windows(), Some(0));
        }
    }

    #[test]
    fn several_threads_have_the_clock_for_longer() {
        let sampling = Some(Sampling { warmup: 800_000, ..SAMPLING });
        let limits = Limits { sampling, ..sampled(0, None) };
        let mut schedule = Schedule::new(&limits, &info(Some(1_800_000), 1, Some(900_000)), 1);
        let clock = |schedule: &Schedule| schedule.at(99_000).map(|(_, until)| 899_000 - until);
        assert_eq!(clock(&schedule), Some(DETAILED));
        schedule.have_cores(1);
        assert_eq!(clock(&schedule), Some(DETAILED));
        schedule.have_cores(2);
        assert_eq!(clock(&schedule), Some(2 * DETAILED_QUANTA * QUANTUM));
        schedule.have_cores(1);
        assert_eq!(
            clock(&schedule),
            Some(2 * DETAILED_QUANTA * QUANTUM),
            "the other core is still there"
        );
        schedule.have_cores(4);
        assert_eq!(schedule.at(99_000), Some((Phase::Detailed, 899_000)), "all of the warm-up");
    }

    /// Starts and ends of what is measured.
    fn measured(schedule: &Schedule, length: u64) -> Vec<(u64, u64)> {
        let all = stretches(schedule, length);
        let measured = all.iter().filter(|stretch| stretch.0 == Phase::Measured);
        measured.map(|&(_, start, end)| (start, end)).collect()
    }

    #[test]
    fn aligned_windows_begin_at_multiples_of_their_length() {
        for (seed, skip) in (0..40).flat_map(|seed| [(seed, 0), (seed, 1), (seed, 90_500)]) {
            let sampling = Some(Sampling { places: Places::Aligned, ..SAMPLING });
            let limits = Limits { sampling, ..sampled(skip, Some(2_000_000)) };
            let schedule = Schedule::new(&limits, &info(None, 0, None), seed);
            let found = measured(&schedule, 3_000_000);
            assert_eq!(found.len(), 10);
            assert!(found.iter().all(|(start, end)| start % 1_000 == 0 && end - start == 1_000));
            assert!(found.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            assert!(found[0].0 >= skip && found[9].1 <= skip + 2_000_000);
        }
        // Ten of fifteen, and of what they fill all that are whole.
        for (length, count) in [(15_500, 10), (10_500, 10), (9_999, 9)] {
            let sampling = Some(Sampling { places: Places::Aligned, ..SAMPLING });
            let limits = Limits { sampling, ..sampled(0, Some(length)) };
            let found = measured(&Schedule::new(&limits, &info(None, 0, None), 1), 20_000);
            assert_eq!(found.len(), count);
            assert!(found.iter().all(|(start, end)| start % 1_000 == 0 && end - start == 1_000));
        }
    }

    #[test]
    fn every_place_is_in_some_stretch() {
        for (places, length) in [(Places::Spread, 22_345), (Places::Aligned, 19_000)] {
            let mut seen = vec![false; length as usize];
            for seed in 0..2_000 {
                let sampling = Some(Sampling { places: places.clone(), ..SAMPLING });
                let limits = Limits { sampling, ..sampled(0, Some(length)) };
                let schedule = Schedule::new(&limits, &info(None, 0, None), seed);
                for (start, end) in measured(&schedule, length) {
                    seen[start as usize..end as usize].fill(true);
                }
            }
            assert!(seen.iter().all(|&seen| seen), "{places:?}");
        }
    }

    #[test]
    fn listed_windows_are_measured_as_spread_ones_are() {
        let length = 2_000_000;
        for seed in 0..20 {
            let spread = Schedule::new(&sampled(0, None), &info(Some(length), 0, None), seed);
            let starts: Vec<u64> = measured(&spread, length).iter().map(|w| w.0).rev().collect();
            let sampling = Some(Sampling { places: Places::At(starts), ..SAMPLING });
            let limits = Limits { sampling, ..sampled(0, None) };
            let listed = Schedule::new(&limits, &info(Some(length), 0, None), seed);
            assert_eq!(stretches(&listed, length), stretches(&spread, length));
            let all = stretches(&listed, length);
            let run = all.iter().filter(|stretch| stretch.0 != Phase::Pass);
            assert_eq!(listed.simulated(), Some(run.map(|stretch| stretch.2 - stretch.1).sum()));
        }
    }

    #[test]
    fn the_first_windows_are_warmed_further_back_until_there_is_enough() {
        let length = 2_000_000;
        for seed in 0..20 {
            let sampling = Some(Sampling { filling: 500_000, ..SAMPLING });
            let filled = Limits { sampling, ..sampled(0, Some(length)) };
            let [filled, usual] = [filled, sampled(0, Some(length))]
                .map(|limits| Schedule::new(&limits, &info(None, 0, None), seed));
            assert_eq!(measured(&filled, length), measured(&usual, length));
            let all = stretches(&filled, length);
            let (mut seen, mut ended) = (0, 0);
            for (start, end) in measured(&filled, length) {
                let before = all.iter().filter(|s| s.1 >= ended && s.2 <= start);
                let warmed: u64 = before.filter(|s| s.0 != Phase::Pass).map(|s| s.2 - s.1).sum();
                let wanted = 500_000_u64.saturating_sub(seen).max(80_000);
                assert_eq!(warmed, wanted.min(start - ended));
                (seen, ended) = (seen + warmed + 1_000, end);
            }
            let run = all.iter().filter(|stretch| stretch.0 != Phase::Pass);
            assert_eq!(filled.simulated(), Some(run.map(|stretch| stretch.2 - stretch.1).sum()));
            let told = |schedule: &Schedule| {
                schedule.summary(length, false, 10, 10_000).filling_instructions
            };
            assert_eq!((told(&filled), told(&usual)), (Some(500_000), None));
        }
        // A recording's segments have no more than they have.
        let sampling = Some(Sampling { filling: 500_000, ..SAMPLING });
        let limits = Limits { sampling, ..sampled(0, None) };
        let recorded = info(Some(300_000), 1_000_000, Some(100_000));
        let schedule = Schedule::new(&limits, &recorded, 1);
        assert_eq!(schedule.at(0), Some((Phase::Pass, 19_000)));
        assert_eq!(schedule.summary(300_000, true, 3, 3_000).filling_instructions, None);
    }

    #[test]
    fn listed_windows_may_touch_and_lie_at_the_ends() {
        let places = Places::At(vec![100_000, 0, 101_000, 500_000, 100_000]);
        let limits = Limits { sampling: Some(Sampling { places, ..SAMPLING }), ..sampled(0, None) };
        let schedule = Schedule::new(&limits, &info(Some(500_400), 0, None), 1);
        let ends = [(0, 1_000), (100_000, 101_000), (101_000, 102_000), (500_000, 500_400)];
        assert_eq!(measured(&schedule, 500_400), ends);
        // 1,000 at the start; 80,000 of warm-up, twice, and a window more that needs none.
        assert_eq!(schedule.simulated(), Some(1_000 + 81_000 + 1_000 + 81_000));
    }
}
