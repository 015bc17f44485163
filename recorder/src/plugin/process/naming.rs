//! What the program's memory is called.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use flatwalk_symbols::identity;
use flatwalk_trace::Event;

use crate::plugin::lock::Lock;
use crate::plugin::process::memory::read_string;
use crate::plugin::space::page_up;

/// The longest name of anonymous memory that Linux takes, its end not counted.
const LONGEST: usize = 79;

/// Calls what `mapped`, a mapping of no file, maps `name`.
pub fn of(mapped: &Event, name: &str) -> Option<Event> {
    let &Event::Map { address, length, .. } = mapped else { return None };
    let (name, build_id) = (name.to_owned(), String::new());
    Some(Event::Name { address, length, offset: 0, name, build_id })
}

/// The name of the file that `mmap` with `arguments` mapped at `address`; `None` if it was not a file.
pub fn of_file(arguments: &[u64; 6], address: u64) -> Option<Event> {
    let &[_, length, rights, flags, file, offset] = arguments;
    if flags & libc::MAP_ANONYMOUS as u64 != 0 {
        return None;
    }
    // QEMU hands the program's descriptors on as they are.
    let open = format!("/proc/self/fd/{}", file as i32);
    let name = fs::read_link(&open).ok()?.to_string_lossy().into_owned();
    let is_code = rights & libc::PROT_EXEC as u64 != 0;
    let build_id =
        if is_code { build_id(Path::new(&open)).unwrap_or_default() } else { String::new() };
    Some(Event::Name { address, length: page_up(length), offset, name, build_id })
}

/// A file as it was at one time: its device, inode, length, and when it was changed.
type Version = (u64, u64, u64, i64, i64);

/// The build IDs of files whose code was mapped: to find one may take reading the whole file. Nobody holds this
/// while another thread forks, as all that map hold the lock of mapping calls.
static BUILD_IDS: Lock<BTreeMap<Version, String>> = Lock::new(BTreeMap::new());

/// Which file is open at `path`; `None` if it cannot be read, or has no name by which it could be found later.
fn build_id(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok().filter(|about| about.nlink() > 0)?;
    let version = (about.dev(), about.ino(), about.len(), about.mtime(), about.mtime_nsec());
    let known = BUILD_IDS.with(|known| known.get(&version).cloned());
    known.or_else(|| {
        let found = identity(path).ok()?;
        BUILD_IDS.with(|known| known.insert(version, found.clone()));
        Some(found)
    })
}

/// The name that `prctl` with `arguments` gives to anonymous memory; `None` if it does not, or takes it
/// away. QEMU does not know this call and refuses it, which changes nothing for the program.
pub fn of_anonymous(arguments: &[u64; 6]) -> Option<Event> {
    let &[operation, what, address, length, text, _] = arguments;
    let asked = (operation, what) == (libc::PR_SET_VMA as u64, libc::PR_SET_VMA_ANON_NAME as u64);
    let text = if asked && text != 0 { read_string(text)? } else { return None };
    if text.len() > LONGEST {
        return None;
    }
    let name = format!("[anon:{}]", String::from_utf8_lossy(&text));
    Some(Event::Name { address, length: page_up(length), offset: 0, name, build_id: String::new() })
}
