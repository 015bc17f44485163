//! Valgrind's lackey, `--trace-mem=yes`: lines `I  address,size`, ` L address,size`,
//! ` S address,size`, ` M address,size` with hexadecimal addresses; `M` is a load and a store of the
//! same place. Lines that start with `==` or `--` are Valgrind's own messages.

use super::Parser;
use super::builder::Builder;
use super::input::Input;
use crate::error::TraceError;
use crate::model::{Instruction, Operands};

/// Longest accepted line; a path or a command line of Valgrind's greeting may be long.
const MAX_LINE_BYTES: usize = 1 << 15;
/// Longest instruction. Valgrind takes a request that a program makes to it for one, of 19 bytes on
/// x86-64; what is longer than x86-64's are has no length in the trace.
const LONGEST: u16 = 20;

#[derive(Default)]
pub(crate) struct Lackey {
    /// Where the last instruction ended.
    next_pc: Option<u64>,
}

/// Whether a file that starts so is lackey's.
pub(crate) fn sniff(start: &[u8]) -> bool {
    start.split_inclusive(|&byte| byte == b'\n').take(64).any(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or_default();
        reference(line.strip_suffix(b"\r").unwrap_or(line)).is_some()
    }) && start.iter().all(|&byte| byte >= b' ' || byte.is_ascii_whitespace() || byte == 0x1b)
}

/// Kind, address and size of a line.
#[inline]
fn reference(line: &[u8]) -> Option<(u8, u64, u16)> {
    let (kind, rest) = match line {
        [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
        _ => return None,
    };
    let mut address = 0_u64;
    let mut digits = 0;
    for &byte in rest {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => break,
        };
        // No writer prints more than 64 bits, leading zeros included.
        if digits == 16 {
            return None;
        }
        address = address << 4 | u64::from(digit);
        digits += 1;
    }
    let size = rest.get(digits..)?.strip_prefix(b",")?;
    if digits == 0 || size.is_empty() || size.len() > 5 {
        return None;
    }
    let mut bytes = 0_u32;
    for &byte in size {
        if !byte.is_ascii_digit() {
            return None;
        }
        bytes = bytes * 10 + u32::from(byte - b'0');
    }
    let bytes = u16::try_from(bytes).ok().filter(|&bytes| bytes > 0)?;
    Some((kind, address, bytes))
}

impl Parser for Lackey {
    fn step(&mut self, input: &mut Input, out: &mut Builder) -> Result<bool, TraceError> {
        // A line is short except for Valgrind's own: look further only where it does not end.
        let mut window = input.peek(64)?;
        let mut end = window.iter().take(64).position(|&byte| byte == b'\n');
        if end.is_none() && window.len() >= 64 {
            window = input.peek(MAX_LINE_BYTES)?;
            end = window.iter().take(MAX_LINE_BYTES).position(|&byte| byte == b'\n');
        }
        let Some(end) = end else {
            if window.is_empty() {
                return Ok(false);
            }
            return Err(if window.len() < MAX_LINE_BYTES {
                input.truncated("a line")
            } else {
                input.damaged("a line is longer than 32 KiB")
            });
        };
        let line = &window[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match reference(line) {
            Some((b'I', pc, length)) => {
                if length > LONGEST {
                    return Err(input.damaged("an instruction is longer than 20 bytes"));
                }
                if self.next_pc != Some(pc) {
                    out.end_block();
                }
                self.next_pc = Some(pc.wrapping_add(u64::from(length)));
                let length = if length > 15 { 0 } else { length as u8 };
                let instruction = Instruction { pc, length, operands: Operands::Unknown };
                out.instruction(instruction).map_err(|what| input.damaged(what))?;
            }
            Some((kind, address, size)) => {
                for (wanted, store) in [(kind != b'S', false), (kind != b'L', true)] {
                    if wanted {
                        let access = out.access(address, size, store);
                        access.map_err(|what| input.damaged(what))?;
                    }
                }
            }
            None if line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--") => {}
            None => {
                let shown: String =
                    String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
                return Err(input.damaged(format!(
                    "`{}` is not a line of lackey's (record with `--log-file=FILE`, which keeps out what the program \
                     prints)",
                    shown.escape_debug()
                )));
            }
        }
        input.consume(end + 1);
        Ok(true)
    }
}
