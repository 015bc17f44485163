//! `tiger`: assembly of a genome from overlapping fragments, as TIGR Assembler does it.
//!
//! Source: Sutton, White, Adams and Kerlavage, "TIGR Assembler: a new tool for assembling large shotgun
//! sequencing projects", Genome Science and Technology 1, 1995 (BioBench's tiger): all pairs of fragments
//! are compared by the words of ten letters that they share, through a table of all words; pairs that
//! share more than chance gives are candidates; the best first, they are aligned (Smith and Waterman, 1981,
//! in a band around the diagonal on which most words lie) and, if they overlap well, their contigs joined.
//!
//! ```text
//! fragment  512 bytes of letters, and a record: letters 8, length, contig, offset, next member, last
//!           member, members 6 x 4, and 16 for what is not used here
//! table     8 bytes a word: its last occurrence
//! entry     16 bytes an occurrence: the one before 8, fragment 4, place 4
//! and       words shared and diagonal 8 a fragment, a list of fragments 4, and two lists of 16 candidates of
//!           16 bytes each
//! ```
//!
//! Fragments have 500 letters of a drawn genome (`genome.rs`) at random places, six on each letter, with
//! one letter in a hundred drawn anew. A fragment keeps 16 candidates: one with more is a repeat's. Tables
//! of small inputs are of shorter words. Traced are the comparison, the sorting and the joining; the
//! table of words is there. Departs from it: fragments come from one strand, and the consensus of a
//! contig's letters is not computed.
//!
//! This process's memory holds the genome, the list of each word, and what is computed.

mod code;
mod join;
#[cfg(test)]
mod tests;

use flatwalk_trace::Source;

use crate::genome;
use crate::rng::{Random, mix};
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};
use code::Code;

pub(crate) const DESCRIPTION: Description = crate::describe(
    "tiger",
    "assembly of a genome from fragments, as TIGR Assembler: follows lists of the places where words \
     occur, and aligns pairs",
    16 << 30,
    &[
        Parameter {
            name: "size_bytes",
            description: "fragments, words and candidates, in bytes: 64 KiB to 16 GiB (takes a third \
                          as much memory)",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
);

const LENGTH: usize = 500;
const COVERAGE: usize = 6;
/// One letter in this many is drawn anew.
const ERRORS: u64 = 100;
/// Most letters of a word.
const MOST_WORD: u32 = 10;
/// Words that candidates share in addition to those shared by chance.
const SHARED: u32 = 20;
/// Candidates that a fragment keeps.
const KEPT: usize = 16;
/// Diagonals on either side of an alignment's, and what a gap costs; a letter counts 1.
const BAND: usize = 8;
const GAP: i32 = 2;
/// Tenths of an overlap's length that its score must reach.
const GOOD: usize = 9;
/// No entry, and no fragment.
const NONE: u32 = u32::MAX;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        let length = (shape.fragments * LENGTH / COVERAGE).max(2 * LENGTH);
        let genome = genome::reference(&mut Random::new(seed, 0), length);
        Assembly::new(&shape, code, genome, seed)
    })
}

struct Shape {
    fragments: usize,
    /// Letters of a word.
    word: u32,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    letter: Column,
    /// Of fragments' records.
    letters: Column,
    length: Column,
    contig: Column,
    offset: Column,
    next: Column,
    last: Column,
    members: Column,
    /// Of the table and its entries.
    head: Column,
    before: Column,
    fragment: Column,
    place: Column,
    /// Of fragments that share words.
    count: Column,
    diagonal: Column,
    touched: Column,
    /// Words of candidates in both lists, and their halves.
    candidate: [Column; 2],
    half: [Column; 2],
    cell: Column,
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let size = arguments.size_bytes;
        let word = ((size / 32).ilog2() / 2).min(MOST_WORD);
        let words = 1_u64 << (2 * word);
        let entries = (LENGTH as u64 + 1) - u64::from(word);
        let kept = 2 * 16 * KEPT as u64;
        let fragment = 512 + 48 + 16 * entries + 8 + 4 + kept;
        let fragments = (size - 8 * words - 256) / fragment;
        let mut layout = Layout::new(arguments);
        let letters = layout.objects(fragments, 512);
        let record = layout.records(fragments, 48);
        let table = layout.array(words, 8);
        let entry = layout.records(fragments * entries, 16);
        let count = layout.records(fragments, 8);
        let touched = layout.array(fragments, 4);
        let lists = [0, 1].map(|_| layout.records(fragments * KEPT as u64, 16));
        let columns = Columns {
            letter: letters.split(1),
            letters: record.field(0, 8),
            length: record.field(8, 4),
            contig: record.field(12, 4),
            offset: record.field(16, 4),
            next: record.field(20, 4),
            last: record.field(24, 4),
            members: record.field(28, 4),
            head: table,
            before: entry.field(0, 8),
            fragment: entry.field(8, 4),
            place: entry.field(12, 4),
            count: count.field(0, 4),
            diagonal: count.field(4, 4),
            touched,
            candidate: lists.map(|list| list.split(4)),
            half: lists.map(|list| list.split(8)),
            cell: layout.array(2 * BAND as u64 + 2, 4),
        };
        Self { fragments: fragments as usize, word, layout, columns }
    }
}

/// Two fragments that share words; the second begins at place `diagonal` of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    shared: u32,
    first: u32,
    second: u32,
    diagonal: i32,
}

/// Words that a fragment shares with the one that is compared, and the diagonal that leads in votes.
#[derive(Clone, Copy, Default)]
struct Common {
    words: u32,
    votes: u32,
    diagonal: i32,
}

/// What comes next.
enum Stage {
    /// This place of this fragment is looked up; these words of it have been read.
    Compare { fragment: usize, place: usize, word: usize },
    /// Runs of this width are merged, this one next.
    Sort { width: usize, run: usize },
    /// This candidate is aligned.
    Join { candidate: usize },
}

struct Assembly {
    code: Code,
    columns: Columns,
    /// Letters of a word.
    word: usize,
    genome: Vec<u8>,
    seed: u64,
    /// Where each fragment begins in the genome.
    starts: Vec<u32>,
    /// The last entry of each word, and the one before each entry.
    heads: Vec<u32>,
    before: Vec<u32>,
    common: Vec<Common>,
    touched: Vec<u32>,
    candidates: Vec<Candidate>,
    sorted: Vec<Candidate>,
    /// In which of the two lists the candidates are.
    list: usize,
    contig: Array<u32>,
    offset: Array<i32>,
    next: Array<u32>,
    last: Array<u32>,
    members: Array<u32>,
    cells: Array<i32>,
    stage: Stage,
    /// The answer: contigs.
    contigs: usize,
}

impl Assembly {
    fn new(shape: &Shape, code: Code, genome: Vec<u8>, seed: u64) -> Self {
        let (fragments, columns) = (shape.fragments, shape.columns);
        let mut random = Random::new(seed, 1);
        let places = (genome.len() - LENGTH + 1) as u64;
        let alone: Vec<_> = (0..fragments as u32).collect();
        let mut assembly = Self {
            code,
            columns,
            word: shape.word as usize,
            starts: (0..fragments).map(|_| random.below(places) as u32).collect(),
            heads: vec![NONE; 1 << (2 * shape.word)],
            before: Vec::new(),
            common: vec![Common::default(); fragments],
            touched: Vec::new(),
            candidates: Vec::new(),
            sorted: Vec::new(),
            list: 0,
            contig: columns.contig.holding(alone.clone()),
            offset: columns.offset.holding(vec![0; fragments]),
            next: columns.next.holding(vec![NONE; fragments]),
            last: columns.last.holding(alone),
            members: columns.members.holding(vec![1; fragments]),
            cells: columns.cell.holding(vec![0; 2 * BAND + 2]),
            stage: Stage::Compare { fragment: 0, place: 0, word: 0 },
            contigs: fragments,
            genome,
            seed,
        };
        for fragment in 0..fragments {
            let mut word = 0;
            for place in 0..LENGTH {
                word = assembly.shift(word, fragment, place);
                if place + 1 >= assembly.word {
                    let entry = assembly.before.len() as u32;
                    assembly.before.push(std::mem::replace(&mut assembly.heads[word], entry));
                }
            }
        }
        assembly
    }

    /// A fragment's letter: the genome's, with errors.
    fn letter(&self, fragment: usize, place: usize) -> u8 {
        let drawn = mix(self.seed ^ (fragment * LENGTH + place) as u64);
        if drawn.is_multiple_of(ERRORS) {
            (drawn >> 60) as u8 & 3
        } else {
            self.genome[self.starts[fragment] as usize + place]
        }
    }

    /// The word that ends at a place, from the one before it.
    fn shift(&self, word: usize, fragment: usize, place: usize) -> usize {
        (word << 2 | usize::from(self.letter(fragment, place))) & (self.heads.len() - 1)
    }

    /// Words of a fragment.
    fn words(&self) -> usize {
        LENGTH + 1 - self.word
    }

    /// Words that two fragments share as candidates: more than chance gives.
    fn least(&self) -> u32 {
        SHARED + (LENGTH * LENGTH / self.heads.len()) as u32
    }

    /// Looks the word up that ends at a place, and counts the later fragments that have it.
    #[expect(clippy::cast_possible_wrap, reason = "places in a fragment are below 500")]
    fn look_up(&mut self, out: &mut impl Emitter, fragment: usize, place: usize, word: usize) {
        out.enter(self.code.place);
        self.columns.letter.load(out, 512 * fragment + place);
        self.columns.head.load(out, word);
        let mut entry = if place + 1 < self.word { NONE } else { self.heads[word] };
        while entry != NONE {
            let (other, begins) = (entry as usize / self.words(), entry as usize % self.words());
            out.enter(self.code.entry);
            self.columns.fragment.load(out, entry as usize);
            if other <= fragment {
                break;
            }
            out.enter(self.code.count);
            self.columns.count.load(out, other);
            let common = &mut self.common[other];
            if common.words == 0 {
                out.enter(self.code.touch);
                self.columns.touched.store(out, self.touched.len());
                self.touched.push(other as u32);
            }
            out.enter(self.code.vote);
            self.columns.place.load(out, entry as usize);
            self.columns.diagonal.load(out, other);
            let diagonal = (place + 1 - self.word) as i32 - begins as i32;
            common.words += 1;
            if common.votes == 0 {
                (common.diagonal, common.votes) = (diagonal, 1);
            } else if common.diagonal == diagonal {
                common.votes += 1;
            } else {
                common.votes -= 1;
            }
            self.columns.count.store(out, other);
            self.columns.diagonal.store(out, other);
            self.columns.before.load(out, entry as usize);
            entry = self.before[entry as usize];
        }
        out.enter(self.code.next_place);
    }

    /// The candidates of a fragment that has been compared.
    fn collect(&mut self, out: &mut impl Emitter, fragment: usize) {
        let (least, begin) = (self.least(), self.candidates.len());
        out.enter(self.code.counted);
        for place in 0..self.touched.len() {
            out.enter(self.code.collect);
            let other = self.touched[place];
            self.columns.touched.load(out, place);
            self.columns.count.load(out, other as usize);
            self.columns.count.store(out, other as usize);
            let Common { words, diagonal, .. } = std::mem::take(&mut self.common[other as usize]);
            if words >= least && self.candidates.len() < begin + KEPT {
                out.enter(self.code.candidate);
                self.columns.diagonal.load(out, other as usize);
                let number = self.candidates.len();
                (0..4).for_each(|word| self.columns.candidate[0].store(out, 4 * number + word));
                let (first, second) = (fragment as u32, other);
                self.candidates.push(Candidate { shared: words, first, second, diagonal });
            }
            out.enter(self.code.next_touched);
        }
        self.touched.clear();
        out.enter(self.code.next_fragment);
    }

    /// Merges two runs of sorted candidates from one list into the other.
    fn merge(&mut self, out: &mut impl Emitter, width: usize, run: usize) {
        let end = |run: usize| run.min(self.candidates.len());
        let (mut left, left_end) = (end(run), end(run + width));
        let (mut right, right_end) = (left_end, end(run + 2 * width));
        let columns = self.columns;
        let (from, to) = (self.list, 1 - self.list);
        let copy = |out: &mut _, place: usize, into: usize| {
            (0..2).for_each(|half| columns.half[from].load(out, 2 * place + half));
            (0..2).for_each(|half| columns.half[to].store(out, 2 * into + half));
        };
        out.enter(self.code.run);
        while left < left_end && right < right_end {
            out.enter(self.code.merge);
            columns.candidate[from].load(out, 4 * left);
            columns.candidate[from].load(out, 4 * right);
            let first = self.candidates[left].shared >= self.candidates[right].shared;
            let place = if first { &mut left } else { &mut right };
            copy(out, *place, self.sorted.len());
            self.sorted.push(self.candidates[*place]);
            *place += 1;
        }
        out.enter(self.code.rest_test);
        for place in (left..left_end).chain(right..right_end) {
            out.enter(self.code.rest);
            copy(out, place, self.sorted.len());
            self.sorted.push(self.candidates[place]);
        }
        out.enter(self.code.run_end);
    }
}

impl Algorithm for Assembly {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        match self.stage {
            Stage::Compare { fragment, place, word } => {
                if place == 0 {
                    out.enter(self.code.fragment);
                    self.columns.letters.load(out, fragment);
                    self.columns.length.load(out, fragment);
                }
                let word = self.shift(word, fragment, place);
                self.look_up(out, fragment, place, word);
                self.stage = if place + 1 < LENGTH {
                    Stage::Compare { fragment, place: place + 1, word }
                } else {
                    self.collect(out, fragment);
                    if fragment + 1 < self.starts.len() {
                        Stage::Compare { fragment: fragment + 1, place: 0, word: 0 }
                    } else {
                        Stage::Sort { width: 1, run: 0 }
                    }
                };
            }
            Stage::Sort { width, run } => {
                self.merge(out, width, run);
                self.stage = if run + 2 * width < self.candidates.len() {
                    Stage::Sort { width, run: run + 2 * width }
                } else {
                    out.enter(self.code.pass_end);
                    self.candidates = std::mem::take(&mut self.sorted);
                    self.list = 1 - self.list;
                    if 2 * width < self.candidates.len() {
                        Stage::Sort { width: 2 * width, run: 0 }
                    } else {
                        Stage::Join { candidate: 0 }
                    }
                };
            }
            Stage::Join { candidate } => {
                if candidate >= self.candidates.len() {
                    return false;
                }
                self.join(out, candidate);
                self.stage = Stage::Join { candidate: candidate + 1 };
            }
        }
        true
    }
}
