//! IA-64's walker: one access to a virtually mapped array of entries, and a handler in software behind it.
//!
//! Source: Intel Itanium Architecture Software Developer's Manual, volume 2, section 4.1.5 (VHPT, short
//! format); Linux, arch/ia64/kernel/ivt.S (`vhpt_miss`); Holt, "Re: [RFC] 4-level page table
//! directories", linux-ia64, 2005. Linux lays the lowest level of its page table out as one linear
//! array of virtual memory, so the entry of page n is word n there. On a TLB miss the walker reads it,
//! if the TLB holds the page of the array that it is in. Otherwise the processor traps: software walks
//! the table from the root, puts both translations into the TLB, and reads all entries but the root's
//! once more, in case someone changed them meanwhile.
//!
//! Departs from it: accessed and dirty bits are set by the walker, where IA-64 traps for them; what is
//! younger than the miss goes on while the handler runs, as far as it has no need of its result; and
//! large pages are leaves of the same table, where Linux keeps them in a region of their own.

use flatwalk_paging::{Address, Geometry, Gva, Hpa, NodeRef};

use crate::memory::reader::TableReader;
use crate::mmu::event::{Found, Read, WalkObserver};
use crate::mmu::tlb::{Tlb, Translation};

/// Where the array starts: beyond every address of a program's.
const ARRAY: u64 = 1 << 60;

/// The walker of one core.
#[derive(Clone, Copy, Debug)]
pub struct Vhpt {
    geometry: Geometry,
    handler_cycles: u64,
}

/// What the handler read.
pub struct Handler<'a, T> {
    reads: Vec<Read>,
    record: &'a mut T,
}

impl<T: WalkObserver> WalkObserver for Handler<'_, T> {
    fn read(&mut self, read: &Read) {
        self.reads.push(*read);
        self.record.read(read);
    }
}

impl Vhpt {
    /// The walker for a table of `geometry`; a trap and the handler's instructions take
    /// `handler_cycles` beside its loads.
    pub fn new(geometry: Geometry, handler_cycles: u64) -> Self {
        Self { geometry, handler_cycles }
    }

    /// What a trap and the handler's instructions take beside its loads.
    pub fn handler_cycles(&self) -> u64 {
        self.handler_cycles
    }

    /// Where the entry of the page that `address` lies in stands in the array.
    pub fn entry(&self, address: Gva) -> u64 {
        ARRAY + (address.raw() >> self.geometry.page_shift()) * 8
    }

    /// The node that the entry for `address` is in, if `tlb` holds its page of the array, and when
    /// that is known to a walk that starts at cycle `at`.
    pub fn known<R: TableReader>(
        &self,
        address: Gva,
        at: u64,
        tlb: &mut Tlb,
    ) -> Option<(NodeRef<Hpa>, u64)> {
        let (page, latency) = tlb.look_up(self.entry(address))?;
        let ready = if R::TIMED { page.ready.max(at + latency) } else { at };
        Some((NodeRef { base: page.frame, level: 1, width: 1, rights: page.rights }, ready))
    }

    /// When the handler's first load can be made after a miss at cycle `at`.
    pub fn trap<R: TableReader>(&self, at: u64, tlb: &Tlb) -> u64 {
        if R::TIMED { at + tlb.latency() + self.handler_cycles } else { at }
    }

    /// What notes the handler's loads.
    pub fn handler<'a, T>(&self, record: &'a mut T) -> Handler<'a, T> {
        Handler { reads: Vec::with_capacity(8), record }
    }

    /// Ends a handler that found a page, in the node `lowest`: puts the node's page of the array into
    /// `tlb` and reads all entries but the root's again.
    pub fn finish<R: TableReader, T: WalkObserver>(
        &self,
        address: Gva,
        found: &mut Found,
        lowest: Option<NodeRef<Hpa>>,
        handler: &mut Handler<'_, T>,
        reader: &mut R,
        tlb: &mut Tlb,
    ) {
        let at = found.ready;
        for read in handler.reads.iter().skip(1) {
            let response = reader.read_entry(Hpa::new(read.entry_address), at, false);
            found.ready = found.ready.max(response.ready);
            handler.record.read(&Read { asked: at, response, ..*read });
        }
        // A node is a page of the array if it spans level 1 alone.
        if let Some(node) = lowest.filter(|node| node.level == 1 && node.width == 1) {
            let page = Translation {
                frame: node.base,
                level: 1,
                rights: node.rights,
                dirty: true,
                requested: at,
                ready: found.ready,
            };
            tlb.insert(self.entry(address), page);
        }
    }

    /// Drops the pages of the array that have entries for `length_bytes` from `start`.
    pub fn flush(&self, start: Gva, length_bytes: u64, tlb: &mut Tlb) {
        let last = Gva::new(start.raw().saturating_add(length_bytes.saturating_sub(1)));
        let first = self.entry(start);
        tlb.flush(first, self.entry(last) + 8 - first);
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_trace::Event;

    use crate::config::machine::Pwc;
    use crate::config::table::Pages;
    use crate::driver::run::{Mode, Piece};
    use crate::report::explain::{ExplainStep, explain};
    use crate::tests::testing::{DATA, Do, Scenario, go, scheme, walk};

    const LARGE: u64 = 2 << 20;
    const GIB: u64 = 1 << 30;

    fn scenario(levels: u8, pages: Option<Pages>) -> Scenario {
        let mut scenario = Scenario::new(scheme(levels, &[]));
        scenario.scheme.table.geometry = pages;
        scenario.machine.pwc = Pwc::Vhpt { handler_cycles: 50 };
        let l1d = scenario.machine.l1d.as_mut().unwrap();
        (l1d.size_bytes, l1d.ways, l1d.mshrs) = (32 << 10, 8, 12);
        scenario
    }

    #[test]
    fn latencies_by_hand() {
        let mut run = scenario(4, None).start(&[(DATA, GIB)], true);
        // The array's page is looked for in the L2 TLB (9 cycles), the handler starts (50), loads the
        // root's entry from L2 (12: it shares its line with the code) and three more from memory, and
        // has those three once more out of L1D, at once.
        assert_eq!(walk(&mut run, DATA), (4 + 3, 9 + 50 + 12 + 3 * 142 + 4));
        // The array's page is known now: one access, to another line of it.
        assert_eq!(walk(&mut run, DATA + 64 * 4096), (1, 9 + 142));
        // Another page of the array, whose entries of levels 4 and 3 are in L1D.
        assert_eq!(walk(&mut run, DATA + 9 * LARGE), (7, 9 + 50 + 4 + 4 + 2 * 142 + 4));
    }

    #[test]
    fn a_level_more_costs_its_two_loads() {
        let pages = Some(Pages { page_shift: 14, index_bits: 11 });
        let [three, four] = [3, 4].map(|levels| {
            let mut run = scenario(levels, pages).start(&[(DATA, GIB)], true);
            [walk(&mut run, DATA), walk(&mut run, DATA + (512 << 14))]
        });
        assert_eq!((three[0].0, four[0].0), (3 + 2, 4 + 3));
        // Three loads from memory each; the root of four levels is known to L2, because its entry
        // shares a line with the code's. The loads that are made again overlap.
        assert_eq!(three[0].1, 9 + 50 + 3 * 142 + 4);
        assert_eq!(four[0].1, 9 + 50 + 12 + 3 * 142 + 4);
        assert_eq!(
            (three[1], four[1]),
            ((1, 9 + 142), (1, 9 + 142)),
            "one node, one page of the array"
        );
    }

    #[test]
    fn a_change_of_the_table_drops_the_page_of_the_array() {
        let mut scenario = scenario(4, None);
        scenario.mode = Mode::Functional;
        let mut run = scenario.start(&[(DATA, GIB)], true);
        assert_eq!(walk(&mut run, DATA).0, 7);
        assert_eq!(walk(&mut run, DATA + 4096).0, 1);
        run.take(&Piece::Event(Event::Unmap { address: DATA + 8 * 4096, length: 4096 })).unwrap();
        assert_eq!(walk(&mut run, DATA + 2 * 4096).0, 7);
        // It competes with data's pages for the TLB of 16 entries.
        let others: Vec<_> =
            (3..7).chain(16..64).map(|page| Do::Load(DATA + page * 4096)).collect();
        go(&mut run, &others);
        run.mmu.reset_statistics();
        go(&mut run, &(100..116).map(|i| Do::Load(DATA + i * LARGE)).collect::<Vec<_>>());
        assert_eq!(walk(&mut run, DATA + 9 * 4096).0, 7);
    }

    #[test]
    fn the_explanation_tells_both_ways() {
        let scenario = scenario(4, None);
        let mut seen = [false; 2];
        // A table of 64 MiB has 32 nodes of level 1, of which the TLB cannot hold all.
        for address in ((64 * GIB)..64 * GIB + 32 * LARGE).step_by(LARGE as usize) {
            let mut source = flatwalk_workloads::open("gups", 64 << 20, 1).unwrap();
            let configuration = scenario.configuration();
            let told = explain(&mut *source, configuration, 10_000, Some(address), 1).unwrap();
            let said = |text: &str| {
                told.steps.iter().any(
                    |step| matches!(step, ExplainStep::Pwc { text: own, .. } if own.contains(text)),
                )
            };
            let known = said("a page that the L2 TLB knows");
            assert_ne!(known, said("Software walks the table, 50 cycles later"));
            assert_eq!(told.accesses, if known { 1 } else { 7 });
            seen[usize::from(known)] = true;
        }
        assert_eq!(seen, [true; 2]);
    }
}
