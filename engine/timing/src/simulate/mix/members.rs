//! The cores of a mix, what they share, and a core's turn.

use flatwalk_symbols::Symbols;
use flatwalk_trace::SourceInfo;

use super::seeds;
use crate::ConfigError;
use crate::config::machine::{Isolation, Multicore};
use crate::driver::error::SimulateError;
use crate::driver::piece::{Piece, first_blocks};
use crate::driver::run::{Mode, Run, RunConfiguration};
use crate::mechanisms;
use crate::memory::hierarchy::SharedCaches;
use crate::memory::replacement::{ReplacementPolicy, Turn};
use crate::report::result::RunResult;

/// A core and its program.
pub(super) struct Member {
    pub(super) run: Run,
    name: String,
    seed: u64,
    /// The piece that it takes next …
    piece: usize,
    /// … and the first of its blocks and addresses that have not been run.
    within: (usize, usize),
}

impl Member {
    /// The core's time, in cycles.
    pub(super) fn clock(&self) -> u64 {
        self.run.timed.as_ref().map_or(0, |(core, _)| core.cycle())
    }

    /// No request of this core names a time before this.
    fn frontier(&self) -> u64 {
        self.run.timed.as_ref().map_or(0, |(_, caches)| caches.frontier())
    }

    /// The replacement policy that its scheme wants of a cache that cores share, if it does.
    fn shared_policy(&self) -> Option<Box<dyn ReplacementPolicy>> {
        let (_, caches) = self.run.timed.as_ref()?;
        let [_, llc] = caches.policies();
        llc?.for_shared_cache()
    }

    /// The piece that it takes next, by its number.
    pub(super) fn piece(&self) -> usize {
        self.piece
    }

    /// None of the piece that it takes next has been run.
    pub(super) fn is_between_pieces(&self) -> bool {
        self.within == (0, 0)
    }

    /// It goes on with this piece.
    pub(super) fn go_to(&mut self, piece: usize) {
        (self.piece, self.within) = (piece, (0, 0));
    }

    /// Takes the next of `pieces`, or `enough` instructions of it.
    fn turn(&mut self, pieces: &[Piece], enough: u64) -> Result<(), SimulateError> {
        let piece = &pieces[self.piece];
        let result = if let Piece::Slice(slice) = piece {
            let (block, address) = self.within;
            let (count, accesses, _) =
                first_blocks(&slice.blocks[block..], enough, |id| self.run.block(id));
            let (blocks, addresses) = (block..block + count, address..address + accesses);
            if blocks.end == slice.blocks.len() {
                self.go_to(self.piece + 1);
            } else {
                self.within = (blocks.end, addresses.end);
            }
            self.run.take_part(slice, blocks, addresses)
        } else {
            self.go_to(self.piece + 1);
            self.run.take(piece)
        };
        result.map_err(|error| SimulateError::os_failure(&self.run, error))
    }

    /// Exchanges its last-level cache for the shared one, or gives that back.
    fn exchange(&mut self, shared: &mut SharedCaches) {
        if let Some((_, caches)) = &mut self.run.timed {
            caches.share(shared, u64::MAX);
        }
    }
}

/// All cores under one configuration.
pub(super) struct Members {
    pub(super) all: Vec<Member>,
    shared: SharedCaches,
    /// A bit for each core whose page-table lines are protected.
    protected: u64,
}

impl Members {
    /// One core for each source that `infos` describe.
    ///
    /// # Errors
    /// When the configuration cannot be.
    pub(super) fn new(
        configuration: &RunConfiguration,
        infos: &[SourceInfo],
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let multicore = fitting(configuration, infos.len())?;
        let machine = &configuration.machine;
        let memory = configuration.memory_bytes.unwrap_or(machine.os.memory_bytes);
        // Whole gigabytes, as a machine's memory is.
        let part = (memory / u64::from(multicore.cores)) & !((1 << 30) - 1);
        // Each program has one core.
        let own = RunConfiguration {
            memory_bytes: Some(part.max(1 << 30)),
            cores: Some(1),
            ..configuration.clone()
        };
        let mut all = Vec::new();
        for ((core, info), seed) in (0..).zip(infos).zip(seeds(seed)) {
            let mut run = Run::new(own.clone(), info, seed)?;
            if let Some((_, caches)) = &mut run.timed {
                caches.own(core);
            }
            let name = info.name.clone();
            all.push(Member { run, name, seed, piece: 0, within: (0, 0) });
        }
        let policy = match all.first().and_then(Member::shared_policy) {
            Some(_) if multicore.isolation == Isolation::Ways => {
                let scheme = &configuration.scheme.name;
                return Err(ConfigError::Value {
                    key: "multicore.isolation".to_owned(),
                    problem: format!(
                        "cannot be \"ways\" with scheme `{scheme}`, which divides the ways of the \
                         last-level cache itself: write \"owners\", or leave out the scheme"
                    ),
                });
            }
            Some(policy) => policy,
            None => mechanisms::shared_policy(machine, multicore)?,
        };
        let shared = SharedCaches::new(machine, policy, seed)
            .ok_or_else(|| ConfigError::NotTimed(machine.name.clone()))?;
        let spares =
            |(core, member): (usize, &Member)| u64::from(member.run.protects_page_tables()) << core;
        let protected = all.iter().enumerate().map(spares).sum();
        Ok(Self { all, shared, protected })
    }

    /// The core takes the next of `pieces`, or `enough` instructions of it, while others may run
    /// that `is_live` says it of. Returns how many instructions it has run.
    ///
    /// # Errors
    /// When its operating system could not go on.
    pub(super) fn turn(
        &mut self,
        core: usize,
        pieces: &[Piece],
        enough: u64,
        is_live: impl Fn(usize) -> bool,
    ) -> Result<u64, SimulateError> {
        let others = self.all.iter().enumerate().filter(|&(i, _)| i != core && is_live(i));
        let others = others.map(|(_, other)| other.frontier()).min().unwrap_or(u64::MAX);
        let member = &mut self.all[core];
        if let Some((_, caches)) = &mut member.run.timed {
            self.shared.begin_turn(Turn { owner: core as u64, protected: self.protected });
            caches.share(&mut self.shared, others);
        }
        let before = member.run.instructions();
        member.turn(pieces, enough)?;
        let protects = u64::from(member.run.protects_page_tables());
        self.protected = self.protected & !(1 << core) | protects << core;
        member.exchange(&mut self.shared);
        Ok(member.run.instructions() - before)
    }

    /// What a core has measured so far, with what the shared cache has.
    pub(super) fn result(&mut self, core: usize, symbols: &mut Symbols) -> RunResult {
        let Self { all, shared, .. } = self;
        let member = &mut all[core];
        member.exchange(shared);
        let result = RunResult::new(&member.run, &member.name, member.seed, symbols);
        member.exchange(shared);
        result
    }

    /// Something has been passed over; see [`SharedCaches::begin_history`].
    pub(super) fn begin_history(&mut self) {
        self.shared.begin_history();
    }

    /// Time passes again; see [`SharedCaches::presume_history`].
    pub(super) fn presume_history(&mut self) {
        let caches = self.all.iter().filter_map(|member| member.run.timed.as_ref());
        let l2_lines = caches.map(|(_, caches)| caches.l2_lines()).max().unwrap_or(0);
        let data_bytes = self.all.iter().map(|member| member.run.system.data_bytes()).sum();
        self.shared.presume_history(l2_lines, data_bytes);
    }

    /// All clocks are set to that which is furthest ahead.
    pub(super) fn align(&mut self) {
        let latest = self.all.iter().map(Member::clock).max().unwrap_or(0);
        for member in &mut self.all {
            member.run.idle_until(latest);
        }
    }
}

/// The machine's cores, if `cores` programs fit them and can be timed.
fn fitting(configuration: &RunConfiguration, cores: usize) -> Result<Multicore, ConfigError> {
    let machine = &configuration.machine;
    machine.validate()?;
    let value = |key: &str, problem: String| ConfigError::Value { key: key.to_owned(), problem };
    let multicore = machine.multicore.ok_or_else(|| {
        value(
            "multicore",
            format!("machine `{}` has no such section: it has one core", machine.name),
        )
    })?;
    if cores == 0 || cores > multicore.cores as usize {
        let problem = format!("{} cannot run {cores} programs at once", multicore.cores);
        return Err(value("multicore.cores", problem));
    }
    if configuration.mode != Mode::Timing {
        return Err(value("mode", "cores that share nothing but time need `timing`".to_owned()));
    }
    Ok(multicore)
}
