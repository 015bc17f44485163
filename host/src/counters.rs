//! The kernel's and the processor's event counters (`perf_event_open`), where they may be used.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// An event as `perf_event_open` names it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSpec {
    /// Its name in the answer.
    name: String,
    /// `PERF_TYPE_…`.
    #[serde(rename = "type")]
    kind: u32,
    config: u64,
}

/// What was counted.
#[derive(Debug, Serialize)]
pub struct Count {
    name: String,
    /// Scaled up if the counter was shared.
    value: f64,
    /// Share of the time that the counter really counted.
    share: f64,
    /// Whether the kernel's own events are included.
    kernel: bool,
}

struct Counter {
    name: String,
    file: File,
    kernel: bool,
}

/// Open counters of this process and all threads it will start.
#[derive(Default)]
pub struct Counters {
    open: Vec<Counter>,
}

/// The beginning of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0` of `linux/perf_event.h`), which every
/// kernel understands.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const FLAG_DISABLED: u64 = 1 << 0;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const READ_TOTAL_TIME_ENABLED: u64 = 1 << 0;
const READ_TOTAL_TIME_RUNNING: u64 = 1 << 1;
const IOCTL_ENABLE: u64 = 0x2400;
const IOCTL_DISABLE: u64 = 0x2401;
const OPEN_CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

fn open(event: &EventSpec, kernel: bool) -> io::Result<File> {
    let attributes = Attributes {
        kind: event.kind,
        size: size_of::<Attributes>() as u32,
        config: event.config,
        read_format: READ_TOTAL_TIME_ENABLED | READ_TOTAL_TIME_RUNNING,
        flags: FLAG_DISABLED
            | FLAG_INHERIT
            | FLAG_EXCLUDE_HYPERVISOR
            | if kernel { 0 } else { FLAG_EXCLUDE_KERNEL },
        ..Attributes::default()
    };
    // SAFETY: `attributes` has the layout and size that it states; this process, any processor, no group.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            0 as libc::pid_t,
            -1 as libc::c_int,
            -1 as libc::c_int,
            OPEN_CLOSE_ON_EXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and not owned elsewhere.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

impl Counters {
    /// Opens all counters that may be opened: with the kernel's events if permitted, else without. What
    /// cannot be counted is noted, once for each reason.
    pub fn open(events: &[EventSpec], notes: &mut Vec<String>) -> Self {
        let mut counters = Self::default();
        let mut refused: Vec<(String, Vec<&str>)> = Vec::new();
        for event in events {
            match open(event, true).map(|file| (file, true)).or_else(|refused| {
                match refused.raw_os_error() {
                    Some(libc::EACCES | libc::EPERM) => {
                        open(event, false).map(|file| (file, false))
                    }
                    _ => Err(refused),
                }
            }) {
                Ok((file, kernel)) => {
                    counters.open.push(Counter { name: event.name.clone(), file, kernel });
                }
                Err(error) => {
                    let why = why(&error);
                    match refused.iter_mut().find(|(reason, _)| *reason == why) {
                        Some((_, names)) => names.push(&event.name),
                        None => refused.push((why, vec![&event.name])),
                    }
                }
            }
        }
        let words =
            |(why, names): (String, Vec<&str>)| format!("{} not counted: {why}", names.join(", "));
        notes.extend(refused.into_iter().map(words));
        counters
    }

    fn control(&self, request: u64) {
        for counter in &self.open {
            // SAFETY: an open counter, and a request without argument; it cannot fail.
            unsafe { libc::ioctl(counter.file.as_raw_fd(), request as _, 0) };
        }
    }

    /// Starts counting.
    pub fn enable(&self) {
        self.control(IOCTL_ENABLE);
    }

    /// Stops counting.
    pub fn disable(&self) {
        self.control(IOCTL_DISABLE);
    }

    /// What was counted while enabled. What was never counted is noted.
    pub fn read(&mut self, notes: &mut Vec<String>) -> Vec<Count> {
        counts(self.open.iter_mut().filter_map(Counter::read), notes)
    }
}

/// A counter as the kernel gives it.
struct Reading {
    name: String,
    kernel: bool,
    value: f64,
    /// Nanoseconds that it was to count, and that it did.
    enabled: f64,
    running: f64,
}

impl Counter {
    fn read(&mut self) -> Option<Reading> {
        let mut bytes = [0; 24];
        self.file.read_exact(&mut bytes).ok()?;
        let [value, enabled, running] = [0, 8, 16]
            .map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte])) as f64);
        Some(Reading { name: self.name.clone(), kernel: self.kernel, value, enabled, running })
    }
}

/// The counts, scaled to the time that they were to count. An event that the kernel opened may still
/// never have been on a counter: all were taken, or it is one of cores of another type.
fn counts(readings: impl Iterator<Item = Reading>, notes: &mut Vec<String>) -> Vec<Count> {
    let (counted, never): (Vec<_>, Vec<_>) =
        readings.filter(|one| one.enabled > 0.0).partition(|one| one.running > 0.0);
    if !never.is_empty() {
        let names: Vec<_> = never.into_iter().map(|one| one.name).collect();
        notes.push(format!(
            "{} not counted: no counter was free (other programs, or the kernel's watchdog, may hold \
             them), or cores of another type have it",
            names.join(", ")
        ));
    }
    let scaled = |one: Reading| Count {
        name: one.name,
        value: one.value * (one.enabled / one.running),
        share: one.running / one.enabled,
        kernel: one.kernel,
    };
    counted.into_iter().map(scaled).collect()
}

fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "not permitted (kernel.perf_event_paranoid, or a container's filter)".to_owned()
        }
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL) => {
            "this machine does not have this counter (a virtual machine may hide it)".to_owned()
        }
        Some(libc::ENOSYS) => "this kernel does not have perf_event_open".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_have_the_kernels_first_size() {
        assert_eq!(size_of::<Attributes>(), 64);
    }

    #[test]
    fn events_that_no_machine_has_are_noted_together() {
        let event = |name: &str| EventSpec { name: name.to_owned(), kind: 1, config: 9999 };
        let mut notes = Vec::new();
        let mut counters = Counters::open(&["one", "two"].map(event), &mut notes);
        assert!(counters.read(&mut notes).is_empty());
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("one, two not counted: "), "{notes:?}");
    }

    #[test]
    fn an_event_that_never_ran_is_noted_and_one_that_ran_in_part_is_scaled() {
        let reading = |name: &str, enabled, running| Reading {
            name: name.to_owned(),
            kernel: true,
            value: 10.0,
            enabled,
            running,
        };
        let mut notes = Vec::new();
        let readings = [reading("walks", 8.0, 0.0), reading("cycles", 8.0, 2.0)];
        let found = counts(readings.into_iter(), &mut notes);
        let found: Vec<_> =
            found.iter().map(|one| (one.name.as_str(), one.value, one.share)).collect();
        assert_eq!(found, [("cycles", 40.0, 0.25)]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("walks not counted: no counter was free"), "{notes:?}");
        // Where nothing was to be counted, nothing is missing.
        assert!(counts([reading("walks", 0.0, 0.0)].into_iter(), &mut notes).is_empty());
        assert_eq!(notes.len(), 1, "{notes:?}");
    }
}
