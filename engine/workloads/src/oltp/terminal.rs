//! Transactions, as terminals enter them.

use std::collections::HashSet;

use super::tables::{DISTRICTS, MOST_LINES, Scale};
use crate::rng::Random;

/// A customer, by number or by name, of a district.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Who {
    Number(usize),
    Name(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OrderLine {
    pub(super) item: usize,
    /// The warehouse that supplies it.
    pub(super) supplier: usize,
    pub(super) quantity: u32,
}

/// A transaction. Districts and customers are numbered within their warehouse or district.
#[derive(Clone, Debug)]
pub(super) enum Transaction {
    Payment {
        warehouse: usize,
        district: usize,
        /// Warehouse and district of the customer.
        home: (usize, usize),
        who: Who,
        cents: u64,
    },
    NewOrder {
        warehouse: usize,
        district: usize,
        customer: usize,
        lines: Vec<OrderLine>,
    },
}

/// Draws transactions as terminals enter them.
pub(super) struct Terminal {
    pub(super) scale: Scale,
    pub(super) random: Random,
}

impl Terminal {
    /// TPC-C's `NURand` over 0 … bound - 1, whose constant A is the power of two, less one, that has to
    /// `bound` about the ratio of the specification's.
    pub(super) fn skewed(&mut self, bound: usize, ratio: usize) -> usize {
        let a = 1 << (bound / ratio).max(1).ilog2();
        let both = self.random.below(a) | self.random.below(bound as u64);
        // The run's constant C is of no consequence, for rows lie in no particular order: 0.
        both as usize % bound
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// Another warehouse, if there is one.
    fn other(&mut self, warehouse: usize) -> usize {
        let others = self.scale.warehouses - 1;
        if others == 0 { warehouse } else { (warehouse + 1 + self.below(others)) % (others + 1) }
    }

    pub(super) fn draw(&mut self) -> Transaction {
        let scale = self.scale;
        let warehouse = self.below(scale.warehouses);
        let district = self.below(DISTRICTS);
        if self.below(2) == 0 {
            let home = if self.below(100) < 85 {
                (warehouse, district)
            } else {
                (self.other(warehouse), self.below(DISTRICTS))
            };
            // A = 1023 of 3000, 255 of 1000.
            let who = if self.below(100) < 60 {
                Who::Name(self.skewed(scale.names(), 3))
            } else {
                Who::Number(self.skewed(scale.customers, 2))
            };
            let cents = 100 + self.random.below(500_000 - 100);
            Transaction::Payment { warehouse, district, home, who, cents }
        } else {
            let count = 5 + self.below(MOST_LINES - 4);
            let customer = self.skewed(scale.customers, 2);
            let line = |_| OrderLine {
                // A = 8191 of 100,000.
                item: self.skewed(scale.items, 12),
                supplier: if self.below(100) == 0 { self.other(warehouse) } else { warehouse },
                quantity: 1 + self.random.below(10) as u32,
            };
            let mut lines: Vec<OrderLine> = (0..count).map(line).collect();
            // What is ordered twice is left out, as in DBx1000.
            let mut ordered = HashSet::new();
            lines.retain(|line| ordered.insert(line.item));
            Transaction::NewOrder { warehouse, district, customer, lines }
        }
    }
}
