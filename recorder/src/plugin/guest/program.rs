//! The program that is recorded: its threads, and what the collector knows of its page tables.

use flatwalk_paging::Level;
use flatwalk_trace::{Event, ThreadId};
use rustc_hash::FxHashMap;

use crate::channel::word::ADDRESS_BITS;
use crate::plugin::connection::warn;
use crate::plugin::guest::check::USED;
use crate::plugin::guest::memory::{control_registers, ram};
use crate::plugin::guest::registers::Registers;
use crate::plugin::space::{Space, is_mapping_call};
use crate::plugin::state::{emit, emit_mapping_call, push_populate, with_space};

/// The program that is recorded.
pub struct Program {
    /// The `pt_regs` of its first thread.
    first: u64,
    /// Its threads by their `pt_regs`.
    threads: FxHashMap<u64, ThreadId>,
    /// The number of the next thread.
    next: ThreadId,
    /// CR3 in the kernel.
    root: u64,
    /// Values of page-table entries, by address, as the collector knows them.
    reported: FxHashMap<u64, u64>,
    /// The same of CR3 and CR4.
    registers: Option<(u64, u64)>,
}

impl Program {
    /// A program whose first thread has its `pt_regs` at `frame`, in the address space of `root`.
    pub fn new(frame: u64, root: u64) -> Program {
        Program {
            first: frame,
            threads: FxHashMap::from_iter([(frame, 0)]),
            next: 1,
            root,
            reported: FxHashMap::default(),
            registers: None,
        }
    }

    /// The program's thread to which the kernel returns, if it is one; takes note of what the kernel did.
    pub fn thread(&mut self, frame: u64, root: u64, registers: &Registers) -> Option<ThreadId> {
        if registers.is_birth() {
            // Whoever had this kernel stack before is gone.
            self.end(frame);
        }
        if root == self.root && !self.threads.contains_key(&frame) {
            // Born just now, or there before the program was.
            let thread = self.next;
            self.next += 1;
            self.threads.insert(frame, thread);
            with_space(|space| emit(space, &Event::ThreadStart { thread }));
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
            with_space(|space| {
                emit(space, &Event::Unmap { address: 0, length: 1 << ADDRESS_BITS });
                *space = Space::default();
            });
        } else if is_mapping_call(registers.call) && !(-4095..0).contains(&registers.result) {
            emit_call(registers);
        }
        // Linux may also have moved the root of the tables.
        self.root = root;
        Some(thread)
    }

    /// The thread whose `pt_regs` were at `frame` is gone, if there was one.
    pub fn end(&mut self, frame: u64) {
        if let Some(thread) = self.threads.remove(&frame) {
            with_space(|space| emit(space, &Event::ThreadExit { thread }));
        }
    }

    /// The program is over.
    pub fn end_all(mut self) {
        for frame in self.threads.keys().copied().collect::<Vec<_>>() {
            self.end(frame);
        }
    }

    /// Its threads in ascending order.
    pub fn threads(&self) -> Vec<ThreadId> {
        let mut threads: Vec<ThreadId> = self.threads.values().copied().collect();
        threads.sort_unstable();
        threads
    }

    /// Whether it has the address space of `root`.
    pub fn has_root(&self, root: u64) -> bool {
        self.root == root
    }

    /// Emits what is new in the entries that a walk read; false if nothing is.
    pub fn report(&mut self, cr3: u64, cr4: u64, entries: &[(u64, Level, u64)]) -> bool {
        let mut events = Vec::new();
        if self.registers.replace((cr3, cr4)) != Some((cr3, cr4)) {
            events.push(Event::Root { cr3, cr4 });
        }
        for &(address, level, value) in entries {
            let known = self.reported.insert(address, value);
            if known.is_none_or(|known| (known ^ value) & !USED != 0) {
                events.push(Event::Entry { address, level, value });
            }
        }
        with_space(|space| {
            for event in &events {
                emit(space, event);
            }
        });
        !events.is_empty()
    }

    /// Which pages are in memory, and then the page tables as far as the program has used them.
    pub fn memory(&mut self) -> Vec<Event> {
        let (cr3, cr4) = control_registers();
        self.registers = Some((cr3, cr4));
        let mut pages = Vec::new();
        let mut tables = vec![Event::Root { cr3, cr4 }];
        ram().each_page(cr3, cr4, 1 << ADDRESS_BITS, |address, bytes, leaf, entries| {
            for &(address, level, value) in entries {
                if self.reported.insert(address, value).is_none() {
                    tables.push(Event::Entry { address, level, value });
                }
            }
            push_populate(&mut pages, address, bytes, leaf.entry.is_dirty());
        });
        pages.append(&mut tables);
        pages
    }
}

/// Emits what a mapping call did that succeeded.
fn emit_call(registers: &Registers) {
    if !registers.goes_on() {
        warn(
            "a signal arrived during a call that changes mappings; what that call did is not in the trace",
        );
    } else if let libc::SYS_shmat | libc::SYS_shmdt = registers.call {
        warn("System V shared memory was attached or detached; that is not in the trace");
    } else {
        with_space(|space| {
            emit_mapping_call(space, registers.call, &registers.arguments, registers.result as u64);
        });
    }
}
