//! TAGE (Seznec and Michaud, "A case for (partially) tagged geometric history length branch
//! prediction", JILP, 2006).

use super::super::counter::{centred, step};
use super::super::history::{Folded, History};

const TABLES: usize = 12;
const INDEX_BITS: u32 = 11;
const LENGTHS: [u32; TABLES] = [5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987];
const TAG_BITS: [u32; TABLES] = [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
const BASE_BITS: u32 = 13;
const COUNTER_BITS: u32 = 3;
const MOST_USEFUL: u8 = 3;
/// Entries that a misprediction allocates at most.
const ALLOCATIONS: usize = 2;
/// Entries that were not free, less twice those that were, after which all become less useful.
const AGEING: i32 = 1024;
const PATH_BITS: u32 = 16;

/// How sure a prediction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    Low,
    Medium,
    High,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tag: u16,
    counter: i8,
    useful: u8,
}

/// What the tables say of a branch.
#[derive(Clone, Debug)]
pub struct Found {
    pub prediction: bool,
    pub confidence: Confidence,
    /// The table with the longest history that knows the branch.
    pub longest: Option<usize>,
    /// What it says, or the base if there is none.
    longest_taken: bool,
    /// The next such table, and what that says, or the base.
    alternate: Option<usize>,
    alternate_taken: bool,
    base: usize,
    indices: [usize; TABLES],
    tags: [u16; TABLES],
}

/// The tables.
#[derive(Clone, Debug)]
pub struct Tage {
    base: Vec<i8>,
    entries: Vec<Entry>,
    history: History,
    indices: [Folded; TABLES],
    tags: [[Folded; TABLES]; 2],
    /// Low bits of the latest branches' addresses.
    path: u32,
    /// Not negative: new entries are less right than their alternates.
    use_alternate: i8,
    ageing: i32,
    random: u32,
}

impl Default for Tage {
    fn default() -> Self {
        let folded = |width: fn(usize) -> u32| {
            std::array::from_fn(|table| Folded::new(LENGTHS[table], width(table)))
        };
        Self {
            base: vec![0; 1 << BASE_BITS],
            entries: vec![Entry::default(); TABLES << INDEX_BITS],
            history: History::default(),
            indices: folded(|_| INDEX_BITS),
            tags: [folded(|table| TAG_BITS[table]), folded(|table| TAG_BITS[table] - 1)],
            path: 0,
            use_alternate: 0,
            ageing: 0,
            random: 0x2545_f491,
        }
    }
}

impl Tage {
    /// What is predicted for the conditional branch at `pc`.
    pub fn look_up(&self, pc: u64) -> Found {
        let low = (pc ^ pc >> 16) as u32;
        let mut indices = [0; TABLES];
        let mut tags = [0; TABLES];
        for table in 0..TABLES {
            let shift = INDEX_BITS - table as u32 % INDEX_BITS;
            let path = self.path & ((1 << LENGTHS[table].min(PATH_BITS)) - 1);
            let hash = low ^ low >> shift ^ self.indices[table].value ^ path ^ path >> shift;
            indices[table] = table << INDEX_BITS | (hash & ((1 << INDEX_BITS) - 1)) as usize;
            let tag = low ^ self.tags[0][table].value ^ self.tags[1][table].value << 1;
            tags[table] = (tag & ((1 << TAG_BITS[table]) - 1)) as u16;
        }
        let knows = |&table: &usize| self.entries[indices[table]].tag == tags[table];
        let mut matching = (0..TABLES).rev().filter(knows);
        let (longest, alternate) = (matching.next(), matching.next());
        let base = (low ^ low >> 2) as usize & ((1 << BASE_BITS) - 1);
        let counter_of = |table: Option<usize>| {
            table.map_or(self.base[base], |table| self.entries[indices[table]].counter)
        };
        let (counter, other) = (counter_of(longest), counter_of(alternate));
        let (longest_taken, alternate_taken) = (counter >= 0, other >= 0);
        let sure = centred(counter).abs();
        let confidence = match (longest, sure) {
            (None, 3..) | (Some(_), 7..) => Confidence::High,
            (Some(_), 5) => Confidence::Medium,
            _ => Confidence::Low,
        };
        let doubted = longest.is_some() && sure == 1 && self.use_alternate >= 0;
        let prediction = if doubted { alternate_taken } else { longest_taken };
        Found {
            prediction,
            confidence,
            longest,
            longest_taken,
            alternate,
            alternate_taken,
            base,
            indices,
            tags,
        }
    }

    /// The branch that `found` is of was `taken` or not, and `predicted` in the end.
    pub fn learn(&mut self, found: &Found, taken: bool, predicted: bool) {
        let mut allocates = found.prediction != taken && found.longest != Some(TABLES - 1);
        if let Some(table) = found.longest
            && centred(self.entries[found.indices[table]].counter).abs() == 1
        {
            // A new entry that was right need not be followed by another.
            allocates &= found.longest_taken != taken;
            if found.longest_taken != found.alternate_taken {
                step(&mut self.use_alternate, found.alternate_taken == taken, 4);
            }
        }
        // Where the other parts were right, few entries are worth it.
        if predicted == taken && !self.random().is_multiple_of(32) {
            allocates = false;
        }
        if allocates {
            self.allocate(found, taken);
        }
        let Some(table) = found.longest else {
            return step(&mut self.base[found.base], taken, 2);
        };
        let entry = self.entries[found.indices[table]];
        if centred(entry.counter).abs() == 1 && found.longest_taken != taken {
            match found.alternate {
                Some(other) => {
                    step(&mut self.entries[found.indices[other]].counter, taken, COUNTER_BITS);
                }
                None => step(&mut self.base[found.base], taken, 2),
            }
        }
        let entry = &mut self.entries[found.indices[table]];
        step(&mut entry.counter, taken, COUNTER_BITS);
        if centred(entry.counter).abs() == 1 {
            // It has changed its mind: it cannot have been useful.
            entry.useful = 0;
        } else if found.longest_taken != found.alternate_taken && found.longest_taken == taken {
            entry.useful = (entry.useful + 1).min(MOST_USEFUL);
        }
    }

    /// Gives entries of longer histories to a branch that was mispredicted.
    fn allocate(&mut self, found: &Found, taken: bool) {
        let first = found.longest.map_or(0, |table| table + 1);
        // Often the next table, at times one behind it.
        let mut table = first + usize::from(self.random().is_multiple_of(4));
        let mut allocated = 0;
        while table < TABLES && allocated < ALLOCATIONS {
            let entry = &mut self.entries[found.indices[table]];
            if entry.useful == 0 {
                let counter = if taken { 0 } else { -1 };
                *entry = Entry { tag: found.tags[table], counter, useful: 0 };
                self.ageing = (self.ageing - 2).max(0);
                allocated += 1;
                // Neighbours would help the same branches.
                table += 2;
            } else {
                self.ageing += 1;
                table += 1;
            }
        }
        if self.ageing >= AGEING {
            self.ageing = 0;
            self.entries.iter_mut().for_each(|entry| entry.useful /= 2);
        }
    }

    /// A branch at `pc` gives the history `bit`.
    pub fn pass(&mut self, pc: u64, bit: bool) {
        for fold in self.indices.iter_mut().chain(self.tags.as_flattened_mut()) {
            fold.push(&self.history, bit);
        }
        self.history.push(bit);
        self.path = self.path << 1 ^ (pc ^ pc >> 3) as u32 & 1;
    }

    /// Marsaglia's xorshift ("Xorshift RNGs", 2003): the same numbers in every run.
    fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}
