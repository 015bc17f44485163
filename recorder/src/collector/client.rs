//! A recorded process, as it introduced itself at the socket.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flatwalk_recorder::channel::hello::{Hello, VERSION};
use flatwalk_recorder::channel::region::{REGION_BYTES, Region};
use flatwalk_recorder::sys;

/// Longest introduction of a process in bytes.
const MAX_HELLO: u32 = 16 << 20;

/// A process that introduced itself.
pub struct Client {
    hello: Hello,
    region: Mapped,
    /// Becomes readable when the process ends.
    process: OwnedFd,
}

/// The region, mapped here too.
struct Mapped(*mut c_void);

// SAFETY: the region is shared memory of atomics.
unsafe impl Send for Mapped {}

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

impl Client {
    /// Reads an introduction and answers it.
    ///
    /// # Errors
    /// A message, which was sent to the other side too if possible.
    pub fn accept(mut stream: UnixStream) -> Result<Client, String> {
        let result = Client::read(&mut stream);
        let answer = result.as_ref().err().map_or("ready", String::as_str);
        stream.write_all(answer.as_bytes()).map_err(|error| error.to_string())?;
        result
    }

    fn read(stream: &mut UnixStream) -> Result<Client, String> {
        let failed = |error: io::Error| format!("the introduction of a process failed: {error}");
        stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
        let mut length = [0; 4];
        let (got, memory) = sys::receive_with_descriptor(stream, &mut length).map_err(failed)?;
        let memory =
            memory.filter(|_| got == 4).ok_or("a process introduced itself without its memory")?;
        let length = u32::from_le_bytes(length);
        if length > MAX_HELLO {
            return Err("the introduction of a process is too long".into());
        }
        let mut hello = vec![0; length as usize];
        stream.read_exact(&mut hello).map_err(failed)?;
        let hello: Hello = serde_json::from_slice(&hello).map_err(|error| error.to_string())?;
        if hello.version != VERSION {
            return Err(format!(
                "the plugin is of version {}, the collector of {VERSION}: build both again",
                hello.version,
            ));
        }
        let file = File::from(memory.try_clone().map_err(failed)?);
        if file.metadata().map_err(failed)?.len() != REGION_BYTES as u64 {
            return Err("the memory of a process is not as long as it should be".into());
        }
        // SAFETY: a new mapping.
        let region = Mapped(
            unsafe { sys::map_shared(&memory, REGION_BYTES, std::ptr::null_mut()) }
                .map_err(failed)?,
        );
        region.collector.store(std::process::id() as i32, Ordering::Release);
        let process = sys::process_descriptor(hello.pid).map_err(failed)?;
        Ok(Client { hello, region, process })
    }

    /// How it introduced itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.hello.pid
    }

    /// The memory shared with it.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        sys::is_readable(&self.process)
    }

    /// Ends the process.
    pub fn kill(&self) {
        sys::kill(&self.process);
    }

    /// Whether the process still has the region: an exec takes it away.
    pub fn is_mapped(&self) -> bool {
        let base = self.region.base.load(Ordering::Relaxed);
        let start = format!("{base:x}-");
        match fs::read_to_string(format!("/proc/{}/maps", self.hello.pid)) {
            Ok(maps) => {
                maps.lines().any(|line| line.starts_with(&start) && line.contains("memfd:flatwalk"))
            }
            // Not ours to look at (privileged by exec), or just gone: then the other sign comes.
            Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
        }
    }
}
