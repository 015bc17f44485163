//! The recorder: a QEMU TCG plugin that runs inside `qemu-x86_64`, and the collector that turns what
//! it captures into traces.
//!
//! The plugin does as little as it can in the recorded process: it appends words to shared memory
//! (see [`channel`]). The collector, a process of its own (`flatwalk-collect`), decodes them, so
//! that nothing is lost whatever becomes of the program.

pub mod calls;
pub mod capture;
pub mod channel;
pub mod elf;
pub mod exec;
pub mod guest;
pub mod interest;
pub mod lock;
pub mod options;
pub mod process;
pub mod qemu;
pub mod ram;
pub mod space;
pub mod sys;
pub mod translate;

use std::ffi::{CStr, c_char, c_int};

use channel::hello::Origin;
use options::Options;
use process::Setup;
use qemu::{Qemu, System};

/// Tells QEMU which plugin interface this plugin was written against.
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
            eprintln!("flatwalk: {message}");
            1
        }
    }
}

/// Sets everything up, for one process or for a program of a whole machine.
fn install(id: qemu::PluginId, options: Options, is_machine: bool) -> Result<(), String> {
    let needed = if is_machine { "`flatwalk vm build` makes" } else { "Debian's qemu-user 7.2 is" };
    let lacks = |name| format!("this QEMU has no {name}; {needed} one that has");
    let qemu = Qemu::find().map_err(lacks)?;
    let system = is_machine.then(System::find).transpose().map_err(lacks)?;
    if !capture::is_layout_known(&qemu) {
        return Err(
            "this QEMU describes accesses in an unknown way; flatwalk needs version 7.2".into()
        );
    }
    let command = options.name.clone().map_or_else(program, |name| vec![name]);
    let origin = if is_machine { Origin::Guest } else { Origin::Start };
    process::attach(origin, &options.socket, &command)?;
    capture::set_up(&options);
    if !is_machine {
        process::set_mode(interest::first_mode(&options));
    }
    process::set_up(Setup { qemu, options, command, system });
    // SAFETY: called from QEMU's installation of this plugin, with its identity.
    unsafe {
        if is_machine {
            (qemu.on_vcpu_init)(id, guest::on_vcpu_init);
            guest::register(id);
            return Ok(());
        }
        (qemu.on_vcpu_init)(id, capture::on_vcpu_init);
        (qemu.on_vcpu_exit)(id, capture::on_vcpu_exit);
        (qemu.on_translate)(id, translate::on_translate);
        (qemu.on_syscall)(id, calls::on_syscall);
        (qemu.on_syscall_return)(id, calls::on_syscall_return);
    }
    Ok(())
}

/// The program that QEMU was told to run, with its arguments: what follows `--`, before which each
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
