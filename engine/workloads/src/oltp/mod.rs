//! `oltp`: order entry with TPC-C's two main transactions: rows found through B+-trees.
//!
//! Source: TPC Benchmark C 5.11: tables, cardinalities, row sizes and `NURand`; Yu et al., "Staring into
//! the abyss" (VLDB 2014), whose `DBx1000` runs New-Order and Payment in equal parts, as here.
//!
//! ```text
//! index      B+-trees of 512-byte nodes: customers by number, customers by name, stock, items
//! warehouse  96 bytes, district 96, customer 656, stock 312, item 88
//! history    48 bytes, order 24, new order 8, order line 56: in rings as large as the initial tables
//! ```
//!
//! New-Order reads its customer and, for 5 to 15 lines, an item and its stock, which it updates, and
//! appends the order. Payment updates warehouse, district and customer (three of five found by name)
//! and appends to the history. One line in a hundred is supplied, and 15 % of the payments are made,
//! at another warehouse.
//!
//! Departs from it: below one warehouse's size, there are fewer customers and items; in a district,
//! all names have about the same number of customers; warehouses and districts are arrays without
//! an index; no New-Order is rolled back; no concurrency control, no log.

mod code;
mod database;
mod tables;
mod terminal;
#[cfg(test)]
mod tests;

use flatwalk_trace::Source;

use self::code::Code;
use self::database::Database;
use self::tables::Shape;
use crate::program::Assembler;
use crate::simulated::program;
use crate::{Arguments, Description, Parameter, SEED};

pub(crate) const DESCRIPTION: Description = Description {
    name: "oltp",
    description: "TPC-C's New-Order and Payment: B+-tree descents to rows of customers, items and \
                  stock",
    default_size_bytes: 1 << 30,
    least_bytes: 64 << 10,
    greatest_bytes: 1 << 40,
    power_of_two: false,
    parameters: &[
        Parameter {
            name: "size_bytes",
            description: "tables and indices, in bytes: 64 KiB to 1 TiB, about 72 MiB a warehouse \
                          (takes a fortieth as much memory)",
        },
        SEED,
    ],
    make,
};

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    let mut assembler = Assembler::new();
    let code = Code::new(&mut assembler);
    let layout = shape.layout.clone();
    let build = move || Database::new(shape, code, seed);
    program(DESCRIPTION.name, arguments, &layout, assembler, build)
}
