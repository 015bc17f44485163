//! Machines as data: the settings of a machine file, and what makes one valid.
//!
//! Every setting is required where it has a meaning and unknown where it has none, so a file says
//! all that a run depends on. Sizes are in bytes, latencies in cycles of `frequency_mhz` unless the
//! name says nanoseconds.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use flatwalk_paging::{LINE_BYTES, Level};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::require;
use super::schema;
use super::sections::Sections;
use crate::ConfigError;

/// Most ways that a TLB or a page-walk cache can have.
pub const MOST_WAYS: u32 = 1 << 16;
/// Most banks of all ranks and channels.
const MOST_BANKS: u64 = 1 << 16;

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Name, as in the file's name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// One line for a person.
    #[schemars(length(min = 1))]
    pub title: String,
    /// Where the figures are from.
    #[schemars(length(min = 1))]
    pub source: String,
    /// Core clock.
    #[schemars(range(min = 100, max = 20_000))]
    pub frequency_mhz: u32,
    /// The out-of-order core; absent for machines without timing.
    pub core: Option<Core>,
    /// First-level instruction cache.
    pub l1i: Option<Cache>,
    /// First-level data cache.
    pub l1d: Option<Cache>,
    /// Second-level cache.
    pub l2: Option<Cache>,
    /// Last-level cache.
    pub llc: Option<Cache>,
    /// Main memory.
    pub memory: Option<Memory>,
    /// What accesses to the caches cost; absent where nobody knows.
    pub energy: Option<Energy>,
    /// Translation look-aside buffers.
    pub tlb: Tlbs,
    /// Page-walk caches.
    pub pwc: Pwc,
    /// The page walkers.
    pub walker: Walker,
    /// How many cores share the last-level cache and memory. Absent: programs cannot run together, and the
    /// threads of one run on 8 cores at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicore: Option<Multicore>,
    /// How hashed page tables are walked; absent for machines that cannot.
    pub hashed_walks: Option<HashedWalks>,
    /// What two-dimensional walks use; absent for machines without nested paging.
    pub virtualisation: Option<Virtualisation>,
    /// The operating system's costs.
    pub os: Os,
    /// What it has, or says, of mechanisms: a section each.
    #[serde(flatten)]
    #[schemars(skip)]
    pub mechanisms: Sections,
}

/// An out-of-order core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Instructions dispatched, and retired, per cycle.
    #[schemars(range(min = 1, max = 64))]
    pub width: u32,
    /// Reorder-buffer entries.
    #[schemars(range(min = 1, max = 65_536))]
    pub window: u32,
    /// Load-queue entries.
    #[schemars(range(min = 1, max = 65_536))]
    pub load_queue: u32,
    /// Store-queue entries.
    #[schemars(range(min = 1, max = 65_536))]
    pub store_queue: u32,
    /// Cycles from fetch to dispatch; paid again after a misprediction or a fault.
    #[schemars(range(min = 0, max = 100_000))]
    pub frontend_cycles: u64,
    /// How branches are predicted.
    pub branch_predictor: BranchPredictor,
    /// Global history bits of gshare, which has `2^bits` counters; the others do not use it.
    #[schemars(range(min = 1, max = 24))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch_history_bits: Option<u32>,
    /// Loads that come after the two ways of a mispredicted branch have joined again are made
    /// before it is resolved, where there are at most so many instructions between the branch and
    /// its target. 0 or absent: none are.
    #[schemars(range(min = 0, max = 256))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconvergence_instructions: Option<u32>,
}

/// How branches are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BranchPredictor {
    /// McFarling's gshare.
    Gshare,
    /// Tarjan and Skadron's hashed perceptron in 64 KiB, as `ChampSim` has it.
    HashedPerceptron,
    /// Seznec's TAGE-SC-L in 64 KiB.
    #[serde(rename = "tage_sc_l")]
    TageScL,
    /// Never wrong.
    Perfect,
}

/// A cache of 64-byte lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Capacity.
    #[schemars(range(min = 64, max = 68_719_476_736_u64))]
    pub size_bytes: u64,
    /// Associativity.
    #[schemars(range(min = 1, max = 64))]
    pub ways: u32,
    /// Load-to-use latency, counted from the core (so cumulative).
    #[schemars(range(min = 1, max = 100_000))]
    pub latency_cycles: u64,
    /// Misses it can have outstanding.
    #[schemars(range(min = 1, max = 254))]
    pub mshrs: u32,
    /// Its data prefetchers, which L1D and L2 can have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub prefetcher: Vec<PrefetcherSettings>,
}

/// A data prefetcher of a cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefetcherSettings {
    /// How it predicts.
    pub kind: String,
    /// What happens to a line in another 4 KiB page than the access that makes it wanted.
    pub page_crossing: PageCrossing,
    /// The kind's own parameters.
    #[serde(flatten)]
    #[schemars(skip)]
    pub parameters: Map<String, Value>,
}

/// What happens to a prefetch of a line in another 4 KiB page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PageCrossing {
    /// It is not made.
    Never,
    /// It is made if a TLB has the page.
    Tlb,
    /// It is made; if no TLB has the page and a page walker is free, that walks for it.
    Walk,
}

/// Main memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Memory {
    /// DDR4 with channels, ranks, banks and open rows.
    Ddr4 {
        /// Channels.
        #[schemars(range(min = 1, max = 1024), extend("powerOfTwo" = true))]
        channels: u32,
        /// Ranks per channel.
        #[schemars(range(min = 1, max = 1024), extend("powerOfTwo" = true))]
        ranks: u32,
        /// Banks per rank.
        #[schemars(range(min = 1, max = 1024), extend("powerOfTwo" = true))]
        banks: u32,
        /// Bytes of an open row, per bank.
        #[schemars(range(min = 64, max = 1_048_576), extend("powerOfTwo" = true))]
        row_bytes: u64,
        /// Transfers per second on the data bus, which is 8 bytes wide.
        #[schemars(range(min = 100, max = 100_000))]
        data_rate_mts: u32,
        /// Column access to first data.
        #[schemars(range(min = 0, max = 1_000_000))]
        cl_ns: f64,
        /// Row activation to column access.
        #[schemars(range(min = 0, max = 1_000_000))]
        rcd_ns: f64,
        /// Precharge.
        #[schemars(range(min = 0, max = 1_000_000))]
        rp_ns: f64,
        /// Controller and on-chip network, both ways together.
        #[schemars(range(min = 0, max = 1_000_000))]
        controller_ns: f64,
        /// tRAS: row activation to precharge; 0: no limit.
        #[schemars(range(min = 0, max = 1_000_000))]
        #[serde(default)]
        ras_ns: f64,
        /// tFAW: time in which a rank begins four activations at most; 0: no limit.
        #[schemars(range(min = 0, max = 1_000_000))]
        #[serde(default)]
        faw_ns: f64,
        /// tREFI: from one refresh of a rank to the next; 0: none.
        #[schemars(range(min = 0, max = 1_000_000))]
        #[serde(default)]
        refi_ns: f64,
        /// tRFC: how long a refresh takes.
        #[schemars(range(min = 0, max = 1_000_000))]
        #[serde(default)]
        rfc_ns: f64,
        /// Lines that a channel's write queue has room for; when it is full, or lacks less than a
        /// batch (which is drawn), a batch leaves; 0: each is written at once.
        #[schemars(range(min = 0, max = 4096))]
        #[serde(default)]
        write_queue: u32,
        /// Lines of a batch.
        #[schemars(range(min = 0, max = 4096))]
        #[serde(default)]
        write_batch: u32,
        /// tRTW: how long the bus waits between reads and a batch of writes.
        #[schemars(range(min = 0, max = 1_000_000))]
        #[serde(default)]
        rtw_ns: f64,
        /// tWTR: from the end of a batch's data to the next read's column access.
        #[schemars(range(min = 0, max = 1_000_000))]
        #[serde(default)]
        wtr_ns: f64,
    },
    /// One latency and one bandwidth.
    Fixed {
        /// Latency of a line.
        #[schemars(range(min = 0, max = 1_000_000))]
        latency_ns: f64,
        /// Bandwidth.
        #[schemars(range(min = 0.001, max = 1_000_000))]
        bandwidth_gbs: f64,
    },
}

/// Cores that share the last-level cache and memory; all else each has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Multicore {
    /// Cores.
    #[schemars(range(min = 1, max = 64))]
    pub cores: u32,
    /// How programs on them are kept apart in the last-level cache. Threads of one program are not.
    pub isolation: Isolation,
}

/// How programs are kept apart in a shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Page-table priority protects a program's entries from all others' lines: data of anyone goes
    /// first, then the program's own lines (ASPLOS 2022, section 6.1: "to prevent one process' data
    /// from evicting another's page table").
    Owners,
    /// Each core fills its own equal part of the ways; page-table priority works within it. Not
    /// with CSALT, which divides the ways itself.
    Ways,
}

impl Multicore {
    fn validate(self, llc: Option<&Cache>) -> Result<(), ConfigError> {
        let ways = llc.map_or(0, |llc| llc.ways);
        let fits = self.isolation == Isolation::Owners
            || (ways >= self.cores && ways.is_multiple_of(self.cores));
        require(fits, "multicore.isolation", || {
            format!("cannot be \"ways\": {} cores do not divide {ways} ways", self.cores)
        })
    }
}

/// Dynamic energy of one access to each data cache, in picojoules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    /// The first-level data cache.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub l1d_pj: f64,
    /// The second-level cache.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub l2_pj: f64,
    /// The last-level cache.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub llc_pj: f64,
}

/// The TLBs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tlbs {
    /// First level, instructions; empty: fetches are not translated.
    #[serde(default)]
    pub l1i: Vec<Tlb>,
    /// First level, data; looked up in parallel.
    pub l1d: Vec<Tlb>,
    /// Second level, shared by both.
    #[serde(default)]
    pub l2: Vec<Tlb>,
}

/// One TLB array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// Page sizes that it holds.
    #[schemars(length(min = 1))]
    pub pages: Vec<PageSize>,
    /// Entries.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub entries: u32,
    /// Associativity; as many as entries for fully associative.
    #[schemars(range(min = 1, max = MOST_WAYS))]
    pub ways: u32,
    /// Latency. The first cycle of a first-level TLB runs alongside the L1 cache's look-up
    /// and is part of that cache's latency.
    #[schemars(range(min = 1, max = 1000))]
    pub latency_cycles: u64,
}

/// Page sizes by their x86-64 names; with other geometries, leaves of the same levels.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum PageSize {
    /// Leaves of level 1: base pages.
    #[serde(rename = "4K")]
    Base,
    /// Leaves of level 2.
    #[serde(rename = "2M")]
    Large,
    /// Leaves of level 3.
    #[serde(rename = "1G")]
    Huge,
}

impl PageSize {
    /// All sizes, smallest first.
    pub const ALL: [Self; 3] = [Self::Base, Self::Large, Self::Huge];

    /// Level that such a page is a leaf of.
    pub fn level(self) -> Level {
        match self {
            Self::Base => 1,
            Self::Large => 2,
            Self::Huge => 3,
        }
    }

    /// Name on x86-64.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "4K",
            Self::Large => "2M",
            Self::Huge => "1G",
        }
    }
}

/// Page-walk caches. They hold pointers to nodes, never leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Pwc {
    /// Intel's: one fully associative structure per level, tagged with the address prefix; all are
    /// probed at once and the longest match wins.
    Split {
        /// Latency of a look-up.
        #[schemars(range(min = 0, max = 1000))]
        latency_cycles: u64,
        /// Entries by the level whose entries are cached: `L2` gives pointers to level-1 nodes.
        #[schemars(schema_with = "pwc_entries")]
        entries: BTreeMap<String, u32>,
    },
    /// One set-associative structure for all levels.
    Unified {
        /// Latency of a look-up.
        #[schemars(range(min = 0, max = 1000))]
        latency_cycles: u64,
        /// Entries.
        #[schemars(range(min = 1, max = 16_777_216))]
        entries: u32,
        /// Associativity.
        #[schemars(range(min = 1, max = MOST_WAYS))]
        ways: u32,
    },
    /// None: every walk starts at the root.
    None,
}

/// What two-dimensional walks use, in addition to the guest's own page-walk caches, which are the
/// machine's `pwc`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Virtualisation {
    /// Page-walk caches for the host's table.
    pub pwc: Pwc,
    /// The nested TLB, guest-physical to host-physical, for pages with guest page tables; none where
    /// empty.
    #[serde(default)]
    pub nested_tlb: Vec<Tlb>,
    /// What the guest's page-walk caches hold.
    pub guest_pwc: GuestPwc,
    /// Leaving the guest and entering it again for a fault of the host's table, in addition to what
    /// the fault costs.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub exit_cycles: u64,
}

/// What the guest's page-walk caches say of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuestPwc {
    /// Its guest-physical address, which the host has yet to translate (ASPLOS 2022): three accesses
    /// at best with two-level tables in both stages.
    GuestPhysical,
    /// Its host-physical address (ISMM 2021): two at best. The host is taken to back a node
    /// contiguously.
    HostPhysical,
}

/// The page walkers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Walker {
    /// Walks that can be under way at once.
    #[schemars(range(min = 1, max = 64))]
    pub concurrent: u32,
    /// Cache at which the walker's reads enter the hierarchy.
    pub entry: WalkerEntry,
}

/// Where the walker's reads enter the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WalkerEntry {
    /// At the first-level data cache.
    L1d,
    /// At the second-level cache.
    L2,
}

/// How page tables without a tree are walked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashedWalks {
    /// Cycles that hashing a page's number takes, or comparing it with registers (`dmt`).
    #[schemars(range(min = 0, max = 1000))]
    pub hash_cycles: u64,
    /// Cycles that looking up the caches of side lines takes, at the same time, where the table has
    /// such lines.
    #[schemars(range(min = 0, max = 1000))]
    pub cwc_latency_cycles: u64,
    /// Side lines that they hold, by what the table calls them: `L2` and `L3` for its levels.
    #[schemars(schema_with = "cwc_entries")]
    pub cwc_entries: BTreeMap<String, u32>,
    /// When a walk ends.
    pub end: WalkEnd,
}

/// When a walk of several reads ends that finds its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WalkEnd {
    /// When the entry is there; other lines may be on their way.
    MatchingProbe,
    /// When all lines are there.
    LastProbe,
}

/// The operating system's costs and memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Os {
    /// Trap, VMA look-up and return of a page fault; zeroing and page-table work are charged in
    /// addition, by what was done.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub fault_cycles: u64,
    /// Bytes that the kernel zeroes or copies per cycle.
    #[schemars(range(min = 1, max = 65_536))]
    pub zero_bytes_per_cycle: u64,
    /// What a core loses that is interrupted to flush its TLBs, as a mapping changes that another core
    /// may have used. The core that asks waits as long.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    #[serde(default)]
    pub shootdown_cycles: u64,
    /// Physical memory.
    #[schemars(
        range(min = 1_073_741_824, max = 1_099_511_627_776_u64),
        extend("multipleOf" = 1_073_741_824)
    )]
    pub memory_bytes: u64,
}

impl Machine {
    /// The schema of a machine file.
    pub fn schema() -> &'static Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema::read::<Machine>().to_value());
        &SCHEMA
    }

    /// Checks every figure, and what the sections are to each other. The first problem is reported
    /// with its key.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        schema::conforms(Self::schema(), self)?;
        self.validate_together()
    }

    /// Checks what no schema expresses: figures that depend on each other.
    pub(crate) fn validate_together(&self) -> Result<(), ConfigError> {
        let timed = [
            ("core", self.core.is_some()),
            ("l1i", self.l1i.is_some()),
            ("l1d", self.l1d.is_some()),
            ("l2", self.l2.is_some()),
            ("llc", self.llc.is_some()),
            ("memory", self.memory.is_some()),
        ];
        let present = timed.iter().filter(|(_, there)| *there).count();
        if let Some((missing, _)) = timed.iter().find(|(_, there)| !there) {
            require(present == 0, missing, || {
                "is missing: give all of core, l1i, l1d, l2, llc and memory, or none of them \
                 for a machine that only counts"
                    .to_owned()
            })?;
        }
        if let Some(core) = &self.core {
            let sized = core.branch_predictor != BranchPredictor::Gshare
                || core.branch_history_bits.is_some();
            require(sized, "core.branch_history_bits", || {
                "is missing: gshare needs it".to_owned()
            })?;
        }
        let caches = [("l1i", &self.l1i), ("l1d", &self.l1d), ("l2", &self.l2), ("llc", &self.llc)];
        for (name, cache) in caches {
            if let Some(cache) = cache {
                cache.validate(name)?;
                let can = cache.prefetcher.is_empty() || ["l1d", "l2"].contains(&name);
                require(can, &format!("{name}.prefetcher"), || {
                    "must be left out: only l1d and l2 can have prefetchers".to_owned()
                })?;
            }
        }
        if let Some(memory) = &self.memory {
            memory.validate(self)?;
        }
        if let (Some(l1i), Some(l1d), Some(l2), Some(llc)) =
            (&self.l1i, &self.l1d, &self.l2, &self.llc)
        {
            let rising = l1i.latency_cycles.max(l1d.latency_cycles) <= l2.latency_cycles
                && l2.latency_cycles <= llc.latency_cycles;
            require(rising, "llc.latency_cycles", || {
                "must be the highest: latencies are counted from the core, so they rise from l1 to \
                 llc"
                .to_owned()
            })?;
        }
        if let Some(multicore) = &self.multicore {
            multicore.validate(self.llc.as_ref())?;
        }
        require(self.energy.is_none() || self.core.is_some(), "energy", || {
            "has no meaning for a machine without caches".to_owned()
        })?;
        self.tlb.validate()?;
        self.pwc.validate("pwc")?;
        match &self.virtualisation {
            Some(virtualisation) => virtualisation.validate(),
            None => Ok(()),
        }
    }

    /// True if the machine has a core and caches, so that it can be timed.
    pub fn is_timed(&self) -> bool {
        self.core.is_some()
    }

    /// Cycles that `ns` nanoseconds last, rounded up.
    pub fn cycles(&self, ns: f64) -> u64 {
        // Validated: finite, not negative, small.
        #[allow(clippy::cast_sign_loss)]
        let cycles = (ns * f64::from(self.frequency_mhz) / 1000.0).ceil() as u64;
        cycles
    }
}

impl Cache {
    fn validate(&self, name: &str) -> Result<(), ConfigError> {
        let sets = self.size_bytes / LINE_BYTES / u64::from(self.ways);
        let exact = sets * LINE_BYTES * u64::from(self.ways) == self.size_bytes;
        require(exact && sets.is_power_of_two(), &format!("{name}.size_bytes"), || {
            format!(
                "must make a power of two of 64-byte sets: {} in {} ways do not",
                self.size_bytes, self.ways
            )
        })
    }
}

impl Memory {
    fn validate(&self, machine: &Machine) -> Result<(), ConfigError> {
        let Self::Ddr4 {
            channels, ranks, banks, refi_ns, rfc_ns, write_queue, write_batch, ..
        } = *self
        else {
            return Ok(());
        };
        let all_banks = u64::from(channels) * u64::from(ranks) * u64::from(banks);
        require(all_banks <= MOST_BANKS, "memory.banks", || {
            format!("must make {MOST_BANKS} at most with channels and ranks: {all_banks}")
        })?;
        let [interval, refresh] = [refi_ns, rfc_ns].map(|ns| machine.cycles(ns));
        let refreshes = if interval > 0 { refresh < interval } else { refresh == 0 };
        require(refreshes, "memory.rfc_ns", || {
            format!("must be less than memory.refi_ns, and 0 if that is: {rfc_ns} and {refi_ns}")
        })?;
        let leaves = if write_queue > 0 {
            (1..=write_queue).contains(&write_batch)
        } else {
            write_batch == 0
        };
        require(leaves, "memory.write_batch", || {
            format!(
                "must be 1 to memory.write_queue, and 0 if that is: {write_batch} and {write_queue}"
            )
        })
    }
}

impl Tlbs {
    fn validate(&self) -> Result<(), ConfigError> {
        for (name, arrays, optional) in
            [("l1i", &self.l1i, true), ("l1d", &self.l1d, false), ("l2", &self.l2, true)]
        {
            let holds_base = arrays.iter().any(|a| a.pages.contains(&PageSize::Base));
            require(holds_base || (optional && arrays.is_empty()), &format!("tlb.{name}"), || {
                "has no array that holds 4K pages".to_owned()
            })?;
            validate_arrays(&format!("tlb.{name}"), arrays)?;
        }
        Ok(())
    }
}

/// Checks the arrays of one TLB, which stands at `key`.
fn validate_arrays(key: &str, arrays: &[Tlb]) -> Result<(), ConfigError> {
    let mut seen = Vec::new();
    for (array, number) in arrays.iter().zip(1..) {
        for &page in &array.pages {
            require(!seen.contains(&page), &format!("{key}[{number}].pages"), || {
                format!("has {} pages, which are held already", page.name())
            })?;
            seen.push(page);
        }
        require_sets(array.entries, array.ways, &format!("{key}[{number}]"))?;
    }
    Ok(())
}

/// Refuses `entries` at `key` that do not make a power of two of sets of so many `ways`.
fn require_sets(entries: u32, ways: u32, key: &str) -> Result<(), ConfigError> {
    let exact = entries.is_multiple_of(ways) && (entries / ways).is_power_of_two();
    require(exact, &format!("{key}.entries"), || {
        format!("must make a power of two of sets: {entries} in {ways} ways do not")
    })
}

impl Virtualisation {
    fn validate(&self) -> Result<(), ConfigError> {
        self.pwc.validate("virtualisation.pwc")?;
        validate_arrays("virtualisation.nested_tlb", &self.nested_tlb)
    }
}

impl Pwc {
    fn validate(&self, key: &str) -> Result<(), ConfigError> {
        match self {
            Self::Unified { entries, ways, .. } => require_sets(*entries, *ways, key),
            Self::Split { .. } | Self::None => Ok(()),
        }
    }
}

/// Entries of [`Pwc::Split`].
fn pwc_entries(_: &mut SchemaGenerator) -> Schema {
    schema::levels(2..=6, "Entries of the structure for this level; absent for none.", 65_536)
}

/// Entries of [`HashedWalks::cwc_entries`].
fn cwc_entries(_: &mut SchemaGenerator) -> Schema {
    schema::levels(2..=3, "Lines of the walk table for this level; absent for none.", 65_536)
}
