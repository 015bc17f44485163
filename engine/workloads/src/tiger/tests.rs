//! The assembly against what the genome says.

use super::*;
use crate::program::Assembler;
use crate::simulated::Native;

/// An assembly of a genome without repeats, after the comparison and at its end.
fn assembled(size_bytes: u64, seed: u64) -> (Vec<Candidate>, Assembly) {
    let shape = Shape::of(&Arguments::new(size_bytes, seed));
    let mut random = Random::new(seed, 7);
    let length = (shape.fragments * LENGTH / COVERAGE).max(2 * LENGTH);
    let genome = (0..length).map(|_| random.below(4) as u8).collect();
    let mut assembly = Assembly::new(&shape, Code::new(&mut Assembler::new()), genome, seed);
    while matches!(assembly.stage, Stage::Compare { .. }) {
        assembly.step(&mut Native);
    }
    let candidates = assembly.candidates.clone();
    while assembly.step(&mut Native) {}
    (candidates, assembly)
}

/// Words that two fragments share, by comparing all places.
fn shared(assembly: &Assembly, first: usize, second: usize) -> u32 {
    let letters = |fragment| (0..LENGTH).map(move |place| assembly.letter(fragment, place));
    let [first, second] = [first, second].map(|fragment| letters(fragment).collect::<Vec<_>>());
    let same = |word: &[u8]| second.windows(assembly.word).filter(|other| *other == word).count();
    first.windows(assembly.word).map(|word| same(word) as u32).sum()
}

#[test]
fn candidates_are_those_of_a_comparison_of_all_pairs() {
    let (candidates, assembly) = assembled(400 << 10, 1);
    let fragments = assembly.starts.len();
    assert!(candidates.len() > fragments);
    for first in 0..fragments {
        let of_first = || candidates.iter().filter(|candidate| candidate.first == first as u32);
        assert!(of_first().count() <= KEPT);
        for second in first + 1..fragments {
            let found = of_first().find(|candidate| candidate.second == second as u32);
            let words = shared(&assembly, first, second);
            match found {
                Some(candidate) => assert_eq!(candidate.shared, words),
                None => assert!(words < assembly.least() || of_first().count() == KEPT),
            }
        }
    }
    assert!(assembly.candidates.is_sorted_by(|a, b| a.shared >= b.shared));
    assert_eq!(assembly.candidates.len(), candidates.len());
}

#[test]
fn contigs_are_the_genome() {
    for seed in 1..4 {
        let (_, assembly) = assembled(4 << 20, seed);
        let fragments = assembly.starts.len();
        // Fragments of a contig lie as in the genome.
        for fragment in 0..fragments {
            let contig = assembly.contig.values[fragment] as usize;
            let offset = |of: usize| i64::from(assembly.offset.values[of]);
            let start = |of: usize| i64::from(assembly.starts[of]);
            assert_eq!(offset(fragment) - offset(contig), start(fragment) - start(contig));
        }
        // And there are as many as gaps say: neighbours in the genome with an overlap that is too short.
        let mut starts = assembly.starts.clone();
        starts.sort_unstable();
        let gaps = |least: u32| {
            1 + starts.windows(2).filter(|pair| pair[1] - pair[0] + least > LENGTH as u32).count()
        };
        let heads = (0..fragments).filter(|&of| assembly.contig.values[of] as usize == of).count();
        assert_eq!(assembly.contigs, heads);
        assert!((gaps(0)..=gaps(150)).contains(&heads), "{} {heads} {}", gaps(0), gaps(150));
        assert!(heads < fragments / 10, "{heads} of {fragments}");
    }
}

#[test]
fn sizes_are_filled() {
    for size_bytes in [64 << 10, 128 << 10, 1 << 20, 512 << 20, 16 << 30] {
        let shape = Shape::of(&Arguments::new(size_bytes, 1));
        let bytes = shape.layout.bytes();
        assert!(bytes <= size_bytes && bytes + 10_000 > size_bytes, "{bytes} {size_bytes}");
        assert_eq!(shape.word == MOST_WORD, size_bytes >= 32 << 20);
    }
}
