//! What is fixed at installation.

use std::sync::OnceLock;

use crate::plugin::options::Options;
use crate::plugin::qemu::Qemu;
use crate::plugin::space::Space;

/// Everything that is fixed at installation.
pub struct Setup {
    /// QEMU's functions.
    pub qemu: Qemu,
    /// What the user asked for.
    pub options: Options,
    /// The program as the user sees it, with its arguments.
    pub command: Vec<String>,
    /// What the two modes do differently.
    pub hooks: Hooks,
}

/// What recording a process and recording a guest do differently, at points that both pass.
pub struct Hooks {
    /// Recording begins after a part that was not recorded: emits which pages are in memory.
    pub populate: fn(&mut Space),
    /// From here on blocks are to be watched with all accesses: recording begins.
    pub watch: fn(),
    /// From here on nothing is to be known of blocks but how many instructions they have.
    pub count: fn(),
    /// What was only counted is at its end: recording begins with the next block.
    pub begin: fn(),
    /// The limit was reached: sends what can be sent only at the end, since QEMU is ended at once.
    pub before_exit: fn(),
}

static SETUP: OnceLock<Setup> = OnceLock::new();

/// Fixes what is fixed; the first call counts.
pub fn set_up(setup: Setup) {
    let _ = SETUP.set(setup);
}

/// Whether it is fixed.
pub fn is_set_up() -> bool {
    SETUP.get().is_some()
}

/// What is fixed.
pub fn setup() -> &'static Setup {
    // `install` fills it before it registers the first callback.
    SETUP.get().expect("the plugin is installed")
}
