//! Recursive page tables: the root leads back to itself, so that every entry has a virtual address, by
//! which a kernel can read and write it.
//!
//! Source: Park et al. (ASPLOS 2022), section 3.5. Write a virtual address as indices `(i_n, …, i_1,
//! byte)`, and let R be the index at which the root leads to itself. The entry of level b on the path of an
//! address is at its **window**
//! ```text
//!   (R, … b times …, R, i_n, …, i_{b+1}, 8 · i_b)
//! ```
//! whatever nodes lie on the path. A root that spans w levels is 2^(9(w−1)) conventional tables side by
//! side. The R-th group of its entries points to each of them as such: the *glue* sub-table, which takes
//! no memory of its own. Line 7 of [`Entry::decode`] does the rest: where such a walk comes to a pointer to
//! a flattened node with as many levels left as that node spans, the node itself is the page.
//!
//! A walker that knows no flattening can be pointed to the glue sub-table instead of the root.

use crate::addr::{Address, Physical};
use crate::entry::Entry;
use crate::geometry::{Geometry, Level};
use crate::walk::NodeRef;

/// At which index a root leads back to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recursion {
    geometry: Geometry,
    index: u64,
}

impl Recursion {
    /// At `index` of the entries that a conventional root has. `None` where that is not in the upper half,
    /// which is the kernel's, or where a node is not a page, so that no page shows one.
    pub fn new(geometry: Geometry, index: u64) -> Option<Self> {
        let entries = geometry.node_entries(1);
        let fits = (entries / 2..entries).contains(&index);
        let pages = geometry.index_bits() + 3 == geometry.page_shift();
        (fits && pages).then_some(Self { geometry, index })
    }

    /// The entries to be written for the table at `root`, and where.
    pub fn entries<A: Physical>(self, root: NodeRef<A>) -> impl Iterator<Item = (A, Entry)> {
        let table_bytes = 1 << self.geometry.node_shift(1);
        let group = self.group(root);
        (0..self.tables(root)).map(move |i| {
            let table = root.base.offset(i * table_bytes);
            (group.offset(i * 8), Entry::table(table, 1).supervisor())
        })
    }

    /// What a walker starts at that knows of no flattening in a root of two levels, or of one level less in
    /// one of three: the glue sub-table. For a conventional root it is the root.
    #[must_use]
    pub fn glue<A: Physical>(self, root: NodeRef<A>) -> NodeRef<A> {
        if root.width == 1 {
            return root;
        }
        NodeRef { base: self.group(root), width: root.width - 1, ..root }
    }

    /// Where the entries for the recursion index stand.
    fn group<A: Physical>(self, root: NodeRef<A>) -> A {
        root.base.offset(self.index * self.tables(root) * 8)
    }

    /// The window of the entry of `level` on the path of `input`.
    pub fn window<In: Address>(self, input: In, level: Level) -> In {
        let geometry = self.geometry;
        let (bits, page) = (geometry.index_bits(), geometry.page_shift());
        // The indices down to `level` move to the end; the last one counts words there.
        let path = geometry.unsigned(input.raw()) >> geometry.shift(level);
        let mut at = path << 3;
        for i in 1..=level {
            at |= self.index << (page + bits * (geometry.levels() - i));
        }
        In::new(geometry.canonical(at))
    }

    /// True if `address` is a window's, and so lost to everything else.
    pub fn contains(self, address: u64) -> bool {
        self.geometry.index(address, self.geometry.levels(), 1) == self.index
    }

    /// Conventional tables that the root stands for.
    fn tables<A: Physical>(self, root: NodeRef<A>) -> u64 {
        self.geometry.node_entries(root.width - 1)
    }
}
