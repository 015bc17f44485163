//! The statistical corrector: a sum of weights, found by the address and one history each, that overrules
//! TAGE where it is large enough against it.

use super::super::counter::{centred, step};
use super::tage::{Confidence, Found};

const WEIGHT_BITS: u32 = 6;
const BIAS_BITS: u32 = 8;
/// What a part's sum adds to the threshold while it counts twice.
const DOUBLED: i32 = 12;
/// Bits by which the global threshold is finer than what it stands for.
const THRESHOLD_FRACTION: u32 = 3;
const FIRST_THRESHOLD: i32 = 35 << THRESHOLD_FRACTION;
const MOST_THRESHOLD: i32 = (1 << 11) - 1;
const BRANCH_THRESHOLDS: usize = 64;
const MULTIPLIERS: usize = 8;
const MULTIPLIER_BITS: u32 = 6;
const CHOICE_BITS: u32 = 7;
const LOCAL: usize = 256;
const FEW_LOCAL: usize = 16;
const LOOP_COUNTS: usize = 256;
const BACKWARD: usize = 1024;

/// The histories, in the order of [`PARTS`].
const HISTORIES: usize = 7;

/// A group of tables of weights over one history: how many bits of it each table sees, and the bits of an
/// index.
struct Part {
    lengths: &'static [u32],
    index_bits: u32,
}

/// Seznec's groups: global directions, path, three local histories, the iteration of the innermost
/// loop, and what branches did in the same iteration of it before.
const PARTS: [Part; HISTORIES] = [
    Part { lengths: &[40, 24, 10], index_bits: 10 },
    Part { lengths: &[25, 16, 9], index_bits: 9 },
    Part { lengths: &[11, 6, 3], index_bits: 10 },
    Part { lengths: &[16, 11, 6], index_bits: 9 },
    Part { lengths: &[9, 4], index_bits: 10 },
    Part { lengths: &[8], index_bits: 8 },
    Part { lengths: &[10, 4], index_bits: 9 },
];

/// The tables of a part.
#[derive(Clone, Debug)]
struct Weights {
    tables: Vec<Vec<i8>>,
    /// By branch; not negative: the part counts twice.
    multipliers: [i8; MULTIPLIERS],
}

/// Where a part's weights of a branch are, and their sum.
#[derive(Clone, Copy, Debug, Default)]
struct Chosen {
    indices: [usize; 3],
    sum: i32,
}

/// What the corrector makes of a branch.
#[derive(Clone, Debug)]
pub struct Opinion {
    pub prediction: bool,
    /// What was predicted without it.
    before: bool,
    sum: i32,
    threshold: i32,
    biases: [usize; 3],
    bias_sum: i32,
    parts: [Chosen; HISTORIES],
}

/// The corrector.
#[derive(Clone, Debug)]
pub struct Corrector {
    biases: [Vec<i8>; 3],
    bias_multipliers: [i8; MULTIPLIERS],
    parts: [Weights; HISTORIES],
    threshold: i32,
    thresholds: [i8; BRANCH_THRESHOLDS],
    /// By how large the sum is: not negative, where TAGE is more often right.
    choices: [i8; 2],
    /// Whether branches went back when they were last taken.
    backward: [bool; BACKWARD],
    /// Outcomes of branches that go back.
    directions: u64,
    path: u64,
    local: [u64; LOCAL],
    few_local: [[u64; FEW_LOCAL]; 2],
    /// Iterations of the innermost loop so far.
    iteration: usize,
    iterations: [u64; LOOP_COUNTS],
}

impl Default for Corrector {
    fn default() -> Self {
        // Where it knows nothing, it says what TAGE does, with a weight by its confidence.
        let first = |weak: i8, strong: i8| -> Vec<i8> {
            let of = |at: usize| match at & 3 {
                0 => -strong - 1,
                1 => strong,
                2 => -weak - 1,
                _ => weak,
            };
            (0..1 << BIAS_BITS).map(of).collect()
        };
        let weights = |part: &Part| Weights {
            tables: part
                .lengths
                .iter()
                .map(|_| (0..1 << part.index_bits).map(|at| -(at as i8 & 1)).collect())
                .collect(),
            multipliers: [7; MULTIPLIERS],
        };
        Self {
            biases: [first(0, 31), first(31, 7), first(0, 31)],
            bias_multipliers: [4; MULTIPLIERS],
            parts: PARTS.each_ref().map(weights),
            threshold: FIRST_THRESHOLD,
            thresholds: [0; BRANCH_THRESHOLDS],
            choices: [0; 2],
            backward: [false; BACKWARD],
            directions: 0,
            path: 0,
            local: [0; LOCAL],
            few_local: [[0; FEW_LOCAL]; 2],
            iteration: 0,
            iterations: [0; LOOP_COUNTS],
        }
    }
}

/// Folds an address for small tables.
fn low(pc: u64) -> usize {
    (pc ^ pc >> 2) as usize
}

impl Corrector {
    fn histories(&self, pc: u64) -> [u64; HISTORIES] {
        [
            self.directions,
            self.path,
            self.local[low(pc) % LOCAL],
            self.few_local[0][(pc ^ pc >> 5) as usize % FEW_LOCAL],
            self.few_local[1][(pc ^ pc >> 10) as usize % FEW_LOCAL],
            self.iteration as u64,
            self.iterations[self.iteration],
        ]
    }

    /// What is to be predicted for the conditional branch at `pc`, for which TAGE `found` something and
    /// `before` was predicted.
    pub fn look_up(&self, pc: u64, before: bool, found: &Found) -> Opinion {
        let said = usize::from(before);
        let weak = usize::from(found.confidence == Confidence::Low) << 1;
        let sure = usize::from(found.confidence == Confidence::High) << 1;
        let table = found.longest.map_or(0, |table| table + 1);
        let mask = (1 << BIAS_BITS) - 1;
        let biases = [
            (low(pc) << 2 | weak | said) & mask,
            ((low(pc) ^ (pc >> 5) as usize) << 2 | sure | said) & mask,
            ((low(pc) << 4 ^ table) << 2 | weak | said) & mask,
        ];
        let bias_sum: i32 =
            self.biases.iter().zip(biases).map(|(table, at)| centred(table[at])).sum();
        let mut sum = bias_sum;
        let branch = low(pc);
        let mut threshold = (self.threshold >> THRESHOLD_FRACTION)
            + i32::from(self.thresholds[branch % BRANCH_THRESHOLDS]);
        if self.bias_multipliers[branch % MULTIPLIERS] >= 0 {
            sum += bias_sum;
            threshold += DOUBLED;
        }
        let mut parts = [Chosen::default(); HISTORIES];
        for (number, history) in self.histories(pc).into_iter().enumerate() {
            let Part { lengths, index_bits } = PARTS[number];
            let weights = &self.parts[number];
            // The global history is looked at together with what was predicted.
            let address = if number == 0 { pc << 1 | u64::from(before) } else { pc };
            let chosen = &mut parts[number];
            for (table, &length) in lengths.iter().enumerate() {
                let seen = history & ((1 << length) - 1);
                let mixed = (seen << 3 | table as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mixed = mixed >> (64 - index_bits) ^ address ^ address >> index_bits;
                let at = mixed as usize & ((1 << index_bits) - 1);
                chosen.indices[table] = at;
                chosen.sum += centred(weights.tables[table][at]);
            }
            sum += chosen.sum;
            if weights.multipliers[branch % MULTIPLIERS] >= 0 {
                sum += chosen.sum;
                threshold += DOUBLED;
            }
        }
        let mut opinion =
            Opinion { prediction: sum >= 0, before, sum, threshold, biases, bias_sum, parts };
        if opinion.prediction != before {
            let keeps = match opinion.choice(found) {
                Choice::Keep => true,
                Choice::Learnt(which) => self.choices[which] >= 0,
                Choice::Overrule => false,
            };
            opinion.prediction = if keeps { before } else { sum >= 0 };
        }
        opinion
    }

    /// The branch at `pc` that `opinion` is on was `taken` or not, and went to `next`.
    pub fn learn(&mut self, pc: u64, opinion: &Opinion, found: &Found, taken: bool, next: u64) {
        let says = opinion.sum >= 0;
        if says != opinion.before
            && let Choice::Learnt(which) = opinion.choice(found)
        {
            step(&mut self.choices[which], opinion.before == taken, CHOICE_BITS);
        }
        if says != taken || opinion.sum.abs() < opinion.threshold {
            self.train(low(pc), opinion, taken);
        }
        let iteration = &mut self.iterations[self.iteration];
        *iteration = *iteration << 1 | u64::from(taken);
        let backward = &mut self.backward[low(pc) % BACKWARD];
        if taken {
            *backward = next < pc;
        }
        let backward = *backward;
        if backward {
            let more = (self.iteration + 1).min(LOOP_COUNTS - 1);
            self.iteration = if taken { more } else { 0 };
        }
        self.directions = self.directions << 1 | u64::from(taken && backward);
        let push = |history: &mut u64| *history = *history << 1 | u64::from(taken);
        push(&mut self.local[low(pc) % LOCAL]);
        push(&mut self.few_local[0][(pc ^ pc >> 5) as usize % FEW_LOCAL]);
        push(&mut self.few_local[1][(pc ^ pc >> 10) as usize % FEW_LOCAL]);
        self.pass(pc);
    }

    /// Moves the weights that made the sum, and what decides how much they count.
    fn train(&mut self, branch: usize, opinion: &Opinion, taken: bool) {
        let wrong = (opinion.sum >= 0) != taken;
        self.threshold = (self.threshold + if wrong { 1 } else { -1 }).clamp(0, MOST_THRESHOLD);
        step(&mut self.thresholds[branch % BRANCH_THRESHOLDS], wrong, 8);
        weigh(&mut self.bias_multipliers[branch % MULTIPLIERS], opinion, opinion.bias_sum, taken);
        for (table, at) in self.biases.iter_mut().zip(opinion.biases) {
            step(&mut table[at], taken, WEIGHT_BITS);
        }
        for (weights, chosen) in self.parts.iter_mut().zip(opinion.parts) {
            weigh(&mut weights.multipliers[branch % MULTIPLIERS], opinion, chosen.sum, taken);
            for (table, at) in weights.tables.iter_mut().zip(chosen.indices) {
                step(&mut table[at], taken, WEIGHT_BITS);
            }
        }
    }

    /// A branch at `pc` was executed.
    pub fn pass(&mut self, pc: u64) {
        self.path = self.path << 1 ^ (pc ^ pc >> 2 ^ pc >> 4) & 127;
    }
}

/// A part whose sum decides learns whether it is to count once or twice.
fn weigh(multiplier: &mut i8, opinion: &Opinion, sum: i32, taken: bool) {
    let once = opinion.sum - if *multiplier >= 0 { sum } else { 0 };
    if (once >= 0) != (once + sum >= 0) {
        step(multiplier, (sum >= 0) == taken, MULTIPLIER_BITS);
    }
}

/// What is done with a sum that is against what was predicted.
enum Choice {
    Keep,
    Learnt(usize),
    Overrule,
}

impl Opinion {
    fn choice(&self, found: &Found) -> Choice {
        let size = self.sum.abs();
        match found.confidence {
            Confidence::High if size < self.threshold / 4 => Choice::Keep,
            Confidence::High if size < self.threshold / 2 => Choice::Learnt(1),
            Confidence::Medium if size < self.threshold / 4 => Choice::Learnt(0),
            _ => Choice::Overrule,
        }
    }
}
