//! A program's registers as the kernel keeps them while it works for it: x86-64's `pt_regs`.

use crate::plugin::guest::memory;
use crate::plugin::space::PAGE;

/// `popq %r15`: the first register that Linux restores, and `pt_regs` begins with it.
pub const RESTORE: [u8; 2] = [0x41, 0x5f];
/// Bytes of `pt_regs`.
const BYTES: u64 = 168;
/// Code segments of a program.
const USER_CS: u64 = 0x33;
const USER_CS_32: u64 = 0x23;

/// A program's registers when the kernel returns to it.
pub struct Registers {
    /// The system call's arguments.
    pub arguments: [u64; 6],
    /// The system call's result.
    pub result: i64,
    /// The system call's number; negative after anything else.
    pub call: i64,
    /// The stack pointer.
    pub sp: u64,
    ip: u64,
    /// Where the program goes on after a system call, as it was when the call was made.
    after: u64,
    cs: u64,
}

impl Registers {
    /// Reads the `pt_regs` at `frame`; `None` if they are not there.
    pub fn read(frame: u64) -> Option<Registers> {
        let physical = memory::translate(frame).filter(|_| frame % PAGE + BYTES <= PAGE)?;
        let ram = memory::ram();
        let field = |offset: u64| ram.read(physical + offset).unwrap_or_default();
        Some(Registers {
            arguments: [112, 104, 96, 56, 72, 64].map(field),
            result: field(80) as i64,
            call: field(120) as i64,
            sp: field(152),
            ip: field(128),
            after: field(88),
            cs: field(136),
        })
    }

    /// Whether the program goes on right after its system call: no signal or exec took it elsewhere.
    pub fn goes_on(&self) -> bool {
        self.ip == self.after
    }

    /// Whether the program has just been put in another's place.
    pub fn is_exec(&self) -> bool {
        matches!(self.call, libc::SYS_execve | libc::SYS_execveat)
            && self.result == 0
            && !self.goes_on()
    }

    /// Whether a thread or process begins here.
    pub fn is_birth(&self) -> bool {
        let forks = [libc::SYS_clone, libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone3];
        forks.contains(&self.call) && self.result == 0
    }

    /// Whether what begins here lives in its parent's address space.
    pub fn shares_parents_space(&self) -> bool {
        let flags = match self.call {
            libc::SYS_clone => Some(self.arguments[0]),
            libc::SYS_clone3 => memory::read_word(self.arguments[0]),
            libc::SYS_vfork => return true,
            _ => return false,
        };
        flags.is_some_and(|flags| flags & libc::CLONE_VM as u64 != 0)
    }

    /// Whether these can be the registers of a program that can be recorded.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), &'static str> {
        match self.cs {
            USER_CS => Ok(()),
            USER_CS_32 => Err("the program runs 32-bit code; only 64-bit programs can be recorded"),
            _ => Err("the kernel keeps registers elsewhere than where Linux does"),
        }
    }
}
