//! The QEMU TCG plugin. It has two modes: a [`process`] under user-mode QEMU, and one program of a
//! `guest`, a machine that QEMU emulates whole.
//!
//! Both modes append words to the vCPUs' buffers (`capture`, `buffers`), send definitions of what QEMU
//! translates (`block`), and keep the recorded program's address space up to date (`state`). What these
//! need of the mode are the hooks (`setup`) that are fixed at installation.

mod block;
mod budget;
mod buffers;
mod capture;
mod connection;
mod guest;
mod lock;
mod markers;
mod options;
mod phase;
pub mod process;
mod qemu;
mod sample;
mod setup;
pub mod space;
mod state;

use std::ffi::{CStr, c_char, c_int};

use options::Options;
use qemu::{Qemu, System};
use setup::Setup;

use crate::channel::hello::Origin;

/// The plugin interface that this plugin was written against; QEMU reads it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = qemu::API_VERSION;

/// QEMU's entry to the plugin.
///
/// # Safety
/// Called by QEMU alone, with what its interface promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::PluginId,
    info: *const qemu::QemuInfo,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes its information, and `count` NUL-terminated strings.
    let (info, arguments) = unsafe {
        let strings = (0..count.max(0) as usize)
            .map(|i| CStr::from_ptr(*arguments.add(i)).to_string_lossy().into_owned());
        (&*info, strings.collect::<Vec<_>>())
    };
    if setup::is_set_up() {
        // SAFETY: called from QEMU's installation of this plugin, with its identity.
        unsafe { process::watching::install(id) };
        return 0;
    }
    // SAFETY: a NUL-terminated string.
    let target = unsafe { CStr::from_ptr(info.target_name) };
    let result = if target != c"x86_64" {
        Err("this plugin records x86-64 Linux programs: run it under qemu-x86_64".into())
    } else if info.system_emulation && info.most_vcpus != 1 {
        Err("a guest that is recorded has one CPU: leave --cpus out".into())
    } else {
        Options::parse(&arguments).and_then(|options| install(id, options, info.system_emulation))
    };
    match result {
        Ok(()) => 0,
        Err(message) => {
            connection::say(&message);
            1
        }
    }
}

/// Sets everything up, for a process or for a program of a guest.
fn install(id: qemu::PluginId, options: Options, is_guest: bool) -> Result<(), String> {
    let needed = if is_guest { "`flatwalk vm build` makes" } else { "Debian's qemu-user 7.2 is" };
    let lacks = |name| format!("this QEMU has no {name}; {needed} one that has");
    let qemu = Qemu::find().map_err(lacks)?;
    let system = is_guest.then(System::find).transpose().map_err(lacks)?;
    if !capture::is_layout_known(&qemu) {
        return Err(
            "this QEMU describes accesses in an unknown way; flatwalk needs version 7.2".into()
        );
    }
    let command = options.name.clone().map_or_else(program, |name| vec![name]);
    let origin = if is_guest { Origin::Guest } else { Origin::Start };
    // Guests have no gaps.
    let knows_pages = !is_guest && process::pagemap::is_readable();
    let obstacle =
        connection::attach(origin, &options.socket, &command, options.segment, knows_pages)?;
    if let Some(why) = obstacle {
        connection::go_unrecorded(&why);
    }
    budget::set_up(&options);
    let hooks = if is_guest { guest::HOOKS } else { process::HOOKS };
    setup::set_up(Setup { qemu, options, command, hooks });
    // SAFETY: called from QEMU's installation of this plugin, with its identity.
    unsafe {
        match system {
            Some(system) => guest::install(id, system),
            None => process::install(id),
        }
    }
    Ok(())
}

/// The program that QEMU was given to run, with its arguments: what follows `--`, before which each
/// of QEMU's options has one value.
fn program() -> Vec<String> {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words: Vec<_> = line
        .split(|&byte| byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let words = &words[..words.len().saturating_sub(1)];
    let end = (1..words.len()).step_by(2).find(|&i| words[i] == "--");
    words[end.map_or(0, |i| i + 1)..].to_vec()
}
