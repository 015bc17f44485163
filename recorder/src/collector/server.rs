//! Waits for processes that introduce themselves, and records each on a thread of its own.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufRead;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use flatwalk_recorder::sys;

use crate::client::{Client, Process};
use crate::names::Names;
use crate::record::{WANTED, WANTED_BY_NONE, WANTED_NO_MORE, opening, record, report_unrecorded};

/// What happens to the collector.
enum Occurrence {
    /// A process introduced itself.
    Client(Client),
    /// The process with this number introduced itself, and is not recorded.
    Refused(i32),
    /// A recording ended.
    Ended(Recorded),
    /// The user wants no more.
    Detach,
    /// No more programs will be started.
    Closed,
    /// Who started all this is gone.
    Orphaned,
}

/// A process that is recorded.
#[derive(Clone)]
struct Recorded {
    client: Arc<Client>,
    /// Set when the same process introduced itself anew.
    replaced: Arc<AtomicBool>,
}

/// Says that a recording ended, however it did.
struct Ending(Sender<Occurrence>, Recorded);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.send(Occurrence::Ended(self.1.clone()));
    }
}

/// How long to wait before looking again whether something is there that nobody says.
const PAUSE: Duration = Duration::from_millis(100);

/// How long to wait for programs that are about to introduce themselves after a detach, where somebody waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for forked children whose parents have ended. They may get no processor for a while.
const BIRTH: Duration = Duration::from_secs(60);

/// Accepts the processes that connect, until nobody wants to know of them.
fn accept(listener: &UnixListener, clients: &Sender<Occurrence>) {
    // Given up for those that there is no descriptor for: they must have an answer.
    let mut spare = File::open("/dev/null").ok();
    loop {
        // `accept` takes a descriptor before it looks whether anybody is there. It is to fail, and
        // to be called with the lock held, only where somebody is.
        sys::wait_until_readable(listener);
        let refused = match listener.accept() {
            Ok((stream, _)) => {
                let pid = sys::peer(&stream);
                // A process that is refused gets the reason as its answer.
                match Client::accept(stream) {
                    Ok(client) => match clients.send(Occurrence::Client(client)) {
                        Ok(()) => None,
                        Err(_) => return,
                    },
                    Err(why) => Some((pid, why)),
                }
            }
            Err(error) if sys::is_out_of_descriptors(&error) && spare.is_some() => {
                let alone = opening();
                drop(spare.take());
                let accepted = listener.accept();
                // The answer may take as long as the process likes. Meanwhile its descriptor is
                // nobody else's.
                drop(alone);
                let mut stream = accepted.ok().map(|(stream, _)| stream);
                let refused =
                    stream.as_mut().map(|stream| (sys::peer(stream), Client::decline(stream)));
                let _alone = opening();
                drop(stream);
                spare = File::open("/dev/null").ok();
                refused
            }
            Err(_) => {
                thread::sleep(PAUSE);
                spare = spare.or_else(|| File::open("/dev/null").ok());
                None
            }
        };
        if let Some((Ok(pid), why)) = refused {
            report_unrecorded(pid, &why);
            if clients.send(Occurrence::Refused(pid)).is_err() {
                return;
            }
        }
    }
}

/// Passes on what the user says, a word a line, and that there is no user any more.
fn read_input(user: &Sender<Occurrence>) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let occurrence = match line.as_str() {
            "close" => Occurrence::Closed,
            "detach" => Occurrence::Detach,
            _ => continue,
        };
        if user.send(occurrence).is_err() {
            return;
        }
    }
    let _ = user.send(Occurrence::Orphaned);
}

/// What is known of the processes, and of what the user wants.
struct Serving {
    /// Where recordings say that they ended.
    sender: Sender<Occurrence>,
    names: Names,
    wanted: Arc<AtomicU8>,
    /// Of each process its latest introduction: whether there was another one after it.
    introduced: HashMap<i32, Arc<AtomicBool>>,
    /// Recordings under way.
    active: usize,
    /// Whether no more programs will be started.
    closed: bool,
    /// Those whose recording ended with an exec, and that did not yet introduce what they run now.
    starting: HashMap<i32, Arc<Client>>,
    /// Children of those that have ended that did not yet introduce themselves, and since when.
    born: HashMap<i32, (Process, Instant)>,
    /// Since when the user wants no more.
    detached: Option<Instant>,
}

impl Serving {
    fn new(sender: Sender<Occurrence>, output: &Path) -> Serving {
        Serving {
            sender,
            names: Names::new(output),
            wanted: Arc::new(AtomicU8::new(WANTED)),
            introduced: HashMap::new(),
            active: 0,
            closed: false,
            starting: HashMap::new(),
            born: HashMap::new(),
            detached: None,
        }
    }

    /// Process `pid` introduced itself: it is waited for no longer, and an earlier introduction of it is
    /// replaced. Returns whether this one is, later.
    fn introduce(&mut self, pid: i32) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        if let Some(old) = self.introduced.insert(pid, flag.clone()) {
            old.store(true, Ordering::Release);
        }
        self.starting.remove(&pid);
        self.born.remove(&pid);
        flag
    }

    /// Records a process, on a thread of its own.
    fn start(&mut self, client: Client) {
        let replaced = self.introduce(client.pid());
        self.active += 1;
        let target = self.names.next(client.pid());
        let recorded = Recorded { client: Arc::new(client), replaced };
        let ending = Ending(self.sender.clone(), recorded);
        let wanted = self.wanted.clone();
        thread::spawn(move || {
            // The thread owns all of it, so that it is dropped when `record` returns or panics.
            let ending = ending;
            record(&ending.1.client, &target, &ending.1.replaced, &wanted);
        });
    }

    /// A recording ended. The process may go on with another program, and leave children.
    fn end(&mut self, Recorded { client, replaced }: Recorded) {
        self.active -= 1;
        self.starting.retain(|_, client| client.is_starting());
        let children = client.take_children();
        let alone = opening();
        for pid in children.into_iter().filter(|pid| !self.introduced.contains_key(pid)) {
            if let Some(child) = client.child(pid) {
                self.born.insert(pid, (child, Instant::now()));
            }
        }
        drop(alone);
        if client.is_starting() && !replaced.load(Ordering::Acquire) {
            self.starting.insert(client.pid(), client);
        }
    }

    /// The user wants no more.
    fn detach(&mut self) {
        self.closed = true;
        self.detached.get_or_insert_with(Instant::now);
        self.wanted.store(WANTED_NO_MORE, Ordering::Release);
    }

    /// Whoever started all this is gone.
    fn orphan(&mut self) {
        self.closed = true;
        self.wanted.store(WANTED_BY_NONE, Ordering::Release);
    }

    /// Nothing may come any more: no recording is under way, and no more programs will be started.
    fn is_quiet(&self) -> bool {
        self.closed && self.active == 0
    }

    /// Looks, where nothing has happened for a moment, whether some process is still to introduce itself.
    /// Ends those that nobody wants.
    fn awaits_any(&mut self) -> bool {
        self.starting.retain(|_, client| client.is_starting());
        self.born.retain(|_, (child, since)| child.runs_qemu() && since.elapsed() < BIRTH);
        if self.wanted.load(Ordering::Acquire) == WANTED_BY_NONE {
            for client in self.starting.values() {
                client.kill();
            }
            for (child, _) in self.born.values() {
                child.kill();
            }
        }
        let none = self.starting.is_empty() && self.born.is_empty();
        !none && self.detached.is_none_or(|since| since.elapsed() <= PATIENCE)
    }
}

/// Records the processes that introduce themselves at `listener`, until the user wants no more.
pub fn serve(listener: UnixListener, output: &Path) {
    let (sender, occurrences) = mpsc::channel();
    let from_socket = sender.clone();
    thread::spawn(move || accept(&listener, &from_socket));
    let from_input = sender.clone();
    thread::spawn(move || read_input(&from_input));
    let mut serving = Serving::new(sender, output);
    loop {
        // After the last recording ended, an exec may be on its way to introduce itself. If the
        // process has ended, the socket has its connection by the time that its descriptor says so,
        // and a moment is enough.
        let occurrence = if serving.is_quiet() {
            occurrences.recv_timeout(PAUSE)
        } else {
            occurrences.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match occurrence {
            Ok(Occurrence::Client(client)) => serving.start(client),
            // Nothing more will come of its exec, or of its fork.
            Ok(Occurrence::Refused(pid)) => drop(serving.introduce(pid)),
            Ok(Occurrence::Ended(recorded)) => serving.end(recorded),
            Ok(Occurrence::Detach) => serving.detach(),
            Ok(Occurrence::Orphaned) => serving.orphan(),
            Ok(Occurrence::Closed) => serving.closed = true,
            Err(RecvTimeoutError::Timeout) => {
                if !serving.awaits_any() {
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}
