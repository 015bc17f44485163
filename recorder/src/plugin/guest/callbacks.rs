//! What QEMU calls.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::channel::word::ADDRESS_BITS;
use crate::plugin::block::{NewBlock, is_repeated};
use crate::plugin::capture;
use crate::plugin::connection::{fail, region};
use crate::plugin::guest::blocks::Block;
use crate::plugin::guest::check::{self, check_access};
use crate::plugin::guest::kernel_work::{counters, executed};
use crate::plugin::guest::memory::set_control_registers;
use crate::plugin::guest::registers::RESTORE;
use crate::plugin::guest::tracker::with_tracker;
use crate::plugin::markers::Marker;
use crate::plugin::options::Place;
use crate::plugin::phase::{Phase, phase};
use crate::plugin::qemu::{
    ADD, ExecuteCallback, LOADS_AND_STORES, NO_REGISTERS, PageWalk, PluginId, Qemu, SINGLE_STAGE,
    System, TranslationBlock,
};
use crate::plugin::setup::setup;
use crate::plugin::state::{hold_events, release_events};

/// One access of so many is checked.
const SAMPLE: u32 = 1000;

static SYSTEM: OnceLock<System> = OnceLock::new();
static PLUGIN: AtomicU64 = AtomicU64::new(0);
/// The kernel has returned to a program: there is user code.
static HAS_RETURNED: AtomicBool = AtomicBool::new(false);
/// The guest's first process has said that the command comes.
static ANNOUNCED: AtomicBool = AtomicBool::new(false);
/// The program's blocks and accesses are watched: not before a marker that is waited for, so that all
/// that comes before it runs several times faster.
static WATCHED: AtomicBool = AtomicBool::new(true);
static UNTIL_SAMPLE: AtomicU32 = AtomicU32::new(SAMPLE);

/// At installation: what else there is of QEMU's functions.
pub fn set_up(system: System) {
    let _ = SYSTEM.set(system);
}

fn system() -> &'static System {
    // These callbacks are registered only after `set_up`.
    SYSTEM.get().expect("QEMU emulates a machine")
}

/// Reports how much has been checked, and how much the kernel has done for the program.
pub fn report_counts() {
    check::report(with_tracker(|tracker| tracker.work.spent));
}

/// Has QEMU call from now on.
///
/// # Safety
/// `id` is this plugin's, and QEMU is at its installation or has just reset it.
pub unsafe fn register(id: PluginId) {
    let qemu = &setup().qemu;
    PLUGIN.store(id, Ordering::Relaxed);
    // SAFETY: the caller's promise; the callbacks have QEMU's signatures.
    unsafe {
        (qemu.on_translate)(id, on_translate);
        (system().on_walk)(id, on_walk);
        (system().on_exit)(id, on_exit, ptr::null_mut());
    }
}

/// QEMU has no translations any more: all blocks come anew, to be watched.
///
/// # Safety
/// Called by QEMU.
unsafe extern "C" fn on_reset(id: PluginId) {
    WATCHED.store(true, Ordering::Relaxed);
    // SAFETY: this is the reset.
    unsafe { register(id) };
}

/// QEMU translates a block.
///
/// # Safety
/// Called by QEMU with a block that it is translating.
unsafe extern "C" fn on_translate(_: PluginId, block: *mut TranslationBlock) {
    let qemu = &setup().qemu;
    // SAFETY: QEMU keeps `block` valid during this callback.
    unsafe {
        let address = (qemu.instruction_address)((qemu.block_instruction)(block, 0));
        if address >> 63 != 0 {
            watch_kernel(qemu, block);
        } else if HAS_RETURNED.load(Ordering::Relaxed) {
            watch_user(qemu, block);
        }
    }
}

/// Has QEMU count the kernel's instructions, and call where it returns to programs and turns to other
/// threads.
///
/// # Safety
/// QEMU is translating `block`.
unsafe fn watch_kernel(qemu: &Qemu, block: *mut TranslationBlock) {
    let nothing = ptr::null_mut();
    let [instructions, repetitions] = counters();
    // SAFETY: the caller's promise; QEMU calls back with the signature of each function.
    unsafe {
        let new = NewBlock::read(qemu, block);
        (system().count_block)(block, ADD, instructions.cast(), new.len() as u64);
        for (handle, address, bytes) in new.instructions() {
            if bytes == RESTORE && setup().options.returns.iter().any(|way| way.contains(&address))
            {
                (qemu.on_access)(handle, on_return, NO_REGISTERS, LOADS_AND_STORES, nothing);
            }
            if is_repeated(bytes) {
                (system().count_instruction)(handle, ADD, repetitions.cast(), 1);
            }
            if setup().options.switch == Some(address) {
                (qemu.on_instruction)(handle, on_switch, NO_REGISTERS, nothing);
            }
        }
    }
}

/// Has QEMU call for a program's markers and, when programs are watched, for its blocks and accesses.
///
/// # Safety
/// QEMU is translating `block`.
unsafe fn watch_user(qemu: &Qemu, block: *mut TranslationBlock) {
    // SAFETY: the caller's promise; QEMU calls back with the signature of each function.
    unsafe {
        let new = NewBlock::read(qemu, block);
        if WATCHED.load(Ordering::Relaxed) {
            let handle = (qemu.block_instruction)(block, 0);
            let address = (system().instruction_host_address)(handle) as u64;
            let known = with_tracker(|tracker| {
                tracker.blocks.translated(address, &new.definition, new.len())
            });
            let data = ptr::from_ref(known).cast_mut().cast();
            new.watch(qemu, on_block, data, on_access);
        }
        for (handle, _, bytes) in new.instructions() {
            let callback: ExecuteCallback = match Marker::of(bytes) {
                Some(Marker::Start) => on_start,
                Some(Marker::Stop) => on_stop,
                Some(Marker::Named) | None => continue,
            };
            (qemu.on_instruction)(handle, callback, NO_REGISTERS, ptr::null_mut());
        }
    }
}

/// A block of user code begins.
unsafe extern "C" fn on_block(vcpu: c_uint, data: *mut c_void) {
    // SAFETY: `watch_user` gave QEMU a block that lasts for ever.
    let (number, length) = unsafe { &*data.cast::<Block>() }.describe();
    // SAFETY: this is the callback, and the data is the block's.
    unsafe { capture::on_block(vcpu, capture::block_data(number, length)) };
}

/// User code made an access.
unsafe extern "C" fn on_access(vcpu: c_uint, information: u32, address: u64, data: *mut c_void) {
    if address >> 63 != 0 {
        // The processor's own: the kernel's stack and tables, when a fault interrupts the instruction.
        return;
    }
    // SAFETY: what `NewBlock::watch` gave QEMU.
    unsafe { capture::on_access(vcpu, information, address, data) };
    if address >> ADDRESS_BITS != 0 && phase() == Phase::Record {
        fail(&format!(
            "the program uses address {address:#x}, beyond the {ADDRESS_BITS} bits that can be recorded"
        ));
    }
    let left = UNTIL_SAMPLE.load(Ordering::Relaxed) - 1;
    UNTIL_SAMPLE.store(left, Ordering::Relaxed);
    if left == 0 {
        UNTIL_SAMPLE.store(SAMPLE, Ordering::Relaxed);
        if matches!(phase(), Phase::Record | Phase::Skip) {
            // SAFETY: this is the callback.
            unsafe { check_access(system(), information, address) };
        }
    }
}

/// The kernel is about to return to a program.
unsafe extern "C" fn on_return(vcpu: c_uint, information: u32, address: u64, _: *mut c_void) {
    if information & capture::STORE == 0 {
        HAS_RETURNED.store(true, Ordering::Relaxed);
        with_tracker(|tracker| tracker.returns(vcpu, address));
    }
}

/// The kernel turns to another thread.
unsafe extern "C" fn on_switch(_: c_uint, _: *mut c_void) {
    with_tracker(|tracker| tracker.work.cut(executed(), false));
}

/// The guest's first process is about to start the command; or a program is where recording begins.
unsafe extern "C" fn on_start(vcpu: c_uint, _: *mut c_void) {
    with_tracker(|tracker| {
        if !ANNOUNCED.swap(true, Ordering::Relaxed) {
            let options = &setup().options;
            tracker.announce(options.program.as_deref());
            if options.start_at == Some(Place::Marker) {
                hold_events();
                WATCHED.store(false, Ordering::Relaxed);
            }
        } else if phase() != Phase::Detached && release_events() {
            tracker.begins(vcpu);
            // SAFETY: in a callback. QEMU gives up all translations before the next block, and calls back
            // with this signature.
            unsafe { (setup().qemu.reset)(PLUGIN.load(Ordering::Relaxed), on_reset) };
        }
    });
}

/// The guest's first process has seen the command's end. Other programs' markers say nothing.
unsafe extern "C" fn on_stop(vcpu: c_uint, _: *mut c_void) {
    with_tracker(|tracker| tracker.command_ended(vcpu));
}

/// QEMU walked the guest's page tables.
///
/// # Safety
/// Called by QEMU with a walk.
unsafe extern "C" fn on_walk(_: PluginId, vcpu: c_uint, walk: *const PageWalk) {
    // SAFETY: QEMU keeps it valid during this callback.
    let walk = unsafe { &*walk };
    // What runs below a hypervisor in the guest has guest-physical addresses, and is not recorded.
    if walk.stage != SINGLE_STAGE {
        return;
    }
    set_control_registers(walk.root, walk.control);
    if ANNOUNCED.load(Ordering::Relaxed) {
        with_tracker(|tracker| tracker.walked(vcpu, walk));
    }
}

/// A vCPU starts.
///
/// # Safety
/// Called by QEMU.
pub unsafe extern "C" fn on_vcpu_init(_: PluginId, vcpu: c_uint) {
    region().vcpus.fetch_max(vcpu + 1, Ordering::Release);
}

/// QEMU ends.
///
/// # Safety
/// Called by QEMU.
unsafe extern "C" fn on_exit(_: PluginId, _: *mut c_void) {
    report_counts();
}
