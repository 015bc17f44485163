//! The items of a sample before it is known which segments remain: each segment's slices are put aside as
//! they come, to be encoded at the end or forgotten. Thinning neither reads nor writes any.

use std::mem;
use std::path::Path;

use flatwalk_trace::{Block, Event, Slice, TraceError, Writer, decode_events, encode_event};
use rustc_hash::FxHashMap;

use crate::known::Known;
use crate::slices;
use crate::spool::{Spool, Stored};

/// Slices are put aside when they are so many bytes …
const SLICES_BYTES: usize = 1 << 20;
/// … and events when there are so many …
const EVENTS_BYTES: usize = 1 << 16;
/// … or so many of a piece that is over.
const SETTLED_BYTES: usize = 1 << 10;

/// The items so far.
#[derive(Debug)]
pub struct Sample {
    spool: Spool,
    /// In order; the last is under way.
    pieces: Vec<Piece>,
    /// The first segment has begun.
    has_begun: bool,
    known: Known,
    /// Slices of the last piece that are not yet put aside.
    slices: Vec<u8>,
    /// The epoch of the last event.
    latest: u64,
}

/// A segment, or what is between two.
#[derive(Debug, Default)]
struct Piece {
    /// A segment's number.
    number: Option<u64>,
    /// The epoch that it begins with, and the first that is no longer of it.
    start: u64,
    end: u64,
    instructions: u64,
    /// Its events as they came; `None` if its slices are gone: then they are in `gap`.
    events: Option<Log>,
    slices: Vec<Stored>,
    /// What it is without its slices.
    gap: Gap,
}

/// A gap under construction: it comes first, with all its instructions; then what happened in it.
#[derive(Debug, Default)]
struct Gap {
    /// What happened before it.
    before: Log,
    /// The epoch that it began in, if it has.
    start: Option<u64>,
    /// The latest epoch of what passed in it: before the first of `events`, and in all.
    first: u64,
    latest: u64,
    instructions: u64,
    events: Log,
    /// Pages touched for the first time since the last of `events`, in order, and whether by stores too.
    touched: Vec<(u64, bool)>,
    places: FxHashMap<u64, usize>,
}

/// Events with their epochs.
#[derive(Debug, Default)]
struct Log(Vec<Part>);

#[derive(Debug)]
enum Part {
    Here(Vec<u8>),
    Aside(Stored),
}

impl Sample {
    /// Nothing yet, of the trace that will be at `path`.
    ///
    /// # Errors
    /// When the system refuses a file next to it.
    pub fn create(path: &Path) -> Result<Sample, TraceError> {
        Ok(Sample {
            spool: Spool::create(path)?,
            // What comes before the first segment's mark is of that segment.
            pieces: vec![Piece::segment(0, 0)],
            has_begun: false,
            known: Known::default(),
            slices: Vec::new(),
            latest: 0,
        })
    }

    /// The next block; they are numbered as those of the trace.
    pub fn define(&mut self, block: &Block) {
        self.known.define(block);
    }

    /// Adds an event.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn event(&mut self, epoch: u64, event: &Event) -> Result<(), TraceError> {
        let Some(Piece { events, gap, .. }) = self.pieces.last_mut() else { return Ok(()) };
        if let Some(events) = events {
            events.push(epoch, event, &mut self.spool)?;
        }
        if let Event::Wake { .. } | Event::Woken { .. } = event {
            // Who waits for whom is of no interest where nothing runs, and does nothing to pages.
            return Ok(());
        }
        self.latest = epoch;
        self.known.follow(event);
        if let Event::Gap { instructions } = *event {
            gap.pass(epoch, instructions);
            return Ok(());
        }
        gap.event(epoch, event, &mut self.spool)
    }

    /// Adds a slice. If it is of no segment, or of one that was dropped, nothing is done but to
    /// return how many instructions it has.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn slice(&mut self, epoch: u64, slice: &Slice) -> Result<u64, TraceError> {
        let before = self.pieces.partition_point(|piece| piece.start <= epoch);
        let is_last = before == self.pieces.len();
        let piece = before.checked_sub(1).map(|index| &mut self.pieces[index]);
        let Some(piece) = piece.filter(|piece| piece.number.is_some() && epoch < piece.end) else {
            return Ok(self.known.instructions_of(slice));
        };
        let Gap { touched, places, .. } = &mut piece.gap;
        let instructions = if epoch < self.latest {
            // Its pages may be others by now. Who touches them next finds them new.
            self.known.instructions_of(slice)
        } else {
            self.known.touch(slice, |page, store, is_new| {
                if is_new {
                    places.insert(page, touched.len());
                    touched.push((page, store));
                } else if store && let Some(&place) = places.get(&page) {
                    touched[place].1 = true;
                }
            })
        };
        piece.gap.pass(epoch, instructions);
        piece.instructions += instructions;
        if is_last {
            slices::put(&mut self.slices, epoch, slice);
            if self.slices.len() >= SLICES_BYTES {
                piece.slices.push(self.spool.store(&self.slices)?);
                self.slices.clear();
            }
        } else {
            let mut bytes = Vec::new();
            slices::put(&mut bytes, epoch, slice);
            piece.slices.push(self.spool.store(&bytes)?);
        }
        Ok(0)
    }

    /// The segment with this number begins, and the one before ends if it has not.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn begin(&mut self, number: u64, epoch: u64) -> Result<(), TraceError> {
        if mem::replace(&mut self.has_begun, true) {
            return self.next(Piece::segment(number, epoch));
        }
        self.pieces[0].number = Some(number);
        Ok(())
    }

    /// The latest segment ends, if it has not.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn end(&mut self, epoch: u64) -> Result<(), TraceError> {
        if self.pieces.last().is_some_and(|last| last.number.is_some()) {
            self.next(Piece::between(epoch))?;
        }
        Ok(())
    }

    /// The last piece is over, and this one comes.
    fn next(&mut self, piece: Piece) -> Result<(), TraceError> {
        if let Some(last) = self.pieces.last_mut() {
            if !self.slices.is_empty() {
                last.slices.push(self.spool.store(&self.slices)?);
                self.slices.clear();
            }
            last.end = piece.start;
            let Gap { before, events, touched, places, .. } = &mut last.gap;
            touched.shrink_to_fit();
            *places = FxHashMap::default();
            for log in [before, events].into_iter().chain(&mut last.events) {
                log.settle(&mut self.spool)?;
            }
        }
        self.pieces.pop_if(|last| last.is_empty());
        self.pieces.push(piece);
        Ok(())
    }

    /// Of the segments only those remain whose number is `chosen`. In place of the others stand gaps, and the
    /// pages that they touched first.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn thin(&mut self, chosen: impl Fn(u64) -> bool, epoch: u64) -> Result<(), TraceError> {
        self.end(epoch)?;
        self.pieces.pop_if(|last| last.is_empty());
        let mut open: Option<Piece> = None;
        for mut piece in mem::take(&mut self.pieces) {
            if piece.number.is_some_and(&chosen) {
                if let Some(mut gap) = open.take() {
                    gap.gap.close(&mut self.spool)?;
                    self.pieces.push(gap);
                }
                self.pieces.push(piece);
                continue;
            }
            piece.drop_slices(&mut self.spool);
            match &mut open {
                Some(gap) => gap.gap.join(piece.gap, &mut self.spool)?,
                None if piece.gap.start.is_some() => open = Some(piece),
                None => self.pieces.push(piece),
            }
        }
        if let Some(mut gap) = open {
            gap.gap.close(&mut self.spool)?;
            self.pieces.push(gap);
        }
        self.next(Piece::between(epoch))
    }

    /// Instructions of the segments so far.
    pub fn instructions(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.instructions).sum()
    }

    /// Segments so far.
    pub fn count(&self) -> usize {
        let mut numbers: Vec<u64> = self.pieces.iter().filter_map(|piece| piece.number).collect();
        numbers.dedup();
        if self.has_begun { numbers.len() } else { 0 }
    }

    /// Writes everything to the trace.
    ///
    /// # Errors
    /// When the disk fails. What was written until then is good.
    pub fn write(mut self, writer: &mut Writer) -> Result<(), TraceError> {
        // What is not yet aside is of the last piece, and needs no room there.
        let last = mem::take(&mut self.slices);
        let mut bytes = Vec::new();
        for piece in mem::take(&mut self.pieces) {
            piece.write(writer, &mut self.spool, &mut bytes)?;
        }
        write_slices(&last, writer, &self.spool)
    }
}

impl Piece {
    fn segment(number: u64, epoch: u64) -> Piece {
        Piece { number: Some(number), ..Piece::between(epoch) }
    }

    fn between(epoch: u64) -> Piece {
        Piece { start: epoch, end: u64::MAX, events: Some(Log::default()), ..Piece::default() }
    }

    fn is_empty(&self) -> bool {
        self.number.is_none() && self.events.as_ref().is_some_and(|events| events.0.is_empty())
    }

    /// Forgets its slices: it is no segment any more.
    fn drop_slices(&mut self, spool: &mut Spool) {
        self.number = None;
        self.instructions = 0;
        for slices in self.slices.drain(..) {
            spool.forget(slices);
        }
        if let Some(events) = self.events.take() {
            events.forget(spool);
        }
    }

    fn write(
        self,
        writer: &mut Writer,
        spool: &mut Spool,
        bytes: &mut Vec<u8>,
    ) -> Result<(), TraceError> {
        if let Some(events) = self.events {
            events.write(writer, spool, bytes)?;
        } else {
            let Gap { before, start, instructions, events, .. } = self.gap;
            before.write(writer, spool, bytes)?;
            if let Some(start) = start {
                writer.event(start, &Event::Gap { instructions })?;
            }
            events.write(writer, spool, bytes)?;
        }
        for slices in self.slices {
            spool.take(slices, bytes)?;
            write_slices(bytes, writer, spool)?;
        }
        Ok(())
    }
}

impl Gap {
    /// Instructions were executed that are not to be in the trace.
    fn pass(&mut self, epoch: u64, instructions: u64) {
        self.start.get_or_insert(epoch);
        // A late slice does not turn the clock back: what follows it would stand before what has been.
        self.latest = self.latest.max(epoch);
        if self.events.0.is_empty() {
            self.first = self.first.max(epoch);
        }
        self.instructions = self.instructions.saturating_add(instructions);
    }

    /// Something happened.
    fn event(&mut self, epoch: u64, event: &Event, spool: &mut Spool) -> Result<(), TraceError> {
        if self.start.is_none() {
            return self.before.push(epoch, event, spool);
        }
        self.populate(spool)?;
        self.events.push(epoch, event, spool)
    }

    /// Turns the touched pages into events: something else happens.
    fn populate(&mut self, spool: &mut Spool) -> Result<(), TraceError> {
        self.places.clear();
        let Gap { touched, events, latest: epoch, .. } = self;
        let mut latest: Option<(u64, u64, bool)> = None;
        for (page, stored) in touched.drain(..) {
            match &mut latest {
                Some((first, pages, store)) if *first + *pages == page && *store == stored => {
                    *pages += 1;
                }
                _ => {
                    if let Some(range) = latest.replace((page, 1, stored)) {
                        events.push(*epoch, &populate(range), spool)?;
                    }
                }
            }
        }
        latest.map_or(Ok(()), |range| events.push(*epoch, &populate(range), spool))
    }

    /// Goes on with another.
    fn join(&mut self, other: Gap, spool: &mut Spool) -> Result<(), TraceError> {
        if !other.before.0.is_empty() {
            self.populate(spool)?;
            self.events.0.extend(other.before.0);
        }
        if other.start.is_none() {
            return Ok(());
        }
        self.latest = other.first;
        if !other.events.0.is_empty() {
            self.populate(spool)?;
            self.events.0.extend(other.events.0);
        }
        self.instructions = self.instructions.saturating_add(other.instructions);
        self.latest = other.latest;
        self.touched.extend(other.touched);
        Ok(())
    }

    /// What follows is in the trace.
    fn close(&mut self, spool: &mut Spool) -> Result<(), TraceError> {
        self.populate(spool)?;
        self.places = FxHashMap::default();
        self.touched = Vec::new();
        self.first = self.start.unwrap_or(0);
        self.latest = self.first;
        Ok(())
    }
}

fn populate((first, pages, store): (u64, u64, bool)) -> Event {
    Event::Populate { address: first << 12, length: pages << 12, store }
}

impl Log {
    fn push(&mut self, epoch: u64, event: &Event, spool: &mut Spool) -> Result<(), TraceError> {
        if !matches!(self.0.last(), Some(Part::Here(_))) {
            self.0.push(Part::Here(Vec::new()));
        }
        if let Some(Part::Here(bytes)) = self.0.last_mut() {
            encode_event(bytes, epoch, event);
        }
        self.put_aside(EVENTS_BYTES, spool)
    }

    /// No more will come: keeps little of it in memory.
    fn settle(&mut self, spool: &mut Spool) -> Result<(), TraceError> {
        self.put_aside(SETTLED_BYTES, spool)
    }

    /// Puts the last part aside if it is so long.
    fn put_aside(&mut self, length: usize, spool: &mut Spool) -> Result<(), TraceError> {
        if let Some(part) = self.0.last_mut()
            && let Part::Here(bytes) = part
        {
            if bytes.len() >= length {
                *part = Part::Aside(spool.store(bytes)?);
            } else if length == SETTLED_BYTES {
                bytes.shrink_to_fit();
            }
        }
        Ok(())
    }

    fn forget(self, spool: &mut Spool) {
        for part in self.0 {
            if let Part::Aside(stored) = part {
                spool.forget(stored);
            }
        }
    }

    fn write(
        self,
        writer: &mut Writer,
        spool: &mut Spool,
        buffer: &mut Vec<u8>,
    ) -> Result<(), TraceError> {
        for part in self.0 {
            match part {
                Part::Here(bytes) => *buffer = bytes,
                Part::Aside(stored) => spool.take(stored, buffer)?,
            }
            for decoded in decode_events(buffer) {
                let (epoch, event) = decoded.map_err(|what| spool.damaged(what))?;
                writer.event(epoch, &event)?;
            }
        }
        Ok(())
    }
}

/// Writes slices that were put aside to the trace.
fn write_slices(mut bytes: &[u8], writer: &mut Writer, spool: &Spool) -> Result<(), TraceError> {
    let mut slice = Slice::default();
    while let Some(epoch) = slices::take(&mut bytes, &mut slice) {
        writer.slice(epoch, &slice)?;
    }
    if bytes.is_empty() { Ok(()) } else { Err(spool.damaged("a slice is cut off")) }
}

#[cfg(test)]
mod tests {
    use flatwalk_trace::{Access, Header, Instruction, Item, Operands, Reader, Source};

    use super::*;
    use crate::output::Output;

    /// An empty sample's trace, whose blocks are a load and a store, on the code page 0x400.
    fn begin(name: &str) -> (Output, std::path::PathBuf) {
        let file = format!("flatwalk-sample-{}-{name}.fwt", std::process::id());
        let path = std::env::temp_dir().join(file);
        let header = Header { segment_instructions: Some(3), ..Header::default() };
        let mut output = Output::create(&path, header).unwrap();
        for store in [false, true] {
            let pc = 0x40_0000 + u64::from(store);
            let instruction = Instruction { pc, length: 1, operands: Operands::Unknown };
            let access = Access { instruction: 0, size: 8, store };
            output
                .define(Block { instructions: [instruction].into(), accesses: [access].into() })
                .unwrap();
        }
        (output, path)
    }

    /// Loads (`false`) and stores of pages by thread 7.
    fn slice(accesses: &[(u64, bool)]) -> Slice {
        Slice {
            thread: 7,
            blocks: accesses.iter().map(|&(_, store)| u32::from(store)).collect(),
            addresses: accesses.iter().map(|&(page, _)| page << 12).collect(),
        }
    }

    fn sample(output: &mut Output) -> &mut Sample {
        output.sample.as_mut().unwrap()
    }

    /// What is in the trace, in words.
    fn finish(output: Output, path: &Path) -> Vec<String> {
        output.finish().unwrap();
        let mut reader = Reader::open(path).unwrap();
        reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        let mut found = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            found.push(match item {
                Item::Define { .. } => continue,
                Item::Slice(slice) => {
                    let pages: Vec<_> = slice.addresses.iter().map(|at| at >> 12).collect();
                    format!("{}: {pages:x?}", reader.epoch())
                }
                Item::Event(Event::Gap { instructions }) => format!("gap of {instructions}"),
                Item::Event(Event::Populate { address, length, store }) => {
                    format!("{:x}+{} {store}", address >> 12, length >> 12)
                }
                Item::Event(Event::Marker { name }) => name,
                Item::Event(event) => panic!("{event:?}"),
            });
        }
        std::fs::remove_file(path).unwrap();
        found
    }

    fn marker(name: &str) -> Event {
        Event::Marker { name: name.into() }
    }

    #[test]
    fn thinning_reads_and_writes_no_slices() {
        let (mut output, path) = begin("traffic");
        let segment = |output: &mut Output, number: u64| {
            sample(output).begin(number, 2 * number + 1).unwrap();
            let accesses: Vec<_> = (0..300_000).map(|at| (0x1000 + at % 64, false)).collect();
            for _ in 0..4 {
                assert_eq!(output.slice(2 * number + 1, &slice(&accesses)).unwrap(), 0);
            }
        };
        for number in 0..8 {
            segment(&mut output, number);
        }
        let sampled = sample(&mut output);
        sampled.end(17).unwrap();
        let (written, length) = (sampled.spool.traffic.0, sampled.spool.length());
        assert!(written > 8 * 4 * 300_000 * 4);
        sampled.thin(|number| number % 2 == 1, 18).unwrap();
        assert_eq!(sampled.spool.traffic, (written, 0));
        // What comes takes the place of what went.
        for number in [9, 11, 13, 15] {
            segment(&mut output, number);
        }
        let sampled = sample(&mut output);
        sampled.end(33).unwrap();
        assert_eq!(sampled.spool.traffic, (written + written / 2, 0));
        assert_eq!(sampled.spool.length(), length);
        sampled.thin(|number| number % 4 == 3, 34).unwrap();
        assert_eq!(sampled.spool.traffic, (written + written / 2, 0));
        assert_eq!((sampled.count(), sampled.instructions()), (4, 4 * 4 * 300_000));
        let mut sampled = output.sample.take().unwrap();
        let mut bytes = Vec::new();
        let mut writer = Writer::create(&path, Header::default()).unwrap();
        for piece in mem::take(&mut sampled.pieces) {
            if piece.number.is_some() {
                let before = sampled.spool.traffic.1;
                for stored in piece.slices {
                    sampled.spool.take(stored, &mut bytes).unwrap();
                }
                // A segment is read once, and nothing else is.
                assert_eq!(sampled.spool.traffic.1 - before, written / 8);
            } else {
                piece.write(&mut writer, &mut sampled.spool, &mut bytes).unwrap();
            }
        }
        assert_eq!(sampled.spool.traffic, (written + written / 2, written / 2));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_gap_has_what_happened_and_what_was_touched() {
        let (mut output, path) = begin("gap");
        let (load, store) = (false, true);
        output.event(1, &marker("start")).unwrap();
        // Segment 0: page 20 is new by a load and a store, 21 by a store, 22 in another piece.
        sample(&mut output).begin(0, 2).unwrap();
        output.slice(2, &slice(&[(0x20, load), (0x21, store), (0x20, store)])).unwrap();
        output.event(3, &marker("in 0")).unwrap();
        output.slice(3, &slice(&[(0x22, load), (0x21, load)])).unwrap();
        // Segment 1 adjoins.
        sample(&mut output).begin(1, 4).unwrap();
        output.event(5, &marker("in 1")).unwrap();
        output.slice(5, &slice(&[(0x22, store), (0x23, load)])).unwrap();
        // Segment 2 adjoins; its gap has an event in front of it.
        sample(&mut output).begin(2, 6).unwrap();
        output.event(7, &marker("before 2")).unwrap();
        output.slice(7, &slice(&[(0x23, load), (0x24, load)])).unwrap();
        sample(&mut output).begin(3, 8).unwrap();
        output.slice(8, &slice(&[(0x25, load)])).unwrap();
        sample(&mut output).end(9).unwrap();
        sample(&mut output).thin(|number| number % 2 == 1, 10).unwrap();
        output.event(11, &Event::Gap { instructions: 0 }).unwrap();
        output.event(12, &marker("between")).unwrap();
        // Too late: the caller has to count it.
        assert_eq!(output.slice(7, &slice(&[(0x99, load)])).unwrap(), 1);
        assert_eq!(output.slice(12, &slice(&[(0x99, load)])).unwrap(), 1);
        output.event(13, &Event::Gap { instructions: 50 }).unwrap();
        sample(&mut output).begin(5, 14).unwrap();
        output.slice(14, &slice(&[(0x26, store), (0x99, store)])).unwrap();
        sample(&mut output).end(15).unwrap();
        output.event(16, &Event::Gap { instructions: 7 }).unwrap();
        output.event(17, &marker("after")).unwrap();
        sample(&mut output).begin(7, 18).unwrap();
        output.slice(18, &slice(&[(0x99, load)])).unwrap();
        // Late, but not too late.
        assert_eq!(output.slice(8, &slice(&[(0x25, store)])).unwrap(), 0);
        sample(&mut output).thin(|number| number % 4 == 3, 19).unwrap();
        assert_eq!(sample(&mut output).count(), 2);
        let expected = [
            "start",
            "gap of 9",
            "400+1 false",
            "20+2 true",
            "in 0",
            "22+1 false",
            "in 1",
            "23+1 false",
            "before 2",
            "24+1 false",
            "8: [25, 25]",
            "gap of 59",
            "between",
            "26+1 true",
            "99+1 true",
            "after",
            "18: [99]",
        ];
        assert_eq!(finish(output, &path), expected);
    }

    #[test]
    fn a_late_slice_does_not_turn_the_clock_back() {
        let (mut output, path) = begin("late");
        let (load, store) = (false, true);
        sample(&mut output).begin(0, 1).unwrap();
        output.slice(1, &slice(&[(0x20, load)])).unwrap();
        output.event(10, &marker("ten")).unwrap();
        output.slice(10, &slice(&[(0x30, store)])).unwrap();
        assert_eq!(output.slice(5, &slice(&[(0x31, load)])).unwrap(), 0);
        output.event(11, &marker("eleven")).unwrap();
        sample(&mut output).begin(1, 12).unwrap();
        output.slice(13, &slice(&[(0x32, load)])).unwrap();
        output.slice(12, &slice(&[(0x33, load)])).unwrap();
        let gap = &output.sample.as_ref().unwrap().pieces[1].gap;
        assert_eq!((gap.first, gap.latest), (13, 13));
        sample(&mut output).thin(|number| number > 1, 14).unwrap();
        let events: Vec<_> = output.sample.as_ref().unwrap().pieces[0]
            .gap
            .events
            .0
            .iter()
            .flat_map(|part| match part {
                Part::Here(bytes) => decode_events(bytes).map(|event| event.unwrap().0),
                Part::Aside(_) => unreachable!("there are few"),
            })
            .collect();
        assert!(events.is_sorted(), "{events:?}");
        let expected =
            ["gap of 5", "400+1 false", "20+1 false", "ten", "30+1 true", "eleven", "32+2 false"];
        assert_eq!(finish(output, &path), expected);
    }

    #[test]
    fn many_events_stay_in_order() {
        let (mut output, path) = begin("events");
        let mut epoch = 0;
        let mut expected = Vec::new();
        for number in 0..8 {
            sample(&mut output).begin(number, epoch).unwrap();
            for _ in 0..5000 {
                epoch += 1;
                let name = format!("event {epoch}, of which many fill what is kept in memory");
                output.event(epoch, &marker(&name)).unwrap();
                output.slice(epoch, &slice(&[(1, true)])).unwrap();
                expected.push(name);
            }
            if let 3 | 7 = number {
                sample(&mut output)
                    .thin(|segment| segment % number.div_ceil(2) == 0, epoch + 1)
                    .unwrap();
            }
            epoch += 1;
        }
        assert_eq!(sample(&mut output).count(), 2);
        let mut found = finish(output, &path);
        found.retain(|item| item.starts_with("event"));
        assert_eq!(found, expected);
    }
}
