//! What QEMU mapped before the first instruction ran: from ELF files and this process's memory map.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use flatwalk_trace::{Backing, Event, Protection};

use crate::plugin::process::elf::Image;
use crate::plugin::process::naming;
use crate::plugin::space::{PAGE, STACK, page_up};
use crate::sys;

/// The address space at a program's first instruction.
pub struct Start {
    /// Its mappings, in ascending order of what they belong to: program, interpreter, stack.
    pub events: Vec<Event>,
    /// Difference between QEMU's and guest addresses.
    pub guest_base: u64,
    /// The program, and what its addresses are relative to.
    pub program: Option<(Image, u64)>,
}

/// Finds what QEMU mapped for the guest: the program's and the interpreter's segments, placed by
/// QEMU's own figures, and the stack, recognised by the program's path that QEMU (like the kernel)
/// leaves at its very top.
pub fn start(path: &Path, code_start: u64, entry: u64) -> Start {
    let mut found = Start { events: Vec::new(), guest_base: 0, program: None };
    let Some(image) = Image::read(path) else { return found };
    let linked = image.segments.iter().filter(|s| s.protection.execute).map(|s| s.address).min();
    let bias = code_start.wrapping_sub(linked.unwrap_or(code_start));
    let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let file = whole(path);
    found.events.extend(image.mappings(bias, &file));
    if let Some(name) = &image.interpreter
        && let Some(interpreter) = Image::read(name)
    {
        let bias = entry.wrapping_sub(interpreter.entry);
        found.events.extend(interpreter.mappings(bias, &whole(name)));
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if let Some(first) = image.segments.first() {
        let guest = first.address.wrapping_add(bias) & !(PAGE - 1);
        let mapped = maps
            .lines()
            .filter_map(Line::parse)
            .find(|line| Path::new(line.path) == file && line.offset == first.offset & !(PAGE - 1));
        found.guest_base = mapped.map_or(0, |line| line.start.wrapping_sub(guest));
    }
    if let Some(stack) = stack(&maps, path, found.guest_base) {
        let named = naming::of(&stack, STACK);
        found.events.extend([Some(stack), named].into_iter().flatten());
    }
    found.program = Some((image, bias));
    found
}

/// The main stack. QEMU makes it as large as the resource limit says, at least 8 MiB, with a guard
/// page below; a neighbouring mapping may have merged with its upper end in the kernel's list.
fn stack(maps: &str, path: &Path, guest_base: u64) -> Option<Event> {
    const USUAL: u64 = 8 << 20;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    let length = if limit.rlim_cur == libc::RLIM_INFINITY {
        USUAL
    } else {
        page_up(limit.rlim_cur.max(USUAL))
    };
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.push(0);
    let mut seen = vec![0; name.len()];
    maps.lines()
        .filter_map(Line::parse)
        .filter(|line| line.rights.starts_with("rw") && line.end - line.start >= length)
        .find(|line| {
            let at = line.start + length - 8 - name.len() as u64;
            sys::read_memory(at, &mut seen) == name.len() && seen == name
        })
        .map(|line| Event::Map {
            address: line.start - guest_base,
            length,
            protection: Protection { read: true, write: true, execute: line.rights.contains('x') },
            backing: Backing::Stack,
            shared: false,
        })
}

/// A line of `/proc/self/maps`.
struct Line<'a> {
    start: u64,
    end: u64,
    rights: &'a str,
    offset: u64,
    path: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?;
        let offset = fields.next()?;
        let _ = (fields.next()?, fields.next()?);
        Some(Line {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            rights,
            offset: u64::from_str_radix(offset, 16).ok()?,
            path: fields.next().unwrap_or("").trim_start(),
        })
    }
}
