//! `svm-url`, `svm-higgs`: training of a linear support vector machine by dual coordinate descent:
//! rows in random order, each with gathers from the weights.
//!
//! Source: Hsieh, Chang, Lin, Keerthi and Sundararajan, "A dual coordinate descent method for large-scale
//! linear SVM", ICML 2008, as LIBLINEAR's default solver (L2 loss, C = 1, stops at a spread of projected
//! gradients of 0.1) does it.
//!
//! ```text
//! row       16 bytes a feature that is not 0 (index 4, value 8) and 16 for the end
//! and each  pointer to it 8, label 1, alpha 8, diagonal of Q 8, place in the order 4
//! weight    8 bytes a feature
//! ```
//!
//! The data sets of the papers are not included. `svm-url` has the dimensions of `url_combined`: 115
//! features of a row are not 0, of 1.349 times as many as there are rows (2,396,130 rows are 4332 MiB);
//! the one with number x occurs about as often as 1/x. `svm-higgs` has those of HIGGS: 28 features, all
//! dense (11,000,000 rows are 5172 MiB). Labels are those of a random hyperplane, one in twenty flipped.
//! Departs from it: no shrinking of the active set.
//!
//! Only computed values are in this process's memory; rows are functions of their numbers.

use std::ops::Range;

use flatwalk_trace::{BlockId, Source};

use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Random, mix, unit};
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Make, Parameter, SEED};

pub(crate) const URL: Description = describe(
    "svm-url",
    "training of a linear classifier like LIBLINEAR's on url_combined: sparse rows in random order \
     gather and scatter weights",
    |arguments| make(URL.name, &Features::Sparse { of_row: 115 }, arguments),
);

pub(crate) const HIGGS: Description = describe(
    "svm-higgs",
    "the same on data like HIGGS: short dense rows in random order",
    |arguments| make(HIGGS.name, &Features::Dense { number: 28 }, arguments),
);

const fn describe(name: &'static str, description: &'static str, make: Make) -> Description {
    const PARAMETERS: &[Parameter] = &[
        Parameter {
            name: "size_bytes",
            description: "rows and the solver's vectors, in bytes: 64 KiB to 1 TiB (takes a \
                              twentieth as much memory)",
        },
        SEED,
        ARRAY_ORDER,
    ];
    crate::describe(name, description, 1 << 40, PARAMETERS, make)
}

/// Features for each row of `url_combined`.
const FEATURES_A_ROW: f64 = 1.349;
const C: f64 = 1.0;
/// The diagonal's addend for the L2 loss.
const DIAGONAL: f64 = 0.5 / C;
/// Greatest less least projected gradient at which it stops.
const EPSILON: f64 = 0.1;
const MOST_ROUNDS: u32 = 1000;
/// Bytes of a feature of a row, and of all else that a row has.
const NODE: u64 = 16;
const ROW_BYTES: u64 = 8 + 1 + 8 + 8 + 4;
/// One label in this many is flipped.
const NOISE: u64 = 20;

/// Which features of a row are not 0.
#[derive(Clone, Copy)]
enum Features {
    Sparse { of_row: usize },
    Dense { number: usize },
}

fn make(name: &'static str, features: &Features, arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(features, arguments);
    let seed = arguments.seed;
    program(name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Training::new(&shape, code, seed)
    })
}

struct Shape {
    rows: u64,
    /// For each feature that a row has, the least that it may be, ascending; then their number.
    strata: Vec<u32>,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    /// Of nodes, numbered through all rows.
    index: Column,
    value: Column,
    row: Column,
    label: Column,
    alpha: Column,
    diagonal: Column,
    order: Column,
    weight: Column,
}

impl Shape {
    fn of(features: &Features, arguments: &Arguments) -> Self {
        let (of_row, least, ratio) = match *features {
            Features::Sparse { of_row } => (of_row, 2 * of_row, FEATURES_A_ROW),
            Features::Dense { number } => (number, number, 0.0),
        };
        // What alignment may take.
        let bytes = (arguments.size_bytes - 128) as f64;
        let row = (NODE * (of_row as u64 + 1) + ROW_BYTES) as f64;
        let rows = bytes / (row + 8.0 * ratio);
        let (rows, number) = if rows * ratio < least as f64 {
            ((bytes - 8.0 * least as f64) / row, least)
        } else {
            (rows, (rows * ratio) as usize)
        };
        let rows = rows as u64;
        let mut layout = Layout::new(arguments);
        let nodes = layout.records(rows * (of_row as u64 + 1), NODE);
        let columns = Columns {
            index: nodes.field(0, 4),
            value: nodes.field(8, 8),
            row: layout.array(rows, 8),
            weight: layout.array(number as u64, 8),
            diagonal: layout.array(rows, 8),
            order: layout.array(rows, 4),
            alpha: layout.array(rows, 8),
            label: layout.array(rows, 1),
        };
        Self { rows, strata: strata(number, of_row), layout, columns }
    }
}

/// Divides `number` features into parts whose sizes grow geometrically, none of them empty.
fn strata(number: usize, parts: usize) -> Vec<u32> {
    let spare = (number - parts + 1) as f64;
    let begin = |part: usize| part + spare.powf(part as f64 / parts as f64) as usize - 1;
    let mut begins: Vec<_> = (0..parts).map(|part| begin(part) as u32).collect();
    begins.push(number as u32);
    begins
}

registers!(32; STATE, PLACE, OTHER, OTHER_AT, ORDER, ROWS, ROW, LABEL, NODE_AT, INDEX, VALUE, WEIGHTS, WEIGHT,
    GRADIENT, ALPHA, NEW, STEP, SPREAD);

struct Code {
    shuffle: BlockId,
    row: BlockId,
    dot: BlockId,
    gradient: BlockId,
    update: BlockId,
    add: BlockId,
    next: BlockId,
    round: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            shuffle: assembler
                .operation(&[STATE], &[STATE])
                .operation(&[STATE, PLACE, ROWS], &[OTHER_AT])
                .load_bytes(4, &[ORDER, PLACE], ROW)
                .load_bytes(4, &[ORDER, OTHER_AT], OTHER)
                .store_bytes(4, &[ORDER, PLACE, OTHER])
                .store_bytes(4, &[ORDER, OTHER_AT, ROW])
                .operation(&[PLACE], &[PLACE])
                .operation(&[PLACE, ROWS], &[FLAGS])
                .branch(),
            row: assembler
                .load_bytes(4, &[ORDER, PLACE], ROW)
                .load_bytes(1, &[ROW], LABEL)
                .load(&[ROW], NODE_AT)
                .load_bytes(4, &[NODE_AT], INDEX)
                .operation(&[], &[GRADIENT])
                .fall(),
            dot: assembler
                .load(&[WEIGHTS, INDEX], WEIGHT)
                .load(&[NODE_AT], VALUE)
                .operation(&[WEIGHT, VALUE], &[VALUE])
                .operation(&[GRADIENT, VALUE], &[GRADIENT])
                .operation(&[NODE_AT], &[NODE_AT])
                .load_bytes(4, &[NODE_AT], INDEX)
                .operation(&[INDEX], &[FLAGS])
                .branch(),
            gradient: assembler
                .operation(&[GRADIENT, LABEL], &[GRADIENT])
                .load(&[ROW], ALPHA)
                .operation(&[ALPHA, GRADIENT], &[GRADIENT])
                .operation(&[GRADIENT, SPREAD], &[SPREAD])
                .operation(&[GRADIENT, ALPHA], &[FLAGS])
                .branch(),
            update: assembler
                .load(&[ROW], STEP)
                .operation(&[GRADIENT, STEP], &[STEP])
                .operation(&[ALPHA, STEP], &[NEW])
                .store(&[ROW, NEW])
                .operation(&[NEW, ALPHA, LABEL], &[STEP])
                .load(&[ROW], NODE_AT)
                .load_bytes(4, &[NODE_AT], INDEX)
                .fall(),
            add: assembler
                .load(&[NODE_AT], VALUE)
                .operation(&[VALUE, STEP], &[VALUE])
                .load(&[WEIGHTS, INDEX], WEIGHT)
                .operation(&[WEIGHT, VALUE], &[WEIGHT])
                .store(&[WEIGHTS, INDEX, WEIGHT])
                .operation(&[NODE_AT], &[NODE_AT])
                .load_bytes(4, &[NODE_AT], INDEX)
                .operation(&[INDEX], &[FLAGS])
                .branch(),
            next: assembler
                .operation(&[PLACE], &[PLACE])
                .operation(&[PLACE, ROWS], &[FLAGS])
                .branch(),
            round: assembler.operation(&[], &[PLACE]).operation(&[SPREAD], &[FLAGS]).branch(),
        }
    }
}

struct Training {
    code: Code,
    columns: Columns,
    strata: Vec<u32>,
    seed: u64,
    label: Array<i8>,
    alpha: Array<f64>,
    diagonal: Array<f64>,
    order: Array<u32>,
    weight: Array<f64>,
    random: Random,
    /// What a round still has to do: places of the order to shuffle, and rows to visit.
    unshuffled: Range<usize>,
    unvisited: Range<usize>,
    /// Least and greatest projected gradient of the round.
    spread: (f64, f64),
    epsilon: f64,
    rounds: u32,
}

const NO_SPREAD: (f64, f64) = (f64::INFINITY, f64::NEG_INFINITY);

impl Training {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let (rows, columns) = (shape.rows as usize, shape.columns);
        let features = shape.strata[shape.strata.len() - 1] as usize;
        let mut training = Self {
            code,
            columns,
            strata: shape.strata.clone(),
            seed,
            label: columns.label.holding(vec![0; rows]),
            alpha: columns.alpha.holding(vec![0.0; rows]),
            diagonal: columns.diagonal.holding(vec![DIAGONAL; rows]),
            order: columns.order.holding((0..shape.rows as u32).collect()),
            weight: columns.weight.holding(vec![0.0; features]),
            random: Random::new(seed, 0),
            unshuffled: 0..rows,
            unvisited: 0..rows,
            spread: NO_SPREAD,
            epsilon: EPSILON,
            rounds: 0,
        };
        for row in 0..rows {
            let mut side = 0.0;
            for place in 0..training.of_row() {
                let (feature, value) = training.node(row, place);
                side += value * (unit(mix(seed ^ (feature as u64) << 20)) - 0.5);
                training.diagonal.values[row] += value * value;
            }
            let flipped = mix(!seed ^ row as u64).is_multiple_of(NOISE);
            training.label.values[row] = if (side > 0.0) == flipped { -1 } else { 1 };
        }
        training
    }

    /// Features of a row that are not 0.
    fn of_row(&self) -> usize {
        self.strata.len() - 1
    }

    /// A feature of a row, and its value, which scales the row to a length of about 1.
    #[inline]
    fn node(&self, row: usize, place: usize) -> (usize, f64) {
        let word = mix(self.seed ^ (row * self.strata.len() + place) as u64);
        let (begin, end) = (self.strata[place], self.strata[place + 1]);
        let feature = begin + (((word & 0xffff_ffff) * u64::from(end - begin)) >> 32) as u32;
        let value = (unit(mix(word)) - 0.5) * (12.0 / self.of_row() as f64).sqrt();
        (feature as usize, value)
    }

    /// The row's product with the weights.
    fn dot(&self, out: &mut impl Emitter, row: usize) -> f64 {
        let first = row * self.strata.len();
        let mut sum = 0.0;
        for place in 0..self.of_row() {
            out.enter(self.code.dot);
            let (feature, value) = self.node(row, place);
            sum += self.weight.load(out, feature) * value;
            self.columns.value.load(out, first + place);
            self.columns.index.load(out, first + place + 1);
        }
        sum
    }

    /// Adds a multiple of the row to the weights.
    fn add(&mut self, out: &mut impl Emitter, row: usize, factor: f64) {
        let first = row * self.strata.len();
        for place in 0..self.of_row() {
            out.enter(self.code.add);
            let (feature, value) = self.node(row, place);
            self.columns.value.load(out, first + place);
            let weight = self.weight.load(out, feature);
            self.weight.store(out, feature, weight + factor * value);
            self.columns.index.load(out, first + place + 1);
        }
    }

    fn visit(&mut self, out: &mut impl Emitter, place: usize) {
        out.enter(self.code.row);
        let row = self.order.load(out, place) as usize;
        let label = f64::from(self.label.load(out, row));
        self.columns.row.load(out, row);
        self.columns.index.load(out, row * self.strata.len());
        let dot = self.dot(out, row);
        out.enter(self.code.gradient);
        let alpha = self.alpha.load(out, row);
        let gradient = dot * label - 1.0 + alpha * DIAGONAL;
        // At the bound, only one that leads away from it counts.
        let projected = if alpha > 0.0 { gradient } else { gradient.min(0.0) };
        self.spread = (self.spread.0.min(projected), self.spread.1.max(projected));
        if projected.abs() > 1e-12 {
            out.enter(self.code.update);
            let new = (alpha - gradient / self.diagonal.load(out, row)).max(0.0);
            self.alpha.store(out, row, new);
            self.columns.row.load(out, row);
            self.columns.index.load(out, row * self.strata.len());
            self.add(out, row, (new - alpha) * label);
        }
        out.enter(self.code.next);
    }
}

impl Algorithm for Training {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        let rows = self.order.values.len();
        if let Some(place) = self.unshuffled.next() {
            out.enter(self.code.shuffle);
            let other = place + self.random.below((rows - place) as u64) as usize;
            let (row, other_row) = (self.order.load(out, place), self.order.load(out, other));
            self.order.store(out, place, other_row);
            self.order.store(out, other, row);
        } else if let Some(place) = self.unvisited.next() {
            self.visit(out, place);
            if self.unvisited.is_empty() {
                out.enter(self.code.round);
                self.rounds += 1;
                if self.spread.1 - self.spread.0 > self.epsilon && self.rounds < MOST_ROUNDS {
                    (self.unshuffled, self.unvisited) = (0..rows, 0..rows);
                    self.spread = NO_SPREAD;
                }
            }
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Native;

    const ALL: [Features; 2] = [Features::Sparse { of_row: 115 }, Features::Dense { number: 28 }];

    /// Weak duality: no weights have a lower objective than any alphas have a dual one, so where they
    /// meet, both are optimal, however they were found.
    #[test]
    fn the_primal_and_the_dual_objective_meet() {
        for features in ALL {
            let code = Code::new(&mut Assembler::new());
            let mut training =
                Training::new(&Shape::of(&features, &Arguments::new(512 << 10, 1)), code, 1);
            training.epsilon = 1e-4;
            while training.step(&mut Native) {}
            assert!(training.rounds < MOST_ROUNDS, "it converges");
            let rows = training.alpha.values.len();
            let mut weights = vec![0.0; training.weight.values.len()];
            for row in 0..rows {
                for place in 0..training.of_row() {
                    let (feature, value) = training.node(row, place);
                    let label = f64::from(training.label.values[row]);
                    weights[feature] += training.alpha.values[row] * label * value;
                }
            }
            let norm: f64 = weights.iter().map(|weight| weight * weight).sum();
            let (mut primal, mut dual) = (norm / 2.0, -norm / 2.0);
            for row in 0..rows {
                let nodes = (0..training.of_row()).map(|place| training.node(row, place));
                let dot: f64 = nodes.map(|(feature, value)| weights[feature] * value).sum();
                let margin = 1.0 - f64::from(training.label.values[row]) * dot;
                primal += C * margin.max(0.0).powi(2);
                let alpha = training.alpha.values[row];
                dual += alpha - alpha * alpha / (4.0 * C);
            }
            assert!(dual > 1.0 && primal >= dual - 1e-9, "{primal} {dual}");
            assert!(primal - dual < 1e-3 * primal, "{primal} {dual}");
        }
    }

    #[test]
    fn features_of_a_row_ascend_and_low_numbers_are_frequent() {
        let code = Code::new(&mut Assembler::new());
        let training = Training::new(&Shape::of(&ALL[0], &Arguments::new(16 << 20, 1)), code, 1);
        let features = training.weight.values.len();
        let mut counts = vec![0_u32; features];
        for row in 0..training.alpha.values.len() {
            let row: Vec<_> = (0..115).map(|place| training.node(row, place).0).collect();
            assert!(row.is_sorted_by(|a, b| a < b) && row[114] < features);
            for feature in row {
                counts[feature] += 1;
            }
        }
        let mean = |range: Range<usize>| {
            let length = range.len() as f64;
            f64::from(counts[range].iter().sum::<u32>()) / length
        };
        let (low, high) = (mean(500..1000), mean(5000..10_000));
        assert!((6.0..14.0).contains(&(low / high)), "{low} {high}");
    }

    #[test]
    fn sizes_are_filled() {
        for features in ALL {
            for size_bytes in [64 << 10, 100_000, 1 << 20, 1 << 30, 1 << 40] {
                let bytes = Shape::of(&features, &Arguments::new(size_bytes, 1)).layout.bytes();
                assert!(bytes <= size_bytes && bytes + 2200 > size_bytes, "{bytes} {size_bytes}");
            }
        }
        let url = Shape::of(&ALL[0], &Arguments::new(4332 << 20, 1));
        assert!((2_394_000..2_398_000).contains(&url.rows), "{}", url.rows);
        let number = url.strata[115];
        assert!((3_229_000..3_235_000).contains(&number), "{number}");
        let higgs = Shape::of(&ALL[1], &Arguments::new(5172 << 20, 1));
        assert!((10_990_000..11_010_000).contains(&higgs.rows), "{}", higgs.rows);
    }
}
