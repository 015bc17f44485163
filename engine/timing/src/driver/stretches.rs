//! A source, cut into stretches of decoded pieces as a schedule says.

use std::collections::BTreeSet;
use std::sync::Arc;

use flatwalk_trace::{Event, Item, Slice, Source, ThreadId, TraceError};

use crate::core::decode::{BlockDecoder, DecodedBlock};
use crate::driver::piece::{Phase, Piece, first_blocks, is_call};
use crate::driver::predictions::Predictors;
use crate::driver::sampling::{Limits, Sampled, Schedule};
use crate::driver::touched::Touched;
use crate::memory::line::last_byte;

/// Instructions per stretch that are simulated, about …
const STRETCH: u64 = 1 << 19;
/// … or that are passed over.
const PASSED: u64 = 1 << 24;

/// What has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// What is to be done of the source.
    Schedule,
    /// The source itself.
    Source,
}

/// Where a source is in what a recording says of a gap.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// No slice has come since it was named.
    is_here: bool,
    /// The recording pauses: what comes then is in no gap.
    is_paused: bool,
}

impl Gap {
    /// Whether the event that comes next is of the gap.
    fn has(&mut self, event: &Event) -> bool {
        if let Event::Marker { name } = event {
            self.is_paused = name == "stop" || self.is_paused && name != "start";
        }
        self.is_here && !self.is_paused
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
    /// … and if some run wants that, which entries of page tables are used in it, in so many instructions up to
    /// now …
    passed: Option<u64>,
    /// … and the blocks whose code was.
    executed: Vec<bool>,
    /// What comes next, up to the next slice, is of a gap, and names the pages that were touched in it.
    gap: Gap,
    ended: Option<End>,
    windows: u64,
    measured: u64,
    /// The two before the window that was read last.
    counts_before: (u64, u64),
    /// Instructions that are to be warmed, since this was last asked for.
    warmed: u64,
    /// The window under way has instructions.
    counted: bool,
    /// Windows are only warmed.
    leaves_out: bool,
    /// Threads that have run and not ended …
    threads: BTreeSet<ThreadId>,
    /// … and may each have a core of its own.
    has_cores: bool,
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
            passed: None,
            executed: Vec::new(),
            gap: Gap::default(),
            ended: None,
            windows: 0,
            measured: 0,
            counts_before: (0, 0),
            warmed: 0,
            counted: false,
            leaves_out: false,
            threads: BTreeSet::new(),
            has_cores: false,
        }
    }

    /// Threads may each have a core of its own; all have one if this is never said. What is done does not depend on
    /// how many cores some run has, or each run's figures would depend on the others.
    pub(crate) fn have_cores(&mut self) {
        self.has_cores = true;
    }

    /// Runs want to know which entries of page tables are used in what is passed over.
    pub(crate) fn follow_uses(&mut self) {
        self.passed = Some(0);
    }

    /// What was measured of what has been read.
    pub(crate) fn summary(&self) -> Sampled {
        let is_all = self.ended == Some(End::Source);
        self.schedule.summary(self.position, is_all, self.windows, self.measured)
    }

    /// The next stretch; `None` at the end.
    pub(crate) fn next_stretch(&mut self) -> Result<Option<Vec<Piece>>, TraceError> {
        let mut pieces = Vec::new();
        self.read(&mut pieces, (STRETCH, PASSED), false)?;
        Ok((!pieces.is_empty() || self.ended.is_none()).then_some(pieces))
    }

    /// What is measured goes on to the end of the source.
    pub(crate) fn measure_on(&mut self) {
        self.schedule.measure_on();
    }

    /// All up to the end of the next window, and what runs on behind it; `None` if there is no other. With
    /// `leaves_out` the window is one of those that are not measured, but warmed.
    pub(crate) fn next_window(
        &mut self,
        leaves_out: bool,
    ) -> Result<Option<Vec<Piece>>, TraceError> {
        let mut pieces = Vec::new();
        self.leaves_out = leaves_out;
        self.counts_before = (self.windows, self.measured);
        let has_begun = self.read(&mut pieces, (u64::MAX, u64::MAX), true)?;
        if !has_begun || !self.has_window_ended() {
            return Ok(None);
        }
        if let Some(until) = self.schedule.run_on(self.position).filter(|_| !leaves_out) {
            self.enter_phase(&mut pieces, Phase::Detailed, until);
            while self.position < self.until && self.ended.is_none() {
                self.read_item(&mut pieces)?;
            }
        }
        Ok(Some(pieces))
    }

    /// The window that was read last is not run.
    pub(crate) fn drop_window(&mut self) {
        (self.windows, self.measured) = self.counts_before;
    }

    /// What is left is passed over; nothing if that has been read.
    pub(crate) fn take_rest(&mut self) -> Result<Vec<Piece>, TraceError> {
        let mut pieces = Vec::new();
        if self.ended.is_none() {
            self.enter_phase(&mut pieces, Phase::Pass, self.position);
        }
        while self.ended.is_none() {
            if self.position < self.until {
                self.read_item(&mut pieces)?;
                continue;
            }
            match self.due() {
                Some((_, until)) => self.until = until,
                None => self.ended = Some(End::Schedule),
            }
        }
        self.show_touched(&mut pieces);
        Ok(pieces)
    }

    /// What is done from here on, and up to where; `None` at the end.
    fn due(&self) -> Option<(Phase, u64)> {
        let due = self.schedule.at(self.position).or_else(|| self.schedule.behind(self.position));
        due.filter(|&(_, until)| until > self.position)
    }

    /// Instructions of what has been read that are to be warmed, since this was last asked for.
    pub(crate) fn take_warmed(&mut self) -> u64 {
        std::mem::take(&mut self.warmed)
    }

    /// What comes next is after a window.
    fn has_window_ended(&self) -> bool {
        self.phase == Phase::Measured
            && self.counted
            && (self.ended.is_some() || self.position >= self.until)
    }

    /// Reads until so many instructions are simulated or passed over, or to the end of a window.
    /// True if a phase has begun.
    fn read(
        &mut self,
        pieces: &mut Vec<Piece>,
        (simulate, pass): (u64, u64),
        one_window: bool,
    ) -> Result<bool, TraceError> {
        let (mut simulated, mut passed) = (0, 0);
        let mut has_begun = false;
        while simulated < simulate && passed < pass && self.ended.is_none() {
            if self.position >= self.until {
                if one_window && has_begun && self.has_window_ended() {
                    break;
                }
                self.enter(pieces);
                has_begun = self.ended.is_none();
                continue;
            }
            let n = self.read_item(pieces)?;
            *(if self.phase == Phase::Pass { &mut passed } else { &mut simulated }) += n;
        }
        if self.ended.is_some() {
            self.show_touched(pieces);
        }
        Ok(has_begun)
    }

    /// Reads one item of the source, or what of it belongs to the phase; how many instructions that were.
    fn read_item(&mut self, pieces: &mut Vec<Piece>) -> Result<u64, TraceError> {
        let item = match self.rest.take() {
            Some(slice) => Some(Item::Slice(slice)),
            None => self.source.next_item()?,
        };
        match item {
            None => self.ended = Some(End::Source),
            Some(Item::Define { block, .. }) => {
                let block = Arc::new(self.decoder.decode(&block));
                self.blocks.push(Arc::clone(&block));
                self.executed.push(false);
                pieces.push(Piece::Define(block));
            }
            Some(Item::Event(Event::Gap { instructions })) => self.take_gap(instructions, pieces),
            Some(Item::Event(event)) => self.take_event(event, pieces),
            Some(Item::Slice(slice)) => return Ok(self.take_slice(slice, pieces)),
        }
        Ok(0)
    }

    /// The source has left out so many instructions, or another segment of it begins.
    fn take_gap(&mut self, instructions: u64, pieces: &mut Vec<Piece>) {
        self.show_touched(pieces);
        self.position = self.position.saturating_add(instructions);
        if instructions > 0 {
            // Even if what comes next is all warmed or run, a part has been passed over.
            self.predictors.drain();
            pieces.push(Piece::Phase { phase: Phase::Pass, at: self.position });
        }
        self.schedule.begin_segment(self.position);
        self.until = self.position;
        self.gap.is_here = true;
    }

    /// Something happens to the address space, or to threads.
    fn take_event(&mut self, event: Event, pieces: &mut Vec<Piece>) {
        if !matches!(event, Event::Wake { .. } | Event::Woken { .. }) {
            self.show_touched(pieces);
        }
        if let Some(touched) = &mut self.touched {
            touched.apply(&event);
        }
        if let Event::ThreadExit { thread } = event {
            self.threads.remove(&thread);
        }
        if is_call(&event) {
            self.predictors.drain();
        }
        pieces.push(if self.gap.has(&event) { Piece::Passed(event) } else { Piece::Event(event) });
    }

    /// A thread runs: takes what of it belongs to the phase; how many instructions that were.
    fn take_slice(&mut self, slice: Slice, pieces: &mut Vec<Piece>) -> u64 {
        self.gap.is_here = false;
        let (slice, n) = self.cut(slice);
        self.position += n;
        if self.threads.insert(slice.thread) {
            self.schedule.have_cores(if self.has_cores { self.threads.len() } else { 1 });
            self.clock_begins_earlier();
        }
        if let Some(touched) = &mut self.touched {
            follow(&slice, &self.blocks, &mut self.executed, touched);
        }
        if self.phase == Phase::Pass {
            self.passed = self.passed.map(|passed| passed + n);
            return n;
        }
        if self.phase == Phase::Warm || self.leaves_out {
            self.warmed += n;
        }
        if self.phase == Phase::Measured {
            if !self.leaves_out {
                self.measured += n;
                self.windows += u64::from(!self.counted);
            }
            self.counted = true;
        }
        pieces.extend(self.predictors.predict(&slice, &self.blocks));
        pieces.push(Piece::Slice(slice));
        n
    }

    /// The warm-up under way ends where the schedule says by now, or here if that has passed.
    fn clock_begins_earlier(&mut self) {
        if self.phase == Phase::Warm {
            let until = match self.schedule.at(self.position) {
                Some((Phase::Warm, until)) => until,
                _ => self.position,
            };
            self.until = self.until.min(until);
        }
    }

    /// Begins the phase that is due.
    fn enter(&mut self, pieces: &mut Vec<Piece>) {
        if self.phase == Phase::Pass {
            self.schedule.end_pass(self.position);
        }
        let Some((phase, until)) = self.due() else {
            self.ended = Some(End::Schedule);
            return;
        };
        self.enter_phase(pieces, phase, until);
    }

    fn enter_phase(&mut self, pieces: &mut Vec<Piece>, phase: Phase, until: u64) {
        self.show_touched(pieces);
        self.show_used(pieces);
        if let (Phase::Pass, Some(_), Some(touched)) = (phase, self.passed, &mut self.touched) {
            touched.follow_uses();
        }
        (self.phase, self.until, self.counted) = (phase, until, false);
        let phase = if self.leaves_out && phase.has_clock() { Phase::Warm } else { phase };
        if !phase.has_clock() {
            self.predictors.drain();
        }
        pieces.push(Piece::Phase { phase, at: self.position });
    }

    /// Lets runs have in memory what was touched where they were not run; elsewhere they touch it
    /// themselves.
    fn show_touched(&mut self, pieces: &mut Vec<Piece>) {
        if let Some(touched) = &mut self.touched {
            let is_passing = self.phase == Phase::Pass;
            pieces.extend(touched.take().filter(|_| is_passing).map(Piece::Passed));
        }
    }

    /// Lets runs know which entries of page tables were used in what was passed over.
    fn show_used(&mut self, pieces: &mut Vec<Piece>) {
        let (Some(passed), Some(touched)) = (&mut self.passed, &mut self.touched) else { return };
        let (instructions, threads) = (std::mem::take(passed), touched.end_uses());
        if !threads.is_empty() {
            pieces.push(Piece::Used { threads: threads.into(), instructions });
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
    touched.run(slice.thread);
    let mut addresses = slice.addresses.iter();
    for &id in &slice.blocks {
        let block = &*blocks[id as usize];
        if !std::mem::replace(&mut executed[id as usize], true) {
            block.lines.iter().for_each(|&line| touched.touch(line, false));
        }
        for (access, &address) in block.accesses.iter().zip(&mut addresses) {
            let last = last_byte(address, access.size);
            touched.access(address, last, access.store);
        }
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_trace::{Access, Block, Branch, Instruction, Operands};

    use super::*;
    use crate::driver::sampling::{Places, Sampling};
    use crate::tests::testing::{DATA, Pieces, branching_block};

    #[test]
    fn a_gap_is_passed_over_even_if_a_whole_segment_is_warmed() {
        let slice =
            || Item::Slice(Slice { thread: 0, blocks: vec![0; 500], addresses: Vec::new() });
        let gap = |instructions| Item::Event(Event::Gap { instructions });
        // The third segment adjoins the second.
        let items = vec![branching_block(0), slice(), gap(9_000), slice(), gap(0), slice()];
        let mut source = Pieces::new(items, 3_000, Some((9_000, 1_000)));
        let sampling = Sampling {
            windows: 3,
            window: 100,
            warmup: 5_000,
            filling: 0,
            after: 0,
            places: Places::Spread,
        };
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
        // The last phase has the events behind the last instruction.
        assert_eq!(starts, [vec![10_000, 12_000], vec![900, 10_900, 11_900]], "{phases:?}");
    }

    #[test]
    fn a_thread_that_comes_within_the_warm_up_has_the_clock_begin_earlier() {
        let slice =
            |thread| Item::Slice(Slice { thread, blocks: vec![0; 500], addresses: Vec::new() });
        // Where the clock begins if the second of some threads first runs behind so many thousands
        // of instructions.
        let clock_of = |threads, have_cores, first: u32| {
            let slices = (0..1_100).map(|n| slice(if n < first { 0 } else { n % threads }));
            let items = std::iter::once(branching_block(0)).chain(slices).collect();
            let mut source = Pieces::new(items, 1_100_000, None);
            let places = Places::At(vec![1_000_000]);
            let sampling = Sampling {
                windows: 1,
                window: 50_000,
                warmup: 900_000,
                filling: 0,
                after: 0,
                places,
            };
            let limits = Limits { sampling: Some(sampling), ..Limits::default() };
            let mut reader = StretchReader::new(&mut source, &limits, 1, Predictors::default());
            if have_cores {
                reader.have_cores();
            }
            let mut pieces = Vec::new();
            while let Some(more) = reader.next_stretch().unwrap() {
                pieces.extend(more);
            }
            let begins = pieces.iter().find_map(|piece| match *piece {
                Piece::Phase { phase: Phase::Detailed, at } => Some(at),
                _ => None,
            });
            begins.unwrap()
        };
        let clock = |first| clock_of(2, true, first);
        assert_eq!(clock(2_000), 950_000, "it is alone");
        assert_eq!(clock(301), 1_000_000 - 2 * 5 * 65_536);
        assert_eq!(clock(50), 1_000_000 - 2 * 5 * 65_536, "it came before the warm-up");
        assert_eq!(clock(701), 702_000, "no earlier than it is known");
        assert_eq!(clock_of(3, true, 50), 100_000, "all of the warm-up");
        assert_eq!(clock_of(4, false, 50), 950_000);
    }

    #[test]
    fn each_page_of_an_access_in_a_part_that_is_passed_over_is_touched() {
        let instruction = Instruction {
            pc: 0x40_0000,
            length: 4,
            operands: Operands::Registers { reads: [0; 4], writes: [0; 4], branch: Branch::None },
        };
        let access = Access { instruction: 0, size: 3 * 4096, store: true };
        let block = Block { instructions: [instruction].into(), accesses: [access].into() };
        let slice =
            |n| Item::Slice(Slice { thread: 0, blocks: vec![0; n], addresses: vec![DATA + 8; n] });
        let items = vec![Item::Define { id: 0, block: block.into() }, slice(100), slice(10)];
        let mut source = Pieces::new(items, 110, None);
        let limits = Limits { skip: 100, ..Limits::default() };
        let mut reader = StretchReader::new(&mut source, &limits, 1, Predictors::default());
        let pieces = reader.next_stretch().unwrap().unwrap();
        let touched = pieces.iter().any(|piece| {
            let populated = Event::Populate { address: DATA, length: 4 * 4096, store: true };
            matches!(piece, Piece::Passed(event) if *event == populated)
        });
        assert!(touched);
    }
}
