//! A program's address space: which mappings there are, as its system calls change them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use flatwalk_trace::{Advice, Backing, Event, Protection};

use crate::pages::Pages;

/// Bytes of a base page.
pub const PAGE: u64 = 4096;
/// What the main stack is called.
pub const STACK: &str = "[stack]";

/// What memory is called; see [`Event::Name`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// As `/proc/PID/maps` has it.
    pub text: Arc<str>,
    /// Which file it was.
    pub build_id: Arc<str>,
    /// A byte's offset in the file, less its address.
    difference: u64,
}

/// What is mapped over a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address after it.
    pub end: u64,
    /// Its rights.
    pub protection: Protection,
    /// What is behind it.
    pub backing: Backing,
    /// Whether stores reach others.
    pub shared: bool,
    /// What it is called, if it is called anything.
    pub name: Option<Name>,
}

/// All mappings of a process.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// By first address; they do not overlap.
    mappings: BTreeMap<u64, Mapping>,
    /// The program break, once known.
    program_break: Option<u64>,
    /// Lengths of attached System V segments by address.
    attached: BTreeMap<u64, u64>,
    /// What is mapped from here on is locked, and so brought into memory at once (`MCL_FUTURE`). A forked child
    /// does not inherit it.
    pub locks_new: bool,
    /// The pages that the trace knows to be in memory.
    pub known: Pages,
}

/// `value`, up to the next multiple of a page.
pub fn page_up(value: u64) -> u64 {
    value.saturating_add(PAGE - 1) & !(PAGE - 1)
}

impl Space {
    /// An address space without mappings.
    pub const fn new() -> Space {
        Space {
            mappings: BTreeMap::new(),
            program_break: None,
            attached: BTreeMap::new(),
            locks_new: false,
            known: Pages::new(),
        }
    }

    /// Takes note of an event.
    pub fn apply(&mut self, event: &Event) {
        self.known.follow(event);
        match *event {
            Event::Map { address, length, protection, backing, shared } => {
                let end = address.saturating_add(page_up(length));
                self.remove(address, end);
                let mapping = Mapping { end, protection, backing, shared, name: None };
                self.mappings.insert(address, mapping);
            }
            Event::Unmap { address, length } => {
                self.remove(address, address.saturating_add(page_up(length)));
            }
            Event::Remap { from, from_length, to, to_length } => {
                let kept = self.at(from).cloned();
                self.remove(from, from.saturating_add(page_up(from_length)));
                let end = to.saturating_add(page_up(to_length));
                self.remove(to, end);
                if let Some(mut mapping) = kept {
                    if let Some(name) = &mut mapping.name {
                        name.difference = name.difference.wrapping_add(from).wrapping_sub(to);
                    }
                    self.mappings.insert(to, Mapping { end, ..mapping });
                }
            }
            Event::Protect { address, length, protection } => {
                let end = address.saturating_add(page_up(length));
                self.split(address);
                self.split(end);
                for (_, mapping) in self.mappings.range_mut(address..end) {
                    mapping.protection = protection;
                }
            }
            Event::Name { address, length, offset, ref name, ref build_id } => {
                let end = address.saturating_add(page_up(length));
                self.split(address);
                self.split(end);
                let difference = offset.wrapping_sub(address);
                let (text, build_id) = (name.as_str().into(), build_id.as_str().into());
                let name = Name { text, build_id, difference };
                for (_, mapping) in self.mappings.range_mut(address..end) {
                    mapping.name = Some(name.clone());
                }
            }
            Event::Break { from, to } => {
                self.program_break = Some(to);
                let (from, to) = (page_up(from), page_up(to));
                if to > from {
                    self.remove(from, to);
                    let protection = Protection { read: true, write: true, execute: false };
                    let (backing, shared, name) = (Backing::Heap, false, None);
                    self.mappings
                        .insert(from, Mapping { end: to, protection, backing, shared, name });
                } else {
                    self.remove(to, from);
                }
            }
            _ => {}
        }
    }

    /// Whether anything is mapped at `address`.
    pub fn contains(&self, address: u64) -> bool {
        self.at(address).is_some()
    }

    /// The mapping that `address` lies in.
    fn at(&self, address: u64) -> Option<&Mapping> {
        self.mappings
            .range(..=address)
            .next_back()
            .map(|(_, mapping)| mapping)
            .filter(|m| m.end > address)
    }

    /// Makes `address` a boundary between mappings.
    fn split(&mut self, address: u64) {
        if let Some((&start, mapping)) = self.mappings.range_mut(..address).next_back()
            && mapping.end > address
            && start < address
        {
            let upper = mapping.clone();
            mapping.end = address;
            self.mappings.insert(address, upper);
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let gone: Vec<u64> = self.mappings.range(start..end).map(|(&address, _)| address).collect();
        for address in gone {
            self.mappings.remove(&address);
        }
    }

    /// Events that build this address space from nothing.
    pub fn as_events(&self) -> Vec<Event> {
        let events_of = |(address, mapping): (u64, &Mapping)| {
            let &Mapping { end, protection, backing, shared, ref name } = mapping;
            let length = end - address;
            let named = name.as_ref().map(|name| Event::Name {
                address,
                length,
                offset: name.difference.wrapping_add(address),
                name: name.text.as_ref().into(),
                build_id: name.build_id.as_ref().into(),
            });
            [Some(Event::Map { address, length, protection, backing, shared }), named]
        };
        self.mappings().flat_map(events_of).flatten().collect()
    }

    /// All mappings by first address, in ascending order.
    pub fn mappings(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.mappings.iter().map(|(&address, mapping)| (address, mapping))
    }

    /// What is mapped of a range, in ascending order, up to its ends.
    pub fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &Mapping)> {
        let &Range { start, end } = range;
        let first = self.mappings.range(..=start).next_back().map_or(start, |(&first, _)| first);
        let overlapping = self.mappings.range(first.min(end)..end);
        overlapping
            .map(move |(&first, mapping)| (first.max(start)..mapping.end.min(end), mapping))
            .filter(|(part, _)| !part.is_empty())
    }

    /// The addresses whose pages a system call takes from memory if it succeeds, given its arguments; the
    /// space is not yet changed. Pages that it moves are not among them.
    pub fn taken_by(&self, number: i64, arguments: &[u64; 6]) -> [Range<u64>; 2] {
        let &[a, b, c, flags, to, _] = arguments;
        let pages = |address: u64, length| address..address.saturating_add(page_up(length));
        let (mut first, mut second) = (0..0, 0..0);
        match number {
            libc::SYS_mmap if flags & libc::MAP_FIXED as u64 != 0 => first = pages(a, b),
            libc::SYS_munmap => first = pages(a, b),
            libc::SYS_mremap => {
                first = a.saturating_add(page_up(c))..a.saturating_add(page_up(b));
                if flags & libc::MREMAP_FIXED as u64 != 0 {
                    second = pages(to, c);
                }
            }
            libc::SYS_madvise if advice(c) == Some(Advice::DontNeed) => first = pages(a, b),
            libc::SYS_brk if a != 0 => {
                first = page_up(a)..self.program_break.map_or(0, page_up);
            }
            libc::SYS_shmat if c & libc::SHM_REMAP as u64 != 0 => {
                first = pages(b, segment_length(a as i32).unwrap_or(0));
            }
            libc::SYS_shmdt => first = pages(a, self.attached.get(&a).copied().unwrap_or(0)),
            _ => {}
        }
        [first, second].map(|range| if range.is_empty() { 0..0 } else { range })
    }

    /// The addresses whose pages Linux gives back, or has not yet given, when a system call
    /// succeeded with `result`, and QEMU 7.2 does not; the space is not yet changed. A heap that
    /// shrinks keeps its pages, and QEMU fills all of them as it grows again. `MADV_FREE` it
    /// ignores, of which the trace says that the pages are gone.
    pub fn left_by_qemu(&self, number: i64, arguments: &[u64; 6], result: u64) -> Vec<Range<u64>> {
        match number {
            libc::SYS_brk => {
                let grown = page_up(self.program_break.unwrap_or(result))..page_up(result);
                Some(grown).into_iter().filter(|grown| !grown.is_empty()).collect()
            }
            libc::SYS_madvise if arguments[2] == libc::MADV_FREE as u64 => {
                self.given_back(number, arguments).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// The parts of a range whose pages Linux gives back with `MADV_FREE` and `MADV_REMOVE`, as it refuses the first
    /// for memory that is shared or a file's and the second for memory that is not shared. QEMU 7.2 lets either
    /// succeed for all memory. `None` for other calls.
    pub fn given_back(&self, number: i64, arguments: &[u64; 6]) -> Option<Vec<Range<u64>>> {
        let &[address, length, advice, ..] = arguments;
        let is_given_back: fn(&Mapping) -> bool = match (number, advice as i32) {
            (libc::SYS_madvise, libc::MADV_FREE) => |m| !m.shared && m.backing != Backing::File,
            (libc::SYS_madvise, libc::MADV_REMOVE) => |m| m.shared,
            _ => return None,
        };
        let range = address..address.saturating_add(page_up(length));
        let parts = self.within(&range).filter(|(_, mapping)| is_given_back(mapping));
        Some(parts.map(|(part, _)| part).collect())
    }

    /// What stays in the old place of a mapping that was moved with `MREMAP_DONTUNMAP`; the space is
    /// not yet changed.
    pub fn left_behind(&self, number: i64, arguments: &[u64; 6]) -> Option<Event> {
        let &[from, length, _, flags, _, _] = arguments;
        let asked = number == libc::SYS_mremap && flags & libc::MREMAP_DONTUNMAP as u64 != 0;
        let mapping = self.at(from).filter(|_| asked)?;
        Some(Event::Map {
            address: from,
            length: page_up(length),
            protection: mapping.protection,
            backing: mapping.backing,
            shared: mapping.shared,
        })
    }

    /// The addresses whose pages Linux brings into memory when a system call that maps or locks succeeded with
    /// `result`; the space is not yet changed.
    pub fn populated_by(&self, number: i64, arguments: &[u64; 6], result: u64) -> Vec<Range<u64>> {
        let &[a, b, c, d, ..] = arguments;
        let has = |flags: u64, flag: i32| flags & flag as u64 != 0;
        let locked = a & !(PAGE - 1)..page_up(a.saturating_add(b));
        let populated = match number {
            libc::SYS_mmap
                if self.locks_new
                    || has(d, libc::MAP_LOCKED)
                    || has(d, libc::MAP_POPULATE) && !has(d, libc::MAP_NONBLOCK) =>
            {
                result..result.saturating_add(page_up(b))
            }
            libc::SYS_brk if self.locks_new => {
                page_up(self.program_break.unwrap_or(result))..page_up(result)
            }
            libc::SYS_mremap if self.locks_new => {
                result.saturating_add(page_up(b))..result.saturating_add(page_up(c))
            }
            // So the C library makes a thread's stack.
            libc::SYS_mprotect if self.locks_new && has(c, libc::PROT_WRITE) => locked,
            libc::SYS_mlock => locked,
            libc::SYS_mlock2 if !has(c, libc::MLOCK_ONFAULT as i32) => locked,
            libc::SYS_mlockall if has(a, libc::MCL_CURRENT) && !has(a, libc::MCL_ONFAULT) => {
                // The stack is as large here as it may become, and in Linux as it has been.
                let is_stack = |name: &Name| &*name.text == STACK;
                let mapped =
                    self.mappings().filter(|(_, m)| !m.name.as_ref().is_some_and(is_stack));
                return mapped.map(|(start, mapping)| start..mapping.end).collect();
            }
            _ => return Vec::new(),
        };
        Some(populated).into_iter().filter(|range| !range.is_empty()).collect()
    }

    /// The event of a system call that succeeded with `result`, given its arguments; the space is not
    /// yet changed.
    pub fn event_of(&mut self, number: i64, arguments: &[u64; 6], result: u64) -> Option<Event> {
        let &[a, b, c, d, _, _] = arguments;
        match number {
            libc::SYS_mmap if b > 0 => Some(Event::Map {
                address: result,
                length: page_up(b),
                protection: protection(c),
                backing: if d & libc::MAP_ANONYMOUS as u64 == 0 {
                    Backing::File
                } else if d & (libc::MAP_STACK | libc::MAP_GROWSDOWN) as u64 != 0 {
                    Backing::Stack
                } else {
                    Backing::Anonymous
                },
                // MAP_SHARED and MAP_SHARED_VALIDATE both set the lowest bit.
                shared: d & 1 != 0,
            }),
            libc::SYS_munmap if b > 0 => Some(Event::Unmap { address: a, length: page_up(b) }),
            libc::SYS_mremap => Some(Event::Remap {
                from: a,
                from_length: page_up(b),
                to: result,
                to_length: page_up(c),
            }),
            libc::SYS_mprotect if b > 0 => {
                Some(Event::Protect { address: a, length: page_up(b), protection: protection(c) })
            }
            libc::SYS_madvise if b > 0 => {
                Some(Event::Advise { address: a, length: page_up(b), advice: advice(c)? })
            }
            libc::SYS_brk => {
                let from = self.program_break.replace(result).unwrap_or(result);
                (from != result).then_some(Event::Break { from, to: result })
            }
            libc::SYS_shmat => {
                let length = page_up(segment_length(a as i32)?);
                self.attached.insert(result, length);
                Some(Event::Map {
                    address: result,
                    length,
                    protection: Protection {
                        read: true,
                        write: c & libc::SHM_RDONLY as u64 == 0,
                        execute: false,
                    },
                    backing: Backing::Anonymous,
                    shared: true,
                })
            }
            libc::SYS_shmdt => {
                let length = self.attached.remove(&a)?;
                Some(Event::Unmap { address: a, length })
            }
            libc::SYS_mlockall => {
                let flags = a as i32;
                self.locks_new = flags & (libc::MCL_FUTURE | libc::MCL_ONFAULT) == libc::MCL_FUTURE;
                None
            }
            libc::SYS_munlockall => {
                self.locks_new = false;
                None
            }
            _ => None,
        }
    }
}

/// True for the system calls that [`Space::event_of`] and [`Space::populated_by`] know.
pub fn is_mapping_call(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mremap
            | libc::SYS_mprotect
            | libc::SYS_madvise
            | libc::SYS_brk
            | libc::SYS_shmat
            | libc::SYS_shmdt
            | libc::SYS_mlock
            | libc::SYS_mlock2
            | libc::SYS_mlockall
            | libc::SYS_munlockall
    )
}

/// What `madvise` is asked for, if it is of interest.
fn advice(number: u64) -> Option<Advice> {
    Some(match i32::try_from(number).ok()? {
        libc::MADV_HUGEPAGE => Advice::HugePage,
        libc::MADV_NOHUGEPAGE => Advice::NoHugePage,
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE => Advice::DontNeed,
        // Not MADV_WILLNEED, which reads ahead and maps nothing.
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => Advice::Populate,
        _ => return None,
    })
}

fn protection(bits: u64) -> Protection {
    Protection {
        read: bits & libc::PROT_READ as u64 != 0,
        write: bits & libc::PROT_WRITE as u64 != 0,
        execute: bits & libc::PROT_EXEC as u64 != 0,
    }
}

/// Size in bytes of System V shared memory segment `id`.
fn segment_length(id: i32) -> Option<u64> {
    // SAFETY: an all-zero shmid_ds is valid; the kernel fills it.
    let mut segment: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: `segment` is live.
    (unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut segment) } == 0)
        .then_some(segment.shm_segsz as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: Protection = Protection { read: true, write: true, execute: false };
    const R: Protection = Protection { read: true, write: false, execute: false };

    fn map(address: u64, length: u64) -> Event {
        Event::Map { address, length, protection: RW, backing: Backing::Anonymous, shared: false }
    }

    fn ranges(space: &Space) -> Vec<(u64, u64, bool)> {
        space.mappings.iter().map(|(&start, m)| (start, m.end, m.protection.write)).collect()
    }

    #[test]
    fn a_hole_splits_a_mapping() {
        let mut space = Space::default();
        space.apply(&map(0x1000, 0x5000));
        space.apply(&Event::Unmap { address: 0x2000, length: 0x1000 });
        assert_eq!(ranges(&space), [(0x1000, 0x2000, true), (0x3000, 0x6000, true)]);
    }

    #[test]
    fn protection_changes_only_its_range() {
        let mut space = Space::default();
        space.apply(&map(0x1000, 0x4000));
        space.apply(&Event::Protect { address: 0x2000, length: 0x1000, protection: R });
        assert_eq!(
            ranges(&space),
            [(0x1000, 0x2000, true), (0x2000, 0x3000, false), (0x3000, 0x5000, true)]
        );
    }

    #[test]
    fn remap_moves_and_grows() {
        let mut space = Space::default();
        space.apply(&map(0x1000, 0x2000));
        space.apply(&Event::Remap {
            from: 0x1000,
            from_length: 0x2000,
            to: 0x9000,
            to_length: 0x4000,
        });
        assert_eq!(ranges(&space), [(0x9000, 0xd000, true)]);
    }

    #[test]
    fn names_go_with_their_mappings() {
        let name = |address, offset| Event::Name {
            address,
            length: 0x1000,
            offset,
            name: "/a".into(),
            build_id: "12".into(),
        };
        let mut space = Space::default();
        space.apply(&map(0x1000, 0x4000));
        space.apply(&Event::Name {
            address: 0x1000,
            length: 0x3000,
            offset: 0x7000,
            name: "/a".into(),
            build_id: "12".into(),
        });
        space.apply(&Event::Unmap { address: 0x2000, length: 0x1000 });
        space.apply(&Event::Remap {
            from: 0x3000,
            from_length: 0x1000,
            to: 0x9000,
            to_length: 0x1000,
        });
        let expected = [
            map(0x1000, 0x1000),
            name(0x1000, 0x7000),
            map(0x4000, 0x1000),
            map(0x9000, 0x1000),
            name(0x9000, 0x9000),
        ];
        assert_eq!(space.as_events(), expected);
        let mut copy = Space::default();
        for event in &expected {
            copy.apply(event);
        }
        assert_eq!(copy.mappings, space.mappings);
    }

    /// Ends of the ranges that have any.
    fn bounds(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<(u64, u64)> {
        let some = ranges.into_iter().filter(|range| !range.is_empty());
        some.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn a_range_is_looked_at_mapping_by_mapping() {
        let mut space = Space::default();
        for (address, length) in [(0x1000, 0x2000), (0x3000, 0x1000), (0x6000, 0x4000)] {
            space.apply(&map(address, length));
        }
        let within = |range| bounds(space.within(&range).map(|(part, _)| part));
        assert_eq!(within(0..u64::MAX), [(0x1000, 0x3000), (0x3000, 0x4000), (0x6000, 0xa000)]);
        assert_eq!(within(0x2000..0x7000), [(0x2000, 0x3000), (0x3000, 0x4000), (0x6000, 0x7000)]);
        assert_eq!(within(0x7000..0x8000), [(0x7000, 0x8000)]);
        for nothing in [0x4000..0x6000, 0..0x1000, 0xa000..u64::MAX, 0x2000..0x2000] {
            assert_eq!(within(nothing), []);
        }
    }

    #[test]
    fn calls_take_pages_away() {
        let mut space = Space::default();
        space.event_of(libc::SYS_brk, &[0; 6], 0x9800);
        space.attached.insert(0x20_0000, 0x3000);
        let taken = |number, arguments: &[u64]| {
            let mut all = [0; 6];
            all[..arguments.len()].copy_from_slice(arguments);
            bounds(space.taken_by(number, &all))
        };
        let (fixed, anonymous) = (libc::MAP_FIXED as u64, libc::MAP_ANONYMOUS as u64);
        assert_eq!(
            taken(libc::SYS_mmap, &[0x1000, 0x1801, 3, fixed | anonymous]),
            [(0x1000, 0x3000)]
        );
        assert_eq!(taken(libc::SYS_mmap, &[0x1000, 0x1801, 3, anonymous]), []);
        assert_eq!(taken(libc::SYS_munmap, &[0x1000, 0x1001]), [(0x1000, 0x3000)]);
        assert_eq!(taken(libc::SYS_munmap, &[0x1000, u64::MAX]), [(0x1000, u64::MAX)]);
        let [movable, there] = [libc::MREMAP_MAYMOVE as u64, libc::MREMAP_FIXED as u64];
        let (old, new) = (0x10_0000, 0x50_0000);
        let shrinks = &[old, 0x4000, 0x2000];
        assert_eq!(taken(libc::SYS_mremap, shrinks), [(old + 0x2000, old + 0x4000)]);
        assert_eq!(taken(libc::SYS_mremap, &[old, 0x2000, 0x4000, movable]), []);
        let both = [(old + 0x2000, old + 0x4000), (new, new + 0x2000)];
        assert_eq!(taken(libc::SYS_mremap, &[old, 0x4000, 0x2000, movable | there, new]), both);
        for (advice, takes) in [
            (libc::MADV_DONTNEED, true),
            (libc::MADV_FREE, true),
            (libc::MADV_HUGEPAGE, false),
            (libc::MADV_WILLNEED, false),
        ] {
            let found = taken(libc::SYS_madvise, &[0x1000, 0x1000, advice as u64]);
            assert_eq!(found.len(), usize::from(takes));
        }
        // The page that the break lies in stays.
        assert_eq!(taken(libc::SYS_brk, &[0x6001]), [(0x7000, 0xa000)]);
        for stays in [0, 0x9001, 0x9800, 0xb000] {
            assert_eq!(taken(libc::SYS_brk, &[stays]), []);
        }
        assert_eq!(taken(libc::SYS_shmdt, &[0x20_0000]), [(0x20_0000, 0x20_3000)]);
        assert_eq!(taken(libc::SYS_shmdt, &[0x20_1000]), []);
        assert_eq!(taken(libc::SYS_mprotect, &[0x1000, 0x1000, 0]), []);
    }

    #[test]
    fn calls_bring_pages_in() {
        let mut space = Space::default();
        let brings = |space: &Space, number, arguments: &[u64], result| {
            let mut all = [0; 6];
            all[..arguments.len()].copy_from_slice(arguments);
            bounds(space.populated_by(number, &all, result))
        };
        let stack = Event::Map {
            address: 0x90000,
            length: 0x2000,
            protection: RW,
            backing: Backing::Stack,
            shared: false,
        };
        let (name, build_id) = (STACK.to_owned(), String::new());
        let named = Event::Name { address: 0x90000, length: 0x2000, offset: 0, name, build_id };
        for event in [map(0x10000, 0x2000), map(0x12000, 0x1000), stack, named] {
            space.apply(&event);
        }
        space.event_of(libc::SYS_brk, &[0; 6], 0x5800);
        let flags = |flags: i32| [0, 0x1001, 3, flags as u64];
        let both = [(0x20000, 0x22000)];
        for (asked, found) in [
            (0, &[][..]),
            (libc::MAP_POPULATE, &both),
            (libc::MAP_POPULATE | libc::MAP_NONBLOCK, &[]),
            (libc::MAP_LOCKED | libc::MAP_NONBLOCK, &both),
        ] {
            assert_eq!(brings(&space, libc::SYS_mmap, &flags(asked), 0x20000), found, "{asked:x}");
        }
        // Pages that have a byte in it.
        for number in [libc::SYS_mlock, libc::SYS_mlock2] {
            assert_eq!(brings(&space, number, &[0x10fff, 2], 0), [(0x10000, 0x12000)]);
        }
        let on_fault = u64::from(libc::MLOCK_ONFAULT);
        assert_eq!(brings(&space, libc::SYS_mlock2, &[0x10fff, 2, on_fault], 0), []);
        let all = |space: &Space, flags: i32| brings(space, libc::SYS_mlockall, &[flags as u64], 0);
        assert_eq!(all(&space, libc::MCL_FUTURE), []);
        assert_eq!(all(&space, libc::MCL_CURRENT | libc::MCL_ONFAULT), []);
        // Not all of the stack, of which Linux has but what was used.
        assert_eq!(all(&space, libc::MCL_CURRENT), [(0x10000, 0x12000), (0x12000, 0x13000)]);

        let later = |space: &Space| {
            let protect = |rights: i32| [0x10000, 0x1000, rights as u64];
            let found = [
                brings(space, libc::SYS_mmap, &flags(0), 0x20000),
                brings(space, libc::SYS_brk, &[], 0x7800),
                brings(space, libc::SYS_brk, &[], 0x4800),
                brings(space, libc::SYS_mremap, &[0x10000, 0x2000, 0x4000], 0x30000),
                brings(space, libc::SYS_mremap, &[0x10000, 0x2000, 0x1000], 0x10000),
                brings(space, libc::SYS_mprotect, &protect(libc::PROT_READ | libc::PROT_WRITE), 0),
                brings(space, libc::SYS_mprotect, &protect(libc::PROT_READ), 0),
            ];
            found.concat()
        };
        let lock = |space: &mut Space, number, flags: i32| {
            assert_eq!(space.event_of(number, &[flags as u64, 0, 0, 0, 0, 0], 0), None);
        };
        assert_eq!(later(&space), []);
        lock(&mut space, libc::SYS_mlockall, libc::MCL_FUTURE | libc::MCL_CURRENT);
        assert_eq!(
            later(&space),
            [(0x20000, 0x22000), (0x6000, 0x8000), (0x32000, 0x34000), (0x10000, 0x11000)]
        );
        for (number, flags) in [
            (libc::SYS_mlockall, libc::MCL_FUTURE | libc::MCL_ONFAULT),
            (libc::SYS_mlockall, libc::MCL_CURRENT),
            (libc::SYS_munlockall, 0),
        ] {
            lock(&mut space, libc::SYS_mlockall, libc::MCL_FUTURE);
            lock(&mut space, number, flags);
            assert_eq!(later(&space), []);
        }
    }

    #[test]
    fn what_qemu_leaves_is_private_and_nobodys() {
        let mut space = Space::default();
        let grown =
            |space: &Space, to| bounds(space.left_by_qemu(libc::SYS_brk, &[to, 0, 0, 0, 0, 0], to));
        assert_eq!(grown(&space, 0x5800), []);
        space.event_of(libc::SYS_brk, &[0; 6], 0x5800);
        assert_eq!(grown(&space, 0x5900), []);
        assert_eq!(grown(&space, 0x5000), []);
        assert_eq!(grown(&space, 0x8001), [(0x6000, 0x9000)]);
        for (address, backing, shared) in [
            (0x10000, Backing::Anonymous, false),
            (0x11000, Backing::File, false),
            (0x12000, Backing::Anonymous, true),
            (0x13000, Backing::Heap, false),
        ] {
            space.apply(&Event::Map { address, length: 0x1000, protection: RW, backing, shared });
        }
        let free = |advice: i32| {
            let arguments = [0x10000, 0x10000, advice as u64, 0, 0, 0];
            bounds(space.left_by_qemu(libc::SYS_madvise, &arguments, 0))
        };
        assert_eq!(free(libc::MADV_FREE), [(0x10000, 0x11000), (0x13000, 0x14000)]);
        assert_eq!(free(libc::MADV_DONTNEED), []);
        let given_back = |advice: i32| {
            let found =
                space.given_back(libc::SYS_madvise, &[0x10000, 0x10000, advice as u64, 0, 0, 0]);
            found.map(bounds)
        };
        assert_eq!(given_back(libc::MADV_FREE), Some(vec![(0x10000, 0x11000), (0x13000, 0x14000)]));
        assert_eq!(given_back(libc::MADV_REMOVE), Some(vec![(0x12000, 0x13000)]));
        assert_eq!(given_back(libc::MADV_DONTNEED), None);
    }

    #[test]
    fn the_first_break_is_only_noted() {
        let mut space = Space::default();
        let nothing = [0; 6];
        assert_eq!(space.event_of(libc::SYS_brk, &nothing, 0x5000), None);
        let grown = space.event_of(libc::SYS_brk, &[0x7000, 0, 0, 0, 0, 0], 0x7000);
        assert_eq!(grown, Some(Event::Break { from: 0x5000, to: 0x7000 }));
        space.apply(&Event::Break { from: 0x5000, to: 0x7000 });
        assert_eq!(ranges(&space), [(0x5000, 0x7000, true)]);
        space.apply(&Event::Break { from: 0x7000, to: 0x5000 });
        assert_eq!(ranges(&space), []);
    }
}
