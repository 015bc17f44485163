//! The operating system: shared memory, futexes, descriptors over sockets. All of it thin and safe
//! to call; the `unsafe` is inside.

use std::ffi::{CString, c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// New anonymous shared memory of `length` bytes, all zero and not yet backed by pages.
///
/// # Errors
/// When the kernel refuses (descriptors or memory exhausted).
pub fn shared_memory(length: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"flatwalk".as_ptr(), flags) };
    check(i64::from(fd))?;
    // SAFETY: `fd` was just opened and is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain system call on an open descriptor.
    check(i64::from(unsafe { libc::ftruncate(fd.as_raw_fd(), length as i64) }))?;
    // SAFETY: as above.
    check(i64::from(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, FIXED_LENGTH) }))?;
    Ok(fd)
}

/// Whoever shares the memory can rely on its length: an access behind its end would be a fault.
const FIXED_LENGTH: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Maps `length` bytes of `fd` shared, readable and writable; over `at` if it is not null, whatever
/// is there. The mapping is never undone, and a forked child does not inherit it.
///
/// # Errors
/// When the kernel refuses.
///
/// # Safety
/// `at` is null or the start of an earlier result of this function with the same length.
pub unsafe fn map_shared(fd: &OwnedFd, length: usize, at: *mut c_void) -> io::Result<*mut c_void> {
    let flags = libc::MAP_SHARED | if at.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: replaces only a mapping of ours (caller's promise) or none.
    let address = unsafe {
        libc::mmap(at, length, libc::PROT_READ | libc::PROT_WRITE, flags, fd.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range was just mapped.
    unsafe { libc::madvise(address, length, libc::MADV_DONTFORK) };
    Ok(address)
}

/// Puts private zero memory at a place, unless something is mapped there already; anywhere if it is 0.
///
/// # Errors
/// When the kernel refuses.
pub fn map_private(at: usize, length: usize) -> io::Result<*mut c_void> {
    let at = at as *mut c_void;
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: maps only where nothing is mapped.
    let address =
        unsafe { libc::mmap(at, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    let error = io::Error::last_os_error();
    if address != libc::MAP_FAILED {
        Ok(address)
    } else if error.raw_os_error() == Some(libc::EEXIST) {
        Ok(at)
    } else {
        Err(error)
    }
}

/// Unmaps what [`map_shared`] mapped.
///
/// # Safety
/// `address` and `length` are of one mapping, which nothing refers to any more.
pub unsafe fn unmap(address: *mut c_void, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(address, length) };
}

/// Sleeps until woken, if `word` still holds `expected`; at most `timeout`.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: `word` and `timeout` outlive the call. Any return (woken, timed out, interrupted,
    // value changed) makes the caller look again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        );
    }
}

/// Wakes every sleeper on `word`, in whatever process.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: `word` outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// How often this thread has slept in the kernel.
pub fn times_slept() -> u64 {
    // SAFETY: an all-zero `rusage` is valid, and the call fills one that outlives it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    usage.ru_nvcsw as u64
}

/// Listens at `socket`, however long its path.
///
/// # Errors
/// When the file cannot be made.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    at_socket(socket, |path| UnixListener::bind(path))
}

/// Connects to `socket`, however long its path.
///
/// # Errors
/// When nobody listens there.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    at_socket(socket, |path| UnixStream::connect(path))
}

/// Gives `act` a path to `socket` that fits the address of a socket, which has 108 bytes: where its own does
/// not, one through a descriptor of its directory.
fn at_socket<T>(socket: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Err(_), Some(directory), Some(name)) =
        (SocketAddr::from_pathname(socket), socket.parent(), socket.file_name())
    else {
        return act(socket);
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let directory = File::options().read(true).custom_flags(flags).open(directory)?;
    act(&Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name))
}

/// Sends `message`. No signal comes where the other side is gone.
///
/// # Errors
/// When it is.
pub fn send(socket: &UnixStream, message: &[u8]) -> io::Result<()> {
    let (start, length) = (message.as_ptr().cast(), message.len());
    // SAFETY: the kernel reads no more than `message`.
    let sent =
        check(unsafe { libc::send(socket.as_raw_fd(), start, length, libc::MSG_NOSIGNAL) } as i64)?;
    whole(sent, message)
}

fn whole(sent: i64, message: &[u8]) -> io::Result<()> {
    if sent as usize == message.len() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::WriteZero, "the message was cut short"))
    }
}

/// The same, together with a duplicate of `fd`.
///
/// # Errors
/// When the other side is gone.
pub fn send_with_descriptor(socket: &UnixStream, message: &[u8], fd: &OwnedFd) -> io::Result<()> {
    let mut part =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = [0u64; 8];
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: pure arithmetic; `control` has room for one descriptor, so the first header is there.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
    }
    // SAFETY: every pointer in `header` is to a live local.
    let sent =
        check(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) }
            as i64)?;
    whole(sent, message)
}

/// Receives up to `buffer.len()` bytes and the descriptor sent with them, if any.
///
/// # Errors
/// When the socket fails.
pub fn receive_with_descriptor(
    socket: &UnixStream,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 8];
    // SAFETY: as in `send_with_descriptor`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: every pointer in `header` is to a live local or to `buffer`.
    let got =
        check(
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) }
                as i64,
        )?;
    let mut fd = None;
    // SAFETY: the kernel filled `control`; the macros stay within `msg_controllen`.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_RIGHTS
        {
            fd =
                Some(OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned()));
        }
    }
    Ok((got as usize, fd))
}

/// The process at the other end of a connection, as the kernel knows it.
///
/// # Errors
/// When the socket fails.
pub fn peer(socket: &UnixStream) -> io::Result<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: `peer` and its length outlive the call.
    check(i64::from(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    }))?;
    Ok(peer.pid)
}

/// This process may have as many files open as the system lets it.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the calls. Where they fail, the limit stays as it was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Where files are limited in length, writing fails with an error, and does not end this process.
pub fn ignore_file_limit() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Whether the limit of open files stood in the way.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// A descriptor that becomes readable when process `pid` ends.
///
/// # Errors
/// When there is no such process.
pub fn process_descriptor(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is a fresh descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Kills the process of a descriptor that [`process_descriptor`] made, if it still runs.
pub fn kill(process: &OwnedFd) {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: plain system call on an open descriptor. It fails only if the process has ended, or
    // is not ours.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, none, 0)
    };
}

/// True if `fd` is readable now; for [`process_descriptor`]: if the process ended.
pub fn is_readable(fd: &impl AsRawFd) -> bool {
    poll(fd, 0)
}

/// Waits until `fd` is readable (of a socket that listens: until somebody connects), or a signal comes.
pub fn wait_until_readable(fd: &impl AsRawFd) {
    poll(fd, -1);
}

fn poll(fd: &impl AsRawFd, milliseconds: c_int) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) > 0 }
}

/// The number of this thread.
pub fn thread_number() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::gettid() }
}

/// True if this process has a thread of this number.
pub fn thread_exists(thread: i32) -> bool {
    // SAFETY: signal 0 only checks.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 }
}

/// True if a process `pid` exists.
pub fn process_exists(pid: i32) -> bool {
    // SAFETY: signal 0 only checks.
    unsafe {
        libc::kill(pid, 0) == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }
}

/// Reads this process's memory at `address` without faulting: the number of bytes read, 0 if
/// nothing is mapped there.
pub fn read_memory(address: u64, buffer: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: buffer.len() };
    // SAFETY: the kernel checks the remote range and writes only into `buffer`.
    let got = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(got).unwrap_or(0)
}

/// Checks that a program started by this process will have the access `mode` (`X_OK`, …) to the
/// file at `path`.
///
/// # Errors
/// When it will not.
pub fn check_access(path: &Path, mode: c_int) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated path. It goes by the real user, whom the kernel then regards without
    // capabilities, which exec takes away.
    check(i64::from(unsafe { libc::access(name.as_ptr(), mode) })).map(drop)
}

/// The user and the group with whose rights this process runs.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: always succeed.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// True if the program at `path` has capabilities of its own.
pub fn has_capabilities(path: &Path) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let attribute = c"security.capability".as_ptr();
    // SAFETY: NUL-terminated strings; without a buffer it only returns the length.
    unsafe { libc::getxattr(name.as_ptr(), attribute, std::ptr::null_mut(), 0) > 0 }
}

/// The disk may have the room of these bytes of a file, which read as zeros from then on. Where the
/// file system cannot do that, nothing happens.
pub fn give_up_room(file: &File, offset: u64, length: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain system call on an open descriptor.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) };
}

/// Gives back the pages of private anonymous memory at these addresses, which reads as zeros from then on.
///
/// # Safety
/// It is mapped like that, and nobody needs what is in it.
pub unsafe fn give_up_pages(addresses: &Range<u64>) {
    let length = (addresses.end - addresses.start) as usize;
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(addresses.start as *mut c_void, length, libc::MADV_DONTNEED) };
}

/// The same open file, also under a number above those that programs use.
///
/// # Errors
/// When there is none.
pub fn renumber(file: &File) -> io::Result<File> {
    const ABOVE: c_int = 1000;
    // SAFETY: plain system call on an open descriptor; the new one is nobody else's.
    unsafe {
        let new = check(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, ABOVE).into())?;
        Ok(File::from_raw_fd(new as RawFd))
    }
}

/// Whether a descriptor is closed as a program starts, from here on; returns whether it was before.
pub fn set_close_on_exec(descriptor: c_int, closes: bool) -> bool {
    // SAFETY: plain system calls; on a descriptor that is not open they fail, and change nothing.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFD);
        let new = if closes { libc::FD_CLOEXEC } else { 0 };
        flags >= 0
            && libc::fcntl(descriptor, libc::F_SETFD, flags & !libc::FD_CLOEXEC | new) == 0
            && flags & libc::FD_CLOEXEC != 0
    }
}

/// Ends the whole process at once.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(status) }
}
