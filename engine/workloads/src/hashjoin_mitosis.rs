//! `hashjoin-mitosis`: the hash join of Mitosis, which reads an outer table in order and looks each of
//! its keys up twice in chains of an inner one.
//!
//! Source: Achermann, Panwar, Bhattacharjee, Roscoe and Gandhi, "Mitosis", ASPLOS 2020, and the program
//! `mitosis-workload-hashjoin`, its build with one thread: 50 passes over the outer table. A key's two
//! words of `MurmurHash3_x64_128` (Appleby; seed 42), each modulo the number of buckets, give two chains,
//! which are followed to the key or to their end. Inner keys are 4, 8, 12, …; outer keys 0, 1, 2, …; inner
//! elements : buckets : rows are 1 : 1 : 10, as by default.
//!
//! ```text
//! bucket    8 bytes: pointer to the newest element
//! element   16 bytes: key 8, next 8
//! row       128 bytes: key 8, payload 15 x 8
//! ```
//!
//! Blocks are GCC's at the original's options, for Skylake (12.2, `-O3 -march=skylake`),
//! instruction for instruction. Departs from it: arrays are cleared (`memset`) beforehand, in
//! ascending order; all three are aligned to lines, where the original has the elements and the
//! rows at 2 MiB; a division takes one operation; calls and returns do not access the stack; the
//! jump into the switch over a key's last bytes is direct.

use std::ops::Range;

use flatwalk_trace::{BlockId, Source};

use crate::program::{Assembler, FLAGS, registers};
use crate::simulated::{Algorithm, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "hashjoin-mitosis",
    "Mitosis's hash join: reads rows in order and looks each key up in two random chains, \
                  after a long hash function",
    1 << 40,
    &[
        Parameter {
            name: "size_bytes",
            description: "buckets, elements and rows, in bytes: 64 KiB to 1 TiB, 1304 for each element \
                          (takes a 150th as much memory)",
        },
        ARRAY_ORDER,
    ],
    make,
);

const ROW: u64 = 128;
const ELEMENT: u64 = 16;
const BUCKET: u64 = 8;
/// Rows for each element.
const ROWS_AN_ELEMENT: u64 = 10;
const PASSES: u32 = 50;
/// Between two inner keys.
const KEY_STRIDE: u64 = 4;
const HASH_SEED: u64 = 42;
/// Words of the stack that are used, and entries of the hash function's switch.
const FRAME: u64 = 12;
const CASES: u64 = 16;
/// Bytes of a key.
const KEY_BYTES: usize = 8;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Join::new(&shape, code)
    })
}

struct Shape {
    /// Elements, and as many buckets.
    elements: u64,
    rows: u64,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    bucket: Column,
    element_key: Column,
    element_next: Column,
    row_key: Column,
    /// The bytes of all rows.
    row_byte: Column,
    /// Words on the stack, and their bytes.
    frame: Column,
    frame_byte: Column,
    /// Where the switch's cases begin.
    case: Column,
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        // With what alignment may take.
        let small = 8 * FRAME + 4 * CASES + 8;
        let elements = (arguments.size_bytes - small) / (BUCKET + ELEMENT + ROWS_AN_ELEMENT * ROW);
        let rows = ROWS_AN_ELEMENT * elements;
        let mut layout = Layout::new(arguments);
        let frame = layout.objects(FRAME, 8);
        let case = layout.objects(CASES, 4).field(0, 4);
        let bucket = layout.line_records(elements, BUCKET).field(0, 8);
        let element = layout.line_records(elements, ELEMENT);
        let row = layout.line_records(rows, ROW);
        let columns = Columns {
            bucket,
            element_key: element.field(0, 8),
            element_next: element.field(8, 8),
            row_key: row.field(0, 8),
            row_byte: row.split(1),
            frame: frame.field(0, 8),
            frame_byte: frame.split(1),
            case,
        };
        Self { elements, rows, layout, columns }
    }
}

/// Words of the stack frame.
mod frame {
    pub(super) const SAVED: [usize; 2] = [0, 1];
    pub(super) const ROWS: usize = 2;
    pub(super) const PASS: usize = 3;
    pub(super) const PASSES: usize = 4;
    pub(super) const KEY: usize = 5;
    pub(super) const HASH: [usize; 2] = [6, 7];
    pub(super) const TABLE: usize = 8;
    pub(super) const KEY_AT: usize = 9;
    pub(super) const HASH_AT: usize = 10;
}

registers!(32; STACK, BUCKETS, BUCKET_COUNT, ELEMENT_AT, ELEMENT_COUNT, INDEX, KEY, KEY_AT, LENGTH, SEED, HASH_AT,
    BLOCKS, SAVED_0, SAVED_1, OUT, DATA, CASE, CASES_AT, TAIL, WORD, BYTE, CONSTANT, MULTIPLIER, H1, H2, MIX1,
    MIX2, SHIFTED1, SHIFTED2, QUOTIENT, REMAINDER, BUCKET_AT, NEXT, CONFLICTS, TABLE, ROW_COUNT, OFFSET, ROW_AT, CHAIN, MATCHES,
    PASS, PASS_COUNT);

/// One of a row's two look-ups.
#[derive(Clone, Copy)]
struct Lookup {
    bucket: BlockId,
    begin: BlockId,
    follow: BlockId,
    compare: BlockId,
    found: BlockId,
}

#[derive(Clone, Copy)]
struct Code {
    insert: BlockId,
    inserted: BlockId,
    begin_rows: BlockId,
    write: BlockId,
    begin_passes: BlockId,
    pass: BlockId,
    row: BlockId,
    lookup: [Lookup; 2],
    next_row: BlockId,
    next_pass: BlockId,
    hash: BlockId,
    switch: BlockId,
    tail: BlockId,
    short: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            insert: assembler
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX], &[KEY])
                .store(&[ELEMENT_AT, KEY])
                .load(&[STACK], HASH_AT)
                .load(&[STACK], KEY_AT)
                .operation(&[], &[SEED])
                .operation(&[], &[LENGTH])
                .store(&[STACK, KEY])
                .call(),
            inserted: assembler
                .load(&[STACK], QUOTIENT)
                .then(divide)
                .operation(&[BUCKETS, REMAINDER], &[BUCKET_AT])
                .load(&[BUCKET_AT], NEXT)
                .store(&[BUCKET_AT, ELEMENT_AT])
                .operation(&[NEXT], &[FLAGS])
                .store(&[ELEMENT_AT, NEXT])
                .operation(&[CONFLICTS, FLAGS], &[CONFLICTS])
                .operation(&[ELEMENT_AT], &[ELEMENT_AT])
                .operation(&[INDEX, ELEMENT_COUNT], &[FLAGS])
                .branch(),
            begin_rows: assembler.operation(&[], &[INDEX]).fall(),
            write: assembler
                .operation(&[INDEX], &[OFFSET])
                .operation(&[OFFSET], &[OFFSET])
                .store(&[TABLE, OFFSET, INDEX])
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, ROW_COUNT], &[FLAGS])
                .branch(),
            begin_passes: assembler
                .operation(&[], &[PASS])
                .operation(&[], &[MATCHES])
                .operation(&[STACK], &[HASH_AT])
                .store(&[STACK, TABLE])
                .fall(),
            pass: assembler
                .load(&[STACK], ROW_AT)
                .operation(&[], &[INDEX])
                .store(&[STACK, PASS])
                .operation(&[INDEX], &[OFFSET])
                .operation(&[ROW_AT], &[ROW_AT])
                .operation(&[OFFSET], &[INDEX])
                .fall(),
            row: assembler
                .operation(&[], &[SEED])
                .operation(&[HASH_AT], &[OUT])
                .operation(&[], &[LENGTH])
                .operation(&[ROW_AT], &[KEY_AT])
                .call(),
            lookup: [(); 2].map(|()| lookup(assembler)),
            next_row: assembler
                .operation(&[INDEX], &[INDEX])
                .operation(&[ROW_AT], &[ROW_AT])
                .load(&[STACK, INDEX], FLAGS)
                .branch(),
            next_pass: assembler
                .load(&[STACK], PASS)
                .load(&[STACK], PASS_COUNT)
                .operation(&[PASS], &[PASS])
                .operation(&[PASS, PASS_COUNT], &[FLAGS])
                .branch(),
            hash: assembler
                .operation(&[KEY_AT], &[DATA])
                .operation(&[LENGTH], &[LENGTH])
                .operation(&[LENGTH], &[FLAGS])
                .store(&[STACK, SAVED_0])
                .operation(&[HASH_AT], &[OUT])
                .operation(&[LENGTH], &[BLOCKS])
                .operation(&[LENGTH, FLAGS, BLOCKS], &[BLOCKS])
                .store(&[STACK, SAVED_1])
                .operation(&[BLOCKS], &[BLOCKS])
                .operation(&[SEED], &[H1])
                .operation(&[LENGTH], &[FLAGS])
                .branch(),
            switch: assembler
                .operation(&[LENGTH], &[CASE])
                .operation(&[], &[CASES_AT])
                .operation(&[CASE], &[CASE])
                .load_bytes(4, &[CASES_AT, CASE], CASE)
                .operation(&[BLOCKS], &[TAIL])
                .operation(&[TAIL], &[TAIL])
                .operation(&[CASES_AT, CASE], &[CASE])
                .operation(&[TAIL, DATA], &[TAIL])
                .jump(),
            tail: assembler.then(gather).then(mix).return_(),
            short: assembler.operation(&[H1], &[H2]).jump(),
        }
    }
}

/// Divides a word of the hash by the number of buckets.
fn divide(assembler: &mut Assembler) -> &mut Assembler {
    assembler
        .operation(&[], &[REMAINDER])
        .operation(&[QUOTIENT, REMAINDER, BUCKET_COUNT], &[QUOTIENT, REMAINDER])
}

/// The key, byte by byte, from the last to the first.
fn gather(assembler: &mut Assembler) -> &mut Assembler {
    assembler.load_bytes(1, &[TAIL], WORD).operation(&[WORD], &[WORD]);
    for _ in 2..KEY_BYTES {
        assembler
            .load_bytes(1, &[TAIL], BYTE)
            .operation(&[BYTE], &[BYTE])
            .operation(&[WORD, BYTE], &[WORD]);
    }
    assembler.load_bytes(1, &[TAIL], BYTE).operation(&[WORD, BYTE], &[WORD])
}

/// From the key to both words of its hash.
fn mix(assembler: &mut Assembler) -> &mut Assembler {
    assembler
        .operation(&[], &[CONSTANT])
        .operation(&[WORD, CONSTANT], &[WORD])
        .operation(&[], &[CONSTANT])
        .operation(&[WORD], &[WORD])
        .operation(&[WORD, CONSTANT], &[WORD])
        .operation(&[H1, WORD], &[H1])
        .operation(&[H1, LENGTH], &[H1])
        .operation(&[H2, LENGTH], &[H2])
        .operation(&[H1, H2], &[H1])
        .operation(&[H1], &[MIX1])
        .operation(&[MIX1], &[MIX1])
        .operation(&[], &[MULTIPLIER])
        .operation(&[MIX1, H1], &[MIX1])
        .operation(&[MIX1, MULTIPLIER], &[MIX1])
        .operation(&[H2, H1], &[H2])
        .operation(&[], &[CONSTANT])
        .operation(&[MIX1], &[SHIFTED1])
        .operation(&[SHIFTED1], &[SHIFTED1])
        .operation(&[MIX1, SHIFTED1], &[MIX1])
        .operation(&[H2], &[MIX2])
        .operation(&[MIX2], &[MIX2])
        .operation(&[MIX2, H2], &[MIX2])
        .operation(&[MIX2, MULTIPLIER], &[MIX2])
        .operation(&[MIX1, CONSTANT], &[MIX1])
        .load(&[STACK], SAVED_1)
        .operation(&[MIX2], &[SHIFTED2])
        .operation(&[SHIFTED2], &[SHIFTED2])
        .operation(&[MIX2, SHIFTED2], &[MIX2])
        .operation(&[MIX2, CONSTANT], &[MIX2])
        .operation(&[MIX1], &[SHIFTED1])
        .operation(&[SHIFTED1], &[SHIFTED1])
        .operation(&[MIX2], &[SHIFTED2])
        .operation(&[SHIFTED2], &[SHIFTED2])
        .operation(&[MIX2, SHIFTED2], &[MIX2])
        .operation(&[MIX1, SHIFTED1], &[MIX1])
        .operation(&[MIX1, MIX2], &[MIX1])
        .store(&[OUT, MIX1])
        .operation(&[MIX1, MIX2], &[MIX1])
        .store(&[OUT, MIX1])
        .load(&[STACK], SAVED_0)
}

fn lookup(assembler: &mut Assembler) -> Lookup {
    Lookup {
        bucket: assembler
            .load(&[STACK], QUOTIENT)
            .then(divide)
            .load(&[BUCKETS, REMAINDER], CHAIN)
            .operation(&[CHAIN], &[FLAGS])
            .branch(),
        begin: assembler.load(&[ROW_AT], KEY).jump(),
        follow: assembler.load(&[CHAIN], CHAIN).operation(&[CHAIN], &[FLAGS]).branch(),
        compare: assembler.load(&[CHAIN, KEY], FLAGS).branch(),
        found: assembler.operation(&[MATCHES], &[MATCHES]).fall(),
    }
}

struct Join {
    code: Code,
    columns: Columns,
    rows: usize,
    /// Each bucket's newest element, and each element's next; [`NONE`] at the end.
    heads: Vec<u32>,
    nexts: Vec<u32>,
    uninserted: Range<usize>,
    unwritten: Range<usize>,
    /// Passes begun, and what is left of the last.
    passes: u32,
    unread: Range<usize>,
    /// The answer, as the program prints it: keys found, in each look-up, and elements that were inserted
    /// before another.
    matches: u64,
    conflicts: u64,
}

const NONE: u32 = u32::MAX;

impl Join {
    fn new(shape: &Shape, code: Code) -> Self {
        let (elements, rows) = (shape.elements as usize, shape.rows as usize);
        Self {
            code,
            columns: shape.columns,
            rows,
            heads: vec![NONE; elements],
            nexts: vec![NONE; elements],
            uninserted: 0..elements,
            unwritten: 0..rows,
            passes: 0,
            unread: 0..0,
            matches: 0,
            conflicts: 0,
        }
    }

    /// Calls the hash function for a key whose byte `i` is number `first + i` of `bytes`.
    fn hash(&self, out: &mut impl Emitter, key: u64, bytes: Column, first: usize) -> [usize; 2] {
        let (code, columns) = (self.code, self.columns);
        out.enter(code.hash);
        columns.frame.store(out, frame::SAVED[0]);
        columns.frame.store(out, frame::SAVED[1]);
        out.enter(code.short);
        out.enter(code.switch);
        columns.case.load(out, KEY_BYTES);
        out.enter(code.tail);
        for byte in (0..KEY_BYTES).rev() {
            bytes.load(out, first + byte);
        }
        columns.frame.load(out, frame::SAVED[1]);
        columns.frame.store(out, frame::HASH[0]);
        columns.frame.store(out, frame::HASH[1]);
        columns.frame.load(out, frame::SAVED[0]);
        murmur(key).map(|word| (word % self.heads.len() as u64) as usize)
    }

    fn insert(&mut self, out: &mut impl Emitter, element: usize) {
        let Columns { bucket: buckets, element_key, element_next, frame, frame_byte, .. } =
            self.columns;
        out.enter(self.code.insert);
        element_key.store(out, element);
        frame.load(out, frame::HASH_AT);
        frame.load(out, frame::KEY_AT);
        frame.store(out, frame::KEY);
        let [bucket, _] = self.hash(out, inner_key(element), frame_byte, 8 * frame::KEY);
        out.enter(self.code.inserted);
        frame.load(out, frame::HASH[0]);
        buckets.load(out, bucket);
        buckets.store(out, bucket);
        element_next.store(out, element);
        let head = std::mem::replace(&mut self.heads[bucket], element as u32);
        self.conflicts += u64::from(head != NONE);
        self.nexts[element] = head;
    }

    fn read(&mut self, out: &mut impl Emitter, row: usize) {
        out.enter(self.code.row);
        let key = row as u64;
        let buckets = self.hash(out, key, self.columns.row_byte, ROW as usize * row);
        for (lookup, bucket) in buckets.into_iter().enumerate() {
            self.look_up(out, lookup, bucket, row);
        }
        out.enter(self.code.next_row);
        self.columns.frame.load(out, frame::ROWS);
    }

    fn look_up(&mut self, out: &mut impl Emitter, lookup: usize, bucket: usize, row: usize) {
        let (code, columns) = (self.code.lookup[lookup], self.columns);
        out.enter(code.bucket);
        columns.frame.load(out, frame::HASH[lookup]);
        columns.bucket.load(out, bucket);
        let mut element = self.heads[bucket];
        if element == NONE {
            return;
        }
        out.enter(code.begin);
        columns.row_key.load(out, row);
        loop {
            out.enter(code.compare);
            columns.element_key.load(out, element as usize);
            if inner_key(element as usize) == row as u64 {
                out.enter(code.found);
                self.matches += 1;
                return;
            }
            out.enter(code.follow);
            columns.element_next.load(out, element as usize);
            element = self.nexts[element as usize];
            if element == NONE {
                return;
            }
        }
    }
}

impl Algorithm for Join {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        let (code, frame) = (self.code, self.columns.frame);
        if let Some(element) = self.uninserted.next() {
            self.insert(out, element);
            if self.uninserted.is_empty() {
                out.enter(code.begin_rows);
            }
        } else if let Some(row) = self.unwritten.next() {
            out.enter(code.write);
            self.columns.row_key.store(out, row);
            if self.unwritten.is_empty() {
                out.enter(code.begin_passes);
                frame.store(out, frame::TABLE);
            }
        } else if let Some(row) = self.unread.next() {
            self.read(out, row);
            if self.unread.is_empty() {
                out.enter(code.next_pass);
                frame.load(out, frame::PASS);
                frame.load(out, frame::PASSES);
            }
        } else if self.passes < PASSES {
            self.passes += 1;
            self.unread = 0..self.rows;
            out.enter(code.pass);
            frame.load(out, frame::TABLE);
            frame.store(out, frame::PASS);
        } else {
            return false;
        }
        true
    }
}

fn inner_key(element: usize) -> u64 {
    (element as u64 + 1) * KEY_STRIDE
}

/// `MurmurHash3_x64_128` of 8 bytes.
fn murmur(key: u64) -> [u64; 2] {
    let finish = |word: u64| {
        let word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        word ^ word >> 33
    };
    let key = key.wrapping_mul(0x87c3_7b91_1142_53d5).rotate_left(31);
    let length = KEY_BYTES as u64;
    let second = HASH_SEED ^ length;
    let first = (HASH_SEED ^ key.wrapping_mul(0x4cf5_ad43_2745_937f) ^ length).wrapping_add(second);
    let second = finish(second.wrapping_add(first));
    let first = finish(first).wrapping_add(second);
    [first, second.wrapping_add(first)]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::simulated::Native;

    /// Counts instructions.
    struct Counter {
        lengths: Vec<u64>,
        instructions: u64,
    }

    impl Emitter for Counter {
        fn enter(&mut self, block: BlockId) {
            self.instructions += self.lengths[block as usize];
        }
        fn load(&mut self, _: u64, _: u16) {}
        fn store(&mut self, _: u64, _: u16) {}
    }

    fn join(elements: u64) -> Join {
        // What is left is less than an element with its rows.
        let shape = Shape::of(&Arguments::new(1304 * elements + 200, 1));
        assert_eq!(shape.elements, elements);
        Join::new(&shape, Code::new(&mut Assembler::new()))
    }

    /// Runs until so many passes have ended.
    fn run(join: &mut Join, out: &mut impl Emitter, passes: u32) {
        while join.passes < passes || !join.unread.is_empty() {
            assert!(join.step(out));
        }
    }

    /// What the original prints (`-s n -i n -o 10n`): matches of a pass, and conflicts.
    #[test]
    fn the_answer_is_the_original_programs() {
        for (elements, matches, conflicts) in
            [(50, 51, 17), (100, 101, 33), (1000, 1001, 370), (100_000, 100_000, 36_777)]
        {
            let mut join = join(elements);
            for pass in 1..=2 {
                run(&mut join, &mut Native, pass);
                assert_eq!((join.matches, join.conflicts), (u64::from(pass) * matches, conflicts));
            }
        }
        let mut join = join(50);
        while join.step(&mut Native) {}
        assert_eq!((join.passes, join.matches), (50, 50 * 51));
    }

    #[test]
    fn the_join_finds_what_a_map_of_the_inner_table_finds() {
        for elements in [50, 77, 1000, 5003] {
            let bucket = |word: u64| word % elements;
            let inner: HashMap<u64, u64> =
                (1..=elements).map(|i| (4 * i, bucket(murmur(4 * i)[0]))).collect();
            let places = |key| murmur(key).map(bucket);
            let found = (0..10 * elements).flat_map(|key| places(key).map(|place| (key, place)));
            let expected = found.filter(|(key, place)| inner.get(key) == Some(place)).count();
            let mut join = join(elements);
            run(&mut join, &mut Native, 1);
            assert_eq!(join.matches, expected as u64, "{elements}");
        }
    }

    /// As the original's function computes it.
    #[test]
    fn the_hash_is_murmurs() {
        let known = [
            (0, [0x434b_9afe_2c3e_9543, 0x07eb_182e_dd1e_61c9]),
            (0x1, [0xd3fe_46e1_12f0_4c44, 0xba42_4eae_26bf_6f4a]),
            (0x4, [0x3148_470a_c3ab_fd34, 0x2bb7_2ab5_8b48_6812]),
            (0x3e8, [0xebef_8ba5_d2ac_e085, 0xf057_a625_329a_440b]),
            (0x00c9_0814, [0x8b7d_a382_d8c7_4c8b, 0x68fb_d07c_32e0_c57e]),
            (0x0123_4567_89ab_cdef, [0xccbf_e31e_e09a_27db, 0xd4d4_4c02_9667_fcb3]),
            (0xffff_ffff_ffff_ffff, [0xb6a8_6ca1_6a85_a979, 0xc8e2_ea8a_7840_06bd]),
        ];
        for (key, hash) in known {
            assert_eq!(murmur(key), hash, "{key:#x}");
        }
    }

    #[test]
    fn chains_are_as_long_as_by_chance() {
        let mut join = join(200_000);
        while !join.uninserted.is_empty() {
            join.step(&mut Native);
        }
        let mut of_length = [0_u32; 16];
        let mut elements = 0;
        for &head in &join.heads {
            let element = |place: u32| (place != NONE).then_some(place);
            let next = |&place: &u32| element(join.nexts[place as usize]);
            // The newest element comes first.
            let chain: Vec<_> = std::iter::successors(element(head), next).collect();
            assert!(chain.is_sorted_by(|a, b| a > b));
            of_length[chain.len()] += 1;
            elements += chain.len();
        }
        assert_eq!(elements, join.nexts.len());
        // Poisson's distribution with mean 1.
        let mut share = (-1.0_f64).exp();
        for (length, &chains) in of_length.iter().enumerate() {
            let expected = share * join.heads.len() as f64;
            let error = (f64::from(chains) - expected).abs();
            assert!(error < 4.0 * expected.sqrt().max(1.0), "{length}: {chains}, {expected}");
            share /= (length + 1) as f64;
        }
    }

    #[test]
    fn sizes_are_filled() {
        for size_bytes in (64 << 10..512 << 10).step_by(1000).chain([1 << 30, 1 << 40]) {
            let shape = Shape::of(&Arguments::new(size_bytes, 1));
            let bytes = shape.layout.bytes();
            assert!(bytes <= size_bytes && bytes + 1304 + 32 > size_bytes, "{bytes} {size_bytes}");
            assert_eq!(shape.rows, 10 * shape.elements);
            assert!(u32::try_from(shape.elements).is_ok_and(|elements| elements < NONE));
        }
    }

    #[test]
    fn data_lie_as_in_the_original() {
        let Columns { bucket, element_key, row_key, row_byte, frame, frame_byte, .. } =
            Shape::of(&Arguments::new(64 << 20, 1)).columns;
        assert!(bucket.address(0) > element_key.address(0));
        assert!(element_key.address(0) > row_key.address(0));
        for row in [0, 1, 1000] {
            assert_eq!(row_key.address(row), row_key.address(0) + 128 * row as u64);
            assert_eq!(row_byte.address(128 * row), row_key.address(row));
        }
        let arrays = [bucket, element_key, row_key];
        assert!(arrays.iter().all(|array| array.address(0).is_multiple_of(64)));
        assert_eq!(frame_byte.address(8 * frame::KEY), frame.address(frame::KEY));
    }

    #[test]
    fn code_is_as_long_as_the_documentation_says() {
        let mut assembler = Assembler::new();
        let shape = Shape::of(&Arguments::new(64 << 20, 1));
        let mut join = Join::new(&shape, Code::new(&mut assembler));
        let lengths = (0..).zip(assembler.blocks()).map(|(id, _)| assembler.length(id)).collect();
        let mut counter = Counter { lengths, instructions: 0 };
        while !join.uninserted.is_empty() {
            join.step(&mut counter);
        }
        assert_eq!(counter.instructions, 107 * shape.elements + 1);
        counter.instructions = 0;
        while !join.unwritten.is_empty() {
            join.step(&mut counter);
        }
        assert_eq!(counter.instructions, 6 * shape.rows + 4);
        counter.instructions = 0;
        run(&mut join, &mut counter, 1);
        assert_eq!(10 * counter.instructions / shape.rows, 1196);
    }
}
