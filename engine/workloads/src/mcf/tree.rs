//! The spanning tree: the cycle that an arc closes, and what is hung elsewhere.

use flatwalk_trace::BlockId;

use super::{NONE, ROOT, Simplex};
use crate::simulated::Emitter;

/// An arc that enters the tree.
pub(super) struct Entering {
    pub(super) arc: u32,
    /// Its end in the part that is hung from it, and the other one; whether it leads from that to this.
    pub(super) below: u32,
    pub(super) above: u32,
    pub(super) up: bool,
    pub(super) flow: u32,
}

impl Simplex {
    /// Where the ways from an arc's ends up the tree meet, the node whose basic arc leaves, whether that
    /// is on the head's way, and the flow that the cycle takes.
    pub(super) fn ratio(
        &self,
        out: &mut impl Emitter,
        tail: u32,
        head: u32,
    ) -> (u32, u32, bool, u32) {
        let (mut ends, mut least, mut leaving) = ([tail, head], [u32::MAX; 2], [NONE; 2]);
        while ends[0] != ends[1] {
            out.enter(self.code.compare);
            let [of_tail, of_head] = ends.map(|end| self.subtree.load(out, end as usize));
            let side = usize::from(of_tail >= of_head);
            out.enter([self.code.up_tail, self.code.up_head][side]);
            let node = ends[side] as usize;
            let (up, flow) = (self.orientation.load(out, node), self.flow.load(out, node));
            // The last on the cycle from where the ways meet: on the tail's way the first one found.
            let less = if side == 0 { up && flow < least[0] } else { !up && flow <= least[1] };
            if less {
                (least[side], leaving[side]) = (flow, ends[side]);
            }
            ends[side] = self.pred.load(out, node);
            if side == 0 && ends[0] == ends[1] {
                out.enter(self.code.tail_joined);
            }
        }
        let side = usize::from(leaving[1] != NONE && least[1] <= least[0]);
        (ends[0], leaving[side], side == 1, least[side])
    }

    /// Sends `flow` around the cycle: from both ends of the arc up to where they meet.
    pub(super) fn send(&mut self, out: &mut impl Emitter, ends: [u32; 2], join: u32, flow: u32) {
        for (side, (test, step)) in self.code.flow.into_iter().enumerate() {
            out.enter(test);
            let mut node = ends[side];
            while node != join {
                out.enter(step);
                let at = node as usize;
                let more = self.orientation.load(out, at) == (side == 1);
                let old = self.flow.load(out, at);
                self.flow.store(out, at, if more { old + flow } else { old - flow });
                node = self.pred.load(out, at);
            }
        }
    }

    /// Enlarges or shrinks the subtrees from `node` up to `join`.
    fn resize(
        &mut self,
        out: &mut impl Emitter,
        (test, step): (BlockId, BlockId),
        mut node: u32,
        join: u32,
        size: i64,
    ) {
        out.enter(test);
        while node != join {
            out.enter(step);
            let old = self.subtree.load(out, node as usize);
            self.subtree.store(out, node as usize, (i64::from(old) + size) as u32);
            node = self.pred.load(out, node as usize);
        }
    }

    /// Takes a node from its predecessor's children, and gives that predecessor.
    fn unlink(&mut self, out: &mut impl Emitter, node: u32) -> u32 {
        out.enter(self.code.unlink);
        let pred = self.pred.load(out, node as usize);
        let sibling = self.sibling.load(out, node as usize);
        let previous = self.previous.load(out, node as usize);
        if sibling != NONE {
            out.enter(self.code.has_sibling);
            self.previous.store(out, sibling as usize, previous);
        }
        out.enter(self.code.unlink_next);
        if previous == NONE {
            out.enter(self.code.unlink_first);
            self.child.store(out, pred as usize, sibling);
        } else {
            out.enter(self.code.unlink_previous);
            self.sibling.store(out, previous as usize, sibling);
        }
        pred
    }

    /// Hangs what hung from the leaving arc from the entering one, and gives the former.
    pub(super) fn rehang(
        &mut self,
        out: &mut impl Emitter,
        enters: &Entering,
        leaving: u32,
        join: u32,
    ) -> u32 {
        out.enter(self.code.rehang);
        let leaves = self.basic.load(out, leaving as usize);
        let size = self.subtree.load(out, leaving as usize);
        let (mut node, mut father, mut covered) = (enters.below, enters.above, 0);
        let (mut arc, mut up, mut flow) = (enters.arc, enters.up, enters.flow);
        let above = loop {
            let pred = self.unlink(out, node);
            out.enter(self.code.link);
            let first = self.child.load(out, father as usize);
            self.sibling.store(out, node as usize, first);
            if first != NONE {
                out.enter(self.code.link_first);
                self.previous.store(out, first as usize, node);
            }
            out.enter(self.code.hang);
            let at = node as usize;
            self.child.store(out, father as usize, node);
            self.pred.store(out, at, father);
            self.previous.store(out, at, NONE);
            let old_up = self.orientation.load(out, at);
            self.orientation.store(out, at, up);
            let old_flow = self.flow.load(out, at);
            self.flow.store(out, at, flow);
            let old_arc = self.basic.load(out, at);
            self.basic.store(out, at, arc);
            let old_size = self.subtree.load(out, at);
            self.subtree.store(out, at, size - covered);
            if node == leaving {
                break pred;
            }
            // The same arc, seen from its other end.
            (arc, up, flow, covered) = (old_arc, !old_up, old_flow, old_size);
            (father, node) = (node, pred);
        };
        self.resize(out, self.code.subtree[0], above, join, -i64::from(size));
        self.resize(out, self.code.subtree[1], enters.above, join, i64::from(size));
        leaves
    }

    /// Adds to the potentials of `top` and all below it.
    pub(super) fn adjust(&mut self, out: &mut impl Emitter, top: u32, change: i64) {
        out.enter(self.code.adjust);
        let mut node = top;
        loop {
            out.enter(self.code.add);
            let potential = self.potential.load(out, node as usize);
            self.potential.store(out, node as usize, potential + change);
            let mut next = self.child.load(out, node as usize);
            while next == NONE {
                out.enter(self.code.at_top);
                if node == top {
                    return;
                }
                out.enter(self.code.sibling);
                next = self.sibling.load(out, node as usize);
                if next == NONE {
                    out.enter(self.code.up);
                    node = self.pred.load(out, node as usize);
                }
            }
            node = next;
        }
    }

    /// Computes a node's potential anew, and gives the next node.
    pub(super) fn renew(&mut self, out: &mut impl Emitter, mut node: u32) -> Option<u32> {
        let at = node as usize;
        out.enter(self.code.renew);
        let up = self.orientation.load(out, at);
        let arc = self.basic.load(out, at);
        self.columns.cost.load(out, arc as usize);
        let cost = self.network.arc(u64::from(arc)).2;
        let pred = self.pred.load(out, at);
        let above = self.potential.load(out, pred as usize);
        self.potential.store(out, at, if up { above + cost } else { above - cost });
        let mut next = self.child.load(out, at);
        while next == NONE {
            out.enter(self.code.renew_sibling);
            next = self.sibling.load(out, node as usize);
            if next == NONE {
                out.enter(self.code.renew_up);
                node = self.pred.load(out, node as usize);
                if node == ROOT {
                    out.enter(self.code.renewed);
                    return None;
                }
            }
        }
        Some(next)
    }
}
