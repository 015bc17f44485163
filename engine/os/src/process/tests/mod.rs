//! The process against independent models: what is mapped where (page by page), what each page
//! holds, which frames are in use, and hardware that caches every translation until it is flushed.

mod event;
mod fault;
mod hardware;
mod large_pages;
mod model;
mod operation;
mod populate;
mod property;
mod recursive;
mod shape;
mod unmap;

use flatwalk_paging::{
    AccessKind, Address, Geometry, Gva, Hpa, Layout, Mapping, PageTable, organisations,
};
use flatwalk_trace::{Advice, Backing, Event, Protection};
use serde_json::{Value, json};

use super::rights::{permits, rights};
use super::{Configuration, FaultKind, FaultOutcome, Process, Statistics};
use crate::error::OsError;
use crate::policy::{LargePages, Thp};
use crate::testing::layout;
use crate::vma::Pages;

const RW: Protection = Protection { read: true, write: true, execute: false };
const RX: Protection = Protection { read: true, write: false, execute: true };
const RO: Protection = Protection { read: true, write: false, execute: false };
const NONE: Protection = Protection { read: false, write: false, execute: false };

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

fn layout_of(organisation: &str, geometry: Geometry, parameters: &Value) -> Layout {
    let parameters = parameters.as_object().unwrap();
    organisations::layout(organisation, geometry, parameters).unwrap()
}

/// With the NF rule.
fn guarded(geometry: Geometry, flatten: &[&str], no_flatten_threshold: u32) -> Layout {
    if flatten.is_empty() {
        return layout_of("radix", geometry, &json!({}));
    }
    let parameters = json!({ "flatten": flatten, "no_flatten_threshold": no_flatten_threshold });
    layout_of("flattened", geometry, &parameters)
}

/// A table whose nodes are merged from `merge` of their entries on.
fn merging(geometry: Geometry, merge: u32, unmerge: u32) -> Layout {
    let share = |slots: u32| f64::from(slots) / geometry.node_entries(1) as f64;
    let parameters = json!({
        "merge_fraction": share(merge), "unmerge_fraction": share(unmerge), "merge_us": 0,
    });
    layout_of("compendia", geometry, &parameters)
}

/// Every layout worth testing.
fn layouts() -> Vec<Layout> {
    vec![
        layout(Geometry::X86_4, &[]),
        layout(Geometry::X86_3, &[]),
        layout(Geometry::X86_4, &["L4L3", "L2L1"]),
        layout(Geometry::X86_4, &["L2L1"]),
        layout(Geometry::X86_4, &["L3L2"]),
        layout(Geometry::X86_5, &["L5L4", "L3L2"]),
        layout(Geometry::X86_4, &["L4L3L2"]),
        merging(Geometry::X86_4, 2, 1),
        merging(Geometry::X86_4, 3, 3),
        merging(Geometry::X86_5, 2, 2),
        elastic_cuckoo(64, 0.1, Some([64, 64])),
        elastic_cuckoo(128, 0.6, None),
        chained("hashed"),
        chained("clustered"),
        chained("open"),
        inverted(),
    ]
}

/// One entry for each frame.
fn inverted() -> Layout {
    layout_of("inverted", Geometry::X86_4, &json!({}))
}

/// Tables with chains, or with lines behind each other.
fn chained(organisation: &str) -> Layout {
    layout_of(organisation, Geometry::X86_4, &json!({ "buckets": 32 }))
}

/// Tables of `elastic_cuckoo` with such ways at first.
fn elastic_cuckoo(
    initial_entries: u32,
    grow_occupancy: f64,
    walk_tables: Option<[u32; 2]>,
) -> Layout {
    let parameters = json!({
        "ways": 3, "initial_entries": initial_entries, "grow_occupancy": grow_occupancy,
        "growth_factor": 4, "shrink_occupancy": grow_occupancy / 3.0,
        "walk_table_entries": walk_tables,
    });
    layout_of("elastic_cuckoo", Geometry::X86_4, &parameters)
}

fn configuration(layout: Layout, large_pages: LargePages) -> Configuration {
    Configuration { large_pages, ..Configuration::new(layout, GIB) }
}

fn none() -> LargePages {
    LargePages::Below { boundary: 0 }
}

fn all() -> LargePages {
    LargePages::Below { boundary: u64::MAX }
}

fn fpt() -> Layout {
    layout(Geometry::X86_4, &["L4L3", "L2L1"])
}

fn map(address: u64, length: u64, protection: Protection) -> Event {
    Event::Map { address, length, protection, backing: Backing::Anonymous, shared: false }
}

/// A process with one anonymous read-write area.
fn process(configuration: &Configuration, address: u64, length: u64) -> Process {
    let mut process = Process::new(configuration).unwrap();
    let _ = process.apply(&map(address, length, RW)).unwrap();
    process
}

fn touch(process: &mut Process, address: u64) -> FaultOutcome {
    process.fault(Gva::new(address), AccessKind::Store).unwrap()
}

/// Every page that is mapped in the places that the operations below reach.
fn mappings(process: &Process) -> Vec<Mapping<Gva, Hpa>> {
    let mut found = Vec::new();
    for start in [0, GIB - 2 * LARGE, 100 * GIB, 200 * GIB] {
        process.visit(start / PAGE..start / PAGE + 12 * 512, &mut found).unwrap();
    }
    found
}

/// The base pages of a page, with the address of each one's frame.
trait EnumerateFrames {
    fn enumerate_frames(self, frame: Hpa) -> impl Iterator<Item = (u64, u64)>;
}

impl EnumerateFrames for Pages {
    fn enumerate_frames(self, frame: Hpa) -> impl Iterator<Item = (u64, u64)> {
        self.enumerate().map(move |(i, page)| (page, frame.raw() + i as u64 * PAGE))
    }
}
