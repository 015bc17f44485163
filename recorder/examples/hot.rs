use flatwalk_trace::{Item, Operands, Reader, Source};
use iced_x86::Decoder;
use std::collections::HashMap;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let mut reader = Reader::open(std::path::Path::new(&path)).unwrap();
    let mut blocks = Vec::new();
    let mut counts: HashMap<u32, u64> = HashMap::new();
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Define { block, .. } => blocks.push(block),
            Item::Slice(s) => {
                for b in s.blocks {
                    *counts.entry(b).or_default() += 1
                }
            }
            Item::Event(_) => {}
        }
    }
    let mut v: Vec<_> = counts.into_iter().collect();
    v.sort_by_key(|&(id, n)| {
        std::cmp::Reverse(
            n * blocks[id as usize].accesses.iter().filter(|a| a.store).count() as u64,
        )
    });
    for (id, n) in v.into_iter().take(5) {
        let b = &blocks[id as usize];
        println!("block {id} x{n}");
        for (i, ins) in b.instructions.iter().enumerate() {
            let acc: Vec<_> = b
                .accesses
                .iter()
                .filter(|a| a.instruction as usize == i)
                .map(|a| format!("{}{}", if a.store { "S" } else { "L" }, a.size))
                .collect();
            if let Operands::X86(c) = &ins.operands {
                let d = Decoder::with_ip(64, &c[..ins.length as usize], ins.pc, 0).decode();
                println!(
                    "  {:x} {:?} {:?} {:?}",
                    ins.pc,
                    d.code(),
                    (d.op0_kind(), d.op1_kind(), d.memory_base()),
                    acc
                );
            }
        }
    }
}
