//! What runs inside the recorded process: QEMU's callbacks.
//!
//! The hot path, [`on_block`] and [`on_access`], appends one word and touches nothing
//! but the vCPU's own [`Slot`]. Everything else (a full buffer, an event somewhere in the process,
//! a spent budget) is noticed there by three comparisons and handled in [`attend`].

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use flatwalk_trace::Event;
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
use rustc_hash::FxHashMap;

use crate::channel::{
    self, BUFFER_WORDS, BUFFERS, CONTROL_DEFINE, CONTROL_EVENT, CONTROL_WARNING, Hello, Origin,
    REGION_BYTES, Region, SIZE_POSITION, SLOTS, STATE_EXECUTING, STATE_LIMIT, STATE_RUNNING,
    STORE_POSITION, Slot, Stopped, access_word, block_word, epoch_word,
};
use crate::elf::{self, Image};
use crate::exec;
use crate::lock::Lock;
use crate::qemu::{LOADS_AND_STORES, NO_REGISTERS, PluginId, Qemu, TranslationBlock};
use crate::space::{Space, is_mapping_call};
use crate::sys;

/// What the user asked for, as plugin arguments.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the collector's socket.
    pub socket: PathBuf,
    /// Instructions to pass over before recording, in each process.
    pub skip: u64,
    /// Instructions to record at most, in each process.
    pub limit: Option<u64>,
    /// Where recording starts.
    pub start_at: Option<Place>,
    /// Where recording ends.
    pub stop_at: Option<Place>,
    /// Whether programs started through exec are recorded.
    pub follow_exec: bool,
}

impl Options {
    /// Reads the plugin's arguments, `key=value`.
    ///
    /// # Errors
    /// A message that names the argument.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options { follow_exec: true, ..Options::default() };
        for argument in arguments {
            let (key, value) =
                argument.split_once('=').ok_or_else(|| format!("`{argument}` is not KEY=VALUE"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("`{argument}`: not a number of instructions"))
            };
            match key {
                "socket" => options.socket = value.into(),
                "skip" => options.skip = number()?,
                "limit" => options.limit = Some(number()?),
                "start-at" => options.start_at = Some(value.parse()?),
                "stop-at" => options.stop_at = Some(value.parse()?),
                "follow-exec" => options.follow_exec = value == "on",
                _ => return Err(format!("`{key}` is no option of this plugin")),
            }
        }
        if options.socket.as_os_str().is_empty() {
            return Err("no socket=PATH of a collector; use `flatwalk record`".into());
        }
        Ok(options)
    }

    /// The arguments that [`Options::parse`] makes these of.
    pub fn as_arguments(&self) -> Vec<(&'static str, String)> {
        let mut arguments = vec![("socket", self.socket.to_string_lossy().into_owned())];
        if self.skip > 0 {
            arguments.push(("skip", self.skip.to_string()));
        }
        arguments.extend(self.limit.map(|limit| ("limit", limit.to_string())));
        arguments.extend(self.start_at.as_ref().map(|place| ("start-at", place.to_string())));
        arguments.extend(self.stop_at.as_ref().map(|place| ("stop-at", place.to_string())));
        arguments.push(("follow-exec", if self.follow_exec { "on" } else { "off" }.into()));
        arguments
    }
}

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address.
    Address(u64),
    /// A symbol of the program or of a library it loads.
    Symbol(String),
    /// The program's own `flatwalk_start()`.
    Marker,
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if text == "marker" {
            return Ok(Place::Marker);
        }
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16)
                .map(Place::Address)
                .map_err(|_| format!("`{text}` is not a hexadecimal address")),
            None => Ok(Place::Symbol(text.into())),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Address(address) => write!(formatter, "{address:#x}"),
            Place::Symbol(name) => formatter.write_str(name),
            Place::Marker => formatter.write_str("marker"),
        }
    }
}

/// What the process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Mode {
    /// Passing over `skip` instructions.
    Skip,
    /// Waiting for the start of a region of interest.
    Wait,
    /// Recording.
    Record,
    /// Done; the collector wants no more.
    Detached,
}

const UNLIMITED: i64 = i64::MAX / 2;
/// Instructions that a thread takes off the common budget at a time.
const GRANT: i64 = 1 << 16;

/// Instructions yet to skip and to record, in the whole process.
#[derive(Clone, Copy, Debug)]
struct Budget {
    skip: i64,
    record: i64,
}

/// Buffers that no vCPU holds.
struct Pool {
    free: Vec<u32>,
    fresh: u32,
}

/// The address space, and where regions of interest begin and end.
#[derive(Clone, Default)]
struct State {
    begun: bool,
    space: Space,
    guest_base: u64,
    start_symbol: Option<String>,
    stop_symbol: Option<String>,
}

/// Blocks that were translated, by their code.
#[derive(Default)]
struct Translations {
    numbers: FxHashMap<Arc<[u8]>, u32>,
    codes: Vec<Arc<[u8]>>,
}

/// Everything that is fixed at installation.
struct Setup {
    qemu: Qemu,
    options: Options,
    command: Vec<String>,
}

static SETUP: OnceLock<Setup> = OnceLock::new();
static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
static PROCESS: AtomicI32 = AtomicI32::new(0);
static MODE: AtomicU32 = AtomicU32::new(Mode::Wait as u32);
static BUDGET: Lock<Budget> = Lock::new(Budget { skip: 0, record: UNLIMITED });
static POOL: Lock<Pool> = Lock::new(Pool { free: Vec::new(), fresh: 0 });
static CONTROL: Lock<()> = Lock::new(());
static STATE: Lock<Option<State>> = Lock::new(None);
static TRANSLATIONS: Lock<Option<Translations>> = Lock::new(None);
/// Held by a thread from a mapping call's start to its result, so that the results are noted in the
/// order in which the kernel gave them. A forking thread does not take it, nor does any code that
/// runs while QEMU regards the vCPU as running.
static MAPPING: Lock<()> = Lock::new(());
/// Whether the program's markers start and stop anything: not before the place to start at.
static MARKERS_COUNT: AtomicBool = AtomicBool::new(true);
static THREADS: AtomicU32 = AtomicU32::new(0);
static THREAD_OF: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];
static START: AtomicU64 = AtomicU64::new(u64::MAX);
static STOP: AtomicU64 = AtomicU64::new(u64::MAX);

/// A system call under way.
struct Call {
    arguments: [AtomicU64; 6],
    /// Whether this thread holds [`MAPPING`].
    mapping: AtomicBool,
}

static CALLS: [Call; SLOTS] = [const {
    Call { arguments: [const { AtomicU64::new(0) }; 6], mapping: AtomicBool::new(false) }
}; SLOTS];

thread_local! {
    /// What a child process will need, taken before the fork.
    static BEFORE_FORK: RefCell<Option<(State, Budget)>> = const { RefCell::new(None) };
}

fn setup() -> &'static Setup {
    // `install` fills it before it registers the first callback.
    SETUP.get().expect("the plugin is installed")
}

#[inline]
fn region() -> &'static Region {
    // SAFETY: `install` maps the region for the process's lifetime before the first callback.
    unsafe { &*REGION.load(Ordering::Relaxed) }
}

#[inline]
fn slot(vcpu: c_uint) -> &'static Slot {
    // `on_vcpu_init` refuses higher indices; the mask saves a branch.
    &region().slots[vcpu as usize & (SLOTS - 1)]
}

fn mode() -> Mode {
    match MODE.load(Ordering::Acquire) {
        0 => Mode::Skip,
        1 => Mode::Wait,
        2 => Mode::Record,
        _ => Mode::Detached,
    }
}

// ---------------------------------------------------------------------------------------------
// The hot path
// ---------------------------------------------------------------------------------------------

/// A block begins: `data` is its number and, above 32 bits, its length in instructions.
unsafe extern "C" fn on_block(vcpu: c_uint, data: *mut c_void) {
    let slot = slot(vcpu);
    let data = data as u64;
    let left = slot.left.load(Ordering::Relaxed) - (data >> 32) as i64;
    slot.left.store(left, Ordering::Relaxed);
    let next = slot.next.load(Ordering::Relaxed);
    if next >= slot.end.load(Ordering::Relaxed)
        || left < 0
        || slot.epoch.load(Ordering::Relaxed) != region().epoch.0.load(Ordering::Relaxed)
    {
        attend(vcpu, slot, data);
        return;
    }
    put(slot, next, block_word(data as u32));
}

/// Appends a word at `next`, which lies in the slot's buffer.
#[inline]
fn put(slot: &Slot, next: u64, word: u64) {
    // SAFETY: the caller compared `next` with the end of the slot's buffer, which only this thread
    // writes; the collector reads it as atomic words too.
    unsafe { (*(next as *const AtomicU64)).store(word, Ordering::Relaxed) };
    // The collector may look at any time: the word before the count.
    slot.next.store(next + 8, Ordering::Release);
}

/// An access: `data` is the fixed part of its word, to which size, kind and address are added.
///
/// `information` is taken apart here, since a call to QEMU for each access would cost as much as
/// all the rest; [`is_layout_known`] sees to it that this is right.
unsafe extern "C" fn on_access(vcpu: c_uint, information: u32, address: u64, data: *mut c_void) {
    let slot = slot(vcpu);
    let word = data as u64
        | u64::from(information >> SIZE_IN_INFORMATION & 7) << SIZE_POSITION
        | address & channel::ADDRESS_MASK;
    if information & UPDATE == UPDATE {
        // An atomic update is reported once: it loads, then stores.
        put(slot, room(vcpu, slot), word);
    }
    let store = u64::from(information & STORE != 0) << STORE_POSITION;
    put(slot, room(vcpu, slot), word | store);
}

/// Where the slot's next word goes.
#[inline]
fn room(vcpu: c_uint, slot: &Slot) -> u64 {
    let next = slot.next.load(Ordering::Relaxed);
    if next < slot.end.load(Ordering::Relaxed) { next } else { make_room(vcpu, slot) }
}

/// Position of the size within QEMU's access information …
const SIZE_IN_INFORMATION: u32 = 4;
/// … and what stands for a store there …
const STORE: u32 = 1 << 17;
/// … and for an atomic update: load and store.
const UPDATE: u32 = 3 << 16;

/// Whether this QEMU packs its access information as [`on_access`] takes it apart.
fn is_layout_known(qemu: &Qemu) -> bool {
    (0..4 << 16).all(|information: u32| {
        // SAFETY: pure functions of their argument.
        let (size, store) =
            unsafe { ((qemu.access_size_shift)(information), (qemu.access_is_store)(information)) };
        size == information >> SIZE_IN_INFORMATION & 7 && store == (information & STORE != 0)
    })
}

// ---------------------------------------------------------------------------------------------
// Beside the hot path
// ---------------------------------------------------------------------------------------------

/// The collector failed, or wants no more.
#[cold]
fn stop(why: Stopped) {
    match why {
        Stopped::End => sys::exit_now(1),
        Stopped::Detach => MODE.store(Mode::Detached as u32, Ordering::Release),
    }
}

/// Starts a block when something has to be done first.
#[cold]
fn attend(vcpu: c_uint, slot: &Slot, data: u64) {
    let region = region();
    if mode() != Mode::Detached
        && let Err(why) = region.commanded()
    {
        stop(why);
    }
    loop {
        let recorded = slot.thread.load(Ordering::Relaxed) != 0;
        let joining = mode() == Mode::Record && !recorded;
        if joining {
            // What was left was of the skipped part, or unlimited: ask anew.
            slot.left.store(-((data >> 32) as i64), Ordering::Relaxed);
        }
        match mode() {
            Mode::Record => {
                if slot.left.load(Ordering::Relaxed) < 0
                    && !grant(slot, |budget| &mut budget.record)
                {
                    region.state.store(STATE_LIMIT, Ordering::Release);
                    sys::exit_now(0);
                }
                let room = slot
                    .end
                    .load(Ordering::Relaxed)
                    .wrapping_sub(slot.next.load(Ordering::Relaxed));
                if joining || room < 16 {
                    change_buffer(
                        vcpu,
                        slot,
                        Some(THREAD_OF[vcpu as usize & (SLOTS - 1)].load(Ordering::Relaxed)),
                    );
                }
                break;
            }
            Mode::Skip => {
                leave(vcpu, slot);
                if slot.left.load(Ordering::Relaxed) >= 0 || grant(slot, |budget| &mut budget.skip)
                {
                    break;
                }
                start_recording();
            }
            Mode::Wait | Mode::Detached => {
                leave(vcpu, slot);
                slot.left.store(UNLIMITED, Ordering::Relaxed);
                break;
            }
        }
    }
    let epoch = region.epoch.0.load(Ordering::Acquire);
    slot.epoch.store(epoch, Ordering::Relaxed);
    put(slot, slot.next.load(Ordering::Relaxed), epoch_word(epoch));
    put(slot, slot.next.load(Ordering::Relaxed), block_word(data as u32));
}

/// Takes instructions off a budget for this thread; false if it is spent.
fn grant(slot: &Slot, of: impl Fn(&mut Budget) -> &mut i64) -> bool {
    let left = slot.left.load(Ordering::Relaxed);
    let granted = BUDGET.with(|budget| {
        let available = of(budget);
        if *available >= UNLIMITED {
            return UNLIMITED;
        }
        let granted = (*available).min(GRANT.max(-left));
        *available -= granted;
        granted
    });
    slot.left.store(left.max(-UNLIMITED) + granted, Ordering::Relaxed);
    left + granted >= 0
}

/// The thread's words are of no interest from here on, until it joins again.
fn leave(vcpu: c_uint, slot: &Slot) {
    if slot.thread.load(Ordering::Relaxed) != 0 {
        let unspent = slot.left.swap(-1, Ordering::Relaxed);
        BUDGET.with(|budget| {
            if budget.record < UNLIMITED {
                budget.record += unspent.max(0);
            }
        });
        change_buffer(vcpu, slot, None);
    } else if slot.end.load(Ordering::Relaxed).wrapping_sub(slot.next.load(Ordering::Relaxed)) < 16
    {
        change_buffer(vcpu, slot, None);
    }
}

/// A block's access finds the buffer full.
#[cold]
fn make_room(vcpu: c_uint, slot: &Slot) -> u64 {
    let thread = slot.thread.load(Ordering::Relaxed);
    change_buffer(vcpu, slot, thread.checked_sub(1));
    slot.next.load(Ordering::Relaxed)
}

/// Submits what the slot holds, if it is recorded, and gives it an empty buffer for `thread`
/// (`None`: one that nobody will look at).
fn change_buffer(vcpu: c_uint, slot: &Slot, thread: Option<u32>) {
    let region = region();
    let submitted = submit(vcpu, slot);
    if let Err(why) = submitted {
        stop(why);
    }
    let sequence = slot.sequence.load(Ordering::Relaxed);
    slot.sequence.store(sequence + 1, Ordering::SeqCst);
    if submitted == Ok(true) || slot.end.load(Ordering::Relaxed) == 0 {
        let Some(buffer) = POOL.with(|pool| take_buffer(region, pool)) else {
            warn("more threads at once than the recorder has buffers for; the program was ended");
            sys::exit_now(1);
        };
        slot.buffer.store(buffer, Ordering::Relaxed);
    }
    let index = slot.buffer.load(Ordering::Relaxed) as usize;
    let start = ptr::from_ref(&region.buffers[index % BUFFERS]) as u64;
    slot.next.store(start, Ordering::Relaxed);
    slot.end.store(start + BUFFER_WORDS as u64 * 8, Ordering::Relaxed);
    slot.thread.store(thread.map_or(0, |thread| thread + 1), Ordering::Relaxed);
    slot.sequence.store(sequence + 2, Ordering::SeqCst);
}

/// Submits the slot's words; true if its buffer is no longer its own.
fn submit(vcpu: c_uint, slot: &Slot) -> Result<bool, Stopped> {
    let Some(thread) = slot.thread.load(Ordering::Relaxed).checked_sub(1) else { return Ok(false) };
    let region = region();
    let buffer = slot.buffer.load(Ordering::Relaxed);
    let start = ptr::from_ref(&region.buffers[buffer as usize % BUFFERS]) as u64;
    let words = (slot.next.load(Ordering::Relaxed) - start) / 8;
    let sequence = slot.sequence.load(Ordering::Relaxed);
    POOL.with(|_| region.submit(vcpu, buffer, thread, words as u32, sequence)).map(|()| true)
}

fn take_buffer(region: &Region, pool: &mut Pool) -> Option<u32> {
    while let Some(buffer) = region.take_free() {
        pool.free.push(buffer);
    }
    pool.free.pop().or_else(|| {
        let fresh = pool.fresh;
        ((fresh as usize) < BUFFERS).then(|| {
            pool.fresh += 1;
            fresh
        })
    })
}

/// Tells the collector something that the user should read.
fn warn(text: &str) {
    let pushed = CONTROL.with(|()| region().push_control(CONTROL_WARNING, text.as_bytes()));
    if let Err(why) = pushed {
        stop(why);
    }
}

/// Notes an event and makes it the start of a new epoch.
fn emit(state: &mut State, event: &Event) {
    state.space.apply(event);
    let counter = &region().epoch.0;
    let epoch = counter.load(Ordering::Relaxed) + 1;
    let mut payload = epoch.to_le_bytes().to_vec();
    if let Err(error) = serde_json::to_writer(&mut payload, event) {
        warn(&format!("an event could not be written down: {error}"));
        return;
    }
    if mode() != Mode::Detached
        && let Err(why) = CONTROL.with(|()| region().push_control(CONTROL_EVENT, &payload))
    {
        stop(why);
    }
    counter.store(epoch, Ordering::Release);
}

fn with_state<R>(work: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(|state| work(state.get_or_insert_default()))
}

/// Recording begins after a part that was not recorded: tells which pages that part populated.
fn start_recording() {
    with_state(|state| {
        if mode() == Mode::Record {
            return;
        }
        populate(state);
        MODE.store(Mode::Record as u32, Ordering::Release);
        emit(state, &Event::Marker { name: "start".into() });
    });
}

fn populate(state: &mut State) {
    match state.space.populated(state.guest_base) {
        Ok(events) => events.iter().for_each(|event| emit(state, event)),
        Err(error) => warn(&format!(
            "which pages were in memory before the recorded part could not be read from \
             /proc/self/pagemap ({error}); their first touches will look like page faults"
        )),
    }
}

/// The place was reached at which the user wants the recording to start.
unsafe extern "C" fn on_place(vcpu: c_uint, data: *mut c_void) {
    if !MARKERS_COUNT.swap(true, Ordering::AcqRel) {
        // SAFETY: it uses neither argument.
        unsafe { on_start(vcpu, data) };
    }
}

/// The program's own start of a region.
unsafe extern "C" fn on_start(_: c_uint, _: *mut c_void) {
    if mode() == Mode::Wait && MARKERS_COUNT.load(Ordering::Acquire) {
        if BUDGET.with(|budget| budget.skip > 0) {
            MODE.store(Mode::Skip as u32, Ordering::Release);
            with_state(|state| emit(state, &Event::Marker { name: "skip".into() }));
        } else {
            start_recording();
        }
    }
}

/// The program's own end of a region: recording pauses.
unsafe extern "C" fn on_pause(_: c_uint, _: *mut c_void) {
    if mode() == Mode::Record {
        with_state(|state| {
            MODE.store(Mode::Wait as u32, Ordering::Release);
            emit(state, &Event::Marker { name: "stop".into() });
        });
    }
}

/// The place was reached at which the user wants the recording to end.
unsafe extern "C" fn on_stop(_: c_uint, _: *mut c_void) {
    if mode() == Mode::Record {
        region().state.store(STATE_LIMIT, Ordering::Release);
        sys::exit_now(0);
    }
}

/// The program passes a named place. `data` is the name, kept for ever.
unsafe extern "C" fn on_name(_: c_uint, data: *mut c_void) {
    // SAFETY: `on_translate` leaked this string.
    let name = unsafe { &*data.cast::<String>() };
    if mode() == Mode::Record {
        with_state(|state| emit(state, &Event::Marker { name: name.clone() }));
    }
}

// ---------------------------------------------------------------------------------------------
// Translation
// ---------------------------------------------------------------------------------------------

/// `nopl 0x464c57NN(%rax,%rax,1)`: the markers of `flatwalk.h`.
const MARKER: [u8; 4] = [0x0f, 0x1f, 0x84, 0x00];
const MARKER_NUMBER: u32 = 0x464c_5700;
/// `nopl disp32(%rip)`: follows a named marker and points at the name.
const POINTER: [u8; 3] = [0x0f, 0x1f, 0x05];

fn marker_of(code: &[u8]) -> Option<u8> {
    let rest = code.strip_prefix(&MARKER)?;
    let number = u32::from_le_bytes(rest.try_into().ok()?);
    (number & 0xffff_ff00 == MARKER_NUMBER).then_some(number as u8)
}

/// Whether QEMU can report an access by this instruction. Leaving the others alone spares helper
/// calls (floating point) the set-up that QEMU makes for instrumented ones.
fn may_access(factory: &mut InstructionInfoFactory, code: &[u8], pc: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
    let instruction = decoder.decode();
    instruction.is_invalid()
        || !factory.info(&instruction).used_memory().is_empty()
        || (0..instruction.op_count()).any(|i| instruction.op_kind(i) == iced_x86::OpKind::Memory)
}

unsafe extern "C" fn on_translate(_: PluginId, block: *mut TranslationBlock) {
    let Setup { qemu, .. } = setup();
    with_state(|state| {
        if !state.begun {
            begin(state);
        }
    });
    // SAFETY: QEMU keeps `block` valid during this callback.
    let length = unsafe { (qemu.block_length)(block) };
    let mut code = Vec::with_capacity(length * 6 + 8);
    let mut handles = Vec::with_capacity(length);
    for index in 0..length {
        // SAFETY: `index` is within the block; the data is as long as the instruction.
        unsafe {
            let handle = (qemu.block_instruction)(block, index);
            let size = (qemu.instruction_length)(handle);
            let bytes =
                std::slice::from_raw_parts((qemu.instruction_data)(handle).cast::<u8>(), size);
            let address = (qemu.instruction_address)(handle);
            if index == 0 {
                code.extend_from_slice(&address.to_le_bytes());
            }
            code.push(size as u8);
            code.extend_from_slice(bytes);
            handles.push((handle, address, code.len() - size..code.len()));
        }
    }
    let number =
        TRANSLATIONS.with(|translations| number_of(translations.get_or_insert_default(), &code));
    let within = |place: &AtomicU64| {
        let place = place.load(Ordering::Relaxed);
        handles.iter().any(|&(_, address, _)| address == place)
    };
    // SAFETY: the handles are of this block; QEMU calls back with the signature of each function.
    unsafe {
        // Callbacks run in the order of registration: a start counts for the block that it is in.
        if within(&START) {
            (qemu.on_block)(block, on_place, NO_REGISTERS, ptr::null_mut());
        }
        if within(&STOP) {
            (qemu.on_block)(block, on_stop, NO_REGISTERS, ptr::null_mut());
        }
        let data = u64::from(number) | (length as u64) << 32;
        (qemu.on_block)(block, on_block, NO_REGISTERS, data as *mut c_void);
        let mut factory = InstructionInfoFactory::new();
        for (index, (handle, address, bytes)) in handles.iter().enumerate() {
            let bytes = &code[bytes.clone()];
            if may_access(&mut factory, bytes, *address) {
                // Both kinds at once: QEMU 7.2 sends loads to a callback that was registered for
                // stores alone.
                let word = access_word(index as u16) as *mut c_void;
                (qemu.on_access)(*handle, on_access, NO_REGISTERS, LOADS_AND_STORES, word);
            }
            match marker_of(bytes) {
                Some(1) => (qemu.on_instruction)(*handle, on_start, NO_REGISTERS, ptr::null_mut()),
                Some(2) => (qemu.on_instruction)(*handle, on_pause, NO_REGISTERS, ptr::null_mut()),
                Some(3) => {
                    let next = handles
                        .get(index + 1)
                        .map(|(_, address, bytes)| (address, &code[bytes.clone()]));
                    if let Some(name) = next.and_then(|(&address, bytes)| name_of(address, bytes)) {
                        let name = Box::into_raw(Box::new(name)).cast();
                        (qemu.on_instruction)(*handle, on_name, NO_REGISTERS, name);
                    }
                }
                _ => {}
            }
        }
    }
}

/// The string that a named marker's second instruction points at.
fn name_of(address: u64, code: &[u8]) -> Option<String> {
    let offset = i32::from_le_bytes(code.strip_prefix(&POINTER)?.try_into().ok()?);
    let guest = (address + code.len() as u64).wrapping_add_signed(i64::from(offset));
    read_string(guest).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The NUL-terminated string at guest address `address`, at most 128 KiB long (the kernel's limit
/// for one argument); `None` if it is not all mapped.
pub fn read_string(address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = address.wrapping_add(with_state(|state| state.guest_base));
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
    let at = address.wrapping_add(with_state(|state| state.guest_base));
    (sys::read_memory(at, &mut word) == 8).then(|| u64::from_le_bytes(word))
}

fn number_of(translations: &mut Translations, code: &[u8]) -> u32 {
    if let Some(&number) = translations.numbers.get(code) {
        return number;
    }
    let number = translations.codes.len() as u32;
    let code: Arc<[u8]> = code.into();
    translations.codes.push(code.clone());
    define(&code);
    translations.numbers.insert(code, number);
    number
}

fn define(code: &[u8]) {
    if mode() != Mode::Detached
        && let Err(why) = CONTROL.with(|()| region().push_control(CONTROL_DEFINE, code))
    {
        stop(why);
    }
}

/// Before the first instruction: the mappings that QEMU made, and where the user's places are.
fn begin(state: &mut State) {
    state.begun = true;
    let Setup { qemu, options, .. } = setup();
    let path = qemu.path_to_program();
    // SAFETY: on a vCPU's thread, with the program loaded.
    let (code_start, entry) = unsafe { ((qemu.program_code_start)(), (qemu.program_entry)()) };
    let start = elf::start(&path, code_start, entry);
    state.guest_base = start.guest_base;
    start.events.iter().for_each(|event| emit(state, event));
    populate(state);
    let resolve = |place: &Option<Place>, address: &AtomicU64| match place {
        Some(Place::Address(given)) => {
            address.store(*given, Ordering::Relaxed);
            None
        }
        Some(Place::Symbol(name)) => match start
            .program
            .as_ref()
            .and_then(|(image, bias)| Some(image.symbol(name)?.wrapping_add(*bias)))
        {
            Some(found) => {
                address.store(found, Ordering::Relaxed);
                None
            }
            None => Some(name.clone()),
        },
        Some(Place::Marker) | None => None,
    };
    state.start_symbol = resolve(&options.start_at, &START);
    state.stop_symbol = resolve(&options.stop_at, &STOP);
}

/// Looks for symbols that are still wanted in a library that was just mapped.
fn look_for_symbols(state: &mut State, fd: u64, offset: u64, mapped_at: u64) {
    if state.start_symbol.is_none() && state.stop_symbol.is_none() {
        return;
    }
    let Some(image) = Image::read(&PathBuf::from(format!("/proc/self/fd/{fd}"))) else { return };
    let Some(segment) =
        image.segments.iter().find(|s| s.protection.execute && s.offset & !0xfff == offset)
    else {
        return;
    };
    let bias = mapped_at.wrapping_sub(segment.address & !0xfff);
    for (wanted, address) in [(&mut state.start_symbol, &START), (&mut state.stop_symbol, &STOP)] {
        if let Some(found) = wanted.as_deref().and_then(|name| image.symbol(name)) {
            address.store(found.wrapping_add(bias), Ordering::Relaxed);
            *wanted = None;
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Threads and system calls
// ---------------------------------------------------------------------------------------------

unsafe extern "C" fn on_vcpu_init(_: PluginId, vcpu: c_uint) {
    let Some(number) = THREAD_OF.get(vcpu as usize) else {
        warn(&format!(
            "the program has more than {SLOTS} threads at once, more than can be recorded; it was ended"
        ));
        sys::exit_now(1);
    };
    region().vcpus.fetch_max(vcpu + 1, Ordering::Release);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    number.store(thread, Ordering::Relaxed);
    with_state(|state| emit(state, &Event::ThreadStart { thread }));
}

unsafe extern "C" fn on_vcpu_exit(_: PluginId, vcpu: c_uint) {
    let slot = slot(vcpu);
    match submit(vcpu, slot) {
        // Not recorded: the buffer is still the slot's own.
        Ok(false) if slot.end.load(Ordering::Relaxed) != 0 => {
            POOL.with(|pool| pool.free.push(slot.buffer.load(Ordering::Relaxed)));
        }
        Ok(_) => {}
        Err(why) => stop(why),
    }
    let sequence = slot.sequence.load(Ordering::Relaxed);
    slot.sequence.store(sequence + 1, Ordering::SeqCst);
    slot.thread.store(0, Ordering::Relaxed);
    slot.next.store(0, Ordering::Relaxed);
    slot.end.store(0, Ordering::Relaxed);
    slot.sequence.store(sequence + 2, Ordering::SeqCst);
    let thread = THREAD_OF[vcpu as usize & (SLOTS - 1)].load(Ordering::Relaxed);
    with_state(|state| emit(state, &Event::ThreadExit { thread }));
}

#[allow(clippy::too_many_arguments, reason = "QEMU's signature")]
unsafe extern "C" fn on_syscall(
    _: PluginId,
    vcpu: c_uint,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    _: u64,
    _: u64,
) {
    let call = &CALLS[vcpu as usize & (SLOTS - 1)];
    for (kept, value) in call.arguments.iter().zip([a1, a2, a3, a4, a5, a6]) {
        kept.store(value, Ordering::Relaxed);
    }
    if is_mapping_call(number) {
        MAPPING.acquire();
        call.mapping.store(true, Ordering::Relaxed);
    } else if is_fork(number, a1) {
        let state = with_state(|state| state.clone());
        let budget = BUDGET.with(|budget| *budget);
        BEFORE_FORK.set(Some((state, budget)));
    } else if let libc::SYS_execve | libc::SYS_execveat = number {
        // If the call succeeds, this is the last that the collector hears of this program.
        region().state.store(STATE_EXECUTING, Ordering::Release);
        if setup().options.follow_exec && mode() != Mode::Detached {
            let (directory, path, arguments, environment) = if number == libc::SYS_execve {
                (libc::AT_FDCWD, a1, a2, a3)
            } else {
                (a1 as c_int, a2, a3, a4)
            };
            exec::replace(directory, path, arguments, environment, &setup().qemu, &setup().options);
        }
    }
}

unsafe extern "C" fn on_syscall_return(_: PluginId, vcpu: c_uint, number: i64, result: i64) {
    let call = &CALLS[vcpu as usize & (SLOTS - 1)];
    let failed = (-4095..0).contains(&result);
    if is_mapping_call(number) {
        let arguments: [u64; 6] =
            std::array::from_fn(|i| call.arguments[i].load(Ordering::Relaxed));
        if !failed {
            with_state(|state| {
                if let Some(event) = state.space.events_of(number, &arguments, result as u64) {
                    emit(state, &event);
                }
                if number == libc::SYS_mmap
                    && arguments[2] & libc::PROT_EXEC as u64 != 0
                    && arguments[3] & libc::MAP_ANONYMOUS as u64 == 0
                {
                    look_for_symbols(state, arguments[4], arguments[5], result as u64);
                }
            });
        }
        if call.mapping.swap(false, Ordering::Relaxed) {
            MAPPING.release();
        }
    } else if is_fork(number, call.arguments[0].load(Ordering::Relaxed)) {
        let before = BEFORE_FORK.take();
        if result == 0
            && PROCESS.load(Ordering::Relaxed) != std::process::id() as i32
            && let Some((state, budget)) = before
        {
            become_child(vcpu, state, budget);
        }
    } else if let libc::SYS_execve | libc::SYS_execveat = number {
        region().state.store(STATE_RUNNING, Ordering::Release);
    }
}

/// True for system calls that make a process (QEMU carries out vfork as fork, too).
fn is_fork(number: i64, flags: u64) -> bool {
    match number {
        libc::SYS_fork | libc::SYS_vfork => true,
        libc::SYS_clone => flags & libc::CLONE_THREAD as u64 == 0,
        _ => false,
    }
}

/// In a forked child, before it executes anything: a region and a trace of its own. The parent's
/// region is not mapped here, so nothing of the parent's can be written or sent twice.
fn become_child(vcpu: c_uint, state: State, budget: Budget) {
    PROCESS.store(std::process::id() as i32, Ordering::Relaxed);
    let attached = match attach(Origin::Fork, &setup().options.socket, &setup().command) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("flatwalk: process {} cannot be recorded: {error}", std::process::id());
            if sys::map_private(REGION.load(Ordering::Relaxed) as usize, REGION_BYTES).is_err() {
                sys::exit_now(1);
            }
            MODE.store(Mode::Detached as u32, Ordering::Release);
            false
        }
    };
    POOL.renew(Pool { free: Vec::new(), fresh: 0 });
    CONTROL.renew(());
    MAPPING.renew(());
    let record = setup().options.limit.map_or(UNLIMITED, limit_of);
    BUDGET.renew(Budget { skip: budget.skip, record });
    let mappings = state.space.as_events();
    STATE.renew(Some(state));
    region().vcpus.store(vcpu + 1, Ordering::Release);
    THREADS.store(1, Ordering::Relaxed);
    THREAD_OF[vcpu as usize & (SLOTS - 1)].store(0, Ordering::Relaxed);
    if attached {
        // QEMU's translations live on in the child, and so must their numbers.
        let codes =
            TRANSLATIONS.with(|translations| translations.get_or_insert_default().codes.clone());
        for code in &codes {
            define(code);
        }
        with_state(|state| {
            emit(state, &Event::ThreadStart { thread: 0 });
            for event in &mappings {
                emit(state, event);
            }
            populate(state);
        });
    }
}

// ---------------------------------------------------------------------------------------------
// Installation
// ---------------------------------------------------------------------------------------------

fn limit_of(instructions: u64) -> i64 {
    i64::try_from(instructions).unwrap_or(UNLIMITED).min(UNLIMITED)
}

/// Makes a region, at the place of the old one if there is one, and introduces this process to the
/// collector.
fn attach(origin: Origin, socket: &std::path::Path, command: &[String]) -> Result<(), String> {
    let describe = |what: &str, error: io::Error| format!("{what}: {error}");
    let memory = sys::shared_memory(REGION_BYTES).map_err(|e| describe("no shared memory", e))?;
    let old = REGION.load(Ordering::Relaxed);
    // SAFETY: `old` is null or the start of the region this process's parent had.
    let address = unsafe { sys::map_shared(&memory, REGION_BYTES, old.cast()) }
        .map_err(|e| describe("shared memory cannot be mapped", e))?;
    // SAFETY: as long as a region and zero-filled, which is a valid one.
    let region = unsafe { &*address.cast::<Region>() };
    region.base.store(address as u64, Ordering::Relaxed);
    REGION.store(address.cast(), Ordering::Relaxed);
    let hello = Hello {
        version: channel::VERSION.into(),
        pid: std::process::id() as i32,
        origin,
        command: command.to_vec(),
    };
    let hello = serde_json::to_vec(&hello).map_err(|e| e.to_string())?;
    let mut stream =
        UnixStream::connect(socket).map_err(|e| describe("the collector does not answer", e))?;
    let mut message = (hello.len() as u32).to_le_bytes().to_vec();
    message.extend_from_slice(&hello);
    sys::send_with_descriptor(&stream, &message, &memory)
        .map_err(|e| describe("the collector does not listen", e))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| describe("the collector does not answer", e))?;
    if answer == "ready" { Ok(()) } else { Err(answer) }
}

/// Sets everything up. `command` is what the user sees as the program's name.
///
/// # Errors
/// A message for the user.
pub fn install(id: PluginId, options: Options, command: Vec<String>) -> Result<(), String> {
    let qemu = Qemu::find().map_err(|name| {
        format!(
            "this QEMU has no {name}; flatwalk needs qemu-user 7.2 (Debian: apt install qemu-user)"
        )
    })?;
    if !is_layout_known(&qemu) {
        return Err(
            "this QEMU describes accesses in an unknown way; flatwalk needs qemu-user 7.2".into()
        );
    }
    PROCESS.store(std::process::id() as i32, Ordering::Relaxed);
    attach(Origin::Start, &options.socket, &command)?;
    let skip = limit_of(options.skip);
    BUDGET.renew(Budget { skip, record: options.limit.map_or(UNLIMITED, limit_of) });
    let place_first = matches!(options.start_at, Some(Place::Address(_) | Place::Symbol(_)));
    MARKERS_COUNT.store(!place_first, Ordering::Release);
    let mode = match (&options.start_at, skip) {
        (Some(_), _) => Mode::Wait,
        (None, 0) => Mode::Record,
        (None, _) => Mode::Skip,
    };
    MODE.store(mode as u32, Ordering::Release);
    let _ = SETUP.set(Setup { qemu, options, command });
    // SAFETY: called from QEMU's installation of this plugin, with its identity.
    unsafe {
        (qemu.on_vcpu_init)(id, on_vcpu_init);
        (qemu.on_vcpu_exit)(id, on_vcpu_exit);
        (qemu.on_translate)(id, on_translate);
        (qemu.on_syscall)(id, on_syscall);
        (qemu.on_syscall_return)(id, on_syscall_return);
    }
    Ok(())
}
