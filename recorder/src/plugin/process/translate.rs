//! What is done as QEMU translates the process's blocks.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::plugin::block::{NewBlock, number_of};
use crate::plugin::capture::{block_data, on_access, on_block, on_counted};
use crate::plugin::process::memory::set_guest_base;
use crate::plugin::process::pagemap::populate;
use crate::plugin::process::watched::is_watched;
use crate::plugin::process::{initial, roi};
use crate::plugin::qemu::{PluginId, TranslationBlock};
use crate::plugin::setup::{Setup, setup};
use crate::plugin::state::{emit, with_space};

/// The first block has been translated, or is being so.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Before the first instruction: emits the mappings that QEMU made, and finds the user's places.
fn begin() {
    with_space(|space| {
        if BEGUN.swap(true, Ordering::Relaxed) {
            return;
        }
        let Setup { qemu, options, .. } = setup();
        let path = qemu.path_to_program();
        // SAFETY: on a vCPU's thread, with the program loaded.
        let (code_start, entry) = unsafe { ((qemu.program_code_start)(), (qemu.program_entry)()) };
        let start = initial::start(&path, code_start, entry);
        set_guest_base(start.guest_base);
        start.events.iter().for_each(|event| emit(space, event));
        populate(space);
        roi::find(options, start.program.as_ref());
    });
}

/// QEMU translates a block.
///
/// # Safety
/// Called by QEMU with a block that it is translating.
pub unsafe extern "C" fn on_translate(_: PluginId, block: *mut TranslationBlock) {
    let qemu = &setup().qemu;
    begin();
    // SAFETY: QEMU keeps `block` valid during this callback, and calls back with the signature of each
    // function.
    unsafe {
        let new = NewBlock::read(qemu, block);
        let has = |place| new.instructions().any(|(_, address, _)| address == place);
        // Callbacks run in the order of registration: a start counts for the block that it is in.
        roi::watch_places(qemu, block, has);
        if is_watched() || roi::starts_in(has) {
            let number = number_of(&new.definition);
            new.watch(qemu, on_block, block_data(number, new.len() as u32), on_access);
        } else {
            new.count(qemu, on_counted);
        }
        let mut instructions = new.instructions().peekable();
        while let Some((handle, _, bytes)) = instructions.next() {
            let next = instructions.peek().map(|&(_, address, bytes)| (address, bytes));
            roi::watch_marker(qemu, handle, bytes, next);
        }
    }
}
