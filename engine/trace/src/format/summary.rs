//! The totals of a whole trace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::events;
use super::touched::Touched;
use crate::model::Event;

/// Totals over a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Instructions executed.
    pub instructions: u64,
    /// Instructions executed that are not in the trace: the sum of its `Gap` events.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gap_instructions: u64,
    /// Loads made.
    pub loads: u64,
    /// Stores made.
    pub stores: u64,
    /// Threads that ran or started.
    pub threads: u64,
    /// Blocks defined.
    pub blocks: u64,
    /// Bytes of distinct code; the same address with different code counts again.
    pub code_bytes: u64,
    /// Bytes of the 4 KiB pages that instructions or accesses touch.
    pub footprint_bytes: u64,
    /// Ranges `[start, end)` that instructions, accesses or `Populate` events touch, ascending, in
    /// units of 2 MiB.
    pub touched: Vec<(u64, u64)>,
    /// How many events of each kind.
    pub events: BTreeMap<String, u64>,
    /// Content hash, hex. Of the content alone, whatever the compression; of a trace that ended
    /// early, `partial-` and a hash of the chunks' checksums.
    pub hash: String,
    /// What stopped the program before it ended by itself, in words; `None` if nothing did, or it
    /// is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Summary {
    /// Counts an event, and notes the addresses and threads that it names.
    pub(super) fn count(&mut self, event: &Event, touched: &mut Touched) {
        *self.events.entry(events::kind_name(event).to_owned()).or_default() += 1;
        match *event {
            Event::Populate { address, length, .. } => touched.populate(address, length),
            Event::ThreadStart { thread } => touched.thread(thread),
            Event::Gap { instructions } => {
                self.gap_instructions = self.gap_instructions.saturating_add(instructions);
            }
            _ => {}
        }
    }

    /// Whether what was touched is ranges at all, one behind the other.
    pub(super) fn has_ranges(&self) -> bool {
        self.touched.iter().all(|(start, end)| start < end)
            && self.touched.is_sorted_by(|before, next| before.1 <= next.0)
    }

    /// Takes over the totals of what was touched.
    pub(super) fn set_touched(&mut self, touched: &Touched) {
        self.threads = touched.threads();
        self.footprint_bytes = touched.page_count() << 12;
        self.touched = touched.ranges();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_ascend_and_are_not_empty() {
        let has = |touched: &[(u64, u64)]| {
            Summary { touched: touched.to_vec(), ..Summary::default() }.has_ranges()
        };
        assert!(has(&[]) && has(&[(0, 8)]) && has(&[(0, 8), (8, u64::MAX)]));
        for wrong in [&[(5, 0)][..], &[(8, 8)], &[(8, 9), (0, 1)], &[(0, 9), (8, 10)]] {
            assert!(!has(wrong), "{wrong:?}");
        }
    }
}
