//! Explains one translation step by step, in the state that a trace leaves the machine in.

use flatwalk_os::OsError;
use flatwalk_paging::keyed::{Design, Keyed, ReadWords};
use flatwalk_paging::{
    AccessKind, Address, Decoded, Entry, Geometry, Gva, Hpa, Level, PageTable, Physical,
    levels_spanned,
};
use flatwalk_trace::{Source, SourceInfo};
use serde::Serialize;

use crate::config::scheme::TranslationMode;
use crate::driver;
use crate::driver::error::SimulateError;
use crate::driver::predictions::Predictors;
use crate::driver::run::{Run, RunConfiguration};
use crate::driver::sampling::Limits;
use crate::driver::stretches::StretchReader;
use crate::memory::hierarchy::Served;
use crate::memory::reader::NoClock;
use crate::mmu::event::{Found, Read, Request, Stage, WalkObserver};
use crate::mmu::mechanism::{Explained, Mechanism};
use crate::mmu::pwc::Pwc;
use crate::mmu::side_cache::SideCache;
use crate::mmu::walker::{Caches, Walker};
use crate::report::words::{page_size, several};
use crate::system::{Handled, System, Untranslated};

/// One step of an explanation.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)] // The fields are what `text` says.
pub enum ExplainStep {
    /// The page was not mapped: the operating system was asked first.
    Fault { text: String },
    /// A TLB answered.
    Tlb { text: String, name: String, hit: bool },
    /// A page-walk cache answered.
    Pwc { text: String, level: String, hit: bool },
    /// An entry on the path; `skipped` if a page-walk cache spared the access.
    Entry {
        text: String,
        level: String,
        index: u64,
        index_bits: [u8; 2],
        entry_address: String,
        entry: String,
        meaning: String,
        skipped: bool,
        served_by: Option<&'static str>,
        cycles: Option<u64>,
    },
}

/// A translation explained.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Explanation {
    pub scheme: String,
    pub machine: String,
    pub workload: String,
    /// Instructions that were run before.
    pub instructions: u64,
    pub address: String,
    /// Where the address lies in the scheme's narrower address space, if it was moved.
    pub moved_to: Option<String>,
    pub physical: String,
    /// The size of its page; absent where no page table says where it is.
    pub page: Option<String>,
    pub steps: Vec<ExplainStep>,
    /// Entries that a walk reads now.
    pub accesses: u64,
    /// Its latency, page-walk caches included.
    pub latency_cycles: Option<u64>,
}

/// Runs the first `instructions` of `source`, then explains the translation of `address` (default:
/// the last data address used).
///
/// # Errors
/// See [`SimulateError`].
pub fn explain(
    source: &mut dyn Source,
    configuration: RunConfiguration,
    instructions: u64,
    address: Option<u64>,
    seed: u64,
) -> Result<Explanation, SimulateError> {
    let info: SourceInfo = source.info().clone();
    // What is explained is one core's.
    let configuration = RunConfiguration { cores: Some(1), ..configuration };
    let mut run = driver::start(configuration, &info, seed)?;
    // Of a sample, what is recorded counts: its first instructions may lie in a gap.
    let most = (info.gap_instructions == 0).then_some(instructions);
    let limits = Limits { instructions: most, ..Limits::default() };
    let mut reader = StretchReader::new(source, &limits, seed, Predictors::default());
    while run.instructions() < instructions
        && let Some(window) = reader.next_stretch()?
    {
        for piece in &window {
            run.take(piece).map_err(|error| SimulateError::os_failure(&run, error))?;
        }
    }
    let (given, address) = if let Some(address) = address {
        (address, run.relocated_address(address))
    } else {
        let instructions = run.instructions();
        let last = run.last_address().ok_or(SimulateError::NoAddress { instructions })?;
        (last, last)
    };
    let mut explanation = Explanation {
        scheme: run.configuration.scheme.name.clone(),
        machine: run.configuration.machine.name.clone(),
        workload: info.name,
        instructions: run.instructions(),
        address: format!("{given:#x}"),
        moved_to: (given != address).then(|| format!("{address:#x}")),
        physical: String::new(),
        page: None,
        steps: Vec::new(),
        accesses: 0,
        latency_cycles: None,
    };
    let mut steps = Vec::new();
    if let Some(physical) = explain_segment(&run, address, &mut steps) {
        explanation.physical = format!("{physical:#x}");
        explanation.steps = steps;
        return Ok(explanation);
    }
    let (found, whole) = map(&mut run, Gva::new(address), &mut steps)
        .map_err(|error| SimulateError::os_failure(&run, error))?;
    let within = run.system.geometry().within(address, found.level);
    let free = run.configuration.scheme.translation == TranslationMode::Free;
    let mut read = Vec::new();
    if !free {
        explain_tlbs(&run, address, &mut steps);
        explain_mechanisms(&mut run, address, &mut steps);
        explain_pwc(&run, address, &mut steps);
        // A walk changes caches, so it is made with copies, long after everything has arrived.
        let request = Request { address: Gva::new(address), kind: AccessKind::Load, at: BEGAN };
        let mut with = run.mmu.clone();
        let mut reads = Reads::default();
        let result = match &run.timed {
            Some((_, caches)) => {
                let mut caches = caches.clone();
                with.walk_bare(request, &mut run.system, &mut *caches, &mut reads)
            }
            None => with.walk_bare(request, &mut run.system, &mut NoClock, &mut reads),
        };
        explanation.latency_cycles =
            result.ok().filter(|_| run.timed.is_some()).map(|found| found.ready - BEGAN);
        debug_assert!(result.is_ok(), "the page was mapped just now");
        read = reads.0;
    }
    explanation.accesses = read.len() as u64;
    if run.mmu.mechanisms().any(|mechanism| mechanism.hooks().part_of_walker) {
        // What such a walker reads again is said in words.
        read.truncate(whole.len());
    }
    explain_reads(&run, &whole, read, free, &mut steps);
    explanation.physical = format!("{:#x}", found.frame.offset(within));
    explanation.page = Some(page_size(run.system.geometry(), found.level));
    explanation.steps = steps;
    Ok(explanation)
}

/// A cycle long after everything has arrived.
const BEGAN: u64 = 1 << 60;

/// Where a mechanism next to the first TLB translates `address` to, if one does.
fn explain_segment(run: &Run, address: u64, steps: &mut Vec<ExplainStep>) -> Option<Hpa> {
    let (physical, name) = run.mmu.mechanisms().find_map(|mechanism| {
        // What it counts is counted in a copy.
        let found = mechanism.peek(Gva::new(address))?;
        Some((found, mechanism.name()))
    })?;
    let text = format!(
        "{name}: it translates the address while the L1 TLB is looked up. No page table is read."
    );
    steps.push(ExplainStep::Tlb { text, name: name.to_owned(), hit: true });
    Some(physical)
}

/// What mechanisms are asked for a translation before a walk, and answer.
fn explain_mechanisms(run: &mut Run, address: u64, steps: &mut Vec<ExplainStep>) {
    let request = Request { address: Gva::new(address), kind: AccessKind::Load, at: BEGAN };
    let asked = run.mmu.mechanisms().filter(|mechanism| mechanism.hooks().look_up);
    let names: Vec<_> = asked.map(|m| m.read_name().unwrap_or(m.name())).collect();
    if names.is_empty() {
        return;
    }
    let name = names.join(" and ");
    // Asking changes contents and caches, so copies are asked.
    let mut mmu = run.mmu.clone();
    let (found, count) = match &run.timed {
        Some((_, caches)) => mmu.ask_mechanisms(request, &mut run.system, &mut *caches.clone()),
        None => mmu.ask_mechanisms(request, &mut run.system, &mut NoClock),
    };
    let (ready, hit) = match found {
        Ok(found) => (found.ready, true),
        Err(missed) => (missed, false),
    };
    let after = match &run.timed {
        Some(_) => format!(" after {}", several(ready - BEGAN, "cycle", "cycles")),
        None => String::new(),
    };
    let lines = several(count, "line", "lines");
    let text = if hit {
        format!("{name}: hit{after}, {lines} read. What follows is what a miss would do.")
    } else {
        format!("{name}: miss{after}, {lines} read.")
    };
    steps.push(ExplainStep::Tlb { text, name, hit });
}

/// All that is known of each entry read.
#[derive(Default)]
struct Reads(Vec<Read>);

impl WalkObserver for Reads {
    fn read(&mut self, read: &Read) {
        self.0.push(*read);
    }
}

/// Sees to it that `address` is mapped; returns where, and what a walk without any caches reads.
fn map(
    run: &mut Run,
    address: Gva,
    steps: &mut Vec<ExplainStep>,
) -> Result<(Found, Vec<Read>), OsError> {
    loop {
        let mut reads = Reads::default();
        let mut walker = run.mmu.walker().without_caches();
        let walk =
            walker.walk(address, AccessKind::Load, 0, &mut run.system, &mut NoClock, &mut reads);
        let stopped = match walk {
            Ok(found) => return Ok((found, reads.0)),
            Err(stopped) => stopped,
        };
        let mut all = Vec::new();
        run.system
            .fault(stopped.untranslated, AccessKind::Load, &mut |handled| all.push(handled))?;
        for handled in &all {
            run.mmu.carry_out(&handled.flushes);
        }
        let (who, at) = match stopped.untranslated {
            Untranslated::Virtual(at) => ("the operating system", at.raw()),
            Untranslated::GuestPhysical(at) => ("the host", at.raw()),
        };
        let (first, more) = all.split_at(1);
        steps.push(ExplainStep::Fault {
            text: format!(
                "Nothing was mapped at {at:#x}: {who} maps a page first ({}).",
                took(first)
            ),
        });
        if !more.is_empty() {
            let pages = several(more.len() as u64, "page", "pages");
            steps.push(ExplainStep::Fault {
                text: format!(
                    "The guest's kernel fills memory for that: the host maps {pages} of it first ({}).",
                    took(more)
                ),
            });
        }
    }
}

/// What handling these faults took, in words.
fn took(handled: &[Handled]) -> String {
    let nodes = handled.iter().map(|handled| handled.work.nodes).sum();
    let entries = handled.iter().map(|handled| handled.work.entries_written).sum();
    format!(
        "{} allocated, {} written",
        several(nodes, "page-table node", "page-table nodes"),
        several(entries, "entry", "entries")
    )
}

fn explain_tlbs(run: &Run, address: u64, steps: &mut Vec<ExplainStep>) {
    for (name, tlb) in run.mmu.tlbs() {
        if name == "L1I" || tlb.is_empty() {
            continue;
        }
        // A look-up changes recency, so it is made in a copy.
        let mut tlb = tlb.clone();
        let found = tlb.look_up(address);
        let text = match found {
            Some((entry, latency)) => format!(
                "{name} TLB: hit, a {} page at {:#x}, after {}. What follows is what a miss would do.",
                page_size(run.system.geometry(), entry.level),
                entry.frame,
                several(latency, "cycle", "cycles")
            ),
            None => format!("{name} TLB: miss."),
        };
        let name = name.to_owned();
        steps.push(ExplainStep::Tlb { text, name, hit: found.is_some() });
    }
}

/// What the page-walk caches answer: with a guest those that hold its nodes. The host's are asked in
/// each of its walks.
fn explain_pwc(run: &Run, address: u64, steps: &mut Vec<ExplainStep>) {
    let [.., (_, l2)] = run.mmu.tlbs();
    let explained = |mechanism: &dyn Mechanism| mechanism.explain(Gva::new(address), l2);
    if let Some(Explained { text, name, hit }) = run.mmu.mechanisms().find_map(explained) {
        steps.push(ExplainStep::Pwc { text, level: name.to_owned(), hit });
        return;
    }
    match (run.mmu.walker(), &run.system) {
        (Walker::Native(caches), System::Native(process)) => {
            explain_caches(caches, process.table(), "", address, steps);
        }
        (Walker::Native(caches), System::Recorded(_)) => {
            if let Caches::Tree(pwc) = &**caches {
                explain_structures(pwc, "", address, steps);
            }
        }
        (walker @ Walker::Nested(nested), System::Virtual(vm)) => {
            let segment = walker.guest_segment();
            if segment.is_some_and(|segment| segment.place(Gva::new(address)).is_some()) {
                explain_stage("guest", "the address lies in the guest's memory", steps);
            } else {
                explain_caches(&nested.guest, vm.guest.table(), "guest ", address, steps);
            }
            if walker.host_segment().is_some() {
                explain_stage("host", "the guest's memory lies in the machine's", steps);
            }
        }
        _ => unreachable!("a walker is made for the system that it walks"),
    }
}

/// A segment in place of the walk of the guest's table, or of the host's.
fn explain_stage(whose: &str, what: &str, steps: &mut Vec<ExplainStep>) {
    let name = format!("{whose} segment");
    let text =
        format!("{name}: it says where {what}. The {whose}'s page table is not read for that.");
    steps.push(ExplainStep::Tlb { text, name, hit: true });
}

fn explain_caches<A: Physical>(
    caches: &Caches<A>,
    table: &PageTable<Gva, A>,
    whose: &str,
    address: u64,
    steps: &mut Vec<ExplainStep>,
) {
    match (caches, table) {
        (Caches::Tree(pwc), _) => explain_structures(pwc, whose, address, steps),
        (Caches::Keyed(side), PageTable::Keyed(table)) => {
            explain_side(side, table, whose, address, steps);
        }
        (Caches::Keyed(_), PageTable::Tree(_)) => {
            unreachable!("caches are made for the table that is walked")
        }
    }
}

/// What the caches of side lines answer.
fn explain_side<A: Physical>(
    side: &SideCache,
    table: &Keyed<Gva, A>,
    whose: &str,
    address: u64,
    steps: &mut Vec<ExplainStep>,
) {
    let input = Gva::new(address);
    let (found, known) = side.probe(table, input);
    for (name, hit, needed) in found {
        let text = match (hit, needed) {
            (true, _) => {
                let known = table.explain_known(input, &known);
                format!("{whose}{name}: hit. What is known in all: {known}.")
            }
            (false, false) => format!("{whose}{name}: miss; its line is read after the walk."),
            (false, true) => format!("{whose}{name}: miss; its line is read first."),
        };
        steps.push(ExplainStep::Pwc { text, level: format!("{whose}{name}"), hit });
    }
}

fn explain_structures<A: Physical>(
    pwc: &Pwc<A>,
    whose: &str,
    address: u64,
    steps: &mut Vec<ExplainStep>,
) {
    let geometry = pwc.geometry();
    for (structure, node) in pwc.probe(address) {
        let text = match node {
            Some(node) => format!(
                "{whose}{structure} PWC: hit on VA[{}:{}], the walk can go on at the {} node at {:#x}.",
                geometry.address_bits() - 1,
                geometry.shift(node.level + 1),
                levels_spanned(node.level, node.width),
                node.base
            ),
            None => format!("{whose}{structure} PWC: miss."),
        };
        let level = format!("{whose}{structure}");
        steps.push(ExplainStep::Pwc { text, level, hit: node.is_some() });
    }
}

/// The entries on the path, `whole`; those that are not in `read` are skipped.
fn explain_reads(
    run: &Run,
    whole: &[Read],
    mut read: Vec<Read>,
    free: bool,
    steps: &mut Vec<ExplainStep>,
) {
    let all = read.clone();
    // The same entry of a host's table can be read several times. What caches spare is the beginning
    // of a walk, so the two are laid beside each other from their ends.
    let mut beside = Vec::new();
    for on_path in whole.iter().rev() {
        let same = |read: &Read| {
            read.stage == on_path.stage && read.entry_address == on_path.entry_address
        };
        beside.push((on_path, read.pop_if(|last| same(last))));
    }
    if let (Some(_), Some(first)) = (read.first(), all.first()) {
        // Where nodes overlap, the way from the one that a cache knows can be another from the start.
        let above = |on_path: &&Read| on_path.stage != first.stage || on_path.top > first.top;
        for on_path in whole.iter().take_while(above) {
            steps.push(explain_read(run, on_path, None, free));
        }
        for read in &all {
            steps.push(explain_read(run, read, Some(*read), free));
        }
        return;
    }
    for (on_path, read) in beside.into_iter().rev() {
        steps.push(explain_read(run, on_path, read, free));
    }
}

fn explain_read(run: &Run, on_path: &Read, read: Option<Read>, free: bool) -> ExplainStep {
    let walker = run.mmu.walker();
    let (whose, input, geometry) = match (walker, on_path.stage) {
        (Walker::Native(caches), _) => ("", "VA", caches.geometry()),
        (Walker::Nested(nested), Stage::One) => ("guest ", "VA", nested.guest.geometry()),
        (Walker::Nested(nested), Stage::Two) => ("  host ", "gPA", nested.host.geometry()),
    };
    if let Some(line) = on_path.line {
        let design = match (walker, on_path.stage) {
            (Walker::Native(caches), _) => design_of(caches),
            (Walker::Nested(nested), Stage::One) => design_of(&nested.guest),
            (Walker::Nested(nested), Stage::Two) => design_of(&nested.host),
        };
        let page = geometry.shift(line.level.min(geometry.levels()));
        let bits = (geometry.address_bits() - 1, page + design.pages_shift(&line));
        let words = design.explain(&line, &format!("{input}[{}:{}]", bits.0, bits.1));
        return explain_line(run, on_path, (whose, geometry, bits, words), read, free);
    }
    let width = on_path.top + 1 - on_path.level;
    let index = geometry.index(on_path.input, on_path.top, width);
    let (high, low) = (geometry.shift(on_path.top + 1) - 1, geometry.shift(on_path.level));
    let (served_by, cycles, how) = served(run, read, free);
    let level = levels_spanned(on_path.top, width);
    let (entry_address, entry) = (on_path.entry_address, on_path.entry);
    let meaning = meaning(entry, geometry, on_path.level);
    ExplainStep::Entry {
        text: format!(
            "{whose}{level} node at {:#x}: {input}[{high}:{low}] = {index} → entry at \
             {entry_address:#x} = {:#018x}, {meaning}{how}.",
            on_path.node, entry.0
        ),
        level: format!("{}{level}", whose.trim_start()),
        index,
        index_bits: [high, low],
        entry_address: format!("{entry_address:#x}"),
        entry: format!("{:#018x}", entry.0),
        meaning,
        skipped: read.is_none(),
        served_by,
        cycles,
    }
}

/// Who had what was read, after how many cycles, and both in words.
fn served(
    run: &Run,
    read: Option<Read>,
    free: bool,
) -> (Option<&'static str>, Option<u64>, String) {
    let timed = read.filter(|_| run.timed.is_some());
    let served_by = timed.map(|read| match read.response.served() {
        Served::L1 => "L1D",
        Served::L2 => "L2",
        Served::Llc => "LLC",
        Served::Dram => "DRAM",
    });
    let cycles = timed.map(|read| read.response.ready - read.asked);
    let how = match (&read, served_by.zip(cycles)) {
        (None, _) if free => " (translation is free: nothing is read)".to_owned(),
        (None, _) => " (skipped: a cache knows the way)".to_owned(),
        (Some(_), Some((by, cycles))) => format!(" ({by}, {})", several(cycles, "cycle", "cycles")),
        (Some(_), None) => String::new(),
    };
    (served_by, cycles, how)
}

/// The design of the table that `caches` are for, of which lines are read.
fn design_of<A: Physical>(caches: &Caches<A>) -> &dyn Design {
    match caches {
        Caches::Keyed(side) => side.design(),
        Caches::Tree(_) => unreachable!("entries of a tree are read one by one"),
    }
}

/// A line of a table without a tree; `read` if it was read and not skipped.
fn explain_line(
    run: &Run,
    on_path: &Read,
    (whose, geometry, (high, low), words): (&str, Geometry, (u8, u8), ReadWords),
    read: Option<Read>,
    free: bool,
) -> ExplainStep {
    let ReadWords { table, place, index, found_by, meaning: told } = words;
    let (served_by, cycles, how) = served(run, read, free);
    let (address, entry) = (on_path.entry_address, on_path.entry);
    let found = on_path.line.is_some_and(|line| line.found);
    let meaning = told.unwrap_or_else(|| meaning(entry, geometry, on_path.level));
    let shown = if found && entry.0 != 0 { format!(" = {:#018x}", entry.0) } else { String::new() };
    ExplainStep::Entry {
        text: format!(
            "{whose}{table} table, {place}: {found_by}, at {address:#x}{shown}, {meaning}{how}."
        ),
        level: format!("{}{table} {place}", whose.trim_start()),
        index,
        index_bits: [high, low],
        entry_address: format!("{address:#x}"),
        entry: format!("{:#018x}", entry.0),
        meaning,
        skipped: read.is_none(),
        served_by,
        cycles,
    }
}

fn meaning(entry: Entry, geometry: Geometry, level: Level) -> String {
    match entry.decode::<Hpa>(geometry, level) {
        Decoded::Absent => "absent".to_owned(),
        Decoded::Reserved => "reserved bits are set".to_owned(),
        Decoded::Table { base, level: next, width } => {
            let overlap = if next == level { ", with this level's bits once more" } else { "" };
            format!("points to the {} node at {base:#x}{overlap}", levels_spanned(next, width))
        }
        Decoded::Mapped { frame, level: page } => {
            let replica = if page > level { " (one of its replicas)" } else { "" };
            let a = if entry.is_accessed() { ", accessed" } else { "" };
            let d = if entry.is_dirty() { ", dirty" } else { "" };
            let size = page_size(geometry, page);
            format!("maps the {size} page at {frame:#x}{replica}{a}{d}")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::driver::run::Mode;
    use crate::tests::testing::{DATA, Do, Scenario, chained_scheme, go, merging_scheme, scheme};

    const LARGE: u64 = 2 << 20;
    const GIB: u64 = 1 << 30;
    const PUD: u64 = 512 * GIB;

    /// For each entry that the explanation of a walk names, whether it is skipped.
    fn skipped(run: &mut Run, with: &mut Walker, address: u64) -> Vec<bool> {
        let address = Gva::new(address);
        let (_, whole) = map(run, address, &mut Vec::new()).unwrap();
        let mut reads = Reads::default();
        with.walk(address, AccessKind::Load, 0, &mut run.system, &mut NoClock, &mut reads).unwrap();
        let mut steps = Vec::new();
        explain_reads(run, &whole, reads.0, false, &mut steps);
        let skipped = |step| match step {
            ExplainStep::Entry { skipped, .. } => skipped,
            other => panic!("{other:?} in a walk"),
        };
        steps.into_iter().map(skipped).collect()
    }

    #[test]
    fn a_walk_that_begins_beside_the_way_from_the_root_is_told_in_full() {
        // Nodes merge when two of their entries gain, and stay for one.
        let scheme = merging_scheme(2, 1, 0.0);
        let scenario = Scenario { mode: Mode::Functional, ..Scenario::new(scheme) };
        let mut run = scenario.start(&[(DATA, 2 * PUD)], false);
        // A PGD/PUD; a PUD/PMD of two sparse PMDs; then one of these merges with its PTEs.
        go(&mut run, &[DATA, DATA + PUD, DATA + GIB, DATA + LARGE].map(Do::Load));
        let statistics = run.system.statistics();
        assert_eq!((statistics.merges, statistics.unmerges), (3, 0));
        let mut with = run.mmu.walker().clone();
        with.flush();
        // The way from the root leads past the PUD/PMD, straight to the PMD/PTE …
        assert_eq!(skipped(&mut run, &mut with, DATA), [false, false]);
        with.flush();
        assert_eq!(skipped(&mut run, &mut with, DATA + GIB), [false, false, false]);
        // … but a cache knows the PUD/PMD, so the walk begins there.
        assert_eq!(skipped(&mut run, &mut with, DATA), [true, false, false]);
        assert_eq!(skipped(&mut run, &mut with, DATA), [true, false]);
    }

    #[test]
    fn where_nothing_was_accessed_there_is_no_last_address() {
        let explained = |instructions, address| {
            let arguments = flatwalk_workloads::Arguments::new(16 << 20, 1);
            let mut source = flatwalk_workloads::open("gups", &arguments).unwrap();
            let configuration = Scenario::new(scheme(4, &[])).configuration();
            let explained = explain(&mut *source, configuration, instructions, address, 1);
            explained.map(|found| found.address).map_err(|error| error.to_string())
        };
        let refused = explained(0, None).unwrap_err();
        let expected = "no data was accessed in the first 0 instructions, so that there is no last address; \
             give an ADDRESS";
        assert_eq!(refused, expected);
        let last = explained(1000, None).unwrap();
        let address = u64::from_str_radix(&last[2..], 16).unwrap();
        assert_eq!(explained(0, Some(address)), Ok(last));
    }

    #[test]
    fn a_segment_is_told_in_place_of_a_walk() {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.mechanisms.set("direct_segment", json!({ "memory_fraction": 0.5 }));
        let mut run = scenario.start(&[(DATA, LARGE), (DATA + PUD, 4096)], true);
        go(&mut run, &[Do::Load(DATA)]);
        let mut steps = Vec::new();
        let end = run.configuration.machine.os.memory_bytes;
        assert_eq!(explain_segment(&run, DATA, &mut steps), Some(Hpa::new(end - LARGE)));
        let [ExplainStep::Tlb { hit: true, text, .. }] = &steps[..] else { panic!("{steps:?}") };
        assert!(text.contains("direct_segment: it translates the address"), "{text}");
        assert_eq!(explain_segment(&run, DATA + PUD, &mut steps), None);
    }

    #[test]
    fn a_tlb_in_memory_is_asked_before_a_walk() {
        let mut scenario = Scenario::new(scheme(4, &[]));
        let settings = json!({ "size_bytes": 1 << 20, "predictor_entries": 512 });
        scenario.scheme.mechanisms.set("pom_tlb", settings);
        let mut run = scenario.start(&[(DATA, LARGE)], true);
        let told = |run: &mut Run, address| {
            let mut steps = Vec::new();
            explain_mechanisms(run, address, &mut steps);
            let [ExplainStep::Tlb { hit, text, .. }] = &steps[..] else { panic!("{steps:?}") };
            (*hit, text.clone())
        };
        let hit =
            "POM-TLB: hit after 142 cycles, 1 line read. What follows is what a miss would do.";
        for _ in 0..2 {
            assert_eq!(
                told(&mut run, DATA + 4096),
                (true, hit.to_owned()),
                "asking changes nothing"
            );
        }
        let (hit, text) = told(&mut run, DATA + GIB);
        assert!(!hit && text.starts_with("POM-TLB: miss after"), "{text}");
        let mut plain = Scenario::new(scheme(4, &[])).start(&[(DATA, LARGE)], true);
        let mut steps = Vec::new();
        explain_mechanisms(&mut plain, DATA, &mut steps);
        assert!(steps.is_empty());
    }

    #[test]
    fn nodes_of_a_chain_are_told_in_order() {
        let scenario = Scenario::new(chained_scheme("clustered", 32));
        let mut run = scenario.start(&[(DATA, 32 * 16 * 4096)], true);
        let (mut most, mut caches) = (0, run.mmu.walker().without_caches());
        for block in 0..32 {
            let address = Gva::new(DATA + block * 16 * 4096);
            let (_, whole) = map(&mut run, address, &mut Vec::new()).unwrap();
            let mut reads = Reads::default();
            caches
                .walk(address, AccessKind::Load, 0, &mut run.system, &mut NoClock, &mut reads)
                .unwrap();
            let mut steps = Vec::new();
            explain_reads(&run, &whole, reads.0, false, &mut steps);
            let texts = steps.iter().map(|step| match step {
                ExplainStep::Entry { text, .. } => text.as_str(),
                other => panic!("{other:?} in a walk"),
            });
            let texts: Vec<_> = texts.collect();
            assert!(
                texts[0].contains("node 0 of the chain: VA[47:16] hashes to line"),
                "{texts:?}"
            );
            assert!(texts[texts.len() - 1].contains("maps the 4K page"), "{texts:?}");
            most = most.max(texts.iter().filter(|text| text.contains("linked to that")).count());
        }
        assert!(most > 0, "no two blocks share a bucket");
    }
}
