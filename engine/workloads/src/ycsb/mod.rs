//! `ycsb`: the Yahoo! Cloud Serving Benchmark as `DBx1000` runs it: transactions of 16 requests, each of
//! which finds a row through a hash index and copies it.
//!
//! Source: `DBx1000` (github.com/yxymit/DBx1000; Yu et al., "Staring into the abyss", VLDB 2014) as
//! configured there: ten fields of 10 bytes, twice as many buckets as records, one request in ten
//! writes, concurrency control by `TicToc`; popularity falls with the key, by Zipf's law with exponent 0.6.
//! Queries are made beforehand, 100,000 a thread. Structures and functions: [`crate::dbx1000`].
//!
//! ```text
//! record   320 bytes: row 64, its manager 64, data 128, item 32, node 32
//! buckets  2 x 24 bytes a record
//! query    448 bytes: 64, and 16 requests of 24; one for 200 records
//! ```
//!
//! A request goes from the bucket to the node, its item, the row, and the row's manager and data, of
//! which each has the next one's address. A write changes the row at once, and again when the transaction
//! commits. What a transaction asks for a second time is left out. The first key is never asked for.
//!
//! Departs from it: one thread, which loads too; when all queries have been used, others are in their
//! place, where the original ends.
//!
//! In this process's memory a record is its timestamps, 6 bytes.

#[cfg(test)]
mod tests;

use flatwalk_trace::{BlockId, Source};

use crate::dbx1000::{
    COPIED, Code as Functions, Desk, Engine, INDEX, ITEM, Index, KEY, ROW_AT, Table, Tables,
    greatest, overhead, work,
};
use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Random, Zipf};
use crate::simulated::{Algorithm, Column, Emitter, Layout, program};
use crate::{Arguments, Description, Keys, Parameter, SEED};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "ycsb",
    "YCSB in DBx1000: hash index, row, its manager and data, 16 requests a transaction, one in ten a write",
    1 << 40,
    &[
        Parameter {
            name: "size_bytes",
            description: "buckets, records and queries, in bytes: 64 KiB to 1 TiB, about 370 for each record \
                          (takes a sixtieth as much memory)",
        },
        SEED,
        Parameter {
            name: crate::KEYS.name,
            description: "how often each record is asked for: zipfian (the default, exponent 0.6) or uniform",
        },
    ],
    make,
);

/// Requests for each record.
const REQUESTS: u64 = 10;
/// Requests of a transaction.
const EACH: usize = 16;
const EXPONENT: f64 = 0.6;
const WRITES: f64 = 0.1;
/// Bytes of a record's data in their size class.
const DATA: u64 = 128;
/// Buckets for each record.
const BUCKETS: usize = 2;
const QUERY: u64 = 64;
const REQUEST: u64 = 24;
/// Records for each query: 100,000 for 20 million.
const RECORDS_A_QUERY: usize = 200;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let Arguments { seed, keys, .. } = *arguments;
    let code = |assembler: &mut Assembler| (Code::new(assembler), Functions::new(assembler));
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), code, move |(code, functions)| {
        Benchmark::new(&shape, code, functions, keys, seed)
    })
}

struct Shape {
    layout: Layout,
    tables: Tables,
    table: Table,
    index: Index,
    desk: Desk,
    queries: usize,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    /// Of a query: its requests' number and address.
    count: Column,
    requests: Column,
    /// Of all queries' requests.
    kind: Column,
    key: Column,
    /// What `run_txn` reads of the thread and of the settings.
    setting: Column,
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let fits = |records| Self::at(records, arguments).layout.bytes() <= arguments.size_bytes;
        Self::at(greatest(fits), arguments)
    }

    fn at(records: usize, arguments: &Arguments) -> Self {
        let mut layout = Layout::new(arguments);
        let mut tables = Tables::default();
        // The tables come first, as their pages begin at the heap's.
        let table = tables.table(&mut layout, records, DATA, 1);
        let desk = Desk::new(&mut layout, EACH);
        let setting = layout.objects(SETTINGS as u64, 8).field(0, 8);
        let index = Index::new(&mut layout, BUCKETS * records, 0);
        let queries = (records / RECORDS_A_QUERY).max(1);
        let query = layout.line_records(queries as u64, QUERY);
        let request = layout.line_records((EACH * queries) as u64, REQUEST);
        let columns = Columns {
            count: query.field(24, 8),
            requests: query.field(32, 8),
            kind: request.field(0, 8),
            key: request.field(8, 8),
            setting,
        };
        Self { layout, tables, table, index, desk, queries, columns }
    }
}

/// Settings: index, table's size and number of parts for a request; the rest for a transaction.
const SETTINGS: usize = 12;

registers!(32; THREAD, QUERY_AT, REQUESTS_AT, REQUEST_NUMBER, KIND, LIMIT, PART, DATA_AT, VALUE, SETTING, ROW);

struct Code {
    begin: BlockId,
    request: BlockId,
    got: BlockId,
    is_write: BlockId,
    read: BlockId,
    write: BlockId,
    next: BlockId,
    end: BlockId,
    done: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            // thread_t::run: looks for a transaction that was aborted, then takes the next query.
            begin: assembler
                .then(work(THREAD, SETTING, 12))
                .then(|assembler| {
                    (0..6).fold(assembler, |assembler, _| assembler.load(&[THREAD], SETTING))
                })
                .then(overhead(40))
                .operation(&[QUERY_AT], &[QUERY_AT])
                .then(work(THREAD, VALUE, 12))
                .fall(),
            request: assembler
                .load(&[QUERY_AT], REQUESTS_AT)
                .then(work(REQUEST_NUMBER, REQUEST_NUMBER, 2))
                .load(&[REQUESTS_AT, REQUEST_NUMBER], KEY)
                .load(&[THREAD], LIMIT)
                .load(&[THREAD], PART)
                .then(overhead(2))
                .operation(&[LIMIT, PART], &[LIMIT])
                .operation(&[KEY, LIMIT], &[PART])
                .load(&[THREAD], INDEX)
                .then(overhead(5))
                .call(),
            got: assembler
                .load(&[ITEM], ROW_AT)
                .load(&[REQUESTS_AT, REQUEST_NUMBER], KIND)
                .operation(&[ROW_AT], &[ROW])
                .then(overhead(3))
                .call(),
            is_write: assembler.then(overhead(3)).operation(&[KIND], &[FLAGS]).branch(),
            read: assembler.then(overhead(2)).load(&[COPIED], VALUE).jump(),
            write: assembler.then(overhead(2)).load(&[ROW], DATA_AT).store(&[DATA_AT]).fall(),
            next: assembler
                .then(overhead(3))
                .load(&[QUERY_AT], LIMIT)
                .operation(&[REQUEST_NUMBER], &[REQUEST_NUMBER])
                .operation(&[REQUEST_NUMBER, LIMIT], &[FLAGS])
                .branch(),
            end: assembler.then(overhead(3)).call(),
            done: assembler
                .then(overhead(20))
                .then(work(THREAD, VALUE, 12))
                .then(|assembler| {
                    (0..3).fold(assembler, |assembler, _| {
                        assembler
                            .load(&[THREAD], SETTING)
                            .operation(&[SETTING, VALUE], &[VALUE])
                            .store(&[THREAD, VALUE])
                    })
                })
                .operation(&[THREAD], &[FLAGS])
                .branch(),
        }
    }
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Request {
    key: usize,
    writes: bool,
}

struct Benchmark {
    code: Code,
    engine: Engine,
    table: Table,
    index: Index,
    columns: Columns,
    queries: usize,
    /// None if all keys are asked for alike.
    ranks: Option<Zipf>,
    random: Random,
    /// The transaction that is being run.
    requests: Vec<Request>,
    transactions: usize,
    /// Requests left.
    left: u64,
}

impl Benchmark {
    fn new(shape: &Shape, code: Code, functions: Functions, keys: Keys, seed: u64) -> Self {
        let Shape { ref tables, table, index, desk, queries, columns, .. } = *shape;
        Self {
            code,
            engine: Engine::new(functions, desk, tables),
            table,
            index,
            columns,
            queries,
            ranks: (keys == Keys::Zipfian).then(|| Zipf::new(table.rows as u64 - 1, EXPONENT)),
            random: Random::new(seed, 0),
            requests: Vec::new(),
            transactions: 0,
            left: REQUESTS * table.rows as u64,
        }
    }

    /// Draws a transaction.
    fn draw(&mut self) {
        self.requests.clear();
        for _ in 0..EACH {
            let rank = match &self.ranks {
                Some(ranks) => ranks.draw(&mut self.random),
                None => self.random.below(self.table.rows as u64 - 1),
            };
            let request = Request { key: 1 + rank as usize, writes: self.random.unit() < WRITES };
            if !self.requests.iter().any(|other| other.key == request.key) {
                self.requests.push(request);
            }
        }
    }

    /// Runs the transaction.
    fn run(&mut self, out: &mut impl Emitter) {
        let Self { code, engine, table, index, columns, .. } = self;
        let query = self.transactions % self.queries;
        self.transactions += 1;
        out.enter(code.begin);
        (0..6).for_each(|setting| columns.setting.load(out, setting));
        for (number, &Request { key, writes }) in self.requests.iter().enumerate() {
            let request = EACH * query + number;
            out.enter(code.request);
            columns.requests.load(out, query);
            columns.key.load(out, request);
            (6..9).for_each(|setting| columns.setting.load(out, setting));
            engine.look_up(out, index, table, key);
            out.enter(code.got);
            out.load(table.row_pointer(key, index), 8);
            columns.kind.load(out, request);
            let copy = engine.access(out, table, key, writes);
            out.enter(code.is_write);
            if writes {
                out.enter(code.write);
                table.load_data_pointer(out, key);
                out.store(table.data(key), 8);
            } else {
                out.enter(code.read);
                out.load(copy, 8);
            }
            out.enter(code.next);
            columns.count.load(out, query);
        }
        out.enter(code.end);
        engine.finish(out);
        out.enter(code.done);
        for setting in 9..12 {
            columns.setting.load(out, setting);
            columns.setting.store(out, setting);
        }
    }
}

impl Algorithm for Benchmark {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.left == 0 {
            return false;
        }
        self.draw();
        self.left = self.left.saturating_sub(self.requests.len() as u64);
        self.run(out);
        true
    }
}
