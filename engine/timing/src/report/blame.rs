//! Where the walks come from, as it is written to JSON: by mapping, function and line.

use std::collections::BTreeMap;

use flatwalk_symbols::{Place, Symbols, Unknown};
use schemars::JsonSchema;
use serde::Serialize;

use crate::mmu::blame::{Blame, Code, Count, Kind};

/// Entries of each list, but for what sums up all others.
const MOST: usize = 20;

/// Where the walks of a run come from. Each list has the 20 entries with most walks, the largest
/// first, and one of kind `other` for all the rest. So the walks of each add up to those of the
/// run, and the cycles to the `cycle_stack`'s for translation: `instruction_translation`, `tlb`,
/// `mechanisms` and all that begin with `walk_`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BlameResult {
    /// By what the accessed memory is.
    pub mappings: Vec<MappingBlame>,
    /// By the function that made the access.
    pub functions: Vec<FunctionBlame>,
    /// By the line of its source.
    pub lines: Vec<LineBlame>,
    /// Files of whose code nothing is known.
    pub unknown: Vec<UnknownFile>,
}

/// Walks for some memory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MappingBlame {
    /// What it is.
    pub kind: Kind,
    /// As `/proc/PID/maps` calls it; absent if it does not.
    pub name: Option<String>,
    /// Anonymous memory: the first address of the largest mapping that it ever was.
    pub address: Option<u64>,
    /// Its size.
    pub bytes: Option<u64>,
    /// Walks.
    pub walks: u64,
    /// Cycles in which retirement waited for translations; absent in functional mode.
    pub cycles: Option<u64>,
}

/// What an entry about code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CodeKind {
    /// A function, or a line.
    Code,
    /// All that there is no room to tell apart.
    Other,
}

/// Walks by a function.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FunctionBlame {
    /// A function, or all others.
    pub kind: CodeKind,
    /// Its name; absent where it is not known.
    pub function: Option<String>,
    /// Path of the file that its code is in; absent if that is not known, or it was made as the program ran.
    pub file: Option<String>,
    /// Walks.
    pub walks: u64,
    /// Cycles in which retirement waited for translations; absent in functional mode.
    pub cycles: Option<u64>,
}

/// Walks by a line.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LineBlame {
    /// A line, or all others.
    pub kind: CodeKind,
    /// The function, as in `functions`.
    pub function: Option<String>,
    /// Path of the file that its code is in, as in `functions`.
    pub file: Option<String>,
    /// Path of the source, as the compiler had it; absent without debug information, where all of a
    /// function is one entry.
    pub source: Option<String>,
    /// The line there.
    pub line: Option<u32>,
    /// Walks.
    pub walks: u64,
    /// Cycles in which retirement waited for translations; absent in functional mode.
    pub cycles: Option<u64>,
}

/// A file of whose code nothing is known.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct UnknownFile {
    /// Its path.
    pub file: String,
    /// Why.
    pub why: UnknownBecause,
}

/// Why nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownBecause {
    /// It is not there, or cannot be read.
    Unreadable,
    /// It has changed since the program was recorded.
    Changed,
    /// It is not a 64-bit ELF file.
    Format,
}

impl From<Unknown> for UnknownBecause {
    fn from(unknown: Unknown) -> Self {
        match unknown {
            Unknown::Unreadable => Self::Unreadable,
            Unknown::Changed => Self::Changed,
            Unknown::Format => Self::Format,
        }
    }
}

/// The function and the file that an entry is about.
type Function = (Option<String>, Option<String>);
/// The line in its source.
type Line = Option<(String, u32)>;

impl BlameResult {
    /// What `blame` says, with the names that `symbols` has; with cycles if there was a clock.
    pub fn new(blame: &Blame, symbols: &mut Symbols, timed: bool) -> Self {
        let cycles = |count: Count| timed.then_some(count.cycles);
        let mut mappings = BTreeMap::<_, Count>::new();
        for (region, count) in blame.regions() {
            let name = (!region.name.is_empty()).then(|| region.name.to_string());
            let anonymous = (region.kind == Kind::Anonymous).then_some(region.largest);
            *mappings.entry((region.kind, name, anonymous)).or_default() += count;
        }
        let other = (Kind::Other, None, None);
        let mappings = largest(mappings, &other).into_iter().map(|((kind, name, place), count)| {
            let (address, bytes) = place.unzip();
            MappingBlame { kind, name, address, bytes, walks: count.walks, cycles: cycles(count) }
        });
        let (mut functions, mut lines) = (BTreeMap::<_, Count>::new(), BTreeMap::<_, Count>::new());
        let mut unknown = BTreeMap::new();
        for (site, count) in blame.instructions() {
            let code = site.map(|site| named(site.code.as_ref(), symbols, &mut unknown));
            let (kind, (function, line)) =
                code.map_or((CodeKind::Other, Default::default()), |code| (CodeKind::Code, code));
            *functions.entry((kind, function.clone())).or_default() += count;
            *lines.entry((kind, function, line)).or_default() += count;
        }
        let other = (CodeKind::Other, (None, None));
        let functions = largest(functions, &other).into_iter().map(|((kind, code), count)| {
            let (function, file) = code;
            FunctionBlame { kind, function, file, walks: count.walks, cycles: cycles(count) }
        });
        let other = (CodeKind::Other, (None, None), None);
        let lines = largest(lines, &other).into_iter().map(|((kind, code, place), count)| {
            let ((function, file), (source, line)) = (code, place.unzip());
            let (walks, cycles) = (count.walks, cycles(count));
            LineBlame { kind, function, file, source, line, walks, cycles }
        });
        let unknown = unknown.into_iter().map(|(file, why)| UnknownFile { file, why });
        Self {
            mappings: mappings.collect(),
            functions: functions.collect(),
            lines: lines.collect(),
            unknown: unknown.collect(),
        }
    }
}

/// What the code there is called.
fn named(
    code: Option<&Code>,
    symbols: &mut Symbols,
    unknown: &mut BTreeMap<String, UnknownBecause>,
) -> (Function, Line) {
    let Some(Code { file, build_id, offset }) = code else { return ((None, None), None) };
    let Place { function, line } = symbols.find(file, build_id, *offset).unwrap_or_else(|why| {
        unknown.insert(file.to_string(), why.into());
        Place::default()
    });
    ((function, Some(file.to_string())), line)
}

/// The entries with most walks, the largest first, and the sum of all others as `other`.
fn largest<K: Ord + Clone>(all: BTreeMap<K, Count>, other: &K) -> Vec<(K, Count)> {
    let (rest, mut one): (Vec<_>, Vec<_>) = all.into_iter().partition(|(key, _)| key == other);
    one.sort_by_key(|&(_, count)| std::cmp::Reverse((count.walks, count.cycles)));
    let mut sum = rest.first().map(|&(_, count)| count);
    for (_, count) in one.drain(MOST.min(one.len())..) {
        *sum.get_or_insert_default() += count;
    }
    one.into_iter().chain(sum.map(|count| (other.clone(), count))).collect()
}
