//! Fits a trace into a narrower address space.
//!
//! Programs are linked for 48-bit addresses; a three-level table translates 39. A program built for
//! such a machine would have its segments closer together, so the 1 GiB regions that a trace touches
//! are moved, in ascending order, to the lowest addresses. Offsets within a gigabyte, and so all
//! that levels 1 and 2 see, stay as they are.

use flatwalk_paging::Geometry;
use flatwalk_trace::{Backing, Event, Protection};

const REGION_SHIFT: u32 = 30;
const REGION: u64 = 1 << REGION_SHIFT;

/// Moves touched regions to the bottom of the address space.
#[derive(Clone, Debug)]
pub struct Relocation {
    /// `(first old byte, byte after the last, first new byte)`, ascending, 1 GiB aligned.
    pieces: Vec<(u64, u64, u64)>,
}

/// A part of a range that was touched: how far into the range, where it went, and its bytes.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: u64,
    place: u64,
    length: u64,
}

impl Part {
    /// How far into the range it ends.
    fn end(self) -> u64 {
        self.offset + self.length
    }
}

impl Relocation {
    /// What has to move so that `touched` (ranges `[start, end)`, ascending) fits; `None` if it does
    /// as it is. The error is the number of bytes needed where even that is too much.
    ///
    /// # Errors
    /// The number of bytes of address space that would be needed.
    pub fn new(touched: &[(u64, u64)], geometry: Geometry) -> Result<Option<Self>, u64> {
        let fits = |&(start, end): &(u64, u64)| {
            geometry.is_canonical(start) && geometry.is_canonical(end - 1)
        };
        if touched.iter().all(fits) {
            return Ok(None);
        }
        let mut pieces: Vec<(u64, u64, u64)> = Vec::new();
        let mut next = 0;
        for &(start, end) in touched {
            let start = start & !(REGION - 1);
            let end = ((end - 1) | (REGION - 1)).wrapping_add(1);
            match pieces.last_mut() {
                Some(last) if start <= last.1 && last.1 != 0 => {
                    next += end.wrapping_sub(last.1);
                    last.1 = end;
                }
                _ => {
                    pieces.push((start, end, next));
                    next += end.wrapping_sub(start);
                }
            }
        }
        let room = 1 << (geometry.address_bits() - 1);
        if next > room { Err(next) } else { Ok(Some(Self { pieces })) }
    }

    fn piece(&self, address: u64) -> Option<(u64, u64, u64)> {
        let after = self.pieces.partition_point(|p| p.0 <= address);
        let piece = *self.pieces.get(after.checked_sub(1)?)?;
        (address <= piece.1.wrapping_sub(1)).then_some(piece)
    }

    /// Where `address` went. One that the trace does not touch stays.
    #[inline]
    pub fn address(&self, address: u64) -> u64 {
        self.piece(address).map_or(address, |(start, _, new)| address - start + new)
    }

    /// What went to `address`: the inverse of [`Self::address`]. One that nothing went to stays.
    pub fn original(&self, address: u64) -> u64 {
        let after = self.pieces.partition_point(|&(_, _, new)| new <= address);
        let piece = after.checked_sub(1).map(|at| self.pieces[at]);
        let within = piece.filter(|&(start, end, new)| address - new < end.wrapping_sub(start));
        within.map_or(address, |(start, _, new)| address - new + start)
    }

    /// The parts of a range that were touched regions.
    fn parts(&self, address: u64, length: u64) -> Vec<Part> {
        let end = address.saturating_add(length);
        let overlap = |&(start, stop, new): &(u64, u64, u64)| {
            let from = address.max(start);
            let to = end.min(stop.wrapping_sub(1).saturating_add(1));
            let part =
                || Part { offset: from - address, place: from - start + new, length: to - from };
            (from < to).then(part)
        };
        self.pieces.iter().filter_map(overlap).collect()
    }

    /// What becomes of pages that move from a range to another, both as address and length.
    fn remap(&self, (from, from_length): (u64, u64), (to, to_length): (u64, u64)) -> Vec<Event> {
        let (sources, targets) = (self.parts(from, from_length), self.parts(to, to_length));
        // Nothing is moved away: the pages are then at two places.
        if from_length == 0 {
            let copy = |target: &Part| Event::Remap {
                from: self.address(from + target.offset),
                from_length: 0,
                to: target.place,
                to_length: target.length,
            };
            return targets.iter().map(copy).collect();
        }
        let mut events = Vec::new();
        // How far into each target pages have come.
        let mut filled: Vec<u64> = targets.iter().map(|target| target.offset).collect();
        let map = |target: &Part, from: u64, to: u64| {
            (from < to).then(|| Event::Map {
                address: target.place + (from - target.offset),
                length: to - from,
                protection: Protection { read: true, write: true, execute: false },
                backing: Backing::Anonymous,
                shared: false,
            })
        };
        for source in &sources {
            let mut at = source.offset;
            let unmap = |from: u64, to: u64| {
                let address = source.place + (from - source.offset);
                (from < to).then(|| Event::Unmap { address, length: to - from })
            };
            for (target, filled) in targets.iter().zip(&mut filled) {
                let first = source.offset.max(target.offset);
                let last = source.end().min(target.end());
                if first >= last {
                    continue;
                }
                events.extend(unmap(at, first));
                // What was never touched had no pages.
                events.extend(map(target, *filled, first));
                let grown = if last == from_length { target.end() } else { last };
                events.push(Event::Remap {
                    from: source.place + (first - source.offset),
                    from_length: last - first,
                    to: target.place + (first - target.offset),
                    to_length: grown - first,
                });
                (at, *filled) = (last, grown);
            }
            events.extend(unmap(at, source.end()));
        }
        let rest = targets.iter().zip(filled);
        events.extend(rest.filter_map(|(target, filled)| map(target, filled, target.end())));
        events
    }

    /// The same event in the new place: one for each piece that it concerns.
    pub fn event(&self, event: &Event) -> Vec<Event> {
        let ranges = |address, length, make: &dyn Fn(u64, u64) -> Event| {
            self.parts(address, length).iter().map(|part| make(part.place, part.length)).collect()
        };
        match *event {
            Event::Map { address, length, protection, backing, shared } => {
                ranges(address, length, &|address, length| Event::Map {
                    address,
                    length,
                    protection,
                    backing,
                    shared,
                })
            }
            Event::Unmap { address, length } => {
                ranges(address, length, &|address, length| Event::Unmap { address, length })
            }
            Event::Protect { address, length, protection } => {
                ranges(address, length, &|address, length| Event::Protect {
                    address,
                    length,
                    protection,
                })
            }
            Event::Advise { address, length, advice } => {
                ranges(address, length, &|address, length| Event::Advise {
                    address,
                    length,
                    advice,
                })
            }
            Event::Populate { address, length, store } => {
                ranges(address, length, &|address, length| Event::Populate {
                    address,
                    length,
                    store,
                })
            }
            Event::Remap { from, from_length, to, to_length } => {
                self.remap((from, from_length), (to, to_length))
            }
            Event::Break { from, to } => {
                let (low, high) = (from.min(to), from.max(to));
                let moved = |part: Part| {
                    let (low, high) = (part.place, part.place + part.length);
                    if to >= from {
                        Event::Break { from: low, to: high }
                    } else {
                        Event::Break { from: high, to: low }
                    }
                };
                self.parts(low, high - low).into_iter().map(moved).collect()
            }
            Event::ThreadStart { .. }
            | Event::ThreadExit { .. }
            | Event::Wake { .. }
            | Event::Woken { .. }
            | Event::Marker { .. }
            | Event::Root { .. }
            | Event::Entry { .. }
            | Event::Gap { .. }
            | Event::Name { .. } => {
                vec![event.clone()]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn pages_move_as_far_as_both_ends_were_touched() {
        const H: u64 = 0x3f00_0000_0000;
        const MIB: u64 = 1 << 20;
        // One gigabyte, and two in one, which go to 0, and to 1 and 2 GiB.
        let touched = [(H, H + MIB), (2 * H, 2 * H + MIB), (2 * H + GIB, 2 * H + GIB + MIB)];
        let moved = Relocation::new(&touched, Geometry::X86_3).unwrap().unwrap();
        let [one, two] = [moved.address(H), moved.address(2 * H)];
        let remap = |from, from_length, to, to_length| {
            moved.event(&Event::Remap { from, from_length, to, to_length })
        };
        let went =
            |from, from_length, to, to_length| Event::Remap { from, from_length, to, to_length };
        let mapped = |address, length| Event::Map {
            address,
            length,
            protection: Protection { read: true, write: true, execute: false },
            backing: Backing::Anonymous,
            shared: false,
        };
        let half = GIB / 2;
        // It grows, also into what was never touched.
        assert_eq!(remap(H, half, 2 * H, half), [went(one, half, two, half)]);
        assert_eq!(remap(H, half, 2 * H, GIB), [went(one, half, two, GIB)]);
        assert_eq!(remap(H, half, 2 * H, 3 * GIB), [went(one, half, two, 2 * GIB)]);
        // It shrinks, and what is left over goes.
        let gone = |address, length| Event::Unmap { address, length };
        assert_eq!(
            remap(2 * H, 2 * GIB, H, 2 * GIB),
            [went(two, GIB, one, GIB), gone(two + GIB, GIB)],
            "to a gigabyte that was touched, and one that was not"
        );
        assert_eq!(
            remap(2 * H, GIB, H, half),
            [went(two, half, one, half), gone(two + half, half)]
        );
        // Nothing was touched where it comes from, in part or at all.
        assert_eq!(
            remap(H - half, GIB, 2 * H, GIB),
            [mapped(two, half), went(one, half, two + half, half)]
        );
        assert_eq!(remap(5 * GIB, half, H, half), [mapped(one, half)]);
        assert_eq!(remap(H, half, 5 * GIB, half), [gone(one, half)]);
        // The same pages a second time.
        assert_eq!(remap(H, 0, 2 * H, half), [went(one, 0, two, half)]);
    }

    #[test]
    fn what_fits_stays() {
        let touched = [(0x40_0000, 0x60_0000), (GIB * 200, GIB * 201)];
        assert!(Relocation::new(&touched, Geometry::X86_3).unwrap().is_none());
    }

    #[test]
    fn touched_gigabytes_move_down_in_order() {
        let high = 0x7f00_0000_0000;
        let touched = [
            (0x40_0000, 0x60_0000),
            (0x40_0020_0000, 0x40_0040_0000),
            (high + 2 * GIB - 0x20_0000, high + 2 * GIB),
            (high + 2 * GIB, high + 2 * GIB + 0x20_0000),
            (0xffff_ffff_ff60_0000, 0xffff_ffff_ff80_0000),
        ];
        let moved = Relocation::new(&touched, Geometry::X86_3).unwrap().unwrap();
        assert_eq!(moved.address(0x40_1234), 0x40_1234);
        assert_eq!(moved.address(0x40_0030_0000), GIB + 0x30_0000);
        assert_eq!(moved.address(high + 2 * GIB - 8), 3 * GIB - 8);
        assert_eq!(moved.address(high + 2 * GIB + 8), 3 * GIB + 8);
        assert_eq!(moved.address(0xffff_ffff_ff60_0008), 4 * GIB + 0x3f60_0008);
        for address in [0x40_1234, 0x40_0030_0000, high + 2 * GIB + 8, 0xffff_ffff_ff60_0008] {
            assert_eq!(moved.original(moved.address(address)), address);
        }
        let unmap = Event::Unmap { address: 0x40_0000_0000, length: 2 * GIB };
        assert_eq!(moved.event(&unmap), [Event::Unmap { address: GIB, length: GIB }]);
    }

    #[test]
    fn too_much_is_an_error() {
        let touched = [(1 << 40, (1 << 40) + 300 * GIB)];
        assert_eq!(Relocation::new(&touched, Geometry::X86_3).unwrap_err(), 300 * GIB);
    }
}
