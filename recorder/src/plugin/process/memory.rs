//! The process's memory, by guest addresses.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys;

/// Difference between QEMU's and guest addresses.
static GUEST_BASE: AtomicU64 = AtomicU64::new(0);

/// Difference between QEMU's and guest addresses.
pub fn guest_base() -> u64 {
    GUEST_BASE.load(Ordering::Relaxed)
}

/// Before the first instruction: fixes the difference.
pub fn set_guest_base(base: u64) {
    GUEST_BASE.store(base, Ordering::Relaxed);
}

/// Gives back the pages of private anonymous memory at these guest addresses, whose content is nobody's.
pub fn give_up_pages(addresses: Range<u64>) {
    let base = guest_base();
    // SAFETY: the guest has it mapped like that, and has just been given it, or given it back.
    unsafe { sys::give_up_pages(&(addresses.start + base..addresses.end + base)) };
}

/// The NUL-terminated string at guest address `address`, at most 128 KiB long (the kernel's limit
/// for one argument); `None` if it is not all mapped.
pub fn read_string(address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = address.wrapping_add(guest_base());
    while text.len() < 128 << 10 {
        let mut part = [0; 4096];
        // Up to the end of the page, since the next may not be mapped.
        let part = &mut part[..4096 - (at as usize & 4095)];
        let got = sys::read_memory(at, part);
        if let Some(end) = part[..got].iter().position(|&byte| byte == 0) {
            text.extend_from_slice(&part[..end]);
            return Some(text);
        }
        if got < part.len() {
            return None;
        }
        text.extend_from_slice(part);
        at += part.len() as u64;
    }
    None
}

/// The 8-byte word at guest address `address`, `None` if it is not mapped.
pub fn read_word(address: u64) -> Option<u64> {
    let mut word = [0; 8];
    let at = address.wrapping_add(guest_base());
    (sys::read_memory(at, &mut word) == 8).then(|| u64::from_le_bytes(word))
}
