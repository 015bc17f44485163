//! Negative controls: the speed of what does not depend on the kernel.
//!
//! Other programs, such as another virtual machine on the same core, on the same last-level cache or
//! under the same power budget, make everything slower, and no accounting here shows it. So every
//! measuring process also times three things that stay the same whichever kernel runs: the core's own
//! clock, the throughput of its caches, and that of the memory behind them. If they change between two
//! measurements, that is not due to the kernel.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use serde::Serialize;

use crate::median::median;
use crate::sys::{Mapping, Pages, page_bytes};

const LINE_BYTES: usize = 64;
/// Larger than any first-level cache, but few enough pages for any first-level TLB.
const NEAR_BYTES: usize = 192 << 10;
/// Larger than most second-level caches.
const FAR_BYTES: usize = 8 << 20;
/// Dependent multiplications, and sweeps over the near lines, that are timed together.
const MULTIPLICATIONS: usize = 10_000;
const SWEEPS: usize = 16;

/// Nanoseconds for one of each, measured now: medians.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Readings {
    /// A multiplication that waits for the one before: a fixed number of cycles.
    clock: f64,
    /// Reading a line that the second-level cache holds.
    lines: f64,
    /// Writing a line that the second-level cache does not hold.
    stores: f64,
}

impl Readings {
    /// The slower of two in everything.
    pub fn slower(self, other: Self) -> Self {
        Self {
            clock: self.clock.max(other.clock),
            lines: self.lines.max(other.lines),
            stores: self.stores.max(other.stores),
        }
    }
}

/// Memory that is read and written again and again.
#[derive(Debug)]
pub struct Controls {
    near: Mapping,
    far: Mapping,
}

impl Controls {
    /// # Errors
    /// When there is not enough memory.
    pub fn new() -> io::Result<Self> {
        let small = |bytes| Mapping::aligned(bytes, page_bytes(), Pages::Small);
        let controls = Self { near: small(NEAR_BYTES)?, far: small(FAR_BYTES)? };
        write_lines(&controls.near);
        write_lines(&controls.far);
        Ok(controls)
    }

    /// Measures: about four milliseconds.
    pub fn measure(&self) -> Readings {
        Readings {
            clock: median_of::<21>(MULTIPLICATIONS, || {
                let mut product = black_box(3_u64);
                for _ in 0..MULTIPLICATIONS {
                    product = product.wrapping_mul(product | 1);
                }
                black_box(product);
            }),
            lines: median_of::<21>(SWEEPS * NEAR_BYTES / LINE_BYTES, || {
                for _ in 0..SWEEPS {
                    for offset in (0..NEAR_BYTES).step_by(LINE_BYTES) {
                        self.near.touch(offset);
                    }
                }
            }),
            stores: median_of::<3>(FAR_BYTES / LINE_BYTES, || write_lines(&self.far)),
        }
    }
}

/// Writes every word, line by line.
fn write_lines(area: &Mapping) {
    for index in 0..area.length() / size_of::<u64>() {
        let word = area.word(index);
        // SAFETY: The word lies in the mapping, which nothing else uses.
        unsafe { word.write_volatile(0) };
    }
}

/// Nanoseconds for one of `count` that `work` does together: the median of `TIMES`.
fn median_of<const TIMES: usize>(count: usize, work: impl Fn()) -> f64 {
    let mut found = [0.0; TIMES];
    for time in &mut found {
        let start = Instant::now();
        work();
        *time = start.elapsed().as_secs_f64() * 1e9 / count as f64;
    }
    median(&mut found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_takes_time() {
        let readings = Controls::new().unwrap().measure();
        for time in [readings.clock, readings.lines, readings.stores] {
            assert!(time > 0.0 && time.is_finite(), "{readings:?}");
        }
    }

    #[test]
    fn the_slower_is_the_slower_in_each() {
        let a = Readings { clock: 1.0, lines: 5.0, stores: 2.0 };
        let b = Readings { clock: 2.0, lines: 4.0, stores: 2.0 };
        let slower = a.slower(b);
        assert_eq!(
            [slower.clock, slower.lines, slower.stores].map(f64::to_bits),
            [2.0_f64, 5.0, 2.0].map(f64::to_bits)
        );
    }
}
