//! Recording goes on when the program replaces itself by another: the new program is started under
//! QEMU and this plugin instead of by the kernel.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, c_int};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use crate::plugin::options::Options;
use crate::plugin::process::elf::Image;
use crate::plugin::process::memory::{read_string, read_word};
use crate::plugin::qemu::Qemu;
use crate::sys;

/// Interpreters (`#!`) within interpreters that Linux follows.
const SCRIPT_DEPTH: usize = 4;
/// Bytes of a script's first line that Linux reads.
const SCRIPT_LINE: u64 = 256;
/// Most arguments or variables followed; Linux allows 2 MiB of them in all, pointers included.
const MOST_STRINGS: usize = 1 << 18;

/// Replaces this process by QEMU running the program that the guest wants, with the strings at its
/// guest addresses. Returns if that cannot be; then the kernel decides. The string says why, if the
/// kernel may well start a program that is then not recorded.
pub fn replace(
    directory: c_int,
    path: u64,
    arguments: u64,
    environment: u64,
    qemu: &Qemu,
    options: &Options,
) -> Option<String> {
    let path = read_string(path)?;
    let path = resolve(directory, PathBuf::from(OsStr::from_bytes(&path)), qemu);
    let (arguments, environment) = (read_strings(arguments)?, read_strings(environment)?);
    let why = match interpret(path.clone(), arguments)? {
        Ok((program, arguments)) => {
            let Err(error) = execute(&program, arguments, environment, options);
            format!("flatwalk cannot follow it ({error})")
        }
        Err(why) => why,
    };
    Some(format!("{} is not recorded: {why}", path.display()))
}

/// Where `path` leads from the guest's point of view.
fn resolve(directory: c_int, path: PathBuf, qemu: &Qemu) -> PathBuf {
    let own = ["/proc/self/exe".into(), format!("/proc/{}/exe", std::process::id())];
    if own.iter().any(|own| path == Path::new(own)) {
        // There the kernel has QEMU itself.
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

/// A program and its arguments.
type Command = (PathBuf, Vec<Vec<u8>>);

/// What separates words of a script's first line; nothing else does.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trimmed(line: &[u8]) -> &[u8] {
    let first = line.iter().position(|&byte| !is_blank(byte)).unwrap_or(line.len());
    let last = line.iter().rposition(|&byte| !is_blank(byte)).map_or(first, |last| last + 1);
    &line[first..last]
}

/// The x86-64 program that runs `path`, and its arguments: `path` itself, or a script's
/// interpreter. `None` if the kernel will not start it, an error if it may but QEMU cannot.
fn interpret(path: PathBuf, arguments: Vec<Vec<u8>>) -> Option<Result<Command, String>> {
    let (mut path, mut arguments) = (path, arguments);
    for _ in 0..=SCRIPT_DEPTH {
        let about = fs::metadata(&path).ok()?;
        if !about.is_file() || sys::check_access(&path, libc::X_OK).is_err() {
            return None;
        }
        let mut head = Vec::new();
        let opened = File::open(&path);
        if let Err(error) = opened.and_then(|file| file.take(SCRIPT_LINE).read_to_end(&mut head)) {
            return Some(Err(format!("{}: {error}", path.display())));
        }
        let Some(line) = head.strip_prefix(b"#!") else {
            if !head.starts_with(b"\x7fELF") {
                return None;
            }
            let obstacle = if Image::read(&path).is_none() {
                "it is not an x86-64 program"
            } else if is_privileged(&path, &about) {
                "it is setuid, setgid or has capabilities, rights that QEMU cannot give it"
            } else {
                return Some(Ok((path, arguments)));
            };
            return Some(Err(obstacle.into()));
        };
        let line = trimmed(line.split(|&byte| byte == b'\n').next()?);
        let end = line.iter().position(|&byte| is_blank(byte)).unwrap_or(line.len());
        let (interpreter, argument) = (&line[..end], trimmed(&line[end..]));
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

/// Whether the kernel would give the program rights that this process does not have.
fn is_privileged(path: &Path, about: &Metadata) -> bool {
    let has = |bit| about.permissions().mode() & bit != 0;
    let (user, group) = sys::effective_ids();
    has(libc::S_ISUID) && about.uid() != user
        || has(libc::S_ISGID) && about.gid() != group
        || user != 0 && sys::has_capabilities(path)
}

/// A value within an argument of QEMU's: a comma is doubled.
fn quoted(value: &[u8]) -> Vec<u8> {
    let times = |byte| if byte == b',' { 2 } else { 1 };
    value.iter().flat_map(|&byte| std::iter::repeat_n(byte, times(byte))).collect()
}

/// Another path to the same file, by which QEMU loads the plugin a second time.
fn second(plugin: &Path) -> PathBuf {
    let directory = plugin.parent().unwrap_or(Path::new("/"));
    let mut path = directory.as_os_str().to_owned();
    path.push("/./");
    path.push(plugin.file_name().unwrap_or_default());
    path.into()
}

/// QEMU's `-plugin` argument that loads this plugin with `options`.
fn plugin_argument(plugin: &Path, options: &Options) -> Vec<u8> {
    let mut text = quoted(plugin.as_os_str().as_bytes());
    for (key, value) in options.as_arguments() {
        text.extend_from_slice(b",");
        text.extend_from_slice(key.as_bytes());
        text.extend_from_slice(b"=");
        text.extend_from_slice(&quoted(value.as_bytes()));
    }
    text
}

/// The file that this code was loaded from.
fn plugin_path() -> io::Result<PathBuf> {
    // SAFETY: an all-zero Dl_info is valid; dladdr fills it for an address of ours.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = plugin_path as fn() -> io::Result<PathBuf> as *const libc::c_void;
    // SAFETY: `about` is live.
    if unsafe { libc::dladdr(here, &raw mut about) } == 0 || about.dli_fname.is_null() {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the loader's string lives as long as the library.
    let name = unsafe { std::ffi::CStr::from_ptr(about.dli_fname) };
    fs::canonicalize(OsStr::from_bytes(name.to_bytes()))
}

/// QEMU's loader settings must not be the guest's: such variables reach the guest by `-E`, unless
/// they contain a comma, which separates variables there.
fn is_for_guest_alone(variable: &[u8]) -> bool {
    variable.starts_with(b"LD_") && !variable.contains(&b',')
}

/// Replaces this process by QEMU running `program`.
///
/// # Errors
/// What stands in the way.
fn execute(
    program: &Path,
    arguments: Vec<Vec<u8>>,
    environment: Vec<Vec<u8>>,
    options: &Options,
) -> io::Result<Infallible> {
    let qemu = fs::read_link("/proc/self/exe")?;
    let plugin = plugin_path()?;
    // The process may have another user or root directory by now.
    for (path, mode) in [(&qemu, libc::X_OK), (&plugin, libc::R_OK), (&options.socket, libc::W_OK)]
    {
        sys::check_access(path, mode)?;
    }
    let mut line: Vec<Vec<u8>> = vec![
        qemu.as_os_str().as_bytes().to_vec(),
        b"-plugin".to_vec(),
        plugin_argument(&plugin, options),
        b"-plugin".to_vec(),
        quoted(second(&plugin).as_os_str().as_bytes()),
    ];
    let (guest, common): (Vec<_>, Vec<_>) =
        environment.into_iter().partition(|variable| is_for_guest_alone(variable));
    for variable in guest {
        line.extend([b"-E".to_vec(), variable]);
    }
    let mut arguments = arguments.into_iter();
    let descriptor = descriptor_of(program);
    let program = program.as_os_str().as_bytes().to_vec();
    line.extend([
        b"-0".to_vec(),
        arguments.next().unwrap_or_else(|| program.clone()),
        b"--".to_vec(),
        program,
    ]);
    line.extend(arguments);
    let line = line.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
    let environment = common.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
    };
    // QEMU opens it by its name, which the kernel would not have had to.
    let kept = descriptor.map(|descriptor| (descriptor, sys::set_close_on_exec(descriptor, false)));
    // SAFETY: null-terminated arrays of NUL-terminated strings, all alive. On success it does not
    // return; on failure nothing has changed.
    unsafe {
        libc::execve(line[0].as_ptr(), pointers(&line).as_ptr(), pointers(&environment).as_ptr())
    };
    let error = io::Error::last_os_error();
    if let Some((descriptor, true)) = kept {
        sys::set_close_on_exec(descriptor, true);
    }
    Err(error)
}

/// The descriptor of this process that a path leads through.
fn descriptor_of(path: &Path) -> Option<c_int> {
    let own = format!("/proc/{}/fd", std::process::id());
    let is_own =
        |parent| ["/proc/self/fd", "/dev/fd", &own].iter().any(|&own| parent == Path::new(own));
    if path.parent().is_some_and(is_own) { path.file_name()?.to_str()?.parse().ok() } else { None }
}
