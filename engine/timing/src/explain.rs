//! Explains one translation step by step, in the state that a trace leaves the machine in.

use flatwalk_os::Access;
use flatwalk_paging::{Address, Decoded, Entry, EntryMemory, Gva, Hpa, Partial, Step};
use flatwalk_trace::{Source, SourceInfo};
use serde::Serialize;

use crate::hierarchy::{Requester, Served};
use crate::machine::{PageSize, TranslationMode};
use crate::run::{Run, RunConfiguration};
use crate::simulate::{Limits, SimulateError, WindowReader};

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
    pub page: &'static str,
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
    let (scheme, machine) = (configuration.scheme.name.clone(), configuration.machine.name.clone());
    let refused = |error| SimulateError::Configuration {
        scheme: scheme.clone(),
        machine: machine.clone(),
        error,
    };
    let mut run = Run::new(configuration, &info, 0, seed).map_err(refused)?;
    let limits = Limits { instructions: Some(instructions), ..Limits::default() };
    let mut reader = WindowReader::new(source, limits);
    let os_error = |run: &Run, error| SimulateError::Os {
        scheme: scheme.clone(),
        instructions: run.instructions(),
        error,
    };
    while let Some(window) = reader.next_window()? {
        for piece in &window {
            run.take(piece).map_err(|error| os_error(&run, error))?;
        }
    }
    let (given, address) = match address {
        Some(address) => (address, run.relocated_address(address)),
        None => (run.last_address(), run.last_address()),
    };
    let mut steps = Vec::new();
    let gva = Gva::new(address);
    if run.process.table().translate(run.process.memory(), gva).is_err() {
        let outcome =
            run.process.fault(gva, Access::Load).map_err(|error| os_error(&run, error))?;
        for flush in &outcome.flushes {
            run.mmu.flush(flush.start, flush.length_bytes);
        }
        steps.push(ExplainStep::Fault {
            text: format!(
                "Nothing was mapped at {address:#x}: the operating system maps a page first \
                 ({} page-table nodes allocated, {} entries written).",
                outcome.work.nodes, outcome.work.entries_written
            ),
        });
    }
    let leaf = run
        .process
        .table()
        .translate(run.process.memory(), gva)
        .expect("the page was mapped just now");
    let geometry = run.process.table().geometry();
    let page = PageSize::ALL[usize::from(leaf.level) - 1].name();
    let within = address & (geometry.span(leaf.level) - 1);
    let free = run.configuration.scheme.translation == TranslationMode::Free;
    if !free {
        explain_tlbs(&run, address, &mut steps);
    }
    let start =
        if free { run.process.table().root() } else { explain_pwc(&run, address, &mut steps) };
    let (accesses, latency_cycles) = explain_walk(&run, address, start, free, &mut steps);
    Ok(Explanation {
        scheme: scheme.clone(),
        machine: machine.clone(),
        workload: info.name,
        instructions: run.instructions(),
        address: format!("{given:#x}"),
        moved_to: (given != address).then(|| format!("{address:#x}")),
        physical: format!("{:#x}", leaf.frame.offset(within)),
        page,
        steps,
        accesses,
        latency_cycles,
    })
}

fn explain_tlbs(run: &Run, address: u64, steps: &mut Vec<ExplainStep>) {
    for (name, tlb) in run.mmu.tlbs() {
        if name == "L1I" || tlb.is_empty() {
            continue;
        }
        // A look-up changes recency, so it is made in a copy.
        let found = tlb.clone().look_up(address);
        let text = match found {
            Some((entry, latency)) => format!(
                "{name} TLB: hit, a {} page at {:#x}, after {latency} cycles. What follows is what \
                 a miss would do.",
                PageSize::ALL[usize::from(entry.level) - 1].name(),
                entry.frame
            ),
            None => format!("{name} TLB: miss."),
        };
        let name = name.to_owned();
        steps.push(ExplainStep::Tlb { text, name, hit: found.is_some() });
    }
}

/// What the page-walk caches answer, and where a walk starts therefore.
fn explain_pwc(run: &Run, address: u64, steps: &mut Vec<ExplainStep>) -> Partial<Hpa> {
    let geometry = run.process.table().geometry();
    let pwc = run.mmu.pwc();
    for (structure, node) in pwc.probe(address) {
        let text = match node {
            Some(node) => format!(
                "{structure} PWC: hit on VA[{}:{}], the walk can go on at the {} node at {:#x}.",
                geometry.address_bits() - 1,
                geometry.shift(node.level + 1),
                levels(&node),
                node.base
            ),
            None => format!("{structure} PWC: miss."),
        };
        steps.push(ExplainStep::Pwc { text, level: structure, hit: node.is_some() });
    }
    pwc.clone().look_up(address, u64::MAX).unwrap_or_else(|| run.process.table().root())
}

/// The entries on the path; those above `start` are skipped. Returns accesses and latency.
fn explain_walk(
    run: &Run,
    address: u64,
    start: Partial<Hpa>,
    free: bool,
    steps: &mut Vec<ExplainStep>,
) -> (u64, Option<u64>) {
    let geometry = run.process.table().geometry();
    let memory = run.process.memory();
    // Accesses change the caches, so they are made in a copy, long after everything has arrived.
    let mut caches = run.timed.as_ref().map(|(_, caches)| caches.clone());
    let began = 1 << 60;
    let mut now = began + run.mmu.pwc().latency();
    let mut walk = run.process.table().walk(Gva::new(address));
    let mut accesses = 0;
    let mut skipped = free || walk.at().base != start.base;
    loop {
        let node = walk.at();
        if !free && node.base == start.base {
            skipped = false;
        }
        let entry_address = walk.entry_address();
        let entry = Entry(memory.read(entry_address));
        let (mut served_by, mut cycles) = (None, None);
        if !skipped {
            accesses += 1;
            if let Some(caches) = &mut caches {
                let response = caches.access(entry_address, now, false, Requester::Walker);
                cycles = Some(response.ready - now);
                now = response.ready;
                served_by = Some(match response.served {
                    Served::L1 => "L1D",
                    Served::L2 => "L2",
                    Served::Llc => "LLC",
                    Served::Dram => "DRAM",
                });
            }
        }
        let step = walk.feed(entry);
        let meaning = meaning(entry, geometry, &node);
        let index = geometry.index(address, node.level, node.width);
        let (high, low) = (geometry.shift(node.level + 1) - 1, geometry.shift(node.bottom()));
        let how = match (skipped, served_by, cycles) {
            (true, ..) if free => " (translation is free: nothing is read)".to_owned(),
            (true, ..) => " (skipped: a PWC knows the way)".to_owned(),
            (false, Some(by), Some(cycles)) => format!(" ({by}, {cycles} cycles)"),
            _ => String::new(),
        };
        let level = levels(&node);
        steps.push(ExplainStep::Entry {
            text: format!(
                "{level} node at {:#x}: VA[{high}:{low}] = {index} → entry at {entry_address:#x} = \
                 {:#018x}, {meaning}{how}.",
                node.base, entry.0
            ),
            level,
            index,
            index_bits: [high, low],
            entry_address: format!("{entry_address:#x}"),
            entry: format!("{:#018x}", entry.0),
            meaning,
            skipped,
            served_by,
            cycles,
        });
        if !matches!(step, Step::Table(_)) {
            return (accesses, caches.filter(|_| !free).map(|_| now - began));
        }
    }
}

fn meaning(entry: Entry, geometry: flatwalk_paging::Geometry, node: &Partial<Hpa>) -> String {
    match entry.decode::<Hpa>(geometry, node.bottom()) {
        Decoded::Absent => "absent".to_owned(),
        Decoded::Reserved => "reserved bits are set".to_owned(),
        Decoded::Table { base, level, width } => {
            let next = Partial { base, level, width, rights: node.rights };
            let overlap =
                if level == node.bottom() { ", with this level's bits once more" } else { "" };
            format!("points to the {} node at {base:#x}{overlap}", levels(&next))
        }
        Decoded::Mapped { frame, level } => {
            let replica = if level > node.bottom() { " (one of its replicas)" } else { "" };
            let a = if entry.is_accessed() { ", accessed" } else { "" };
            let d = if entry.is_dirty() { ", dirty" } else { "" };
            let size = PageSize::ALL[usize::from(level) - 1].name();
            format!("maps the {size} page at {frame:#x}{replica}{a}{d}")
        }
    }
}

fn levels(node: &Partial<Hpa>) -> String {
    crate::result::levels_spanned(node.level, node.width)
}
