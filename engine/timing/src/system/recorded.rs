//! The page tables of a recorded machine, as its processor read them, in place of tables of our own.
//!
//! A trace of a whole system has the entries that its walks read ([`Event::Entry`]), each before the
//! first access that needs it. They are put into memory at their real addresses, and walks go through
//! them as they do through any tree. The machine's operating system has answered the faults; ours has
//! nothing to do.

use flatwalk_os::{OsError, PhysicalMemory};
use flatwalk_paging::hardware::Paging;
use flatwalk_paging::{
    Address, Decoded, Entry, EntryMemory, EntryMemoryMut, Flush, Geometry, Gva, Hpa, Level,
    NodeRef, NodeStatistics, Nodes, Part, Width, levels_spanned, outline,
};
use flatwalk_trace::{Advice, Event};
use rustc_hash::{FxHashMap, FxHashSet};

/// Entries of ours are read with all physical bits that there can be.
const PHYSICAL_BITS: u8 = 52;
/// Bits of an entry, and of a CR3, below those of the address that it leads to.
const BELOW_ADDRESS: u64 = (1 << 12) - 1;
/// Bytes of the largest table, which may begin in memory's last frame.
const LARGEST_TABLE_BYTES: u64 = 2 << 20;

/// The tables of a recorded machine.
pub struct Recorded {
    geometry: Geometry,
    memory: PhysicalMemory<Hpa>,
    /// The registers, once they are known: CR3, and how entries are read.
    root: Option<(u64, Paging)>,
}

/// All that there is to know of the tables by looking through them.
#[derive(Default)]
struct Census {
    nodes: FxHashMap<(Level, u8), (u64, u64)>,
    seen: FxHashSet<(Hpa, Level)>,
    data_bytes: u64,
}

impl Recorded {
    /// Tables of `geometry` in memory of `memory_bytes`, of which nothing is known yet.
    ///
    /// # Errors
    /// [`OsError::MemorySize`].
    pub fn new(geometry: Geometry, memory_bytes: u64) -> Result<Self, OsError> {
        let memory = PhysicalMemory::new(memory_bytes.saturating_add(LARGEST_TABLE_BYTES))?;
        Ok(Self { geometry, memory, root: None })
    }

    /// Where the walk of `address` begins, and the memory that it reads.
    ///
    /// Before anything is known it begins in a table where nothing is present.
    #[inline]
    pub fn root_and_memory(&mut self, address: Gva) -> (NodeRef<Hpa>, &mut PhysicalMemory<Hpa>) {
        (self.root(address), &mut self.memory)
    }

    /// The geometry.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn root(&self, address: Gva) -> NodeRef<Hpa> {
        let paging = Paging { five_levels: false, flat: false, physical_bits: PHYSICAL_BITS };
        let (cr3, paging) = self.root.unwrap_or((0, paging));
        NodeRef { level: self.geometry.levels(), ..paging.root(cr3, address) }
    }

    /// Takes note of an event; returns what hardware has to forget.
    ///
    /// # Errors
    /// [`OsError::Recorded`] when the tables cannot be those of the scheme or the machine.
    pub fn apply(&mut self, event: &Event) -> Result<Option<Flush<Gva>>, OsError> {
        let everything = Flush::everything(true, true);
        let pages = |address: u64, length: u64| {
            let last = Gva::new(address.saturating_add(length.checked_sub(1)?));
            Some(Flush { start: Gva::new(address), last, ..everything })
        };
        Ok(match *event {
            Event::Root { cr3, cr4 } => {
                let paging = Paging::new(cr4, PHYSICAL_BITS);
                let (recorded, ours) = (paging.geometry(), self.geometry);
                if recorded != ours {
                    return Err(OsError::Recorded(format!(
                        "the recorded machine's tables have {} levels, the scheme's {}; choose scheme `{}`",
                        recorded.levels(),
                        ours.levels(),
                        if paging.five_levels { "recorded5" } else { "recorded" }
                    )));
                }
                self.check_entry(cr3)?;
                let before = self.root.replace((cr3, paging));
                (before != self.root).then_some(everything)
            }
            Event::Entry { address, level, value } => {
                let Some((_, paging)) = self.root else {
                    return Err(OsError::Recorded(
                        "the trace has an entry before it says where the tables begin; record it again"
                            .to_owned(),
                    ));
                };
                self.check_place(address)?;
                let entry = paging.entry(value, level);
                if entry.is_present() {
                    self.check_entry(entry.0)?;
                }
                let at = Hpa::new(address & !7);
                let known = Entry(self.memory.read(at));
                self.memory.write(at, entry.with_usage_of(known).0);
                let same = known.with_usage_of(entry) == entry.with_usage_of(known);
                (known.is_present() && !same).then_some(everything)
            }
            Event::Unmap { address, length }
            | Event::Protect { address, length, .. }
            | Event::Map { address, length, .. }
            | Event::Advise { address, length, advice: Advice::DontNeed } => pages(address, length),
            Event::Remap { from, from_length, .. } => pages(from, from_length),
            Event::Break { from, to } if to < from => pages(to, from - to),
            _ => None,
        })
    }

    /// Refuses an entry, or a CR3, that leads out of memory; bits 52 to 63 are no part of the address.
    fn check_entry(&self, word: u64) -> Result<(), OsError> {
        self.check_place(word & ((1 << PHYSICAL_BITS) - 1))
    }

    /// Refuses what does not lie in memory.
    fn check_place(&self, address: u64) -> Result<(), OsError> {
        let address = address & !BELOW_ADDRESS;
        let most = self.memory.size_bytes() - LARGEST_TABLE_BYTES;
        if address < most {
            return Ok(());
        }
        Err(OsError::Recorded(format!(
            "the recorded machine has memory at {address:#x}, the simulated one only {most} bytes; raise \
             `memory_bytes` in the machine's [os] section"
        )))
    }

    /// What the operating system says to a walk that finds nothing.
    pub fn missing(&self, address: Gva) -> OsError {
        OsError::Recorded(if self.root.is_some() {
            format!(
                "the recorded machine's tables, as the trace has them, do not permit this access to \
                 {:#x}; record it again, or choose another scheme",
                address.raw()
            )
        } else {
            "the trace does not hold the page tables of a machine; record it with `flatwalk vm run \
             --record`, or choose another scheme"
                .to_owned()
        })
    }

    /// The nodes that the program's walks have used, with the entries of them that they have.
    pub fn nodes(&self) -> Vec<NodeStatistics> {
        let mut nodes: Vec<_> = self.census().nodes.into_iter().collect();
        nodes.sort_unstable_by_key(|&(shape, _)| std::cmp::Reverse(shape));
        let statistics = nodes.into_iter().map(|((level, width), (nodes, entries_used))| {
            let node_bytes = 8 * self.geometry.node_entries(width);
            let name = levels_spanned(level, width);
            NodeStatistics { name, level, width, node_bytes, nodes, entries_used }
        });
        statistics.collect()
    }

    /// The same nodes in outline; `None` if the trace had no tables.
    pub fn outline(&self) -> Option<Vec<Part>> {
        self.root.map(|_| outline(self, &self.memory))
    }

    /// Bytes in the pages that these entries map.
    pub fn data_bytes(&self) -> u64 {
        self.census().data_bytes
    }

    fn census(&self) -> Census {
        let mut census = Census::default();
        if self.root.is_some() {
            self.look_through(self.root(Gva::new(0)), &mut census);
        }
        census
    }

    fn look_through(&self, node: NodeRef<Hpa>, census: &mut Census) {
        if !census.seen.insert((node.base, node.level)) {
            return;
        }
        let mut used = 0;
        for index in 0..self.geometry.node_entries(node.width) {
            let entry = Entry(self.memory.read(node.base.offset(index * 8)));
            match entry.decode::<Hpa>(self.geometry, node.bottom()) {
                Decoded::Absent | Decoded::Reserved => continue,
                Decoded::Mapped { level, .. } => census.data_bytes += self.geometry.span(level),
                Decoded::Table { base, level, width } => {
                    self.look_through(NodeRef { base, level, width, ..node }, census);
                }
            }
            used += 1;
        }
        let (nodes, entries) = census.nodes.entry((node.level, node.width)).or_default();
        *nodes += 1;
        *entries += used;
    }
}

impl Nodes<Hpa> for Recorded {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn root(&self) -> NodeRef<Hpa> {
        self.root(Gva::new(0))
    }

    fn used(&self, _node: NodeRef<Hpa>) -> Option<u64> {
        None
    }

    fn is_fallback(&self, _node: NodeRef<Hpa>) -> bool {
        false
    }

    fn child(&self, base: Hpa, level: Level, width: Width) -> Option<NodeRef<Hpa>> {
        Some(NodeRef { base, level, width, ..self.root(Gva::new(0)) })
    }

    fn hidden(&self) -> Vec<(NodeRef<Hpa>, u64)> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::AccessKind;

    use super::*;
    use crate::driver::piece::Piece;
    use crate::driver::run::{Mode, Run};
    use crate::memory::reader::NoClock;
    use crate::mmu::event::Request;
    use crate::tests::testing::{Do, Scenario, go, machine, scheme};

    const PAGE: u64 = 1 << 40 | 5 << 30 | 6 << 21 | 7 << 12;
    const CR4_FLAT: u64 = 1 << 29;
    const FLAT: u64 = 1 << 52;
    /// Present, writable, for user mode.
    const RIGHTS: u64 = 7;

    fn run(mode: Mode) -> Run {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.recorded = true;
        scenario.mode = mode;
        scenario.start(&[], false)
    }

    fn take(run: &mut Run, event: Event) -> Result<(), OsError> {
        run.take(&Piece::Event(event))
    }

    fn entry(run: &mut Run, level: Level, address: u64, value: u64) {
        take(run, Event::Entry { address, level, value }).unwrap();
    }

    /// Four ordinary tables that lead from CR3 to `frame`.
    fn ordinary(run: &mut Run, frame: u64) {
        take(run, Event::Root { cr3: 0x1000, cr4: 0 }).unwrap();
        entry(run, 4, 0x1000 + 8 * (PAGE >> 39), 0x5000 | RIGHTS);
        entry(run, 3, 0x5000 + 8 * 5, 0x3000 | RIGHTS);
        entry(run, 2, 0x3000 + 8 * 6, 0x9000 | RIGHTS);
        entry(run, 1, 0x9000 + 8 * 7, frame | RIGHTS);
    }

    fn physical(run: &mut Run, address: u64, kind: AccessKind) -> Option<u64> {
        let at = Gva::new(address);
        let answer = run.mmu.translate(
            Request { address: at, kind, at: 0 },
            || 0,
            &mut run.system,
            &mut NoClock,
        );
        answer.ok().map(|answer| answer.physical.raw())
    }

    fn walks(run: &Run) -> (u64, u64) {
        let total = run.mmu.statistics.total();
        (total.walks, total.accesses)
    }

    #[test]
    fn a_walk_reads_the_entries_that_the_machine_had() {
        for mode in [Mode::Functional, Mode::Timing] {
            let mut run = run(mode);
            ordinary(&mut run, 0x7_0000);
            go(&mut run, &[Do::Load(PAGE + 8)]);
            assert_eq!(walks(&run), (1, 4));
            // A store comes back for the dirty bit.
            go(&mut run, &[Do::Store(PAGE + 16)]);
            assert_eq!(walks(&run).0, 2);
            assert_eq!(physical(&mut run, PAGE + 0x123, AccessKind::Load), Some(0x7_0123));
            let shapes: Vec<_> = run.system.nodes().iter().map(|n| (n.level, n.nodes)).collect();
            assert_eq!(shapes, [(4, 1), (3, 1), (2, 1), (1, 1)]);
            let [(_, _, parts)] = &run.system.outlines()[..] else { panic!("one table") };
            let found: Vec<_> = parts
                .iter()
                .map(|part| (part.node, part.level, part.tables, part.pages, part.entries[0].index))
                .collect();
            let expected = [
                (0x1000, 4, 1, 0, 2),
                (0x5000, 3, 1, 0, 5),
                (0x3000, 2, 1, 0, 6),
                (0x9000, 1, 0, 1, 7),
            ];
            assert_eq!(found, expected);
            assert_eq!((parts[3].first, parts[3].last), (PAGE >> 21 << 21, PAGE | 0x1f_ffff));
            assert_eq!(run.system.data_bytes(), 4096);
        }
    }

    #[test]
    fn flat_tables_are_walked_as_the_hardware_does() {
        let mut run = run(Mode::Functional);
        // A flat root, whose block of 2 MiB holds level 3, and a flat table of levels 2 and 1.
        take(&mut run, Event::Root { cr3: 0x70_0000 | FLAT, cr4: CR4_FLAT }).unwrap();
        entry(&mut run, 3, 0x60_0000 + 8 * (PAGE >> 30), 0x80_0000 | FLAT | RIGHTS);
        entry(&mut run, 1, 0x80_0000 + 8 * (6 << 9 | 7), 0x7_0000 | RIGHTS);
        go(&mut run, &[Do::Load(PAGE)]);
        assert_eq!(walks(&run), (1, 2));
        assert_eq!(physical(&mut run, PAGE, AccessKind::Load), Some(0x7_0000));
        let shapes: Vec<_> =
            run.system.nodes().iter().map(|n| (n.level, n.width, n.node_bytes)).collect();
        assert_eq!(shapes, [(4, 2, 2 << 20), (2, 2, 2 << 20)]);
    }

    #[test]
    fn what_changed_is_walked_for_anew() {
        let mut run = run(Mode::Functional);
        ordinary(&mut run, 0x7_0000);
        assert_eq!(physical(&mut run, PAGE, AccessKind::Load), Some(0x7_0000));
        // Told again with other usage bits: nothing is stale.
        entry(&mut run, 1, 0x9000 + 8 * 7, 0x7_0000 | RIGHTS | 3 << 5);
        physical(&mut run, PAGE, AccessKind::Load);
        assert_eq!(walks(&run).0, 1);
        // Another page, as after a copy on write.
        entry(&mut run, 1, 0x9000 + 8 * 7, 0x8_0000 | RIGHTS);
        assert_eq!(physical(&mut run, PAGE, AccessKind::Load), Some(0x8_0000));
        // Another root.
        take(&mut run, Event::Root { cr3: 0x2000, cr4: 0 }).unwrap();
        assert_eq!(physical(&mut run, PAGE, AccessKind::Load), None);
        take(&mut run, Event::Root { cr3: 0x1000, cr4: 0 }).unwrap();
        assert_eq!(physical(&mut run, PAGE, AccessKind::Load), Some(0x8_0000));
        let before = walks(&run).0;
        take(&mut run, Event::Unmap { address: PAGE, length: 4096 }).unwrap();
        physical(&mut run, PAGE, AccessKind::Load);
        assert_eq!(walks(&run).0, before + 1);
    }

    #[test]
    fn code_is_fetched_from_where_it_has_moved_to() {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.recorded = true;
        scenario.machine.tlb.l1i = machine().tlb.l1i;
        let mut run = scenario.start(&[], false);
        ordinary(&mut run, 0x7_0000);
        // The tests' code is in page 0.
        entry(&mut run, 4, 0x1000, 0x5000 | RIGHTS);
        entry(&mut run, 3, 0x5000, 0x3000 | RIGHTS);
        entry(&mut run, 2, 0x3000, 0x9000 | RIGHTS);
        entry(&mut run, 1, 0x9000, 0xa_0000 | RIGHTS);
        let walks = |run: &Run| run.mmu.statistics.instruction_side;
        go(&mut run, &[Do::Load(PAGE)]);
        assert_eq!(walks(&run), 1);
        entry(&mut run, 1, 0x9000, 0xb_0000 | RIGHTS);
        go(&mut run, &[Do::Load(PAGE)]);
        assert_eq!(walks(&run), 2);
    }

    #[test]
    fn what_the_trace_does_not_tell_is_an_error() {
        let mut run = run(Mode::Functional);
        let load = |run: &mut Run, address| {
            let slice =
                flatwalk_trace::Slice { thread: 0, blocks: vec![0], addresses: vec![address] };
            run.take(&Piece::Slice(slice)).unwrap_err().to_string()
        };
        assert!(load(&mut run, PAGE).contains("vm run --record"));
        ordinary(&mut run, 0x7_0000);
        assert!(load(&mut run, PAGE + 4096).contains(&format!("{:#x}", PAGE + 4096)));
        entry(&mut run, 1, 0x9000 + 8 * 8, 0x7_0000 | 5);
        let store =
            flatwalk_trace::Slice { thread: 0, blocks: vec![2], addresses: vec![PAGE + 4096] };
        let refused = run.take(&Piece::Slice(store)).unwrap_err().to_string();
        assert!(refused.contains("do not permit"), "{refused}");
    }

    #[test]
    fn tables_that_cannot_be_are_refused() {
        let refused = |events: &[Event]| {
            let mut run = run(Mode::Functional);
            let (last, first) = events.split_last().unwrap();
            for event in first {
                take(&mut run, event.clone()).unwrap();
            }
            take(&mut run, last.clone()).unwrap_err().to_string()
        };
        let root = Event::Root { cr3: 0x1000, cr4: 0 };
        let entry = |address, value| Event::Entry { address, level: 1, value };
        assert!(refused(&[Event::Root { cr3: 0x1000, cr4: 1 << 12 }]).contains("`recorded5`"));
        assert!(refused(&[Event::Root { cr3: 1 << 45, cr4: 0 }]).contains("memory_bytes"));
        assert!(refused(&[entry(0x1000, 7)]).contains("before"));
        assert!(refused(&[root.clone(), entry(1 << 45, 7)]).contains("memory_bytes"));
        assert!(refused(&[root.clone(), entry(1 << 52 | 0x1000, 7)]).contains("memory_bytes"));
        assert!(refused(&[root.clone(), entry(u64::MAX, 7)]).contains("memory_bytes"));
        assert!(refused(&[root, entry(0x1000, 1 << 45 | 7)]).contains("memory_bytes"));
    }
}
