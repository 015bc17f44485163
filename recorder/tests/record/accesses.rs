//! Every instruction, and every access that it makes.

use flatwalk_trace::{Block, Operands};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess};

use crate::support::{BARE, Reference, STATIC, Scratch, Trace, compile, path, record, symbol};

#[test]
fn accesses_are_whole_however_qemu_carries_them_out() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "pieces", BARE);
    let trace = Trace::read(&record(&scratch, "", &[path(&program)]).output);
    let marked = symbol(&program, "marked")..symbol(&program, "marked_end");
    let memory = symbol(&program, "memory");
    let seen: Vec<_> = trace
        .references()
        .into_iter()
        .filter(|(pc, _)| marked.contains(pc))
        .map(|(_, access)| (access.address - memory, access.size, access.store))
        .collect();
    let (load, store) = (false, true);
    assert_eq!(
        seen,
        [
            (1, 16, load),
            (64, 16, store),
            (0, 32, load),
            (128, 32, store),
            // An update is a load and a store, atomic or not.
            (0, 4, load),
            (0, 4, store),
            (8, 8, load),
            (8, 8, store),
            // 80 bits.
            (16, 10, load),
            (32, 10, store),
            // A scalar, then a vector.
            (48, 8, load),
            (64, 32, load),
            // What is gathered, though it is all in one place.
            (0, 8, load),
            (0, 8, load),
            (0, 8, load),
            (0, 8, load),
            // Three elements of eight: QEMU loads all the same.
            (96, 32, load),
            (100, 12, store),
            (160, 16, load),
            (160, 16, store),
            // A conditional move loads whatever the condition.
            (176, 4, load),
            (180, 2, load),
            (184, 4, load),
            (192, 16, load),
            (0, 1, load),
            (708, 4, load),
            (704, 4, store),
            // Two strings that adjoin.
            (708, 8, load),
            (712, 8, load),
        ]
    );
    let saves = symbol(&program, "saves");
    let state: Vec<_> = trace.references().into_iter().filter(|(pc, _)| *pc == saves).collect();
    assert_eq!(state.iter().map(|(_, access)| access.address - memory).min(), Some(512));
    assert!(state.iter().all(|(_, access)| access.store));
    assert!(state.iter().map(|(_, access)| access.size).sum::<u16>() > 300);
}

#[test]
fn addresses_are_those_that_the_program_says() {
    // Statically linked, at a place of its own or not, and dynamically linked.
    for flags in [STATIC, &["-static-pie"], &["-no-pie"], &["-pie"]] {
        let scratch = Scratch::new();
        let program = compile(&scratch, "touches", flags);
        let recorded = record(&scratch, "", &[path(&program)]);
        let text = String::from_utf8(recorded.stdout).unwrap();
        let mut said =
            text.lines().map(|line| u64::from_str_radix(&line[2..], 16).expect("an address"));
        let touch = said.next().unwrap();
        let seen: Vec<_> = Trace::read(&recorded.output)
            .references()
            .into_iter()
            .filter_map(|(pc, access)| (pc == touch).then_some(access))
            .collect();
        let said: Vec<_> = said
            .flat_map(|address| [false, true].map(|store| Reference { address, size: 8, store }))
            .collect();
        assert_eq!(said.len(), 2000, "{flags:?}");
        assert_eq!(seen, said, "{flags:?}");
    }
}

/// What the program's machine code says, read by a decoder that knows nothing of QEMU.
#[test]
fn every_instruction_makes_the_accesses_that_its_code_says() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "signals", STATIC);
    for command in [&[path(&program)][..], &["/usr/bin/perl", "-e", "print sqrt(2) * 7"]] {
        let recorded = record(&scratch, "", command);
        assert!(recorded.status.success());
        let trace = Trace::read(&recorded.output);
        assert!(trace.instructions() > 100_000);
        for block in &trace.blocks {
            check_accesses(block);
        }
    }
}

/// That each instruction of the block makes all the accesses it must, and no others.
fn check_accesses(block: &Block) {
    let mut factory = InstructionInfoFactory::new();
    for (index, instruction) in block.instructions.iter().enumerate() {
        let Operands::X86(code) = &instruction.operands else { panic!("no code") };
        let code = &code[..usize::from(instruction.length)];
        let decoded = Decoder::with_ip(64, code, instruction.pc, DecoderOptions::NONE).decode();
        let mut made = [0, 0];
        for access in &block.accesses {
            if usize::from(access.instruction) == index {
                made[usize::from(access.store)] += usize::from(access.size);
            }
        }
        let mut expected = [0, 0];
        let mut certain = true;
        for memory in factory.info(&decoded).used_memory() {
            use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
            // Of repeated strings it names no size: each repetition is an execution of its own.
            let bytes = match memory.memory_size() {
                MemorySize::Unknown => decoded.memory_size().size(),
                size => size.size(),
            };
            let (loads, stores) = match memory.access() {
                Read | CondRead => (bytes, 0),
                Write | CondWrite => (0, bytes),
                ReadWrite | ReadCondWrite => (bytes, bytes),
                _ => (0, 0),
            };
            expected = [expected[0] + loads, expected[1] + stores];
            certain &= !matches!(memory.access(), CondRead | CondWrite);
        }
        // The decoder knows no sizes of these.
        if !matches!(decoded.mnemonic(), Mnemonic::Xsave | Mnemonic::Xsavec | Mnemonic::Xrstor) {
            assert!(
                made == expected || !certain && made == [0, 0],
                "{:?} at {:x} loads and stores {made:?} bytes",
                decoded.code(),
                instruction.pc
            );
        }
    }
}

#[test]
fn rewritten_code_is_new_code() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "modify", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.stdout, b"7045\n");
    let trace = Trace::read(&recorded.output);
    let run: Vec<u8> = trace
        .executions()
        .filter(|(_, block)| block.instructions[0].pc == 0x1000_0000)
        .map(|(_, block)| match block.instructions[0].operands {
            Operands::X86(code) => code[1],
            _ => unreachable!(),
        })
        .collect();
    assert_eq!(run, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // The code that changes itself: each instruction counts once, and the last form was executed.
    for offset in [0, 7, 12] {
        assert_eq!(trace.count(0x1000_0100 + offset), 1, "instruction at +{offset}");
    }
    let changed = trace
        .executions()
        .flat_map(|(_, block)| block.instructions.iter())
        .find(|i| i.pc == 0x1000_0107);
    assert!(matches!(changed.unwrap().operands, Operands::X86(code) if code[1] == 7));
}
