//! Events in bytes: a varint step in epochs, a tag, the fields.

use super::bytes::{Cursor, Malformed, UNKNOWN_EVENT, put_string, put_varint};
use crate::model::{Advice, Backing, Event, Protection};

/// Longest accepted text of an event, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 1 << 16;

/// Builds one payload after another.
#[derive(Default)]
pub(crate) struct Encoder {
    /// The payload under construction.
    pub out: Vec<u8>,
    pub count: u64,
    pub first_epoch: u64,
    pub last_epoch: u64,
    /// The largest epoch of any event so far.
    latest: u64,
    late: bool,
}

impl Encoder {
    /// Whether an event that starts `epoch` may be appended: late events have payloads of one epoch.
    pub(crate) fn fits(&self, epoch: u64) -> bool {
        let late = epoch < self.latest;
        self.count == 0 || (late == self.late && (!late || epoch == self.last_epoch))
    }

    /// Appends an event that fits.
    pub(crate) fn push(&mut self, epoch: u64, event: &Event) {
        if self.count == 0 {
            self.first_epoch = epoch;
            self.last_epoch = epoch;
            self.late = epoch < self.latest;
        }
        put_varint(&mut self.out, epoch - self.last_epoch);
        put(&mut self.out, event);
        self.last_epoch = epoch;
        self.latest = self.latest.max(epoch);
        self.count += 1;
    }
}

/// Appends an event and the epoch that it starts, outside of a trace: in as many bytes as in one.
pub fn encode_event(out: &mut Vec<u8>, epoch: u64, event: &Event) {
    put_varint(out, epoch);
    put(out, event);
}

/// The events that [`encode_event`] appended, with their epochs. After an error, which says what is wrong
/// with the bytes, nothing follows.
pub fn decode_events(bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Event), &'static str>> {
    let mut cursor = Cursor::new(bytes);
    let mut is_good = true;
    std::iter::from_fn(move || {
        (is_good && cursor.remaining() > 0).then(|| {
            let decoded = cursor.varint().and_then(|epoch| Ok((epoch, get(&mut cursor)?)));
            is_good = decoded.is_ok();
            decoded
        })
    })
}

fn protection_bits(protection: Protection) -> u8 {
    u8::from(protection.read) | u8::from(protection.write) << 1 | u8::from(protection.execute) << 2
}

fn protection(bits: u8) -> Result<Protection, Malformed> {
    if bits > 7 {
        return Err("a protection has unknown bits");
    }
    Ok(Protection { read: bits & 1 != 0, write: bits & 2 != 0, execute: bits & 4 != 0 })
}

/// The name under which an event of this kind is counted.
pub(crate) fn kind_name(event: &Event) -> &'static str {
    match event {
        Event::Map { .. } => "map",
        Event::Unmap { .. } => "unmap",
        Event::Remap { .. } => "remap",
        Event::Protect { .. } => "protect",
        Event::Advise { .. } => "advise",
        Event::Break { .. } => "break",
        Event::Populate { .. } => "populate",
        Event::ThreadStart { .. } => "thread_start",
        Event::ThreadExit { .. } => "thread_exit",
        Event::Wake { .. } => "wake",
        Event::Woken { .. } => "woken",
        Event::Marker { .. } => "marker",
        Event::Root { .. } => "root",
        Event::Entry { .. } => "entry",
        Event::Gap { .. } => "gap",
        Event::Name { .. } => "name",
    }
}

/// Appends an event without its epoch.
pub(crate) fn put(out: &mut Vec<u8>, event: &Event) {
    let mut tagged = |tag: u8, numbers: &[u64], bytes: &[u8]| {
        out.push(tag);
        for &number in numbers {
            put_varint(out, number);
        }
        out.extend_from_slice(bytes);
    };
    match event {
        Event::Map { address, length, protection, backing, shared } => {
            let backing = match backing {
                Backing::Anonymous => 0,
                Backing::File => 1,
                Backing::Stack => 2,
                Backing::Heap => 3,
            };
            tagged(
                1,
                &[*address, *length],
                &[protection_bits(*protection), backing, u8::from(*shared)],
            );
        }
        Event::Unmap { address, length } => tagged(2, &[*address, *length], &[]),
        Event::Remap { from, from_length, to, to_length } => {
            tagged(3, &[*from, *from_length, *to, *to_length], &[]);
        }
        Event::Protect { address, length, protection } => {
            tagged(4, &[*address, *length], &[protection_bits(*protection)]);
        }
        Event::Advise { address, length, advice } => {
            let advice = match advice {
                Advice::HugePage => 0,
                Advice::NoHugePage => 1,
                Advice::DontNeed => 2,
                Advice::Populate => 3,
            };
            tagged(5, &[*address, *length], &[advice]);
        }
        Event::Break { from, to } => tagged(6, &[*from, *to], &[]),
        Event::Populate { address, length, store } => {
            tagged(7, &[*address, *length], &[u8::from(*store)]);
        }
        Event::ThreadStart { thread } => tagged(8, &[u64::from(*thread)], &[]),
        Event::ThreadExit { thread } => tagged(9, &[u64::from(*thread)], &[]),
        Event::Marker { name } => {
            tagged(10, &[], &[]);
            put_string(out, name);
        }
        Event::Root { cr3, cr4 } => tagged(11, &[*cr3, *cr4], &[]),
        Event::Entry { address, level, value } => tagged(12, &[*address, *value], &[*level]),
        Event::Gap { instructions } => tagged(13, &[*instructions], &[]),
        Event::Name { address, length, offset, name, build_id } => {
            tagged(14, &[*address, *length, *offset], &[]);
            put_string(out, name);
            put_string(out, build_id);
        }
        Event::Wake { thread, number } => tagged(15, &[u64::from(*thread), *number], &[]),
        Event::Woken { thread, number } => tagged(16, &[u64::from(*thread), *number], &[]),
    }
}

fn flag(cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
    match cursor.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err("a flag is neither 0 nor 1"),
    }
}

fn thread(cursor: &mut Cursor<'_>) -> Result<u32, Malformed> {
    cursor.bounded(u64::from(u32::MAX)).map(|thread| thread as u32)
}

fn level(cursor: &mut Cursor<'_>) -> Result<u8, Malformed> {
    match cursor.byte()? {
        level @ 1..=5 => Ok(level),
        _ => Err("a page-table entry is of a level that no table has"),
    }
}

/// Reads what [`put`] wrote.
pub(crate) fn get(cursor: &mut Cursor<'_>) -> Result<Event, Malformed> {
    Ok(match cursor.byte()? {
        1 => Event::Map {
            address: cursor.varint()?,
            length: cursor.varint()?,
            protection: protection(cursor.byte()?)?,
            backing: match cursor.byte()? {
                0 => Backing::Anonymous,
                1 => Backing::File,
                2 => Backing::Stack,
                3 => Backing::Heap,
                _ => return Err("a mapping's backing is unknown"),
            },
            shared: flag(cursor)?,
        },
        2 => Event::Unmap { address: cursor.varint()?, length: cursor.varint()? },
        3 => Event::Remap {
            from: cursor.varint()?,
            from_length: cursor.varint()?,
            to: cursor.varint()?,
            to_length: cursor.varint()?,
        },
        4 => Event::Protect {
            address: cursor.varint()?,
            length: cursor.varint()?,
            protection: protection(cursor.byte()?)?,
        },
        5 => Event::Advise {
            address: cursor.varint()?,
            length: cursor.varint()?,
            advice: match cursor.byte()? {
                0 => Advice::HugePage,
                1 => Advice::NoHugePage,
                2 => Advice::DontNeed,
                3 => Advice::Populate,
                _ => return Err("an advice is unknown"),
            },
        },
        6 => Event::Break { from: cursor.varint()?, to: cursor.varint()? },
        7 => Event::Populate {
            address: cursor.varint()?,
            length: cursor.varint()?,
            store: flag(cursor)?,
        },
        8 => Event::ThreadStart { thread: thread(cursor)? },
        9 => Event::ThreadExit { thread: thread(cursor)? },
        10 => Event::Marker { name: cursor.string()? },
        11 => Event::Root { cr3: cursor.varint()?, cr4: cursor.varint()? },
        12 => {
            let (address, value) = (cursor.varint()?, cursor.varint()?);
            Event::Entry { address, value, level: level(cursor)? }
        }
        13 => Event::Gap { instructions: cursor.varint()? },
        14 => Event::Name {
            address: cursor.varint()?,
            length: cursor.varint()?,
            offset: cursor.varint()?,
            name: cursor.string()?,
            build_id: cursor.string()?,
        },
        15 => Event::Wake { thread: thread(cursor)?, number: cursor.varint()? },
        16 => Event::Woken { thread: thread(cursor)?, number: cursor.varint()? },
        _ => return Err(UNKNOWN_EVENT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_outside_of_a_trace_come_back_as_they_were() {
        let events = [
            (3, Event::Unmap { address: 1 << 40, length: 1 << 12 }),
            (3, Event::Marker { name: "x".into() }),
            (u64::MAX, Event::Populate { address: 0, length: 1, store: true }),
            (0, Event::Gap { instructions: u64::MAX }),
        ];
        let mut bytes = Vec::new();
        for (epoch, event) in &events {
            encode_event(&mut bytes, *epoch, event);
        }
        let decoded: Result<Vec<_>, _> = decode_events(&bytes).collect();
        assert_eq!(decoded.as_deref(), Ok(&events[..]));
        let cut: Vec<_> = decode_events(&bytes[..bytes.len() - 1]).collect();
        assert_eq!(cut.len(), events.len());
        assert!(cut.iter().position(Result::is_err) == Some(events.len() - 1));
    }
}
