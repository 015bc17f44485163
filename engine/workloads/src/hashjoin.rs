//! `hashjoin`: a hash join of two relations: a table is built over one and probed with the other.
//!
//! Source: Balkesen, Teubner, Alonso and Özsu, "Main-memory hash joins on multi-core CPUs", ICDE 2013:
//! the no-partitioning join with one thread, over their workload B: relations of equal size (the probe
//! relation takes what is left where that is not possible) with tuples of 8 bytes (key 4, payload 4);
//! the build relation's keys are a permutation of 0 … n - 1, the probe relation's are drawn from them.
//!
//! ```text
//! build    8 bytes a tuple
//! probe    8 bytes a tuple
//! buckets  32 bytes for two tuples: latch 4, count 4, tuples 2 x 8, next 8
//! ```
//!
//! There are as many buckets as the next power of two above half the tuples, and a key's is the key
//! modulo that; with dense keys no bucket overflows, in the original as here. Departs from it: latches
//! are not taken, which one thread does not need.

use std::ops::Range;

use flatwalk_trace::{BlockId, Source};

use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Permutation, Random};
use crate::simulated::{Algorithm, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "hashjoin",
    "hash join: builds a table of two-tuple buckets, then probes it; both access random \
                  buckets, independent of each other",
    64 << 30,
    &[
        Parameter {
            name: "size_bytes",
            description: "relations and table, in bytes: 64 KiB to 64 GiB (takes up to a sixth as \
                          much memory)",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
);

/// Tuples in a bucket.
const BUCKET: usize = 2;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Join::new(&shape, code, seed)
    })
}

struct Shape {
    build_tuples: u64,
    probe_tuples: u64,
    buckets: u64,
    layout: Layout,
    build: Column,
    probe: Column,
    count: Column,
    /// The tuples of each bucket, and their keys alone.
    tuple: [Column; BUCKET],
    key: [Column; BUCKET],
    next: Column,
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let size_bytes = arguments.size_bytes;
        // A full table of 2^k buckets with its relations has 64 bytes a bucket; the next larger table
        // is worth it if it gets more tuples than that.
        let fit = |buckets: u64| ((size_bytes - 32 * buckets) / 16).min(BUCKET as u64 * buckets);
        let full = 1 << (size_bytes / 64).ilog2();
        let buckets = if fit(2 * full) > fit(full) { 2 * full } else { full };
        let build_tuples = fit(buckets);
        let probe_tuples = (size_bytes - 32 * buckets - 8 * build_tuples) / 8;
        let mut layout = Layout::new(arguments);
        let (build, probe) = (layout.array(build_tuples, 8), layout.array(probe_tuples, 8));
        let table = layout.line_records(buckets, 32);
        Self {
            build_tuples,
            probe_tuples,
            buckets,
            build,
            probe,
            count: table.field(4, 4),
            tuple: [table.field(8, 8), table.field(16, 8)],
            key: [table.field(8, 4), table.field(16, 4)],
            next: table.field(24, 8),
            layout,
        }
    }
}

registers!(32; BUILD, PROBE, TABLE, INDEX, TUPLES, TUPLE, SLOT, BUCKET_AT, COUNT, NEXT, PLACE, KEY, MATCHES);

struct Code {
    build: BlockId,
    insert: BlockId,
    begin_probe: BlockId,
    probe: BlockId,
    compare: BlockId,
    chain: BlockId,
    next_probe: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            build: assembler
                .load(&[BUILD, INDEX], TUPLE)
                .operation(&[TUPLE], &[SLOT])
                .operation(&[TABLE, SLOT], &[BUCKET_AT])
                .load_bytes(4, &[BUCKET_AT], COUNT)
                .load(&[BUCKET_AT], NEXT)
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            insert: assembler
                .store(&[BUCKET_AT, COUNT, TUPLE])
                .operation(&[COUNT], &[COUNT])
                .store_bytes(4, &[BUCKET_AT, COUNT])
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, TUPLES], &[FLAGS])
                .branch(),
            begin_probe: assembler.operation(&[], &[INDEX]).operation(&[], &[MATCHES]).fall(),
            probe: assembler
                .load(&[PROBE, INDEX], TUPLE)
                .operation(&[TUPLE], &[SLOT])
                .operation(&[TABLE, SLOT], &[BUCKET_AT])
                .load_bytes(4, &[BUCKET_AT], COUNT)
                .operation(&[], &[PLACE])
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            compare: assembler
                .load_bytes(4, &[BUCKET_AT, PLACE], KEY)
                .operation(&[KEY, TUPLE], &[FLAGS])
                .operation(&[MATCHES, FLAGS], &[MATCHES])
                .operation(&[PLACE], &[PLACE])
                .operation(&[PLACE, COUNT], &[FLAGS])
                .branch(),
            chain: assembler
                .load(&[BUCKET_AT], BUCKET_AT)
                .operation(&[BUCKET_AT], &[FLAGS])
                .branch(),
            next_probe: assembler
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, TUPLES], &[FLAGS])
                .branch(),
        }
    }
}

struct Join {
    code: Code,
    /// Different keys.
    keys: u64,
    build_keys: Permutation,
    probe_keys: Random,
    build: Column,
    probe: Column,
    count: Column,
    tuple: [Column; BUCKET],
    key: [Column; BUCKET],
    next: Column,
    /// Each bucket's keys; [`EMPTY`] where there is none.
    table: Vec<[u32; BUCKET]>,
    unbuilt: Range<usize>,
    unprobed: Range<usize>,
    /// The answer: pairs of tuples with the same key, and the sum of these keys.
    matches: u64,
    sum: u64,
}

const EMPTY: u32 = u32::MAX;

impl Join {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        Self {
            code,
            build_keys: Permutation::new(shape.build_tuples, seed),
            probe_keys: Random::new(seed, 1),
            keys: shape.build_tuples,
            build: shape.build,
            probe: shape.probe,
            count: shape.count,
            tuple: shape.tuple,
            key: shape.key,
            next: shape.next,
            table: vec![[EMPTY; BUCKET]; shape.buckets as usize],
            unbuilt: 0..shape.build_tuples as usize,
            unprobed: 0..shape.probe_tuples as usize,
            matches: 0,
            sum: 0,
        }
    }

    fn bucket(&self, key: u32) -> usize {
        key as usize & (self.table.len() - 1)
    }

    fn insert(&mut self, out: &mut impl Emitter, tuple: usize) {
        out.enter(self.code.build);
        self.build.load(out, tuple);
        let key = self.build_keys.at(tuple as u64) as u32;
        let bucket = self.bucket(key);
        self.count.load(out, bucket);
        self.next.load(out, bucket);
        let slots = &mut self.table[bucket];
        let free = slots.iter().position(|&slot| slot == EMPTY).expect("keys are dense");
        out.enter(self.code.insert);
        slots[free] = key;
        self.tuple[free].store(out, bucket);
        self.count.store(out, bucket);
    }

    fn probe(&mut self, out: &mut impl Emitter, tuple: usize) {
        out.enter(self.code.probe);
        self.probe.load(out, tuple);
        let key = self.probe_keys.below(self.keys) as u32;
        let bucket = self.bucket(key);
        self.count.load(out, bucket);
        for (place, &built) in self.table[bucket].iter().enumerate() {
            if built == EMPTY {
                break;
            }
            out.enter(self.code.compare);
            self.key[place].load(out, bucket);
            if built == key {
                self.matches += 1;
                self.sum += u64::from(built);
            }
        }
        out.enter(self.code.chain);
        self.next.load(out, bucket);
        out.enter(self.code.next_probe);
    }
}

impl Algorithm for Join {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(tuple) = self.unbuilt.next() {
            self.insert(out, tuple);
            if self.unbuilt.is_empty() {
                out.enter(self.code.begin_probe);
            }
        } else if let Some(tuple) = self.unprobed.next() {
            self.probe(out, tuple);
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::simulated::Native;

    #[test]
    fn the_join_finds_what_a_set_of_the_keys_finds() {
        let shape = Shape::of(&Arguments::new(100 << 10, 1));
        let mut join = Join::new(&shape, Code::new(&mut Assembler::new()), 1);
        let (build_keys, mut probe_keys) = (join.build_keys.clone(), join.probe_keys.clone());
        while join.step(&mut Native) {}
        let built: HashSet<_> = (0..shape.build_tuples).map(|tuple| build_keys.at(tuple)).collect();
        assert_eq!(built.len() as u64, shape.build_tuples, "keys are unique");
        let probes = (0..shape.probe_tuples).map(|_| probe_keys.below(shape.build_tuples));
        let found: Vec<_> = probes.filter(|key| built.contains(key)).collect();
        assert_eq!((join.matches, join.sum), (found.len() as u64, found.iter().sum()));
        assert_eq!(join.matches, shape.probe_tuples, "every key has its tuple");
    }

    #[test]
    fn sizes_are_filled_and_no_bucket_overflows() {
        for size_bytes in (64 << 10..512 << 10).step_by(1000).chain([1 << 30, 64 << 30]) {
            let shape = Shape::of(&Arguments::new(size_bytes, 1));
            let bytes = shape.layout.bytes();
            assert!(bytes <= size_bytes + 32 && bytes + 32 > size_bytes, "{bytes} {size_bytes}");
            assert!(shape.build_tuples <= BUCKET as u64 * shape.buckets);
            assert!(shape.build_tuples > shape.buckets, "the next smaller table would do");
            assert!((1..=3).contains(&(shape.probe_tuples / shape.build_tuples)));
        }
    }

    /// As docs/workloads.md says.
    #[test]
    fn relations_are_equal_at_a_power_of_two_and_above_one_and_a_half_times_one() {
        let tuples = |size_bytes| {
            let shape = Shape::of(&Arguments::new(size_bytes, 1));
            (shape.build_tuples, shape.probe_tuples)
        };
        for power in [64 << 10, 1 << 20, 1 << 30, 32 << 30] {
            let quarter = power / 4;
            let most = power / 32;
            assert_eq!(tuples(power), (most, most));
            assert_eq!(tuples(power + quarter), (most, 2 * most));
            assert_eq!(tuples(power + 2 * quarter), (most, 3 * most));
            for above in [power + 2 * quarter + 64, power + 3 * quarter, 2 * power - 64] {
                let (build, probe) = tuples(above);
                assert!(probe.abs_diff(build) <= 1, "{build} {probe}");
            }
        }
    }

    #[test]
    fn its_own_memory_is_at_most_a_sixth() {
        for size_bytes in (64 << 10..512 << 10).step_by(64) {
            let own = 4 * BUCKET as u64 * Shape::of(&Arguments::new(size_bytes, 1)).buckets;
            assert!(own <= size_bytes / 6, "{own} of {size_bytes}");
        }
    }
}
