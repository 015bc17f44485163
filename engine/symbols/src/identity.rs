//! Which file it is.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use object::{Object, ReadCache};
use xxhash_rust::xxh3::Xxh3;

/// Before the hash of a file's bytes.
const HASHED: &str = "xxh3-";

/// Which file is at `path`: its GNU build ID in hexadecimal; if it has none, `xxh3-` and the XXH3-128 of
/// its bytes.
///
/// # Errors
/// When it cannot be read.
pub fn identity(path: &Path) -> io::Result<String> {
    // Before it is opened: opening a pipe would wait.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = File::open(path)?;
    let cache = ReadCache::new(&file);
    let parsed = object::File::parse(&cache).ok();
    let build_id = parsed.and_then(|elf| elf.build_id().ok().flatten().map(<[u8]>::to_vec));
    match build_id {
        Some(id) if !id.is_empty() => Ok(hexadecimal(&id)),
        _ => hash(File::open(path)?),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hash(mut file: File) -> io::Result<String> {
    let mut hash = Xxh3::new();
    let mut bytes = vec![0; 1 << 16];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(format!("{HASHED}{:032x}", hash.digest128())),
            read => hash.update(&bytes[..read]),
        }
    }
}
