//! Which stretches of a run are recorded: a systematic sample, between N and 2 N of them however long it
//! runs.

/// A sample under way. The run is divided into stretches of equal length; those are recorded whose number
/// leaves the remainder `offset` when divided by `stride`.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Instructions of a stretch.
    pub length: u64,
    /// N.
    windows: u64,
    seed: u64,
    stride: u64,
    offset: u64,
    /// The stretch that runs, or that comes after the gap.
    index: u64,
    /// Recorded ones up to and with it.
    kept: u64,
}

/// What comes after a recorded stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// There are too many: from here on only those with this offset of this stride count.
    pub thinned: Option<(u64, u64)>,
    /// So many instructions are passed over …
    pub gap: u64,
    /// … before stretch number `index` is recorded.
    pub index: u64,
}

impl Sample {
    /// A sample of between `windows` and twice as many stretches of `length` instructions.
    pub fn new(windows: u64, length: u64, seed: u64) -> Sample {
        let (windows, length) = (windows.max(1), length.max(1));
        Sample { length, windows, seed, stride: 1, offset: 0, index: 0, kept: 1 }
    }

    /// The stretch that is recorded, or will be after the gap.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// A stretch was recorded, and the run goes on.
    pub fn advance(&mut self) -> Step {
        let mut thinned = None;
        if self.kept >= 2 * self.windows {
            // Which half goes is a coin's decision: over all doublings, every offset is equally likely.
            self.offset += self.stride * coin(self.seed, self.stride);
            self.stride *= 2;
            self.kept /= 2;
            thinned = Some((self.stride, self.offset));
        }
        let next = self.index + 1;
        let index = next + (self.offset + self.stride - next % self.stride) % self.stride;
        self.index = index;
        self.kept += 1;
        Step { thinned, gap: (index - next).saturating_mul(self.length), index }
    }
}

/// 0 or 1, by the seed and the occasion.
fn coin(seed: u64, occasion: u64) -> u64 {
    // SplitMix64's finaliser.
    let mut mixed = seed.wrapping_add(occasion.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed >> 63
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stretches that are left of a run of so many, and the instructions passed over.
    fn left_of(stretches: u64, windows: u64, seed: u64) -> (Vec<u64>, u64) {
        let mut sample = Sample::new(windows, 10, seed);
        let (mut kept, mut passed) = (vec![0], 0);
        loop {
            let before = sample.index();
            let step = sample.advance();
            assert_eq!(step.gap, (step.index - before - 1) * 10);
            if let Some((stride, offset)) = step.thinned {
                assert_eq!(kept.len() as u64, 2 * windows);
                kept.retain(|index| index % stride == offset);
            }
            if step.index >= stretches {
                return (kept, passed);
            }
            passed += step.gap;
            kept.push(step.index);
        }
    }

    #[test]
    fn between_n_and_twice_as_many_are_left_evenly_spread() {
        for seed in 0..20 {
            for stretches in 1..400 {
                let (kept, _) = left_of(stretches, 4, seed);
                let count = kept.len() as u64;
                if stretches < 8 {
                    assert_eq!(kept, (0..stretches).collect::<Vec<_>>());
                } else {
                    assert!((4..=8).contains(&count), "{count} of {stretches}");
                }
                let spacing = kept.get(1).map_or(1, |second| second - kept[0]);
                assert!(spacing.is_power_of_two());
                assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == spacing));
                assert!(kept[0] < spacing);
            }
        }
    }

    #[test]
    fn every_offset_comes_about() {
        let mut seen = [0; 16];
        for seed in 0..1600 {
            let (kept, _) = left_of(8 * 16 - 1, 8, seed);
            seen[(kept[0] % 16) as usize] += 1;
        }
        let spread = |count: &&u32| (50..=150).contains(*count);
        assert!(seen.iter().filter(spread).count() >= 8, "{seen:?}");
    }
}
