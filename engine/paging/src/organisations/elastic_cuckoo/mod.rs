//! Elastic cuckoo page tables (ECPT): one probe away, in several places at once.
//!
//! Source: Skarlatos, Kokolis, Xu, Torrellas, "Elastic Cuckoo Page Tables: Rethinking Virtual Memory
//! Translation for Parallelism", ASPLOS 2020. What that leaves open is as in the public kernel of
//! EMT-Linux (2025), or as the line says.
//!
//! A table for each page size, in three ways; a page's entry is in one slot of one of them. A line of
//! 64 bytes has the entries of eight neighbouring pages, and its tag in their spare bits
//! ([`crate::keyed::line`]).
//!
//! A walk hashes the page's number of each size, once for each way, and reads all slots at once.
//! **Cuckoo walk tables** (for 2 MiB and 1 GiB pages, in two ways) say which sizes there are and in
//! which way: one byte for each line of large pages, 64 to a line. Caches of their lines (the
//! simulator's `[hashed_walks]`) spare most probes:
//! ```text
//!   7..5  4..3  2   1   0
//!   tag   way   1G  2M  4K     smaller pages in the region; the line of the table's own size, and its way
//! ```
//! **Elastic**: a table that is crowded gets ways of four times the size. Each way has a rehash
//! pointer; slots below it have been carried over to the new way, so that a walk still reads one slot
//! of each way. Each insertion of a line carries some slots over. Ways are contiguous physical
//! memory. Where there is none, ways grow to twice the size only, or not at all, and that is tried
//! again as the table fills; a line that finds no slot then is out of memory.
//!
//! Parameters: `ways` of a table; `initial_entries`, lines in each; `grow_occupancy`, the share of slots
//! from which on a table grows `growth_factor` times; `shrink_occupancy`, below which it shrinks by
//! half (until a removal finds it there, and to the first size at the least); `walk_table_entries`,
//! lines in each way of both walk tables.
//!
//! Departs from the paper:
//! - The hash is a multiplication, and a way's larger successor is indexed by more bits of the same
//!   hash; the paper has CRC units.
//! - Tags have 35 bits, so page tables of five levels do not fit.
//! - Walk tables are elastic too, and their lines tagged in the three spare bits of each header.
//! - 1 GiB pages have a table, made like that of 2 MiB pages when the first is mapped.

mod cuckoo;
mod format;
mod store;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{NewLayout, permille};
use crate::addr::Physical;
use crate::error::LayoutError;
use crate::geometry::{Geometry, page_name};
use crate::keyed::line::{ENTRIES_SHIFT, fits_tag};
use crate::keyed::{Design, LineRead, MakeStore, ReadWords, SideLineCount, SideStructure, Store};
use crate::layout::Layout;

use cuckoo::{Elasticity, MOST_WAYS};
use format::HEADERS;
use store::{Ecpt, Shape, WALK_TABLE, walk_table_class, walk_table_name};

/// The most lines that a way begins with: blocks of memory have 1 GiB at most.
const MOST_ENTRIES: u32 = 1 << 20;

/// Parameters of elastic cuckoo page tables.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Ways of each table.
    #[schemars(range(min = 2, max = 4))]
    pub ways: u32,
    /// Lines of eight entries in each way of a new table; a power of two.
    #[schemars(range(min = 64, max = 1_048_576))]
    pub initial_entries: u32,
    /// Share of slots in use above which a table grows, more than 0.
    #[schemars(range(min = 0.0, max = 0.9))]
    pub grow_occupancy: f64,
    /// To how many times its size: 2, 4 or 8.
    #[schemars(range(min = 2, max = 8))]
    pub growth_factor: u32,
    /// Share of slots in use below which a table shrinks by half; less than half of `grow_occupancy`.
    #[schemars(range(min = 0.0, max = 0.45))]
    pub shrink_occupancy: f64,
    /// Lines in each way of the walk tables for levels 2 and 3, powers of two from 64 to 1048576, if
    /// there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk_table_entries: Option<[u32; 2]>,
}

impl NewLayout for Parameters {
    const NAME: &str = "elastic_cuckoo";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        let Self { ways, initial_entries, grow_occupancy, growth_factor, shrink_occupancy, .. } =
            self;
        fits_tag(Self::NAME, geometry)?;
        let wrong = |key, problem: &str| Err(LayoutError::value(Self::NAME, key, problem));
        if !(2..=MOST_WAYS as u32).contains(&ways) {
            return wrong("ways", "must be 2 to 4");
        }
        let is_size = |n: u32| n.is_power_of_two() && (64..=MOST_ENTRIES).contains(&n);
        if !is_size(initial_entries) {
            return wrong("initial_entries", "must be a power of two, 64 to 1048576");
        }
        if !self.walk_table_entries.is_none_or(|entries| entries.into_iter().all(is_size)) {
            return wrong("walk_table_entries", "must be two powers of two, 64 to 1048576");
        }
        if !matches!(growth_factor, 2 | 4 | 8) {
            return wrong("growth_factor", "must be 2, 4 or 8");
        }
        if !(0.0..=0.9).contains(&grow_occupancy) || grow_occupancy == 0.0 {
            return wrong(
                "grow_occupancy",
                "must be more than 0 and at most 0.9: cuckoo tables cannot be filled",
            );
        }
        if !(0.0..grow_occupancy / 2.0).contains(&shrink_occupancy) {
            return wrong("shrink_occupancy", "must be less than half of grow_occupancy");
        }
        let shift = |entries: u32| entries.ilog2() as u8;
        Ok(Layout::keyed(
            geometry,
            ElasticCuckoo(Shape {
                ways: ways as u8,
                first_shift: shift(initial_entries),
                elasticity: Elasticity {
                    grow_permille: permille(grow_occupancy),
                    grow_shift: shift(growth_factor),
                    shrink_permille: permille(shrink_occupancy),
                },
                walk_tables: self.walk_table_entries.map(|entries| entries.map(shift)),
            }),
        ))
    }

    fn examples() -> Vec<Value> {
        let small = |ways: u32, lines: u32, grow: f64, walk_tables: Option<[u32; 2]>| {
            json!({
                "ways": ways, "initial_entries": lines, "grow_occupancy": grow,
                "growth_factor": 4, "shrink_occupancy": grow / 2.5,
                "walk_table_entries": walk_tables,
            })
        };
        vec![
            small(3, 64, 0.05, Some([64, 64])),
            small(2, 64, 0.02, None),
            small(4, 128, 0.9, Some([64, 128])),
        ]
    }
}

#[derive(Debug)]
struct ElasticCuckoo(Shape);

impl<Out: Physical> MakeStore<Out> for ElasticCuckoo {
    fn make(&self, geometry: Geometry) -> Box<dyn Store<Out>> {
        Box::new(Ecpt::new(geometry, self.0))
    }
}

impl Design for ElasticCuckoo {
    fn read_names(&self) -> Vec<(u8, String)> {
        let tables = [2, 3].map(|l| (walk_table_class(l), walk_table_name(l).to_owned()));
        let pages = [1, 2, 3].map(|level| (level, page_name(level).to_owned()));
        tables.into_iter().chain(pages).collect()
    }

    fn side_structures(&self) -> Vec<SideStructure> {
        if self.0.walk_tables.is_none() {
            return Vec::new();
        }
        let caches = [("PMD-CWC", "L2"), ("PUD-CWC", "L3")].map(|(cache, level)| SideStructure {
            cache: cache.to_owned(),
            lines: SideLineCount::Machine(level),
            needed: false,
        });
        caches.into()
    }

    fn pages_shift(&self, read: &LineRead) -> u8 {
        ENTRIES_SHIFT as u8 + if read.kind == WALK_TABLE { HEADERS.ilog2() as u8 } else { 0 }
    }

    fn explain(&self, read: &LineRead, bits: &str) -> ReadWords {
        let LineRead { level, kind, way, number, found } = *read;
        let (table, meaning) = match (kind, found) {
            (WALK_TABLE, true) => (walk_table_name(level), Some("says which sizes there are")),
            (WALK_TABLE, false) => (walk_table_name(level), Some("is another")),
            (_, true) => (page_name(level), None),
            (_, false) => (page_name(level), Some("does not hold the page")),
        };
        ReadWords {
            table: table.to_owned(),
            place: format!("way {way}"),
            index: number,
            found_by: format!("{bits} hashes to line {number}"),
            meaning: meaning.map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: Parameters = Parameters {
        ways: 3,
        initial_entries: 16384,
        grow_occupancy: 0.6,
        growth_factor: 4,
        shrink_occupancy: 0.2,
        walk_table_entries: Some([4096, 2048]),
    };

    #[test]
    fn parameters_are_checked() {
        assert!(PAPER.layout(Geometry::X86_4).is_ok_and(|layout| layout.groups().is_empty()));
        assert_eq!(PAPER.layout(Geometry::X86_5).unwrap_err().key(), Some("levels"));
        for (key, wrong) in [
            ("ways", Parameters { ways: 1, ..PAPER }),
            ("ways", Parameters { ways: 5, ..PAPER }),
            ("initial_entries", Parameters { initial_entries: 0, ..PAPER }),
            ("initial_entries", Parameters { initial_entries: 100, ..PAPER }),
            ("walk_table_entries", Parameters { walk_table_entries: Some([64, 32]), ..PAPER }),
            ("growth_factor", Parameters { growth_factor: 1, ..PAPER }),
            ("grow_occupancy", Parameters { grow_occupancy: f64::NAN, ..PAPER }),
            ("grow_occupancy", Parameters { grow_occupancy: 0.95, ..PAPER }),
            ("shrink_occupancy", Parameters { shrink_occupancy: 0.3, ..PAPER }),
            ("shrink_occupancy", Parameters { shrink_occupancy: -0.1, ..PAPER }),
        ] {
            let error = wrong.layout(Geometry::X86_4).unwrap_err();
            assert_eq!(error.key(), Some(key), "{wrong:?}");
        }
    }
}
