//! The guest's memory, by addresses of the address space that is in use.
//!
//! One vCPU runs everything: what its latest page walk says of CR3 holds for all that it does, since
//! QEMU's TLB is emptied whenever CR3 changes, so that nothing is reached without a walk before.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::plugin::connection::fail;
use crate::plugin::guest::ram::Ram;

static CR3: AtomicU64 = AtomicU64::new(0);
static CR4: AtomicU64 = AtomicU64::new(0);
static RAM: OnceLock<Ram> = OnceLock::new();

/// Takes note of the registers of a walk.
pub fn set_control_registers(cr3: u64, cr4: u64) {
    CR3.store(cr3, Ordering::Relaxed);
    CR4.store(cr4, Ordering::Relaxed);
}

/// CR3 and CR4.
pub fn control_registers() -> (u64, u64) {
    (CR3.load(Ordering::Relaxed), CR4.load(Ordering::Relaxed))
}

/// The guest's RAM.
pub fn ram() -> &'static Ram {
    RAM.get_or_init(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Ram::find(&maps).unwrap_or_else(|why| fail(&why))
    })
}

/// The physical address that `address` translates to, if it does.
pub fn translate(address: u64) -> Option<u64> {
    let (cr3, cr4) = control_registers();
    ram().translate(cr3, cr4, address)
}

/// The 8-byte word at `address`, a multiple of 8.
pub fn read_word(address: u64) -> Option<u64> {
    translate(address).and_then(|physical| ram().read(physical))
}

/// The string at `address`, as far as it is in memory, and no longer than a path can be.
pub fn read_string(address: u64) -> Vec<u8> {
    let bytes = (0..libc::PATH_MAX as u64).map_while(|index| {
        let at = address + index;
        read_word(at & !7).map(|word| word.to_le_bytes()[(at & 7) as usize])
    });
    bytes.take_while(|&byte| byte != 0).collect()
}
