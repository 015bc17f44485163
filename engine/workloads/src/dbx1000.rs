//! Rows, hash indices and transactions as `DBx1000` has them, for the workloads that run on it.
//!
//! Source: `DBx1000` (github.com/yxymit/DBx1000) as configured there: `storage/index_hash`, `storage/row`,
//! `system/txn` and `concurrency_control/tictoc`, its `CC_ALG`. Its Makefile links jemalloc.
//!
//! ```text
//! bucket   24 bytes: first node 8, count 8, latch 8; an index is an array of them
//! node     24 bytes: key 8, next 8, items 8; new ones are appended to their bucket's list
//! item     32 bytes: type 8, row 8, next 8, valid 8
//! row      48 bytes: manager 8, data 8, table 8, key 8, partition 8, number 8
//! manager  16 bytes: row 8, timestamps 8
//! data     as many bytes as the table's schema says
//! ```
//!
//! jemalloc gives each size class pages of its own, without headers, where objects lie in the order of
//! allocation. Row, manager and data are aligned to 64 bytes: so row and manager alternate in pages of
//! 64-byte objects, items and nodes in pages of 32-byte ones, and data have pages of their class. Each
//! page is taken when the one before is full: here the pages of 64 rows lie next to each other.
//!
//! Instructions are about as many as GCC makes of the original's functions (12.2, `-O3`, without inlining
//! between files); pushes, pops, calls and returns within a block count as operations. A clock is read at
//! both ends of the functions below, for the statistics.

use flatwalk_trace::BlockId;

use crate::program::{Assembler, FLAGS, PAGE, registers};
use crate::simulated::{Column, Emitter, Layout};

/// Rows whose pages lie next to each other.
const GROUP: u64 = 64;
/// A row and its manager, each in 64 bytes.
const ROW: u64 = 128;
const MANAGER: u64 = 64;
/// An item and its node, each in 32 bytes.
const ENTRY: u64 = 64;
const NODE: u64 = 32;
const BUCKET_BYTES: u64 = 24;
/// Bytes that one round of `memcpy` copies, with vector registers.
const ROUND: u64 = 128;
const VECTOR: u64 = 32;

/// Where fields lie.
mod field {
    pub(super) const NODE_KEY: u64 = 0;
    pub(super) const NODE_NEXT: u64 = 8;
    pub(super) const NODE_ITEMS: u64 = 16;
    pub(super) const ITEM_ROW: u64 = 8;
    pub(super) const ITEM_NEXT: u64 = 16;
    pub(super) const ROW_MANAGER: u64 = 0;
    pub(super) const ROW_DATA: u64 = 8;
    pub(super) const ROW_TABLE: u64 = 16;
    pub(super) const ROW_KEY: u64 = 24;
    pub(super) const MANAGER_ROW: u64 = 0;
    pub(super) const MANAGER_TIMES: u64 = 8;
    /// Of a transaction's note of an access.
    pub(super) const NOTE_TYPE: u64 = 0;
    pub(super) const NOTE_ROW: u64 = 8;
    pub(super) const NOTE_COPY: u64 = 16;
    pub(super) const NOTE_WRITTEN: u64 = 32;
    pub(super) const NOTE_LEASE: u64 = 40;
}

/// A table's rows with what belongs to them, in the order of loading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    base: u64,
    /// Bytes of a row's data in their size class: a multiple of 64.
    data_bytes: u64,
    /// Indices that have each row.
    indices: u64,
    /// The number of its first row among all tables'.
    first: usize,
    pub(crate) rows: usize,
}

impl Table {
    pub(crate) fn data(&self, row: usize) -> u64 {
        self.object(row, ROW, self.data_bytes)
    }

    /// Where an item has the pointer to its row.
    pub(crate) fn row_pointer(&self, row: usize, index: &Index) -> u64 {
        self.item(row, index.number) + field::ITEM_ROW
    }

    /// Where an item has the pointer to the next one of the same key.
    pub(crate) fn next_item(&self, row: usize, index: &Index) -> u64 {
        self.item(row, index.number) + field::ITEM_NEXT
    }

    /// Loads the pointer to a row's data.
    pub(crate) fn load_data_pointer(&self, out: &mut impl Emitter, row: usize) {
        out.load(self.row(row) + field::ROW_DATA, 8);
    }

    fn row(&self, row: usize) -> u64 {
        self.object(row, 0, ROW)
    }

    fn manager(&self, row: usize) -> u64 {
        self.row(row) + MANAGER
    }

    /// The row's item in one of its indices.
    fn item(&self, row: usize, index: u64) -> u64 {
        let items = self.object(row, ROW + self.data_bytes, ENTRY * self.indices);
        items + ENTRY * index
    }

    /// The node that was made for it.
    fn node(&self, row: usize, index: u64) -> u64 {
        self.item(row, index) + NODE
    }

    /// Where a row's object lies of which the others of its group lie `stride` bytes apart, behind
    /// `before` bytes for each row.
    fn object(&self, row: usize, before: u64, stride: u64) -> u64 {
        let (group, place) = (row as u64 / GROUP, row as u64 % GROUP);
        // The last group may be smaller.
        let members = GROUP.min(self.rows as u64 - group * GROUP);
        let group_at = self.base + group * GROUP * row_bytes(self.data_bytes, self.indices);
        group_at + members * before + place * stride
    }
}

/// Bytes that a row takes with all that belongs to it.
const fn row_bytes(data_bytes: u64, indices: u64) -> u64 {
    ROW + data_bytes + ENTRY * indices
}

/// Allocates tables.
#[derive(Default)]
pub(crate) struct Tables {
    rows: usize,
}

impl Tables {
    pub(crate) fn table(
        &mut self,
        layout: &mut Layout,
        rows: usize,
        data_bytes: u64,
        indices: u64,
    ) -> Table {
        let base = Self::unread(layout, rows, data_bytes, indices);
        let first = self.rows;
        self.rows += rows;
        Table { base, data_bytes, indices, first, rows }
    }

    /// Allocates a table that no transaction reads; returns its address.
    pub(crate) fn unread(layout: &mut Layout, rows: usize, data_bytes: u64, indices: u64) -> u64 {
        let bytes = row_bytes(data_bytes, indices);
        // Where there is a whole group, it has pages of its own.
        let end = layout.objects(0, 64).split(8).address(0);
        let rest = end.next_multiple_of(PAGE) - end;
        if rows as u64 >= GROUP {
            layout.objects(rest / 64, 64);
        }
        layout.objects(rows as u64, bytes).split(8).address(0)
    }
}

/// A hash index: a key's bucket is its remainder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Index {
    first_node: Column,
    pub(crate) buckets: usize,
    /// Which index of its table it is.
    number: u64,
}

impl Index {
    pub(crate) fn new(layout: &mut Layout, buckets: usize, number: u64) -> Self {
        let first_node = layout.line_records(buckets as u64, BUCKET_BYTES).field(0, 8);
        Self { first_node, buckets, number }
    }

    /// The node that was made for a row.
    pub(crate) fn node(self, table: &Table, row: usize) -> u64 {
        table.node(row, self.number)
    }

    /// The nodes from a bucket's first to that of a row, where the table's rows have consecutive keys
    /// and were loaded in their order.
    fn chain(self, table: Table, row: usize) -> impl Iterator<Item = u64> {
        (row % self.buckets..=row)
            .step_by(self.buckets)
            .map(move |row| table.node(row, self.number))
    }
}

/// What every transaction has at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Desk {
    /// Fields of the transaction, of statistics, of the index, and of the table's catalogue.
    word: Column,
    note: Column,
    copy_row: Column,
    copy: Column,
}

/// A note of an access 64 bytes, the row of its copy 64, and the copy's data.
const SLOT: u64 = 128 + COPY;
const COPY: u64 = 1024;
/// Words of the desk, without pointers to notes.
const WORDS: u64 = word::NOTE_AT as u64;

/// Words of the desk.
mod word {
    pub(super) const THREAD: usize = 0;
    pub(super) const THREAD_ID: usize = 1;
    pub(super) const STATISTICS: usize = 2;
    pub(super) const TIME: usize = 3;
    pub(super) const METHODS: usize = 4;
    pub(super) const METHOD: usize = 5;
    pub(super) const BUCKET_COUNT: usize = 6;
    pub(super) const BUCKETS: usize = 7;
    pub(super) const PART: usize = 8;
    pub(super) const TABLE: usize = 9;
    pub(super) const NAME: usize = 10;
    pub(super) const ROWS: usize = 11;
    pub(super) const NOTES: usize = 12;
    pub(super) const SCHEMA: usize = 13;
    pub(super) const SIZE: usize = 14;
    pub(super) const WRITTEN: usize = 15;
    pub(super) const LEASE: usize = 16;
    pub(super) const LATEST: usize = 17;
    /// Pointers to the notes follow.
    pub(super) const NOTE_AT: usize = 18;
}

impl Desk {
    /// For transactions of at most so many rows.
    pub(crate) fn new(layout: &mut Layout, slots: usize) -> Self {
        let slot = layout.objects(slots as u64, SLOT);
        Self {
            word: layout.objects(WORDS + slots as u64, 8).field(0, 8),
            note: slot.field(0, 8),
            copy_row: slot.field(64, 8),
            copy: slot.field(128, 8),
        }
    }

    fn load(&self, out: &mut impl Emitter, words: &[usize]) {
        for &word in words {
            self.word.load(out, word);
        }
    }

    /// Loads a field of a note.
    fn note(&self, out: &mut impl Emitter, slot: usize, field: u64) {
        out.load(self.note.address(slot) + field, 8);
    }

    /// As [`account`].
    fn account(&self, out: &mut impl Emitter) {
        self.load(out, &[word::THREAD, word::THREAD_ID, word::STATISTICS, word::TIME]);
        self.word.store(out, word::TIME);
    }
}

registers!(64; TRANSACTION, STACK, SPARE, CLOCK, THREAD, STATISTICS, TIME, METHOD, BUCKET_COUNT, BUCKET, PART,
    TABLE, NODE_AT, FOUND, NOTES, SLOT_NUMBER, NOTE, COPY_ROW, MANAGER_AT, TIMES, SOURCE, FROM, TO, SIZE, OFFSET,
    V0, V1, V2, V3, KIND, LATEST, WRITTEN, LEASE, COMMIT, OTHER);
/// What a look-up is given: its index and a key.
pub(crate) const INDEX: u8 = 110;
pub(crate) const KEY: u8 = 111;
/// The item that it finds.
pub(crate) const ITEM: u8 = 112;
/// The row that is accessed, and the data of the copy that the transaction gets.
pub(crate) const ROW_AT: u8 = 113;
pub(crate) const COPIED: u8 = 114;

/// So many operations on one register that follow from another.
pub(crate) fn work(from: u8, to: u8, count: usize) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| {
        (0..count).fold(assembler, |assembler, number| {
            assembler.operation(&[if number == 0 { from } else { to }], &[to])
        })
    }
}

/// Independent operations: registers that are saved or restored, jumps and calls.
pub(crate) fn overhead(count: usize) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| {
        (0..count).fold(assembler, |assembler, _| assembler.operation(&[STACK], &[SPARE]))
    }
}

/// Reads the time-stamp counter, and divides it in floating point.
fn clock(assembler: &mut Assembler) -> &mut Assembler {
    assembler.then(work(STACK, CLOCK, 12))
}

/// Adds the time that has passed to the thread's statistics.
fn account(assembler: &mut Assembler) -> &mut Assembler {
    assembler
        .then(clock)
        .load(&[TRANSACTION], THREAD)
        .load(&[THREAD], THREAD)
        .then(overhead(5))
        .load(&[THREAD], STATISTICS)
        .then(work(CLOCK, CLOCK, 4))
        .load(&[STATISTICS], TIME)
        .operation(&[TIME, CLOCK], &[TIME])
        .store(&[STATISTICS, TIME])
}

/// Loads a note's pointer, the row that it is of, and that row's manager.
fn noted(assembler: &mut Assembler) -> &mut Assembler {
    assembler.load(&[NOTES, SLOT_NUMBER], NOTE).load(&[NOTE], ROW_AT).load(&[ROW_AT], MANAGER_AT)
}

/// What one row's data takes to be copied to another's.
struct Copy {
    prepare: BlockId,
    round: BlockId,
}

impl Copy {
    /// `from` and `to` are registers with rows.
    fn new(assembler: &mut Assembler, from: u8, to: u8) -> Self {
        let vector = VECTOR as u16;
        Self {
            prepare: assembler
                .load(&[from], FROM)
                .load(&[from], TABLE)
                .load(&[TABLE], TABLE)
                .load(&[TABLE], SIZE)
                .load(&[to], TO)
                .then(overhead(14))
                .operation(&[SIZE], &[OFFSET])
                .then(work(OFFSET, OFFSET, 4))
                .fall(),
            round: assembler
                .load_bytes(vector, &[FROM, OFFSET], V0)
                .load_bytes(vector, &[FROM, OFFSET], V1)
                .load_bytes(vector, &[FROM, OFFSET], V2)
                .load_bytes(vector, &[FROM, OFFSET], V3)
                .store_bytes(vector, &[TO, OFFSET, V0])
                .store_bytes(vector, &[TO, OFFSET, V1])
                .store_bytes(vector, &[TO, OFFSET, V2])
                .store_bytes(vector, &[TO, OFFSET, V3])
                .operation(&[OFFSET], &[OFFSET])
                .operation(&[OFFSET], &[FLAGS])
                .branch(),
        }
    }

    /// `from` and `to` are addresses of rows, and of their data.
    fn run(
        &self,
        out: &mut impl Emitter,
        desk: &Desk,
        bytes: u64,
        from: (u64, u64),
        to: (u64, u64),
    ) {
        debug_assert!(bytes.is_multiple_of(ROUND), "it is copied in whole rounds");
        out.enter(self.prepare);
        out.load(from.0 + field::ROW_DATA, 8);
        out.load(from.0 + field::ROW_TABLE, 8);
        desk.word.load(out, word::SCHEMA);
        desk.word.load(out, word::SIZE);
        out.load(to.0 + field::ROW_DATA, 8);
        for offset in (0..bytes).step_by(ROUND as usize) {
            out.enter(self.round);
            let vectors = (offset..offset + ROUND).step_by(VECTOR as usize);
            vectors.clone().for_each(|offset| out.load(from.1 + offset, VECTOR as u16));
            vectors.for_each(|offset| out.store(to.1 + offset, VECTOR as u16));
        }
    }
}

/// The functions' code. A loop that may have no round has a block before it that skips it.
pub(crate) struct Code {
    look_up: LookUp,
    take: Take,
    check: Check,
    hold: Hold,
    end: End,
}

/// A look-up in an index.
struct LookUp {
    hash: BlockId,
    compare: BlockId,
    next: BlockId,
    found: BlockId,
}

/// Taking a row into the transaction.
struct Take {
    access: BlockId,
    read: Copy,
    accessed: BlockId,
}

/// What a commit does before it locks anything.
struct Check {
    finish: BlockId,
    sort: BlockId,
    any_order: BlockId,
    order: BlockId,
    latest: BlockId,
    any_early_write: BlockId,
    early_write: BlockId,
    any_early_read: BlockId,
    early_read: BlockId,
}

/// Locking what is written, and validating what was read.
struct Hold {
    any_lock: BlockId,
    lock: BlockId,
    lease: BlockId,
    any_validate: BlockId,
    validate: BlockId,
    extend: BlockId,
    validated: BlockId,
}

/// Writing back.
struct End {
    commit: BlockId,
    write: BlockId,
    write_copy: Copy,
    written: BlockId,
    clean_up: BlockId,
    finished: BlockId,
}

/// The block before a loop that may have no round.
fn any(assembler: &mut Assembler) -> BlockId {
    assembler.operation(&[SLOT_NUMBER], &[FLAGS]).branch()
}

/// The end of a loop over notes.
fn each(assembler: &mut Assembler) -> &mut Assembler {
    assembler.operation(&[SLOT_NUMBER], &[SLOT_NUMBER]).operation(&[SLOT_NUMBER], &[FLAGS])
}

impl Code {
    pub(crate) fn new(assembler: &mut Assembler) -> Self {
        Self {
            look_up: LookUp::new(assembler),
            take: Take::new(assembler),
            check: Check::new(assembler),
            hold: Hold::new(assembler),
            end: End::new(assembler),
        }
    }
}

impl LookUp {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            hash: assembler
                .then(overhead(21))
                .then(clock)
                .load(&[TRANSACTION], THREAD)
                .load(&[THREAD], THREAD)
                .load(&[INDEX], METHOD)
                .load(&[METHOD], METHOD)
                .then(overhead(9))
                .load(&[INDEX], BUCKET_COUNT)
                // The division takes several operations' time; it is one instruction.
                .operation(&[KEY, BUCKET_COUNT], &[BUCKET])
                .operation(&[BUCKET, BUCKET_COUNT], &[OTHER])
                .then(overhead(2))
                .load(&[INDEX], PART)
                .load(&[PART], PART)
                .operation(&[BUCKET], &[BUCKET])
                .operation(&[BUCKET, PART], &[BUCKET])
                .load(&[INDEX], TABLE)
                .load(&[TABLE], OTHER)
                .then(overhead(2))
                .load(&[BUCKET], NODE_AT)
                .operation(&[NODE_AT], &[FLAGS])
                .branch(),
            compare: assembler.load(&[NODE_AT], FOUND).operation(&[FOUND, KEY], &[FLAGS]).branch(),
            next: assembler.load(&[NODE_AT], NODE_AT).operation(&[NODE_AT], &[FLAGS]).branch(),
            found: assembler
                .load(&[NODE_AT], FOUND)
                .operation(&[FOUND, KEY], &[OTHER])
                .then(overhead(1))
                .load(&[NODE_AT], ITEM)
                .then(overhead(19))
                .then(account)
                .then(overhead(8))
                .return_(),
        }
    }
}

impl Take {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            access: assembler
                .then(overhead(21))
                .then(clock)
                .load(&[TRANSACTION], SLOT_NUMBER)
                .load(&[TRANSACTION], NOTES)
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .then(overhead(2))
                .load(&[NOTE], COPY_ROW)
                .then(overhead(10))
                .load(&[ROW_AT], TABLE)
                .store(&[COPY_ROW, TABLE])
                .load(&[ROW_AT], MANAGER_AT)
                .then(overhead(10))
                .load(&[MANAGER_AT], TIMES)
                .operation(&[TIMES], &[OTHER])
                .then(overhead(1))
                .load(&[MANAGER_AT], SOURCE)
                .then(overhead(3))
                .fall(),
            read: Copy::new(assembler, SOURCE, COPY_ROW),
            accessed: assembler
                .then(overhead(3))
                .load(&[MANAGER_AT], OTHER)
                .operation(&[OTHER, TIMES], &[OTHER])
                .then(overhead(1))
                .then(work(TIMES, WRITTEN, 2))
                .then(work(TIMES, LEASE, 4))
                .store(&[TRANSACTION, WRITTEN])
                .store(&[TRANSACTION, LEASE])
                .then(overhead(8))
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .store(&[NOTE])
                .store(&[NOTE, ROW_AT])
                .load(&[TRANSACTION], WRITTEN)
                .store(&[NOTE, WRITTEN])
                .load(&[TRANSACTION], LEASE)
                .store(&[NOTE, LEASE])
                .operation(&[SLOT_NUMBER], &[SLOT_NUMBER])
                .store(&[TRANSACTION, SLOT_NUMBER])
                .then(overhead(3))
                .then(account)
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .load(&[NOTE], COPY_ROW)
                .then(overhead(22))
                .load(&[COPY_ROW], COPIED)
                .return_(),
        }
    }
}

impl Check {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            finish: assembler
                .then(overhead(12))
                .then(clock)
                .load(&[TRANSACTION], LATEST)
                .load(&[TRANSACTION], NOTES)
                .then(work(LATEST, SLOT_NUMBER, 12))
                .fall(),
            sort: assembler
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .load(&[NOTE], KIND)
                .operation(&[KIND], &[OTHER])
                .then(overhead(3))
                .then(each)
                .branch(),
            any_order: any(assembler),
            order: assembler
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .load(&[NOTE], FROM)
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .load(&[NOTE], TO)
                .load(&[FROM], FOUND)
                .load(&[TO], OTHER)
                .operation(&[FOUND, OTHER], &[OTHER])
                .then(overhead(11))
                .then(each)
                .branch(),
            latest: assembler
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .load(&[NOTE], KIND)
                .load(&[NOTE], TIMES)
                .operation(&[TIMES, COMMIT], &[COMMIT])
                .then(overhead(3))
                .then(each)
                .branch(),
            any_early_write: any(assembler),
            early_write: assembler
                .then(noted)
                .then(overhead(3))
                .load(&[MANAGER_AT], TIMES)
                .load(&[NOTE], WRITTEN)
                .operation(&[TIMES, WRITTEN], &[OTHER])
                .then(overhead(2))
                .then(each)
                .branch(),
            any_early_read: any(assembler),
            early_read: assembler
                .then(noted)
                .then(overhead(4))
                .load(&[MANAGER_AT], TIMES)
                .then(work(TIMES, LEASE, 9))
                .then(overhead(6))
                .then(each)
                .branch(),
        }
    }
}

impl Hold {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            any_lock: any(assembler),
            lock: assembler
                .then(noted)
                .then(overhead(4))
                .load(&[MANAGER_AT], TIMES)
                .then(work(TIMES, OTHER, 3))
                .update_bytes(8, &[MANAGER_AT, OTHER])
                .then(overhead(3))
                .load(&[MANAGER_AT], TIMES)
                .load(&[NOTE], WRITTEN)
                .operation(&[TIMES, WRITTEN], &[OTHER])
                .then(overhead(3))
                .then(each)
                .branch(),
            lease: assembler
                .then(noted)
                .then(overhead(3))
                .load(&[MANAGER_AT], TIMES)
                .then(work(TIMES, LEASE, 5))
                .operation(&[LEASE, COMMIT], &[COMMIT])
                .then(overhead(2))
                .then(each)
                .branch(),
            any_validate: any(assembler),
            validate: assembler
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .load(&[NOTE], LEASE)
                .operation(&[LEASE, COMMIT], &[FLAGS])
                .branch(),
            extend: assembler
                .load(&[NOTE], WRITTEN)
                .load(&[NOTE], ROW_AT)
                .load(&[ROW_AT], MANAGER_AT)
                .load(&[TRANSACTION], THREAD)
                .load(&[THREAD], THREAD)
                .then(overhead(9))
                .load(&[MANAGER_AT], TIMES)
                .then(work(TIMES, OTHER, 12))
                .then(work(COMMIT, LEASE, 6))
                .update_bytes(8, &[MANAGER_AT, LEASE, OTHER])
                .then(overhead(4))
                .fall(),
            validated: assembler.then(each).branch(),
        }
    }
}

impl End {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            commit: assembler
                .load(&[TRANSACTION], LATEST)
                .operation(&[LATEST, COMMIT], &[LATEST])
                .store(&[TRANSACTION, LATEST])
                .then(overhead(3))
                .operation(&[SLOT_NUMBER], &[FLAGS])
                .branch(),
            write: assembler
                .then(noted)
                .load(&[NOTE], COPY_ROW)
                .then(overhead(6))
                .load(&[MANAGER_AT], TIMES)
                .then(work(TIMES, OTHER, 2))
                .operation(&[OTHER, COMMIT], &[OTHER])
                .store(&[MANAGER_AT, OTHER])
                .load(&[MANAGER_AT], SOURCE)
                .then(overhead(3))
                .fall(),
            write_copy: Copy::new(assembler, COPY_ROW, SOURCE),
            written: assembler
                .then(overhead(6))
                .load(&[MANAGER_AT], TIMES)
                .operation(&[TIMES], &[OTHER])
                .store(&[MANAGER_AT, OTHER])
                .then(overhead(2))
                .then(each)
                .branch(),
            clean_up: assembler
                .load(&[NOTES, SLOT_NUMBER], NOTE)
                .load(&[NOTE], ROW_AT)
                .load(&[NOTE], KIND)
                .load(&[NOTE], COPY_ROW)
                .then(overhead(12))
                .then(each)
                .branch(),
            finished: assembler.then(account).then(overhead(14)).return_(),
        }
    }
}

/// What a transaction notes of an access.
#[derive(Clone, Copy, Debug)]
struct Access {
    table: Table,
    row: usize,
    writes: bool,
    /// When the row was written and until when that holds, as they were read.
    written: u64,
    lease: u64,
}

/// Runs one thread's transactions, with the timestamps of all rows.
pub(crate) struct Engine {
    pub(crate) code: Code,
    desk: Desk,
    /// Of each row: when it was written, and for how much longer that holds at least.
    written: Vec<u32>,
    lease: Vec<u16>,
    accesses: Vec<Access>,
}

/// Bits of a lease in the word of timestamps.
const LEASE_BITS: u32 = 15;

impl Engine {
    pub(crate) fn new(code: Code, desk: Desk, tables: &Tables) -> Self {
        let (written, lease) = (vec![0; tables.rows], vec![0; tables.rows]);
        Self { code, desk, written, lease, accesses: Vec::new() }
    }

    /// When a row was written.
    #[cfg(test)]
    pub(crate) fn written(&self, table: &Table, row: usize) -> u32 {
        self.written[table.first + row]
    }

    /// Looks a row up by its key, of which the table's rows have consecutive ones.
    pub(crate) fn look_up(&self, out: &mut impl Emitter, index: &Index, table: &Table, row: usize) {
        self.follow(out, index, row % index.buckets, index.chain(*table, row));
    }

    /// Follows a bucket's list along `nodes`, of which the last is the one that is looked for.
    pub(crate) fn follow(
        &self,
        out: &mut impl Emitter,
        index: &Index,
        bucket: usize,
        nodes: impl Iterator<Item = u64>,
    ) {
        let Self { code, desk, .. } = self;
        out.enter(code.look_up.hash);
        desk.load(out, &[word::THREAD, word::THREAD_ID, word::METHODS, word::METHOD]);
        desk.load(out, &[word::BUCKET_COUNT, word::BUCKETS, word::PART, word::TABLE, word::NAME]);
        index.first_node.load(out, bucket);
        let mut last = None;
        for node in nodes {
            if let Some(last) = last {
                out.enter(code.look_up.next);
                out.load(last + field::NODE_NEXT, 8);
            }
            out.enter(code.look_up.compare);
            out.load(node + field::NODE_KEY, 8);
            last = Some(node);
        }
        let found = last.expect("every key that is asked for has a node");
        out.enter(code.look_up.found);
        out.load(found + field::NODE_KEY, 8);
        out.load(found + field::NODE_ITEMS, 8);
        desk.account(out);
    }

    /// Takes a row into the transaction, which gets a copy of it; returns the copy's data.
    pub(crate) fn access(
        &mut self,
        out: &mut impl Emitter,
        table: &Table,
        row: usize,
        writes: bool,
    ) -> u64 {
        let Self { code, desk, .. } = self;
        let slot = self.accesses.len();
        let (row_at, manager) = (table.row(row), table.manager(row));
        let copy = (desk.copy_row.address(slot), desk.copy.address(slot));
        out.enter(code.take.access);
        desk.load(out, &[word::ROWS, word::NOTES, word::NOTE_AT + slot]);
        desk.note(out, slot, field::NOTE_COPY);
        out.load(row_at + field::ROW_TABLE, 8);
        out.store(copy.0 + field::ROW_TABLE, 8);
        out.load(row_at + field::ROW_MANAGER, 8);
        out.load(manager + field::MANAGER_TIMES, 8);
        out.load(manager + field::MANAGER_ROW, 8);
        code.take.read.run(out, desk, table.data_bytes, (row_at, table.data(row)), copy);
        out.enter(code.take.accessed);
        out.load(manager + field::MANAGER_TIMES, 8);
        desk.word.store(out, word::WRITTEN);
        desk.word.store(out, word::LEASE);
        desk.load(out, &[word::NOTE_AT + slot]);
        let note = desk.note.address(slot);
        out.store(note + field::NOTE_TYPE, 8);
        out.store(note + field::NOTE_ROW, 8);
        desk.load(out, &[word::WRITTEN]);
        out.store(note + field::NOTE_WRITTEN, 8);
        desk.load(out, &[word::LEASE]);
        out.store(note + field::NOTE_LEASE, 8);
        desk.word.store(out, word::ROWS);
        desk.account(out);
        desk.load(out, &[word::NOTE_AT + slot]);
        desk.note(out, slot, field::NOTE_COPY);
        out.load(copy.0 + field::ROW_DATA, 8);
        let number = table.first + row;
        let written = u64::from(self.written[number]);
        let lease = written + u64::from(self.lease[number]);
        self.accesses.push(Access { table: *table, row, writes, written, lease });
        copy.1
    }

    /// The next access's rows and their manager, as [`noted`] loads them.
    fn noted(&self, out: &mut impl Emitter, slot: usize) -> u64 {
        let Access { table, row, .. } = self.accesses[slot];
        self.desk.load(out, &[word::NOTE_AT + slot]);
        self.desk.note(out, slot, field::NOTE_ROW);
        out.load(table.row(row) + field::ROW_MANAGER, 8);
        table.manager(row)
    }

    /// Validates the transaction, gives it a timestamp, and writes its rows back. With one thread it
    /// always succeeds.
    pub(crate) fn finish(&mut self, out: &mut impl Emitter) {
        let slots = 0..self.accesses.len();
        let (mut writes, reads): (Vec<usize>, Vec<usize>) =
            slots.clone().partition(|&slot| self.accesses[slot].writes);
        let (code, desk) = (&self.code, &self.desk);
        out.enter(code.check.finish);
        desk.load(out, &[word::LATEST, word::NOTES]);
        for slot in slots.clone() {
            out.enter(code.check.sort);
            desk.load(out, &[word::NOTE_AT + slot]);
            desk.note(out, slot, field::NOTE_TYPE);
        }
        self.order(out, &mut writes);
        let mut commit = 0;
        for slot in slots.clone() {
            out.enter(code.check.latest);
            desk.load(out, &[word::NOTE_AT + slot]);
            desk.note(out, slot, field::NOTE_TYPE);
            let access = &self.accesses[slot];
            if access.writes {
                desk.note(out, slot, field::NOTE_LEASE);
                commit = commit.max(access.lease + 1);
            } else {
                desk.note(out, slot, field::NOTE_WRITTEN);
                commit = commit.max(access.written);
            }
        }
        out.enter(code.check.any_early_write);
        for &slot in &writes {
            out.enter(code.check.early_write);
            let manager = self.noted(out, slot);
            out.load(manager + field::MANAGER_TIMES, 8);
            desk.note(out, slot, field::NOTE_WRITTEN);
        }
        out.enter(code.check.any_early_read);
        for &slot in &reads {
            out.enter(code.check.early_read);
            let manager = self.noted(out, slot);
            out.load(manager + field::MANAGER_TIMES, 8);
        }
        out.enter(code.hold.any_lock);
        for &slot in &writes {
            out.enter(code.hold.lock);
            let times = self.noted(out, slot) + field::MANAGER_TIMES;
            out.load(times, 8);
            out.load(times, 8);
            out.store(times, 8);
            out.load(times, 8);
            desk.note(out, slot, field::NOTE_WRITTEN);
        }
        for &slot in &writes {
            out.enter(code.hold.lease);
            let manager = self.noted(out, slot);
            out.load(manager + field::MANAGER_TIMES, 8);
        }
        self.validate(out, &reads, commit);
        self.write_back(out, &writes, commit);
        for slot in slots.rev() {
            out.enter(self.code.end.clean_up);
            self.desk.load(out, &[word::NOTE_AT + slot]);
            self.desk.note(out, slot, field::NOTE_ROW);
            self.desk.note(out, slot, field::NOTE_TYPE);
            self.desk.note(out, slot, field::NOTE_COPY);
        }
        out.enter(self.code.end.finished);
        self.desk.account(out);
        self.accesses.clear();
    }

    /// Sorts the rows to be written by key: a bubble sort.
    fn order(&self, out: &mut impl Emitter, writes: &mut [usize]) {
        let Self { code, desk, accesses, .. } = self;
        out.enter(code.check.any_order);
        for last in (1..writes.len()).rev() {
            for place in 0..last {
                out.enter(code.check.order);
                let pair = [writes[place], writes[place + 1]];
                for slot in pair {
                    desk.load(out, &[word::NOTE_AT + slot]);
                    desk.note(out, slot, field::NOTE_ROW);
                }
                let [key, next] = pair.map(|slot| {
                    let Access { table, row, .. } = accesses[slot];
                    out.load(table.row(row) + field::ROW_KEY, 8);
                    row
                });
                if key > next {
                    writes.swap(place, place + 1);
                }
            }
        }
    }

    /// Makes what was read hold until the transaction's timestamp.
    fn validate(&mut self, out: &mut impl Emitter, reads: &[usize], commit: u64) {
        out.enter(self.code.hold.any_validate);
        for &slot in reads {
            out.enter(self.code.hold.validate);
            self.desk.load(out, &[word::NOTE_AT + slot]);
            self.desk.note(out, slot, field::NOTE_LEASE);
            let Access { table, row, written, lease, .. } = self.accesses[slot];
            if lease < commit {
                out.enter(self.code.hold.extend);
                self.desk.note(out, slot, field::NOTE_WRITTEN);
                self.desk.note(out, slot, field::NOTE_ROW);
                out.load(table.row(row) + field::ROW_MANAGER, 8);
                self.desk.load(out, &[word::THREAD, word::THREAD_ID]);
                let times = table.manager(row) + field::MANAGER_TIMES;
                out.load(times, 8);
                out.load(times, 8);
                out.store(times, 8);
                // A lease that is too long for its bits puts off the time of writing instead.
                let (longer, bits) = (commit - written, (1 << LEASE_BITS) - 1);
                let number = table.first + row;
                self.written[number] = (written + (longer & !bits)) as u32;
                self.lease[number] = (longer & bits) as u16;
            }
            out.enter(self.code.hold.validated);
        }
    }

    fn write_back(&mut self, out: &mut impl Emitter, writes: &[usize], commit: u64) {
        out.enter(self.code.end.commit);
        self.desk.load(out, &[word::LATEST]);
        self.desk.word.store(out, word::LATEST);
        for &slot in writes {
            let Access { table, row, .. } = self.accesses[slot];
            out.enter(self.code.end.write);
            let manager = self.noted(out, slot);
            let times = manager + field::MANAGER_TIMES;
            self.desk.note(out, slot, field::NOTE_COPY);
            out.load(times, 8);
            out.store(times, 8);
            out.load(manager + field::MANAGER_ROW, 8);
            let copy = (self.desk.copy_row.address(slot), self.desk.copy.address(slot));
            let own = (table.row(row), table.data(row));
            self.code.end.write_copy.run(out, &self.desk, table.data_bytes, copy, own);
            out.enter(self.code.end.written);
            out.load(times, 8);
            out.store(times, 8);
            self.written[table.first + row] = commit as u32;
            self.lease[table.first + row] = 0;
        }
    }
}

/// The greatest number, at least 1, that is good enough; all below it must be so too.
pub(crate) fn greatest(fits: impl Fn(usize) -> bool) -> usize {
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

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::ops::Range;
    use std::sync::Arc;

    use flatwalk_trace::{Block, Operands};

    use super::*;

    /// Follows pointers through a trace: the values of those in memory and in registers.
    pub(crate) struct Pointers {
        memory: HashMap<u64, u64>,
        registers: HashMap<u8, u64>,
        tables: Vec<Range<u64>>,
    }

    impl Pointers {
        /// The memory after loading, but for lists of nodes and of items.
        pub(crate) fn new(tables: &[Table]) -> Self {
            let mut memory = HashMap::new();
            for table in tables {
                for row in 0..table.rows {
                    let (row_at, manager) = (table.row(row), table.manager(row));
                    memory.insert(row_at + field::ROW_MANAGER, manager);
                    memory.insert(row_at + field::ROW_DATA, table.data(row));
                    memory.insert(manager + field::MANAGER_ROW, row_at);
                    for index in 0..table.indices {
                        memory.insert(table.item(row, index) + field::ITEM_ROW, row_at);
                    }
                }
            }
            let end = |table: &Table| {
                table.base + table.rows as u64 * row_bytes(table.data_bytes, table.indices)
            };
            let tables = tables.iter().map(|table| table.base..end(table)).collect();
            Self { memory, registers: HashMap::new(), tables }
        }

        /// Loads a table into an index by the original's rules.
        pub(crate) fn load(&mut self, table: &Table, index: &Index, key: impl Fn(usize) -> u64) {
            let mut nodes = HashMap::new();
            for row in 0..table.rows {
                let (node, item) = (table.node(row, index.number), table.item(row, index.number));
                if let Some(&node) = nodes.get(&key(row)) {
                    let items: u64 = node + field::NODE_ITEMS;
                    let before = self.memory.insert(items, item).unwrap();
                    self.memory.insert(item + field::ITEM_NEXT, before);
                    continue;
                }
                nodes.insert(key(row), node);
                self.memory.insert(node + field::NODE_ITEMS, item);
                let bucket = key(row) % index.buckets as u64;
                let mut link = index.first_node.address(bucket as usize);
                while let Some(&other) = self.memory.get(&link) {
                    link = other + field::NODE_NEXT;
                }
                self.memory.insert(link, node);
            }
        }

        /// Runs a block: what it accesses of the tables must be where a register of the instruction
        /// points. Returns the number of loads from the tables.
        pub(crate) fn run(&mut self, block: &Arc<Block>, addresses: &[u64]) -> usize {
            let mut accesses = block.accesses.iter().zip(addresses).peekable();
            let mut loads = 0;
            for (number, instruction) in block.instructions.iter().enumerate() {
                let Operands::Registers { reads, writes, .. } = instruction.operands else {
                    unreachable!("workloads say their registers")
                };
                let read = |registers: &HashMap<u8, u64>, register: u8| {
                    registers.get(&register).copied().unwrap_or(0)
                };
                let mut value = read(&self.registers, reads[0]);
                while let Some((access, &address)) = accesses.peek().copied() {
                    if usize::from(access.instruction) != number {
                        break;
                    }
                    accesses.next();
                    if self.tables.iter().any(|table| table.contains(&address)) {
                        loads += usize::from(!access.store);
                        let near = |&&register: &&u8| {
                            let pointer = read(&self.registers, register);
                            (pointer..pointer + COPY).contains(&address)
                        };
                        assert!(
                            reads.iter().find(near).is_some(),
                            "{:x}: {address:x} does not depend on its pointer",
                            instruction.pc
                        );
                    }
                    if access.store {
                        let last = reads.iter().rev().find(|&&register| register != 0).unwrap();
                        self.memory.insert(address, read(&self.registers, *last));
                    } else {
                        value = self.memory.get(&address).copied().unwrap_or(0);
                    }
                }
                for register in writes.into_iter().filter(|&register| register != 0) {
                    self.registers.insert(register, value);
                }
            }
            loads
        }
    }

    #[test]
    fn objects_lie_in_pages_of_their_size() {
        let mut layout = Layout::new(&crate::Arguments::new(1 << 30, 1));
        let mut tables = Tables::default();
        let all = [(192, 128, 1), (1024, 768, 2), (33, 384, 1)]
            .map(|(rows, data, indices)| tables.table(&mut layout, rows, data, indices));
        // What each page has: objects of one size, and none twice.
        let (mut sizes, mut taken) = (HashMap::new(), std::collections::HashSet::new());
        for table in &all {
            for row in 0..table.rows {
                let entries = (0..table.indices)
                    .flat_map(|index| [(table.item(row, index), 32), (table.node(row, index), 32)]);
                let own = [
                    (table.row(row), 64),
                    (table.manager(row), 64),
                    (table.data(row), table.data_bytes),
                ];
                for (address, size) in own.into_iter().chain(entries) {
                    assert!(address.is_multiple_of(size.min(64)));
                    if table.rows as u64 >= GROUP {
                        assert_eq!(*sizes.entry(address / 4096).or_insert(size), size);
                    }
                    (address..address + size).for_each(|byte| assert!(taken.insert(byte)));
                }
            }
        }
        assert_eq!(tables.rows, 1249);
    }
}
