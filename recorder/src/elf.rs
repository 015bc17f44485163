//! What QEMU mapped before the first instruction ran, and where symbols are: from ELF files and the
//! host's memory map.

use std::fs;
use std::path::{Path, PathBuf};

use flatwalk_trace::{Backing, Event, Protection};
use object::elf::{PF_R, PF_W, PF_X, PT_INTERP, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

use crate::space::PAGE;
use crate::sys;

/// An ELF file's segments and symbols, relative to where it was linked.
pub struct Image {
    bytes: Vec<u8>,
    /// Entry point.
    pub entry: u64,
    /// Loadable segments.
    pub segments: Vec<Segment>,
    /// Path of the program interpreter (dynamic loader).
    pub interpreter: Option<PathBuf>,
}

/// A loadable segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Bytes that come from the file.
    pub file_length: u64,
    /// Bytes in memory.
    pub length: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Rights.
    pub protection: Protection,
}

impl Image {
    /// Reads the x86-64 ELF file at `path`; `None` if it is not one.
    pub fn read(path: &Path) -> Option<Image> {
        let bytes = fs::read(path).ok()?;
        let file = ElfFile64::<Endianness>::parse(&*bytes).ok()?;
        if file.architecture() != object::Architecture::X86_64 {
            return None;
        }
        let endian = file.endian();
        let mut segments = Vec::new();
        let mut interpreter = None;
        for header in file.elf_header().program_headers(endian, &*bytes).ok()? {
            let flags = header.p_flags(endian);
            match header.p_type(endian) {
                PT_LOAD => segments.push(Segment {
                    address: header.p_vaddr(endian),
                    file_length: header.p_filesz(endian),
                    length: header.p_memsz(endian),
                    offset: header.p_offset(endian),
                    protection: Protection {
                        read: flags & PF_R != 0,
                        write: flags & PF_W != 0,
                        execute: flags & PF_X != 0,
                    },
                }),
                PT_INTERP => {
                    use std::os::unix::ffi::OsStrExt;
                    let name = header.interpreter(endian, &*bytes).ok()??;
                    interpreter = Some(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
                }
                _ => {}
            }
        }
        let entry = file.entry();
        Some(Image { bytes, entry, segments, interpreter })
    }

    /// Address of a defined symbol, relative to where the file was linked.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let file = ElfFile64::<Endianness>::parse(&*self.bytes).ok()?;
        file.symbols()
            .chain(file.dynamic_symbols())
            .find(|symbol| {
                !symbol.is_undefined() && symbol.address() != 0 && symbol.name() == Ok(name)
            })
            .map(|symbol| symbol.address())
    }

    /// The mappings that loading the file at `bias` makes.
    pub fn mappings(&self, bias: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for segment in &self.segments {
            let start = segment.address.wrapping_add(bias) & !(PAGE - 1);
            let file_end = up(segment.address.wrapping_add(bias).wrapping_add(segment.file_length));
            let end = up(segment.address.wrapping_add(bias).wrapping_add(segment.length));
            let mut map = |address: u64, end: u64, backing| {
                if end > address {
                    events.push(Event::Map {
                        address,
                        length: end - address,
                        protection: segment.protection,
                        backing,
                        shared: false,
                    });
                }
            };
            if segment.file_length > 0 {
                map(start, file_end, Backing::File);
                map(file_end, end, Backing::Anonymous);
            } else {
                map(start, end, Backing::Anonymous);
            }
        }
        events
    }
}

fn up(address: u64) -> u64 {
    address.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// The address space at a program's first instruction.
pub struct Start {
    /// Its mappings, in ascending order of what they belong to: program, interpreter, stack.
    pub events: Vec<Event>,
    /// Difference between host and guest addresses.
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
    found.events.extend(image.mappings(bias));
    if let Some(interpreter) = image.interpreter.as_deref().and_then(Image::read) {
        found.events.extend(interpreter.mappings(entry.wrapping_sub(interpreter.entry)));
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if let Some(first) = image.segments.first() {
        let guest = first.address.wrapping_add(bias) & !(PAGE - 1);
        let host = maps
            .lines()
            .filter_map(Line::parse)
            .find(|line| Path::new(line.path) == file && line.offset == first.offset & !(PAGE - 1));
        found.guest_base = host.map_or(0, |line| line.start.wrapping_sub(guest));
    }
    found.events.extend(stack(&maps, path, found.guest_base));
    found.program = Some((image, bias));
    found
}

/// The main stack. QEMU makes it as large as the resource limit says, at least 8 MiB, with a guard
/// page below; a neighbouring mapping may have merged with its upper end in the host's list.
fn stack(maps: &str, path: &Path, guest_base: u64) -> Option<Event> {
    use std::os::unix::ffi::OsStrExt;
    const USUAL: u64 = 8 << 20;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    let length =
        if limit.rlim_cur == libc::RLIM_INFINITY { USUAL } else { up(limit.rlim_cur.max(USUAL)) };
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
