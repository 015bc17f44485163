//! `xsbench`: look-ups of macroscopic neutron cross sections, the kernel of Monte Carlo neutron
//! transport.
//!
//! Source: Tramm, Siegel, Islam and Schulz, "XSBench", PHYSOR 2014, and version 20 of the program: the
//! Hoogenboom-Martin reactor, unionised energy grid, histories. A look-up draws an energy and a
//! material, finds the energy in the unionised grid by binary search, and for each nuclide of the
//! material follows the grid's index to the two nearest points of the nuclide's own grid, between
//! which five cross sections are interpolated. The next look-up depends on its result.
//!
//! ```text
//! energies   8 bytes a point of the unionised grid, which has those of all nuclides
//! index      4 bytes for each of them and each nuclide
//! points     48 bytes a point: energy 8, cross sections 5 x 8
//! materials  of each, its nuclides (4 bytes) and their concentrations (8 bytes)
//! ```
//!
//! The large reactor has 355 nuclides with 11,303 points each (5648 MiB but for one point). Sizes
//! below 256 MiB have the small one's 68 nuclides; either has as many points as fit. Which nuclides
//! make up a material, and in which order they are added up, is the program's (`load_mats` of its
//! Materials.c). Energies, cross sections and concentrations are drawn, as in the original. Departs
//! from it: with another generator.
//!
//! This process's memory holds only the energies and every 128th row of the index. The rows between
//! differ from it by a few steps, and cross sections are a function of their place.

use std::ops::RangeInclusive;

use flatwalk_trace::{BlockId, Source};

use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Random, mix, unit};
use crate::simulated::{Algorithm, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "xsbench",
    "XSBench cross-section look-ups: a binary search, then gathers from an index of \
                  gigabytes; each look-up waits for the last",
    512 << 30,
    &[
        Parameter {
            name: "size_bytes",
            description: "grids and index, in bytes: 64 KiB to 512 GiB; 5648 MiB is the large reactor \
                          (takes a fiftieth as much memory, below 256 MiB an 18th)",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
);

/// Sizes from here on have the large reactor's nuclides.
const LARGE: u64 = 256 << 20;
const NUCLIDES: [usize; 2] = [68, 355];
/// Nuclides in the fuel of the small and the large reactor, more than in any other material.
const MOST: [usize; 2] = [34, 321];
/// How often a particle is in the other materials; else it is in the fuel.
const CHANCES: [f64; 11] =
    [0.052, 0.275, 0.134, 0.154, 0.064, 0.066, 0.055, 0.008, 0.015, 0.025, 0.013];
const MATERIALS: usize = 1 + CHANCES.len();

/// Runs of nuclides' numbers, in XSBench's order.
type Runs = &'static [RangeInclusive<usize>];
/// The fuel of the small reactor. The large one's has all nuclides from 68 on in addition.
const FUEL: Runs = &[
    58..=61,
    40..=40,
    42..=46,
    1..=3,
    7..=10,
    29..=29,
    57..=57,
    47..=48,
    0..=0,
    62..=62,
    15..=15,
    33..=34,
    52..=56,
    18..=18,
    23..=23,
    41..=41,
];
const CLADDING: Runs = &[63..=67];
/// Borated water, cold or hot. All but cladding and pressure vessel begin with it.
const WATER: Runs = &[24..=24, 41..=41, 4..=5];
const VESSEL: Runs =
    &[19..=22, 35..=39, 25..=25, 27..=32, 26..=26, 49..=51, 11..=14, 6..=6, 16..=17];
/// Reflectors, plates and nozzles, without the water.
const STEEL: Runs = &[19..=22, 35..=39, 25..=25, 49..=51, 11..=14];

/// A material's nuclides.
fn composition(reactor: usize, material: usize) -> Vec<usize> {
    let (first, rest): (Runs, Runs) = match material {
        0 => (FUEL, if reactor == 1 { &[68..=354] } else { &[] }),
        1 => (CLADDING, &[]),
        2 | 3 => (WATER, &[]),
        4 => (VESSEL, &[]),
        5..=9 => (WATER, STEEL),
        _ => (WATER, CLADDING),
    };
    first.iter().chain(rest).cloned().flatten().collect()
}

/// Total, elastic, absorption, fission, nu-fission.
const CHANNELS: usize = 5;
/// Look-ups for each point of the unionised grid: 16 M for the large reactor, near the program's 17 M.
const LOOKUPS: u64 = 4;
/// Rows of the index between two that are stored.
const SPACING: usize = 128;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Lookups::new(&shape, code, seed)
    })
}

struct Shape {
    /// 0 is the small reactor, 1 the large one.
    reactor: usize,
    /// Of each nuclide.
    points: usize,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    energy: Column,
    index: Column,
    point: [Column; 1 + CHANNELS],
    number: Column,
    nuclide: Column,
    concentration: Column,
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let size_bytes = arguments.size_bytes;
        let reactor = usize::from(size_bytes >= LARGE);
        let nuclides = NUCLIDES[reactor] as u64;
        let slots = (MATERIALS * MOST[reactor]) as u64;
        let materials = 4 * MATERIALS as u64 + (4 + 8) * slots + 64;
        let points = (size_bytes - materials) / (nuclides * (8 + 4 * nuclides + 48));
        let unionised = nuclides * points;
        let mut layout = Layout::new(arguments);
        let grid = layout.records(unionised, 48);
        let energy = layout.array(unionised, 8);
        let index = layout.array(unionised * nuclides, 4);
        let columns = Columns {
            energy,
            index,
            point: std::array::from_fn(|field| grid.field(8 * field as u64, 8)),
            number: layout.array(MATERIALS as u64, 4),
            nuclide: layout.array(slots, 4),
            concentration: layout.array(slots, 8),
        };
        Self { reactor, points: points as usize, layout, columns }
    }
}

registers!(32; STATE, ENERGY, MATERIAL, NUMBER, LOWER, LENGTH, MIDDLE, FOUND, GRID, NEXT, NUCLIDE,
    CONCENTRATION, INDEX, ROW, POINT, LOW_ENERGY, HIGH_ENERGY, FACTOR, LOW, HIGH, MACRO, LEFT);

struct Code {
    lookup: BlockId,
    search: BlockId,
    nuclide: BlockId,
    finish: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        // One register for the sum of each channel.
        let sum = |channel| LEFT + 1 + channel;
        let lookup = assembler
            .operation(&[STATE, MACRO], &[STATE])
            .operation(&[STATE], &[ENERGY])
            .operation(&[STATE], &[MATERIAL])
            .operation(&[MATERIAL], &[MATERIAL])
            .load_bytes(4, &[MATERIAL], NUMBER)
            .operation(&[], &[LOWER])
            .operation(&[], &[LENGTH])
            .operation(&[], &[NEXT])
            .then(|assembler| {
                (0..CHANNELS as u8).fold(assembler, |a, channel| a.operation(&[], &[sum(channel)]))
            })
            .fall();
        let search = assembler
            .operation(&[LENGTH], &[MIDDLE])
            .operation(&[LOWER, MIDDLE], &[MIDDLE])
            .load(&[GRID, MIDDLE], FOUND)
            .operation(&[FOUND, ENERGY], &[FLAGS])
            .operation(&[FLAGS, MIDDLE, LOWER], &[LOWER])
            .operation(&[FLAGS, LENGTH], &[LENGTH])
            .operation(&[LENGTH], &[FLAGS])
            .branch();
        let nuclide = assembler
            .load_bytes(4, &[MATERIAL, NEXT], NUCLIDE)
            .load(&[MATERIAL, NEXT], CONCENTRATION)
            .operation(&[LOWER, NUCLIDE], &[ROW])
            .load_bytes(4, &[INDEX, ROW], POINT)
            .operation(&[POINT, NUCLIDE], &[POINT])
            .load(&[POINT], HIGH_ENERGY)
            .load(&[POINT], LOW_ENERGY)
            .operation(&[HIGH_ENERGY, ENERGY], &[FACTOR])
            .operation(&[HIGH_ENERGY, LOW_ENERGY], &[HIGH_ENERGY])
            .operation(&[FACTOR, HIGH_ENERGY], &[FACTOR])
            .then(|assembler| {
                (0..CHANNELS as u8).fold(assembler, |assembler, channel| {
                    assembler
                        .load(&[POINT], HIGH)
                        .load(&[POINT], LOW)
                        .operation(&[HIGH, LOW], &[LOW])
                        .operation(&[FACTOR, LOW], &[LOW])
                        .operation(&[HIGH, LOW], &[HIGH])
                        .operation(&[HIGH, CONCENTRATION], &[HIGH])
                        .operation(&[sum(channel), HIGH], &[sum(channel)])
                })
            })
            .operation(&[NEXT], &[NEXT])
            .operation(&[NEXT, NUMBER], &[FLAGS])
            .branch();
        let finish = assembler
            .then(|assembler| {
                (0..CHANNELS as u8)
                    .fold(assembler, |a, channel| a.operation(&[MACRO, sum(channel)], &[MACRO]))
            })
            .operation(&[LEFT], &[LEFT])
            .operation(&[LEFT], &[FLAGS])
            .branch();
        Self { lookup, search, nuclide, finish }
    }
}

struct Lookups {
    code: Code,
    columns: Columns,
    points: usize,
    /// Energies of each nuclide's points, ascending; and of all together.
    energies: Vec<f64>,
    unionised: Vec<f64>,
    /// Every [`SPACING`]th row of the index.
    index: Vec<u32>,
    /// Each material's nuclides.
    materials: [Vec<usize>; MATERIALS],
    /// Nuclides, and the most that a material has.
    nuclides: usize,
    most: usize,
    seed: u64,
    random: Random,
    left: u64,
    /// The answer, as the program prints it: for each look-up the number of the greatest channel, from 1.
    verification: u64,
}

impl Lookups {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let (nuclides, points) = (NUCLIDES[shape.reactor], shape.points);
        let mut random = Random::new(seed, 0);
        let mut energies: Vec<_> = (0..nuclides * points).map(|_| random.unit()).collect();
        for grid in energies.chunks_mut(points) {
            grid.sort_unstable_by(f64::total_cmp);
        }
        let mut unionised = energies.clone();
        unionised.sort_unstable_by(f64::total_cmp);
        let mut lookups = Self {
            code,
            columns: shape.columns,
            points,
            index: Vec::with_capacity(unionised.len() / SPACING * nuclides + nuclides),
            materials: std::array::from_fn(|material| composition(shape.reactor, material)),
            nuclides,
            most: MOST[shape.reactor],
            left: LOOKUPS * unionised.len() as u64,
            energies,
            unionised,
            seed,
            random: Random::new(seed, 1),
            verification: 0,
        };
        let mut row = vec![0; nuclides];
        for energy in (0..lookups.unionised.len()).step_by(SPACING) {
            for (nuclide, below) in row.iter_mut().enumerate() {
                *below = lookups.advance(nuclide, *below, energy);
            }
            lookups.index.extend(row.iter().map(|&below| below as u32));
        }
        lookups
    }

    /// The last of a nuclide's points, from `below` on, that is not above the `row`th energy of the
    /// unionised grid; but never the very last, so that there is one above.
    fn advance(&self, nuclide: usize, mut below: usize, row: usize) -> usize {
        let grid = &self.energies[nuclide * self.points..][..self.points];
        while below + 2 < self.points && grid[below + 1] <= self.unionised[row] {
            below += 1;
        }
        below
    }

    /// The cross section of one channel at a point.
    fn cross_section(&self, point: usize, channel: usize) -> f64 {
        unit(mix(self.seed ^ (point * CHANNELS + channel) as u64))
    }

    fn concentration(&self, slot: usize) -> f64 {
        unit(mix(!self.seed ^ slot as u64))
    }

    /// The macroscopic cross sections of a material for neutrons of an energy.
    fn look_up(&self, out: &mut impl Emitter, energy: f64, material: usize) -> [f64; CHANNELS] {
        let Self { code, columns, .. } = self;
        out.enter(code.lookup);
        columns.number.load(out, material);
        let (mut lower, mut length) = (0, self.unionised.len());
        while length > 1 {
            out.enter(code.search);
            let half = length / 2;
            columns.energy.load(out, lower + half);
            if self.unionised[lower + half] > energy {
                length = half;
            } else {
                lower += half;
                length -= half;
            }
        }
        let mut sums = [0.0; CHANNELS];
        for (place, &nuclide) in self.materials[material].iter().enumerate() {
            out.enter(code.nuclide);
            let slot = material * self.most + place;
            columns.nuclide.load(out, slot);
            columns.concentration.load(out, slot);
            let concentration = self.concentration(slot);
            columns.index.load(out, lower * self.nuclides + nuclide);
            let stored = self.index[lower / SPACING * self.nuclides + nuclide] as usize;
            let low = nuclide * self.points + self.advance(nuclide, stored, lower);
            let high = low + 1;
            for point in [high, low] {
                columns.point[0].load(out, point);
            }
            let factor =
                (self.energies[high] - energy) / (self.energies[high] - self.energies[low]);
            for (channel, sum) in sums.iter_mut().enumerate() {
                for point in [high, low] {
                    columns.point[1 + channel].load(out, point);
                }
                let above = self.cross_section(high, channel);
                let below = self.cross_section(low, channel);
                *sum += concentration * (above - factor * (above - below));
            }
        }
        out.enter(code.finish);
        sums
    }
}

impl Algorithm for Lookups {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let energy = self.random.unit();
        let mut roll = self.random.unit();
        let other = CHANCES.iter().position(|chance| {
            roll -= chance;
            roll < 0.0
        });
        let sums = self.look_up(out, energy, other.map_or(0, |other| other + 1));
        let greatest = (0..CHANNELS).max_by(|&a, &b| sums[a].total_cmp(&sums[b]));
        self.verification += 1 + greatest.unwrap_or(0) as u64;
        // So that the next look-up depends on this one, in the program as here.
        for _ in sums.iter().filter(|&&sum| sum > 1.0) {
            self.random.word();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Native;

    /// Without the unionised grid: each nuclide's own points are searched from one end to the other.
    fn directly(lookups: &Lookups, energy: f64, material: usize) -> [f64; CHANNELS] {
        let mut sums = [0.0; CHANNELS];
        for (place, &nuclide) in lookups.materials[material].iter().enumerate() {
            let points = nuclide * lookups.points..(nuclide + 1) * lookups.points;
            let below = points.clone().rev().find(|&point| lookups.energies[point] <= energy);
            let low = below.unwrap_or(points.start).min(points.end - 2);
            let [from, to] = [low, low + 1].map(|point| lookups.energies[point]);
            for (channel, sum) in sums.iter_mut().enumerate() {
                let [a, b] = [low, low + 1].map(|point| lookups.cross_section(point, channel));
                let share = (energy - from) / (to - from);
                let slot = material * lookups.most + place;
                *sum += lookups.concentration(slot) * (a * (1.0 - share) + b * share);
            }
        }
        sums
    }

    #[test]
    fn cross_sections_are_those_found_directly() {
        for size_bytes in [64 << 10, 4 << 20, 300 << 20] {
            let code = Code::new(&mut Assembler::new());
            let lookups = Lookups::new(&Shape::of(&Arguments::new(size_bytes, 1)), code, 1);
            let least = lookups.unionised[0];
            let mut random = Random::new(2, 0);
            for turn in 0..600 {
                // The search presumes an energy within the grid.
                let energy = random.unit().max(least);
                let found = lookups.look_up(&mut Native, energy, turn % MATERIALS);
                let expected = directly(&lookups, energy, turn % MATERIALS);
                for (found, expected) in found.into_iter().zip(expected) {
                    let difference = (found - expected).abs();
                    assert!(difference <= 1e-6 * expected.abs().max(1.0), "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn the_papers_size_is_the_large_reactor() {
        let shape = Shape::of(&Arguments::new(5648 << 20, 1));
        assert_eq!((shape.reactor, shape.points), (1, 11_302));
        assert!((CHANCES.iter().sum::<f64>() - 0.861).abs() < 1e-9);
    }

    /// The counts are those of `load_num_nucs`, the sums were made from the lists of `load_mats`.
    #[test]
    fn materials_are_those_of_xsbench() {
        let others = [5, 4, 4, 27, 21, 21, 21, 21, 21, 9, 9];
        for (reactor, nuclides) in NUCLIDES.into_iter().enumerate() {
            let materials: [_; MATERIALS] =
                std::array::from_fn(|material| composition(reactor, material));
            let counts = materials.each_ref().map(Vec::len);
            assert_eq!((counts[0], &counts[1..]), (MOST[reactor], &others[..]));
            for material in &materials {
                let mut different = material.clone();
                different.sort_unstable();
                different.dedup();
                assert_eq!(different.len(), material.len());
                assert!(different.iter().all(|&nuclide| nuclide < nuclides));
            }
            // Each nuclide times its place, from 1 on, so that the order counts.
            let sums = materials.each_ref().map(|material| {
                (1..).zip(material).map(|(place, nuclide)| place * nuclide).sum::<usize>()
            });
            let fuel = [20_793, 12_769_907][reactor];
            assert_eq!(
                (sums[0], &sums[1..]),
                (fuel, &[985, 138, 138, 9621, 6453, 6453, 6453, 6453, 6453, 2423, 2423][..])
            );
        }
        // The large reactor's fuel goes through the grids beyond the small one's in their order.
        assert!(composition(1, 0)[34..].iter().copied().eq(68..355));
        assert_eq!(composition(1, 0)[..34], composition(0, 0));
    }
}
