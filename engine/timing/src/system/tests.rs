use std::collections::{BTreeMap, HashMap};

use flatwalk_os::{LargePages, Moved, Placement, Random};
use flatwalk_paging::{Address, organisations};
use flatwalk_trace::{Advice, Backing, Protection};
use serde_json::json;

use super::*;
use crate::config::scheme::{Scheme, TranslationMode};
use crate::driver::piece::Piece;
use crate::driver::run::{Mode, Run};
use crate::memory::reader::NoClock;
use crate::mmu::Mmu;
use crate::mmu::blame::Blame;
use crate::mmu::event::Request;
use crate::mmu::walker::Walker;
use crate::tests::testing::{Scenario, as_host, go, scheme_with, shipped};

/// Below 2^39, where tables of three levels reach too.
const DATA: u64 = 64 << 30;
const BYTES: u64 = 64 << 20;

/// Where `address` lies for an access that is made now.
fn place(run: &mut Run, address: u64, kind: AccessKind) -> Hpa {
    let access = match kind {
        AccessKind::Store => crate::tests::testing::Do::Store(address),
        AccessKind::Load | AccessKind::Fetch => crate::tests::testing::Do::Load(address),
    };
    go(run, &[access]);
    let answer = run.mmu.translate(
        Request { address: Gva::new(address), kind, at: 0 },
        || 0,
        &mut run.system,
        &mut NoClock,
    );
    answer.unwrap().physical
}

#[test]
fn a_word_written_through_any_scheme_reads_back() {
    for scheme in shipped() {
        for large_pages in [0, 50, 100] {
            let mut scenario = Scenario::new(scheme.clone());
            scenario.mode = Mode::Functional;
            scenario.large_pages = large_pages;
            scenario.host_large_pages = large_pages;
            let mut run = scenario.start(&[(DATA, BYTES)], false);
            let mut random = Random::new(u64::from(large_pages));
            // What the program believes, and what lies in the machine's memory.
            let (mut written, mut memory) = (BTreeMap::new(), HashMap::new());
            for value in 0..1500 {
                let address = DATA + random.below(BYTES / 8) * 8;
                memory.insert(place(&mut run, address, AccessKind::Store), value);
                written.insert(address, value);
                if value % 500 == 250 {
                    let (start, length) = (DATA + random.below(BYTES >> 12) * 4096, 1 << 20);
                    let length = length.min(DATA + BYTES - start);
                    run.take(&Piece::Event(Event::Unmap { address: start, length })).unwrap();
                    written.retain(|address, _| !(start..start + length).contains(address));
                }
            }
            for (&address, value) in &written {
                let at = place(&mut run, address, AccessKind::Load);
                assert_eq!(memory.get(&at), Some(value), "{} at {address:#x}", scheme.name);
            }
            // A segment of the guest's alone leaves the host's table to be walked.
            let paged = !scheme.mechanisms.contains("direct_segment")
                || scheme
                    .host
                    .as_ref()
                    .is_some_and(|host| !host.mechanisms.contains("direct_segment"));
            let walked = scheme.translation == TranslationMode::Walked && paged;
            assert_eq!(run.mmu.statistics.total().walks > 0, walked, "{}", scheme.name);
        }
    }
}

/// A table of each organisation: small ones, that are merged and resized all the time.
fn organisations() -> Vec<Scheme> {
    let examples = organisations::REGISTRY.iter().map(|organisation| {
        let mut table = (organisation.examples)().remove(0);
        table["organisation"] = json!(organisation.name);
        table["levels"] = json!(4);
        scheme_with(&table)
    });
    examples.collect()
}

/// A guest's program, what it believes, and what lies in the host's memory.
struct Guest {
    name: String,
    system: System,
    mmu: Mmu,
    /// The last value stored in each page, by the page's address.
    written: BTreeMap<u64, u64>,
    memory: HashMap<Hpa, u64>,
}

impl Guest {
    /// A guest with `guest`'s table on a host with `host`'s, and as many bytes of memory as
    /// `memory_bytes` says of the two. Half of the blocks that are asked for to be large cannot be
    /// had.
    fn new(guest: &Scheme, host: &Scheme, memory_bytes: [u64; 2]) -> Self {
        let machine = Scenario::new(guest.clone()).machine;
        let (layout, host_layout) =
            (guest.layout().unwrap(), as_host(host.clone()).layout().unwrap());
        let own = Configuration {
            layout: layout.clone(),
            large_pages: LargePages::Below { boundary: DATA + BYTES / 4 },
            touched: Vec::new(),
            memory_bytes: memory_bytes[0],
            reserved_bytes: 0,
            segment: None,
            fragmentation: 0.2,
            large_failure_probability: 0.5,
            ordered_levels: Vec::new(),
            recursive_index: None,
            placement: Placement::Scattered,
            seed: 1,
        };
        let large_pages = LargePages::Below { boundary: 1 << 28 };
        let host_configuration = Configuration {
            layout: host_layout.clone(),
            large_pages,
            memory_bytes: memory_bytes[1],
            placement: Placement::Compact,
            seed: 2,
            ..own.clone()
        };
        let virtualisation = machine.virtualisation.as_ref().unwrap();
        let walker = Walker::nested(&machine, virtualisation, &layout, &host_layout).unwrap();
        Self {
            name: format!("{} over {}", guest.table.organisation, host.table.organisation),
            system: System::new(&own, Some(&host_configuration)).unwrap(),
            mmu: Mmu::new(&machine, layout.geometry(), walker, Vec::new(), false, Blame::new(None)),
            written: BTreeMap::new(),
            memory: HashMap::new(),
        }
    }

    fn place(&mut self, address: u64, kind: AccessKind) -> Result<Hpa, OsError> {
        for _ in 0..64 {
            let Self { system, mmu, .. } = self;
            let request = Request { address: Gva::new(address), kind, at: 0 };
            match mmu.translate(request, || 0, system, &mut NoClock) {
                Ok(found) => return Ok(found.physical),
                Err(stopped) => {
                    system.fault(stopped.untranslated, kind, &mut |handled| {
                        mmu.carry_out(&handled.flushes);
                    })?;
                }
            }
        }
        panic!("{}: {address:#x} faults again and again", self.name);
    }

    fn try_store(&mut self, address: u64, value: u64) -> Result<(), OsError> {
        let at = self.place(address, AccessKind::Store)?;
        self.memory.insert(at, value);
        self.written.insert(address, value);
        Ok(())
    }

    fn store(&mut self, address: u64, value: u64) {
        self.try_store(address, value).unwrap();
    }

    fn check(&mut self, address: u64, value: u64) {
        match self.place(address, AccessKind::Load) {
            Ok(at) => {
                assert_eq!(self.memory.get(&at), Some(&value), "{} at {address:#x}", self.name);
            }
            // A guest that gives its table other frames needs a host that has memory for them.
            Err(error) => {
                let System::Virtual(vm) = &self.system else { panic!("there is a guest") };
                let [merges, unmerges, resizes, _] = upheavals(vm.guest.statistics());
                let full = matches!(error, OsError::OutOfMemory { memory_bytes, .. }
                    if memory_bytes == vm.host.memory().size_bytes());
                assert!(full && merges + unmerges + resizes > 0, "{}: {error}", self.name);
            }
        }
    }

    fn check_all(&mut self) {
        for (address, value) in self.written.clone() {
            self.check(address, value);
        }
    }

    fn apply(&mut self, event: &Event) {
        let Self { system, mmu, memory, .. } = self;
        let System::Virtual(vm) = system else { panic!("there is a guest") };
        let (outcome, host) = vm.apply(event, &mut |_| panic!("nobody waits")).unwrap();
        mmu.carry_out(&Flushes { own: outcome.flushes, host });
        // What the guest moves, its kernel copies. Only the first words of pages are written here.
        for Moved { from, to } in outcome.moved {
            let place = |at| {
                let leaf = vm.host.table().translate(vm.host.memory(), Gpa::new(at)).ok()?;
                Some(leaf.frame.offset(vm.host.table().geometry().within(at, leaf.level)))
            };
            if let Some(&value) = place(from).and_then(|from| memory.get(&from)) {
                memory.insert(place(to.start).expect("it stays backed"), value);
            }
        }
    }

    fn forget(&mut self, start: u64, length: u64) {
        self.written.retain(|address, _| !(start..start + length).contains(address));
    }
}

fn map(address: u64, length: u64) -> Event {
    let protection = Protection { read: true, write: true, execute: false };
    Event::Map { address, length, protection, backing: Backing::Anonymous, shared: false }
}

/// Merged, taken apart, resized, and refused one of those, or a large page.
fn upheavals(statistics: Statistics) -> [u64; 4] {
    let s = statistics;
    let refused = s.merge_refusals + s.resize_refusals + s.node_fallbacks;
    [s.merges, s.unmerges, s.resizes, refused + s.large_page_fallbacks]
}

#[test]
fn every_table_over_every_table_keeps_what_was_written() {
    let mut all = [[0; 4]; 2];
    for (guest, host) in
        organisations().iter().flat_map(|g| organisations().into_iter().map(move |h| (g, h)))
    {
        let mut guest = Guest::new(guest, &host, [1 << 30, 1 << 32]);
        guest.apply(&map(DATA, BYTES));
        let mut random = Random::new(7);
        let page = |random: &mut Random| DATA + random.below(BYTES >> 12) * 4096;
        for value in 0..500 {
            let address = page(&mut random);
            guest.store(address, value);
            let (start, length) = (page(&mut random) & !0xf_ffff, 2 << 20);
            match value % 25 {
                // A page that was used just now: whatever the hardware keeps of it is stale.
                3 => {
                    guest.apply(&Event::Unmap { address, length: 4096 });
                    guest.apply(&map(address, 4096));
                    guest.forget(address, 4096);
                }
                8 => {
                    let advice = Advice::DontNeed;
                    guest.apply(&Event::Advise { address: start, length, advice });
                    guest.forget(start, length);
                }
                13 => {
                    let to = DATA + 2 * BYTES + value * (4 << 20);
                    let (from, from_length, to_length) = (start, length, length);
                    guest.apply(&Event::Remap { from, from_length, to, to_length });
                    let moved: Vec<_> =
                        guest.written.range(start..start + length).map(|(&a, &v)| (a, v)).collect();
                    guest.forget(start, length);
                    for (address, value) in moved {
                        guest.written.insert(to + (address - start), value);
                        guest.check(to + (address - start), value);
                    }
                    guest.apply(&map(start, length));
                }
                18 => {
                    for write in [false, true] {
                        let protection = Protection { read: true, write, execute: false };
                        guest.apply(&Event::Protect { address: start, length, protection });
                    }
                }
                _ => {
                    let known = guest.written.range(page(&mut random)..).next();
                    if let Some((&address, &value)) = known {
                        guest.check(address, value);
                    }
                }
            }
            if value % 250 == 249 {
                guest.check_all();
                // Most of it goes, so that merged nodes and large tables are too large.
                let (kept, length) = (BYTES / 16, 64 * BYTES);
                guest.apply(&Event::Unmap { address: DATA + kept, length });
                guest.forget(DATA + kept, length);
                guest.apply(&map(DATA + kept, BYTES - kept));
            }
        }
        guest.check_all();
        let System::Virtual(vm) = &guest.system else { panic!("there is a guest") };
        for (sum, statistics) in all.iter_mut().zip([vm.guest.statistics(), vm.host.statistics()]) {
            let more = upheavals(statistics);
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
    let [guests, hosts] = all;
    assert!(guests.iter().all(|&n| n >= 8), "{guests:?}");
    // A host takes nothing back.
    assert!(hosts[0] > 5 && hosts[2] > 20 && hosts[3] > 20, "{hosts:?}");
}

/// Pages that each need nodes of their own, until not one more can be had: in the guest, or in the
/// host that backs it.
#[test]
fn memory_that_runs_out_takes_nothing_away() {
    let apart = (2 << 20) + 4096;
    for (guest, host) in
        organisations().iter().flat_map(|g| organisations().into_iter().map(move |h| (g, h)))
    {
        for memory_bytes in [[12 << 20, 1 << 30], [1 << 30, 48 << 20]] {
            let mut guest = Guest::new(guest, &host, memory_bytes);
            guest.apply(&map(DATA, 16384 * apart));
            let mut refused = 0;
            for page in 0..16384 {
                match guest.try_store(DATA + page * apart, page) {
                    Ok(()) => {}
                    Err(OsError::OutOfMemory { .. }) => refused += 1,
                    Err(other) => panic!("{}: {other}", guest.name),
                }
                if refused == 40 {
                    break;
                }
            }
            assert_eq!(refused, 40, "{} held {} pages", guest.name, guest.written.len());
            // A guest's large page is filled as a whole.
            let least = if memory_bytes[1] < memory_bytes[0] { 10 } else { 100 };
            assert!(guest.written.len() > least, "{}: {}", guest.name, guest.written.len());
            guest.check_all();
            let (address, length) = (DATA, guest.written.len() as u64 / 2 * apart);
            guest.apply(&Event::Unmap { address, length });
            guest.forget(address, length);
            guest.apply(&map(address, length));
            for page in 0..16 {
                let done = guest.try_store(DATA + page * apart, 1_000_000 + page);
                // What a guest gives back it can have again. Of its frames it may then choose one that
                // the host has not backed, and to a host it gave nothing back.
                assert!(done.is_ok() || memory_bytes[1] < memory_bytes[0], "{}", guest.name);
            }
            guest.check_all();
        }
    }
}
