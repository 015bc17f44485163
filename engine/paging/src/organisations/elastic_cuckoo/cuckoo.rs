//! An elastic cuckoo table: lines in several ways, each of which can hold a line in one slot only, and
//! ways that grow and shrink little by little while they are used.
//!
//! Source: Skarlatos, Kokolis, Xu, Torrellas (ASPLOS 2020), sections 3 and 4.

use super::format::Format;
use crate::addr::Physical;
use crate::entry::Entry;
use crate::error::TableError;
use crate::geometry::Level;
use crate::keyed::line::{TaggedLine, lines_shift, with_one};
use crate::keyed::{hash, statistics_of};
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, LINE_BYTES, Line, TableMemory};

/// Ways that a table can have.
pub(super) const MOST_WAYS: usize = 4;
/// The fewest lines in a way: one frame of 4 KiB.
const LEAST_SHIFT: u8 = 6;
/// Lines displaced for one insertion before it is given up.
const MOST_DISPLACED: usize = 64;
/// Slots that each change carries over while a table is resized: enough that growing or shrinking ends
/// long before the new ways are full.
const CARRIED_PER_CHANGE: usize = 16;
/// Where allocation of larger ways was refused, it is tried again when occupancy rose by this share.
const RETRY_SHARE: u64 = 64;

/// When a table grows and shrinks, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elasticity {
    /// It grows when more of 1000 slots than this are in use …
    pub(super) grow_permille: u32,
    /// … to this power of two times its size.
    pub(super) grow_shift: u8,
    /// It shrinks to half when fewer of 1000 slots than this are in use.
    pub(super) shrink_permille: u32,
}

/// Lines that were put into a way: what is known of their place elsewhere is stale.
pub(super) type Moves = Vec<(u64, u8)>;

/// One way, and the one that takes its place while the table is resized.
#[derive(Clone, Copy, Debug)]
struct Way<Out> {
    base: Out,
    next: Out,
    /// The rehash pointer: slots below it have been carried over to `next`.
    carried: u64,
    salt: u64,
}

/// The table. What it holds is in memory; what is here are the registers that the hardware has too,
/// and the operating system's count of lines in use.
#[derive(Clone, Debug)]
pub(super) struct Cuckoo<Out> {
    format: Format,
    ways: Box<[Way<Out>]>,
    /// log2 of the lines in a way.
    shift: u8,
    /// The same of the ways that take their place.
    next_shift: Option<u8>,
    smallest: u8,
    elasticity: Elasticity,
    used: u64,
    /// Lines in use at which growing is tried again.
    retry_at: u64,
    random: u64,
    resizes: Resizes,
}

impl<Out: Physical> Cuckoo<Out> {
    /// An empty table with `ways` ways of 2^`shift` lines, or fewer where memory has no such blocks;
    /// `number` chooses its hash functions.
    pub(super) fn new(
        memory: &mut dyn TableMemory<Out>,
        format: Format,
        number: u64,
        ways: usize,
        shift: u8,
        elasticity: Elasticity,
    ) -> Result<Self, TableError> {
        debug_assert!((2..=MOST_WAYS).contains(&ways));
        let mut resizes = Resizes::default();
        for fits in (LEAST_SHIFT..=shift.max(LEAST_SHIFT)).rev() {
            if let Some(bases) = allocate(memory, ways, fits) {
                let way = |(i, &base): (u64, &Out)| Way {
                    base,
                    next: base,
                    carried: 0,
                    salt: hash::salt(number * MOST_WAYS as u64 + i),
                };
                return Ok(Self {
                    format,
                    ways: (0..).zip(&bases).map(way).collect(),
                    shift: fits,
                    next_shift: None,
                    smallest: fits,
                    elasticity,
                    used: 0,
                    retry_at: 0,
                    random: 0x9e37_79b9_7f4a_7c15,
                    resizes,
                });
            }
            resizes.curtailed = 1;
        }
        Err(TableError::OutOfMemory)
    }

    pub(super) fn ways(&self) -> u8 {
        self.ways.len() as u8
    }

    pub(super) fn resizes(&self) -> Resizes {
        self.resizes
    }

    /// The ways in use, and those that take their place; `name` is what they are called, `level` that of
    /// the pages that they serve.
    pub(super) fn statistics(&self, name: &str, level: Level) -> Vec<NodeStatistics> {
        let ways = self.ways.len() as u64;
        let blocks = std::iter::once(self.shift)
            .chain(self.next_shift)
            .map(|shift| (format!("{name} way"), LINE_BYTES << shift, ways));
        // Lines in use are all counted with the ways that are filled now.
        statistics_of(blocks, level, self.used)
    }

    /// Address of the slot for `key` in `way`, and of the way that it is in.
    #[inline]
    pub(super) fn slot(&self, way: u8, key: u64) -> (Out, Out) {
        let Way { base, next, carried, salt } = self.ways[usize::from(way)];
        let hash = hash::mix(key ^ salt);
        let index = hash >> (64 - self.shift);
        if index >= carried {
            return (base.offset(index * LINE_BYTES), base);
        }
        let index = hash >> (64 - self.next_shift.unwrap_or(self.shift));
        (next.offset(index * LINE_BYTES), next)
    }

    /// Where the line for `key` is, and in which way.
    pub(super) fn find(&self, memory: &dyn EntryMemory<Out>, key: u64) -> Option<(Out, u8)> {
        (0..self.ways()).find_map(|way| {
            let (at, _) = self.slot(way, key);
            self.format.matches(&memory.read_line(at), key).then_some((at, way))
        })
    }

    fn is_vacant(&self, memory: &dyn EntryMemory<Out>, at: Out) -> bool {
        self.format.is_vacant(memory.read(at.offset(8 * self.format.vacancy_word())))
    }

    /// Puts in a line for a key that has none.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no room and no memory to make it; nothing that the
    /// table holds is lost then.
    pub(super) fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        line: Line,
        moves: &mut Moves,
    ) -> Result<(), TableError> {
        while !self.place(memory, line, None, moves) {
            let more = self.next_shift.is_some() || self.grow(memory);
            if !more || !self.carry(memory, moves) {
                return Err(TableError::OutOfMemory);
            }
        }
        self.used += 1;
        let (used, slots) = (self.used, self.slots());
        let crowded = used * 1000 > slots * u64::from(self.elasticity.grow_permille);
        if self.next_shift.is_none() && crowded && used >= self.retry_at && !self.grow(memory) {
            self.retry_at = used + slots.div_ceil(RETRY_SHARE);
        }
        self.carry_some(memory, moves);
        Ok(())
    }

    /// Takes the line at `at` away.
    pub(super) fn remove(&mut self, memory: &mut dyn TableMemory<Out>, at: Out, moves: &mut Moves) {
        memory.write_line(at, &[0; 8]);
        self.used -= 1;
        let sparse = self.used * 1000 < self.slots() * u64::from(self.elasticity.shrink_permille);
        if self.next_shift.is_none() && sparse && self.shift > self.smallest {
            let begun = self.resize(memory, self.shift - 1);
            let Resizes { shrunk, refused, .. } = &mut self.resizes;
            *(if begun { shrunk } else { refused }) += 1;
        }
        self.carry_some(memory, moves);
    }

    /// Slots of all ways.
    fn slots(&self) -> u64 {
        (self.ways.len() as u64) << self.shift
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Puts `line`, which has just been displaced from way `from`, somewhere else, displacing others
    /// as needed. False if that takes too long: everything is as it was then.
    fn place(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        line: Line,
        from: Option<u8>,
        moves: &mut Moves,
    ) -> bool {
        let ways = u64::from(self.ways());
        let before = moves.len();
        let (mut line, mut from) = (line, from);
        let mut displaced: Vec<(Out, Line)> = Vec::new();
        loop {
            let key = self.format.key(&line);
            let random = self.random();
            let mut others =
                (0..ways).map(|i| ((i + random) % ways) as u8).filter(|&way| Some(way) != from);
            if let Some(way) =
                others.clone().find(|&way| self.is_vacant(memory, self.slot(way, key).0))
            {
                memory.write_line(self.slot(way, key).0, &line);
                moves.push((key, way));
                return true;
            }
            let way = others.next().expect("there are two ways or more");
            if displaced.len() == MOST_DISPLACED {
                for (at, line) in displaced.into_iter().rev() {
                    memory.write_line(at, &line);
                }
                moves.truncate(before);
                return false;
            }
            let (at, _) = self.slot(way, key);
            let victim = memory.read_line(at);
            memory.write_line(at, &line);
            moves.push((key, way));
            displaced.push((at, victim));
            (line, from) = (victim, Some(way));
        }
    }

    /// Begins to grow; false if there is no memory for it.
    fn grow(&mut self, memory: &mut dyn TableMemory<Out>) -> bool {
        let wanted = self.shift + self.elasticity.grow_shift;
        for shift in (self.shift + 1..=wanted).rev() {
            if self.resize(memory, shift) {
                self.resizes.grown += 1;
                self.resizes.curtailed += u64::from(shift < wanted);
                return true;
            }
        }
        self.resizes.refused += 1;
        false
    }

    /// Begins to carry over to ways of 2^`shift` lines; false if there is no memory for them.
    fn resize(&mut self, memory: &mut dyn TableMemory<Out>, shift: u8) -> bool {
        let Some(bases) = allocate(memory, self.ways.len(), shift) else { return false };
        for (way, base) in self.ways.iter_mut().zip(bases) {
            way.next = base;
        }
        self.next_shift = Some(shift);
        true
    }

    /// Carries some slots over, if the table is being resized.
    fn carry_some(&mut self, memory: &mut dyn TableMemory<Out>, moves: &mut Moves) {
        for _ in 0..CARRIED_PER_CHANGE {
            if self.next_shift.is_none() || !self.carry(memory, moves) {
                return;
            }
        }
    }

    /// Carries the next slot over, and ends the resizing after the last. False if its line finds no
    /// place in the new ways for now.
    fn carry(&mut self, memory: &mut dyn TableMemory<Out>, moves: &mut Moves) -> bool {
        let lines = 1 << self.shift;
        let (way, _) = (0..self.ways())
            .map(|way| (way, self.ways[usize::from(way)].carried))
            .min_by_key(|&(_, carried)| carried)
            .expect("there are ways");
        let index = self.ways[usize::from(way)].carried;
        if index < lines {
            let old = self.ways[usize::from(way)].base.offset(index * LINE_BYTES);
            self.ways[usize::from(way)].carried += 1;
            if !self.is_vacant(memory, old) && !self.carry_line(memory, old, way, moves) {
                self.ways[usize::from(way)].carried -= 1;
                return false;
            }
        }
        if self.ways.iter().all(|way| way.carried == lines) {
            for way in &mut self.ways {
                memory.free(way.base, lines_shift(self.shift));
                (way.base, way.carried) = (way.next, 0);
            }
            self.shift = self.next_shift.take().unwrap_or(self.shift);
            self.retry_at = 0;
        }
        true
    }

    /// Moves the line at `old` to its slot in the same, new way, from where it may displace another.
    fn carry_line(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        old: Out,
        way: u8,
        moves: &mut Moves,
    ) -> bool {
        let line = memory.read_line(old);
        memory.write_line(old, &[0; 8]);
        let key = self.format.key(&line);
        let (new, _) = self.slot(way, key);
        let victim = (!self.is_vacant(memory, new)).then(|| memory.read_line(new));
        memory.write_line(new, &line);
        moves.push((key, way));
        if let Some(victim) = victim
            && !self.place(memory, victim, Some(way), moves)
        {
            memory.write_line(new, &victim);
            memory.write_line(old, &line);
            moves.pop();
            return false;
        }
        true
    }

    /// Gives all ways back.
    pub(super) fn destroy(self, memory: &mut dyn TableMemory<Out>) {
        for way in &self.ways {
            memory.free(way.base, lines_shift(self.shift));
            if let Some(shift) = self.next_shift {
                memory.free(way.next, lines_shift(shift));
            }
        }
    }

    // ---- lines of page-table entries -----------------------------------------------------------

    /// The line with the entry of page `number`, if there is one.
    pub(super) fn line(
        &self,
        memory: &dyn EntryMemory<Out>,
        number: u64,
    ) -> Option<TaggedLine<Out>> {
        self.find(memory, number >> 3).map(|(at, _)| TaggedLine(at))
    }

    /// Puts in the entry of a page that has none.
    pub(super) fn insert_entry(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        entry: Entry,
        moves: &mut Moves,
    ) -> Result<(), TableError> {
        if let Some(there) = self.line(memory, number) {
            there.write(memory, number & 7, entry);
            there.count_up(memory, 1);
            return Ok(());
        }
        self.insert(memory, with_one(number, entry), moves)
    }

    /// Takes the entry of page `number` away, which is present.
    pub(super) fn remove_entry(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        moves: &mut Moves,
    ) {
        let Some(line) = self.line(memory, number) else { return };
        if !line.take(memory, number & 7) {
            self.remove(memory, line.0, moves);
        }
    }
}

/// Blocks for `ways` ways of 2^`shift` lines; all or none.
fn allocate<Out: Physical>(
    memory: &mut dyn TableMemory<Out>,
    ways: usize,
    shift: u8,
) -> Option<Vec<Out>> {
    let mut bases = Vec::with_capacity(ways);
    while bases.len() < ways {
        let Some(base) = memory.allocate(lines_shift(shift)) else {
            for base in bases {
                memory.free(base, lines_shift(shift));
            }
            return None;
        };
        bases.push(base);
    }
    Some(bases)
}
