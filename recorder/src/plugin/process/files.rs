//! Pipes, sockets and the like, by what a reader and the writer that it waits for have in common:
//! they may have other descriptors.

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;

/// Set in what is written and read, and in no address of a program's.
pub const FILE: u64 = 1 << 63;

/// What goes through a file, as a writer and a reader name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub written: u64,
    pub read: u64,
}

/// The file behind a descriptor, if one thread may wait there for what another one of this process writes.
pub fn ends(descriptor: u64) -> Option<Ends> {
    let descriptor = descriptor as c_int;
    // SAFETY: an all-zero `stat` is valid, and the call fills one that outlives it.
    let (result, about) = unsafe {
        let mut about: libc::stat = mem::zeroed();
        (libc::fstat(descriptor, &raw mut about), about)
    };
    if result != 0 {
        return None;
    }
    match about.st_mode & libc::S_IFMT {
        libc::S_IFIFO => Some(same(&(about.st_dev, about.st_ino))),
        libc::S_IFSOCK => of_socket(descriptor),
        // An eventfd, whose number is the same for all threads, unless it was duplicated.
        0 => Some(same(&descriptor)),
        _ => None,
    }
}

/// A stream's ends have each other's addresses; of sockets without addresses, it is known whether
/// the other end is in this process, but not which it is.
fn of_socket(descriptor: c_int) -> Option<Ends> {
    let (own, other) =
        (address(descriptor, libc::getsockname)?, address(descriptor, libc::getpeername)?);
    if own.first() == Some(&(libc::AF_UNIX as u8)) {
        return is_local(descriptor).then(|| same(&"a socket"));
    }
    Some(Ends { written: hashed(&(&own, &other)), read: hashed(&(&other, &own)) })
}

type AskAddress = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

fn address(descriptor: c_int, ask: AskAddress) -> Option<Vec<u8>> {
    let mut bytes = [0_u8; size_of::<libc::sockaddr_storage>()];
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes there.
    let result = unsafe { ask(descriptor, bytes.as_mut_ptr().cast(), &raw mut length) };
    (result == 0).then(|| bytes[..(length as usize).min(bytes.len())].to_vec())
}

/// Whether this process made the other end of a socket without addresses.
fn is_local(descriptor: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes there.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    result == 0 && peer.pid as u32 == std::process::id()
}

fn same(what: &impl Hash) -> Ends {
    let both = hashed(what);
    Ends { written: both, read: both }
}

/// Not [`FILE`] alone.
fn hashed(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish() | FILE | 1
}

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn of(file: &impl AsRawFd) -> Option<Ends> {
        ends(file.as_raw_fd() as u64)
    }

    #[test]
    fn what_is_written_is_read_at_the_other_end() {
        let (reader, writer) = pipe().unwrap();
        let (other, _) = pipe().unwrap();
        assert_eq!(of(&reader).unwrap().read, of(&writer).unwrap().written);
        assert_ne!(of(&reader), of(&other));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let clients = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let servers = [(); 2].map(|()| listener.accept().unwrap().0);
        for (client, server) in clients.iter().zip(&servers) {
            let (client, server) = (of(client).unwrap(), of(server).unwrap());
            assert_eq!((client.written, client.read), (server.read, server.written));
            assert_ne!(client.written, client.read);
        }
        assert_ne!(of(&clients[0]), of(&clients[1]));
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!(of(&one).unwrap().written, of(&other).unwrap().read);
        // Nobody waits at a listening socket for what is written to it, or at a file of a disk.
        assert_eq!(of(&listener), None);
        assert_eq!(of(&std::fs::File::open("/proc/self/exe").unwrap()), None);
        assert_eq!(ends(u64::MAX), None);
    }
}
