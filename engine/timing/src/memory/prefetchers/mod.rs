//! Data prefetchers of a cache. Each is one file, and has two lines here: its module, and its line of
//! [`REGISTRY`].
//!
//! A prefetcher's file has its parameters, its state, and which lines it wants for which requests. A machine
//! gives L1D or L2 some of them by `[[l1d.prefetcher]]` and `[[l2.prefetcher]]`. What becomes of a line that
//! one wants is the same for all: whether it is in the page of the request that made it wanted, or needs a
//! translation, is [`crate::mmu::prefetch`]'s part; MSHRs, bandwidth and marks are the hierarchy's; and
//! [`Figures`] are counted for each.

mod adjacent_line;
mod ip_stride;
mod next_line;
mod stream;

use std::fmt::Debug;

use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::ConfigError;
use crate::config::machine::{Cache, PageCrossing, PrefetcherSettings};
use crate::config::{require, schema};
use crate::counts::{Visitor, add};
use crate::memory::line::{LINE_SHIFT, MOST_PREFETCHERS};

/// Every kind of prefetcher.
pub const REGISTRY: &[Registered] = &[
    Registered::of::<next_line::Settings>(),
    Registered::of::<adjacent_line::Settings>(),
    Registered::of::<ip_stride::Settings>(),
    Registered::of::<stream::Settings>(),
];

/// A prefetcher, if its parameters can be.
type Made = Result<Box<dyn Prefetcher>, ConfigError>;

/// A kind of prefetcher: its name, its parameters, and how it is made.
pub struct Registered {
    /// Name in machine files.
    pub name: &'static str,
    /// The schema of its parameters.
    pub schema: fn() -> Schema,
    make: fn(&Map<String, Value>) -> Made,
}

impl Registered {
    const fn of<P: Parameters>() -> Self {
        Self { name: P::NAME, schema: schema::read::<P>, make: read::<P> }
    }
}

fn read<P: Parameters>(parameters: &Map<String, Value>) -> Made {
    schema::conforms(&schema::read::<P>().to_value(), parameters)?;
    let parameters: P = serde_json::from_value(Value::Object(parameters.clone()))
        .map_err(|error| ConfigError::Value { key: String::new(), problem: error.to_string() })?;
    Ok(parameters.prefetcher())
}

/// What a machine says of a prefetcher, in addition to its kind.
trait Parameters: DeserializeOwned + JsonSchema {
    /// Its name in machine files.
    const NAME: &'static str;

    /// The prefetcher, that has seen nothing.
    fn prefetcher(self) -> Box<dyn Prefetcher>;
}

/// What a request found in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A line that a prefetch brought, or is bringing, and that nobody has used yet.
    Unused,
    /// Any other line.
    Line,
}

/// A request that a cache's prefetchers see: a load or store, or of L2 a prefetch into L1D too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Virtual address of the instruction that makes the access.
    pub instruction: u64,
    /// Virtual address of the access.
    pub address: u64,
    /// It is a store.
    pub store: bool,
    /// What it found in the cache.
    pub found: Found,
}

impl Request {
    /// The number of its line, by virtual address.
    pub fn line(&self) -> u64 {
        self.address >> LINE_SHIFT
    }
}

/// What predicts the lines that will be accessed.
pub trait Prefetcher: Debug + Send {
    /// A copy, state included.
    fn clone_box(&self) -> Box<dyn Prefetcher>;

    /// Sees a request, and adds the numbers of the lines that it wants, by virtual address and most
    /// urgent first.
    fn observe(&mut self, request: &Request, wanted: &mut Vec<u64>);
}

/// What a prefetcher did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Figures {
    /// Prefetches that brought a line.
    pub issued: u64,
    /// Lines that it brought and that were used: found by a request of somebody.
    pub useful: u64,
    /// Of those, lines that were still on their way when they were asked for first.
    pub late: u64,
    /// Lines that it brought and that went without having been used.
    pub useless: u64,
    /// Prefetches of lines that the cache had already, or that were on their way.
    pub redundant: u64,
    /// Prefetches that were given up because no MSHR was free, or no page walker, or because the page has no
    /// translation.
    pub dropped: u64,
    /// Prefetches that were not made because their line is in another 4 KiB page.
    pub stopped: u64,
    /// Walks of the page table for lines in other pages, not contained in the run's `walks`.
    pub walks: u64,
    /// Entries that those read.
    pub walk_accesses: u64,
}

add!(Figures { issued, useful, late, useless, redundant, dropped, stopped, walks, walk_accesses });

impl Figures {
    /// What they say, in words that stand behind a prefetcher's name.
    pub fn words(&self) -> String {
        let Self { issued, useful, late, useless, walks, walk_accesses, .. } = *self;
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let walked = match walks {
            0 => String::new(),
            _ => format!(", and {walks} walks for other pages read {walk_accesses} entries"),
        };
        format!(
            "brought {issued} lines, of which {useful} were used ({:.0} % while still on their way) and \
             {useless} went unused{walked}",
            share(late, useful)
        )
    }
}

/// One prefetcher of a cache.
#[derive(Debug)]
pub struct One {
    /// Its kind.
    pub kind: &'static str,
    /// What happens where a line that it wants is in another page.
    pub page_crossing: PageCrossing,
    prefetcher: Box<dyn Prefetcher>,
    /// What it did.
    pub figures: Figures,
}

impl Clone for One {
    fn clone(&self) -> Self {
        Self { prefetcher: self.prefetcher.clone_box(), ..*self }
    }
}

/// A line that a prefetcher wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The number of the prefetcher among its cache's.
    pub by: usize,
    /// The line's virtual address.
    pub address: u64,
}

/// The prefetchers of one cache, in the order of the machine's file.
#[derive(Clone, Debug, Default)]
pub struct Prefetchers {
    all: Vec<One>,
    /// Scratch.
    lines: Vec<u64>,
}

impl Prefetchers {
    /// Those that `cache` has, which the machine's file calls `name`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a kind that is not known, or a parameter that cannot be.
    pub fn new(cache: &Cache, name: &str) -> Result<Self, ConfigError> {
        let key = format!("{name}.prefetcher");
        require(cache.prefetcher.len() <= MOST_PREFETCHERS, &key, || {
            format!("has {}: a cache has {MOST_PREFETCHERS} at most", cache.prefetcher.len())
        })?;
        let all = cache.prefetcher.iter().zip(1..).map(|(settings, number)| {
            one(settings).map_err(|error| error.within(&format!("{key}[{number}]")))
        });
        Ok(Self { all: all.collect::<Result<_, _>>()?, lines: Vec::new() })
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &One> {
        self.all.iter()
    }

    /// The prefetcher of that number.
    pub fn one(&mut self, number: usize) -> &mut One {
        &mut self.all[number]
    }

    /// Lets all of them see a request, and adds the lines that they want.
    pub fn observe(&mut self, request: &Request, wanted: &mut Vec<Wanted>) {
        for (by, one) in self.all.iter_mut().enumerate() {
            self.lines.clear();
            one.prefetcher.observe(request, &mut self.lines);
            let address = |line: &u64| line << LINE_SHIFT;
            wanted.extend(self.lines.iter().map(|line| Wanted { by, address: address(line) }));
        }
    }

    /// Shows their counts.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        self.all.iter_mut().for_each(|one| visit(&mut one.figures));
    }
}

fn one(settings: &PrefetcherSettings) -> Result<One, ConfigError> {
    let PrefetcherSettings { kind, page_crossing, parameters } = settings;
    let Some(registered) = REGISTRY.iter().find(|one| one.name == kind) else {
        let known: Vec<_> = REGISTRY.iter().map(|one| one.name).collect();
        let problem = format!("`{kind}` is not known; known are {}", known.join(", "));
        return Err(ConfigError::Value { key: "kind".to_owned(), problem });
    };
    Ok(One {
        kind: registered.name,
        page_crossing: *page_crossing,
        prefetcher: (registered.make)(parameters)?,
        figures: Figures::default(),
    })
}

#[cfg(test)]
mod testing {
    use serde_json::{Value, json};

    use super::{Found, Prefetchers, Request, Wanted};
    use crate::config::machine::Cache;
    use crate::memory::line::LINE_SHIFT;

    /// No line.
    pub(super) const NONE: [u64; 0] = [];

    /// A cache's only prefetcher, of these parameters.
    pub(super) fn only(kind: &str, parameters: Value) -> Prefetchers {
        let mut prefetcher = json!({ "kind": kind, "page_crossing": "tlb" });
        let Value::Object(parameters) = parameters else { panic!("parameters have names") };
        prefetcher.as_object_mut().unwrap().extend(parameters);
        let cache: Cache = serde_json::from_value(json!({
            "size_bytes": 4096, "ways": 4, "latency_cycles": 4, "mshrs": 4, "prefetcher": [prefetcher],
        }))
        .unwrap();
        Prefetchers::new(&cache, "l1d").unwrap()
    }

    /// The lines wanted for a load by `instruction` of `address` that found `found`.
    pub(super) fn load(
        prefetchers: &mut Prefetchers,
        (instruction, address): (u64, u64),
        found: Found,
    ) -> Vec<u64> {
        let mut wanted = Vec::new();
        let request = Request { instruction, address, store: false, found };
        prefetchers.observe(&request, &mut wanted);
        wanted.into_iter().map(|Wanted { address, .. }| address >> LINE_SHIFT).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn problem(prefetcher: &Value, count: usize) -> String {
        let cache: Cache = from_value(json!({
            "size_bytes": 4096, "ways": 4, "latency_cycles": 4, "mshrs": 4,
            "prefetcher": vec![prefetcher; count],
        }))
        .unwrap();
        Prefetchers::new(&cache, "l2").unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_names_the_prefetcher_and_what_is_known() {
        let unknown = problem(&json!({ "kind": "oracle", "page_crossing": "never" }), 1);
        assert!(unknown.contains("`l2.prefetcher[1].kind`") && unknown.contains("ip_stride"));
        let missing = problem(&json!({ "kind": "next_line", "page_crossing": "never" }), 1);
        assert!(missing.contains("`l2.prefetcher[1].degree`: is missing"), "{missing}");
        let good = json!({ "kind": "next_line", "page_crossing": "never", "degree": 1 });
        let many = problem(&good, MOST_PREFETCHERS + 1);
        assert!(many.contains("`l2.prefetcher`: has 4: a cache has 3 at most"), "{many}");
    }
}
