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
        // `accept` takes a descriptor before it looks whether anybody is there. It is to fail, and to be called with
        // the lock held, only where somebody is.
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
                // The answer may take as long as the process likes. Meanwhile its descriptor is nobody else's.
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

/// Records the processes that introduce themselves at `listener`, until the user wants no more.
pub fn serve(listener: UnixListener, output: &Path) {
    let (sender, occurrences) = mpsc::channel();
    let from_socket = sender.clone();
    thread::spawn(move || accept(&listener, &from_socket));
    let from_input = sender.clone();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let occurrence = match line.as_str() {
                "close" => Occurrence::Closed,
                "detach" => Occurrence::Detach,
                _ => continue,
            };
            if from_input.send(occurrence).is_err() {
                return;
            }
        }
        let _ = from_input.send(Occurrence::Orphaned);
    });
    let wanted = Arc::new(AtomicU8::new(WANTED));
    let mut names = Names::new(output);
    // Of each process its latest introduction: whether there was another one after it.
    let mut introduced: HashMap<i32, Arc<AtomicBool>> = HashMap::new();
    let (mut active, mut closed) = (0_usize, false);
    // Those whose recording ended with an exec, and that did not yet introduce what they run now.
    let mut starting: HashMap<i32, Arc<Client>> = HashMap::new();
    // Children of those that have ended that did not yet introduce themselves, and since when.
    let mut born: HashMap<i32, (Process, Instant)> = HashMap::new();
    let mut detached: Option<Instant> = None;
    loop {
        // After the last recording ended, an exec may be on its way to introduce itself. If the process has
        // ended, the socket has its connection by the time that its descriptor says so, and a moment is enough.
        let occurrence = if closed && active == 0 {
            occurrences.recv_timeout(PAUSE)
        } else {
            occurrences.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match occurrence {
            Ok(Occurrence::Client(client)) => {
                let flag = Arc::new(AtomicBool::new(false));
                if let Some(old) = introduced.insert(client.pid(), flag.clone()) {
                    old.store(true, Ordering::Release);
                }
                starting.remove(&client.pid());
                born.remove(&client.pid());
                active += 1;
                let target = names.next(client.pid());
                let recorded = Recorded { client: Arc::new(client), replaced: flag };
                let (ending, wanted) = (Ending(sender.clone(), recorded), wanted.clone());
                thread::spawn(move || {
                    let ending = ending;
                    record(&ending.1.client, &target, &ending.1.replaced, &wanted);
                });
            }
            Ok(Occurrence::Refused(pid)) => {
                // Nothing more will come of its exec, or of its fork.
                starting.remove(&pid);
                born.remove(&pid);
                if let Some(recorded) = introduced.insert(pid, Arc::default()) {
                    recorded.store(true, Ordering::Release);
                }
            }
            Ok(Occurrence::Ended(Recorded { client, replaced })) => {
                active -= 1;
                starting.retain(|_, client| client.is_starting());
                let children = client.take_children();
                let alone = opening();
                for pid in children.into_iter().filter(|pid| !introduced.contains_key(pid)) {
                    if let Some(child) = client.child(pid) {
                        born.insert(pid, (child, Instant::now()));
                    }
                }
                drop(alone);
                if client.is_starting() && !replaced.load(Ordering::Acquire) {
                    starting.insert(client.pid(), client);
                }
            }
            Ok(Occurrence::Detach) => {
                closed = true;
                detached.get_or_insert_with(Instant::now);
                wanted.store(WANTED_NO_MORE, Ordering::Release);
            }
            Ok(Occurrence::Orphaned) => {
                closed = true;
                wanted.store(WANTED_BY_NONE, Ordering::Release);
            }
            Ok(Occurrence::Closed) => closed = true,
            Err(RecvTimeoutError::Timeout) => {
                starting.retain(|_, client| client.is_starting());
                born.retain(|_, (child, since)| child.runs_qemu() && since.elapsed() < BIRTH);
                if wanted.load(Ordering::Acquire) == WANTED_BY_NONE {
                    for client in starting.values() {
                        client.kill();
                    }
                    for (child, _) in born.values() {
                        child.kill();
                    }
                }
                if starting.is_empty() && born.is_empty()
                    || detached.is_some_and(|since| since.elapsed() > PATIENCE)
                {
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}
