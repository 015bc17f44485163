//! Guests: one program of a machine that QEMU emulates whole is recorded.
//!
//! What runs in user mode is told from how the kernel returns there: both its ways out (`sysretq` and
//! `iretq`) push the program's stack pointer by the one instruction [`RETURN`], which reads it from the
//! thread's `pt_regs`. Those stand at the top of the thread's kernel stack, so that their address names
//! the thread. They also hold a system call's number, arguments and result: so mapping calls are known
//! as in a process that is recorded alone. Nothing of the kernel's symbols is needed.
//!
//! One vCPU runs everything: what its latest page walk says of CR3 holds for all that it does, since
//! QEMU's TLB is emptied whenever CR3 changes, so that nothing is reached without a walk before.

use std::collections::BTreeSet;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use flatwalk_paging::Address;
use flatwalk_paging::Gva;
use flatwalk_paging::hardware::Outcome;
use flatwalk_trace::{Event, ThreadId};
use rustc_hash::FxHashMap;

use crate::channel::{ADDRESS_BITS, CONTROL_CHECKED, CONTROL_FAILURE};
use crate::interest::marker_of;
use crate::lock::Lock;
use crate::options::Place;
use crate::process::{Mode, State, emit, mode, region, send, set_mode, setup, warn, with_state};
use crate::qemu::{
    ExecuteCallback, LOADS_AND_STORES, NO_REGISTERS, PageWalk, PluginId, System, TranslationBlock,
};
use crate::ram::{Ram, paging};
use crate::space::{PAGE, Space, is_mapping_call};
use crate::translate::{Fresh, number_of};
use crate::{calls, capture, sys};

/// `pushq 40(%rdi)`: rdi points to the `di` of `pt_regs`, so that this reads `sp`.
const RETURN: [u8; 3] = [0xff, 0x77, 0x28];
/// Where the fields of x86-64's `pt_regs` are.
const SP: u64 = 152;
const FIELDS: u64 = 168;
/// Code and stack segments of a program.
const USER_CS: u64 = 0x33;
const USER_CS_32: u64 = 0x23;
/// Accessed and dirty, which a walk that looks later may find set.
const USED: u64 = 3 << 5;
/// One access of so many is checked.
const SAMPLE: u32 = 1000;

static ROOT: AtomicU64 = AtomicU64::new(0);
static CONTROL: AtomicU64 = AtomicU64::new(0);
/// The kernel has returned to a program: there is user code.
static ALIVE: AtomicBool = AtomicBool::new(false);
/// There is a program to record.
static WANTED: AtomicBool = AtomicBool::new(false);
/// The program's own marker is waited for.
static HELD: AtomicBool = AtomicBool::new(false);
/// What is to be skipped has been.
static BEGUN: AtomicBool = AtomicBool::new(false);
static UNTIL_SAMPLE: AtomicU32 = AtomicU32::new(SAMPLE);
static WALKS: AtomicU64 = AtomicU64::new(0);
static ACCESSES: AtomicU64 = AtomicU64::new(0);
static GUEST: Lock<Option<Guest>> = Lock::new(None);

/// A translated block of user code.
///
/// QEMU keeps translations by physical address, and uses one of them wherever that page is mapped: in
/// another process perhaps elsewhere than where it was translated.
struct Located {
    /// The collector's number of the block at the address where it is now.
    number: AtomicU32,
    length: u32,
    code: Lock<Vec<u8>>,
}

/// All that is known of the guest.
#[derive(Default)]
struct Guest {
    ram: Option<Ram>,
    /// The `pt_regs` of the thread that runs in user mode.
    now: u64,
    /// The thread that will replace itself by the program to be recorded.
    armed: Option<u64>,
    program: Option<Program>,
    /// The program's thread that runs in user mode, if one does.
    running: Option<ThreadId>,
    /// Blocks by the physical page that they start in, and there by physical address and code.
    places: FxHashMap<u64, FxHashMap<(u64, Vec<u8>), &'static Located>>,
}

/// The program that is recorded.
struct Program {
    /// The `pt_regs` of its first thread.
    first: u64,
    /// Its threads by their `pt_regs`.
    threads: FxHashMap<u64, ThreadId>,
    /// How many it has had.
    had: ThreadId,
    /// CR3 in the kernel.
    root: u64,
    /// Pages walked for before recording began.
    pages: BTreeSet<u64>,
    /// Values of page-table entries, by address, as told to the collector.
    told: FxHashMap<u64, u64>,
    /// The same of CR3 and CR4.
    registers: Option<(u64, u64)>,
}

/// A program's registers when the kernel returns to it.
struct Registers {
    arguments: [u64; 6],
    result: i64,
    /// The system call's number; negative after anything else.
    call: i64,
    ip: u64,
    /// Where the program goes on after a system call, as it was when the call was made.
    after: u64,
    cs: u64,
}

impl Registers {
    fn is_exec(&self) -> bool {
        matches!(self.call, libc::SYS_execve | libc::SYS_execveat)
            && self.result == 0
            && self.ip != self.after
    }

    /// Whether a thread or process begins here.
    fn is_birth(&self) -> bool {
        let forks = [libc::SYS_clone, libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone3];
        forks.contains(&self.call) && self.result == 0
    }
}

/// Ends the recording, and QEMU.
#[cold]
fn fail(why: &str) -> ! {
    send(CONTROL_FAILURE, why.as_bytes());
    sys::exit_now(1);
}

fn with_guest<R>(work: impl FnOnce(&mut Guest) -> R) -> R {
    GUEST.with(|guest| work(guest.get_or_insert_default()))
}

fn system() -> &'static System {
    // These callbacks are registered only for whole machines.
    setup().system.as_ref().expect("QEMU emulates a machine")
}

impl Guest {
    fn ram(&mut self) -> Ram {
        if let Some(ram) = self.ram {
            return ram;
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let ram = Ram::find(&maps).unwrap_or_else(|why| fail(&why));
        self.ram = Some(ram);
        ram
    }

    /// The `pt_regs` at `frame`.
    fn registers(&mut self, frame: u64) -> Registers {
        let ram = self.ram();
        let (cr3, cr4) = (ROOT.load(Ordering::Relaxed), CONTROL.load(Ordering::Relaxed));
        let Some(physical) =
            ram.translate(cr3, cr4, frame).filter(|_| frame % PAGE + FIELDS <= PAGE)
        else {
            fail(&format!("the kernel's copy of the program's registers is not at {frame:#x}"));
        };
        let field = |offset: u64| ram.read(physical + offset).unwrap_or_default();
        Registers {
            arguments: [112, 104, 96, 56, 72, 64].map(field),
            result: field(80) as i64,
            call: field(120) as i64,
            ip: field(128),
            after: field(88),
            cs: field(136),
        }
    }

    /// The kernel returns to the thread whose `pt_regs` are at `frame`.
    fn returns(&mut self, vcpu: c_uint, frame: u64) {
        self.now = frame;
        if self.armed.is_none() && self.program.is_none() || mode() == Mode::Detached {
            return;
        }
        let registers = self.registers(frame);
        let root = ROOT.load(Ordering::Relaxed);
        if self.armed == Some(frame) && registers.is_exec() {
            self.armed = None;
            self.program = Some(Program::new(frame, root));
            HELD.store(setup().options.start_at == Some(Place::Marker), Ordering::Relaxed);
            with_state(|state| emit(state, &Event::ThreadStart { thread: 0 }));
        }
        let Some(program) = &mut self.program else { return };
        let thread = program.thread(frame, root, &registers);
        if thread.is_some() && registers.cs != USER_CS {
            fail(if registers.cs == USER_CS_32 {
                "the program runs 32-bit code; only 64-bit programs can be recorded"
            } else {
                "the kernel keeps registers elsewhere than where Linux 6.1 does"
            });
        }
        self.runs(vcpu, thread);
    }

    /// User code of the program's `thread`, or of another program, runs from here on.
    fn runs(&mut self, vcpu: c_uint, thread: Option<ThreadId>) {
        self.running = thread;
        let thread = thread.filter(|_| !HELD.load(Ordering::Relaxed));
        capture::switch(vcpu, thread);
        set_mode(match thread {
            None => Mode::Wait,
            Some(_) if BEGUN.load(Ordering::Relaxed) => Mode::Record,
            Some(_) => Mode::Skip,
        });
    }

    /// A walk is over.
    fn walked(&mut self, vcpu: c_uint, walk: &PageWalk) {
        let ram = self.ram();
        let entries = check_walk(ram, walk);
        WALKS.fetch_add(1, Ordering::Relaxed);
        if !walk.is_user || walk.faulted || self.running.is_none() || mode() == Mode::Detached {
            return;
        }
        if walk.is_fetch {
            self.place(walk.physical / PAGE, walk.address & !(PAGE - 1));
        }
        let Some(program) = &mut self.program else { return };
        if !BEGUN.load(Ordering::Relaxed) {
            program.pages.insert(walk.address & !(PAGE - 1));
        } else if program.tell(walk.root, walk.control, &entries) && !walk.is_fetch {
            capture::join(vcpu);
        }
    }

    /// The program has physical page `physical` at `page`: the blocks in it run there.
    fn place(&mut self, physical: u64, page: u64) {
        for place in self.places.get(&physical).into_iter().flat_map(FxHashMap::values) {
            place.code.with(|code| {
                let Some(start) = code.first_chunk_mut::<8>() else { return };
                let address = u64::from_le_bytes(*start);
                let here = page + address % PAGE;
                if address != here {
                    *start = here.to_le_bytes();
                    place.number.store(number_of(code), Ordering::Relaxed);
                }
            });
        }
    }

    /// What QEMU translates: a block with this code, at this physical address if it is in RAM.
    fn translated(&mut self, host: u64, code: &[u8], length: usize) -> &'static Located {
        let new = || {
            // Kept for ever, as are the collector's definitions.
            Box::leak(Box::new(Located {
                number: AtomicU32::new(number_of(code)),
                length: length as u32,
                code: Lock::new(code.to_vec()),
            }))
        };
        let Some(physical) = self.ram().physical(host) else { return new() };
        let key = (physical, code[8..].to_vec());
        let place =
            *self.places.entry(physical / PAGE).or_default().entry(key).or_insert_with(|| new());
        place.code.with(|known| {
            if known != code {
                known.copy_from_slice(code);
                place.number.store(number_of(code), Ordering::Relaxed);
            }
        });
        place
    }
}

impl Program {
    fn new(frame: u64, root: u64) -> Program {
        Program {
            first: frame,
            threads: FxHashMap::from_iter([(frame, 0)]),
            had: 1,
            root,
            pages: BTreeSet::new(),
            told: FxHashMap::default(),
            registers: None,
        }
    }

    /// The program's thread to which the kernel returns, if it is one; takes note of what the kernel did.
    fn thread(&mut self, frame: u64, root: u64, registers: &Registers) -> Option<ThreadId> {
        if registers.is_birth() {
            // Whoever had this kernel stack before is gone.
            self.end(frame);
            if root == self.root {
                let thread = self.had;
                self.had += 1;
                self.threads.insert(frame, thread);
                with_state(|state| emit(state, &Event::ThreadStart { thread }));
            }
        }
        let &thread = self.threads.get(&frame)?;
        if registers.is_exec() && root != self.root {
            if frame != self.first {
                // A child that had shared its parent's address space until now.
                self.end(frame);
                return None;
            }
            let others: Vec<u64> = self.threads.keys().copied().filter(|&f| f != frame).collect();
            for other in others {
                self.end(other);
            }
            with_state(|state| {
                emit(state, &Event::Unmap { address: 0, length: 1 << ADDRESS_BITS });
                state.space = Space::default();
            });
            self.pages.clear();
        } else if is_mapping_call(registers.call) && !(-4095..0).contains(&registers.result) {
            note(registers);
        }
        // Linux may also have moved the root of the tables.
        self.root = root;
        Some(thread)
    }

    /// The thread whose `pt_regs` were at `frame` is gone, if there was one.
    fn end(&mut self, frame: u64) {
        if let Some(thread) = self.threads.remove(&frame) {
            with_state(|state| emit(state, &Event::ThreadExit { thread }));
        }
    }

    /// Tells the collector what is new in the entries that a walk read; false if nothing is.
    fn tell(&mut self, cr3: u64, cr4: u64, entries: &[(u64, u8, u64)]) -> bool {
        let mut events = Vec::new();
        if self.registers.replace((cr3, cr4)) != Some((cr3, cr4)) {
            events.push(Event::Root { cr3, cr4 });
        }
        for &(address, level, value) in entries {
            let told = self.told.insert(address, value);
            if told.is_none_or(|told| (told ^ value) & !USED != 0) {
                events.push(Event::Entry { address, level, value });
            }
        }
        with_state(|state| {
            for event in &events {
                emit(state, event);
            }
        });
        !events.is_empty()
    }
}

/// Takes note of a mapping call that succeeded.
fn note(registers: &Registers) {
    if registers.ip != registers.after {
        warn(
            "a signal arrived during a call that changes mappings; what that call did is not in the trace",
        );
    } else if let libc::SYS_shmat | libc::SYS_shmdt = registers.call {
        warn("System V shared memory was attached or detached; that is not in the trace");
    } else {
        with_state(|state| {
            calls::note(state, registers.call, &registers.arguments, registers.result as u64);
        });
    }
}

/// Lets the engine walk for what QEMU has walked for, and compares. Returns the entries.
fn check_walk(ram: Ram, walk: &PageWalk) -> Vec<(u64, u8, u64)> {
    let differ = |how: &str| -> ! {
        fail(&format!(
            "the engine's walker and QEMU differ at address {:#x} with CR3 {:#x}: {how}. \
             Please report this with the command line",
            walk.address, walk.root
        ))
    };
    let walked = ram.walk(walk.root, walk.control, walk.address).unwrap_or_else(|how| differ(&how));
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
    walked.entries
}

/// Compares an access's translation, from QEMU's TLB, with what the engine's walker finds now.
///
/// # Safety
/// In the callback of this access.
#[cold]
unsafe fn check_access(information: u32, address: u64) {
    let system = system();
    // SAFETY: the caller's promise; the handle is used before anything else is asked.
    let found = unsafe {
        let handle = (system.hardware_address)(information, address);
        if handle.is_null() || (system.is_device)(handle) {
            return;
        }
        (system.ram_address)(handle)
    };
    let (cr3, cr4) = (ROOT.load(Ordering::Relaxed), CONTROL.load(Ordering::Relaxed));
    let ram = with_guest(Guest::ram);
    let expected = ram.translate(cr3, cr4, address).and_then(|physical| ram.offset(physical));
    if expected != Some(found) {
        fail(&format!(
            "QEMU took the access to {address:#x} to byte {found:#x} of RAM, the engine's walker to \
             {expected:x?}, with CR3 {cr3:#x}. Please report this with the command line"
        ));
    }
    ACCESSES.fetch_add(1, Ordering::Relaxed);
}

/// Recording begins: tells the page tables as far as the program has used them, and which pages are in
/// memory.
pub fn populate(state: &mut State) {
    BEGUN.store(true, Ordering::Relaxed);
    let mut events: Vec<Event> = Vec::new();
    let (cr3, cr4) = (ROOT.load(Ordering::Relaxed), CONTROL.load(Ordering::Relaxed));
    with_guest(|guest| {
        let ram = guest.ram();
        let Some(program) = &mut guest.program else { return };
        let pages = std::mem::take(&mut program.pages);
        if pages.is_empty() {
            return;
        }
        program.registers = Some((cr3, cr4));
        let mut tables = vec![Event::Root { cr3, cr4 }];
        for here in pages {
            let Ok(walked) = ram.walk(cr3, cr4, here) else { continue };
            let Ok(leaf) = walked.result else { continue };
            for (address, level, value) in walked.entries {
                if program.told.insert(address, value).is_none() {
                    tables.push(Event::Entry { address, level, value });
                }
            }
            let stored = leaf.entry.is_dirty();
            match events.last_mut() {
                Some(Event::Populate { address, length, store })
                    if *address + *length == here && *store == stored =>
                {
                    *length += PAGE;
                }
                _ => events.push(Event::Populate { address: here, length: PAGE, store: stored }),
            }
        }
        events.append(&mut tables);
    });
    for event in &events {
        emit(state, event);
    }
}

/// Tells how much has been checked, if this is a guest.
pub fn tell_checks() {
    if setup().system.is_some() {
        let counts = [&WALKS, &ACCESSES].map(|count| count.load(Ordering::Relaxed).to_le_bytes());
        send(CONTROL_CHECKED, counts.as_flattened());
    }
}

// ---- callbacks ----------------------------------------------------------------------------------

/// QEMU translates a block.
///
/// # Safety
/// Called by QEMU with a block that it is translating.
pub unsafe extern "C" fn on_translate(_: PluginId, block: *mut TranslationBlock) {
    let qemu = &setup().qemu;
    // SAFETY: QEMU keeps `block` valid during this callback, and calls back with the signature of each
    // function.
    unsafe {
        let handle = (qemu.block_instruction)(block, 0);
        if (qemu.instruction_address)(handle) >> 63 != 0 {
            let fresh = Fresh::read(qemu, block);
            for (handle, ..) in fresh.instructions().filter(|(_, _, bytes)| *bytes == RETURN) {
                let nothing = std::ptr::null_mut();
                (qemu.on_access)(handle, on_return, NO_REGISTERS, LOADS_AND_STORES, nothing);
            }
        } else if ALIVE.load(Ordering::Relaxed) {
            let fresh = Fresh::read(qemu, block);
            let host = (system().instruction_host_address)(handle) as u64;
            let place = with_guest(|guest| guest.translated(host, &fresh.code, fresh.len()));
            let data = std::ptr::from_ref(place).cast_mut().cast();
            fresh.watch(qemu, on_block, data, on_access);
            for (handle, _, bytes) in fresh.instructions() {
                let callback: ExecuteCallback = match marker_of(bytes) {
                    Some(1) => on_start,
                    Some(2) => on_stop,
                    _ => continue,
                };
                (qemu.on_instruction)(handle, callback, NO_REGISTERS, std::ptr::null_mut());
            }
        }
    }
}

/// A block of user code begins.
unsafe extern "C" fn on_block(vcpu: c_uint, data: *mut c_void) {
    // SAFETY: `on_translate` gave QEMU a place that lasts for ever.
    let place = unsafe { &*data.cast::<Located>() };
    let number = u64::from(place.number.load(Ordering::Relaxed));
    // SAFETY: the number that this block has.
    unsafe { capture::on_block(vcpu, (number | u64::from(place.length) << 32) as *mut c_void) };
}

/// User code made an access.
unsafe extern "C" fn on_access(vcpu: c_uint, information: u32, address: u64, data: *mut c_void) {
    if address >> 63 != 0 {
        // The processor's own: the kernel's stack and tables, when a fault interrupts the instruction.
        return;
    }
    // SAFETY: what `Fresh::watch` gave QEMU.
    unsafe { capture::on_access(vcpu, information, address, data) };
    if address >> ADDRESS_BITS != 0 && mode() == Mode::Record {
        fail(&format!(
            "the program uses address {address:#x}, beyond the {ADDRESS_BITS} bits that can be recorded"
        ));
    }
    let left = UNTIL_SAMPLE.load(Ordering::Relaxed) - 1;
    UNTIL_SAMPLE.store(left, Ordering::Relaxed);
    if left == 0 {
        UNTIL_SAMPLE.store(SAMPLE, Ordering::Relaxed);
        if matches!(mode(), Mode::Record | Mode::Skip) {
            // SAFETY: this is the callback.
            unsafe { check_access(information, address) };
        }
    }
}

/// The kernel is about to return to a program.
unsafe extern "C" fn on_return(vcpu: c_uint, information: u32, address: u64, _: *mut c_void) {
    if information & capture::STORE == 0 {
        ALIVE.store(true, Ordering::Relaxed);
        with_guest(|guest| guest.returns(vcpu, address.wrapping_sub(SP)));
    }
}

/// The guest's first process is about to start the program; or the program is where recording begins.
unsafe extern "C" fn on_start(vcpu: c_uint, _: *mut c_void) {
    with_guest(|guest| {
        if !WANTED.swap(true, Ordering::Relaxed) {
            guest.armed = Some(guest.now);
        } else if guest.running.is_some() && HELD.swap(false, Ordering::Relaxed) {
            guest.runs(vcpu, guest.running);
        }
    });
}

/// The guest's first process has seen the program's end. The program's own marker says nothing.
unsafe extern "C" fn on_stop(vcpu: c_uint, _: *mut c_void) {
    with_guest(|guest| {
        if guest.running.is_none() && guest.program.take().is_some() && mode() != Mode::Detached {
            guest.runs(vcpu, None);
        }
    });
}

/// QEMU walked the guest's page tables.
///
/// # Safety
/// Called by QEMU with a walk.
pub unsafe extern "C" fn on_walk(_: PluginId, vcpu: c_uint, walk: *const PageWalk) {
    // SAFETY: QEMU keeps it valid during this callback.
    let walk = unsafe { &*walk };
    ROOT.store(walk.root, Ordering::Relaxed);
    CONTROL.store(walk.control, Ordering::Relaxed);
    if WANTED.load(Ordering::Relaxed) {
        with_guest(|guest| guest.walked(vcpu, walk));
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
pub unsafe extern "C" fn on_exit(_: PluginId, _: *mut c_void) {
    tell_checks();
}
