//! Reads a trace in any format and prints its items, one JSON object a line: `items TRACE`.

use std::error::Error;
use std::io::{BufWriter, Write};
use std::path::Path;

use flatwalk_trace::{Instruction, Item, Operands};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: items TRACE")?;
    let mut source = flatwalk_trace::open(Path::new(&path))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    while let Some(item) = source.next_item()? {
        let line = match item {
            Item::Define { id, block } => {
                let accesses: Vec<_> = block
                    .accesses
                    .iter()
                    .map(|access| json!([access.instruction, access.size, access.store]))
                    .collect();
                let instructions: Vec<_> = block.instructions.iter().map(instruction).collect();
                json!({ "define": id, "instructions": instructions, "accesses": accesses })
            }
            Item::Slice(slice) => json!({
                "thread": slice.thread,
                "blocks": slice.blocks,
                "addresses": slice.addresses,
            }),
            Item::Event(event) => serde_json::to_value(event)?,
        };
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

fn instruction(instruction: &Instruction) -> Value {
    let Instruction { pc, length, operands } = instruction;
    match operands {
        Operands::Unknown => json!([pc, length]),
        Operands::X86(code) => json!([pc, length, code[..usize::from(*length)]]),
        Operands::Registers { reads, writes, branch } => {
            json!([pc, length, reads, writes, format!("{branch:?}").to_lowercase()])
        }
    }
}
