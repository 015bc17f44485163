//! Alignments, and the contigs that they join.

use super::{Assembly, BAND, Candidate, GAP, GOOD, LENGTH, NONE, SHARED};
use crate::simulated::Emitter;

impl Assembly {
    /// Aligns a candidate's fragments, unless they are together already, and joins their contigs.
    pub(super) fn join(&mut self, out: &mut impl Emitter, number: usize) {
        let Candidate { first, second, diagonal, .. } = self.candidates[number];
        let (first, second) = (first as usize, second as usize);
        out.enter(self.code.pair);
        (0..4).for_each(|word| self.columns.candidate[self.list].load(out, 4 * number + word));
        let contigs = [first, second].map(|fragment| self.contig.load(out, fragment) as usize);
        if contigs[0] != contigs[1] {
            let score = self.align(out, first, second, diagonal);
            out.enter(self.code.judge);
            let overlap = LENGTH - (diagonal.unsigned_abs() as usize).min(LENGTH);
            if 10 * score as usize >= GOOD * overlap && score as u32 >= SHARED {
                self.unite(out, [first, second], contigs, diagonal);
            }
        }
        out.enter(self.code.next_pair);
    }

    /// The best local alignment's score within the band.
    #[expect(clippy::cast_possible_wrap, reason = "places in a fragment are below 500")]
    fn align(&mut self, out: &mut impl Emitter, first: usize, second: usize, diagonal: i32) -> i32 {
        out.enter(self.code.align);
        self.columns.letters.load(out, first);
        self.columns.letters.load(out, second);
        self.columns.length.load(out, first);
        self.columns.length.load(out, second);
        self.cells.values.fill(0);
        let (mut best, length) = (0, LENGTH as i32);
        for row in diagonal.max(0)..length.min(length + diagonal) {
            out.enter(self.code.row);
            self.columns.letter.load(out, 512 * first + row as usize);
            let letter = self.letter(first, row as usize);
            let mut score = 0;
            for cell in 0..=2 * BAND {
                let column = row - diagonal + cell as i32 - BAND as i32;
                if !(0..length).contains(&column) {
                    continue;
                }
                out.enter(self.code.cell);
                self.columns.letter.load(out, 512 * second + column as usize);
                let before = self.cells.load(out, cell);
                let above = self.cells.load(out, cell + 1);
                let equal = letter == self.letter(second, column as usize);
                let along = before + if equal { 1 } else { -1 };
                score = along.max(above - GAP).max(score - GAP).max(0);
                self.cells.store(out, cell, score);
                best = best.max(score);
            }
            out.enter(self.code.row_end);
        }
        best
    }

    /// Moves the fragments of the smaller contig into the larger one.
    fn unite(
        &mut self,
        out: &mut impl Emitter,
        fragments: [usize; 2],
        contigs: [usize; 2],
        diagonal: i32,
    ) {
        out.enter(self.code.join);
        let [first, second] = fragments.map(|fragment| self.offset.load(out, fragment));
        let members = contigs.map(|contig| self.members.load(out, contig));
        let shift = first + diagonal - second;
        let (large, small, shift) = if members[0] >= members[1] {
            (contigs[0], contigs[1], shift)
        } else {
            (contigs[1], contigs[0], -shift)
        };
        let mut member = small;
        loop {
            out.enter(self.code.member);
            let offset = self.offset.load(out, member);
            self.offset.store(out, member, offset + shift);
            self.contig.store(out, member, large as u32);
            let next = self.next.load(out, member);
            if next == NONE {
                break;
            }
            member = next as usize;
        }
        out.enter(self.code.joined);
        let last = self.last.load(out, large) as usize;
        self.next.store(out, last, small as u32);
        self.last.store(out, large, member as u32);
        self.members.store(out, large, members[0] + members[1]);
        self.contigs -= 1;
    }
}
