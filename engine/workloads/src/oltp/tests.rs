//! The database against its specification.

use std::collections::HashMap;

use super::tables::Scale;
use super::terminal::{Transaction, Who};
use super::*;
use crate::dbx1000::tests::Pointers;
use crate::open;
use crate::program::Assembler;
use crate::program::tests::play;
use crate::simulated::Native;

/// The tables as maps from their keys, and the transactions as their specification says.
#[derive(Default)]
struct Model {
    ytd: HashMap<(usize, usize), u64>,
    orders: HashMap<(usize, usize), u32>,
    /// Paid and number of payments.
    customers: HashMap<usize, (u64, u32)>,
    /// Customers by their names' keys, in the order of loading.
    bearers: HashMap<u64, Vec<usize>>,
    /// Taken and number of orders.
    stock: HashMap<(usize, usize), (u32, u32)>,
}

impl Model {
    fn new(scale: Scale) -> Self {
        let mut model = Self::default();
        for row in 0..scale.all_customers() {
            let (district, number) = (row / scale.customers, row % scale.customers);
            let key = names::key(number % scale.names(), district);
            model.bearers.entry(key).or_default().push(row);
        }
        model
    }

    fn run(&mut self, database: &Database, transaction: &Transaction) {
        match *transaction {
            Transaction::Payment { warehouse, district, home, who, cents } => {
                *self.ytd.entry((warehouse, district)).or_default() += cents;
                let Scale { customers, .. } = database.scale;
                let home = home.0 * 10 + home.1;
                let row = match who {
                    Who::Number(number) => home * customers + number,
                    // The list's latest customer is its first.
                    Who::Name(name) => {
                        let key = names::key(name, home);
                        let bearers = &self.bearers[&key];
                        bearers[bearers.len() - 1 - bearers.len() / 2]
                    }
                };
                let entry = self.customers.entry(row).or_default();
                *entry = (entry.0 + cents, entry.1 + 1);
            }
            Transaction::NewOrder { warehouse, district, ref lines, .. } => {
                *self.orders.entry((warehouse, district)).or_default() += 1;
                for line in lines {
                    let entry = self.stock.entry((line.supplier, line.item)).or_default();
                    *entry = (entry.0 + line.quantity, entry.1 + 1);
                }
            }
        }
    }
}

fn database(size_bytes: u64) -> Database {
    Database::new(Shape::of(&Arguments::new(size_bytes, 1)), Code::new(&mut Assembler::new()), 1)
}

#[test]
fn the_tables_hold_what_the_transactions_did() {
    // One small warehouse, and two full ones.
    for (size_bytes, warehouses) in [(1 << 20, 1), (400 << 20, 2)] {
        let mut database = database(size_bytes);
        assert_eq!(database.scale.warehouses, warehouses);
        let initial = database.quantity.clone();
        let mut model = Model::new(database.scale);
        for _ in 0..20_000 {
            let transaction = database.terminal.draw();
            model.run(&database, &transaction);
            let payer = database.run(&mut Native, &transaction);
            assert_eq!(payer.is_some(), matches!(transaction, Transaction::Payment { .. }));
        }
        let Scale { customers, items, .. } = database.scale;
        for warehouse in 0..warehouses {
            // TPC-C's consistency condition 1.
            let districts = &database.district_ytd[warehouse * 10..][..10];
            assert_eq!(database.warehouse_ytd[warehouse], districts.iter().sum::<u64>());
            for district in 0..10 {
                let row = warehouse * 10 + district;
                let ytd = model.ytd.get(&(warehouse, district)).copied().unwrap_or(0);
                assert_eq!(database.district_ytd[row], ytd);
                let orders = model.orders.get(&(warehouse, district)).copied().unwrap_or(0);
                assert_eq!(database.next_order[row], orders + customers as u32);
                for customer in 0..customers {
                    let row = row * customers + customer;
                    let (paid, number) = model.customers.get(&row).copied().unwrap_or_default();
                    assert_eq!(database.customer_ytd[row], paid, "{row}");
                    assert_eq!(database.balance[row], -paid.cast_signed());
                    assert_eq!(database.payments[row], number);
                }
            }
            for item in 0..items {
                let (taken, orders) =
                    model.stock.get(&(warehouse, item)).copied().unwrap_or_default();
                let row = warehouse * items + item;
                assert_eq!(database.stock_ytd[row], taken);
                assert_eq!(database.stock_orders[row], orders);
                // What was taken has been refilled in lots of 91.
                let (before, now) = (u32::from(initial[row]), u32::from(database.quantity[row]));
                assert!(now >= 10 || now == before, "{now}");
                assert_eq!((before + 91 * taken - taken) % 91, now % 91);
            }
        }
    }
}

#[test]
fn numbers_are_as_skewed_as_the_specification_has_them() {
    let mut terminal = database(64 << 20).terminal;
    let (bound, draws) = (3000, 300_000);
    let mut counts = vec![0_u32; bound];
    (0..draws).for_each(|_| counts[terminal.skewed(bound, 2)] += 1);
    // By enumeration: of all pairs of the 1024 and the 3000 numbers.
    let mut pairs = vec![0_u32; bound];
    for a in 0..1024 {
        (0..bound).for_each(|b| pairs[(a | b) % bound] += 1);
    }
    for (number, (&count, pairs)) in counts.iter().zip(pairs).enumerate() {
        let expected = f64::from(pairs) * f64::from(draws) / (1024.0 * 3000.0);
        let difference = (f64::from(count) - expected).abs();
        assert!(difference < 6.0 * expected.sqrt().max(1.0), "{number}: {count} {expected}");
    }
}

#[test]
fn sizes_are_filled() {
    for size_bytes in [64 << 10, 128 << 10, 5 << 20, 64 << 20, 250 << 20, 1 << 30, 10 << 30] {
        let shape = Shape::of(&Arguments::new(size_bytes, 1));
        let bytes = shape.layout.bytes();
        // Tables begin at pages.
        let least = size_bytes - size_bytes / 50 - (12 << 10);
        assert!(bytes <= size_bytes && bytes > least, "{:?}", shape.scale);
        if size_bytes > 230 << 20 {
            assert!(shape.scale.customers >= 3000 && shape.scale.items >= 100_000);
        }
    }
    assert_eq!(Shape::of(&Arguments::new(1 << 30, 1)).scale.warehouses, 5);
    let full = |mib: u64| Shape::of(&Arguments::new(mib << 20, 1)).scale.warehouses;
    assert_eq!((full(5556), full(5557)), (31, 32));
}

/// Each access to a row depends on the pointer to it, from the bucket on.
#[test]
fn rows_are_reached_through_pointers() {
    let arguments = Arguments::new(1 << 20, 1);
    let Shape { tables, indices, scale, .. } = Shape::of(&arguments);
    let mut pointers = Pointers::new(&[
        tables.warehouse,
        tables.district,
        tables.customer,
        tables.stock,
        tables.item,
    ]);
    pointers.load(&tables.warehouse, &indices.warehouse, |row| row as u64);
    pointers.load(&tables.district, &indices.district, |row| row as u64);
    pointers.load(&tables.customer, &indices.customer, |row| row as u64);
    pointers.load(&tables.stock, &indices.stock, |row| row as u64);
    pointers.load(&tables.item, &indices.item, |row| row as u64);
    let name =
        |row: usize| names::key(row % scale.customers % scale.names(), row / scale.customers);
    pointers.load(&tables.customer, &indices.name, name);
    let played = play(open("oltp", &arguments).unwrap()).1;
    let instructions: usize = played.iter().map(|(block, _)| block.instructions.len()).sum();
    let loads: usize = played.iter().map(|(block, addresses)| pointers.run(block, addresses)).sum();
    let each = |count: usize| count as f64 / (10 * scale.all_customers()) as f64;
    // A Payment takes three rows, and a New-Order some 22.
    assert!((7100.0..8100.0).contains(&each(instructions)), "{}", each(instructions));
    assert!((400.0..450.0).contains(&each(loads)), "{}", each(loads));
}

/// The original's buckets are those of four warehouses: what more there are make lists longer.
#[test]
fn lists_grow_with_warehouses() {
    let Shape { scale, indices, .. } = Shape::of(&Arguments::new(5557 << 20, 1));
    let stock = scale.warehouses * scale.items;
    assert_eq!(indices.stock.buckets, 4 * scale.items);
    assert_eq!(stock / indices.stock.buckets, 8);
    assert_eq!(scale.all_customers() / indices.customer.buckets, 8);
}
