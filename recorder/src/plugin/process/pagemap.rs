//! Which of the process's pages are in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use flatwalk_trace::{Backing, Event};

use crate::plugin::connection::warn;
use crate::plugin::process::memory::guest_base;
use crate::plugin::space::{PAGE, Space};
use crate::plugin::state::{emit, push_populate};

/// Emits which pages are in memory.
pub fn populate(space: &mut Space) {
    match populated(space, guest_base()) {
        Ok(events) => events.iter().for_each(|event| emit(space, event)),
        Err(error) => warn(&format!(
            "which pages were in memory before the recorded part could not be read from \
             /proc/self/pagemap ({error}); their first touches will look like page faults"
        )),
    }
}

/// `Populate` events for every page that is in memory now and was not known to be, as the kernel's page tables say
/// (`/proc/self/pagemap`; the guest's address `a` is QEMU's `a + guest_base`). A page that
/// is still the file's own counts as loaded, any other as stored to.
fn populated(space: &mut Space, guest_base: u64) -> io::Result<Vec<Event>> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE_PAGE: u64 = 1 << 61;
    let map = File::open("/proc/self/pagemap")?;
    let mut found = Vec::new();
    let mut events: Vec<Event> = Vec::new();
    let mut entries = vec![0u8; 8 * 8192];
    for (start, mapping) in space.mappings() {
        let mut page = start / PAGE;
        let end = mapping.end / PAGE;
        while page < end {
            let count = (end - page).min(8192) as usize;
            let bytes = &mut entries[..8 * count];
            map.read_exact_at(bytes, (page + guest_base / PAGE) * 8)?;
            for entry in bytes.chunks_exact(8) {
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
