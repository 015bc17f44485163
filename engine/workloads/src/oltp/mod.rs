//! `oltp`: order entry with TPC-C's two main transactions, as `DBx1000` runs them: rows found through hash
//! indices, and copied.
//!
//! Source: TPC Benchmark C 5.11: cardinalities, skew and names; `DBx1000`
//! (github.com/yxymit/DBx1000; Yu et al., "Staring into the abyss", VLDB 2014):
//! `TPCC_full_schema.txt`, `tpcc_wl.cpp`, `tpcc_txn.cpp`, which runs New-Order and Payment in equal
//! parts. Structures and functions: [`crate::dbx1000`].
//!
//! ```text
//! row          128 bytes with its manager, 64 an index with its item and node, and data:
//! data         warehouse 128, district 128, customer 768, stock 384, item 128, in their size classes
//! not read     history 128, order 64, new order 64, order line 128: as many as TPC-C has initially
//! buckets      24 bytes: 4 an item (items), 4 an item (stock), 40 for a customer of a district (two indices)
//! ```
//!
//! The original's indices have as many buckets for any number of warehouses: from four on, lists grow, and
//! 32 warehouses have eight nodes of stock and of customers by number in each, of as many warehouses.
//!
//! New-Order reads its warehouse and customer and, for 5 to 15 lines, an item and its stock, which it
//! updates. Payment updates warehouse, district and customer, three of five found by name: the one in
//! the middle of the list, which is not sorted. What is updated is copied twice: into the transaction,
//! and back. One line in a hundred is supplied, and 15 % of the payments are made, at another warehouse.
//! As in the original, nothing is inserted, and no New-Order is rolled back.
//!
//! Departs from it: one thread, for all warehouses, where each of the original's keeps to one;
//! tables lie one after another, in the order of warehouses; queries are not in memory; all names
//! of a district have about the same number of customers. Below one warehouse's size, there are
//! fewer customers and items, and no orders and histories.

mod code;
mod database;
mod names;
mod tables;
mod terminal;
#[cfg(test)]
mod tests;

use flatwalk_trace::Source;

use self::code::Code;
use self::database::Database;
use self::tables::Shape;
use crate::simulated::program;
use crate::{Arguments, Description, Parameter, SEED};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "oltp",
    "TPC-C's New-Order and Payment in DBx1000: customers, items and stock through hash indices",
    1 << 40,
    &[
        Parameter {
            name: "size_bytes",
            description: "tables and indices, in bytes: 64 KiB to 1 TiB, about 172 MiB a warehouse \
                          (takes a fortieth as much memory)",
        },
        SEED,
    ],
    make,
);

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Database::new(shape, code, seed)
    })
}
