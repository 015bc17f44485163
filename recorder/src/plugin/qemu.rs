//! The part of QEMU's TCG plugin interface (version 1: QEMU 5.2 to 8.2) that the recorder uses.
//!
//! The functions live in the QEMU executable. They are looked up when the plugin is installed, so
//! that a QEMU which lacks one gives a message instead of a loader error, and so that the rest of
//! this crate links without QEMU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Plugin interface version that this plugin was written against.
pub const API_VERSION: c_int = 1;

/// Identifies this plugin to QEMU.
pub type PluginId = u64;
/// Opaque block being translated.
#[repr(C)]
pub struct TranslationBlock([u8; 0]);
/// Opaque instruction being translated.
#[repr(C)]
pub struct TranslatedInstruction([u8; 0]);

/// What QEMU says of itself at installation (the leading fields of `qemu_info_t`).
#[repr(C)]
pub struct QemuInfo {
    /// Guest architecture, e.g. `x86_64`.
    pub target_name: *const c_char,
    /// Oldest plugin interface it accepts.
    pub minimum_version: c_int,
    /// Newest plugin interface it offers.
    pub current_version: c_int,
    /// True for a full machine.
    pub system_emulation: bool,
    /// Of a full machine: virtual CPUs at its start.
    pub vcpus: c_int,
    /// And at most.
    pub most_vcpus: c_int,
}

/// Opaque translation of an access.
#[repr(C)]
pub struct HardwareAddress([u8; 0]);

/// Entries that a walk reads at most.
pub const WALK_ENTRIES: usize = 5;

/// What a walk without nested paging is, of `enum qemu_plugin_page_walk_stage`.
pub const SINGLE_STAGE: c_uint = 0;

/// A walk of the guest's page tables (`struct qemu_plugin_page_walk` of our series).
#[repr(C)]
pub struct PageWalk {
    /// CR3.
    pub root: u64,
    /// CR4.
    pub control: u64,
    /// The address to translate.
    pub address: u64,
    /// It was to be written.
    pub is_store: bool,
    /// An instruction was to be read.
    pub is_fetch: bool,
    /// By unprivileged code.
    pub is_user: bool,
    /// There is no translation, or none for that access.
    pub faulted: bool,
    /// Error code of the page fault.
    pub fault_code: u32,
    /// How many entries were read.
    pub count: u32,
    /// Physical address and value of each, in order.
    pub entries: [[u64; 2]; WALK_ENTRIES],
    /// Physical address of what was asked for.
    pub physical: u64,
    /// Bytes of the page that it lies in.
    pub page_bytes: u64,
    /// Whose tables they are: `SINGLE_STAGE`, or of a two-dimensional walk the guest's or the nested ones.
    pub stage: c_uint,
    /// The guest has been left before the walk's end.
    pub is_abandoned: bool,
}

/// Callbacks that neither read nor write registers.
pub const NO_REGISTERS: c_int = 0;
/// Selects an addition, where QEMU itself is to count.
pub const ADD: c_int = 0;
/// Selects loads and stores.
pub const LOADS_AND_STORES: c_int = 3;

/// Called after each walk, on the thread of the vCPU that walked.
pub type WalkCallback = unsafe extern "C" fn(PluginId, c_uint, *const PageWalk);
/// Called when the plugin has been reset.
pub type ResetCallback = unsafe extern "C" fn(PluginId);
/// Called when QEMU ends.
pub type ExitCallback = unsafe extern "C" fn(PluginId, *mut c_void);
/// Called for a vCPU's start and end.
pub type VcpuCallback = unsafe extern "C" fn(PluginId, c_uint);
/// Called for each block translated.
pub type TranslateCallback = unsafe extern "C" fn(PluginId, *mut TranslationBlock);
/// Called for each execution of a block or instruction.
pub type ExecuteCallback = unsafe extern "C" fn(c_uint, *mut c_void);
/// Called for each access: vCPU, access information, virtual address, user data.
pub type AccessCallback = unsafe extern "C" fn(c_uint, u32, u64, *mut c_void);
/// Called before each system call.
pub type SyscallCallback =
    unsafe extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
/// Called after each system call with its result.
pub type SyscallReturnCallback = unsafe extern "C" fn(PluginId, c_uint, i64, i64);

macro_rules! interface {
    ($(#[$about:meta])* $name:ident: $($(#[$doc:meta])* $field:ident = $symbol:literal : fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $name {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            /// Looks the functions up in the running executable.
            ///
            /// # Errors
            /// The name of the first function that is not there.
            pub fn find() -> Result<$name, &'static str> {
                Ok($name {
                    $($field: {
                        let name = concat!($symbol, "\0");
                        // SAFETY: `name` ends in a NUL.
                        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast()) };
                        if address.is_null() {
                            return Err($symbol);
                        }
                        // SAFETY: the symbol is the function that QEMU's public header declares
                        // with this signature.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

interface! {
    /// QEMU's functions.
    Qemu:
    /// Registers for vCPU starts.
    on_vcpu_init = "qemu_plugin_register_vcpu_init_cb": fn(PluginId, VcpuCallback);
    /// Registers for vCPU ends.
    on_vcpu_exit = "qemu_plugin_register_vcpu_exit_cb": fn(PluginId, VcpuCallback);
    /// Registers for translations.
    on_translate = "qemu_plugin_register_vcpu_tb_trans_cb": fn(PluginId, TranslateCallback);
    /// Gives up all translations and registrations, then calls back.
    reset = "qemu_plugin_reset": fn(PluginId, ResetCallback);
    /// Registers for a block's executions.
    on_block = "qemu_plugin_register_vcpu_tb_exec_cb": fn(*mut TranslationBlock, ExecuteCallback, c_int, *mut c_void);
    /// Registers for an instruction's executions.
    on_instruction = "qemu_plugin_register_vcpu_insn_exec_cb": fn(*mut TranslatedInstruction, ExecuteCallback, c_int, *mut c_void);
    /// Registers for an instruction's accesses.
    on_access = "qemu_plugin_register_vcpu_mem_cb": fn(*mut TranslatedInstruction, AccessCallback, c_int, c_int, *mut c_void);
    /// Registers for system calls.
    on_syscall = "qemu_plugin_register_vcpu_syscall_cb": fn(PluginId, SyscallCallback);
    /// Registers for results of system calls.
    on_syscall_return = "qemu_plugin_register_vcpu_syscall_ret_cb": fn(PluginId, SyscallReturnCallback);
    /// Number of instructions in a block.
    block_length = "qemu_plugin_tb_n_insns": fn(*const TranslationBlock) -> usize;
    /// An instruction of a block.
    block_instruction = "qemu_plugin_tb_get_insn": fn(*const TranslationBlock, usize) -> *mut TranslatedInstruction;
    /// Address of an instruction's bytes, valid during translation.
    instruction_data = "qemu_plugin_insn_data": fn(*const TranslatedInstruction) -> *const c_void;
    /// Length of an instruction in bytes.
    instruction_length = "qemu_plugin_insn_size": fn(*const TranslatedInstruction) -> usize;
    /// Guest address of an instruction.
    instruction_address = "qemu_plugin_insn_vaddr": fn(*const TranslatedInstruction) -> u64;
    /// log2 of an access's size in bytes.
    access_size_shift = "qemu_plugin_mem_size_shift": fn(u32) -> c_uint;
    /// Whether an access stores.
    access_is_store = "qemu_plugin_mem_is_store": fn(u32) -> bool;
    /// Path of the program as QEMU was given it; to be freed with `g_free`.
    program_path = "qemu_plugin_path_to_binary": fn() -> *const c_char;
    /// Lowest executable address of the program.
    program_code_start = "qemu_plugin_start_code": fn() -> u64;
    /// Where execution begins: the interpreter's entry point if there is one.
    program_entry = "qemu_plugin_entry_code": fn() -> u64;
}

interface! {
    /// Functions that are of use only where QEMU emulates a whole machine; one of them is of our series.
    System:
    /// Registers for walks of the guest's page tables.
    on_walk = "qemu_plugin_register_vcpu_page_walk_cb": fn(PluginId, WalkCallback);
    /// Registers for QEMU's end.
    on_exit = "qemu_plugin_register_atexit_cb": fn(PluginId, ExitCallback, *mut c_void);
    /// Has QEMU add a number to a word whenever a block begins.
    count_block = "qemu_plugin_register_vcpu_tb_exec_inline": fn(*mut TranslationBlock, c_int, *mut c_void, u64);
    /// The same whenever an instruction does.
    count_instruction = "qemu_plugin_register_vcpu_insn_exec_inline": fn(*mut TranslatedInstruction, c_int, *mut c_void, u64);
    /// Where in QEMU's memory an instruction's bytes are; null if they are not in RAM.
    instruction_host_address = "qemu_plugin_insn_haddr": fn(*const TranslatedInstruction) -> *const c_void;
    /// What QEMU's TLB says of an access; null if it says nothing any more. For use in its callback alone.
    hardware_address = "qemu_plugin_get_hwaddr": fn(u32, u64) -> *const HardwareAddress;
    /// Whether it is of a device.
    is_device = "qemu_plugin_hwaddr_is_io": fn(*const HardwareAddress) -> bool;
    /// Where it is in the guest's RAM, as QEMU numbers its bytes.
    ram_address = "qemu_plugin_hwaddr_phys_addr": fn(*const HardwareAddress) -> u64;
}

impl Qemu {
    /// Path of the guest program, empty if QEMU does not know it.
    pub fn path_to_program(&self) -> std::path::PathBuf {
        use std::os::unix::ffi::OsStrExt;
        // SAFETY: called on a vCPU thread after the program was loaded; the result is a string of
        // its own or null, and leaks a few bytes once per process.
        let path = unsafe { (self.program_path)() };
        if path.is_null() {
            return std::path::PathBuf::new();
        }
        // SAFETY: not null, NUL-terminated.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        std::ffi::OsStr::from_bytes(bytes).into()
    }
}
