//! A virtual machine: a guest's process in guest-physical memory, and the host that backs that memory.
//!
//! For the host the guest's memory is the only area of a process, and its page table (EPT, NPT, stage 2)
//! is that process's. So the guest's side is a [`Process`] from guest-virtual to guest-physical
//! addresses, and the host's a [`Process`] from guest-physical to host-physical ones; any layout goes
//! with any. The host backs memory when it is first used, as KVM does.

use std::ops::Range;

use flatwalk_paging::{Address, Fault, Flush, Gpa, Gva, Hpa};
use flatwalk_trace::{Backing, Event, Protection};

use crate::error::OsError;
use crate::process::{Configuration, Outcome, Process};

/// A guest and what it runs on.
pub struct VirtualMachine {
    /// The guest's process and its memory.
    pub guest: Process<Gva, Gpa>,
    /// The host's view of that memory.
    pub host: Process<Gpa, Hpa>,
}

impl VirtualMachine {
    /// A machine whose guest has `guest.memory_bytes` and has mapped nothing yet. Take
    /// `host.memory_bytes` larger than that: the host's page table needs room too.
    ///
    /// # Errors
    /// As [`Process::new`], for either.
    pub fn new(guest: &Configuration, host: &Configuration) -> Result<Self, OsError> {
        let protection = Protection { read: true, write: true, execute: true };
        let (address, length) = (0, guest.memory_bytes);
        let guest = Process::new(guest)?;
        let mut host = Process::new(host)?;
        let backing = Backing::Anonymous;
        // Nothing was mapped before, so nothing can be stale.
        let _: Outcome<Gpa> =
            host.apply(&Event::Map { address, length, protection, backing, shared: false })?;
        Ok(Self { guest, host })
    }

    /// Carries out an event in the guest. What it maps ahead of any access, the host backs too. Returns
    /// the guest's outcome, and what is to be flushed of the host's table.
    ///
    /// # Errors
    /// As [`Process::apply`].
    pub fn apply(&mut self, event: &Event) -> Result<(Outcome<Gva>, Vec<Flush<Gpa>>), OsError> {
        let outcome = self.guest.apply(event)?;
        let mut flushes = Vec::new();
        if let Event::Populate { address, length, .. } = *event {
            let Self { guest, host } = self;
            // Nothing is to be backed beyond the guest's memory, or within a segment of the host's.
            let segment = guest.segment();
            let (first, last) = (address.max(segment.start), (address + length).min(segment.end));
            let mut ranges = Ranges::default();
            if first < last {
                let base = guest.memory().size_bytes() - (segment.end - segment.start);
                ranges.add(base + (first - segment.start), last - first);
            }
            guest
                .table()
                .visit(guest.memory(), Gva::new(address), length, &mut |mapping| {
                    let bytes = guest.table().geometry().span(mapping.level);
                    ranges.add(mapping.frame.raw(), bytes);
                })
                .map_err(OsError::Table)?;
            for Range { start, end } in ranges.0 {
                flushes.extend(host.back(Gpa::new(start), end - start)?);
            }
        }
        Ok((outcome, flushes))
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
    use flatwalk_paging::Geometry;

    use super::*;
    use crate::placement::Placement;
    use crate::policy::LargePages;
    use crate::testing::layout;

    fn configuration(flatten: &[&str], memory_bytes: u64, large: bool) -> Configuration {
        let large_pages = LargePages::Below { boundary: if large { u64::MAX } else { 0 } };
        let conventional = Configuration::new(layout(Geometry::X86_4, flatten), memory_bytes);
        Configuration { large_pages, placement: Placement::Scattered, seed: 3, ..conventional }
    }

    #[test]
    fn what_is_populated_is_backed_once_and_everywhere() {
        for (flatten, large) in [(&[][..], false), (&["L4L3", "L2L1"], false), (&[], true)] {
            let guest = configuration(flatten, 1 << 30, false);
            let mut vm =
                VirtualMachine::new(&guest, &configuration(flatten, 2 << 30, large)).unwrap();
            let (address, length) = (1 << 40, 8 << 20);
            let protection = Protection { read: true, write: true, execute: false };
            let backing = Backing::Anonymous;
            for event in [
                Event::Map { address, length, protection, backing, shared: false },
                Event::Populate { address, length, store: true },
            ] {
                let (outcome, host) = vm.apply(&event).unwrap();
                assert!(outcome.flushes.is_empty() && host.is_empty());
            }
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
