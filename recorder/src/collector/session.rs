//! One process's trace under construction: takes what the process leaves in its region, and writes
//! what is complete.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use flatwalk_recorder::channel::control::{
    CONTROL_CHECKED, CONTROL_DEFINE, CONTROL_EVENT, CONTROL_FAILURE, CONTROL_FORK, CONTROL_MARK,
    CONTROL_WARNING, MARK_BEGIN, MARK_END, MARK_THIN,
};
use flatwalk_recorder::channel::hello::Origin;
use flatwalk_recorder::channel::region::{BUFFER_WORDS, BUFFERS, Region, SLOTS};
use flatwalk_recorder::channel::sample::is_chosen;
use flatwalk_recorder::text;
use flatwalk_trace::{Event, Header, Summary, TraceError};

use crate::client::Client;
use crate::decode::Decoder;
use crate::error::RecordError;
use crate::output::Output;
use crate::report::{Report, report};
use crate::sample::Sample;

/// More events than these do not wait for slices.
const MOST_EVENTS: usize = 4096;

/// The last epoch that words can name.
const LAST_EPOCH: u64 = u64::MAX - 1;

/// What happens between slices.
enum Occurrence {
    Event(Event),
    /// One of `MARK_…`, with its numbers.
    Mark(u64, u64, u64),
}

/// One process's trace under construction.
pub struct Session<'a> {
    client: &'a Client,
    region: &'a Region,
    output: Output,
    decoder: Decoder,
    /// Events that were taken but not yet written, with the epochs that they start.
    events: VecDeque<(u64, Occurrence)>,
    /// Instructions of the gaps that the process reported.
    gaps: u64,
    /// Instructions that came late, of segments that had been dropped, and are in no gap yet.
    late: u64,
    /// Of each slot: the sequence number of a buffer, and how many of its words were taken.
    taken: Vec<(u64, usize)>,
    /// The payload of the latest control record.
    control: Vec<u8>,
}

/// Of a command line, which may have 2 MiB. At worst each byte is six of JSON, of which a trace's
/// description has a mebibyte.
const LONGEST_NAME_BYTES: usize = 128 << 10;

impl<'a> Session<'a> {
    /// Begins the trace of `client` in the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn create(client: &'a Client, path: &Path) -> Result<Session<'a>, TraceError> {
        let hello = client.hello();
        let mut name = hello.command.join(" ");
        if text::cut(&mut name, LONGEST_NAME_BYTES) {
            name.push('…');
        }
        let header = Header {
            name,
            origin: match hello.origin {
                Origin::Start | Origin::Fork => "qemu-user".into(),
                Origin::Guest => "qemu-system".into(),
            },
            architecture: "x86_64".into(),
            segment_instructions: hello.segment,
            gap_pages: hello.gap_pages,
        };
        Ok(Session {
            client,
            region: client.region(),
            output: Output::create(path, header)?,
            gaps: 0,
            late: 0,
            decoder: Decoder::default(),
            events: VecDeque::new(),
            taken: vec![(0, 0); SLOTS],
            control: Vec::new(),
        })
    }

    /// Instructions executed so far, since recording began.
    pub fn executed(&self) -> u64 {
        self.decoder.instructions + self.gaps + self.passed()
    }

    /// Instructions in the trace so far.
    pub fn instructions(&self) -> u64 {
        self.output.instructions()
    }

    /// Segments in the trace so far, if it is a sample.
    pub fn segments(&self) -> Option<usize> {
        self.output.sample.as_ref().map(Sample::count)
    }

    /// Instructions that passed and are in no gap that the process reported.
    fn passed(&self) -> u64 {
        let region = self.region;
        if region.gaps_count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let known = region.discarded.load(Ordering::Relaxed).wrapping_add(self.gaps);
        // What the program may have destroyed is not to be believed beyond reason.
        region.passed().checked_sub(known).filter(|&passed| passed < 1 << 62).unwrap_or(0)
    }

    /// Takes the full buffers, then looks at those being filled, and writes what is
    /// complete. False if there was nothing.
    ///
    /// # Errors
    /// When what the process left is malformed, or the trace cannot be written.
    pub fn step(&mut self) -> Result<bool, RecordError> {
        let region = self.region;
        let before = self.decoder.instructions;
        let epoch = region.epoch.0.load(Ordering::Acquire);
        for _ in 0..region.submissions().map_err(RecordError::Corrupt)? {
            let submission = region.next_submission();
            let slot = submission.slot.load(Ordering::Relaxed) as usize;
            let buffer = submission.buffer.load(Ordering::Relaxed);
            let thread = submission.thread.load(Ordering::Relaxed);
            let words = submission.words.load(Ordering::Relaxed) as usize;
            let sequence = submission.sequence.load(Ordering::Relaxed);
            if slot >= SLOTS || buffer as usize >= BUFFERS || words > BUFFER_WORDS {
                return Err(RecordError::Corrupt("a submission names what does not exist"));
            }
            self.take_control()?;
            let skip = if self.taken[slot].0 == sequence { self.taken[slot].1 } else { 0 };
            let words =
                region.buffers[buffer as usize].get(skip.min(words)..words).unwrap_or_default();
            self.decoder.add(
                thread,
                words.iter().map(|word| word.load(Ordering::Relaxed)),
                &mut self.output,
            )?;
            self.taken[slot] = (sequence, usize::MAX);
            region.submission_done(buffer);
        }
        // Threads that do not fill their buffers must not hold their slices back for ever: a slice
        // of an old epoch would stand in the file far from where it belongs.
        self.sweep()?;
        self.take_control()?;
        self.emit(epoch)?;
        Ok(self.decoder.instructions > before)
    }

    /// Takes the words of buffers that are being filled.
    fn sweep(&mut self) -> Result<(), RecordError> {
        let region = self.region;
        let base = region.base.load(Ordering::Relaxed);
        let mut words = Vec::new();
        let used = region.vcpus.load(Ordering::Acquire) as usize;
        for (index, slot) in region.slots.iter().enumerate().take(used) {
            let sequence = slot.sequence.load(Ordering::SeqCst);
            let thread = slot.thread.load(Ordering::SeqCst);
            if sequence % 2 == 1 || thread == 0 {
                continue;
            }
            let buffer = slot.buffer.load(Ordering::SeqCst) as usize;
            let next = slot.next.load(Ordering::SeqCst);
            let skip = if self.taken[index].0 == sequence { self.taken[index].1 } else { 0 };
            let start = base.wrapping_add(Region::buffer_offset(buffer % BUFFERS) as u64);
            let count = (next.wrapping_sub(start) / 8) as usize;
            if buffer >= BUFFERS || count > BUFFER_WORDS || count <= skip {
                continue;
            }
            words.clear();
            words.extend(
                region.buffers[buffer][skip..count].iter().map(|word| word.load(Ordering::Relaxed)),
            );
            fence(Ordering::SeqCst);
            if slot.sequence.load(Ordering::SeqCst) != sequence
                || region.has_submission_of(index).map_err(RecordError::Corrupt)?
            {
                // It was submitted meanwhile, or an earlier one was and comes first.
                continue;
            }
            self.taken[index] = (sequence, count);
            self.take_control()?;
            self.decoder.add(thread - 1, words.iter().copied(), &mut self.output)?;
        }
        Ok(())
    }

    /// Takes definitions and events.
    fn take_control(&mut self) -> Result<(), RecordError> {
        let region = self.region;
        let mut took = false;
        while let Some(kind) =
            region.take_control(&mut self.control).map_err(RecordError::Corrupt)?
        {
            took = true;
            match kind {
                CONTROL_DEFINE => self.decoder.define(&self.control)?,
                CONTROL_EVENT => {
                    let event = self
                        .control
                        .split_first_chunk()
                        .and_then(|(epoch, text)| {
                            Some((u64::from_le_bytes(*epoch), serde_json::from_slice(text).ok()?))
                        })
                        .ok_or(RecordError::Corrupt("an event is malformed"))?;
                    let (epoch, event) = event;
                    self.events.push_back((epoch, Occurrence::Event(event)));
                }
                CONTROL_MARK => {
                    let (words, rest) = self.control.as_chunks();
                    let (&[epoch, mark, first, second], []) = (words, rest) else {
                        return Err(RecordError::Corrupt("a mark is malformed"));
                    };
                    let [epoch, mark, first, second] =
                        [epoch, mark, first, second].map(u64::from_le_bytes);
                    self.events.push_back((epoch, Occurrence::Mark(mark, first, second)));
                }
                CONTROL_FORK => {
                    let child = self.control.as_slice().try_into().map(u64::from_le_bytes);
                    let child =
                        child.map_err(|_| RecordError::Corrupt("a child's number is malformed"))?;
                    self.client.note_child(child as i32);
                }
                CONTROL_WARNING => report(&Report::Warning {
                    pid: self.client.pid(),
                    message: String::from_utf8_lossy(&self.control).into_owned(),
                }),
                CONTROL_FAILURE => {
                    let why = String::from_utf8_lossy(&self.control).into_owned();
                    return Err(RecordError::Wrong(why));
                }
                CONTROL_CHECKED => {
                    let (numbers, rest) = self.control.as_chunks();
                    let (&[walks, accesses, kernel, repeated], []) = (numbers, rest) else {
                        return Err(RecordError::Corrupt("a count of checks is malformed"));
                    };
                    report(&Report::Checked {
                        pid: self.client.pid(),
                        walks: u64::from_le_bytes(walks),
                        accesses: u64::from_le_bytes(accesses),
                        kernel: u64::from_le_bytes(kernel),
                        repeated: u64::from_le_bytes(repeated),
                    });
                }
                _ => return Err(RecordError::Corrupt("a control record is of no known kind")),
            }
        }
        if took {
            region.ring_drained();
        }
        Ok(())
    }

    /// Writes the events up to the one that started `epoch`, and the slices between them.
    fn emit(&mut self, epoch: u64) -> Result<(), RecordError> {
        let mut slices = self.decoder.take_slices();
        let later = slices.split_off(&epoch.saturating_add(1));
        for (at, slices) in slices {
            self.emit_events(at)?;
            for slice in slices {
                // It may be of a segment that was dropped before the slice came.
                self.late += self.output.slice(at, &slice)?;
            }
        }
        self.decoder.put_back(later);
        // Where nothing is recorded there are none to wait for, however much happens. The latest do
        // wait: threads that did not look yet may have slices of before.
        let Some(excess) = self.events.len().checked_sub(MOST_EVENTS) else { return Ok(()) };
        let first_kept = self.events[excess].0;
        self.emit_events(epoch.min(first_kept.saturating_sub(1)))
    }

    /// Writes the events up to the one that started `epoch`.
    fn emit_events(&mut self, epoch: u64) -> Result<(), RecordError> {
        while let Some((at, _)) = self.events.front()
            && *at <= epoch
            && let Some((at, occurrence)) = self.events.pop_front()
        {
            match occurrence {
                Occurrence::Event(Event::Gap { instructions }) => {
                    self.gaps = self.gaps.saturating_add(instructions);
                    let instructions = instructions.saturating_add(std::mem::take(&mut self.late));
                    self.output.event(at, &Event::Gap { instructions })?;
                }
                Occurrence::Event(event) => self.output.event(at, &event)?,
                Occurrence::Mark(mark, first, second) => {
                    let sample = self.output.sample.as_mut();
                    match (mark, first, sample) {
                        (MARK_BEGIN, number, Some(sample)) => sample.begin(number, at)?,
                        (MARK_END, _, Some(sample)) => sample.end(at)?,
                        (MARK_THIN, stride, Some(sample)) if stride.is_power_of_two() => {
                            sample.thin(|number| is_chosen(second, stride, number), at)?;
                        }
                        _ => return Err(RecordError::Corrupt("a mark is malformed")),
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes all slices that were decoded, and the events between them.
    ///
    /// # Errors
    /// When the trace cannot be written.
    pub fn write_slices(&mut self) -> Result<(), RecordError> {
        self.emit(LAST_EPOCH)
    }

    /// Takes everything that an ended process left.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn take_rest(&mut self) -> Result<(), RecordError> {
        while self.region.submissions().map_err(RecordError::Corrupt)? > 0 {
            self.step()?;
        }
        self.sweep()?;
        self.take_control()?;
        self.decoder.end(&mut self.output)?;
        self.write_slices()?;
        self.emit_events(u64::MAX)?;
        self.write_last_gap()?;
        Ok(())
    }

    /// Writes the gap that the recording ends with, if it does.
    fn write_last_gap(&mut self) -> Result<(), TraceError> {
        let instructions = self.passed().saturating_add(std::mem::take(&mut self.late));
        if instructions > 0 {
            self.gaps = self.gaps.saturating_add(instructions);
            let epoch = self.region.epoch.0.load(Ordering::Relaxed).min(LAST_EPOCH) + 1;
            self.output.event(epoch, &Event::Gap { instructions })?;
        }
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self) -> Result<Summary, TraceError> {
        self.output.finish()
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_trace::{Item, Reader, Source};

    use super::*;
    use crate::client::tests::client;

    /// A file that goes with the test, however that ends.
    struct Scratch(std::path::PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn events_without_slices_do_not_wait_for_any() {
        let name = format!("flatwalk-session-{}.fwt", std::process::id());
        let scratch = Scratch(std::env::temp_dir().join(name));
        let path = &scratch.0;
        let client = client();
        let region = client.region();
        let mut session = Session::create(&client, path).unwrap();
        let name = |number: u64| Event::Marker { name: number.to_string() };
        for epoch in 1..=100_000_u64 {
            let mut payload = epoch.to_le_bytes().to_vec();
            serde_json::to_writer(&mut payload, &name(epoch)).unwrap();
            region.push_control(CONTROL_EVENT, &payload).unwrap();
            region.epoch.0.store(epoch, Ordering::Release);
            if epoch % 1000 == 0 {
                session.step().unwrap();
                let waiting = session.events.len();
                assert!(waiting <= MOST_EVENTS, "{waiting} after {epoch}");
                // What comes now of the latest thousand epochs is not late.
                assert!(waiting >= 1000);
            }
        }
        session.take_rest().unwrap();
        session.finish().unwrap();
        let mut reader = Reader::open(path).unwrap();
        let mut next = 1;
        while let Some(item) = reader.next_item().unwrap() {
            assert!(matches!(item, Item::Event(event) if event == name(next)));
            next += 1;
        }
        assert_eq!(next, 100_001);
    }
}
