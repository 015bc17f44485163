//! How instructions wait for each other's results and stores, in cycles by hand.
//!
//! The test machine's L1D takes 4 cycles and its memory 142; all other operations here take one.

use std::sync::Arc;

use flatwalk_trace::{Access, Block, Branch, Instruction, Operands, Slice};

use crate::config::scheme::TranslationMode;
use crate::core::decode::BlockDecoder;
use crate::core::stack::Part;
use crate::driver::piece::Piece;
use crate::driver::run::Run;
use crate::tests::testing::{DATA, Scenario, scheme};

/// A line that is in L1D, and lines of which none is.
const NEAR: u64 = DATA;
const FAR: u64 = DATA + (1 << 20);

/// Bytes that an instruction loads, and bytes that it stores.
type Sizes = (u16, u16);

/// A run without translation of blocks of one instruction each, whose first ones make the line at
/// [`NEAR`] and that of all code present.
fn start(blocks: &[(&[u8], Sizes)]) -> Run {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.scheme.translation = TranslationMode::Free;
    let machine = &mut scenario.machine;
    for cache in [&mut machine.l1d, &mut machine.l2, &mut machine.llc] {
        cache.as_mut().unwrap().mshrs = 64;
    }
    let mut run = scenario.start(&[(DATA, 1 << 22)], true);
    for &(code, sizes) in blocks {
        let mut bytes = [0; 15];
        bytes[..code.len()].copy_from_slice(code);
        define(&mut run, code.len() as u8, Operands::X86(bytes), sizes);
    }
    // `Do::Load` and `Do::Store`: the store's line comes with the load's.
    go(&mut run, &[(0, &[NEAR]), (2, &[NEAR])]);
    run
}

fn define(run: &mut Run, length: u8, operands: Operands, (loads, stores): Sizes) {
    let accesses = [(loads, false), (stores, true)].into_iter().filter(|&(size, _)| size > 0);
    let block = Block {
        accesses: accesses.map(|(size, store)| Access { instruction: 0, size, store }).collect(),
        instructions: [Instruction { pc: 32, length, operands }].into(),
    };
    run.take(&Piece::Define(Arc::new(BlockDecoder::default().decode(&block)))).unwrap();
}

/// Runs blocks with their addresses.
fn go(run: &mut Run, steps: &[(u32, &[u64])]) {
    let blocks = steps.iter().map(|&(block, _)| block).collect();
    let addresses = steps.iter().flat_map(|&(_, addresses)| addresses).copied().collect();
    run.take(&Piece::Slice(Slice { thread: 0, blocks, addresses })).unwrap();
}

/// Cycles that blocks take after what was before.
fn cycles(run: &mut Run, steps: &[(u32, &[u64])]) -> u64 {
    let before = run.cycles().unwrap();
    go(run, steps);
    run.cycles().unwrap() - before
}

/// Cycles of 32 instructions that each depend on the one before, and load from L1D if they load.
fn chained(run: &mut Run, addresses: &[u64]) -> u64 {
    // Long enough for the misses before to be over.
    go(run, &[(3, addresses); 256]);
    cycles(run, &[(3, addresses); 32])
}

#[test]
fn a_load_takes_l1ds_latency_and_what_is_done_with_its_data_takes_its_own() {
    let codes: [(&str, &[u8], Sizes, u64); 8] = [
        ("mov rax, [rax]", &[0x48, 0x8b, 0x00], (8, 0), 4),
        ("movzx eax, byte [rax]", &[0x0f, 0xb6, 0x00], (1, 0), 4),
        ("movsxd rax, [rax]", &[0x48, 0x63, 0x00], (4, 0), 4),
        ("add rax, [rax]", &[0x48, 0x03, 0x00], (8, 0), 4 + 1),
        ("imul rax, [rax]", &[0x48, 0x0f, 0xaf, 0x00], (8, 0), 4 + 3),
        ("movbe rax, [rax]", &[0x48, 0x0f, 0x38, 0xf0, 0x00], (8, 0), 4 + 1),
        ("lea rax, [rax + 8]", &[0x48, 0x8d, 0x40, 0x08], (0, 0), 1),
        ("mov rax, rax", &[0x48, 0x89, 0xc0], (0, 0), 1),
    ];
    for (name, code, sizes, expected) in codes {
        let mut run = start(&[(code, sizes)]);
        let addresses: &[u64] = if sizes.0 > 0 { &[NEAR] } else { &[] };
        assert_eq!(chained(&mut run, addresses), 32 * expected, "{name}");
    }
    // Where registers come by numbers, 25 are the flags, which arithmetic writes.
    let addresses = [NEAR; 2];
    for (writes, sizes, expected) in
        [([1, 0], (8, 0), 4), ([1, 25], (8, 0), 4 + 1), ([1, 0], (8, 8), 4 + 1)]
    {
        let mut run = start(&[]);
        let writes = [writes[0], writes[1], 0, 0];
        let operands = Operands::Registers { reads: [1, 0, 0, 0], writes, branch: Branch::None };
        define(&mut run, 4, operands, sizes);
        let its = &addresses[..=usize::from(sizes.1 > 0)];
        assert_eq!(chained(&mut run, its), 32 * expected, "{writes:?} {sizes:?}");
    }
}

#[test]
fn what_a_chase_waits_for_is_all_data() {
    let mut run = start(&[(&[0x48, 0x8b, 0x00], (8, 0))]); // mov rax, [rax]
    let chase: (u32, &[u64]) = (3, &[NEAR]);
    go(&mut run, &[chase; 8]);
    let of = |run: &Run, part| {
        let (core, _) = run.timed.as_ref().unwrap();
        core.statistics.stack.parts(core.cycle()).find(|&(one, _)| one == part).unwrap().1
    };
    let before = [Part::Base, Part::DataL1].map(|part| of(&run, part));
    go(&mut run, &[chase; 32]);
    let after = [Part::Base, Part::DataL1].map(|part| of(&run, part));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [0, 32 * 4]);
}

#[test]
fn repetitions_of_a_string_instruction_do_not_wait_for_each_others_data() {
    let codes: [(&str, &[u8], Sizes); 6] = [
        ("rep movsq", &[0xf3, 0x48, 0xa5], (8, 8)),
        ("rep lodsq", &[0xf3, 0x48, 0xad], (8, 0)),
        ("movsb", &[0xa4], (1, 1)),
        ("lodsd", &[0xad], (4, 0)),
        ("repne scasb", &[0xf2, 0xae], (1, 0)),
        ("repe cmpsb", &[0xf3, 0xa6], (1, 0)),
    ];
    for (name, code, sizes) in codes {
        let time = |count: u64| {
            let mut run = start(&[(code, sizes)]);
            let addresses: Vec<[u64; 2]> = (0..count).map(|n| [FAR + 64 * n, NEAR]).collect();
            let each = if sizes.1 > 0 { 2 } else { 1 };
            let steps: Vec<_> = addresses.iter().map(|its| (3, &its[..each])).collect();
            cycles(&mut run, &steps)
        };
        // All but the first miss a cycle after the one before: so are the pointers ready.
        assert_eq!(time(24) - time(8), 16, "{name}");
    }
}

#[test]
fn a_string_instructions_pointer_is_ready_a_cycle_after_it_was() {
    // mov rdi, [rbx]; stosq; mov rax, [rdi]
    let blocks: [(&[u8], Sizes); 3] =
        [(&[0x48, 0x8b, 0x3b], (8, 0)), (&[0x48, 0xab], (0, 8)), (&[0x48, 0x8b, 0x07], (8, 0))];
    let mut run = start(&blocks);
    let pointer = cycles(&mut run, &[(3, &[FAR])]);
    let mut run = start(&blocks);
    let all = cycles(&mut run, &[(3, &[FAR]), (4, &[NEAR]), (5, &[FAR + 4096])]);
    assert_eq!(all, pointer + 1 + 142);
}

#[test]
fn a_load_waits_for_a_store_to_any_of_its_words() {
    // vmovdqu ymm0, [rbx]; vmovdqu [rdi], ymm0; mov rax, [rsi]
    let blocks: [(&[u8], Sizes); 3] = [
        (&[0xc5, 0xfe, 0x6f, 0x03], (32, 0)),
        (&[0xc5, 0xfe, 0x7f, 0x07], (0, 32)),
        (&[0x48, 0x8b, 0x06], (8, 0)),
    ];
    let from = NEAR + 4; // In five words.
    let time = |load: u64| {
        let mut run = start(&blocks);
        cycles(&mut run, &[(3, &[FAR]), (4, &[from]), (5, &[load])])
    };
    let mut run = start(&blocks);
    let stored = cycles(&mut run, &[(3, &[FAR]), (4, &[from])]);
    for offset in 0..=56 {
        let waits = offset < 40;
        let expected = if waits { stored + 4 } else { stored };
        assert_eq!(time(NEAR + offset), expected, "{offset}");
    }
    // A load of many words waits for a store to one.
    let blocks: [(&[u8], Sizes); 3] = [
        (&[0x48, 0x8b, 0x03], (8, 0)),        // mov rax, [rbx]
        (&[0x48, 0x89, 0x07], (0, 8)),        // mov [rdi], rax
        (&[0xc5, 0xfe, 0x6f, 0x06], (32, 0)), // vmovdqu ymm0, [rsi]
    ];
    for offset in [0, 8, 16, 24] {
        let mut run = start(&blocks);
        let stored = cycles(&mut run, &[(3, &[FAR]), (4, &[NEAR + offset])]);
        let mut run = start(&blocks);
        let all = cycles(&mut run, &[(3, &[FAR]), (4, &[NEAR + offset]), (5, &[NEAR])]);
        assert_eq!(all, stored + 4, "{offset}");
    }
}
