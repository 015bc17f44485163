//! The benchmark against what a client expects.

use std::collections::HashMap;

use super::*;
use crate::dbx1000::tests::Pointers;
use crate::open;
use crate::program::tests::play;
use crate::simulated::Native;

fn benchmark(size_bytes: u64, keys: Keys) -> Benchmark {
    let shape = Shape::of(&Arguments::new(size_bytes, 1));
    let mut assembler = Assembler::new();
    let code = Code::new(&mut assembler);
    Benchmark::new(&shape, code, Functions::new(&mut assembler), keys, 1)
}

#[test]
fn a_row_has_the_time_of_its_last_write() {
    let mut benchmark = benchmark(1 << 20, Keys::Zipfian);
    // When each row was written, and until when it has been read.
    let mut expected: HashMap<usize, (u32, u32)> = HashMap::new();
    let (mut asked, mut written) = (0_u32, 0_u32);
    for _ in 0..2000 {
        benchmark.draw();
        benchmark.run(&mut Native);
        let requests = benchmark.requests.clone();
        let before = expected.clone();
        let times = |key| before.get(&key).copied().unwrap_or((0, 0));
        let bounds = requests.iter().map(|request| {
            let (written, read) = times(request.key);
            if request.writes { read + 1 } else { written }
        });
        let commit = bounds.max().unwrap();
        for Request { key, writes } in requests {
            let (before, read) = times(key);
            expected
                .insert(key, if writes { (commit, commit) } else { (before, read.max(commit)) });
            asked += 1;
            written += u32::from(writes);
        }
        for (&key, &(time, _)) in &expected {
            assert_eq!(benchmark.engine.written(&benchmark.table, key), time, "{key}");
        }
    }
    assert!((0.09..0.11).contains(&(f64::from(written) / f64::from(asked))), "{written} {asked}");
}

/// Each access to a record depends on the pointer to it, from the bucket on.
#[test]
fn records_are_reached_through_pointers() {
    let arguments = Arguments::new(64 << 10, 1);
    let shape = Shape::of(&arguments);
    let mut pointers = Pointers::new(&[shape.table]);
    pointers.load(&shape.table, &shape.index, |key| key as u64);
    let mut benchmark = benchmark(64 << 10, Keys::Zipfian);
    let (mut blocks, mut first) = (play(open("ycsb", &arguments).unwrap()).1.into_iter(), None);
    let (mut requests, mut instructions, mut loads) = (0, 0, 0);
    let pointer = |key| shape.table.row_pointer(key, &shape.index);
    let keys: HashMap<u64, usize> = (0..shape.table.rows).map(|key| (pointer(key), key)).collect();
    while benchmark.left > 0 {
        benchmark.draw();
        benchmark.left = benchmark.left.saturating_sub(benchmark.requests.len() as u64);
        requests += benchmark.requests.len();
        let mut asked: Vec<usize> = Vec::new();
        // A transaction's blocks, from its first to its last.
        loop {
            let (block, addresses) = blocks.next().unwrap();
            let pc = block.instructions[0].pc;
            let begin = *first.get_or_insert(pc);
            loads += pointers.run(&block, &addresses);
            instructions += block.instructions.len();
            asked.extend(addresses.iter().filter_map(|address| keys.get(address).copied()));
            if blocks.as_slice().first().is_none_or(|(next, _)| next.instructions[0].pc == begin) {
                break;
            }
        }
        // Its items, by which it found the records, are those of the keys in a map.
        let expected = benchmark.requests.iter().map(|request| request.key).collect::<Vec<_>>();
        assert_eq!(asked, expected);
    }
    assert!(blocks.next().is_none());
    let each = |count: usize| count as f64 / requests as f64;
    assert!((450.0..510.0).contains(&each(instructions)), "{} a request", each(instructions));
    assert!((18.0..23.0).contains(&each(loads)), "{} loads a request", each(loads));
}

/// How often each key is asked for.
fn counts(benchmark: &mut Benchmark, transactions: u32) -> (Vec<u32>, u32) {
    let mut counts = vec![0; benchmark.table.rows];
    for _ in 0..transactions {
        benchmark.draw();
        benchmark.requests.iter().for_each(|request| counts[request.key] += 1);
    }
    let all = counts.iter().sum();
    (counts, all)
}

#[test]
fn popularity_falls_with_the_key() {
    let mut benchmark = benchmark(64 << 20, Keys::Zipfian);
    let (counts, all) = counts(&mut benchmark, 30_000);
    assert_eq!(counts[0], 0);
    let weight = |key: usize| (key as f64).powf(-EXPONENT);
    let weights: f64 = (1..counts.len()).map(weight).sum();
    for range in [1..2, 2..3, 3..10, 10..1000, 1000..counts.len()] {
        let expected: f64 = f64::from(all) * range.clone().map(weight).sum::<f64>() / weights;
        let found = f64::from(counts[range.clone()].iter().sum::<u32>());
        // What is asked for twice in a transaction makes a small difference.
        let tolerance = 6.0 * expected.sqrt() + expected * 0.01;
        assert!((found - expected).abs() < tolerance, "{range:?}: {found} {expected}");
    }
}

#[test]
fn uniform_keys_have_equal_shares() {
    let mut benchmark = benchmark(1 << 20, Keys::Uniform);
    let (counts, all) = counts(&mut benchmark, 20_000);
    let expected = f64::from(all) / (counts.len() - 1) as f64;
    let far = |&&count: &&u32| (f64::from(count) - expected).abs() > 6.0 * expected.sqrt();
    assert_eq!(counts[1..].iter().filter(far).count(), 0, "{expected} each");
}

#[test]
fn sizes_are_filled() {
    for size_bytes in (64 << 10..512 << 10).step_by(1000).chain([1 << 30, 1 << 40]) {
        let shape = Shape::of(&Arguments::new(size_bytes, 1));
        let bytes = shape.layout.bytes();
        assert!(bytes <= size_bytes && bytes + 1000 > size_bytes, "{bytes} {size_bytes}");
    }
    // The 20 million of the papers.
    let records = Shape::of(&Arguments::new(7062 << 20, 1)).table.rows as f64;
    assert!((records / 20e6 - 1.0).abs() < 0.001, "{records}");
}
