//! Machines as data: the settings of a machine file, and what makes one valid.
//!
//! Every setting is required where it has a meaning and unknown where it has none, so a file says
//! all that a run depends on. Sizes are in bytes, latencies in cycles of `frequency_mhz` unless the
//! name says nanoseconds.

use std::collections::BTreeMap;

use flatwalk_paging::Level;
use serde::{Deserialize, Serialize};

use super::require;
use super::sections::Sections;
use crate::ConfigError;

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name, as in the file's name.
    pub name: String,
    /// One line for a person.
    pub title: String,
    /// Where the figures are from.
    pub source: String,
    /// Core clock in MHz.
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
    /// How many cores share the last-level cache and memory; absent for one.
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
    pub mechanisms: Sections,
}

/// An out-of-order core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Instructions dispatched, and retired, per cycle.
    pub width: u32,
    /// Reorder-buffer entries.
    pub window: u32,
    /// Load-queue entries.
    pub load_queue: u32,
    /// Store-queue entries.
    pub store_queue: u32,
    /// Cycles from fetch to dispatch; paid again after a misprediction or a fault.
    pub frontend_cycles: u64,
    /// How branches are predicted.
    pub branch_predictor: BranchPredictor,
    /// Global history bits; the predictor has `2^bits` counters.
    pub branch_history_bits: u32,
}

/// How branches are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchPredictor {
    /// McFarling's gshare, a last-target table, and a return stack.
    Gshare,
    /// Never wrong.
    Perfect,
}

/// A cache of 64-byte lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Associativity.
    pub ways: u32,
    /// Load-to-use latency in cycles, counted from the core (so cumulative).
    pub latency_cycles: u64,
    /// Misses it can have outstanding.
    pub mshrs: u32,
}

/// Main memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Memory {
    /// DDR4 with channels, ranks, banks and open rows.
    Ddr4 {
        /// Channels, a power of two.
        channels: u32,
        /// Ranks per channel, a power of two.
        ranks: u32,
        /// Banks per rank, a power of two.
        banks: u32,
        /// Bytes of an open row, per bank.
        row_bytes: u64,
        /// Transfers per second on the data bus (8 bytes wide), in millions.
        data_rate_mts: u32,
        /// Column access to first data.
        cl_ns: f64,
        /// Row activation to column access.
        rcd_ns: f64,
        /// Precharge.
        rp_ns: f64,
        /// Controller and on-chip network, both ways together.
        controller_ns: f64,
    },
    /// One latency and one bandwidth.
    Fixed {
        /// Latency of a line.
        latency_ns: f64,
        /// Bandwidth in 10^9 bytes per second.
        bandwidth_gbs: f64,
    },
}

/// Cores that share the last-level cache and memory; all else each has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Multicore {
    /// Cores.
    pub cores: u32,
    /// How they are kept apart in the last-level cache.
    pub isolation: Isolation,
}

/// How programs are kept apart in a shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Page-table priority protects a program's entries from all others' lines: data of anyone goes
    /// first, then the program's own lines (ASPLOS 2022, section 6.1: "to prevent one process' data
    /// from evicting another's page table").
    Owners,
    /// Each core fills its own equal part of the ways; page-table priority works within it.
    Ways,
}

impl Multicore {
    fn validate(self, llc: Option<&Cache>) -> Result<(), ConfigError> {
        require((1..=64).contains(&self.cores), "multicore.cores", || {
            format!("{} (1 to 64)", self.cores)
        })?;
        let ways = llc.map_or(0, |llc| llc.ways);
        let fits = self.isolation == Isolation::Owners
            || (ways >= self.cores && ways.is_multiple_of(self.cores));
        require(fits, "multicore.isolation", || {
            format!("{ways} ways are not to be divided by {} cores", self.cores)
        })
    }
}

/// Dynamic energy of one access to each data cache, in picojoules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    /// The first-level data cache.
    pub l1d_pj: f64,
    /// The second-level cache.
    pub l2_pj: f64,
    /// The last-level cache.
    pub llc_pj: f64,
}

/// The TLBs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// Page sizes that it holds.
    pub pages: Vec<PageSize>,
    /// Entries.
    pub entries: u32,
    /// Associativity; as many as entries for fully associative.
    pub ways: u32,
    /// Latency in cycles. The first cycle of a first-level TLB runs beside the L1 cache's look-up
    /// and is part of that cache's latency.
    pub latency_cycles: u64,
}

/// Page sizes by their x86-64 names; with other geometries, base, large and huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PageSize {
    /// Base pages, leaves of level 1.
    #[serde(rename = "4K")]
    Base,
    /// Large pages, leaves of level 2.
    #[serde(rename = "2M")]
    Large,
    /// Huge pages, leaves of level 3.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Pwc {
    /// Intel's: one fully associative structure per level, tagged with the address prefix; all are
    /// probed at once and the longest match wins.
    Split {
        /// Latency in cycles.
        latency_cycles: u64,
        /// Entries by the level whose entries are cached: `L2` gives pointers to level-1 nodes.
        entries: BTreeMap<String, u32>,
    },
    /// One set-associative structure for all levels.
    Unified {
        /// Latency in cycles.
        latency_cycles: u64,
        /// Entries.
        entries: u32,
        /// Associativity.
        ways: u32,
    },
    /// None: every walk starts at the root.
    None,
}

/// What two-dimensional walks use, beside the guest's own page-walk caches, which are [`Machine::pwc`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Leaving the guest and entering it again for a fault of the host's table, in cycles, beside
    /// what the fault costs.
    pub exit_cycles: u64,
}

/// What the guest's page-walk caches say of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Walker {
    /// Walks that can be under way at once.
    pub concurrent: u32,
    /// Cache at which the walker's reads enter the hierarchy.
    pub entry: WalkerEntry,
}

/// Where the walker's reads enter the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WalkerEntry {
    /// At the first-level data cache.
    L1d,
    /// At the second-level cache.
    L2,
}

/// How page tables without a tree are walked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashedWalks {
    /// Cycles that hashing a page's number takes.
    pub hash_cycles: u64,
    /// Cycles that looking up the caches of side lines takes, at the same time.
    pub cwc_latency_cycles: u64,
    /// Side lines that they hold, by what the table calls them: `L2` and `L3` for its levels.
    pub cwc_entries: BTreeMap<String, u32>,
    /// When a walk ends.
    pub end: WalkEnd,
}

/// When a walk of several reads ends that finds its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WalkEnd {
    /// When the entry is there; other lines may be on their way.
    MatchingProbe,
    /// When all lines are there.
    LastProbe,
}

/// The operating system's costs and memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Os {
    /// Trap, VMA look-up and return of a page fault, in cycles; zeroing and page-table work are
    /// charged beside it, by what was done.
    pub fault_cycles: u64,
    /// Bytes that the kernel zeroes or copies per cycle.
    pub zero_bytes_per_cycle: u64,
    /// Physical memory in bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// Checks every figure. The first that cannot be is reported with its key.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        require((1..=100_000).contains(&self.frequency_mhz), "frequency_mhz", || {
            format!("{} MHz is no clock rate (1 to 100000)", self.frequency_mhz)
        })?;
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
            core.validate()?;
        }
        let caches = [("l1i", &self.l1i), ("l1d", &self.l1d), ("l2", &self.l2), ("llc", &self.llc)];
        for (name, cache) in caches {
            if let Some(cache) = cache {
                cache.validate(name)?;
            }
        }
        if let (Some(l1i), Some(l1d), Some(l2), Some(llc)) =
            (&self.l1i, &self.l1d, &self.l2, &self.llc)
        {
            let rising = l1i.latency_cycles.max(l1d.latency_cycles) <= l2.latency_cycles
                && l2.latency_cycles <= llc.latency_cycles;
            require(rising, "llc.latency_cycles", || {
                "latencies are counted from the core, so they rise from l1 to llc".to_owned()
            })?;
        }
        if let Some(memory) = &self.memory {
            memory.validate()?;
        }
        if let Some(multicore) = &self.multicore {
            multicore.validate(self.llc.as_ref())?;
        }
        if let Some(Energy { l1d_pj, l2_pj, llc_pj }) = self.energy {
            for (key, value) in
                [("energy.l1d_pj", l1d_pj), ("energy.l2_pj", l2_pj), ("energy.llc_pj", llc_pj)]
            {
                require((0.0..=1e9).contains(&value), key, || format!("{value} pJ (0 to 1e9)"))?;
            }
            require(self.core.is_some(), "energy", || {
                "has no meaning for a machine without caches".to_owned()
            })?;
        }
        self.tlb.validate()?;
        self.pwc.validate("pwc")?;
        require((1..=64).contains(&self.walker.concurrent), "walker.concurrent", || {
            format!("{} walkers (1 to 64)", self.walker.concurrent)
        })?;
        if let Some(hashed_walks) = &self.hashed_walks {
            hashed_walks.validate()?;
        }
        if let Some(virtualisation) = &self.virtualisation {
            virtualisation.validate()?;
        }
        let memory = self.os.memory_bytes;
        require(
            memory.is_multiple_of(1 << 30) && memory > 0 && memory <= 1 << 40,
            "os.memory_bytes",
            || format!("{memory} bytes: give a multiple of 1 GiB, up to 1 TiB"),
        )?;
        require(self.os.zero_bytes_per_cycle > 0, "os.zero_bytes_per_cycle", || {
            "must be positive".to_owned()
        })
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

impl Core {
    fn validate(&self) -> Result<(), ConfigError> {
        for (key, value, most) in [
            ("core.width", self.width, 64),
            ("core.window", self.window, 65_536),
            ("core.load_queue", self.load_queue, 65_536),
            ("core.store_queue", self.store_queue, 65_536),
        ] {
            require((1..=most).contains(&value), key, || format!("{value} (1 to {most})"))?;
        }
        require((1..=24).contains(&self.branch_history_bits), "core.branch_history_bits", || {
            format!("{} bits (1 to 24)", self.branch_history_bits)
        })
    }
}

impl Cache {
    fn validate(&self, name: &str) -> Result<(), ConfigError> {
        let sets = self.size_bytes / 64 / u64::from(self.ways.max(1));
        let exact = sets * 64 * u64::from(self.ways) == self.size_bytes;
        require(
            exact && sets.is_power_of_two() && self.ways <= 64,
            &format!("{name}.size_bytes"),
            || {
                format!(
                    "{} bytes in {} ways is no power of two of 64-byte sets (1 to 64 ways)",
                    self.size_bytes, self.ways
                )
            },
        )?;
        require((1..=254).contains(&self.mshrs), &format!("{name}.mshrs"), || {
            format!("{} (1 to 254)", self.mshrs)
        })?;
        require(
            (1..=100_000).contains(&self.latency_cycles),
            &format!("{name}.latency_cycles"),
            || format!("{} (1 to 100000)", self.latency_cycles),
        )
    }
}

impl Memory {
    fn validate(&self) -> Result<(), ConfigError> {
        let time = |key: &str, ns: f64| {
            require(ns.is_finite() && (0.0..=1e6).contains(&ns), key, || {
                format!("{ns} ns (0 to 1000000)")
            })
        };
        match self {
            Self::Ddr4 {
                channels,
                ranks,
                banks,
                row_bytes,
                data_rate_mts,
                cl_ns,
                rcd_ns,
                rp_ns,
                controller_ns,
            } => {
                for (key, value) in [
                    ("memory.channels", *channels),
                    ("memory.ranks", *ranks),
                    ("memory.banks", *banks),
                ] {
                    require(value.is_power_of_two() && value <= 1024, key, || {
                        format!("{value} is no power of two up to 1024")
                    })?;
                }
                require(
                    row_bytes.is_power_of_two() && (64..=1 << 20).contains(row_bytes),
                    "memory.row_bytes",
                    || format!("{row_bytes} is no power of two between 64 and 1 MiB"),
                )?;
                require(*data_rate_mts > 0, "memory.data_rate_mts", || "must be positive".into())?;
                time("memory.cl_ns", *cl_ns)?;
                time("memory.rcd_ns", *rcd_ns)?;
                time("memory.rp_ns", *rp_ns)?;
                time("memory.controller_ns", *controller_ns)
            }
            Self::Fixed { latency_ns, bandwidth_gbs } => {
                time("memory.latency_ns", *latency_ns)?;
                let sane = bandwidth_gbs.is_finite() && *bandwidth_gbs > 0.0;
                require(sane, "memory.bandwidth_gbs", || "must be positive".into())
            }
        }
    }
}

impl Tlbs {
    fn validate(&self) -> Result<(), ConfigError> {
        for (name, arrays, optional) in
            [("l1i", &self.l1i, true), ("l1d", &self.l1d, false), ("l2", &self.l2, true)]
        {
            let holds_base = arrays.iter().any(|a| a.pages.contains(&PageSize::Base));
            require(holds_base || (optional && arrays.is_empty()), &format!("tlb.{name}"), || {
                "no array holds 4K pages".to_owned()
            })?;
            validate_arrays(&format!("tlb.{name}"), arrays)?;
        }
        Ok(())
    }
}

/// Checks the arrays of one TLB, which stands at `key`.
fn validate_arrays(key: &str, arrays: &[Tlb]) -> Result<(), ConfigError> {
    let mut seen = Vec::new();
    for array in arrays {
        for &page in &array.pages {
            require(!seen.contains(&page), key, || {
                format!("two arrays hold {} pages", page.name())
            })?;
            seen.push(page);
        }
        require(!array.pages.is_empty(), key, || "an array holds no pages".into())?;
        let sets = array.entries / array.ways.max(1);
        require(
            array.ways > 0
                && sets * array.ways == array.entries
                && sets.is_power_of_two()
                && array.entries <= 1 << 24
                && array.ways <= crate::memory::ways::MOST,
            key,
            || {
                format!(
                    "{} entries in {} ways is no power of two of sets",
                    array.entries, array.ways
                )
            },
        )?;
        require((1..=1000).contains(&array.latency_cycles), key, || {
            format!("a latency of {} cycles (1 to 1000)", array.latency_cycles)
        })?;
    }
    Ok(())
}

impl Virtualisation {
    fn validate(&self) -> Result<(), ConfigError> {
        self.pwc.validate("virtualisation.pwc")?;
        validate_arrays("virtualisation.nested_tlb", &self.nested_tlb)?;
        require(self.exit_cycles <= 1_000_000, "virtualisation.exit_cycles", || {
            format!("{} cycles (0 to 1000000)", self.exit_cycles)
        })
    }
}

impl HashedWalks {
    fn validate(&self) -> Result<(), ConfigError> {
        for (level, &n) in &self.cwc_entries {
            let key = format!("hashed_walks.cwc_entries.{level}");
            require(matches!(level.as_str(), "L2" | "L3"), &key, || {
                "side lines are for L2 and L3".into()
            })?;
            require(n <= 65_536, &key, || format!("{n} entries (0 to 65536)"))?;
        }
        for (key, cycles) in [
            ("hashed_walks.hash_cycles", self.hash_cycles),
            ("hashed_walks.cwc_latency_cycles", self.cwc_latency_cycles),
        ] {
            require(cycles <= 1000, key, || format!("{cycles} cycles (0 to 1000)"))?;
        }
        Ok(())
    }
}

impl Pwc {
    fn validate(&self, key: &str) -> Result<(), ConfigError> {
        match self {
            Self::Split { entries, .. } => {
                for (level, &n) in entries {
                    let known = matches!(level.as_str(), "L2" | "L3" | "L4" | "L5" | "L6");
                    require(known, &format!("{key}.entries.{level}"), || {
                        "structures are L2 to L6".into()
                    })?;
                    require(n <= 65_536, &format!("{key}.entries.{level}"), || {
                        format!("{n} entries (0 to 65536)")
                    })?;
                }
                Ok(())
            }
            Self::Unified { entries, ways, .. } => {
                let sets = entries / (*ways).max(1);
                require(
                    (1..=crate::memory::ways::MOST).contains(ways)
                        && sets * ways == *entries
                        && sets.is_power_of_two(),
                    &format!("{key}.entries"),
                    || format!("{entries} entries in {ways} ways is no power of two of sets"),
                )
            }
            Self::None => Ok(()),
        }
    }
}
