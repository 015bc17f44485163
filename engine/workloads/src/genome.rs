//! Genomes that are drawn, as letters 0 to 3.

use crate::rng::Random;

/// Letters of a piece.
const PIECE: usize = 1000;
/// One piece in this many is a copy, and one letter in this many of a copy is drawn anew.
const COPIES: u64 = 4;
const CHANGED: u64 = 10;
/// One letter in this many of a query is drawn anew.
const MUTATED: u64 = 50;

/// Random pieces, and copies of earlier places with some letters drawn anew: repeats.
pub(crate) fn reference(random: &mut Random, length: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(length);
    while text.len() < length {
        let piece = PIECE.min(length - text.len());
        if text.len() > piece && random.below(COPIES) == 0 {
            let copied = copy(random, &text, piece, CHANGED);
            text.extend(copied);
        } else {
            text.extend((0..piece).map(|_| random.below(4) as u8));
        }
    }
    text
}

/// Pieces of `genome` with a few letters drawn anew.
pub(crate) fn query(random: &mut Random, length: usize, genome: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(length);
    while text.len() < length {
        text.extend(copy(random, genome, PIECE.min(length - text.len()), MUTATED));
    }
    text
}

/// A copy of `piece` letters from a drawn place, one in `one_in` of them drawn anew.
fn copy(random: &mut Random, from: &[u8], piece: usize, one_in: u64) -> Vec<u8> {
    let place = random.below((from.len() - piece + 1) as u64) as usize;
    from[place..][..piece]
        .iter()
        .map(|&letter| if random.below(one_in) == 0 { random.below(4) as u8 } else { letter })
        .collect()
}
