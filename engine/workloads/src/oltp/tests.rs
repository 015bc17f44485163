//! The database against its specification.

use std::collections::HashMap;

use super::tables::Scale;
use super::terminal::{Transaction, Who};
use super::*;
use crate::simulated::Native;

/// The tables as maps from their keys, and the transactions as their specification says.
#[derive(Default)]
struct Model {
    ytd: HashMap<(usize, usize), u64>,
    orders: HashMap<(usize, usize), u32>,
    /// Paid and number of payments.
    customers: HashMap<(usize, usize, usize), (u64, u32)>,
    /// Taken and number of orders.
    stock: HashMap<(usize, usize), (u32, u32)>,
}

impl Model {
    fn run(&mut self, database: &Database, transaction: &Transaction) {
        match *transaction {
            Transaction::Payment { warehouse, district, home, who, cents } => {
                *self.ytd.entry((warehouse, district)).or_default() += cents;
                let number = match who {
                    Who::Number(number) => number,
                    Who::Name(name) => {
                        let all = 0..database.scale.customers;
                        let bearers: Vec<_> =
                            all.filter(|&c| c % database.scale.names() == name).collect();
                        bearers[bearers.len().div_ceil(2) - 1]
                    }
                };
                let entry = self.customers.entry((home.0, home.1, number)).or_default();
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
    for (size_bytes, warehouses) in [(1 << 20, 1), (160 << 20, 2)] {
        let mut database = database(size_bytes);
        assert_eq!(database.scale.warehouses, warehouses);
        let initial = database.quantity.values.clone();
        let mut model = Model::default();
        for _ in 0..20_000 {
            let transaction = database.terminal.draw();
            model.run(&database, &transaction);
            database.run(&mut Native, &transaction);
        }
        let Scale { customers, items, .. } = database.scale;
        for warehouse in 0..warehouses {
            // TPC-C's consistency condition 1.
            let districts = &database.district_ytd.values[warehouse * 10..][..10];
            assert_eq!(database.warehouse_ytd.values[warehouse], districts.iter().sum::<u64>());
            for district in 0..10 {
                let row = warehouse * 10 + district;
                let ytd = model.ytd.get(&(warehouse, district)).copied().unwrap_or(0);
                assert_eq!(database.district_ytd.values[row], ytd);
                let orders = model.orders.get(&(warehouse, district)).copied().unwrap_or(0);
                assert_eq!(database.next_order.values[row], orders + customers as u32);
                for customer in 0..customers {
                    let key = (warehouse, district, customer);
                    let (paid, number) = model.customers.get(&key).copied().unwrap_or_default();
                    let row = row * customers + customer;
                    assert_eq!(database.customer_ytd.values[row], paid, "{key:?}");
                    assert_eq!(database.balance.values[row], -paid.cast_signed());
                    assert_eq!(database.payments.values[row], number);
                }
            }
            for item in 0..items {
                let (taken, orders) =
                    model.stock.get(&(warehouse, item)).copied().unwrap_or_default();
                let row = warehouse * items + item;
                assert_eq!(database.stock_ytd.values[row], taken);
                assert_eq!(database.stock_orders.values[row], orders);
                // What was taken has been refilled in lots of 91.
                let (before, now) =
                    (u32::from(initial[row]), u32::from(database.quantity.values[row]));
                assert!(now >= 10 || now == before, "{now}");
                assert_eq!((before + 91 * taken - taken) % 91, now % 91);
            }
        }
        let lines: u32 = model.stock.values().map(|stock| stock.1).sum();
        assert_eq!(u64::from(lines), database.lines.iter().sum::<u64>());
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
    for size_bytes in [64 << 10, 128 << 10, 5 << 20, 64 << 20, 100 << 20, 1 << 30, 10 << 30] {
        let shape = Shape::of(&Arguments::new(size_bytes, 1));
        let bytes = shape.layout.bytes();
        assert!(bytes <= size_bytes && bytes > size_bytes - size_bytes / 50, "{:?}", shape.scale);
        if size_bytes > 90 << 20 {
            assert!(shape.scale.customers >= 3000 && shape.scale.items >= 100_000);
        }
    }
    assert_eq!(Shape::of(&Arguments::new(1 << 30, 1)).scale.warehouses, 14);
    assert_eq!(Shape::of(&Arguments::new(2270 << 20, 1)).scale.warehouses, 32);
}
