//! Recording goes on when the program replaces itself by another: the new program is started under
//! QEMU and this plugin instead of by the kernel.

use std::ffi::{CString, OsStr, c_int};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use crate::capture::{Options, read_string, read_word};
use crate::elf::Image;
use crate::qemu::Qemu;

/// Interpreters (`#!`) within interpreters that Linux follows.
const SCRIPT_DEPTH: usize = 4;
/// Bytes of a script's first line that Linux reads.
const SCRIPT_LINE: usize = 256;
/// Rights that a program run by QEMU would not get.
const PRIVILEGED: u32 = libc::S_ISUID | libc::S_ISGID;
/// Most arguments or variables followed; Linux allows 2 MiB of them in all, pointers included.
const MOST_STRINGS: usize = 1 << 18;

/// Replaces this process by QEMU running the program that the guest wants, with the strings at its
/// guest addresses. Returns if that cannot or need not be: the program is missing, not executable,
/// not for x86-64, privileged, or the strings cannot be read. Then the kernel decides.
pub fn replace(
    directory: c_int,
    path: u64,
    arguments: u64,
    environment: u64,
    qemu: &Qemu,
    options: &Options,
) {
    let Some(path) = read_string(path) else { return };
    let path = resolve(directory, PathBuf::from(OsStr::from_bytes(&path)), qemu);
    let (Some(arguments), Some(environment)) = (read_strings(arguments), read_strings(environment))
    else {
        return;
    };
    let Some((program, arguments)) = interpret(path, arguments) else { return };
    let _ = start(&program, arguments, environment, options);
}

/// Where `path` leads from the guest's point of view.
fn resolve(directory: c_int, path: PathBuf, qemu: &Qemu) -> PathBuf {
    let own = ["/proc/self/exe".into(), format!("/proc/{}/exe", std::process::id())];
    if own.iter().any(|own| path == Path::new(own)) {
        // There the host has QEMU itself.
        return fs::canonicalize(qemu.path_to_program()).unwrap_or(path);
    }
    if path.is_absolute() || directory == libc::AT_FDCWD {
        return path;
    }
    let base = PathBuf::from(format!("/proc/self/fd/{directory}"));
    let base = fs::read_link(&base).unwrap_or(base);
    if path.as_os_str().is_empty() { base } else { base.join(path) }
}

fn read_strings(address: u64) -> Option<Vec<Vec<u8>>> {
    let mut strings = Vec::new();
    if address == 0 {
        return Some(strings);
    }
    for index in 0..MOST_STRINGS {
        let pointer = read_word(address.wrapping_add(8 * index as u64))?;
        if pointer == 0 {
            return Some(strings);
        }
        strings.push(read_string(pointer)?);
    }
    None
}

/// The x86-64 program that runs `path`, and its arguments: `path` itself, or a script's
/// interpreter. `None` if it is neither, or not ours to run.
fn interpret(path: PathBuf, arguments: Vec<Vec<u8>>) -> Option<(PathBuf, Vec<Vec<u8>>)> {
    let (mut path, mut arguments) = (path, arguments);
    for _ in 0..=SCRIPT_DEPTH {
        let about = fs::metadata(&path).ok()?;
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a NUL-terminated path.
        let executable = unsafe { libc::access(name.as_ptr(), libc::X_OK) } == 0;
        if !about.is_file()
            || !executable
            || about.permissions().mode() & PRIVILEGED != 0
            || about.size() < 4
        {
            return None;
        }
        let mut head = [0; SCRIPT_LINE];
        let got = File::open(&path).ok()?.read(&mut head).ok()?;
        let Some(line) = head[..got].strip_prefix(b"#!") else {
            Image::read(&path)?;
            return Some((path, arguments));
        };
        let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii();
        let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (interpreter, argument) = (&line[..end], line[end..].trim_ascii());
        let mut new = vec![interpreter.to_vec()];
        if !argument.is_empty() {
            new.push(argument.to_vec());
        }
        new.push(path.into_os_string().into_vec());
        new.extend(arguments.into_iter().skip(1));
        arguments = new;
        path = PathBuf::from(OsStr::from_bytes(interpreter));
    }
    None
}

/// QEMU's `-plugin` argument that loads this plugin with `options`.
fn plugin_argument(options: &Options) -> Option<Vec<u8>> {
    // A comma within a value is doubled.
    let quote = |value: &[u8]| {
        value
            .iter()
            .flat_map(|&byte| std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }))
            .collect::<Vec<u8>>()
    };
    let mut text = quote(plugin_path()?.as_os_str().as_bytes());
    for (key, value) in options.as_arguments() {
        text.extend_from_slice(b",");
        text.extend_from_slice(key.as_bytes());
        text.extend_from_slice(b"=");
        text.extend_from_slice(&quote(value.as_bytes()));
    }
    Some(text)
}

/// The file that this code was loaded from.
fn plugin_path() -> Option<PathBuf> {
    // SAFETY: an all-zero Dl_info is valid; dladdr fills it for an address of ours.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = plugin_path as fn() -> Option<PathBuf> as *const libc::c_void;
    // SAFETY: `about` is live.
    if unsafe { libc::dladdr(here, &raw mut about) } == 0 || about.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's string lives as long as the library.
    let name = unsafe { std::ffi::CStr::from_ptr(about.dli_fname) };
    fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// QEMU's loader settings must not be the guest's: such variables reach the guest by `-E`, unless
/// they contain a comma, which separates variables there.
fn is_for_guest_alone(variable: &[u8]) -> bool {
    variable.starts_with(b"LD_") && !variable.contains(&b',')
}

fn start(
    program: &Path,
    arguments: Vec<Vec<u8>>,
    environment: Vec<Vec<u8>>,
    options: &Options,
) -> Option<()> {
    let qemu = fs::read_link("/proc/self/exe").ok()?;
    let mut line: Vec<Vec<u8>> =
        vec![qemu.as_os_str().as_bytes().to_vec(), b"-plugin".to_vec(), plugin_argument(options)?];
    let (guest, host): (Vec<_>, Vec<_>) =
        environment.into_iter().partition(|variable| is_for_guest_alone(variable));
    for variable in guest {
        line.extend([b"-E".to_vec(), variable]);
    }
    let mut arguments = arguments.into_iter();
    let program = program.as_os_str().as_bytes().to_vec();
    line.extend([
        b"-0".to_vec(),
        arguments.next().unwrap_or_else(|| program.clone()),
        b"--".to_vec(),
        program,
    ]);
    line.extend(arguments);
    let line = line.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>().ok()?;
    let environment = host.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>().ok()?;
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
    };
    // SAFETY: null-terminated arrays of NUL-terminated strings, all alive. On success it does not
    // return; on failure nothing has changed.
    unsafe {
        libc::execve(line[0].as_ptr(), pointers(&line).as_ptr(), pointers(&environment).as_ptr())
    };
    None
}
