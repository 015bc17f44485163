//! Work of the engine's that Python waits for, and can stop.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::reports::Reports;
use crate::{error, prototype};

/// How long a signal waits for the engine to end what it does; then it is left to itself.
const GRACE: Duration = Duration::from_millis(700);
/// How often signals are looked for, and progress is reported.
const LOOK: Duration = Duration::from_millis(100);

/// Lets `work` be done by a thread of its own, so that Python hears signals whatever it does: one that Python
/// makes an exception of stops it within a second, or leaves it behind if it does not listen.
pub fn attend<T: Send + 'static, E: std::fmt::Display + Send>(
    py: Python<'_>,
    callback: Option<&Py<PyAny>>,
    work: impl FnOnce(&Reports) -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    let reports = Arc::new(Reports::default());
    let (sender, receiver) = mpsc::channel();
    let its_reports = Arc::clone(&reports);
    // As much stack as a main thread usually has.
    let worker = std::thread::Builder::new()
        .stack_size(8 << 20)
        .spawn(move || {
            its_reports.make_current();
            let answer = prototype::with_thread_state(|| work(&its_reports));
            drop(sender.send(answer.map_err(|error| error.to_string())));
        })
        .map_err(|e| error(format!("no thread can be started: {e}; allow more of them")))?;
    py.detach(move || {
        let answer = loop {
            let answer = match receiver.recv_timeout(LOOK) {
                Ok(answer) => Some(answer),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    let panic = worker.join().err();
                    if let Some(raised) = reports.take_raised() {
                        return Err(raised);
                    }
                    // It panicked, which is a bug.
                    std::panic::resume_unwind(panic.unwrap_or_else(|| Box::new("no answer")));
                }
            };
            if let Err(raised) = reports.pass_on(callback) {
                reports.stop();
                receiver.recv_timeout(GRACE).ok();
                return Err(raised);
            }
            if let Some(answer) = answer {
                break answer;
            }
        };
        answer.map_err(error)
    })
}
