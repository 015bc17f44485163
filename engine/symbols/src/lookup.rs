//! From an offset in a file to the function and the line that it belongs to.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::identity;

/// Where separate debug information is, by build ID, on Debian and most other systems.
const DEBUG_FILES: &str = "/usr/lib/debug/.build-id";

/// What some code is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The symbol that it lies in, demangled. Code that was inlined belongs to the function that it
    /// became part of.
    pub function: Option<String>,
    /// The path of its source, as the compiler had it, and the line there, where the debug information has
    /// both. Of code that was inlined it is where it comes from.
    pub line: Option<(String, u32)>,
}

/// Why nothing is known of a file's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The file is not there, or cannot be read.
    Unreadable,
    /// It is not the file that was meant: it has changed since.
    Changed,
    /// It is not a 64-bit ELF file.
    Format,
}

/// What is known of files: each is read when it is asked for, once.
#[derive(Default)]
pub struct Symbols {
    files: HashMap<(String, String), Result<Code, Unknown>>,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Symbols({} files)", self.files.len())
    }
}

impl Symbols {
    /// What is at `offset`, in bytes, in the file that was at `path` and was `build_id` ([`identity`]).
    ///
    /// # Errors
    /// Why nothing is known of that file's code.
    pub fn find(&mut self, path: &str, build_id: &str, offset: u64) -> Result<Place, Unknown> {
        let key = (path.to_owned(), build_id.to_owned());
        let code = self.files.entry(key).or_insert_with(|| Code::read(Path::new(path), build_id));
        code.as_ref().map(|code| code.find(offset)).map_err(|&unknown| unknown)
    }
}

/// A part of a file that is loaded.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    bytes: u64,
    /// Its address, where the file was linked to be.
    address: u64,
}

/// A function of the symbol table.
#[derive(Clone, Debug)]
struct Function {
    start: u64,
    /// First address after it; where the table does not say, that of the next one in its section.
    end: u64,
    /// The end of its section.
    limit: u64,
    /// The greatest end of it and of those before it.
    reach: u64,
    name: String,
}

/// The code of a file.
struct Code {
    segments: Vec<Segment>,
    /// By address.
    functions: Vec<Function>,
    lines: Option<Loader>,
}

impl Code {
    fn read(path: &Path, build_id: &str) -> Result<Self, Unknown> {
        if identity(path).map_err(|_| Unknown::Unreadable)? != build_id {
            return Err(Unknown::Changed);
        }
        let bytes = std::fs::read(path).map_err(|_| Unknown::Unreadable)?;
        let file = ElfFile64::<Endianness>::parse(&*bytes).map_err(|_| Unknown::Format)?;
        let endian = file.endian();
        let headers = file.elf_header().program_headers(endian, &*bytes);
        let segments = headers.map_err(|_| Unknown::Format)?.iter();
        let segments = segments
            .filter(|header| header.p_type(endian) == object::elf::PT_LOAD)
            .map(|header| Segment {
                offset: header.p_offset(endian),
                bytes: header.p_filesz(endian),
                address: header.p_vaddr(endian),
            })
            .collect();
        let separate = debug_file(build_id)
            .filter(|debug| identity(debug).is_ok_and(|found| found == build_id));
        let mut functions = functions(&file);
        if let Some(bytes) = separate.as_ref().and_then(|debug| std::fs::read(debug).ok())
            && let Ok(file) = ElfFile64::<Endianness>::parse(&*bytes)
        {
            functions.extend(self::functions(&file));
        }
        let functions = in_order(functions);
        let lines = Loader::new(separate.as_deref().unwrap_or(path)).ok();
        Ok(Self { segments, functions, lines })
    }

    fn find(&self, offset: u64) -> Place {
        let segment =
            self.segments.iter().find(|s| offset >= s.offset && offset - s.offset < s.bytes);
        let Some(segment) = segment else { return Place::default() };
        let address = (offset - segment.offset).wrapping_add(segment.address);
        let after = self.functions.partition_point(|function| function.start <= address);
        // Of functions within one another, the innermost.
        let before = self.functions[..after].iter().rev();
        let symbol = before
            .take_while(|function| address < function.reach)
            .find(|function| address < function.end);
        let (outermost, line) = self.frames(address);
        Place { function: symbol.map(|function| demangled(&function.name)).or(outermost), line }
    }

    /// What the debug information says: the function that is called at `address`, and the line of the
    /// innermost one that became part of it.
    fn frames(&self, address: u64) -> (Option<String>, Option<(String, u32)>) {
        let (mut outermost, mut line) = (None, None);
        let Some(Ok(mut frames)) = self.lines.as_ref().map(|lines| lines.find_frames(address))
        else {
            return (None, None);
        };
        let mut is_first = true;
        while let Ok(Some(frame)) = frames.next() {
            if std::mem::take(&mut is_first) {
                let location = frame.location.as_ref();
                line =
                    location.and_then(|l| Some((l.file?.to_owned(), l.line.filter(|&n| n > 0)?)));
            }
            let name = frame.function.as_ref().and_then(|function| function.demangle().ok());
            outermost = name.map(Cow::into_owned);
        }
        (outermost, line)
    }
}

/// The functions that the symbol tables of a file name.
fn functions(file: &ElfFile64<'_, Endianness>) -> Vec<Function> {
    let symbols = file.symbols().chain(file.dynamic_symbols());
    symbols
        .filter(|symbol| symbol.kind() == SymbolKind::Text && !symbol.is_undefined())
        .filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            let start = symbol.address();
            let section = symbol.section_index().and_then(|at| file.section_by_index(at).ok());
            let limit =
                section.map_or(u64::MAX, |found| found.address().saturating_add(found.size()));
            let end = start.saturating_add(symbol.size());
            Some(Function { start, end, limit, reach: 0, name: name.to_owned() })
        })
        .collect()
}

/// The same by address, each once: of several that begin there the longest, with the shortest of its names.
/// One without a size ends where the next begins, or its section ends.
fn in_order(mut functions: Vec<Function>) -> Vec<Function> {
    functions.sort_by(|a, b| {
        let shorter = a.name.len().cmp(&b.name.len()).then_with(|| a.name.cmp(&b.name));
        a.start.cmp(&b.start).then(b.end.cmp(&a.end)).then(shorter)
    });
    functions.dedup_by_key(|function| function.start);
    for at in 1..functions.len() {
        let next = functions[at].start;
        let function = &mut functions[at - 1];
        if function.end == function.start {
            function.end = next.min(function.limit);
        }
    }
    let mut reach = 0;
    for function in &mut functions {
        reach = reach.max(function.end);
        function.reach = reach;
    }
    functions
}

/// Where the debug information of a file is that does not have it itself.
fn debug_file(build_id: &str) -> Option<PathBuf> {
    // What comes from a trace does not become a path before it has been looked at.
    if build_id.len() < 4 || !build_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let (directory, name) = build_id.split_at(2);
    let path = Path::new(DEBUG_FILES).join(directory).join(format!("{name}.debug"));
    path.is_file().then_some(path)
}

/// A symbol's name as its language has it. Names of C stay: `f` alone would be C++'s `float`.
fn demangled(name: &str) -> String {
    let is_mangled = ["_Z", "__Z", "_R", "__R"].iter().any(|prefix| name.starts_with(prefix));
    if !is_mangled {
        return name.to_owned();
    }
    addr2line::demangle_auto(Cow::Borrowed(name), None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(start: u64, end: u64, name: &str) -> Function {
        Function { start, end, limit: 38, reach: 0, name: name.to_owned() }
    }

    #[test]
    fn each_address_has_one_function_and_gaps_have_none() {
        let functions = in_order(vec![
            function(30, 40, "long_name"),
            function(30, 40, "name"),
            function(30, 35, "a"),
            function(10, 10, "no_size"),
            function(20, 25, "next"),
            function(36, 36, "ends_with_its_section"),
            function(41, 50, "outer"),
            function(43, 45, "inner"),
        ]);
        let code = Code {
            segments: vec![Segment { offset: 100, bytes: 50, address: 5 }],
            functions,
            lines: None,
        };
        let at = |offset| code.find(offset).function;
        let name = |name: &str| Some(name.to_owned());
        assert_eq!([at(104), at(105), at(114)], [None, name("no_size"), name("no_size")]);
        assert_eq!([at(115), at(119), at(120)], [name("next"), name("next"), None]);
        assert_eq!([at(125), at(130), at(134)], [name("name"), name("name"), name("name")]);
        let sectional = name("ends_with_its_section");
        assert_eq!([at(131), at(132), at(133)], [sectional.clone(), sectional, name("name")]);
        assert_eq!([at(135), at(136), at(138)], [None, name("outer"), name("inner")]);
        assert_eq!([at(139), at(140), at(144)], [name("inner"), name("outer"), name("outer")]);
        assert_eq!([at(0), at(99), at(150), at(u64::MAX)], [None, None, None, None]);
    }

    #[test]
    fn names_are_those_of_their_language() {
        assert_eq!(demangled("main"), "main");
        assert_eq!(["f", "i", "v"].map(demangled), ["f", "i", "v"]);
        assert_eq!(demangled("_ZN3foo3barEi"), "foo::bar(int)");
        assert_eq!(demangled("_ZN3std2io5stdin17h0123456789abcdefE"), "std::io::stdin");
    }

    #[test]
    fn this_test_finds_itself_and_no_other_file() {
        let own = std::env::current_exe().expect("a test has a file");
        let build_id = identity(&own).expect("it can be read");
        let path = own.to_str().expect("it has a name in UTF-8");
        let bytes = std::fs::read(&own).expect("it can be read");
        let file = ElfFile64::<Endianness>::parse(&*bytes).expect("it is an ELF file");
        let symbol = file.symbols().find(|symbol| {
            symbol.name().is_ok_and(|name| name.contains("in_order")) && symbol.size() > 0
        });
        let address = symbol.expect("it has its symbols").address();
        let mut symbols = Symbols::default();
        // Its code's offset in the file, by the section headers.
        let offset = object::ObjectSection::file_range;
        let section = object::Object::sections(&file).find(|section| {
            let start = object::ObjectSection::address(section);
            (start..start + object::ObjectSection::size(section)).contains(&address)
        });
        let section = section.expect("it lies in a section");
        let offset = offset(&section).expect("it is in the file").0 + address
            - object::ObjectSection::address(&section);
        let place = symbols.find(path, &build_id, offset).expect("it is the same file");
        assert_eq!(place.function.as_deref(), Some("flatwalk_symbols::lookup::in_order"));
        let (source, line) = place.line.expect("tests are built with lines");
        assert!(source.ends_with("lookup.rs") && line > 0, "{source}:{line}");
        assert_eq!(symbols.find(path, "0123", offset), Err(Unknown::Changed));
        assert_eq!(symbols.find("/nowhere", "0123", 0), Err(Unknown::Unreadable));
        assert_eq!(symbols.find("/dev/null", "0123", 0), Err(Unknown::Unreadable));
    }

    #[test]
    fn what_a_trace_says_is_no_path() {
        assert_eq!(debug_file("../../../etc/passwd"), None);
        assert_eq!(debug_file("äöüß"), None);
        assert_eq!(debug_file(""), None);
    }
}
