//! A mix of whose programs windows are measured.
//!
//! Windows come in rounds, one of each program. Round by round all programs are passed over up to their
//! warm-ups, these are warmed together, and then all run with the clock until the last has measured its
//! window. Every program therefore has as many windows as that with the fewest; they are spread over its own
//! run, so that what runs together is as far along, by instructions.
//!
//! - Warm-ups take the same time, at the speeds of the last windows, and end together: what is too
//!   long of one changes no cache. So the shared cache holds of each program what its speed under
//!   this configuration brings there.
//! - A core that has measured its window runs on, uncounted, so that the others go on having
//!   company: with what follows in its program, as far as [`Sampling::after`](crate::Sampling)
//!   says, and then again with what it ran in this round, from where its address space last
//!   changed. Of a recording nothing follows.
//! - What then is left of what follows is warmed, so that under every configuration each round
//!   begins at the same instructions. The others stand still meanwhile, so the next warm-up is so
//!   much shorter for that core.

use flatwalk_symbols::Symbols;
use flatwalk_trace::{Advice, Event, Source};

use super::members::Members;
use super::seeds;
use crate::driver::cores::TURN;
use crate::driver::error::SimulateError;
use crate::driver::piece::{Phase, Piece};
use crate::driver::run::Run;
use crate::driver::sampling::{Limits, Sampled, Schedule};
use crate::driver::stretches::StretchReader;
use crate::report::result::RunResult;
use crate::simulate::end;
use crate::simulate::followers::{Follower, Progress};

/// Instructions in a turn in which no time passes.
const WARMING_TURN: u64 = 1024;

/// What is done of all programs up to the end of a window of each.
pub(super) struct Round {
    parts: Vec<Part>,
    /// There are no windows: it is what comes behind all of them.
    is_rest: bool,
}

/// What is done of one of them.
#[derive(Default)]
struct Part {
    pieces: Vec<Piece>,
    /// Instructions that are warmed.
    warmed: u64,
    /// Something is passed over.
    has_gap: bool,
    /// The first piece behind the window.
    behind: usize,
    /// The first piece that is run again once all have been run.
    again: usize,
}

impl Part {
    fn new(pieces: Vec<Piece>, warmed: u64) -> Self {
        let end = pieces.len();
        let mut part = Self { warmed, again: end, behind: end, ..Self::default() };
        let mut before = None;
        for (number, piece) in pieces.iter().enumerate() {
            match piece {
                &Piece::Phase { phase, .. } => {
                    part.has_gap |= phase == Phase::Pass;
                    if matches!(before, None | Some(Phase::Pass)) {
                        part.again = number;
                    }
                    if before == Some(Phase::Measured) {
                        part.behind = number;
                    }
                    before = Some(phase);
                }
                Piece::Event(event) if takes_memory(event) => part.again = number,
                _ => {}
            }
        }
        if !pieces[part.again..].iter().any(has_instructions) {
            part.again = end;
        }
        Self { pieces, ..part }
    }

    /// Whether a core that is at that piece is to do something in which no time passes.
    fn is_untimed(&self, piece: usize, is_last: impl Fn(Phase) -> bool) -> bool {
        match self.pieces.get(piece) {
            Some(&Piece::Phase { phase, .. }) => !is_last(phase),
            other => other.is_some(),
        }
    }

    /// The first piece from `piece` on that is run again, or else the first of them all; none if nothing is.
    fn next_again(&self, piece: usize) -> Option<usize> {
        let end = self.pieces.len();
        let mut all = (piece.max(self.again)..end).chain(self.again..end);
        all.find(|&piece| matches!(self.pieces[piece], Piece::Slice(_) | Piece::Mispredicted(_)))
    }
}

/// Whether what ran before an event may have used memory that is not there behind it.
fn takes_memory(event: &Event) -> bool {
    match *event {
        Event::Unmap { .. }
        | Event::Remap { .. }
        | Event::Protect { .. }
        | Event::Advise { advice: Advice::DontNeed, .. } => true,
        Event::Break { from, to } => to < from,
        _ => false,
    }
}

/// Whether there is something to run.
fn has_instructions(piece: &Piece) -> bool {
    matches!(piece, Piece::Slice(slice) if !slice.blocks.is_empty())
}

/// Reads several programs, a window of each at a time.
pub(super) struct RoundReader<'a> {
    programs: Vec<(StretchReader<'a>, Choice)>,
    /// Rounds to come.
    left: u64,
}

/// Which of a program's windows are measured, if there are more than rounds.
struct Choice {
    rounds: u64,
    windows: u64,
    seen: u64,
}

impl Choice {
    /// Whether the next window is left out.
    fn leaves_out_next(&mut self) -> bool {
        let number = self.seen;
        self.seen += 1;
        let before =
            |number: u64| u128::from(number) * u128::from(self.rounds) / u128::from(self.windows);
        number >= self.windows || before(number) == before(number + 1)
    }
}

/// The rounds of programs within limits, if there are windows between which something is passed
/// over: how many there are, which is no more than are asked for, and each program's limits. None
/// if all programs are measured whole, or to be measured as one part.
pub(super) fn rounds(
    sources: &[Box<dyn Source>],
    limits: &[Limits],
    seed: u64,
) -> Option<(u64, Vec<Limits>)> {
    let each = || sources.iter().zip(limits).zip(seeds(seed));
    let schedules: Vec<_> =
        each().map(|((source, limits), seed)| Schedule::new(limits, source.info(), seed)).collect();
    if limits.iter().any(|limits| limits.sampling.is_none())
        || !schedules.iter().any(Schedule::is_sampled)
    {
        return None;
    }
    let asked = limits.iter().filter_map(|limits| limits.sampling.as_ref()).map(|s| s.windows);
    let expected = schedules.iter().filter_map(Schedule::expected_windows);
    let rounds = asked.chain(expected).min()?.max(1);
    let fitted = limits.iter().map(|limits| {
        let mut limits = limits.clone();
        if let Some(sampling) = &mut limits.sampling {
            sampling.windows = rounds;
        }
        limits
    });
    Some((rounds, fitted.collect()))
}

impl<'a> RoundReader<'a> {
    /// So many rounds of what `readers` read, of which each has so many windows, about.
    pub(super) fn new(readers: Vec<(StretchReader<'a>, Option<u64>)>, rounds: u64) -> Self {
        let choice = |windows: Option<u64>| {
            let windows = windows.unwrap_or(rounds).max(rounds);
            Choice { rounds, windows, seen: 0 }
        };
        let programs = readers.into_iter().map(|(reader, windows)| (reader, choice(windows)));
        Self { programs: programs.collect(), left: rounds }
    }

    /// The next round; none if there is no other.
    pub(super) fn next(&mut self) -> Result<Option<Round>, SimulateError> {
        let mut parts = Vec::new();
        if self.left == 0 {
            // How far each program goes, and what kernels do there.
            for (reader, _) in &mut self.programs {
                parts.push(Part::new(reader.take_rest()?, 0));
            }
            let has_rest = parts.iter().any(|part| !part.pieces.is_empty());
            return Ok(has_rest.then_some(Round { parts, is_rest: true }));
        }
        self.left -= 1;
        for (reader, choice) in &mut self.programs {
            let mut pieces = Vec::new();
            loop {
                let leaves_out = choice.leaves_out_next();
                let Some(more) = reader.next_window(leaves_out)? else { break };
                pieces.extend(more);
                if !leaves_out {
                    parts.push(Part::new(std::mem::take(&mut pieces), reader.take_warmed()));
                    break;
                }
            }
        }
        if parts.len() < self.programs.len() {
            // Some program has no window in it: no other has one, either.
            self.left = 0;
            self.programs.iter_mut().for_each(|(reader, _)| reader.drop_window());
            return Ok(None);
        }
        Ok(Some(Round { parts, is_rest: false }))
    }

    /// What was measured of each program.
    pub(super) fn summaries(&self) -> Vec<Sampled> {
        self.programs.iter().map(|(reader, _)| reader.summary()).collect()
    }
}

/// One configuration.
pub(super) struct Windows {
    members: Members,
    /// By core: instructions that were warmed behind the last round, while the others stood still.
    ahead: Vec<u64>,
}

impl Follower for Windows {
    type Stretch = Round;

    fn follow(&mut self, round: &Round, progress: &Progress) -> Result<(), SimulateError> {
        let parts = &round.parts;
        self.members.all.iter_mut().for_each(|member| member.go_to(0));
        self.pass_over(parts)?;
        if round.is_rest {
            return Ok(());
        }
        self.warm_together(parts, progress)?;
        self.members.align();
        let states = self.measure(parts, progress)?;
        self.warm_what_is_left(parts, &states, progress)
    }
}

/// What a core does while time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has not measured its window yet.
    Measuring,
    /// It runs what follows its window.
    After,
    /// It runs again what it has run.
    Again,
    /// There is nothing that it could run.
    Idle,
}

/// Another phase begins, which is no window.
fn enter(run: &mut Run, phase: Phase) -> Result<(), SimulateError> {
    run.take(&Piece::Phase { phase, at: 0 }).map_err(|error| SimulateError::os_failure(run, error))
}

/// Cycles that a run would take for so many instructions, at the speed of its last window.
fn time(instructions: u64, run: &Run) -> u128 {
    let (in_window, cycles) = run.pace().unwrap_or((1, 1));
    u128::from(instructions) * u128::from(cycles) / u128::from(in_window)
}

impl Windows {
    pub(super) fn new(members: Members) -> Self {
        Self { ahead: vec![0; members.all.len()], members }
    }

    /// Passes over what comes before the warm-ups.
    fn pass_over(&mut self, parts: &[Part]) -> Result<(), SimulateError> {
        let members = &mut self.members;
        for (core, part) in parts.iter().enumerate() {
            while part.is_untimed(members.all[core].piece(), |phase| phase != Phase::Pass) {
                members.turn(core, &part.pieces, WARMING_TURN, |_| false)?;
            }
        }
        Ok(())
    }

    /// Warms what comes before the windows, with what was warmed behind the last ones.
    fn warm_together(&mut self, parts: &[Part], progress: &Progress) -> Result<(), SimulateError> {
        let members = &mut self.members;
        let ahead = std::mem::replace(&mut self.ahead, vec![0; parts.len()]);
        let mut left: Vec<u64> = parts.iter().map(|part| part.warmed).collect();
        let knows_speeds = members.all.iter().all(|member| member.run.pace().is_some());
        let all = || left.iter().zip(&ahead).zip(&members.all);
        // What is measured without gaps needs no warm-up, and says nothing of the others'.
        let warmed = all().filter(|&((left, ahead), _)| left + ahead > 0);
        let times = warmed.map(|((left, ahead), member)| time(left + ahead, &member.run));
        let shortest = times.min().filter(|_| knows_speeds).unwrap_or(u128::MAX);
        let due: Vec<u128> = all()
            .map(|((_, &ahead), member)| shortest.saturating_sub(time(ahead, &member.run)))
            .collect();
        let has_gap = parts.iter().any(|part| part.has_gap)
            || all().zip(&due).any(|(((&left, _), member), &due)| time(left, &member.run) > due);
        if has_gap {
            members.begin_history();
        }
        while let Some(core) = (0..parts.len())
            .filter(|&core| parts[core].is_untimed(members.all[core].piece(), Phase::has_clock))
            .max_by_key(|&core| (time(left[core], &members.all[core].run), parts.len() - core))
        {
            let member = &mut members.all[core];
            if let Piece::Slice(_) = parts[core].pieces[member.piece()] {
                let is_early = time(left[core], &member.run) > due[core];
                let phase = if is_early { Phase::Pass } else { Phase::Warm };
                if member.run.phase() != phase {
                    enter(&mut member.run, phase)?;
                }
            }
            let ran = members.turn(core, &parts[core].pieces, WARMING_TURN, |_| false)?;
            left[core] = left[core].saturating_sub(ran);
            progress.advance(ran)?;
        }
        if has_gap {
            members.presume_history();
        }
        Ok(())
    }

    /// Runs with the clock until each has measured its window. Returns what each did last.
    fn measure(
        &mut self,
        parts: &[Part],
        progress: &Progress,
    ) -> Result<Vec<State>, SimulateError> {
        let members = &mut self.members;
        let mut states = vec![State::Measuring; parts.len()];
        while states.contains(&State::Measuring) {
            let live = (0..parts.len()).filter(|&core| states[core] != State::Idle);
            let Some(core) = live.min_by_key(|&core| members.all[core].clock()) else { break };
            let (part, before) = (&parts[core], states[core]);
            let ran =
                members.turn(core, &part.pieces, TURN, |other| states[other] != State::Idle)?;
            progress.advance(if before == State::Again { 0 } else { ran })?;
            let member = &mut members.all[core];
            if !member.is_between_pieces() {
                continue;
            }
            if before == State::Measuring && member.piece() >= part.behind {
                states[core] = State::After;
                enter(&mut member.run, Phase::Detailed)?;
            }
            if states[core] == State::Again || member.piece() == part.pieces.len() {
                if states[core] != State::Again {
                    enter(&mut member.run, Phase::Detailed)?;
                }
                let again = part.next_again(member.piece());
                again.inspect(|&piece| member.go_to(piece));
                states[core] = again.map_or(State::Idle, |_| State::Again);
            }
        }
        Ok(states)
    }

    /// Warms what is left of what follows the windows of those that have not run all of it.
    fn warm_what_is_left(
        &mut self,
        parts: &[Part],
        states: &[State],
        progress: &Progress,
    ) -> Result<(), SimulateError> {
        let members = &mut self.members;
        for (core, part) in
            parts.iter().enumerate().filter(|&(core, _)| states[core] == State::After)
        {
            enter(&mut members.all[core].run, Phase::Warm)?;
            while let Some(piece) = part.pieces.get(members.all[core].piece()) {
                if matches!(piece, Piece::Phase { .. }) {
                    let next = members.all[core].piece() + 1;
                    members.all[core].go_to(next);
                    continue;
                }
                let ran = members.turn(core, &part.pieces, WARMING_TURN, |_| false)?;
                self.ahead[core] += ran;
                progress.advance(ran)?;
            }
        }
        Ok(())
    }

    /// The cores' results, of whose programs so much was measured.
    ///
    /// # Errors
    /// When an operating system could not go on.
    pub(super) fn into_results(self, sampled: &[Sampled]) -> Result<Vec<RunResult>, SimulateError> {
        let (mut members, mut symbols) = (self.members, Symbols::default());
        for (member, sampled) in members.all.iter_mut().zip(sampled) {
            end(&mut member.run, sampled)?;
        }
        Ok((0..members.all.len()).map(|core| members.result(core, &mut symbols)).collect())
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_trace::{Backing, Protection, Slice};

    use super::*;

    /// The piece that is run again first where `event` comes in the middle of a window.
    fn again_with(event: Event) -> usize {
        let phase = |phase| Piece::Phase { phase, at: 0 };
        let slice =
            || Piece::Slice(Slice { thread: 0, blocks: vec![0; 10], addresses: Vec::new() });
        let window = [phase(Phase::Pass), slice(), phase(Phase::Measured), slice()];
        let pieces = window.into_iter().chain([Piece::Event(event), slice()]);
        Part::new(pieces.collect(), 0).again
    }

    #[test]
    fn a_core_runs_again_what_it_ran_since_memory_last_went() {
        let (address, length) = (1 << 20, 4096);
        let protection = Protection { read: true, write: true, execute: false };
        for event in [
            Event::Unmap { address, length },
            Event::Remap { from: address, from_length: length, to: 1 << 30, to_length: length },
            Event::Protect { address, length, protection },
            Event::Advise { address, length, advice: Advice::DontNeed },
            Event::Break { from: 2 * address, to: address },
        ] {
            assert_eq!(again_with(event.clone()), 4, "{event:?}");
        }
        let backing = Backing::Anonymous;
        for event in [
            Event::Map { address, length, protection, backing, shared: false },
            Event::Advise { address, length, advice: Advice::HugePage },
            Event::Break { from: address, to: 2 * address },
            Event::ThreadStart { thread: 1 },
            Event::ThreadExit { thread: 1 },
            Event::Marker { name: "here".to_owned() },
        ] {
            assert_eq!(again_with(event.clone()), 2, "{event:?}");
        }
    }
}
