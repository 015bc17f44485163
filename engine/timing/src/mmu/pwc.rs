//! Page-walk caches: pointers to nodes, tagged by the address prefix that leads to them.
//!
//! - Split, Intel's paging-structure caches (Intel SDM volume 3, section 4.10.3; Barr et al., ISCA
//!   2010): one fully associative structure per level, all probed at once.
//! - Unified: one set-associative structure for all levels (Ainsworth and Jones, ISMM 2021, section 5).
//!
//! The longest prefix wins. Leaves are never kept: the TLB's business.
//!
//! With flattened nodes one entry's prefix spans several levels. It is kept in the structure of the
//! level it was read at, except that pointers to nodes of base-page translations always go to L2's,
//! the largest: so the 18-bit prefixes of a two-level table have its 24 entries (Park et al.,
//! ASPLOS 2022, section 7: "our flattened page tables use the L2 PSC").

use flatwalk_paging::{Geometry, Level, NodeRef, Physical, Rights};

use crate::config::machine;
use crate::counts::{Visitor, add};
use crate::memory::ways::Sets;

/// Look-ups and hits of one structure (split) or of one level's prefixes (unified).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PwcStatistics {
    /// Walks that looked.
    pub lookups: u64,
    /// Walks that started from an entry found here.
    pub hits: u64,
}

add!(PwcStatistics { lookups, hits });

#[derive(Clone, Debug)]
struct Array<A> {
    /// Nodes and when they can be used, by prefix and level of the node pointed to.
    sets: Sets<(NodeRef<A>, u64)>,
    entries: u32,
    /// Bit `l` set: a pointer to a node of topmost level `l` was ever put in.
    levels: u8,
}

impl<A: Physical> Array<A> {
    fn new(entries: u32, ways: u32) -> Self {
        let none = NodeRef { base: A::new(0), level: 1, width: 1, rights: Rights::ALL };
        Self { sets: Sets::new(entries, ways, (none, 0)), entries, levels: 0 }
    }

    /// The node of topmost level `level` on the path of `address`, if it is known at cycle `at`.
    #[inline(always)]
    fn get(
        &mut self,
        geometry: Geometry,
        address: u64,
        level: Level,
        at: u64,
    ) -> Option<NodeRef<A>> {
        if self.levels & (1 << level) == 0 {
            return None;
        }
        let (prefix, tag) = key(geometry, address, level);
        let slot = self.sets.find(prefix, tag)?;
        let (node, ready) = *self.sets.value(slot);
        if ready > at {
            return None;
        }
        self.sets.touch(slot);
        Some(node)
    }

    #[inline]
    fn insert(&mut self, prefix: u64, tag: u64, node: NodeRef<A>, ready: u64) {
        if self.entries > 0 {
            self.sets.insert(prefix, tag, (node, ready));
            self.levels |= 1 << node.level;
        }
    }
}

/// The prefix of `address` that leads to a node of topmost level `level`, and the tag made of both.
#[inline]
fn key(geometry: Geometry, address: u64, level: Level) -> (u64, u64) {
    let prefix = address >> geometry.shift(level + 1);
    (prefix, prefix << 3 | u64::from(level))
}

/// The page-walk caches of one core, for tables in a memory of address type `A`.
#[derive(Clone, Debug)]
pub struct Pwc<A> {
    geometry: Geometry,
    kind: Kind<A>,
    latency: u64,
    /// Walks that looked: everywhere.
    lookups: u64,
    /// By the level whose entries are kept: `[2]` for pointers to level-1 nodes.
    hits: [u64; 8],
    /// Where walks start without page-walk caches, if not at the root.
    start: Option<NodeRef<A>>,
}

#[derive(Clone, Debug)]
enum Kind<A> {
    /// By the level whose entries are kept.
    Split(Box<[Array<A>; 8]>),
    Unified(Array<A>),
    None,
}

impl<A: Physical> Pwc<A> {
    /// Empty structures as configured.
    pub fn new(config: &machine::Pwc, geometry: Geometry) -> Self {
        let (kind, latency) = match config {
            machine::Pwc::Split { latency_cycles, entries } => {
                let array = |level: usize| {
                    let n = entries.get(&format!("L{level}")).copied().unwrap_or(0);
                    Array::new(n, n)
                };
                (Kind::Split(Box::new(std::array::from_fn(array))), *latency_cycles)
            }
            machine::Pwc::Unified { latency_cycles, entries, ways } => {
                (Kind::Unified(Array::new(*entries, *ways)), *latency_cycles)
            }
            machine::Pwc::None => (Kind::None, 0),
        };
        Self { geometry, kind, latency, lookups: 0, hits: [0; 8], start: None }
    }

    /// None, for the same table.
    #[must_use]
    pub fn none(&self) -> Self {
        Self::new(&machine::Pwc::None, self.geometry)
    }

    /// Lets walks start at `node` from now on, where there are no page-walk caches.
    pub fn start_at(&mut self, node: Option<NodeRef<A>>) {
        self.start = node;
    }

    /// The geometry of the table that the pointers are into.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Cycles that a look-up takes before a walk can start.
    pub fn latency(&self) -> u64 {
        self.latency
    }

    /// Which structure keeps pointers to a node like `node`.
    #[inline]
    fn structure(node: &NodeRef<A>) -> usize {
        if node.bottom() == 1 { 2 } else { usize::from(node.level) + 1 }
    }

    /// The deepest node known at cycle `at` on the path of `address`, below the root.
    #[inline]
    pub fn look_up(&mut self, address: u64, at: u64) -> Option<NodeRef<A>> {
        let (geometry, levels) = (self.geometry, self.geometry.levels());
        let found = match &mut self.kind {
            Kind::Split(arrays) => (1..levels).find_map(|level| {
                // A node of this topmost level may be a base-page node, or not.
                let own = usize::from(level) + 1;
                let base = arrays[2].get(geometry, address, level, at);
                if own == 2 {
                    return base;
                }
                base.or_else(|| arrays[own].get(geometry, address, level, at))
            }),
            Kind::Unified(array) => {
                (1..levels).find_map(|level| array.get(geometry, address, level, at))
            }
            Kind::None => return self.start,
        };
        self.lookups += 1;
        if let Some(node) = &found {
            let level = match self.kind {
                Kind::Unified(_) => usize::from(node.level) + 1,
                Kind::Split(_) | Kind::None => Self::structure(node),
            };
            self.hits[level] += 1;
        }
        found
    }

    /// Keeps the pointer to `node` that a walk of `address` read; it can be used from `ready` on.
    #[inline]
    pub fn insert(&mut self, address: u64, node: NodeRef<A>, ready: u64) {
        let (prefix, tag) = key(self.geometry, address, node.level);
        match &mut self.kind {
            Kind::Split(arrays) => {
                arrays[Self::structure(&node)].insert(prefix, tag, node, ready);
            }
            Kind::Unified(array) => array.insert(prefix, tag, node, ready),
            Kind::None => {}
        }
    }

    /// What each structure would answer for `address`, from the root's down; changes nothing.
    pub fn probe(&self, address: u64) -> Vec<(String, Option<NodeRef<A>>)> {
        let known = |array: &Array<A>| {
            (1..self.geometry.levels()).find_map(|level| {
                let (prefix, tag) = key(self.geometry, address, level);
                let there = array.levels & (1 << level) != 0;
                let slot = there.then(|| array.sets.find(prefix, tag)).flatten()?;
                Some(array.sets.value(slot).0)
            })
        };
        match &self.kind {
            Kind::Split(arrays) => (2..=usize::from(self.geometry.levels()))
                .rev()
                .map(|level| (format!("L{level}"), known(&arrays[level])))
                .collect(),
            Kind::Unified(array) => vec![("unified".to_owned(), known(array))],
            Kind::None => Vec::new(),
        }
    }

    /// Drops everything, as INVLPG does (Intel SDM volume 3, section 4.10.4.1: it invalidates all
    /// entries in all paging-structure caches of the current PCID, whatever address it names).
    pub fn flush(&mut self) {
        let arrays = match &mut self.kind {
            Kind::Split(arrays) => &mut arrays[..],
            Kind::Unified(array) => std::slice::from_mut(array),
            Kind::None => return,
        };
        for array in arrays {
            array.sets.drop_where(|_| true);
            array.levels = 0;
        }
    }

    /// Look-ups and hits by the level whose entries are kept, from the root's down.
    pub fn statistics(&self) -> Vec<(Level, PwcStatistics)> {
        if matches!(self.kind, Kind::None) {
            return Vec::new();
        }
        let lookups = self.lookups;
        let of = |level: Level| PwcStatistics { lookups, hits: self.hits[usize::from(level)] };
        (2..=self.geometry.levels()).rev().map(|level| (level, of(level))).collect()
    }

    /// Shows its counts.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.lookups);
        visit(&mut self.hits);
    }
}
