//! The matches against a comparison of all places.

use super::*;
use crate::program::Assembler;
use crate::simulated::Native;

#[test]
fn matches_are_those_of_a_comparison_of_all_places() {
    for seed in 1..4 {
        let shape = Shape::of(&Arguments::new(100 << 10, seed));
        let mut matching = Matching::new(&shape, Code::new(&mut Assembler::new()), seed);
        while matching.step(&mut Native) {}
        let (text, query) = (&matching.tree.text, &matching.query);
        let (mut matches, mut sum) = (0, 0);
        for place in 0..text.len() {
            for suffix in 0..query.len() {
                if place > 0 && suffix > 0 && text[place - 1] == query[suffix - 1] {
                    continue;
                }
                let pairs = text[place..].iter().zip(&query[suffix..]);
                let length = pairs.take_while(|(a, b)| a == b).count();
                if length >= LEAST_MATCH {
                    matches += 1;
                    sum += match_value(place, suffix, length);
                }
            }
        }
        assert!(matches > 20, "{matches}");
        assert_eq!((matching.matches, matching.sum), (matches, sum));
    }
}

#[test]
fn references_to_nodes_have_bits_for_the_greatest_size() {
    let shape = Shape::of(&Arguments::new(DESCRIPTION.greatest_bytes, 1));
    let words = shape.letters as f64 * WORDS_A_LETTER;
    assert!(words < f64::from(LEAF), "{words} words");
    assert!(shape.letters < LEAF as usize, "references to leaves have as many");
}

#[test]
fn the_tree_takes_the_room_that_it_is_given() {
    for size_bytes in [64 << 10, 1 << 20, 32 << 20] {
        let shape = Shape::of(&Arguments::new(size_bytes, 1));
        let bytes = shape.layout.bytes();
        assert!(bytes <= size_bytes && bytes + 512 > size_bytes, "{bytes} {size_bytes}");
        let words = Tree::new(genome::reference(&mut Random::new(1, 0), shape.letters)).table.len();
        let of_letter = words as f64 / shape.letters as f64;
        assert!((0.85..1.0).contains(&(of_letter / WORDS_A_LETTER)), "{of_letter}");
    }
}
