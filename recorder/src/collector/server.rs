//! Waits for processes that introduce themselves, and records each on a thread of its own.

use std::collections::HashMap;
use std::io::BufRead;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::client::Client;
use crate::names::Names;
use crate::record::{WANTED, WANTED_BY_NONE, WANTED_NO_MORE, record};

/// What happens to the collector.
enum Occurrence {
    /// A process introduced itself.
    Client(Client),
    /// A recording ended.
    Ended,
    /// The user wants no more.
    Detach,
    /// No more programs will be started.
    Closed,
    /// Who started all this is gone.
    Orphaned,
}

/// Says that a recording ended, however it did.
struct Ending(Sender<Occurrence>);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.send(Occurrence::Ended);
    }
}

/// Records the processes that introduce themselves at `listener`, until the user wants no more.
pub fn serve(listener: UnixListener, output: &Path) {
    let (sender, occurrences) = mpsc::channel();
    let from_socket = sender.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A process that fails gets the reason as its answer.
            if let Ok(client) = Client::accept(stream)
                && from_socket.send(Occurrence::Client(client)).is_err()
            {
                break;
            }
        }
    });
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
    let mut replaced: HashMap<i32, Arc<AtomicBool>> = HashMap::new();
    let (mut active, mut closed) = (0_usize, false);
    loop {
        // After the last recording ended, an exec may be on its way to introduce itself; the socket
        // has its connection by the time that its process descriptor says anything, so a moment is
        // enough.
        let occurrence = if closed && active == 0 {
            occurrences.recv_timeout(Duration::from_millis(100))
        } else {
            occurrences.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match occurrence {
            Ok(Occurrence::Client(client)) => {
                let flag = Arc::new(AtomicBool::new(false));
                if let Some(old) = replaced.insert(client.pid(), flag.clone()) {
                    old.store(true, Ordering::Release);
                }
                active += 1;
                let target = names.next(client.pid());
                let (ending, wanted) = (Ending(sender.clone()), wanted.clone());
                thread::spawn(move || {
                    let _ending = ending;
                    record(&client, &target, &flag, &wanted);
                });
            }
            Ok(Occurrence::Ended) => active -= 1,
            Ok(Occurrence::Detach) => {
                closed = true;
                wanted.store(WANTED_NO_MORE, Ordering::Release);
            }
            Ok(Occurrence::Orphaned) => {
                closed = true;
                wanted.store(WANTED_BY_NONE, Ordering::Release);
            }
            Ok(Occurrence::Closed) => closed = true,
            Err(_) => break,
        }
    }
}
