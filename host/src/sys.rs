//! The operating system: mappings, processors, memory nodes, the kernel's counts. A thin, safe layer
//! over `unsafe` calls.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Bytes in a page.
pub fn page_bytes() -> usize {
    // SAFETY: returns a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// What backs a mapping.
#[derive(Clone, Copy, Debug)]
pub enum Behind<'a> {
    /// Zeroes, private to this process, readable and writable.
    Anonymous,
    /// A file from its beginning, shared, read only.
    File(&'a OwnedFd),
}

/// How the kernel should choose page sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Base pages only (`MADV_NOHUGEPAGE`).
    Small,
    /// Transparent huge pages where they fit (`MADV_HUGEPAGE`).
    Huge,
}

/// A mapping of memory; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: plain memory, owned; access is through pointers whose users synchronise.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes where the kernel chooses, or exactly `at` (never over something else).
    ///
    /// # Errors
    /// When the kernel refuses; `AlreadyExists` if something is at `at`.
    pub fn new(length: usize, behind: Behind<'_>, at: Option<usize>) -> io::Result<Self> {
        let (protection, kind, fd) = match behind {
            Behind::Anonymous => (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
            ),
            Behind::File(file) => (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd()),
        };
        let fixed = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
        let hint = at.unwrap_or(0) as *mut c_void;
        // SAFETY: a new mapping, never over an existing one.
        let address = unsafe { libc::mmap(hint, length, protection, kind | fixed, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| io::Error::other("the kernel mapped address 0"))?;
        let mapping = Self { address, length };
        // Kernels before 4.17 take the address as a hint.
        match at {
            Some(at) if mapping.start() != at => Err(io::ErrorKind::AlreadyExists.into()),
            _ => Ok(mapping),
        }
    }

    /// Maps anonymous memory that begins at a multiple of `alignment`, a power of two, with advice on
    /// page sizes.
    ///
    /// # Errors
    /// When the kernel refuses the memory. Advice that it does not know is not an error: then there are
    /// no huge pages.
    pub fn aligned(length: usize, alignment: usize, pages: Pages) -> io::Result<Self> {
        let page = page_bytes();
        let (alignment, pages_length) = (alignment.max(page), length.next_multiple_of(page));
        let spare = alignment - page;
        let whole = Self::new(pages_length + spare, Behind::Anonymous, None)?;
        let start = whole.start().next_multiple_of(alignment);
        let head = start - whole.start();
        // SAFETY: head and tail are whole pages of `whole`, which gives them up.
        unsafe {
            if head > 0 {
                libc::munmap(whole.address.as_ptr().cast(), head);
            }
            if spare > head {
                libc::munmap((start + pages_length) as *mut c_void, spare - head);
            }
        }
        std::mem::forget(whole);
        let address = NonNull::new(start as *mut u8).ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Self { address, length };
        mapping.advise(pages);
        Ok(mapping)
    }

    /// Advises the kernel which page sizes to use. The kernel may not know such advice.
    pub fn advise(&self, pages: Pages) {
        let advice = match pages {
            Pages::Small => libc::MADV_NOHUGEPAGE,
            Pages::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: the mapping owns the range, and the advice changes no contents.
        unsafe { libc::madvise(self.address.as_ptr().cast(), self.length, advice) };
    }

    /// First address.
    pub fn start(&self) -> usize {
        self.address.as_ptr() as usize
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Reads the byte at `offset`; the compiler cannot leave it out.
    #[inline]
    pub fn touch(&self, offset: usize) -> u8 {
        assert!(offset < self.length);
        // SAFETY: within the mapping, which is readable.
        unsafe { self.address.as_ptr().add(offset).read_volatile() }
    }

    /// Writes the byte at `offset`; the compiler cannot leave it out. The mapping is anonymous.
    #[inline]
    pub fn store(&self, offset: usize, value: u8) {
        assert!(offset < self.length);
        // SAFETY: within the mapping; only anonymous mappings are written to, and they are writable.
        unsafe { self.address.as_ptr().add(offset).write_volatile(value) };
    }

    /// Pointer to the word number `index`. The mapping is anonymous.
    #[inline]
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins with a page")]
    pub fn word(&self, index: usize) -> *mut u64 {
        assert!(index < self.length / 8);
        // SAFETY: within the mapping, and page aligned.
        unsafe { self.address.as_ptr().cast::<u64>().add(index) }
    }

    /// All words. The mapping is anonymous: zero before the first write.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is page aligned, readable, writable, not shared, and any bits are a `u64`.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr().cast(), self.length / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and references to it do not outlive it.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// A file in memory, of `length` bytes, none of which has a page yet.
///
/// # Errors
/// When the kernel refuses.
pub fn memory_file(length: usize) -> io::Result<File> {
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"flatwalk-host".as_ptr(), libc::MFD_CLOEXEC) };
    check(i64::from(fd))?;
    // SAFETY: `fd` was just opened and is not owned elsewhere.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(length as u64)?;
    Ok(file)
}

/// Has the kernel end this process when the thread that started it is gone: a measurement whose `flatwalk`
/// was killed would disturb the next one for as long as it takes.
pub fn end_with_parent() {
    // SAFETY: takes numbers alone; every Linux knows this request and that signal.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Keeps this thread, and those that it starts, on one processor.
///
/// # Errors
/// When the processor does not exist, or this process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero set is a valid, empty one; `cpu` is within it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: `set` lives for the call, and its size is passed.
    let result =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    check(i64::from(result)).map(drop)
}

/// Takes all further memory from one NUMA node.
///
/// # Errors
/// When the node does not exist, or the kernel does not support nodes.
pub fn bind_memory(node: u32) -> io::Result<()> {
    const MPOL_BIND: libc::c_long = 2;
    const NODES: usize = 1024;
    if node as usize >= NODES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut mask = [0u64; NODES / 64];
    mask[node as usize / 64] = 1 << (node % 64);
    // SAFETY: `mask` lives for the call, and its length in bits is passed (plus one, as the kernel
    // subtracts one).
    let result =
        unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, mask.as_ptr(), NODES + 1) };
    check(result).map(drop)
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: all-zero is a valid `rusage`, which the call fills; it cannot fail with these arguments.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    }
}

/// Nanoseconds that this thread has spent on a processor so far, in user mode and in the kernel. Time
/// that other threads take is not included.
pub fn thread_nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid to write to; every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Page faults of this thread so far that read nothing from a disk.
pub fn faults() -> u64 {
    usage(libc::RUSAGE_THREAD).ru_minflt as u64
}

/// Times that the kernel took a processor away from this process so far.
pub fn preemptions() -> u64 {
    usage(libc::RUSAGE_SELF).ru_nivcsw as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_hold_what_is_written_and_start_at_zero() {
        let mut mapping = Mapping::aligned(3 << 20, 2 << 20, Pages::Small).unwrap();
        assert_eq!(mapping.start() % (2 << 20), 0);
        assert!(mapping.words_mut().iter().all(|&word| word == 0));
        mapping.store((3 << 20) - 1, 7);
        assert_eq!(mapping.touch((3 << 20) - 1), 7);
        assert_eq!(mapping.words_mut()[(3 << 17) - 1], 7 << 56);
    }

    #[test]
    fn nothing_is_mapped_over_something_else() {
        let first = Mapping::new(page_bytes(), Behind::Anonymous, None).unwrap();
        let again = Mapping::new(page_bytes(), Behind::Anonymous, Some(first.start()));
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn faults_are_counted() {
        let before = faults();
        let mapping = Mapping::aligned(64 * page_bytes(), page_bytes(), Pages::Small).unwrap();
        for page in 0..64 {
            mapping.store(page * page_bytes(), 1);
        }
        assert!(faults() - before >= 64);
    }

    #[test]
    fn a_working_threads_time_advances() {
        let before = thread_nanoseconds();
        while thread_nanoseconds() == before {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn impossible_processors_and_nodes_are_refused() {
        assert!(pin(1 << 20).is_err());
        assert!(bind_memory(1 << 20).is_err());
    }
}
