//! The recorder: a plugin that captures what a program executes under QEMU, and what it shares with the
//! collector, which makes traces of that.
//!
//! They are two programs. The [`plugin`] runs inside QEMU, and does as little as it can there: it
//! appends words to shared memory (see [`channel`]). The collector (`collector/`, the program
//! `flatwalk-collect`) is a process of its own and decodes them, so that nothing is lost whatever
//! becomes of the recorded program.

pub mod channel;
pub mod pages;
pub mod plugin;
pub mod sys;
pub mod text;
pub mod x86;
