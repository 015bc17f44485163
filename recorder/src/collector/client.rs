//! A recorded process, as it introduced itself at the socket.

use std::ffi::c_void;
use std::fs;
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatwalk_recorder::channel::hello::{Hello, READY, UNRECORDED, VERSION};
use flatwalk_recorder::channel::region::{REGION_BYTES, Region, STATE_EXECUTING};
use flatwalk_recorder::sys;

/// Longest introduction of a process in bytes.
const MAX_HELLO: u32 = 16 << 20;
/// How long an introduction may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that introduced itself.
pub struct Client {
    hello: Hello,
    region: Mapped,
    process: Process,
    /// The processes that it says it has forked.
    children: Mutex<Vec<i32>>,
}

/// A process while it runs QEMU.
pub struct Process {
    pid: i32,
    /// Becomes readable when the process ends.
    descriptor: OwnedFd,
    /// The program that it runs, which is QEMU.
    program: Option<(u64, u64)>,
}

impl Process {
    fn new(pid: i32) -> io::Result<Process> {
        Ok(Process { pid, descriptor: sys::process_descriptor(pid)?, program: program(pid) })
    }

    fn has_ended(&self) -> bool {
        sys::is_readable(&self.descriptor)
    }

    /// Ends it.
    pub fn kill(&self) {
        sys::kill(&self.descriptor);
    }

    /// Whether it runs, and runs QEMU.
    pub fn runs_qemu(&self) -> bool {
        // In this order: another process may have its number afterwards.
        let program = program(self.pid);
        program.is_some() && program == self.program && !self.has_ended()
    }
}

/// The file that process `pid` runs. None of a process that has other rights by exec.
fn program(pid: i32) -> Option<(u64, u64)> {
    fs::metadata(format!("/proc/{pid}/exe")).ok().map(|about| (about.dev(), about.ino()))
}

/// Why a process is not recorded.
enum Obstacle {
    /// It runs on all the same.
    Unrecorded(String),
    /// It is an error.
    Failed(String),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Obstacle {
        let why = format!("the collector cannot take it up: {error}");
        if sys::is_out_of_descriptors(&error) {
            Obstacle::Unrecorded(why + OPEN_FILES)
        } else {
            Obstacle::Failed(why)
        }
    }
}

/// What to do if the collector may not have more files open.
pub const OPEN_FILES: &str = "; raise the limit of open files (`ulimit -Hn`)";

/// The region, mapped here too.
struct Mapped(*mut c_void);

// SAFETY: the region is shared memory of atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Deref for Mapped {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: as long as a region, mapped until drop; any content is a valid one.
        unsafe { &*self.0.cast::<Region>() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { sys::unmap(self.0, REGION_BYTES) };
    }
}

/// Receives an introduction.
fn receive(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_HELLO {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not an introduction"));
    }
    let mut hello = vec![0; length as usize];
    stream.read_exact(&mut hello)?;
    Ok(hello)
}

impl Client {
    /// Reads an introduction and answers it.
    ///
    /// # Errors
    /// A message, which was sent to the other side too if possible.
    pub fn accept(mut stream: UnixStream) -> Result<Client, String> {
        let (why, answer) = match Client::read(&mut stream) {
            Ok((client, memory)) => {
                sys::send_with_descriptor(&stream, READY.as_bytes(), &memory)
                    .map_err(|error| error.to_string())?;
                return Ok(client);
            }
            Err(Obstacle::Failed(why)) => (why.clone(), why),
            Err(Obstacle::Unrecorded(why)) => (why.clone(), format!("{UNRECORDED}{why}")),
        };
        stream.write_all(answer.as_bytes()).map_err(|error| error.to_string())?;
        Err(why)
    }

    /// Reads an introduction and answers that there are too few descriptors for it. Returns that, too.
    pub fn decline(stream: &mut UnixStream) -> String {
        let _ = receive(stream);
        let (Obstacle::Unrecorded(why) | Obstacle::Failed(why)) =
            io::Error::from_raw_os_error(libc::EMFILE).into();
        // The other side may be gone.
        let _ = stream.write_all(format!("{UNRECORDED}{why}").as_bytes());
        why
    }

    /// Reads an introduction, and makes the memory to share.
    fn read(stream: &mut UnixStream) -> Result<(Client, OwnedFd), Obstacle> {
        let hello: Hello = serde_json::from_slice(&receive(stream)?)
            .map_err(|error| Obstacle::Failed(error.to_string()))?;
        if hello.version != VERSION {
            return Err(Obstacle::Failed(format!(
                "the plugin is of version {}, the collector of {VERSION}: build both again",
                hello.version,
            )));
        }
        // What it says of itself may be of another namespace, and the collector kills whom it names.
        let pid = sys::peer(stream)?;
        if hello.pid != pid {
            return Err(Obstacle::Unrecorded(format!(
                "it says that it is process {}, and is {pid}: start the program outside of PID namespaces",
                hello.pid
            )));
        }
        let process = Process::new(pid)?;
        let memory = sys::shared_memory(REGION_BYTES)?;
        // SAFETY: a new mapping.
        let region =
            Mapped(unsafe { sys::map_shared(&memory, REGION_BYTES, std::ptr::null_mut()) }?);
        region.collector.store(std::process::id() as i32, Ordering::Release);
        Ok((Client { hello, region, process, children: Mutex::default() }, memory))
    }

    /// How it introduced itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// The memory shared with it.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Ends the process.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Notes that the process has forked this one.
    pub fn note_child(&self, pid: i32) {
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
    }

    /// The processes noted since this was last called.
    pub fn take_children(&self) -> Vec<i32> {
        std::mem::take(&mut self.children.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A child of the process, while it runs what the process does.
    pub fn child(&self, pid: i32) -> Option<Process> {
        let child = Process { program: self.process.program, ..Process::new(pid).ok()? };
        child.runs_qemu().then_some(child)
    }

    /// Whether the process has replaced itself by QEMU with another program, or is about to: it
    /// will introduce itself anew.
    pub fn is_starting(&self) -> bool {
        self.region.state.load(Ordering::Acquire) == STATE_EXECUTING && self.process.runs_qemu()
    }

    /// Whether the process still has the region: an exec takes it away.
    pub fn is_mapped(&self) -> bool {
        let base = self.region.base.load(Ordering::Relaxed);
        let start = format!("{base:x}-");
        match fs::read_to_string(format!("/proc/{}/maps", self.pid())) {
            Ok(maps) => {
                maps.lines().any(|line| line.starts_with(&start) && line.contains("memfd:flatwalk"))
            }
            // Not ours to look at (privileged by exec), or just gone: then the other sign comes.
            Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use flatwalk_recorder::channel::hello::Origin;

    use super::*;

    /// What comes of it if process `pid` introduces itself, which is this one, and the answer.
    fn introduce(pid: u32) -> (Result<Client, String>, String) {
        let (here, mut there) = UnixStream::pair().unwrap();
        let hello = Hello {
            version: VERSION.into(),
            pid: pid as i32,
            origin: Origin::Start,
            command: vec!["program".into()],
            segment: None,
            gap_pages: false,
        };
        let hello = serde_json::to_vec(&hello).unwrap();
        let message = [&(hello.len() as u32).to_le_bytes()[..], &hello].concat();
        sys::send(&there, &message).unwrap();
        let result = Client::accept(here);
        let mut answer = String::new();
        there.read_to_string(&mut answer).unwrap();
        (result, answer)
    }

    /// This process, with a region of zeros.
    pub fn client() -> Client {
        introduce(std::process::id()).0.unwrap()
    }

    #[test]
    fn a_process_is_the_one_that_the_kernel_says() {
        let (result, answer) = introduce(std::process::id());
        assert_eq!(answer, READY);
        assert_eq!(result.unwrap().pid(), std::process::id() as i32);
        // What it names would be killed.
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (result, answer) = introduce(other.id());
        assert!(result.err().unwrap().contains("outside of PID namespaces"));
        assert!(answer.starts_with(UNRECORDED), "{answer}");
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
    }

    #[test]
    fn only_where_files_are_lacking_a_process_runs_on_unrecorded() {
        for (number, runs_on) in
            [(libc::EMFILE, true), (libc::ENFILE, true), (libc::ENOMEM, false), (libc::EIO, false)]
        {
            let obstacle = Obstacle::from(io::Error::from_raw_os_error(number));
            assert_eq!(matches!(obstacle, Obstacle::Unrecorded(_)), runs_on, "{number}");
        }
    }

    #[test]
    fn the_memory_of_a_process_keeps_its_length() {
        let memory = File::from(sys::shared_memory(REGION_BYTES).unwrap());
        for length in [4096, 2 * REGION_BYTES as u64] {
            let changed = memory.set_len(length);
            assert_eq!(changed.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn after_an_exec_a_process_is_waited_for_while_it_runs_qemu() {
        // Stands in for QEMU; ends when its input does.
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
        };
        let mut child = start("cat");
        let mut client = client();
        client.process = Process::new(child.id() as i32).unwrap();
        // An exec that fails is none.
        assert!(client.process.runs_qemu() && !client.is_starting());
        client.region.state.store(STATE_EXECUTING, Ordering::Relaxed);
        assert!(client.is_starting());
        // What is not followed runs without QEMU.
        let mut other = start("sort");
        let qemu = client.process.program;
        client.process = Process { program: qemu, ..Process::new(other.id() as i32).unwrap() };
        assert!(!client.is_starting());
        client.process = Process::new(child.id() as i32).unwrap();
        for child in [&mut child, &mut other] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        assert!(!client.is_starting());
    }
}
