//! Markers: what a trace says about itself, and where something other than an instruction happened.

use super::{Code, DrMemTrace};
use crate::error::TraceError;
use crate::import::builder::Builder;
use crate::import::input::Input;

const MARKER_KERNEL_EVENT: u16 = 0;
const MARKER_KERNEL_TRANSFER: u16 = 1;
const MARKER_TIMESTAMP: u16 = 2;
const MARKER_FILE_TYPE: u16 = 9;
const MARKER_VERSION: u16 = 12;
const MARKER_WINDOW: u16 = 14;
const MARKER_SYSCALL_START: u16 = 27;
const MARKER_SYSCALL_END: u16 = 28;
const MARKER_SWITCH_START: u16 = 34;
const MARKER_SWITCH_END: u16 = 35;

const FILE_FILTERED: u64 = 0x01 | 0x80 | 0x100;
const FILE_INSTRUCTIONS_ONLY: u64 = 0x04;
const FILE_X86_64: u64 = 0x40;
const FILE_TEMPLATES: u64 = 0x4000;
const FILE_CORE: u64 = 0x1_0000;
const FILE_REGDEPS: u64 = 0x2_0000;
const FILE_WHOLE_SYSTEM: u64 = 0x4_0000;

/// The newest version whose records are as described here.
const NEWEST_VERSION: u64 = 7;

/// Refuses records that may be other than they are described here.
pub(super) fn version(version: u64, input: &Input) -> Result<(), TraceError> {
    if version > NEWEST_VERSION {
        return Err(TraceError::Foreign {
            path: input.path().to_owned(),
            what: format!(
                "a drmemtrace of version {version} at byte {}, but versions up to {NEWEST_VERSION} are known",
                input.offset()
            ),
            remedy: "update flatwalk, or record with an earlier DynamoRIO".into(),
        });
    }
    Ok(())
}

impl DrMemTrace {
    pub(super) fn marker(
        &mut self,
        kind: u16,
        value: u64,
        input: &Input,
        out: &mut Builder,
    ) -> Result<(), TraceError> {
        let refuse = |what: &str, remedy: &str| TraceError::Foreign {
            path: input.path().to_owned(),
            what: format!("{what}, according to byte {}", input.offset()),
            remedy: remedy.into(),
        };
        match kind {
            MARKER_VERSION => version(value, input)?,
            MARKER_FILE_TYPE => {
                if value & FILE_FILTERED != 0 {
                    return Err(refuse(
                        "accesses were filtered out of this drmemtrace while it was recorded",
                        "record it without `-L0_filter`, `-L0I_filter` and `-L0D_filter`",
                    ));
                }
                if value & FILE_INSTRUCTIONS_ONLY != 0 {
                    return Err(refuse(
                        "this drmemtrace has instructions but no data accesses",
                        "record it without `-instr_only_trace`",
                    ));
                }
                if value & (FILE_WHOLE_SYSTEM | FILE_TEMPLATES) != 0 {
                    return Err(refuse(
                        "this drmemtrace is of a whole system or of a kernel's system calls, not of a program",
                        "record the program alone",
                    ));
                }
                self.core = value & FILE_CORE != 0;
                self.code = if value & FILE_REGDEPS != 0 {
                    Code::Synthetic
                } else if value & FILE_X86_64 != 0 {
                    Code::X86
                } else {
                    Code::Other
                };
            }
            MARKER_TIMESTAMP => self.timestamp = value,
            MARKER_SYSCALL_START | MARKER_SWITCH_START => {
                self.kernel = true;
                out.end_block();
                self.next_pc = None;
            }
            MARKER_SYSCALL_END | MARKER_SWITCH_END => self.kernel = false,
            // The program continues elsewhere, or after a gap.
            MARKER_KERNEL_EVENT | MARKER_KERNEL_TRANSFER | MARKER_WINDOW
                if self.encoding.is_empty() =>
            {
                out.end_block();
                self.next_pc = None;
            }
            _ => {}
        }
        Ok(())
    }
}
