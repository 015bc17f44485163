//! An elastic cuckoo table: lines in several ways, each of which can hold a line in one slot only, and
//! ways that grow and shrink little by little while they are used.
//!
//! Source: Skarlatos, Kokolis, Xu, Torrellas (ASPLOS 2020), sections 3 and 4; see
//! `organisations/elastic_cuckoo.rs`.

use super::hash;
use super::line::{Format, LINE_BYTES, Line, lines_shift, present, with_present, with_tag_of};
use crate::addr::Physical;
use crate::entry::Entry;
use crate::memory::{EntryMemory, TableMemory};
use crate::tree::TableError;

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
pub struct Elasticity {
    /// It grows when more of 1000 slots than this are in use …
    pub grow_permille: u32,
    /// … to this power of two times its size.
    pub grow_shift: u8,
    /// It shrinks to half when fewer of 1000 slots than this are in use.
    pub shrink_permille: u32,
}

/// How often the tables of a page table were resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resizes {
    /// Times that a table began to grow.
    pub grown: u64,
    /// Times that one began to shrink.
    pub shrunk: u64,
    /// Times that one should have grown or shrunk, but there was no contiguous memory for its ways.
    pub refused: u64,
    /// Times that it grew less than it should, for the same reason.
    pub curtailed: u64,
}

impl Resizes {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            grown: self.grown + other.grown,
            shrunk: self.shrunk + other.shrunk,
            refused: self.refused + other.refused,
            curtailed: self.curtailed + other.curtailed,
        }
    }
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
        memory: &mut impl TableMemory<Out>,
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

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of a way and number of ways, of those in use and of those that take their place.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let ways = self.ways.len() as u64;
        std::iter::once(self.shift).chain(self.next_shift).map(move |s| (LINE_BYTES << s, ways))
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
    pub(super) fn find(&self, memory: &impl EntryMemory<Out>, key: u64) -> Option<(Out, u8)> {
        (0..self.ways()).find_map(|way| {
            let (at, _) = self.slot(way, key);
            self.format.matches(&memory.read_line(at), key).then_some((at, way))
        })
    }

    fn is_vacant(&self, memory: &impl EntryMemory<Out>, at: Out) -> bool {
        self.format.is_vacant(memory.read(at.offset(8 * self.format.vacancy_word())))
    }

    /// Puts in a line for a key that has none.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no room and no memory to make it; nothing that the
    /// table holds is lost then.
    pub(super) fn insert(
        &mut self,
        memory: &mut impl TableMemory<Out>,
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
    pub(super) fn remove(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        at: Out,
        moves: &mut Moves,
    ) {
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
        memory: &mut impl TableMemory<Out>,
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
    fn grow(&mut self, memory: &mut impl TableMemory<Out>) -> bool {
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
    fn resize(&mut self, memory: &mut impl TableMemory<Out>, shift: u8) -> bool {
        let Some(bases) = allocate(memory, self.ways.len(), shift) else { return false };
        for (way, base) in self.ways.iter_mut().zip(bases) {
            way.next = base;
        }
        self.next_shift = Some(shift);
        true
    }

    /// Carries some slots over, if the table is being resized.
    fn carry_some(&mut self, memory: &mut impl TableMemory<Out>, moves: &mut Moves) {
        for _ in 0..CARRIED_PER_CHANGE {
            if self.next_shift.is_none() || !self.carry(memory, moves) {
                return;
            }
        }
    }

    /// Carries the next slot over, and ends the resizing after the last. False if its line finds no
    /// place in the new ways for now.
    fn carry(&mut self, memory: &mut impl TableMemory<Out>, moves: &mut Moves) -> bool {
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
        memory: &mut impl TableMemory<Out>,
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
    pub(super) fn destroy(self, memory: &mut impl TableMemory<Out>) {
        for way in &self.ways {
            memory.free(way.base, lines_shift(self.shift));
            if let Some(shift) = self.next_shift {
                memory.free(way.next, lines_shift(shift));
            }
        }
    }

    // ---- lines of page-table entries -----------------------------------------------------------

    /// The entry of page `number`, if it is present, and where it stands.
    pub(super) fn entry(
        &self,
        memory: &impl EntryMemory<Out>,
        number: u64,
    ) -> Option<(Out, Entry)> {
        let (at, _) = self.find(memory, number >> 3)?;
        let at = at.offset((number & 7) * 8);
        let entry = Entry(memory.read(at));
        entry.is_present().then_some((at, entry))
    }

    /// The line with the entry of page `number`, if there is one.
    pub(super) fn line(
        &self,
        memory: &impl EntryMemory<Out>,
        number: u64,
    ) -> Option<EntryLine<Out>> {
        self.find(memory, number >> 3).map(|(at, _)| EntryLine(at))
    }

    /// Puts in the entry of a page that has none.
    pub(super) fn insert_entry(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        number: u64,
        entry: Entry,
        moves: &mut Moves,
    ) -> Result<(), TableError> {
        let (key, i) = (number >> 3, number & 7);
        if let Some(there) = self.line(memory, number) {
            there.write(memory, i, entry);
            there.count_up(memory, 1);
            return Ok(());
        }
        let mut line = self.format.tagged(key);
        line[i as usize] = with_tag_of(entry, line[i as usize]).0;
        line[7] = with_present(line[7], 1);
        self.insert(memory, line, moves)
    }

    /// Takes the entry of page `number` away, which is present.
    pub(super) fn remove_entry(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        number: u64,
        moves: &mut Moves,
    ) {
        let Some((at, _)) = self.find(memory, number >> 3) else { return };
        let last = at.offset(7 * 8);
        let left = present(memory.read(last)) - 1;
        if left == 0 {
            return self.remove(memory, at, moves);
        }
        let slot = at.offset((number & 7) * 8);
        memory.write(slot, with_tag_of(Entry::ABSENT, memory.read(slot)).0);
        memory.write(last, with_present(memory.read(last), left));
    }
}

/// A line of page-table entries in use, by where it stands.
#[derive(Clone, Copy)]
pub(super) struct EntryLine<Out>(Out);

impl<Out: Physical> EntryLine<Out> {
    /// True if entry `i` is present.
    pub(super) fn is_present(self, memory: &impl EntryMemory<Out>, i: u64) -> bool {
        Entry(memory.read(self.0.offset(i * 8))).is_present()
    }

    /// Writes entry `i`; the tag's part there stays.
    pub(super) fn write(self, memory: &mut impl TableMemory<Out>, i: u64, entry: Entry) {
        let slot = self.0.offset(i * 8);
        memory.write(slot, with_tag_of(entry, memory.read(slot)).0);
    }

    /// Notes that so many more entries are present.
    pub(super) fn count_up(self, memory: &mut impl TableMemory<Out>, more: u64) {
        let last = self.0.offset(7 * 8);
        let eighth = memory.read(last);
        memory.write(last, with_present(eighth, present(eighth) + more));
    }
}

/// Blocks for `ways` ways of 2^`shift` lines; all or none.
fn allocate<Out: Physical>(
    memory: &mut impl TableMemory<Out>,
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
