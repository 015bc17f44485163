//! Compares what QEMU makes of addresses with what the engine's walker does.

use std::sync::atomic::{AtomicU64, Ordering};

use flatwalk_paging::hardware::Outcome;
use flatwalk_paging::{Address, Gva, Level};

use crate::channel::control::CONTROL_CHECKED;
use crate::plugin::connection::{fail, send};
use crate::plugin::guest::memory;
use crate::plugin::guest::ram::paging;
use crate::plugin::qemu::{PageWalk, System};

/// Accessed and dirty, which a walk that looks later may find set.
pub const USED: u64 = 3 << 5;

static WALKS: AtomicU64 = AtomicU64::new(0);
static ACCESSES: AtomicU64 = AtomicU64::new(0);

/// Lets the engine walk for what QEMU has walked for, and compares. Returns the entries.
pub fn check_walk(walk: &PageWalk) -> Vec<(u64, Level, u64)> {
    let differ = |how: &str| -> ! {
        fail(&format!(
            "the engine's walker and QEMU differ at address {:#x} with CR3 {:#x}: {how}. \
             Please report this with the command line",
            walk.address, walk.root
        ))
    };
    let walked = memory::ram()
        .walk(walk.root, walk.control, walk.address)
        .unwrap_or_else(|how| differ(&how));
    let read = walk.entries.get(..walk.count as usize).unwrap_or(&walk.entries);
    let same = read.len() == walked.entries.len()
        && read.iter().zip(&walked.entries).all(|(&[address, value], &(at, _, found))| {
            address == at && (value ^ found) & !USED == 0
        });
    if !same {
        differ(&format!("it read {read:x?}, the engine {:x?}", walked.entries));
    }
    let outcome = if walk.faulted {
        Outcome::Fault(walk.fault_code.into())
    } else {
        Outcome::Page { physical: walk.physical, bytes: walk.page_bytes }
    };
    let address = Gva::new(walk.address);
    if let Err(how) = paging(walk.control).compare(address, walked.result, outcome) {
        differ(&how);
    }
    WALKS.fetch_add(1, Ordering::Relaxed);
    walked.entries
}

/// Compares an access's translation, from QEMU's TLB, with what the engine's walker finds now.
///
/// # Safety
/// In the callback of this access.
#[cold]
pub unsafe fn check_access(system: &System, information: u32, address: u64) {
    // SAFETY: the caller's promise; the handle is used before anything else is asked.
    let found = unsafe {
        let handle = (system.hardware_address)(information, address);
        if handle.is_null() || (system.is_device)(handle) {
            return;
        }
        (system.ram_address)(handle)
    };
    let expected = memory::translate(address).and_then(|physical| memory::ram().offset(physical));
    if expected != Some(found) {
        let (cr3, _) = memory::control_registers();
        fail(&format!(
            "QEMU took the access to {address:#x} to byte {found:#x} of RAM, the engine's walker to \
             {expected:x?}, with CR3 {cr3:#x}. Please report this with the command line"
        ));
    }
    ACCESSES.fetch_add(1, Ordering::Relaxed);
}

/// Reports how much has been checked, and the kernel's work for the program.
pub fn report(kernel_work: [u64; 2]) {
    let [walks, accesses] = [&WALKS, &ACCESSES].map(|count| count.load(Ordering::Relaxed));
    let [kernel, repeated] = kernel_work;
    let counts = [walks, accesses, kernel, repeated].map(u64::to_le_bytes);
    send(CONTROL_CHECKED, counts.as_flattened());
}
