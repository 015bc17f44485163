//! `kv-a`, `kv-b`, `kv-c`: an in-memory key-value store under the core workloads of the Yahoo! Cloud
//! Serving Benchmark: a chained hash table, its entries, and their values.
//!
//! Source: Cooper et al., "Benchmarking cloud serving systems with YCSB", 2010, workloads A (half
//! of the requests update), B (5 %) and C (none), with its key distribution: Zipfian with exponent 0.99
//! over records in random order. The table is built as memcached and Redis build theirs.
//!
//! ```text
//! table   8 bytes a bucket, a power of two, at least as many as there are records
//! record  1024 bytes: entry of 64 (next 8, hash 8, pointer to the value 8, key 32), then 10 fields of
//!         96 bytes
//! ```
//!
//! A request's key is read from a buffer and hashed; a read copies the value to a reply buffer, an
//! update copies one field from the request. Departs from them: fields have 96 bytes, not 100;
//! records lie in the order of loading, without an allocator's size classes; no network, no parsing.
//!
//! In this process's memory a record's value is the number of the last update, and its entry is its
//! link in the chain.

use flatwalk_trace::{BlockId, Source};

use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Permutation, Random, Zipf, mix};
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, program};
use crate::{Arguments, Description, Make, Parameter, SEED};

pub(crate) const A: Description = describe(
    "kv-a",
    "in-memory key-value store under YCSB A: hash chain, then the value; half of the requests update",
    |arguments| make(A.name, 0.5, arguments),
);

pub(crate) const B: Description =
    describe("kv-b", "the same under YCSB B: one request in twenty updates", |arguments| {
        make(B.name, 0.05, arguments)
    });

pub(crate) const C: Description =
    describe("kv-c", "the same under YCSB C: reads only", |arguments| make(C.name, 0.0, arguments));

const fn describe(name: &'static str, description: &'static str, make: Make) -> Description {
    const PARAMETERS: &[Parameter] = &[
        Parameter {
            name: "size_bytes",
            description: "table and records, in bytes: 64 KiB to 1 TiB (takes a sixtieth as much \
                              memory)",
        },
        SEED,
    ];
    crate::describe(name, description, 1 << 40, PARAMETERS, make)
}

/// Requests for each record.
const REQUESTS: u64 = 10;
const EXPONENT: f64 = 0.99;
/// Bytes of a record, of its entry, and of each field.
const RECORD: u64 = 1024;
const ENTRY: u64 = 64;
const FIELD: u64 = 96;
const FIELDS: u64 = (RECORD - ENTRY) / FIELD;
/// Bytes that are copied at once, with vector registers.
const VECTOR: u64 = 32;
/// A key is "user" and 19 digits.
const KEY_WORDS: usize = 3;
/// Bytes of a request: what is asked for 8, key 24, new value of a field.
const REQUEST: u64 = 8 + 8 * KEY_WORDS as u64 + FIELD;

fn make(name: &'static str, updates: f64, arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    let mut assembler = Assembler::new();
    let code = Code::new(&mut assembler);
    let layout = shape.layout.clone();
    let build = move || Store::new(&shape, code, updates, seed);
    program(name, arguments, &layout, assembler, build)
}

struct Shape {
    records: u64,
    buckets: u64,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    kind: Column,
    asked_key: [Column; KEY_WORDS],
    /// Request, reply and records in vectors.
    request: Column,
    reply: Column,
    record: Column,
    bucket: Column,
    next: Column,
    hash: Column,
    pointer: Column,
    key: [Column; KEY_WORDS],
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let mut layout = Layout::new(arguments);
        let request = layout.records(1, REQUEST);
        let reply = layout.array((RECORD - ENTRY) / VECTOR, VECTOR as u16);
        let bytes = arguments.size_bytes - layout.bytes();
        // As many as fit with 2^k buckets, at least one for each record.
        let fit = |buckets: u64| ((bytes - 8 * buckets) / RECORD).min(buckets);
        let fewer = 1 << (bytes / (RECORD + 8)).ilog2();
        let buckets = if fit(2 * fewer) > fit(fewer) { 2 * fewer } else { fewer };
        let records = fit(buckets);
        let bucket = layout.array(buckets, 8);
        let record = layout.objects(records, RECORD);
        let columns = Columns {
            kind: request.field(0, 8),
            asked_key: std::array::from_fn(|word| request.field(8 + 8 * word as u64, 8)),
            request: request.split(VECTOR as u16),
            reply,
            bucket,
            next: record.field(0, 8),
            hash: record.field(8, 8),
            pointer: record.field(16, 8),
            key: std::array::from_fn(|word| record.field(24 + 8 * word as u64, 8)),
            record: record.split(VECTOR as u16),
        };
        Self { records, buckets, layout, columns }
    }
}

registers!(32; BUFFER, KEY_0, KEY_1, KEY_2, HASH, TABLE, ENTRY_AT, ENTRY_HASH, ENTRY_KEY, EQUAL, VALUE,
    KIND, OFFSET, LOW, HIGH, REPLY, FIELD_AT, LEFT);

struct Code {
    request: BlockId,
    chain: BlockId,
    next: BlockId,
    found: BlockId,
    copy: BlockId,
    copied: BlockId,
    update: BlockId,
    done: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            request: assembler
                .load(&[BUFFER], KEY_0)
                .load(&[BUFFER], KEY_1)
                .load(&[BUFFER], KEY_2)
                .operation(&[KEY_0], &[HASH])
                .operation(&[HASH], &[HASH])
                .operation(&[HASH, KEY_1], &[HASH])
                .operation(&[HASH], &[HASH])
                .operation(&[HASH, KEY_2], &[HASH])
                .operation(&[HASH], &[HASH])
                .load(&[TABLE, HASH], ENTRY_AT)
                .operation(&[ENTRY_AT], &[FLAGS])
                .branch(),
            chain: assembler
                .load(&[ENTRY_AT], ENTRY_HASH)
                .operation(&[ENTRY_HASH, HASH], &[FLAGS])
                .branch(),
            next: assembler.load(&[ENTRY_AT], ENTRY_AT).operation(&[ENTRY_AT], &[FLAGS]).branch(),
            found: assembler
                .load(&[ENTRY_AT], ENTRY_KEY)
                .operation(&[ENTRY_KEY, KEY_0], &[EQUAL])
                .load(&[ENTRY_AT], ENTRY_KEY)
                .operation(&[ENTRY_KEY, KEY_1, EQUAL], &[EQUAL])
                .load(&[ENTRY_AT], ENTRY_KEY)
                .operation(&[ENTRY_KEY, KEY_2, EQUAL], &[EQUAL])
                .load(&[ENTRY_AT], VALUE)
                .load(&[BUFFER], KIND)
                .operation(&[], &[OFFSET])
                .operation(&[KIND, EQUAL], &[FLAGS])
                .branch(),
            copy: assembler
                .load_bytes(VECTOR as u16, &[VALUE, OFFSET], LOW)
                .load_bytes(VECTOR as u16, &[VALUE, OFFSET], HIGH)
                .store_bytes(VECTOR as u16, &[REPLY, OFFSET, LOW])
                .store_bytes(VECTOR as u16, &[REPLY, OFFSET, HIGH])
                .operation(&[OFFSET], &[OFFSET])
                .operation(&[OFFSET], &[FLAGS])
                .branch(),
            copied: assembler.jump(),
            update: assembler
                .operation(&[KIND], &[FIELD_AT])
                .operation(&[VALUE, FIELD_AT], &[FIELD_AT])
                .then(|assembler| {
                    (0..FIELD / VECTOR).fold(assembler, |assembler, _| {
                        assembler
                            .load_bytes(VECTOR as u16, &[BUFFER], LOW)
                            .store_bytes(VECTOR as u16, &[FIELD_AT, LOW])
                    })
                })
                .fall(),
            done: assembler.operation(&[LEFT], &[LEFT]).operation(&[LEFT], &[FLAGS]).branch(),
        }
    }
}

/// A client's request.
#[derive(Clone, Copy, Debug)]
enum Request {
    Read { key: usize },
    Update { key: usize, field: u64 },
}

struct Store {
    code: Code,
    columns: Columns,
    /// The first entry of each bucket's chain, and the next one of each entry's; or [`NONE`]. The
    /// entry of a key has its number, as keys are numbered in the order of loading.
    bucket: Array<u32>,
    next: Array<u32>,
    /// Number of each record's last update, which stands for its value.
    version: Vec<u32>,
    updates: f64,
    ranks: Zipf,
    /// From ranks to keys.
    order: Permutation,
    seed: u64,
    random: Random,
    left: u64,
    /// Updates so far.
    updated: u32,
}

const NONE: u32 = u32::MAX;

impl Store {
    fn new(shape: &Shape, code: Code, updates: f64, seed: u64) -> Self {
        let Shape { records, buckets, columns, .. } = *shape;
        let mut store = Self {
            code,
            columns,
            bucket: columns.bucket.holding(vec![NONE; buckets as usize]),
            next: columns.next.holding(vec![NONE; records as usize]),
            version: vec![0; records as usize],
            updates,
            ranks: Zipf::new(records, EXPONENT),
            order: Permutation::new(records, seed),
            seed,
            random: Random::new(seed, 0),
            left: REQUESTS * records,
            updated: 0,
        };
        // Each new entry becomes the first of its chain.
        for key in 0..records as usize {
            let bucket = store.bucket_of(key);
            store.next.values[key] = store.bucket.values[bucket];
            store.bucket.values[bucket] = key as u32;
        }
        store
    }

    fn bucket_of(&self, key: usize) -> usize {
        mix(self.seed ^ mix(key as u64)) as usize & (self.bucket.values.len() - 1)
    }

    fn draw(&mut self) -> Request {
        let key = self.order.at(self.ranks.draw(&mut self.random)) as usize;
        if self.random.unit() < self.updates {
            Request::Update { key, field: self.random.below(FIELDS) }
        } else {
            Request::Read { key }
        }
    }

    /// Carries a request out; returns the record's previous version.
    fn serve(&mut self, out: &mut impl Emitter, request: Request) -> u32 {
        let (Request::Read { key } | Request::Update { key, .. }) = request;
        let columns = &self.columns;
        out.enter(self.code.request);
        columns.asked_key.iter().for_each(|word| word.load(out, 0));
        let mut entry = self.bucket.load(out, self.bucket_of(key));
        loop {
            out.enter(self.code.chain);
            columns.hash.load(out, entry as usize);
            if entry as usize == key {
                break;
            }
            out.enter(self.code.next);
            entry = self.next.load(out, entry as usize);
        }
        let entry = entry as usize;
        out.enter(self.code.found);
        columns.key.iter().for_each(|word| word.load(out, entry));
        columns.pointer.load(out, entry);
        columns.kind.load(out, 0);
        let value = ((RECORD * entry as u64 + ENTRY) / VECTOR) as usize;
        let version = self.version[entry];
        match request {
            Request::Read { .. } => {
                for offset in (0..((RECORD - ENTRY) / VECTOR) as usize).step_by(2) {
                    out.enter(self.code.copy);
                    columns.record.load(out, value + offset);
                    columns.record.load(out, value + offset + 1);
                    columns.reply.store(out, offset);
                    columns.reply.store(out, offset + 1);
                }
                out.enter(self.code.copied);
            }
            Request::Update { field, .. } => {
                out.enter(self.code.update);
                let (from, to) = ((REQUEST - FIELD) / VECTOR, field * FIELD / VECTOR);
                for vector in 0..FIELD / VECTOR {
                    columns.request.load(out, (from + vector) as usize);
                    columns.record.store(out, value + (to + vector) as usize);
                }
                self.updated += 1;
                self.version[entry] = self.updated;
            }
        }
        out.enter(self.code.done);
        version
    }
}

impl Algorithm for Store {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let request = self.draw();
        self.serve(out, request);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::simulated::Native;

    fn store(size_bytes: u64, updates: f64) -> Store {
        Store::new(
            &Shape::of(&Arguments::new(size_bytes, 1)),
            Code::new(&mut Assembler::new()),
            updates,
            1,
        )
    }

    #[test]
    fn a_read_gets_what_was_last_written() {
        let mut store = store(1 << 20, 0.5);
        let mut expected = HashMap::new();
        let mut written = 0;
        for _ in 0..20_000 {
            let request = store.draw();
            let found = store.serve(&mut Native, request);
            let (Request::Read { key } | Request::Update { key, .. }) = request;
            assert_eq!(found, expected.get(&key).copied().unwrap_or(0), "{request:?}");
            if let Request::Update { field, .. } = request {
                assert!(field < 10);
                written += 1;
                expected.insert(key, written);
            }
        }
        assert!((9_500..10_500).contains(&written), "half are updates: {written}");
        assert!(expected.len() > 500, "most records have been updated: {}", expected.len());
    }

    #[test]
    fn every_key_is_in_the_chain_of_its_bucket() {
        let store = store(1 << 20, 0.0);
        let mut found = vec![false; store.version.len()];
        for (bucket, &first) in store.bucket.values.iter().enumerate() {
            let mut entry = first;
            while entry != NONE {
                assert_eq!(store.bucket_of(entry as usize), bucket);
                found[entry as usize] = true;
                entry = store.next.values[entry as usize];
            }
        }
        assert!(!found.contains(&false));
    }

    #[test]
    fn the_most_popular_key_has_its_share() {
        let mut store = store(64 << 20, 0.0);
        let records = store.version.len();
        let mut counts = vec![0_u32; records];
        let draws = 200_000;
        for _ in 0..draws {
            let (Request::Read { key } | Request::Update { key, .. }) = store.draw();
            counts[key] += 1;
        }
        let most = (0..records).max_by_key(|&key| counts[key]).unwrap();
        assert_eq!(most, store.order.at(0) as usize);
        let all: f64 = (1..=records).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        let expected = f64::from(draws) / all;
        assert!((f64::from(counts[most]) - expected).abs() < 6.0 * expected.sqrt());
    }

    #[test]
    fn sizes_are_filled() {
        for size_bytes in (64 << 10..512 << 10).step_by(1000).chain([1 << 30, 1 << 40]) {
            let shape = Shape::of(&Arguments::new(size_bytes, 1));
            let bytes = shape.layout.bytes();
            assert!(bytes <= size_bytes && bytes + 5 * RECORD > size_bytes, "{bytes} {size_bytes}");
            assert!(shape.records <= shape.buckets);
        }
    }
}
