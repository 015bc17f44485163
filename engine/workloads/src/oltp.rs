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

use std::ops::Add;

use flatwalk_trace::{BlockId, Source};

use crate::btree::{Descent, KEY, NODE, Tree};
use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Random, mix};
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, Records, program};
use crate::{Description, Parameter, SEED};

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

/// Of a warehouse.
const DISTRICTS: usize = 10;
/// Of a district and in the catalogue, in a warehouse of full size.
const CUSTOMERS: u64 = 3000;
const ITEMS: u64 = 100_000;
/// Customers of the same name in a district.
const NAMESAKES: usize = 3;
/// Order lines of an order, on average.
const LINES: u64 = 10;
/// Transactions for each customer.
const TRANSACTIONS: u64 = 10;

fn make(size_bytes: u64, seed: u64) -> Box<dyn Source> {
    let shape = Shape::of(size_bytes);
    let mut assembler = Assembler::new();
    let code = Code::new(&mut assembler);
    let layout = shape.layout.clone();
    let build = move || Database::new(shape, code, seed);
    program(DESCRIPTION.name, (size_bytes, seed), &layout, assembler, build)
}

/// How many rows of each kind there are.
#[derive(Clone, Copy, Debug)]
struct Scale {
    warehouses: usize,
    /// Of a district.
    customers: usize,
    items: usize,
}

impl Scale {
    fn all_customers(self) -> usize {
        self.warehouses * DISTRICTS * self.customers
    }

    fn names(self) -> usize {
        (self.customers / NAMESAKES).max(1)
    }
}

struct Shape {
    scale: Scale,
    layout: Layout,
    tables: Tables,
    customer_index: Tree,
    name_index: Tree,
    stock_index: Tree,
    item_index: Tree,
}

#[derive(Clone, Copy)]
struct Tables {
    warehouse: Records,
    district: Records,
    customer: Records,
    history: Records,
    order: Records,
    new_order: Records,
    line: Records,
    stock: Records,
    item: Records,
}

impl Shape {
    /// As many warehouses of full size as fit, then as many customers and items as fit into these; or
    /// one smaller one.
    fn of(size_bytes: u64) -> Self {
        let fits = |warehouses, customers, items| {
            let shape = Self::at(Scale { warehouses, customers, items });
            shape.layout.bytes() <= size_bytes
        };
        let full = (CUSTOMERS as usize, ITEMS as usize);
        let warehouses = greatest(|warehouses| fits(warehouses, full.0, full.1));
        let items =
            |customers: usize| customers * (ITEMS / 100) as usize / (CUSTOMERS / 100) as usize;
        let customers = greatest(|customers| fits(warehouses, customers, items(customers)));
        let items = greatest(|items| fits(warehouses, customers, items));
        Self::at(Scale { warehouses, customers, items })
    }

    fn at(scale: Scale) -> Self {
        let (warehouses, items) = (scale.warehouses as u64, scale.items as u64);
        let customers = scale.all_customers() as u64;
        let mut layout = Layout::new();
        let tables = Tables {
            warehouse: layout.records(warehouses, 96),
            district: layout.records(warehouses * DISTRICTS as u64, 96),
            customer: layout.records(customers, 656),
            history: layout.records(customers, 48),
            order: layout.records(customers, 24),
            new_order: layout.records(customers, 8),
            line: layout.records(customers * LINES, 56),
            stock: layout.records(warehouses * items, 312),
            item: layout.records(items, 88),
        };
        Self {
            scale,
            tables,
            customer_index: Tree::new(&mut layout, customers),
            name_index: Tree::new(&mut layout, customers),
            stock_index: Tree::new(&mut layout, warehouses * items),
            item_index: Tree::new(&mut layout, items),
            layout,
        }
    }
}

/// The greatest number, at least 1, that is good enough; all below it must be so too.
fn greatest(fits: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut step) = (1, 1);
    while fits(good + step) {
        good += step;
        step *= 2;
    }
    while step > 0 {
        if fits(good + step) {
            good += step;
        }
        step /= 2;
    }
    good
}

registers!(32; STATE, WAREHOUSE, DISTRICT, CUSTOMER, NUMBER, FIRST, AMOUNT, SUM, VALUE, CREDIT, WORD,
    COUNT, HISTORY, ORDER, LINE, ITEM, PRICE, QUANTITY, STOCK, INFO, LINES_LEFT, LEFT);

struct Code {
    choose: BlockId,
    payment: BlockId,
    by_number: Descent,
    by_number_found: BlockId,
    by_name: Descent,
    namesake: BlockId,
    middle: BlockId,
    pay: BlockId,
    bad_credit: BlockId,
    history: BlockId,
    order: BlockId,
    orderer: Descent,
    header: BlockId,
    line: BlockId,
    item: Descent,
    item_found: BlockId,
    stock: Descent,
    stock_found: BlockId,
    done: BlockId,
}

/// Adds to a field: a load, an addition and a store.
fn add(row: u8) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| {
        assembler.load(&[row], VALUE).operation(&[VALUE, AMOUNT], &[VALUE]).store(&[row, VALUE])
    }
}

/// Loads fields that only the reply needs.
fn show(row: u8, fields: usize) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| (0..fields).fold(assembler, |assembler, _| assembler.load(&[row], INFO))
}

/// Fills a new row.
fn fill(row: u8, fields: usize) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| (0..fields).fold(assembler, |assembler, _| assembler.store(&[row, VALUE]))
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            choose: assembler
                .operation(&[STATE], &[STATE])
                .operation(&[STATE], &[WAREHOUSE])
                .operation(&[STATE], &[DISTRICT])
                .operation(&[STATE], &[NUMBER])
                .operation(&[STATE], &[FLAGS])
                .branch(),
            payment: assembler
                .operation(&[STATE], &[AMOUNT])
                .then(add(WAREHOUSE))
                .then(add(DISTRICT))
                .operation(&[WAREHOUSE, DISTRICT, NUMBER], &[KEY])
                .operation(&[], &[NODE])
                .operation(&[STATE], &[FLAGS])
                .branch(),
            by_number: Descent::new(assembler),
            by_number_found: assembler.operation(&[NODE], &[CUSTOMER]).jump(),
            by_name: Descent::new(assembler),
            namesake: assembler
                .load(&[NODE, COUNT], CUSTOMER)
                .load(&[CUSTOMER], FIRST)
                .operation(&[COUNT], &[COUNT])
                .operation(&[FIRST, COUNT], &[FLAGS])
                .branch(),
            middle: assembler.load(&[NODE, COUNT], CUSTOMER).fall(),
            pay: assembler
                .then(add(CUSTOMER))
                .then(add(CUSTOMER))
                .then(add(CUSTOMER))
                .load(&[CUSTOMER], CREDIT)
                .operation(&[CREDIT], &[FLAGS])
                .branch(),
            bad_credit: assembler
                .load(&[CUSTOMER, COUNT], WORD)
                .store(&[CUSTOMER, COUNT, WORD])
                .operation(&[COUNT], &[COUNT])
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            history: assembler.then(fill(HISTORY, 6)).operation(&[HISTORY], &[HISTORY]).jump(),
            order: assembler
                .then(show(WAREHOUSE, 1))
                .then(show(DISTRICT, 1))
                .then(add(DISTRICT))
                .operation(&[WAREHOUSE, DISTRICT, NUMBER], &[KEY])
                .operation(&[], &[NODE])
                .fall(),
            orderer: Descent::new(assembler),
            header: assembler
                .then(show(NODE, 3))
                .then(fill(ORDER, 3))
                .store(&[ORDER])
                .operation(&[STATE], &[LINES_LEFT])
                .fall(),
            line: assembler
                .operation(&[STATE], &[STATE])
                .operation(&[STATE], &[ITEM])
                .operation(&[STATE], &[QUANTITY])
                .operation(&[ITEM], &[KEY])
                .operation(&[], &[NODE])
                .fall(),
            item: Descent::new(assembler),
            item_found: assembler
                .load(&[NODE], PRICE)
                .then(show(NODE, 2))
                .operation(&[WAREHOUSE, ITEM], &[KEY])
                .operation(&[], &[NODE])
                .fall(),
            stock: Descent::new(assembler),
            stock_found: assembler
                .load(&[NODE], STOCK)
                .operation(&[STOCK, QUANTITY], &[STOCK])
                .operation(&[STOCK], &[STOCK])
                .store(&[NODE, STOCK])
                .then(add(NODE))
                .then(add(NODE))
                .then(show(NODE, 3))
                .operation(&[PRICE, QUANTITY], &[VALUE])
                .operation(&[SUM, VALUE], &[SUM])
                .then(fill(LINE, 7))
                .operation(&[LINE], &[LINE])
                .operation(&[LINES_LEFT], &[LINES_LEFT])
                .operation(&[LINES_LEFT], &[FLAGS])
                .branch(),
            done: assembler.operation(&[LEFT], &[LEFT]).operation(&[LEFT], &[FLAGS]).branch(),
        }
    }
}

/// A customer, by number or by name, of a district.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Number(usize),
    Name(usize),
}

#[derive(Clone, Copy, Debug)]
struct OrderLine {
    item: usize,
    /// The warehouse that supplies it.
    supplier: usize,
    quantity: u32,
}

/// A transaction. Districts and customers are numbered within their warehouse or district.
#[derive(Clone, Debug)]
enum Transaction {
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
struct Terminal {
    scale: Scale,
    random: Random,
}

impl Terminal {
    /// TPC-C's `NURand` over 0 … bound - 1, whose constant A is the power of two, less one, that has to
    /// `bound` about the ratio of the specification's.
    fn skewed(&mut self, bound: usize, ratio: usize) -> usize {
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

    fn draw(&mut self) -> Transaction {
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
            let count = 5 + self.below(11);
            let customer = self.skewed(scale.customers, 2);
            let line = |_| OrderLine {
                // A = 8191 of 100,000.
                item: self.skewed(scale.items, 12),
                supplier: if self.below(100) == 0 { self.other(warehouse) } else { warehouse },
                quantity: 1 + self.random.below(10) as u32,
            };
            let lines = (0..count).map(line).collect();
            Transaction::NewOrder { warehouse, district, customer, lines }
        }
    }
}

struct Database {
    code: Code,
    scale: Scale,
    customer_index: Tree,
    name_index: Tree,
    stock_index: Tree,
    item_index: Tree,
    columns: Columns,
    warehouse_ytd: Array<u64>,
    district_ytd: Array<u64>,
    next_order: Array<u32>,
    balance: Array<i64>,
    customer_ytd: Array<u64>,
    payments: Array<u32>,
    quantity: Array<u8>,
    stock_ytd: Array<u32>,
    stock_orders: Array<u32>,
    /// Payments and order lines of each district so far: their places in the rings.
    paid: u64,
    lines: Vec<u64>,
    terminal: Terminal,
    seed: u64,
    left: u64,
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
    fn new(shape: Shape, code: Code, seed: u64) -> Self {
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

    fn run(&mut self, out: &mut impl Emitter, transaction: &Transaction) {
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

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
        Database::new(Shape::of(size_bytes), Code::new(&mut Assembler::new()), 1)
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
            let shape = Shape::of(size_bytes);
            let bytes = shape.layout.bytes();
            assert!(
                bytes <= size_bytes && bytes > size_bytes - size_bytes / 50,
                "{:?}",
                shape.scale
            );
            if size_bytes > 90 << 20 {
                assert!(shape.scale.customers >= 3000 && shape.scale.items >= 100_000);
            }
        }
        assert_eq!(Shape::of(1 << 30).scale.warehouses, 14);
        assert_eq!(Shape::of(2270 << 20).scale.warehouses, 32);
    }
}
