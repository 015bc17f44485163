//! `kv-a`, `kv-b`, `kv-c`: an in-memory key-value store under the core workloads of the Yahoo! Cloud
//! Serving Benchmark: a chained hash table, its entries, and their values. `kv-redis`, `kv-memcached`: the
//! same with the records and the requests of Redis and Memcached in an evaluation.
//!
//! Source: Cooper et al., "Benchmarking cloud serving systems with YCSB", 2010, workloads A (half
//! of the requests update), B (5 %) and C (none), with its key distribution: Zipfian with exponent 0.99
//! over records in random order. The table is built as memcached and Redis build theirs. Du and Zhang,
//! "FPT in EMT-Linux", 2025, table 1: Redis with 536 M records in 128 GB, of 256 bytes therefore, half of the
//! requests updates; Memcached with 56 M in 69 GB, one update in five. It does not say how keys are drawn.
//!
//! ```text
//! table   8 bytes a bucket, a power of two, at least as many as there are records
//! record  entry of 64 bytes (next 8, hash 8, pointer to the value 8, key 32), then the fields: 10 of 96
//!         bytes (1024 in all); of kv-redis 2 of 96 (256), of kv-memcached 10 of 128 (1344)
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
use crate::{Arguments, Description, KEYS, Keys, Make, Parameter, SEED};

pub(crate) const A: Description = describe(
    "kv-a",
    "in-memory key-value store under YCSB A: hash chain, then the value; half of the requests update",
    |arguments| make(A.name, &Kind { updates: 0.5, ..YCSB }, arguments),
);

pub(crate) const B: Description =
    describe("kv-b", "the same under YCSB B: one request in twenty updates", |arguments| {
        make(B.name, &Kind { updates: 0.05, ..YCSB }, arguments)
    });

pub(crate) const C: Description =
    describe("kv-c", "the same under YCSB C: reads only", |arguments| {
        make(C.name, &YCSB, arguments)
    });

pub(crate) const REDIS: Description = describe(
    "kv-redis",
    "the same with records of 256 bytes, half of the requests updates: Redis in FPT's table 1",
    |arguments| make(REDIS.name, &OF_REDIS, arguments),
);

pub(crate) const MEMCACHED: Description = describe(
    "kv-memcached",
    "the same with records of 1344 bytes, one request in five an update: Memcached in FPT's table 1",
    |arguments| make(MEMCACHED.name, &OF_MEMCACHED, arguments),
);

/// What is stored, and what is asked for.
#[derive(Clone, Copy)]
struct Kind {
    /// Share of the requests that update a field.
    updates: f64,
    fields: u64,
    /// A multiple of [`VECTOR`]; all fields together are one of two vectors.
    field_bytes: u64,
}

/// YCSB C.
const YCSB: Kind = Kind { updates: 0.0, fields: 10, field_bytes: 96 };
const OF_REDIS: Kind = Kind { updates: 0.5, fields: 2, field_bytes: 96 };
const OF_MEMCACHED: Kind = Kind { updates: 0.2, fields: 10, field_bytes: 128 };

impl Kind {
    fn value_bytes(self) -> u64 {
        self.fields * self.field_bytes
    }

    fn record_bytes(self) -> u64 {
        ENTRY + self.value_bytes()
    }

    /// A request: what is asked for 8, key 24, new value of a field.
    fn request_bytes(self) -> u64 {
        8 + 8 * KEY_WORDS as u64 + self.field_bytes
    }
}

const fn describe(name: &'static str, description: &'static str, make: Make) -> Description {
    const PARAMETERS: &[Parameter] = &[
        Parameter {
            name: "size_bytes",
            description: "table and records, in bytes: 64 KiB to 1 TiB (takes a sixtieth as much \
                              memory, kv-redis a 17th)",
        },
        SEED,
        KEYS,
    ];
    crate::describe(name, description, 1 << 40, PARAMETERS, make)
}

/// Requests for each record.
const REQUESTS: u64 = 10;
const EXPONENT: f64 = 0.99;
/// Bytes of a record's entry.
const ENTRY: u64 = 64;
/// Bytes that are copied at once, with vector registers.
const VECTOR: u64 = 32;
/// A key is "user" and 19 digits.
const KEY_WORDS: usize = 3;

fn make(name: &'static str, kind: &Kind, arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(*kind, arguments);
    let Arguments { seed, keys, .. } = *arguments;
    let code = |assembler: &mut Assembler| Code::new(assembler, *kind);
    program(name, arguments, shape.layout.mappings(), code, move |code| {
        Store::new(&shape, code, keys, seed)
    })
}

struct Shape {
    kind: Kind,
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
    fn of(kind: Kind, arguments: &Arguments) -> Self {
        let mut layout = Layout::new(arguments);
        let request = layout.records(1, kind.request_bytes());
        let reply = layout.array(kind.value_bytes() / VECTOR, VECTOR as u16);
        let record_bytes = kind.record_bytes();
        let bytes = arguments.size_bytes - layout.bytes();
        // As many as fit with 2^k buckets, at least one for each record.
        let fit = |buckets: u64| ((bytes - 8 * buckets) / record_bytes).min(buckets);
        let fewer = 1 << (bytes / (record_bytes + 8)).ilog2();
        let buckets = if fit(2 * fewer) > fit(fewer) { 2 * fewer } else { fewer };
        let records = fit(buckets);
        let bucket = layout.array(buckets, 8);
        let record = layout.objects(records, record_bytes);
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
        Self { kind, records, buckets, layout, columns }
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
    fn new(assembler: &mut Assembler, kind: Kind) -> Self {
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
                    (0..kind.field_bytes / VECTOR).fold(assembler, |assembler, _| {
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
    kind: Kind,
    code: Code,
    columns: Columns,
    /// The first entry of each bucket's chain, and the next one of each entry's; or [`NONE`]. The
    /// entry of a key has its number, as keys are numbered in the order of loading.
    bucket: Array<u32>,
    next: Array<u32>,
    /// Number of each record's last update, which stands for its value.
    version: Vec<u32>,
    records: u64,
    /// None if all keys are asked for alike.
    ranks: Option<Zipf>,
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
    fn new(shape: &Shape, code: Code, keys: Keys, seed: u64) -> Self {
        let Shape { kind, records, buckets, columns, .. } = *shape;
        let ranks = match keys {
            Keys::Zipfian => Some(Zipf::new(records, EXPONENT)),
            Keys::Uniform => None,
        };
        let mut store = Self {
            kind,
            code,
            columns,
            bucket: columns.bucket.holding(vec![NONE; buckets as usize]),
            next: columns.next.holding(vec![NONE; records as usize]),
            version: vec![0; records as usize],
            records,
            ranks,
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
        let rank = match &self.ranks {
            Some(ranks) => ranks.draw(&mut self.random),
            None => self.random.below(self.records),
        };
        let key = self.order.at(rank) as usize;
        if self.random.unit() < self.kind.updates {
            Request::Update { key, field: self.random.below(self.kind.fields) }
        } else {
            Request::Read { key }
        }
    }

    /// Carries a request out; returns the record's previous version.
    fn serve(&mut self, out: &mut impl Emitter, request: Request) -> u32 {
        let (Request::Read { key } | Request::Update { key, .. }) = request;
        let (columns, kind) = (&self.columns, self.kind);
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
        let value = ((kind.record_bytes() * entry as u64 + ENTRY) / VECTOR) as usize;
        let version = self.version[entry];
        match request {
            Request::Read { .. } => {
                for offset in (0..(kind.value_bytes() / VECTOR) as usize).step_by(2) {
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
                let field_bytes = kind.field_bytes;
                let from = (kind.request_bytes() - field_bytes) / VECTOR;
                let to = field * field_bytes / VECTOR;
                for vector in 0..field_bytes / VECTOR {
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

    fn store(size_bytes: u64, kind: Kind, keys: Keys) -> Store {
        let shape = Shape::of(kind, &Arguments::new(size_bytes, 1));
        Store::new(&shape, Code::new(&mut Assembler::new(), kind), keys, 1)
    }

    #[test]
    fn a_read_gets_what_was_last_written() {
        let half = Kind { updates: 0.5, ..YCSB };
        let mut store = store(1 << 20, half, Keys::Zipfian);
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
        let store = store(1 << 20, YCSB, Keys::Zipfian);
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

    /// How often each key is asked for.
    fn counts(store: &mut Store, draws: u32) -> Vec<u32> {
        let mut counts = vec![0; store.version.len()];
        for _ in 0..draws {
            let (Request::Read { key } | Request::Update { key, .. }) = store.draw();
            counts[key] += 1;
        }
        counts
    }

    #[test]
    fn uniform_keys_have_equal_shares() {
        let mut store = store(1 << 20, YCSB, Keys::Uniform);
        let counts = counts(&mut store, 200_000);
        let expected = 200_000.0 / counts.len() as f64;
        let far = |&&count: &&u32| (f64::from(count) - expected).abs() > 6.0 * expected.sqrt();
        assert_eq!(counts.iter().filter(far).count(), 0, "{expected} each");
    }

    #[test]
    fn records_are_those_of_the_table() {
        let records =
            |kind, gib: u64| Shape::of(kind, &Arguments::new(gib << 30, 1)).records as f64;
        let [redis, memcached] = [records(OF_REDIS, 128), records(OF_MEMCACHED, 69)];
        for (ours, published) in [(redis, 536e6), (memcached, 56e6)] {
            assert!((ours / published - 1.0).abs() < 0.04, "{ours} of {published}");
        }
    }

    #[test]
    fn the_most_popular_key_has_its_share() {
        let mut store = store(64 << 20, YCSB, Keys::Zipfian);
        let (records, draws) = (store.version.len(), 200_000);
        let counts = counts(&mut store, draws);
        let most = (0..records).max_by_key(|&key| counts[key]).unwrap();
        assert_eq!(most, store.order.at(0) as usize);
        let all: f64 = (1..=records).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        let expected = f64::from(draws) / all;
        assert!((f64::from(counts[most]) - expected).abs() < 6.0 * expected.sqrt());
    }

    #[test]
    fn sizes_are_filled() {
        for size_bytes in (64 << 10..512 << 10).step_by(1000).chain([1 << 30, 1 << 40]) {
            let shape = Shape::of(YCSB, &Arguments::new(size_bytes, 1));
            let bytes = shape.layout.bytes();
            let least = bytes + 5 * YCSB.record_bytes();
            assert!(bytes <= size_bytes && least > size_bytes, "{bytes} {size_bytes}");
            assert!(shape.records <= shape.buckets);
        }
    }
}
