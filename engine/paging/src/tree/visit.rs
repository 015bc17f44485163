//! Looking through the pages of a range.

use super::Tree;
use crate::addr::{Address, Physical};
use crate::entry::{Decoded, Entry};
use crate::error::{TableError, check_canonical};
use crate::geometry::Level;
use crate::mapping::Mapping;
use crate::memory::EntryMemory;
use crate::walk::{Fault, NodeRef};

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// Calls `visit` for each page that lies, in part at least, in `length_bytes` from `start`, in
    /// ascending order. A replicated page is visited once.
    ///
    /// # Errors
    /// [`TableError::NotCanonical`] for a range beyond the table.
    pub fn visit(
        &self,
        memory: &impl EntryMemory<Out>,
        start: In,
        length_bytes: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) -> Result<(), TableError> {
        check_canonical(self.geometry, start.raw())?;
        if length_bytes > 0 {
            let last = In::new(start.raw().saturating_add(length_bytes - 1));
            check_canonical(self.geometry, last.raw())?;
            self.visit_between(memory, start.raw(), last.raw(), visit);
        }
        Ok(())
    }

    /// Every page that is mapped, in ascending order of (unsigned) address.
    pub fn mappings(&self, memory: &impl EntryMemory<Out>) -> Vec<Mapping<In, Out>> {
        let mut all = Vec::new();
        self.visit_between(memory, 0, u64::MAX, &mut |mapping| all.push(mapping));
        all
    }

    /// True if no page lies in the page of `level`, 1 to 3, that starts at `input`.
    pub fn is_empty(&self, memory: &impl EntryMemory<Out>, input: In, level: Level) -> bool {
        match self.translate(memory, input) {
            // One entry for the whole page, and it is absent.
            Err(Fault::NotPresent { level: at, .. }) if at >= level => true,
            // The others are of pages, too: those of a higher level may lead to nodes that hold nothing.
            Err(Fault::NotPresent { level: 1, entry_address }) if level == 2 => {
                let entry = |i| Entry(memory.read(entry_address.offset(i * 8)));
                (0..self.geometry.node_entries(1)).all(|i| !entry(i).is_present())
            }
            Err(Fault::NotPresent { .. }) => {
                let mut any = false;
                let bytes = self.geometry.span(level);
                let looked = self.visit(memory, input, bytes, &mut |_| any = true);
                looked.is_ok() && !any
            }
            Ok(_) | Err(Fault::NotCanonical | Fault::Reserved { .. }) => false,
        }
    }

    /// Visits the pages from `first` to `last`, which are canonical, stepping over the gap between
    /// the lower and the upper half of the address space.
    fn visit_between(
        &self,
        memory: &impl EntryMemory<Out>,
        first: u64,
        last: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) {
        let sign = self.geometry.address_bits() - 1;
        let (lower_end, upper_start) = ((1 << sign) - 1, u64::MAX << sign);
        if first <= lower_end {
            self.visit_node(memory, self.root, first, last.min(lower_end), visit);
        }
        if last >= upper_start {
            self.visit_node(memory, self.root, first.max(upper_start), last, visit);
        }
    }

    fn visit_node(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        first: u64,
        last: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) {
        let geometry = self.geometry;
        let mut address = first;
        loop {
            let mut span_level = node.bottom();
            match self.decode(memory, node, In::new(address)) {
                Decoded::Table { base, level, width } => {
                    if let Some(child) = self.child(base, level, width) {
                        let end = address | (geometry.span(node.bottom()) - 1);
                        self.visit_node(memory, child, address, end.min(last), visit);
                    }
                }
                Decoded::Mapped { frame, level } => {
                    visit(self.mapping(memory, node, In::new(address), frame, level));
                    span_level = level;
                }
                Decoded::Absent | Decoded::Reserved => {}
            }
            let end = address | (geometry.span(span_level) - 1);
            if end >= last {
                return;
            }
            address = end + 1;
        }
    }
}
