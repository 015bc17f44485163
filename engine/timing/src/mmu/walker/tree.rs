//! The walk of one table that is a tree, with its page-walk caches.

use flatwalk_os::PhysicalMemory;
use flatwalk_paging::{
    AccessKind, Address, Entry, EntryMemory, EntryMemoryMut, Geometry, Leaf, Level, NodeRef,
    Physical, Step, Tree, Walk,
};

use super::{Place, Translates, WalkPorts};
use crate::memory::reader::TableReader;
use crate::mmu::event::{Read, Stage, Stopped, WalkObserver, stopped};
use crate::mmu::pwc::Pwc;

/// One stage: its table, which is a tree, and its page-walk caches.
pub(super) struct TreeStage<'a, A> {
    pub(super) stage: Stage,
    pub(super) geometry: Geometry,
    pub(super) root: NodeRef<A>,
    pub(super) memory: &'a mut PhysicalMemory<A>,
    pub(super) pwc: &'a mut Pwc<A>,
}

impl<In: Address, A: Physical> Translates<In, A> for TreeStage<'_, A> {
    #[inline]
    fn within(&self, address: u64, level: Level) -> u64 {
        self.geometry.within(address, level)
    }

    fn known(&self, input: In) -> Option<(A, Level)> {
        let walk: Walk<In, A> = Walk::from(self.geometry, self.root, input);
        let leaf = walk.finish(|at| self.memory.read(at)).ok()?;
        Some((leaf.frame, leaf.level))
    }

    #[inline]
    fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        kind: AccessKind,
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Leaf<A>, u64), Stopped> {
        let from = self.pwc.look_up(input.raw(), at);
        let mut known = from.is_some();
        let mut now = if R::TIMED { at + self.pwc.latency() } else { at };
        let mut walk: Walk<In, A> = Walk::from(self.geometry, from.unwrap_or(self.root), input);
        let store = kind == AccessKind::Store;
        loop {
            let node = walk.at();
            let entry_address = walk.entry_address();
            let (place, placed) = entries.place(entry_address, known, now, ports)?;
            known = false;
            ports.reader.prefetch_hint(place);
            let entry = Entry(self.memory.read(entry_address));
            let rights = node.rights;
            let step = walk.feed(entry);
            // The accessed bit of every entry used and the dirty bit of a leaf stored through are
            // set by the walker (Intel SDM volume 3, section 4.8).
            let touched = match &step {
                Step::Table(_) => entry.touched(false),
                Step::Leaf(leaf) if leaf.rights.permit(kind) => entry.touched(store),
                Step::Leaf(_) | Step::Fault(_) => entry,
            };
            if touched != entry {
                self.memory.write(entry_address, touched.0);
            }
            let response = ports.reader.read_entry(place, placed, touched != entry);
            now = response.ready;
            ports.observer.read(&Read {
                stage: self.stage,
                input: input.raw(),
                class: node.bottom(),
                node: node.base.raw(),
                top: node.level,
                level: node.bottom(),
                entry_address: entry_address.raw(),
                entry,
                rights,
                line: None,
                asked: placed,
                response,
            });
            let protection = match step {
                Step::Table(node) => {
                    self.pwc.insert(input.raw(), node, now);
                    continue;
                }
                Step::Leaf(leaf) if leaf.rights.permit(kind) => {
                    return Ok((Leaf { entry: touched, ..leaf }, now));
                }
                Step::Leaf(_) => true,
                Step::Fault(_) => false,
            };
            return Err(stopped(self.stage, input.raw(), now, protection));
        }
    }
}

impl<'a, A: Physical> TreeStage<'a, A> {
    #[inline]
    pub(super) fn new<In: Address>(
        stage: Stage,
        tree: &Tree<In, A>,
        memory: &'a mut PhysicalMemory<A>,
        pwc: &'a mut Pwc<A>,
    ) -> Self {
        Self { stage, geometry: tree.geometry(), root: tree.root(), memory, pwc }
    }
}
