//! `flatwalk-collect --socket PATH --output FILE`: writes the traces of the processes that
//! introduce themselves at the socket.
//!
//! Reports are lines of JSON on standard output. On standard input, the line `close`
//! says that no more programs will be started: the collector ends with the last recording. The line
//! `detach` ends all recordings: what is still running runs on unrecorded. The end of standard input
//! means that who started all this is gone: the recorded processes are killed.

mod client;
mod code;
mod decode;
mod error;
mod known;
mod names;
mod output;
mod record;
mod report;
mod sample;
mod server;
mod session;
mod slices;
mod spool;
mod translated;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use flatwalk_recorder::sys;
use report::{Report, report};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let (mut socket, mut output) = (None, None);
    while let Some(option) = arguments.next() {
        match option.to_str() {
            Some("--socket") => socket = arguments.next().map(PathBuf::from),
            Some("--output") => output = arguments.next().map(PathBuf::from),
            _ => {}
        }
    }
    let (Some(socket), Some(output)) = (socket, output) else {
        eprintln!(
            "usage: flatwalk-collect --socket PATH --output FILE (flatwalk record starts this program)"
        );
        return ExitCode::from(2);
    };
    // Each recorded process takes some.
    sys::raise_descriptor_limit();
    sys::ignore_file_limit();
    let listener = match sys::listen(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("{}: {error}", socket.display());
            return ExitCode::FAILURE;
        }
    };
    report(&Report::Ready);
    server::serve(listener, &output);
    ExitCode::SUCCESS
}
