//! ELF files: segments, symbols, and the mappings that loading them makes.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use flatwalk_symbols::identity;
use flatwalk_trace::{Backing, Event, Protection};
use object::elf::{ELFMAG, PF_R, PF_W, PF_X, PT_INTERP, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

use crate::plugin::space::{PAGE, page_up};

/// What memory is called that the program has as data without a value, which no file holds. The kernel does
/// not name it; where somebody does, it is like this.
const BSS: &str = "[anon:.bss]";

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
        // Before it is read: what a program maps need not be a program, or ever end.
        let mut magic = [0; ELFMAG.len()];
        if !fs::metadata(path).ok()?.is_file() {
            return None;
        }
        let mut file = File::open(path).ok()?;
        file.read_exact(&mut magic).ok().filter(|()| magic == ELFMAG)?;
        let mut bytes = magic.to_vec();
        file.read_to_end(&mut bytes).ok()?;
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

    /// The mappings that loading the file called `name` at `bias` makes, and their names.
    pub fn mappings(&self, bias: u64, name: &Path) -> Vec<Event> {
        let build_id = identity(name).unwrap_or_default();
        let mut events = Vec::new();
        for segment in &self.segments {
            let start = segment.address.wrapping_add(bias) & !(PAGE - 1);
            let file_end =
                page_up(segment.address.wrapping_add(bias).wrapping_add(segment.file_length));
            let end = page_up(segment.address.wrapping_add(bias).wrapping_add(segment.length));
            let mut map = |address: u64, end: u64, backing| {
                if end <= address {
                    return;
                }
                let (length, protection) = (end - address, segment.protection);
                events.push(Event::Map { address, length, protection, backing, shared: false });
                events.push(if backing == Backing::File {
                    let offset = segment.offset & !(PAGE - 1);
                    let build_id =
                        if protection.execute { build_id.clone() } else { String::new() };
                    let name = name.to_string_lossy().into_owned();
                    Event::Name { address, length, offset, name, build_id }
                } else {
                    let (name, build_id) = (BSS.to_owned(), String::new());
                    Event::Name { address, length, offset: 0, name, build_id }
                });
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
