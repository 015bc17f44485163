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
//!
//! Who is recorded is found out as the guest runs: the command, the first process that starts a program
//! of a name, or the one that executes a marker. That one may have run for long, unwatched: its
//! mappings are then not known, but all pages that its tables hold are.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use flatwalk_paging::Address;
use flatwalk_paging::Gva;
use flatwalk_paging::hardware::Outcome;
use flatwalk_trace::{Event, ThreadId};
use rustc_hash::FxHashMap;

use crate::channel::control::{CONTROL_CHECKED, CONTROL_FAILURE};
use crate::channel::word::ADDRESS_BITS;
use crate::interest::marker_of;
use crate::lock::Lock;
use crate::options::Place;
use crate::process::{Mode, State, emit, mode, region, send, set_mode, setup, warn, with_state};
use crate::qemu::{
    ADD, ExecuteCallback, LOADS_AND_STORES, NO_REGISTERS, PageWalk, PluginId, System,
    TranslationBlock,
};
use crate::ram::{Ram, paging};
use crate::space::{PAGE, Space, is_mapping_call};
use crate::translate::{Fresh, is_repeated, number_of};
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
/// The guest's first process has said that the command comes.
static WANTED: AtomicBool = AtomicBool::new(false);
/// A marker is waited for, of whatever process.
static HELD: AtomicBool = AtomicBool::new(false);
/// The program's blocks and accesses are watched: not before a marker that is waited for, so that all that comes
/// before it runs several times faster.
static WATCHED: AtomicBool = AtomicBool::new(true);
/// What is to be skipped has been.
static BEGUN: AtomicBool = AtomicBool::new(false);
static UNTIL_SAMPLE: AtomicU32 = AtomicU32::new(SAMPLE);
static WALKS: AtomicU64 = AtomicU64::new(0);
static ACCESSES: AtomicU64 = AtomicU64::new(0);
/// Instructions of the kernel so far, and which of them were repetitions of a string instruction; QEMU
/// itself adds to these.
static KERNEL: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static PLUGIN: AtomicU64 = AtomicU64::new(0);
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
    /// The `pt_regs` of the guest's first process: there is no other program until it has started one.
    first: Option<u64>,
    /// The `pt_regs` of the thread that runs in user mode, and CR3 when the kernel returned to it.
    now: (u64, u64),
    target: Target,
    program: Option<Program>,
    work: Work,
    /// The program's thread that runs in user mode, if one does.
    running: Option<ThreadId>,
    /// Blocks by the physical page that they start in, and there by physical address and code.
    places: FxHashMap<u64, FxHashMap<(u64, Vec<u8>), &'static Located>>,
}

/// Who is to be recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Target {
    /// Nobody yet.
    #[default]
    Later,
    /// The thread that will replace itself by the command.
    Command(u64),
    /// Whoever first starts a program of this name.
    Named(&'static str),
    /// It has been found.
    Found,
}

/// The kernel's work for the program: what it executes between two returns to user mode is cut where it
/// turns to another thread. The program's are the pieces that begin or end in it.
#[derive(Debug, Default)]
struct Work {
    /// Where the piece under way began, and whether the program ran before.
    since: [u64; 2],
    is_own: bool,
    /// Of all pieces since recording began.
    spent: [u64; 2],
}

impl Work {
    /// A piece ends, with the program going on in user mode or not.
    fn cut(&mut self, now: [u64; 2], goes_on: bool) {
        if self.is_own || goes_on {
            for (spent, (now, since)) in self.spent.iter_mut().zip(now.iter().zip(self.since)) {
                *spent += now - since;
            }
        }
        self.since = now;
        self.is_own = goes_on;
    }
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
    sp: u64,
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
            sp: field(SP),
            after: field(88),
            cs: field(136),
        }
    }

    /// The kernel returns to the thread whose `pt_regs` are at `frame`.
    fn returns(&mut self, vcpu: c_uint, frame: u64) {
        // Linux gives an address space another PCID when it comes back after long.
        let root = ROOT.load(Ordering::Relaxed) & !(PAGE - 1);
        self.first.get_or_insert(frame);
        self.now = (frame, root);
        let is_idle =
            matches!(self.target, Target::Later | Target::Found) && self.program.is_none();
        if is_idle || mode() == Mode::Detached {
            return;
        }
        let registers = self.registers(frame);
        let is_new = registers.is_exec() || registers.is_birth() && !self.is_shared(&registers);
        if is_new && self.program.as_ref().is_some_and(|program| program.root == root) {
            // An address space begins where the program's was.
            self.end();
        }
        if registers.is_exec() && self.is_wanted(frame, &registers) {
            self.target = Target::Found;
            self.program = Some(Program::new(frame, root));
            with_state(|state| emit(state, &Event::ThreadStart { thread: 0 }));
        }
        let thread =
            self.program.as_mut().and_then(|program| program.thread(frame, root, &registers));
        if thread.is_some() && registers.cs != USER_CS {
            fail(if registers.cs == USER_CS_32 {
                "the program runs 32-bit code; only 64-bit programs can be recorded"
            } else {
                "the kernel keeps registers elsewhere than where Linux 6.1 does"
            });
        }
        self.work.cut(kernel(), thread.is_some());
        self.runs(vcpu, thread);
    }

    /// Whether the program that begins here is the one to be recorded.
    fn is_wanted(&mut self, frame: u64, registers: &Registers) -> bool {
        match self.target {
            Target::Command(armed) => armed == frame,
            // Its stack begins with the number of its arguments and the addresses of these.
            Target::Named(name) => self.word(registers.sp + 8).is_some_and(|at| {
                let path = self.text(at);
                path.rsplit(|&byte| byte == b'/').next() == Some(name.as_bytes())
            }),
            Target::Later | Target::Found => false,
        }
    }

    /// Whether what is born here lives in its parent's address space.
    fn is_shared(&mut self, registers: &Registers) -> bool {
        let flags = match registers.call {
            libc::SYS_clone => Some(registers.arguments[0]),
            libc::SYS_clone3 => self.word(registers.arguments[0]),
            libc::SYS_vfork => return true,
            _ => return false,
        };
        flags.is_some_and(|flags| flags & libc::CLONE_VM as u64 != 0)
    }

    /// The word at an address of the address space that is in use.
    fn word(&mut self, address: u64) -> Option<u64> {
        let ram = self.ram();
        let (cr3, cr4) = registers_now();
        ram.translate(cr3, cr4, address).and_then(|physical| ram.read(physical))
    }

    /// The string at an address of the address space that is in use, as far as it is in memory, and no
    /// longer than a path can be.
    fn text(&mut self, address: u64) -> Vec<u8> {
        let bytes = (0..libc::PATH_MAX as u64).map_while(|index| {
            let at = address + index;
            self.word(at & !7).map(|word| word.to_le_bytes()[(at & 7) as usize])
        });
        bytes.take_while(|&byte| byte != 0).collect()
    }

    /// The marker at which recording begins, in the process that runs.
    fn begins(&mut self, vcpu: c_uint) {
        if self.running.is_none() {
            let (frame, root) = self.now;
            self.target = Target::Found;
            self.program = Some(Program::new(frame, root));
            self.running = Some(0);
            with_state(|state| state.space = Space::default());
        }
        let Some(program) = &self.program else { return };
        let mut threads: Vec<ThreadId> = program.threads.values().copied().collect();
        threads.sort_unstable();
        with_state(|state| {
            for thread in threads {
                emit(state, &Event::ThreadStart { thread });
            }
            for event in state.space.as_events() {
                emit(state, &event);
            }
        });
        self.runs(vcpu, self.running);
    }

    /// The program is over.
    fn end(&mut self) {
        if let Some(mut program) = self.program.take() {
            for frame in program.threads.keys().copied().collect::<Vec<_>>() {
                program.end(frame);
            }
        }
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
        if BEGUN.load(Ordering::Relaxed)
            && program.tell(walk.root, walk.control, &entries)
            && !walk.is_fetch
        {
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
            told: FxHashMap::default(),
            registers: None,
        }
    }

    /// The program's thread to which the kernel returns, if it is one; takes note of what the kernel did.
    fn thread(&mut self, frame: u64, root: u64, registers: &Registers) -> Option<ThreadId> {
        if registers.is_birth() {
            // Whoever had this kernel stack before is gone.
            self.end(frame);
        }
        if root == self.root && !self.threads.contains_key(&frame) {
            // Born just now, or there before the program was.
            let thread = self.had;
            self.had += 1;
            self.threads.insert(frame, thread);
            with_state(|state| emit(state, &Event::ThreadStart { thread }));
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
    let (cr3, cr4) = registers_now();
    let mut events: Vec<Event> = Vec::new();
    with_guest(|guest| {
        guest.work = Work { since: kernel(), is_own: true, spent: [0; 2] };
        let ram = guest.ram();
        let Some(program) = &mut guest.program else { return };
        program.registers = Some((cr3, cr4));
        let mut tables = vec![Event::Root { cr3, cr4 }];
        ram.each_page(cr3, cr4, 1 << ADDRESS_BITS, |here, bytes, leaf, entries| {
            for &(address, level, value) in entries {
                if program.told.insert(address, value).is_none() {
                    tables.push(Event::Entry { address, level, value });
                }
            }
            let stored = leaf.entry.is_dirty();
            match events.last_mut() {
                Some(Event::Populate { address, length, store })
                    if *address + *length == here && *store == stored =>
                {
                    *length += bytes;
                }
                _ => events.push(Event::Populate { address: here, length: bytes, store: stored }),
            }
        });
        events.append(&mut tables);
    });
    for event in &events {
        emit(state, event);
    }
}

/// Tells how much has been checked, and how much the kernel has done for the program, if this is a guest.
pub fn tell_checks() {
    if setup().system.is_some() {
        let [walks, accesses] = [&WALKS, &ACCESSES].map(|count| count.load(Ordering::Relaxed));
        let [kernel, repeated] = with_guest(|guest| guest.work.spent);
        let counts = [walks, accesses, kernel, repeated].map(u64::to_le_bytes);
        send(CONTROL_CHECKED, counts.as_flattened());
    }
}

/// Whether events are kept back, because recording is still to begin.
pub fn is_held() -> bool {
    HELD.load(Ordering::Relaxed)
}

/// CR3 and CR4.
fn registers_now() -> (u64, u64) {
    (ROOT.load(Ordering::Relaxed), CONTROL.load(Ordering::Relaxed))
}

/// The kernel's instructions so far, and the repetitions among them.
fn kernel() -> [u64; 2] {
    [&KERNEL[0], &KERNEL[1]].map(|count| count.load(Ordering::Relaxed))
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
        (system().on_exit)(id, on_exit, std::ptr::null_mut());
    }
}

// ---- callbacks ----------------------------------------------------------------------------------

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
pub unsafe extern "C" fn on_translate(_: PluginId, block: *mut TranslationBlock) {
    let qemu = &setup().qemu;
    // SAFETY: QEMU keeps `block` valid during this callback, and calls back with the signature of each
    // function.
    unsafe {
        let handle = (qemu.block_instruction)(block, 0);
        if (qemu.instruction_address)(handle) >> 63 != 0 {
            let fresh = Fresh::read(qemu, block);
            let nothing = std::ptr::null_mut();
            let [instructions, repetitions] = [&KERNEL[0], &KERNEL[1]].map(AtomicU64::as_ptr);
            (system().count_block)(block, ADD, instructions.cast(), fresh.len() as u64);
            for (handle, address, bytes) in fresh.instructions() {
                if bytes == RETURN {
                    (qemu.on_access)(handle, on_return, NO_REGISTERS, LOADS_AND_STORES, nothing);
                }
                if is_repeated(bytes) {
                    (system().count_instruction)(handle, ADD, repetitions.cast(), 1);
                }
                if setup().options.switch == Some(address) {
                    (qemu.on_instruction)(handle, on_switch, NO_REGISTERS, nothing);
                }
            }
        } else if ALIVE.load(Ordering::Relaxed) {
            let fresh = Fresh::read(qemu, block);
            if WATCHED.load(Ordering::Relaxed) {
                let host = (system().instruction_host_address)(handle) as u64;
                let place = with_guest(|guest| guest.translated(host, &fresh.code, fresh.len()));
                let data = std::ptr::from_ref(place).cast_mut().cast();
                fresh.watch(qemu, on_block, data, on_access);
            }
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

/// The kernel turns to another thread.
unsafe extern "C" fn on_switch(_: c_uint, _: *mut c_void) {
    with_guest(|guest| guest.work.cut(kernel(), false));
}

/// The guest's first process is about to start the command; or a program is where recording begins.
unsafe extern "C" fn on_start(vcpu: c_uint, _: *mut c_void) {
    with_guest(|guest| {
        if !WANTED.swap(true, Ordering::Relaxed) {
            let options = &setup().options;
            guest.target =
                options.program.as_deref().map_or(Target::Command(guest.now.0), Target::Named);
            let is_held = options.start_at == Some(Place::Marker);
            HELD.store(is_held, Ordering::Relaxed);
            WATCHED.store(!is_held, Ordering::Relaxed);
        } else if mode() != Mode::Detached && HELD.swap(false, Ordering::Relaxed) {
            guest.begins(vcpu);
            // SAFETY: in a callback. QEMU gives up all translations before the next block, and calls back
            // with this signature.
            unsafe { (system().reset)(PLUGIN.load(Ordering::Relaxed), on_reset) };
        }
    });
}

/// The guest's first process has seen the command's end. Other programs' markers say nothing.
unsafe extern "C" fn on_stop(vcpu: c_uint, _: *mut c_void) {
    with_guest(|guest| {
        if guest.first == Some(guest.now.0) && guest.program.is_some() && mode() != Mode::Detached {
            guest.end();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_works_for_the_program_before_and_after_it_runs() {
        let mut work = Work { since: [100, 10], is_own: true, spent: [0; 2] };
        // A system call of the program's, which sleeps; another thread's; what follows until the program goes on.
        for (now, goes_on) in [([150, 11], false), ([950, 500], false), ([960, 503], true)] {
            work.cut(now, goes_on);
        }
        assert_eq!(work.spent, [60, 4]);
        // An interrupt that turns to another program, and that program's own.
        for (now, goes_on) in [([1000, 503], false), ([2000, 600], false), ([2001, 600], false)] {
            work.cut(now, goes_on);
        }
        assert_eq!(work.spent, [100, 4]);
    }
}
