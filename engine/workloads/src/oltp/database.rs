//! The database: what its rows hold, and the two transactions.

use super::code::{Code, Got};
use super::names::{self, Names};
use super::tables::{DISTRICTS, Indices, Rows, Scale, Shape};
use super::terminal::{OrderLine, Terminal, Transaction, Who};
use crate::dbx1000::{Code as Functions, Engine, Index, Table};
use crate::rng::{Random, mix};
use crate::simulated::{Algorithm, Emitter};

/// Transactions for each customer.
const TRANSACTIONS: u64 = 10;

/// Where fields lie in their rows' data, to the word.
mod field {
    pub(super) const WAREHOUSE_NAME: u64 = 8;
    pub(super) const WAREHOUSE_TAX: u64 = 88;
    pub(super) const WAREHOUSE_YTD: u64 = 96;
    pub(super) const DISTRICT_NAME: u64 = 16;
    pub(super) const DISTRICT_YTD: u64 = 104;
    pub(super) const NEXT_ORDER: u64 = 112;
    pub(super) const CREDIT: u64 = 152;
    pub(super) const DISCOUNT: u64 = 160;
    pub(super) const BALANCE: u64 = 168;
    pub(super) const CUSTOMER_YTD: u64 = 176;
    pub(super) const PAYMENTS: u64 = 184;
    pub(super) const QUANTITY: u64 = 16;
    pub(super) const STOCK_YTD: u64 = 264;
    pub(super) const STOCK_ORDERS: u64 = 272;
    pub(super) const REMOTE: u64 = 280;
    pub(super) const PRICE: u64 = 40;
}

pub(super) struct Database {
    pub(super) code: Code,
    pub(super) engine: Engine,
    pub(super) scale: Scale,
    pub(super) tables: Rows,
    indices: Indices,
    names: Names,
    pub(super) warehouse_ytd: Vec<u64>,
    pub(super) district_ytd: Vec<u64>,
    pub(super) next_order: Vec<u32>,
    pub(super) balance: Vec<i64>,
    pub(super) customer_ytd: Vec<u64>,
    pub(super) payments: Vec<u32>,
    pub(super) quantity: Vec<u8>,
    pub(super) stock_ytd: Vec<u32>,
    pub(super) stock_orders: Vec<u32>,
    pub(super) terminal: Terminal,
    pub(super) left: u64,
}

/// Reads a field of a row's copy.
fn get(out: &mut impl Emitter, copy: u64, field: u64) {
    out.load(copy + field, 8);
}

/// Reads and writes it.
fn add(out: &mut impl Emitter, copy: u64, field: u64) {
    out.load(copy + field, 8);
    out.store(copy + field, 8);
}

impl Database {
    pub(super) fn new(shape: Shape, (code, functions): (Code, Functions), seed: u64) -> Self {
        let Shape { scale, all, tables, indices, desk, .. } = shape;
        let (customers, stock) = (scale.all_customers(), scale.warehouses * scale.items);
        let quantity = |row: usize| 10 + (mix(seed ^ row as u64) % 91) as u8;
        Self {
            code,
            engine: Engine::new(functions, desk, &all),
            scale,
            tables,
            indices,
            names: Names::new(scale, indices.name.buckets),
            warehouse_ytd: vec![0; scale.warehouses],
            district_ytd: vec![0; scale.districts()],
            // Each customer of a district has ordered once.
            next_order: vec![scale.customers as u32; scale.districts()],
            balance: vec![0; customers],
            customer_ytd: vec![0; customers],
            payments: vec![0; customers],
            quantity: (0..stock).map(quantity).collect(),
            stock_ytd: vec![0; stock],
            stock_orders: vec![0; stock],
            terminal: Terminal { scale, random: Random::new(seed, 0) },
            left: TRANSACTIONS * customers as u64,
        }
    }

    /// Finds a row and takes it into the transaction; returns the copy's data.
    fn take(
        &mut self,
        out: &mut impl Emitter,
        got: Got,
        (index, table): (Index, Table),
        row: usize,
        writes: bool,
    ) -> u64 {
        self.engine.look_up(out, &index, &table, row);
        out.enter(got.0);
        out.load(table.row_pointer(row, &index), 8);
        self.engine.access(out, &table, row, writes)
    }

    /// Finds the customer in the middle of a name's list; returns the row.
    fn find_by_name(&mut self, out: &mut impl Emitter, district: usize, name: usize) -> usize {
        let Self { code, engine, tables: Rows { customer, .. }, indices, names, .. } = self;
        let index = &indices.name;
        out.enter(code.by_name);
        (0..names::length(name)).for_each(|_| out.enter(code.letter));
        out.enter(code.name);
        let key = names::key(name, district);
        let (bucket, nodes) = names.nodes(key);
        engine.follow(out, index, bucket, nodes.map(|row| index.node(customer, row)));
        out.enter(code.name_found);
        let bearers = names.bearers(key);
        let mut middle = 0;
        for (place, &bearer) in bearers.iter().enumerate() {
            out.enter(code.bearer);
            out.load(customer.next_item(bearer, index), 8);
            if place % 2 == 1 {
                out.enter(code.middle);
                out.load(customer.next_item(bearers[middle], index), 8);
                middle += 1;
            }
            out.enter(code.more);
        }
        out.enter(code.chosen);
        out.load(customer.row_pointer(bearers[middle], index), 8);
        bearers[middle]
    }

    /// Returns the customer's row.
    pub(super) fn payment(
        &mut self,
        out: &mut impl Emitter,
        (warehouse, district): (usize, usize),
        home: (usize, usize),
        who: Who,
        cents: u64,
    ) -> usize {
        let (tables, indices) = (self.tables, self.indices);
        out.enter(self.code.payment);
        let found = (indices.warehouse, tables.warehouse);
        let copy = self.take(out, self.code.paid_warehouse, found, warehouse, true);
        out.enter(self.code.pay_warehouse);
        add(out, copy, field::WAREHOUSE_YTD);
        get(out, copy, field::WAREHOUSE_NAME);
        get(out, copy, field::WAREHOUSE_NAME + 8);
        self.warehouse_ytd[warehouse] += cents;
        let district = warehouse * DISTRICTS + district;
        let found = (indices.district, tables.district);
        let copy = self.take(out, self.code.paid_district, found, district, true);
        out.enter(self.code.pay_district);
        add(out, copy, field::DISTRICT_YTD);
        get(out, copy, field::DISTRICT_NAME);
        get(out, copy, field::DISTRICT_NAME + 8);
        self.district_ytd[district] += cents;
        let home = home.0 * DISTRICTS + home.1;
        let row = match who {
            Who::Number(number) => {
                let row = home * self.scale.customers + number;
                out.enter(self.code.by_number);
                self.engine.look_up(out, &indices.customer, &tables.customer, row);
                out.enter(self.code.number_found);
                out.load(tables.customer.row_pointer(row, &indices.customer), 8);
                row
            }
            Who::Name(name) => self.find_by_name(out, home, name),
        };
        out.enter(self.code.customer);
        let copy = self.engine.access(out, &tables.customer, row, true);
        out.enter(self.code.pay);
        add(out, copy, field::BALANCE);
        add(out, copy, field::CUSTOMER_YTD);
        add(out, copy, field::PAYMENTS);
        get(out, copy, field::CREDIT);
        self.balance[row] -= cents.cast_signed();
        self.customer_ytd[row] += cents;
        self.payments[row] += 1;
        self.engine.finish(out);
        out.enter(self.code.paid);
        row
    }

    fn new_order(
        &mut self,
        out: &mut impl Emitter,
        (warehouse, district): (usize, usize),
        customer: usize,
        lines: &[OrderLine],
    ) {
        let (tables, indices) = (self.tables, self.indices);
        out.enter(self.code.order);
        let found = (indices.warehouse, tables.warehouse);
        let copy = self.take(out, self.code.warehouse, found, warehouse, false);
        out.enter(self.code.tax);
        get(out, copy, field::WAREHOUSE_TAX);
        let district = warehouse * DISTRICTS + district;
        let found = (indices.customer, tables.customer);
        let row = district * self.scale.customers + customer;
        let copy = self.take(out, self.code.orderer, found, row, false);
        out.enter(self.code.discount);
        get(out, copy, field::DISCOUNT);
        let found = (indices.district, tables.district);
        let copy = self.take(out, self.code.district, found, district, true);
        out.enter(self.code.number);
        add(out, copy, field::NEXT_ORDER);
        self.next_order[district] += 1;
        for line in lines {
            out.enter(self.code.line);
            let found = (indices.item, tables.item);
            let copy = self.take(out, self.code.item, found, line.item, false);
            out.enter(self.code.price);
            get(out, copy, field::PRICE);
            let stock = line.supplier * self.scale.items + line.item;
            let copy = self.take(out, self.code.stock, (indices.stock, tables.stock), stock, true);
            out.enter(self.code.take);
            get(out, copy, field::QUANTITY);
            add(out, copy, field::STOCK_YTD);
            add(out, copy, field::STOCK_ORDERS);
            if line.supplier != warehouse {
                out.enter(self.code.remote);
                add(out, copy, field::REMOTE);
            }
            out.enter(self.code.taken);
            out.store(copy + field::QUANTITY, 8);
            let quantity = u32::from(self.quantity[stock]);
            // It is refilled before it runs out.
            let refill = if quantity >= line.quantity + 10 { 0 } else { 91 };
            self.quantity[stock] = (quantity + refill - line.quantity) as u8;
            self.stock_ytd[stock] += line.quantity;
            self.stock_orders[stock] += 1;
        }
        out.enter(self.code.commit);
        self.engine.finish(out);
    }

    /// Returns the row of who paid.
    pub(super) fn run(
        &mut self,
        out: &mut impl Emitter,
        transaction: &Transaction,
    ) -> Option<usize> {
        out.enter(self.code.choose);
        let payer = match *transaction {
            Transaction::Payment { warehouse, district, home, who, cents } => {
                Some(self.payment(out, (warehouse, district), home, who, cents))
            }
            Transaction::NewOrder { warehouse, district, customer, ref lines } => {
                self.new_order(out, (warehouse, district), customer, lines);
                None
            }
        };
        out.enter(self.code.done);
        payer
    }
}

impl Algorithm for Database {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let transaction = self.terminal.draw();
        self.run(out, &transaction);
        true
    }
}
