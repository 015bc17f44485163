//! The predictor of loops: a branch that goes the same way a constant number of times and then once the
//! other way (Seznec, "The L-TAGE branch predictor", JILP, 2007).

const SETS: usize = 16;
const WAYS: usize = 4;
const TAG_BITS: u32 = 10;
/// Longest loop that is followed.
const MOST_ITERATIONS: u16 = (1 << 10) - 1;
const MOST_CONFIDENCE: u8 = 15;
/// A loop is predicted when it was of the same length so often, or if it is long, so many iterations.
const SURE_ITERATIONS: u32 = 128;
/// Shorter ones are left to TAGE.
const LEAST_ITERATIONS: u16 = 3;
const NEW_AGE: u8 = 7;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tag: u16,
    /// Of the whole loop; 0 while it is not known.
    iterations: u16,
    /// Of the loop under way.
    current: u16,
    confidence: u8,
    age: u8,
    /// Which way it goes while it loops.
    stays: bool,
}

impl Entry {
    fn forget(&mut self) {
        *self = Self { tag: self.tag, stays: self.stays, ..Self::default() };
    }

    /// What it predicts, if it is sure.
    fn sure(&self) -> Option<bool> {
        let seen = u32::from(self.confidence) * u32::from(self.iterations);
        let sure =
            self.iterations > 0 && (self.confidence == MOST_CONFIDENCE || seen > SURE_ITERATIONS);
        sure.then_some(self.stays == (self.current + 1 != self.iterations))
    }
}

/// What is known of a branch.
#[derive(Clone, Copy, Debug)]
pub struct Looped {
    set: usize,
    tag: u16,
    entry: Option<usize>,
    /// What it predicts, if it is sure.
    pub prediction: Option<bool>,
}

/// The loops.
#[derive(Clone, Debug)]
pub struct Loops {
    entries: [Entry; SETS * WAYS],
    /// Not negative: where its sure predictions differ from TAGE's, they are more often right.
    trust: i8,
    /// Which way is replaced next.
    next: usize,
}

impl Default for Loops {
    fn default() -> Self {
        Self { entries: [Entry::default(); SETS * WAYS], trust: -1, next: 0 }
    }
}

impl Loops {
    /// What is predicted for the conditional branch at `pc`.
    pub fn look_up(&self, pc: u64) -> Looped {
        let set = (pc ^ pc >> 4) as usize % SETS;
        let tag = (pc >> 4 ^ pc >> (4 + TAG_BITS)) as u16 & ((1 << TAG_BITS) - 1);
        let ways = set * WAYS..(set + 1) * WAYS;
        let entry =
            ways.into_iter().find(|&at| self.entries[at].age > 0 && self.entries[at].tag == tag);
        let prediction = entry.and_then(|at| self.entries[at].sure()).filter(|_| self.trust >= 0);
        Looped { set, tag, entry, prediction }
    }

    /// The branch that `looped` is of was `taken` or not. TAGE predicted `other`; `wrong`: the prediction in
    /// the end was not right.
    pub fn learn(&mut self, looped: Looped, taken: bool, other: bool, wrong: bool) {
        let Some(at) = looped.entry else {
            if wrong {
                self.allocate(looped, taken);
            }
            return;
        };
        if let Some(sure) = self.entries[at].sure() {
            if sure != other {
                super::super::counter::step(&mut self.trust, sure == taken, 7);
            }
            let entry = &mut self.entries[at];
            if sure != taken {
                return entry.forget();
            }
            if sure != other {
                entry.age = (entry.age + 1).min(MOST_CONFIDENCE);
            }
        }
        let entry = &mut self.entries[at];
        entry.current += 1;
        let goes_on = taken == entry.stays;
        if goes_on {
            if entry.current > MOST_ITERATIONS {
                entry.forget();
            } else if entry.iterations > 0 && entry.current >= entry.iterations {
                // Longer than before.
                (entry.iterations, entry.confidence) = (0, 0);
            }
            return;
        }
        let iterations = std::mem::take(&mut entry.current);
        if iterations < LEAST_ITERATIONS {
            entry.forget();
        } else if iterations == entry.iterations {
            entry.confidence = (entry.confidence + 1).min(MOST_CONFIDENCE);
        } else {
            // The first whole one, or one of another length.
            entry.confidence = 0;
            entry.iterations = if entry.iterations == 0 { iterations } else { 0 };
        }
    }

    /// Most mispredictions of a loop are at its end: it is taken to stay the other way.
    fn allocate(&mut self, looped: Looped, taken: bool) {
        self.next = (self.next + 1) % WAYS;
        let entry = &mut self.entries[looped.set * WAYS + self.next];
        if entry.age == 0 {
            *entry = Entry { tag: looped.tag, age: NEW_AGE, stays: !taken, ..Entry::default() };
        } else {
            entry.age -= 1;
        }
    }
}
