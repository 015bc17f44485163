//! A virtual machine: a guest's process in guest-physical memory, and the host that backs that memory.
//!
//! For the host the guest's memory is the only area of a process, and its page table (EPT, NPT, stage 2)
//! is that process's. So the guest's side is a [`Process`] from guest-virtual to guest-physical
//! addresses, and the host's a [`Process`] from guest-physical to host-physical ones; any layout goes
//! with any. The host backs memory when it is first used, as KVM does.

use std::cell::RefCell;
use std::ops::Range;

use flatwalk_paging::{
    AccessKind, Address, EntryMemory, Fault, Flush, Gpa, Gva, Hpa, Line, Mapping,
};
use flatwalk_trace::{Advice, Backing, Event, Protection};
use rustc_hash::FxHashSet;

use crate::buddy::FRAME_BYTES;
use crate::error::OsError;
use crate::memory::PhysicalMemory;
use crate::process::{Configuration, FaultOutcome, Moved, Outcome, Process};

/// A guest and what it runs on.
pub struct VirtualMachine {
    /// The guest's process and its memory.
    pub guest: Process<Gva, Gpa>,
    /// The host's view of that memory.
    pub host: Process<Gpa, Hpa>,
}

impl VirtualMachine {
    /// A machine whose guest has `guest.memory_bytes` and has mapped nothing yet. The table that it
    /// has made for that is backed. Take `host.memory_bytes` larger than that: the host's page
    /// table needs room too.
    ///
    /// # Errors
    /// As [`Process::new`], for either.
    pub fn new(guest: &Configuration, host: &Configuration) -> Result<Self, OsError> {
        let protection = Protection { read: true, write: true, execute: true };
        let (address, length) = (0, guest.memory_bytes);
        let mut guest = Process::new(guest)?;
        let mut host = Process::new(host)?;
        let backing = Backing::Anonymous;
        // Nothing was mapped before, so nothing can be stale.
        let _: Outcome<Gpa> =
            host.apply(&Event::Map { address, length, protection, backing, shared: false })?;
        for Range { start, end } in guest.take_made() {
            host.back(Gpa::new(start), end - start)?;
        }
        Ok(Self { guest, host })
    }

    /// Carries out an event in the guest. What it maps ahead of any access, the host backs too, and
    /// the nodes of its table that it makes for that, which its kernel writes. Where the program
    /// waits for it ([`Advice::Populate`]), that raises faults of the host's, of which `handled`
    /// learns. Returns the guest's outcome, and what else is to be flushed of the host's table.
    ///
    /// # Errors
    /// As [`Process::apply`].
    pub fn apply(
        &mut self,
        event: &Event,
        handled: &mut impl FnMut(FaultOutcome<Gpa>),
    ) -> Result<(Outcome<Gva>, Vec<Flush<Gpa>>), OsError> {
        let advised = match *event {
            Event::Advise { address, length, advice: Advice::Populate } => Some((address, length)),
            _ => None,
        };
        let mut there = FxHashSet::default();
        if let Some(pages) = advised {
            self.visit_guest(pages, &mut |page| {
                there.insert(page.input.raw());
            })?;
        }
        let outcome = self.guest.apply(event)?;
        let mut flushes = Vec::new();
        // What moved at no cost is in the host's memory as it was before.
        for Moved { to: Range { start, end }, .. } in &outcome.moved {
            flushes.extend(self.host.back(Gpa::new(*start), end - start)?);
        }
        if let Some(pages) = advised {
            let mut ranges = Ranges::default();
            let geometry = self.guest.table().geometry();
            self.visit_guest(pages, &mut |page| {
                if !there.contains(&page.input.raw()) {
                    ranges.add(page.frame.raw(), geometry.span(page.level));
                }
            })?;
            let nodes = outcome.nodes.iter().cloned();
            for Range { start, end } in ranges.0.into_iter().chain(nodes) {
                // The guest's kernel zeroes them.
                self.host.access_pages(Gpa::new(start), end - start, AccessKind::Store, handled)?;
            }
        }
        if let Event::Populate { address, length, .. } = *event {
            let Self { guest, host } = self;
            // Nothing is to be backed beyond the guest's memory, or within a segment of the host's.
            let segment = guest.segment();
            let (first, last) = (address.max(segment.start), (address + length).min(segment.end));
            let mut ranges = Ranges::default();
            if first < last {
                ranges.add(in_segment(guest, first), last - first);
            }
            guest
                .table()
                .visit(guest.memory(), Gva::new(address), length, &mut |mapping| {
                    let bytes = guest.table().geometry().span(mapping.level);
                    ranges.add(mapping.frame.raw(), bytes);
                })
                .map_err(OsError::Table)?;
            for Range { start, end } in &outcome.nodes {
                ranges.add(*start, end - start);
            }
            for Range { start, end } in ranges.0 {
                flushes.extend(host.back(Gpa::new(start), end - start)?);
            }
        }
        Ok((outcome, flushes))
    }

    /// Visits what the guest's table maps in `length` bytes from `address`.
    fn visit_guest(
        &self,
        (address, length): (u64, u64),
        visit: &mut impl FnMut(Mapping<Gva, Gpa>),
    ) -> Result<(), OsError> {
        let Self { guest, .. } = self;
        let visited = guest.table().visit(guest.memory(), Gva::new(address), length, visit);
        visited.map_err(OsError::Table)
    }

    /// Lets the guest's kernel handle the fault that an access to `address` raised, as [`Process::fault`], and the
    /// host those that follow: of memory that the guest's kernel fills, of a page as well as of tables.
    ///
    /// # Errors
    /// As [`Process::fault`].
    pub fn fault(
        &mut self,
        address: Gva,
        access: AccessKind,
        handled: &mut impl FnMut(Handled),
    ) -> Result<(), OsError> {
        let mut outcome = self.guest.fault(address, access)?;
        let filled = std::mem::take(&mut outcome.filled);
        handled(Handled::ByGuest(outcome));
        self.fill(filled, handled)
    }

    /// Lets the guest's kernel fill such parts of its memory, and the host handle faults.
    fn fill(
        &mut self,
        filled: Vec<Range<u64>>,
        handled: &mut impl FnMut(Handled),
    ) -> Result<(), OsError> {
        for Range { start, end } in filled {
            let host = &mut |outcome| handled(Handled::ByHost(outcome));
            self.host.access_pages(Gpa::new(start), end - start, AccessKind::Store, host)?;
        }
        Ok(())
    }

    /// Lets a program in the guest access each page of `length_bytes` from `address`, as
    /// [`Process::access_pages`]: its own kernel handles faults, and the host those of the guest's
    /// memory that is used for the first time, of tables as well as pages.
    ///
    /// # Errors
    /// As [`Process::fault`].
    pub fn access_pages(
        &mut self,
        address: Gva,
        length_bytes: u64,
        access: AccessKind,
        handled: &mut impl FnMut(Handled),
    ) -> Result<(), OsError> {
        let end = address.raw().saturating_add(length_bytes);
        let mut at = address.raw() & !(FRAME_BYTES - 1);
        while at < end && length_bytes > 0 {
            let input = Gva::new(at);
            let mut filled = Vec::new();
            let guest = &mut |mut outcome: FaultOutcome<Gva>| {
                filled.append(&mut outcome.filled);
                handled(Handled::ByGuest(outcome));
            };
            self.guest.access_pages(input, FRAME_BYTES, access, guest)?;
            self.fill(filled, handled)?;
            let reads = Reads { memory: self.guest.memory(), places: RefCell::default() };
            let table = self.guest.table();
            let frame = if self.guest.segment().contains(&at) {
                Some(Gpa::new(in_segment(&self.guest, at)))
            } else {
                let leaf = table.translate(&reads, input).ok();
                leaf.map(|leaf| leaf.frame.offset(table.geometry().within(at, leaf.level)))
            };
            let entries = reads.places.into_inner().into_iter().map(|at| (at, AccessKind::Load));
            for (place, access) in entries.chain(frame.map(|frame| (frame, access))) {
                let host = &mut |outcome| handled(Handled::ByHost(outcome));
                self.host.access_pages(place, 1, access, host)?;
            }
            // The last page of all has none behind it.
            let Some(next) = at.checked_add(FRAME_BYTES) else { break };
            at = next;
        }
        Ok(())
    }

    /// Where `address` lies in the host's memory now, if both tables map it.
    ///
    /// # Errors
    /// The guest's fault, or `None` where the host has not backed the page.
    pub fn translate(&self, address: Gva) -> Result<Hpa, Option<Fault<Gpa>>> {
        let leaf = self.guest.table().translate(self.guest.memory(), address).map_err(Some)?;
        let within = address.raw() & (self.guest.table().geometry().span(leaf.level) - 1);
        let at = leaf.frame.offset(within);
        let leaf = self.host.table().translate(self.host.memory(), at).map_err(|_| None)?;
        let within = at.raw() & (self.host.table().geometry().span(leaf.level) - 1);
        Ok(leaf.frame.offset(within))
    }
}

/// Where `address`, which a direct segment of the guest's maps, lies in its memory: the segment is
/// the end of that.
fn in_segment(guest: &Process<Gva, Gpa>, address: u64) -> u64 {
    guest.memory().size_bytes() - (guest.segment().end - address)
}

/// A fault that was handled.
pub enum Handled {
    /// By the guest.
    ByGuest(FaultOutcome<Gva>),
    /// By the host.
    ByHost(FaultOutcome<Gpa>),
}

/// A guest's memory, and which entries of its table are read.
struct Reads<'a> {
    memory: &'a PhysicalMemory<Gpa>,
    places: RefCell<Vec<Gpa>>,
}

impl EntryMemory<Gpa> for Reads<'_> {
    fn read(&self, at: Gpa) -> u64 {
        self.places.borrow_mut().push(at);
        self.memory.read(at)
    }

    fn read_line(&self, at: Gpa) -> Line {
        self.places.borrow_mut().push(at);
        self.memory.read_line(at)
    }
}

/// Ranges of addresses in the order in which they are to be backed; neighbours are joined.
#[derive(Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn add(&mut self, start: u64, length: u64) {
        match self.0.last_mut() {
            Some(last) if last.end == start => last.end += length,
            _ => self.0.push(start..start + length),
        }
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::{Geometry, Layout, organisations};
    use serde_json::json;

    use super::*;
    use crate::placement::Placement;
    use crate::policy::LargePages;
    use crate::testing::layout;

    fn configuration(flatten: &[&str], memory_bytes: u64, large: bool) -> Configuration {
        of(layout(Geometry::X86_4, flatten), memory_bytes, large)
    }

    fn of(layout: Layout, memory_bytes: u64, large: bool) -> Configuration {
        let large_pages = LargePages::Below { boundary: if large { u64::MAX } else { 0 } };
        let conventional = Configuration::new(layout, memory_bytes);
        Configuration { large_pages, placement: Placement::Scattered, seed: 3, ..conventional }
    }

    /// A machine in whose guest `length` bytes from `address` are populated.
    fn populated(guest: Layout, host: &Configuration, address: u64, length: u64) -> VirtualMachine {
        let mut vm = VirtualMachine::new(&of(guest, 1 << 30, false), host).unwrap();
        let protection = Protection { read: true, write: true, execute: false };
        let backing = Backing::Anonymous;
        for event in [
            Event::Map { address, length, protection, backing, shared: false },
            Event::Populate { address, length, store: true },
        ] {
            let fault = &mut |fault| panic!("{fault:?}");
            let (outcome, host) = vm.apply(&event, fault).unwrap();
            assert!(host.is_empty() && outcome.flushes.iter().all(|flush| !flush.leaves));
        }
        vm
    }

    #[test]
    fn the_pages_around_that_a_guest_maps_of_a_file_are_backed() {
        let host = configuration(&[], 2 << 30, false);
        let mut vm = VirtualMachine::new(&configuration(&[], 1 << 30, false), &host).unwrap();
        let (address, length) = (1 << 40, 1 << 20);
        let protection = Protection { read: true, write: false, execute: true };
        let event =
            Event::Map { address, length, protection, backing: Backing::File, shared: false };
        let _ = vm.apply(&event, &mut |fault| panic!("{fault:?}")).unwrap();
        let mut by_host = 0;
        let handled = &mut |handled| by_host += u64::from(matches!(handled, Handled::ByHost(_)));
        vm.fault(Gva::new(address), AccessKind::Fetch, handled).unwrap();
        let pages = 16;
        assert!((0..pages).all(|i| vm.translate(Gva::new(address + i * FRAME_BYTES)).is_ok()));
        assert!(vm.translate(Gva::new(address + pages * FRAME_BYTES)).is_err());
        // The root is backed from the start, and three nodes below it are made.
        assert_eq!(by_host, pages + 3);
    }

    #[test]
    fn what_the_guests_kernel_writes_to_populate_is_backed() {
        let keyed = [
            // One that grows meanwhile, and has nodes of several frames.
            (
                "elastic_cuckoo",
                json!({
                    "ways": 3, "initial_entries": 64, "grow_occupancy": 0.6, "growth_factor": 4,
                    "shrink_occupancy": 0.2, "walk_table_entries": [64, 64],
                }),
            ),
            ("hashed", json!({ "buckets": 32 })),
            ("inverted", json!({})),
            ("dmt", json!({ "registers": 2 })),
        ];
        let keyed = keyed.map(|(name, parameters)| {
            let parameters = parameters.as_object().unwrap();
            organisations::layout(name, Geometry::X86_4, parameters).unwrap()
        });
        let trees = [&[][..], &["L4L3", "L2L1"]].map(|groups| layout(Geometry::X86_4, groups));
        for guest in trees.into_iter().chain(keyed) {
            let host = configuration(&[], 2 << 30, false);
            let vm = populated(guest.clone(), &host, 1 << 40, 8 << 20);
            // Only tables are stored of its memory.
            let memory = vm.guest.memory();
            let frames = (0..memory.size_bytes()).step_by(FRAME_BYTES as usize).map(Gpa::new);
            let written: Vec<_> = frames.filter(|&at| memory.piece(at).is_some()).collect();
            assert!(written.len() >= 3, "{guest:?}");
            for at in written {
                let leaf = vm.host.table().translate(vm.host.memory(), at);
                assert!(leaf.is_ok(), "{guest:?}: {at:?} is not backed");
            }
            // Nodes are zeroed as a whole.
            let bytes = vm.guest.data_bytes() + vm.guest.page_table_bytes();
            assert!(vm.host.data_bytes() >= bytes, "{guest:?}");
            assert_eq!(vm.host.statistics().faults, 0, "{guest:?}");
        }
    }

    #[test]
    fn what_a_program_has_populated_faults_in_the_host_once() {
        let host = configuration(&[], 2 << 30, false);
        let (address, length) = (1 << 40, 8 << 20);
        for guest in [layout(Geometry::X86_4, &[]), layout(Geometry::X86_4, &["L4L3", "L2L1"])] {
            let mut vm = populated(guest, &host, address, 4 << 20);
            let protection = Protection { read: true, write: true, execute: false };
            let backing = Backing::Anonymous;
            let before = vm.host.data_bytes();
            let mut faults = 0;
            for event in [
                Event::Map {
                    address: address + (4 << 20),
                    length: 4 << 20,
                    protection,
                    backing,
                    shared: false,
                },
                Event::Advise { address, length, advice: Advice::Populate },
                Event::Advise { address, length, advice: Advice::Populate },
            ] {
                let _ = vm.apply(&event, &mut |_| faults += 1).unwrap();
            }
            // The pages that were missing, and the nodes for them.
            let backed = vm.host.data_bytes() - before;
            assert!((4 << 20..5 << 20).contains(&backed), "{backed}");
            assert_eq!((faults, vm.host.statistics().faults), (backed / 4096, backed / 4096));
            for page in 0..length / 4096 {
                assert!(vm.translate(Gva::new(address + page * 4096)).is_ok());
            }
            // Nothing is left to fault when the program comes.
            let access = AccessKind::Store;
            let none = &mut |_: Handled| panic!("all is there");
            vm.access_pages(Gva::new(address), length, access, none).unwrap();
        }
    }

    #[test]
    fn what_the_guests_kernel_fills_in_a_fault_is_backed_as_if_it_were_populated() {
        let host = configuration(&[], 4 << 30, false);
        let (address, length) = (1 << 40, 8 << 20);
        let protection = Protection { read: true, write: true, execute: false };
        let backing = Backing::Anonymous;
        let mapped = Event::Map { address, length, protection, backing, shared: false };
        let advised = Event::Advise { address, length, advice: Advice::Populate };
        for (flatten, large) in [(&[][..], false), (&["L4L3", "L2L1"], false), (&[], true)] {
            let guest = of(layout(Geometry::X86_4, flatten), 1 << 30, large);
            let [faults, populated] = [true, false].map(|by_fault| {
                let mut vm = VirtualMachine::new(&guest, &host).unwrap();
                let _ = vm.apply(&mapped, &mut |_| panic!("nobody waits")).unwrap();
                let before = vm.host.data_bytes();
                let (mut own, mut faults) = (0, 0);
                if by_fault {
                    for page in (0..length).step_by(2 << 20) {
                        let mut count = |handled: Handled| match handled {
                            Handled::ByGuest(_) => own += 1,
                            Handled::ByHost(_) => faults += 1,
                        };
                        vm.fault(Gva::new(address + page), AccessKind::Store, &mut count).unwrap();
                    }
                    assert_eq!(own, 4, "one page each");
                } else if large {
                    let _ = vm.apply(&advised, &mut |_| faults += 1).unwrap();
                } else {
                    for page in (0..length).step_by(2 << 20) {
                        let at = Event::Advise {
                            address: address + page,
                            length: 1,
                            advice: Advice::Populate,
                        };
                        let _ = vm.apply(&at, &mut |_| faults += 1).unwrap();
                    }
                }
                (faults, vm.host.data_bytes() - before)
            });
            assert_eq!(faults, populated, "{flatten:?}, {large}");
            assert_eq!(faults.0, faults.1 / 4096);
            let flattened = flatten.contains(&"L2L1");
            let least =
                if large { 8 << 20 } else { 4 * 4096 + if flattened { 2 << 20 } else { 4 * 4096 } };
            assert!(faults.1 >= least, "{flatten:?}, {large}: {faults:?}");
        }
    }

    #[test]
    fn what_moves_at_no_cost_in_a_guest_stays_backed() {
        let (address, to, length) = (1 << 40, (1 << 41) + 4096, 8 << 20);
        let host = configuration(&[], 2 << 30, false);
        let guest = of(layout(Geometry::X86_4, &[]), 1 << 30, true);
        let mut vm = VirtualMachine::new(&guest, &host).unwrap();
        let protection = Protection { read: true, write: true, execute: false };
        let backing = Backing::Anonymous;
        for event in [
            Event::Map { address, length, protection, backing, shared: false },
            Event::Populate { address, length, store: true },
            Event::Remap { from: address, from_length: length, to, to_length: length },
        ] {
            let _ = vm.apply(&event, &mut |_| panic!("nobody waits")).unwrap();
        }
        for page in 0..length / 4096 {
            assert!(vm.translate(Gva::new(to + page * 4096)).is_ok());
        }
    }

    #[test]
    fn what_is_populated_is_backed_once_and_everywhere() {
        for (flatten, large) in [(&[][..], false), (&["L4L3", "L2L1"], false), (&[], true)] {
            let guest = layout(Geometry::X86_4, flatten);
            let host = configuration(flatten, 2 << 30, large);
            let (address, length) = (1 << 40, 8 << 20);
            let vm = populated(guest, &host, address, length);
            let mut frames: Vec<_> = (0..length / 4096)
                .map(|page| vm.translate(Gva::new(address + page * 4096)).unwrap().raw())
                .collect();
            frames.sort_unstable();
            frames.dedup();
            assert_eq!(frames.len() as u64, length / 4096, "no frame twice");
            assert_eq!(vm.guest.data_bytes(), length);
            let backed = if large { 2 << 20 } else { 4096 };
            assert_eq!(vm.host.data_bytes() % backed, 0);
            assert!(vm.host.data_bytes() >= length);
            let beyond = vm.translate(Gva::new(address + length));
            assert!(matches!(beyond, Err(Some(Fault::NotPresent { .. }))), "{beyond:?}");
        }
    }
}
