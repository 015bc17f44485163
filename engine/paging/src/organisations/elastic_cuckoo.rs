//! Elastic cuckoo page tables (ECPT): one probe away, in several places at once.
//!
//! Source: Skarlatos, Kokolis, Xu, Torrellas, "Elastic Cuckoo Page Tables: Rethinking Virtual Memory
//! Translation for Parallelism", ASPLOS 2020. What that leaves open is as in the public kernel of
//! EMT-Linux (2025), or as the line says.
//!
//! A table for each page size, in three ways; a page's entry is in one slot of one of them. A line of
//! 64 bytes has the entries of eight neighbouring pages, and its tag in their spare bits:
//! ```text
//!   63 … 57   56..52            51 … 0            entry i of pages 8k to 8k + 7
//!   as usual  bits 5i+4..5i of k  as usual          i = 0 to 6
//!             how many are present                 i = 7
//! ```
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

use super::{Cuckoo, Layout, LayoutError, Organisation, Settings};
use crate::geometry::Geometry;
use crate::hashed::{Design, ENTRIES_SHIFT, Elasticity, MOST_WAYS, TAG_BITS};

pub(super) const ORGANISATION: Organisation = Organisation { name: "elastic_cuckoo", layout };

/// The most lines that a way begins with: blocks of memory have 1 GiB at most.
const MOST_ENTRIES: u32 = 1 << 20;

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.flatten_nothing("elastic_cuckoo")?;
    settings.merge_nothing("elastic_cuckoo")?;
    if settings.buckets.is_some() {
        return Err(LayoutError::NoChains("elastic_cuckoo"));
    }
    let cuckoo = settings.cuckoo.ok_or(LayoutError::NoCuckoo)?;
    let Cuckoo { ways, initial_entries, grow_occupancy, growth_factor, shrink_occupancy, .. } =
        cuckoo;
    fits_tag(geometry)?;
    let wrong = |key, problem: &str| Err(LayoutError::Cuckoo { key, problem: problem.to_owned() });
    if !(2..=MOST_WAYS as u32).contains(&ways) {
        return wrong("ways", "must be 2 to 4");
    }
    let is_size = |n: u32| n.is_power_of_two() && (64..=MOST_ENTRIES).contains(&n);
    if !is_size(initial_entries) {
        return wrong("initial_entries", "must be a power of two, 64 to 1048576");
    }
    if !cuckoo.walk_table_entries.is_none_or(|entries| entries.into_iter().all(is_size)) {
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
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let permille = |share: f64| (share * 1000.0).round() as u32;
    let shift = |entries: u32| entries.ilog2() as u8;
    let design = Design::Cuckoo {
        ways: ways as u8,
        first_shift: shift(initial_entries),
        elasticity: Elasticity {
            grow_permille: permille(grow_occupancy),
            grow_shift: shift(growth_factor),
            shrink_permille: permille(shrink_occupancy),
        },
        walk_tables: cuckoo.walk_table_entries.map(|entries| entries.map(shift)),
    };
    Ok(Layout::hashed(geometry, design))
}

/// Refuses geometries whose page numbers have more bits than a line's tag.
pub(super) fn fits_tag(geometry: Geometry) -> Result<(), LayoutError> {
    let bits = u32::from(geometry.address_bits() - geometry.page_shift());
    let bits = bits.saturating_sub(ENTRIES_SHIFT);
    if bits > TAG_BITS { Err(LayoutError::Tag { bits, most: TAG_BITS }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::Structure;
    use super::*;

    const PAPER: Cuckoo = Cuckoo {
        ways: 3,
        initial_entries: 16384,
        grow_occupancy: 0.6,
        growth_factor: 4,
        shrink_occupancy: 0.2,
        walk_table_entries: Some([4096, 2048]),
    };

    fn make(geometry: Geometry, cuckoo: Cuckoo) -> Result<Layout, LayoutError> {
        layout(geometry, &Settings { cuckoo: Some(cuckoo), ..Settings::default() })
    }

    #[test]
    fn parameters_are_read_and_checked() {
        let elasticity = Elasticity { grow_permille: 600, grow_shift: 2, shrink_permille: 200 };
        let walk_tables = Some([12, 11]);
        let design = Design::Cuckoo { ways: 3, first_shift: 14, elasticity, walk_tables };
        let layout = make(Geometry::X86_4, PAPER).unwrap();
        assert_eq!(layout.structure(), Structure::Hashed(design));
        assert!(layout.groups().is_empty());
        assert!(matches!(
            make(Geometry::X86_5, PAPER),
            Err(LayoutError::Tag { bits: 42, most: 35 })
        ));
        for (key, wrong) in [
            ("ways", Cuckoo { ways: 1, ..PAPER }),
            ("ways", Cuckoo { ways: 5, ..PAPER }),
            ("initial_entries", Cuckoo { initial_entries: 0, ..PAPER }),
            ("initial_entries", Cuckoo { initial_entries: 100, ..PAPER }),
            ("walk_table_entries", Cuckoo { walk_table_entries: Some([64, 32]), ..PAPER }),
            ("growth_factor", Cuckoo { growth_factor: 1, ..PAPER }),
            ("grow_occupancy", Cuckoo { grow_occupancy: f64::NAN, ..PAPER }),
            ("grow_occupancy", Cuckoo { grow_occupancy: 0.95, ..PAPER }),
            ("shrink_occupancy", Cuckoo { shrink_occupancy: 0.3, ..PAPER }),
            ("shrink_occupancy", Cuckoo { shrink_occupancy: -0.1, ..PAPER }),
        ] {
            match make(Geometry::X86_4, wrong) {
                Err(LayoutError::Cuckoo { key: found, .. }) => assert_eq!(found, key),
                other => panic!("{other:?} for {wrong:?}"),
            }
        }
        let none = Settings::default();
        assert_eq!(super::layout(Geometry::X86_4, &none), Err(LayoutError::NoCuckoo));
    }
}
