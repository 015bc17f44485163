//! The choice of the arc that enters: multiple partial pricing.

use super::{GROUP, KEPT, Simplex};
use crate::simulated::Emitter;

impl Simplex {
    #[inline]
    fn reduced(&self, out: &mut impl Emitter, arc: u64) -> i64 {
        let (tail, head, cost) = self.network.arc(arc);
        self.columns.cost.load(out, arc as usize);
        self.columns.tail.load(out, arc as usize);
        let tail = self.potential.load(out, tail as usize);
        self.columns.head.load(out, arc as usize);
        cost - tail + self.potential.load(out, head as usize)
    }

    fn fill(&mut self, out: &mut impl Emitter, arc: u64, reduced: i64) {
        let slot = usize::from(self.order.load(out, self.basket));
        self.slot_arc.store(out, slot, arc as u32);
        self.slot_cost.store(out, slot, reduced);
        self.slot_size.store(out, slot, reduced.abs());
        self.basket += 1;
    }

    /// The arc that enters, with its reduced cost; none at the optimum.
    pub(super) fn price(&mut self, out: &mut impl Emitter) -> Option<(u64, i64)> {
        out.enter(self.code.begin);
        let before = self.basket.min(KEPT);
        self.basket = 0;
        // The first one has entered.
        for place in 1..before {
            out.enter(self.code.recheck);
            let slot = usize::from(self.order.load(out, place));
            let arc = u64::from(self.slot_arc.load(out, slot));
            let outside = self.state.load(out, arc as usize);
            let reduced = self.reduced(out, arc);
            if outside && reduced < 0 {
                out.enter(self.code.keep);
                self.fill(out, arc, reduced);
            }
            out.enter(self.code.rechecked);
        }
        let (first, arcs) = (self.group, self.network.arcs());
        let groups = arcs.div_ceil(GROUP as u64);
        loop {
            out.enter(self.code.group);
            for arc in (self.group..arcs).step_by(groups as usize) {
                out.enter(self.code.arc);
                if self.state.load(out, arc as usize) {
                    out.enter(self.code.price);
                    let reduced = self.reduced(out, arc);
                    if reduced < 0 {
                        out.enter(self.code.insert);
                        self.fill(out, arc, reduced);
                    }
                }
                out.enter(self.code.next_arc);
            }
            out.enter(self.code.group_end);
            self.group = (self.group + 1) % groups;
            if self.basket >= KEPT || self.group == first {
                break;
            }
        }
        out.enter(self.code.full);
        if self.basket == 0 {
            return None;
        }
        self.sort(out);
        out.enter(self.code.chosen);
        let slot = usize::from(self.order.load(out, 0));
        let arc = self.slot_arc.load(out, slot);
        let reduced = self.slot_cost.load(out, slot);
        self.columns.tail.load(out, arc as usize);
        self.columns.head.load(out, arc as usize);
        Some((u64::from(arc), reduced))
    }

    /// Sorts the basket by falling absolute cost as far as it is kept (quicksort).
    fn sort(&mut self, out: &mut impl Emitter) {
        let mut parts =
            if self.basket > 1 { vec![(0, self.basket.cast_signed() - 1)] } else { vec![] };
        let size = |sort: &Self, out: &mut _, place: isize| {
            let slot = usize::from(sort.order.load(out, place as usize));
            sort.slot_size.load(out, slot)
        };
        while let Some((from, to)) = parts.pop() {
            out.enter(self.code.pivot);
            let pivot = size(self, out, isize::midpoint(from, to));
            let (mut left, mut right) = (from, to);
            while left <= right {
                out.enter(self.code.left);
                while size(self, out, left) > pivot {
                    left += 1;
                    out.enter(self.code.left);
                }
                out.enter(self.code.right);
                while size(self, out, right) < pivot {
                    right -= 1;
                    out.enter(self.code.right);
                }
                out.enter(self.code.meet);
                if left <= right {
                    out.enter(self.code.swap);
                    let a = self.order.load(out, left as usize);
                    let b = self.order.load(out, right as usize);
                    self.order.store(out, left as usize, b);
                    self.order.store(out, right as usize, a);
                    left += 1;
                    right -= 1;
                }
            }
            out.enter(self.code.parts);
            if left < to && left < KEPT.cast_signed() {
                parts.push((left, to));
            }
            if from < right {
                parts.push((from, right));
            }
        }
    }
}
