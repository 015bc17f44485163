//! The database: its rows and indices, and the two transactions.

use std::ops::Add;

use super::code::Code;
use super::tables::{DISTRICTS, LINES, Scale, Shape};
use super::terminal::{OrderLine, Terminal, Transaction, Who};
use crate::btree::Tree;
use crate::rng::{Random, mix};
use crate::simulated::{Algorithm, Array, Column, Emitter};

/// Transactions for each customer.
const TRANSACTIONS: u64 = 10;

pub(super) struct Database {
    pub(super) code: Code,
    pub(super) scale: Scale,
    pub(super) customer_index: Tree,
    pub(super) name_index: Tree,
    pub(super) stock_index: Tree,
    pub(super) item_index: Tree,
    columns: Columns,
    pub(super) warehouse_ytd: Array<u64>,
    pub(super) district_ytd: Array<u64>,
    pub(super) next_order: Array<u32>,
    pub(super) balance: Array<i64>,
    pub(super) customer_ytd: Array<u64>,
    pub(super) payments: Array<u32>,
    pub(super) quantity: Array<u8>,
    pub(super) stock_ytd: Array<u32>,
    pub(super) stock_orders: Array<u32>,
    /// Payments and order lines of each district so far: their places in the rings.
    pub(super) paid: u64,
    pub(super) lines: Vec<u64>,
    pub(super) terminal: Terminal,
    pub(super) seed: u64,
    pub(super) left: u64,
}

/// Fields whose values are of no consequence, and tables that are only written.
struct Columns {
    warehouse_tax: Column,
    district_tax: Column,
    first_name: Column,
    credit: Column,
    /// What New-Order shows of a customer: last name, credit, discount.
    shown: [Column; 3],
    customer: Column,
    history: Column,
    order: Column,
    new_order: Column,
    line: Column,
    /// Price, name, data.
    item: [Column; 3],
    stock: Column,
}

/// Words of rows.
const CUSTOMER_WORDS: usize = 82;
const STOCK_WORDS: usize = 39;
/// Where a customer's data begin, and their words.
const DATA: usize = 19;
const DATA_WORDS: usize = 62;

/// Adds to a field, as the code of the same name.
fn bump<T: Copy + Add<Output = T>>(
    field: &mut Array<T>,
    out: &mut impl Emitter,
    row: usize,
    by: T,
) {
    let value = field.load(out, row);
    field.store(out, row, value + by);
}

/// Writes a row of `words` to the `row`th place of a table given in words.
fn append(table: &Column, out: &mut impl Emitter, row: usize, words: usize) {
    (row * words..(row + 1) * words).for_each(|word| table.store(out, word));
}

impl Database {
    pub(super) fn new(shape: Shape, code: Code, seed: u64) -> Self {
        let Shape { scale, tables, .. } = shape;
        let (customers, stock) = (scale.all_customers(), scale.warehouses * scale.items);
        let districts = scale.warehouses * DISTRICTS;
        let quantity = |row: usize| 10 + (mix(seed ^ row as u64) % 91) as u8;
        Self {
            code,
            scale,
            customer_index: shape.customer_index,
            name_index: shape.name_index,
            stock_index: shape.stock_index,
            item_index: shape.item_index,
            columns: Columns {
                warehouse_tax: tables.warehouse.field(80, 8),
                district_tax: tables.district.field(80, 8),
                first_name: tables.customer.field(16, 8),
                credit: tables.customer.field(104, 8),
                shown: [40, 104, 120].map(|offset| tables.customer.field(offset, 8)),
                customer: tables.customer.split(8),
                history: tables.history.split(8),
                order: tables.order.split(8),
                new_order: tables.new_order.split(8),
                line: tables.line.split(8),
                item: [0, 8, 40].map(|offset| tables.item.field(offset, 8)),
                stock: tables.stock.split(8),
            },
            warehouse_ytd: tables.warehouse.field(88, 8).holding(vec![0; scale.warehouses]),
            district_ytd: tables.district.field(64, 8).holding(vec![0; districts]),
            // Each customer of a district has ordered once.
            next_order: tables
                .district
                .field(88, 8)
                .holding(vec![scale.customers as u32; districts]),
            balance: tables.customer.field(128, 8).holding(vec![0; customers]),
            customer_ytd: tables.customer.field(136, 8).holding(vec![0; customers]),
            payments: tables.customer.field(144, 8).holding(vec![0; customers]),
            quantity: tables.stock.field(0, 8).holding((0..stock).map(quantity).collect()),
            stock_ytd: tables.stock.field(8, 8).holding(vec![0; stock]),
            stock_orders: tables.stock.field(16, 8).holding(vec![0; stock]),
            paid: 0,
            lines: vec![0; districts],
            terminal: Terminal { scale, random: Random::new(seed, 0) },
            seed,
            left: TRANSACTIONS * customers as u64,
        }
    }

    /// A tenth of the customers have bad credit.
    fn bad_credit(&self, row: usize) -> bool {
        mix(!self.seed ^ row as u64).is_multiple_of(10)
    }

    /// Finds the customer whose first name is in the middle among all of a name; returns the number
    /// in the district. `first` is the row of the district's first customer.
    fn find_by_name(&self, out: &mut impl Emitter, first: usize, name: usize) -> usize {
        // The index has them by name, and those of a name by first name, which rises with the number.
        let names = self.scale.names();
        let (least, one_more) = (self.scale.customers / names, self.scale.customers % names);
        let bearers = least + usize::from(name < one_more);
        let rank = first + name * least + name.min(one_more);
        self.name_index.descend(out, &self.code.by_name, rank);
        for bearer in 0..bearers {
            out.enter(self.code.namesake);
            self.name_index.leaf(out, rank + bearer);
            self.columns.first_name.load(out, first + name + bearer * names);
        }
        let middle = (bearers - 1) / 2;
        out.enter(self.code.middle);
        self.name_index.leaf(out, rank + middle);
        name + middle * names
    }

    fn payment(
        &mut self,
        out: &mut impl Emitter,
        (warehouse, district): (usize, usize),
        home: (usize, usize),
        who: Who,
        cents: u64,
    ) {
        out.enter(self.code.payment);
        bump(&mut self.warehouse_ytd, out, warehouse, cents);
        bump(&mut self.district_ytd, out, warehouse * DISTRICTS + district, cents);
        let first = (home.0 * DISTRICTS + home.1) * self.scale.customers;
        let customer = match who {
            Who::Number(number) => {
                self.customer_index.descend(out, &self.code.by_number, first + number);
                out.enter(self.code.by_number_found);
                number
            }
            Who::Name(name) => self.find_by_name(out, first, name),
        };
        let row = first + customer;
        out.enter(self.code.pay);
        bump(&mut self.balance, out, row, -cents.cast_signed());
        bump(&mut self.customer_ytd, out, row, cents);
        bump(&mut self.payments, out, row, 1);
        self.columns.credit.load(out, row);
        if self.bad_credit(row) {
            for word in 0..DATA_WORDS {
                out.enter(self.code.bad_credit);
                self.columns.customer.load(out, row * CUSTOMER_WORDS + DATA + word);
                self.columns.customer.store(out, row * CUSTOMER_WORDS + DATA + word);
            }
        }
        out.enter(self.code.history);
        let place = self.paid % self.scale.all_customers() as u64;
        append(&self.columns.history, out, place as usize, 6);
        self.paid += 1;
    }

    fn new_order(
        &mut self,
        out: &mut impl Emitter,
        (warehouse, district): (usize, usize),
        customer: usize,
        lines: &[OrderLine],
    ) {
        out.enter(self.code.order);
        let district = warehouse * DISTRICTS + district;
        self.columns.warehouse_tax.load(out, warehouse);
        self.columns.district_tax.load(out, district);
        let number = self.next_order.values[district];
        bump(&mut self.next_order, out, district, 1);
        let first = district * self.scale.customers;
        self.customer_index.descend(out, &self.code.orderer, first + customer);
        out.enter(self.code.header);
        self.columns.shown.iter().for_each(|field| field.load(out, first + customer));
        let order = first + number as usize % self.scale.customers;
        append(&self.columns.order, out, order, 3);
        append(&self.columns.new_order, out, order, 1);
        for line in lines {
            out.enter(self.code.line);
            self.item_index.descend(out, &self.code.item, line.item);
            out.enter(self.code.item_found);
            self.columns.item.iter().for_each(|field| field.load(out, line.item));
            let stock = line.supplier * self.scale.items + line.item;
            self.stock_index.descend(out, &self.code.stock, stock);
            out.enter(self.code.stock_found);
            let quantity = u32::from(self.quantity.load(out, stock));
            // It is refilled before it runs out.
            let refill = if quantity >= line.quantity + 10 { 0 } else { 91 };
            self.quantity.store(out, stock, (quantity + refill - line.quantity) as u8);
            bump(&mut self.stock_ytd, out, stock, line.quantity);
            bump(&mut self.stock_orders, out, stock, 1);
            // The text for this district.
            let info = stock * STOCK_WORDS + 3 + 3 * (district % DISTRICTS);
            (info..info + 3).for_each(|word| self.columns.stock.load(out, word));
            let ring = LINES as usize * self.scale.customers;
            let place = district * ring + self.lines[district] as usize % ring;
            append(&self.columns.line, out, place, 7);
            self.lines[district] += 1;
        }
    }

    pub(super) fn run(&mut self, out: &mut impl Emitter, transaction: &Transaction) {
        out.enter(self.code.choose);
        match *transaction {
            Transaction::Payment { warehouse, district, home, who, cents } => {
                self.payment(out, (warehouse, district), home, who, cents);
            }
            Transaction::NewOrder { warehouse, district, customer, ref lines } => {
                self.new_order(out, (warehouse, district), customer, lines);
            }
        }
        out.enter(self.code.done);
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
