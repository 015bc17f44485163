//! A mix of which each program is measured as one part.
//!
//! Every core measures as many instructions after its own warm-up, and goes on after them until the
//! last core is done, so that all are measured among others that run.

use flatwalk_symbols::Symbols;

use super::Open;
use super::members::Members;
use crate::driver::cores::TURN;
use crate::driver::error::SimulateError;
use crate::driver::piece::Piece;
use crate::driver::predictions::Predictors;
use crate::driver::run::RunConfiguration;
use crate::driver::sampling::{Limits, Sampled, Schedule};
use crate::driver::stretches::StretchReader;
use crate::report::result::RunResult;
use crate::simulate::followers::{Follower, Progress};

/// One configuration. It reads the programs itself: how far each is read depends on the cores' speeds.
pub(super) struct Whole<'a> {
    pub(super) configuration: &'a RunConfiguration,
    pub(super) open: &'a Open<'a>,
    pub(super) limits: &'a [Limits],
    pub(super) seed: u64,
    /// What came out.
    pub(super) runs: Vec<RunResult>,
    /// What was measured of each program.
    pub(super) sampled: Vec<Sampled>,
}

/// A program that is read.
struct Program<'a> {
    reader: StretchReader<'a>,
    /// The stretch that it is at.
    pieces: Vec<Piece>,
    /// Instructions after which its result is taken.
    wanted: u64,
    ended: bool,
    /// What it has measured, and whether it had ended before it should.
    result: Option<(RunResult, bool)>,
}

/// The same as one part. What windows that fill it have as a warm-up lies before it.
fn one_part(limits: &Limits) -> Limits {
    let Limits { skip, warmup, instructions, sampling } = limits;
    let before = sampling.as_ref().map_or(0, |sampling| sampling.warmed_before(*skip));
    Limits {
        skip: skip - before,
        warmup: warmup + before,
        instructions: *instructions,
        sampling: None,
    }
}

impl Follower for Whole<'_> {
    type Stretch = ();

    fn follow(&mut self, &(): &(), progress: &Progress) -> Result<(), SimulateError> {
        let &mut Self { configuration, open, limits, seed, .. } = self;
        let mut sources = super::open_all(open, limits.len())?;
        let infos: Vec<_> = sources.iter().map(|source| source.info().clone()).collect();
        let mut members = Members::new(configuration, &infos, seed)
            .map_err(SimulateError::refused(configuration))?;
        let mut symbols = Symbols::default();
        let programs = sources.iter_mut().zip(limits).map(|(source, limits)| {
            let part = one_part(limits);
            let wanted = part.instructions.map_or(u64::MAX, |n| n.saturating_add(part.warmup));
            let mut reader = StretchReader::new(&mut **source, &part, seed, Predictors::default());
            // Every core runs on until the last one is done.
            reader.measure_on();
            Program { reader, pieces: Vec::new(), wanted, ended: false, result: None }
        });
        let mut programs: Vec<_> = programs.collect();
        while programs.iter().any(|program| program.result.is_none()) {
            let live = (0..programs.len()).filter(|&core| !programs[core].ended);
            let Some(core) = live.min_by_key(|&core| members.all[core].clock()) else { break };
            let program = &mut programs[core];
            if members.all[core].piece() == program.pieces.len() {
                let stretch = program.reader.next_stretch()?;
                program.ended = stretch.is_none();
                program.pieces = stretch.unwrap_or_default();
                members.all[core].go_to(0);
            }
            let pieces = std::mem::take(&mut programs[core].pieces);
            if !pieces.is_empty() {
                let ran = members.turn(core, &pieces, TURN, |other| !programs[other].ended)?;
                progress.advance(ran)?;
            }
            programs[core].pieces = pieces;
            let Program { wanted, ended, ref result, .. } = programs[core];
            let is_done = ended || members.all[core].run.instructions() >= wanted;
            if result.is_none() && is_done {
                members.all[core].run.measured_so_far();
                let mut result = members.result(core, &mut symbols);
                let others = programs.iter().zip(&infos).enumerate();
                let gone = others.filter(|&(other, (one, _))| other != core && one.ended);
                result.warnings.extend(gone.map(|(_, (_, info))| {
                    let name = &info.name;
                    format!("{name} ended before this program was measured: from then on it had less company")
                }));
                programs[core].result = Some((result, ended));
            }
        }
        let results = programs.into_iter().filter_map(|program| program.result);
        let (runs, ended): (Vec<_>, Vec<_>) = results.unzip();
        let each = runs.iter().zip(ended).zip(limits).zip(&infos);
        let sampled = each.map(|(((run, has_ended), limits), info)| {
            let part = one_part(limits);
            let (windows, measured) = (run.windows.len() as u64, run.instructions);
            let position = part.skip + part.warmup + measured;
            Schedule::new(&part, info, seed).summary(position, has_ended, windows, measured)
        });
        self.sampled = sampled.collect();
        self.runs = runs;
        Ok(())
    }
}
