//! How fast the processor is at something that never changes.
//!
//! A program beside ours on the same core, be it another virtual machine's on its second thread, takes
//! no time of ours that anybody accounts for: it makes everything slower. What it takes most of is
//! throughput, of the caches above all, so that is what is measured: reading lines that the first-level
//! cache has no room for.

use std::io;
use std::time::Instant;

use crate::sys::{Mapping, Pages, page_bytes};

/// Larger than any first-level cache, and few enough pages for any first-level TLB.
const AREA_BYTES: usize = 192 << 10;
const LINE_BYTES: usize = 64;
/// Sweeps that are timed together, and how often that is done: half a millisecond in all.
const SWEEPS: u32 = 16;
const TIMES: usize = 21;

/// Memory that is read again and again.
pub struct Pace {
    area: Mapping,
}

impl Pace {
    /// # Errors
    /// When there is no memory.
    pub fn new() -> io::Result<Self> {
        let area = Mapping::aligned(AREA_BYTES, page_bytes(), Pages::Small)?;
        for offset in (0..AREA_BYTES).step_by(LINE_BYTES) {
            area.store(offset, 1);
        }
        Ok(Self { area })
    }

    /// Nanoseconds to read a line, just now: a median.
    pub fn nanoseconds(&self) -> f64 {
        let mut found = [0.0; TIMES];
        for time in &mut found {
            let start = Instant::now();
            for _ in 0..SWEEPS {
                for offset in (0..AREA_BYTES).step_by(LINE_BYTES) {
                    self.area.touch(offset);
                }
            }
            let lines = f64::from(SWEEPS) * (AREA_BYTES / LINE_BYTES) as f64;
            *time = start.elapsed().as_secs_f64() * 1e9 / lines;
        }
        found.sort_by(f64::total_cmp);
        found[TIMES / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_time() {
        let pace = Pace::new().unwrap().nanoseconds();
        assert!(pace > 0.0 && pace.is_finite());
    }
}
