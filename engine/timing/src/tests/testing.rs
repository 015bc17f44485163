//! A small machine whose latencies can be computed by hand.

use std::path::Path;
use std::sync::Arc;

use flatwalk_trace::{
    Access, Backing, Block, Branch, Event, Instruction, Item, Operands, Protection, Slice, Source,
    SourceInfo, TraceError,
};

use crate::ConfigError;
use crate::config::machine::Machine;
use crate::config::scheme::{HostTable, Scheme};
use crate::config::table::Moved;
use crate::core::decode::BlockDecoder;
use crate::counts::forget;
use crate::driver::piece::Piece;
use crate::driver::run::{Mode, Run, RunConfiguration};
use flatwalk_os::Placement;

/// A source that panics where its first piece is read.
pub struct Panicking(pub SourceInfo);

impl Panicking {
    /// What it leaves.
    pub const LEFT: u64 = 0x1eaf;
}

impl Source for Panicking {
    fn info(&self) -> &SourceInfo {
        &self.0
    }

    fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        std::panic::resume_unwind(Box::new(Self::LEFT)) // a panic that prints nothing
    }
}

/// A source that gives pieces in their order.
pub struct Pieces {
    /// What is known of them.
    pub info: SourceInfo,
    items: std::vec::IntoIter<Item>,
}

impl Pieces {
    /// Of so many instructions, and so many more in gaps between segments of a length, if there are any.
    pub fn new(items: Vec<Item>, instructions: u64, gaps: Option<(u64, u64)>) -> Self {
        let info = SourceInfo {
            name: "pieces".to_owned(),
            hash: String::new(),
            instructions: Some(instructions),
            touched: vec![(DATA, DATA + (2 << 20))],
            gap_instructions: gaps.map_or(0, |(in_gaps, _)| in_gaps),
            segment_instructions: gaps.map(|(_, segment)| segment),
            gap_pages: false,
        };
        Self { info, items: items.into_iter() }
    }
}

impl Source for Pieces {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        Ok(self.items.next())
    }
}

/// A block of two instructions, the second of which is a conditional branch.
pub fn branching_block(id: u32) -> Item {
    let instruction = |pc, branch| Instruction {
        pc,
        length: 4,
        operands: Operands::Registers { reads: [0; 4], writes: [0; 4], branch },
    };
    let pc = 0x40_0000 + 8 * u64::from(id);
    let instructions = [instruction(pc, Branch::None), instruction(pc + 4, Branch::Conditional)];
    Item::Define {
        id,
        block: Block { instructions: instructions.into(), accesses: [].into() }.into(),
    }
}

/// 1 GHz, so that a cycle is a nanosecond; L1 4, L2 12, LLC 42 cycles, memory 100 more; tiny caches.
pub fn machine() -> Machine {
    let cache = |size_bytes: u64, ways: u32, latency_cycles: u64, mshrs: u32| {
        serde_json::json!({
            "size_bytes": size_bytes, "ways": ways, "latency_cycles": latency_cycles,
            "mshrs": mshrs,
        })
    };
    let machine = serde_json::json!({
        "name": "test", "title": "test", "source": "none", "frequency_mhz": 1000,
        "core": {
            "width": 4, "window": 64, "load_queue": 32, "store_queue": 32, "frontend_cycles": 5,
            "branch_predictor": "gshare", "branch_history_bits": 10,
        },
        "l1i": cache(512, 2, 4, 2),
        "l1d": cache(512, 2, 4, 2),
        "l2": cache(4096, 4, 12, 8),
        "llc": cache(65536, 8, 42, 16),
        "memory": { "kind": "fixed", "latency_ns": 100.0, "bandwidth_gbs": 64.0 },
        "tlb": {
            "l1i": [{ "pages": ["4K", "2M", "1G"], "entries": 4, "ways": 4, "latency_cycles": 1 }],
            "l1d": [{ "pages": ["4K"], "entries": 4, "ways": 2, "latency_cycles": 1 },
                    { "pages": ["2M"], "entries": 2, "ways": 2, "latency_cycles": 1 }],
            "l2": [{ "pages": ["4K", "2M"], "entries": 16, "ways": 4, "latency_cycles": 9 }],
        },
        "pwc": { "kind": "split", "latency_cycles": 1,
                 "entries": { "L5": 4, "L4": 4, "L3": 4, "L2": 24 } },
        "walker": { "concurrent": 2, "entry": "l1d" },
        "hashed_walks": { "hash_cycles": 2, "cwc_latency_cycles": 1,
                          "cwc_entries": { "L2": 16, "L3": 2 }, "end": "matching_probe" },
        "virtualisation": {
            "pwc": { "kind": "split", "latency_cycles": 1,
                     "entries": { "L5": 4, "L4": 4, "L3": 4, "L2": 24 } },
            "nested_tlb": [{ "pages": ["4K", "2M"], "entries": 16, "ways": 16,
                             "latency_cycles": 1 }],
            "guest_pwc": "guest_physical", "exit_cycles": 1500,
        },
        "page_table_priority": { "evict_data_percent": 99, "window_instructions": 10000,
                      "enter_l2_tlb_mpki": 1.0, "enter_l2_data_miss_ratio": 0.5,
                      "exit_fraction": 0.5 },
        "os": { "fault_cycles": 1000, "zero_bytes_per_cycle": 16, "memory_bytes": 1u64 << 35 },
    });
    let machine: Machine = serde_json::from_value(machine).expect("the test machine reads");
    machine.validate().expect("the test machine is valid");
    machine
}

/// A scheme with a table as its section says.
pub fn scheme_with(table: &serde_json::Value) -> Scheme {
    serde_json::from_value(serde_json::json!({
        "name": "test", "title": "test", "description": "test", "source": "none", "table": table,
    }))
    .expect("the test scheme reads")
}

/// A scheme by flattened groups.
pub fn scheme(levels: u8, flatten: &[&str]) -> Scheme {
    scheme_with(&if flatten.is_empty() {
        serde_json::json!({ "organisation": "radix", "levels": levels })
    } else {
        serde_json::json!({ "organisation": "flattened", "levels": levels, "flatten": flatten })
    })
}

/// A host's table by flattened groups.
pub fn host_table(levels: u8, flatten: &[&str]) -> HostTable {
    as_host(scheme(levels, flatten))
}

/// A scheme of four levels that merges nodes from `merge` of their 512 entries on, takes them apart
/// below `unmerge`, and needs `merge_us` for it.
pub fn merging_scheme(merge: u32, unmerge: u32, merge_us: f64) -> Scheme {
    let share = |entries: u32| f64::from(entries) / 512.0;
    scheme_with(&serde_json::json!({
        "organisation": "compendia", "levels": 4, "merge_fraction": share(merge),
        "unmerge_fraction": share(unmerge), "merge_us": merge_us,
    }))
}

/// An `elastic_cuckoo` scheme of four levels whose ways have `entries` lines at first, with or without
/// walk tables.
pub fn cuckoo_scheme(entries: u32, walk_tables: bool) -> Scheme {
    scheme_with(&serde_json::json!({
        "organisation": "elastic_cuckoo", "levels": 4, "ways": 3, "initial_entries": entries,
        "grow_occupancy": 0.6, "growth_factor": 4, "shrink_occupancy": 0.2,
        "walk_table_entries": walk_tables.then_some([64, 64]),
    }))
}

/// A scheme with an inverted table, of four levels.
pub fn inverted_scheme() -> Scheme {
    scheme_with(&serde_json::json!({ "organisation": "inverted", "levels": 4 }))
}

/// A scheme of an organisation with chains, of four levels, with so many buckets at first.
pub fn chained_scheme(organisation: &str, buckets: u32) -> Scheme {
    scheme_with(&serde_json::json!({
        "organisation": organisation, "levels": 4, "buckets": buckets,
    }))
}

/// The table of `scheme`, as a host's.
pub fn as_host(scheme: Scheme) -> HostTable {
    HostTable { table: scheme.table, organisation: Moved, mechanisms: scheme.mechanisms }
}

/// The schemes that come with flatwalk, but for those without a table of their own: they need a trace
/// that has one.
pub fn shipped() -> Vec<Scheme> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/flatwalk/data/schemes");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut schemes: Vec<Scheme> = files
        .map(|path| toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
        .collect();
    schemes.retain(|scheme| !scheme.recorded);
    schemes.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(schemes.len() >= 11);
    schemes
}

/// A machine that comes with flatwalk.
pub fn shipped_machine(name: &str) -> Machine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/flatwalk/data/machines");
    let text = std::fs::read_to_string(folder.join(name).with_extension("toml")).unwrap();
    toml::from_str(&text).unwrap()
}

/// Where the tests' data lies.
pub const DATA: u64 = 1 << 40;

/// A run of single loads and stores, each an instruction of its own.
pub struct Scenario {
    /// The machine; no instruction TLB, so that all walks are for data.
    pub machine: Machine,
    /// The scheme.
    pub scheme: Scheme,
    /// Per cent of large pages.
    pub large_pages: u8,
    /// Per cent of the guest's memory that the host backs with large pages.
    pub host_large_pages: u8,
    /// Share of large blocks that cannot be had whole.
    pub fragmentation: f64,
    /// When another process takes the core.
    pub context_switch_ms: Option<f64>,
    /// With or without a clock.
    pub mode: Mode,
    /// Cores that threads run on, at most.
    pub cores: Option<u32>,
}

/// How an access hangs together with the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// A load that depends on nothing.
    Load(u64),
    /// A load whose address is the result of the last such load.
    Chase(u64),
    /// A store.
    Store(u64),
}

impl Scenario {
    /// `scheme` on the test machine, in timing mode with base pages.
    pub fn new(scheme: Scheme) -> Self {
        let mut machine = machine();
        machine.tlb.l1i.clear();
        Self {
            machine,
            scheme,
            large_pages: 0,
            host_large_pages: 0,
            fragmentation: 0.0,
            context_switch_ms: None,
            mode: Mode::Timing,
            cores: None,
        }
    }

    /// What is run.
    pub fn configuration(&self) -> RunConfiguration {
        RunConfiguration {
            scheme: self.scheme.clone(),
            machine: self.machine.clone(),
            settings: serde_json::Map::new(),
            large_pages: Some(self.large_pages),
            thp: None,
            fragmentation: self.fragmentation,
            // Pages of a shadow can have all of them, or none.
            host_large_pages: match self.host_large_pages {
                1..100 if self.scheme.shadow => 0,
                percent => percent,
            },
            guest_frames: Placement::Compact,
            frames: Placement::Compact,
            mode: self.mode,
            context_switch_ms: self.context_switch_ms,
            memory_bytes: None,
            cores: self.cores,
        }
    }

    /// A run before anything is mapped, of a program that touches these ranges.
    fn begin(&self, mapped: &[(u64, u64)]) -> Result<Run, ConfigError> {
        let info = SourceInfo {
            name: "test".to_owned(),
            hash: String::new(),
            instructions: None,
            touched: mapped.iter().map(|&(start, length)| (start, start + length)).collect(),
            gap_instructions: 0,
            segment_instructions: None,
            gap_pages: false,
        };
        Run::new(self.configuration(), &info, 1)
    }

    /// Why it cannot be run.
    pub fn refused(&self) -> String {
        self.begin(&[]).err().expect("it is not to be run").to_string()
    }

    /// A run that has mapped `mapped` and, if `populate`, touched all of it.
    pub fn start(&self, mapped: &[(u64, u64)], populate: bool) -> Run {
        let mut run = self.begin(mapped).unwrap();
        for (id, access) in [(0, Do::Load(0)), (1, Do::Chase(0)), (2, Do::Store(0))] {
            let (reads, writes, store) = match access {
                Do::Load(_) => ([0; 4], [2, 0, 0, 0], false),
                Do::Chase(_) => ([1, 0, 0, 0], [1, 0, 0, 0], false),
                Do::Store(_) => ([0; 4], [0; 4], true),
            };
            let block = Block {
                instructions: [Instruction {
                    pc: 4 * id,
                    length: 4,
                    operands: Operands::Registers { reads, writes, branch: Branch::None },
                }]
                .into(),
                accesses: [Access { instruction: 0, size: 8, store }].into(),
            };
            run.take(&Piece::Define(Arc::new(BlockDecoder::default().decode(&block)))).unwrap();
        }
        for &(address, length) in mapped {
            let protection = Protection { read: true, write: true, execute: false };
            let backing = Backing::Anonymous;
            let map = Event::Map { address, length, protection, backing, shared: false };
            run.take(&Piece::Event(map)).unwrap();
            if populate {
                let store = true;
                run.take(&Piece::Event(Event::Populate { address, length, store })).unwrap();
            }
        }
        run
    }
}

/// Lets `run` make the accesses.
pub fn go(run: &mut Run, accesses: &[Do]) {
    go_on(run, 0, accesses);
}

/// Lets a thread of `run` make the accesses.
pub fn go_on(run: &mut Run, thread: u32, accesses: &[Do]) {
    let (blocks, addresses) = accesses
        .iter()
        .map(|access| match *access {
            Do::Load(address) => (0, address),
            Do::Chase(address) => (1, address),
            Do::Store(address) => (2, address),
        })
        .unzip();
    run.take(&Piece::Slice(Slice { thread, blocks, addresses })).unwrap();
}

/// Accesses and latency of the one walk that a load of `address` makes.
pub fn walk(run: &mut Run, address: u64) -> (u64, u64) {
    forget(|visit| run.mmu.counts(visit));
    go(run, &[Do::Chase(address)]);
    let total = run.mmu.statistics.total();
    assert_eq!(total.walks, 1);
    (total.accesses, total.latency_cycles)
}

/// The figures of the mechanism `name`, if the run has it.
pub fn figures<T: serde::de::DeserializeOwned>(run: &Run, name: &str) -> Option<T> {
    let mechanism = run.mmu.mechanisms().find(|mechanism| mechanism.name() == name)?;
    let figures = mechanism.result(&run.view())?;
    Some(serde_json::from_value(figures.into()).expect("these are its figures"))
}
