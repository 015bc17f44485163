//! Which of the process's pages are in memory, as the kernel's page tables say (`/proc/self/pagemap`; the
//! guest's address `a` is QEMU's `a + guest_base`).

use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

use flatwalk_trace::{Backing, Event};

use crate::plugin::connection::warn;
use crate::plugin::lock::Lock;
use crate::plugin::process::memory::guest_base;
use crate::plugin::space::{PAGE, Space};
use crate::plugin::state::{emit, push_populate};
use crate::sys;

const PATH: &str = "/proc/self/pagemap";
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_PAGE: u64 = 1 << 61;
/// Pages that are read of at a time.
const AT_A_TIME: u64 = 8192;

/// Whether what is in memory can be known.
pub fn is_readable() -> bool {
    let here = 0_u8;
    let mut entry = [0; 8];
    let at = (&raw const here) as u64 / PAGE * 8;
    File::open(PATH).and_then(|map| map.read_exact_at(&mut entry, at)).is_ok()
        && u64::from_le_bytes(entry) & (PRESENT | SWAPPED) != 0
}

/// Emits which pages are in memory.
pub fn populate(space: &mut Space) {
    let found = File::open(PATH).and_then(|map| populated(&map, space, &(0..u64::MAX)));
    emit_all(space, found);
}

/// In a gap, before a system call is carried out: emits which pages it takes from memory.
pub fn populate_taken(space: &mut Space, number: i64, arguments: &[u64; 6]) {
    for range in space.taken_by(number, arguments) {
        if space.within(&range).next().is_some() {
            let found = with_kept(|map| populated(map, space, &range));
            emit_all(space, found);
        }
    }
}

fn emit_all(space: &mut Space, found: io::Result<Vec<Event>>) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    match found {
        Ok(events) => events.iter().for_each(|event| emit(space, event)),
        Err(error) if !WARNED.swap(true, Ordering::Relaxed) => warn(&format!(
            "which pages were in memory before the recorded part could not be read from \
             {PATH} ({error}); their first touches will look like page faults"
        )),
        Err(_) => {}
    }
}

/// `Populate` events for every page of a range that is in memory now and was not known to be. A page that
/// is still the file's own counts as loaded, any other as stored to.
fn populated(map: &File, space: &mut Space, range: &Range<u64>) -> io::Result<Vec<Event>> {
    let mut found = Vec::new();
    let mut events: Vec<Event> = Vec::new();
    let mut entries = Vec::new();
    for (part, mapping) in space.within(range) {
        let mut page = part.start / PAGE;
        let end = part.end.div_ceil(PAGE);
        while page < end {
            entries.resize(8 * (end - page).min(AT_A_TIME) as usize, 0);
            map.read_exact_at(&mut entries, (page + guest_base() / PAGE) * 8)?;
            for entry in entries.chunks_exact(8) {
                let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                if entry & (PRESENT | SWAPPED) != 0 && !space.known.contains(page) {
                    found.push(page);
                    let stored = entry & FILE_PAGE == 0 && mapping.protection.write
                        || entry & FILE_PAGE != 0 && mapping.backing != Backing::File;
                    push_populate(&mut events, page * PAGE, PAGE, stored);
                }
                page += 1;
            }
        }
    }
    for page in found {
        space.known.insert(page);
    }
    Ok(events)
}

/// The file, open from one call in a gap to the next: to open it costs as much as many of these calls.
struct Kept {
    file: File,
    /// Its device and inode.
    identity: (u64, u64),
}

static KEPT: Lock<Option<Kept>> = Lock::new(None);

/// Runs `work` on the kept file, opened if it is not. The program shares our descriptors: it may have
/// closed this one, and have something else there.
fn with_kept<R>(work: impl FnOnce(&File) -> io::Result<R>) -> io::Result<R> {
    KEPT.with(|kept| {
        if let Some(lost) = kept.take_if(|kept| identity(&kept.file).ok() != Some(kept.identity)) {
            mem::forget(lost.file);
        }
        if let Some(kept) = kept {
            return work(&kept.file);
        }
        let file = File::open(PATH)?;
        // Out of the way, if there is such a number: programs expect the lowest free one, and close those
        // that they know.
        if let Ok(file) = sys::renumber(&file) {
            let identity = identity(&file)?;
            *kept = Some(Kept { file, identity });
        }
        work(&file)
    })
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|about| (about.dev(), about.ino()))
}

/// Before a fork: closes the kept file, which would be of the parent's memory in the child.
pub fn close() {
    KEPT.with(|kept| {
        if let Some(Kept { file, identity: known }) = kept.take()
            && identity(&file).ok() != Some(known)
        {
            mem::forget(file);
        }
    });
}

/// In a forked child: no file is kept.
pub fn renew() {
    KEPT.renew(None);
}
