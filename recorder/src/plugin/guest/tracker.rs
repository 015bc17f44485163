//! Follows the guest's programs: which of them is recorded, and which of its threads runs.

use std::ffi::c_uint;

use flatwalk_trace::{Event, ThreadId};

use crate::plugin::capture;
use crate::plugin::connection::fail;
use crate::plugin::guest::blocks::Blocks;
use crate::plugin::guest::check::check_walk;
use crate::plugin::guest::kernel_work::{KernelWork, executed};
use crate::plugin::guest::memory::{control_registers, read_string, read_word};
use crate::plugin::guest::program::Program;
use crate::plugin::guest::registers::Registers;
use crate::plugin::lock::Lock;
use crate::plugin::phase::{Phase, phase, set_phase};
use crate::plugin::qemu::PageWalk;
use crate::plugin::space::{PAGE, Space};
use crate::plugin::state::{are_events_held, emit, with_space};

static TRACKER: Lock<Option<Tracker>> = Lock::new(None);

/// What is known of the guest's programs.
#[derive(Default)]
pub struct Tracker {
    /// The `pt_regs` of the guest's first process: there is no other program until it has started one.
    first: Option<u64>,
    /// The `pt_regs` of the thread that runs in user mode, and CR3 when the kernel returned to it.
    now: (u64, u64),
    target: Target,
    program: Option<Program>,
    /// The program's thread that runs in user mode, if one does.
    running: Option<ThreadId>,
    /// What is to be skipped has been.
    has_begun: bool,
    /// The kernel's work for the program.
    pub work: KernelWork,
    /// The guest's blocks of user code.
    pub blocks: Blocks,
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

/// Runs `work` on the tracker.
pub fn with_tracker<R>(work: impl FnOnce(&mut Tracker) -> R) -> R {
    TRACKER.with(|tracker| work(tracker.get_or_insert_default()))
}

/// Recording begins: emits the page tables as far as the program has used them, and which pages are in
/// memory.
pub fn populate(space: &mut Space) {
    let events = with_tracker(|tracker| {
        tracker.has_begun = true;
        tracker.work = KernelWork::begin(executed());
        tracker.program.as_mut().map(Program::memory)
    });
    for event in events.iter().flatten() {
        emit(space, event);
    }
}

impl Tracker {
    /// The first process is about to start the command. Who is recorded is the command, or whoever first
    /// starts a program called `name`.
    pub fn announce(&mut self, name: Option<&'static str>) {
        self.target = name.map_or(Target::Command(self.now.0), Target::Named);
    }

    /// The thread that runs has seen the command's end; only the first process's word counts.
    pub fn command_ended(&mut self, vcpu: c_uint) {
        if self.first == Some(self.now.0) && self.program.is_some() && phase() != Phase::Detached {
            self.end();
            self.runs(vcpu, None);
        }
    }

    /// The kernel returns to the thread whose `pt_regs` are at `frame`.
    pub fn returns(&mut self, vcpu: c_uint, frame: u64) {
        // Linux gives an address space another PCID when it comes back after long.
        let root = control_registers().0 & !(PAGE - 1);
        self.first.get_or_insert(frame);
        self.now = (frame, root);
        let is_idle =
            matches!(self.target, Target::Later | Target::Found) && self.program.is_none();
        if is_idle || phase() == Phase::Detached {
            return;
        }
        let registers = Registers::read(frame).unwrap_or_else(|| {
            fail(&format!("the kernel's copy of the program's registers is not at {frame:#x}"))
        });
        let is_new =
            registers.is_exec() || registers.is_birth() && !registers.shares_parents_space();
        if is_new && self.program.as_ref().is_some_and(|program| program.has_root(root)) {
            // An address space begins where the program's was.
            self.end();
        }
        if registers.is_exec() && self.is_wanted(frame, &registers) {
            self.target = Target::Found;
            self.program = Some(Program::new(frame, root));
            with_space(|space| emit(space, &Event::ThreadStart { thread: 0 }));
        }
        let thread =
            self.program.as_mut().and_then(|program| program.thread(frame, root, &registers));
        if thread.is_some()
            && let Err(why) = registers.check()
        {
            fail(why);
        }
        self.work.cut(executed(), thread.is_some());
        self.runs(vcpu, thread);
    }

    /// Whether the program that begins here is the one to be recorded.
    fn is_wanted(&self, frame: u64, registers: &Registers) -> bool {
        match self.target {
            Target::Command(armed) => armed == frame,
            // Its stack begins with the number of its arguments and the addresses of these.
            Target::Named(name) => read_word(registers.sp + 8).is_some_and(|at| {
                let path = read_string(at);
                path.rsplit(|&byte| byte == b'/').next() == Some(name.as_bytes())
            }),
            Target::Later | Target::Found => false,
        }
    }

    /// The marker at which recording begins, in the process that runs.
    pub fn begins(&mut self, vcpu: c_uint) {
        if self.running.is_none() {
            let (frame, root) = self.now;
            self.target = Target::Found;
            self.program = Some(Program::new(frame, root));
            self.running = Some(0);
            with_space(|space| *space = Space::default());
        }
        let Some(program) = &self.program else { return };
        with_space(|space| {
            for thread in program.threads() {
                emit(space, &Event::ThreadStart { thread });
            }
            for event in space.as_events() {
                emit(space, &event);
            }
        });
        self.runs(vcpu, self.running);
    }

    /// The program is over.
    fn end(&mut self) {
        if let Some(program) = self.program.take() {
            program.end_all();
        }
    }

    /// User code of the program's `thread`, or of another program, runs from here on.
    fn runs(&mut self, vcpu: c_uint, thread: Option<ThreadId>) {
        self.running = thread;
        let thread = thread.filter(|_| !are_events_held());
        capture::switch(vcpu, thread);
        set_phase(match thread {
            None => Phase::Wait,
            Some(_) if self.has_begun => Phase::Record,
            Some(_) => Phase::Skip,
        });
    }

    /// A walk is over.
    pub fn walked(&mut self, vcpu: c_uint, walk: &PageWalk) {
        let entries = check_walk(walk);
        if !walk.is_user || walk.faulted || self.running.is_none() || phase() == Phase::Detached {
            return;
        }
        if walk.is_fetch {
            self.blocks.place(walk.physical / PAGE, walk.address & !(PAGE - 1));
        }
        let Some(program) = &mut self.program else { return };
        if self.has_begun && program.report(walk.root, walk.control, &entries) && !walk.is_fetch {
            capture::join(vcpu);
        }
    }
}
