//! Which stretches of a run are recorded: a stratified sample, of between N and 2 N of them however long it
//! runs.

use crate::channel::sample::chosen;

/// A sample under way. The run is divided into stretches of equal length, and these into blocks of `stride`;
/// of each block one is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Instructions of a stretch.
    pub length: u64,
    /// N.
    windows: u64,
    seed: u64,
    stride: u64,
    /// The stretch that runs, or that comes after the gap.
    index: u64,
    /// Recorded ones up to and with it.
    kept: u64,
}

/// What comes after a recorded stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// There are too many: from here on blocks have this many stretches, drawn by this seed.
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
        Sample { length, windows, seed, stride: 1, index: 0, kept: 1 }
    }

    /// The stretch that is recorded, or will be after the gap.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// A stretch was recorded, and the run goes on.
    pub fn advance(&mut self) -> Step {
        let mut thinned = None;
        if self.kept >= 2 * self.windows {
            self.stride *= 2;
            self.kept /= 2;
            thinned = Some((self.stride, self.seed));
        }
        let next = self.index + 1;
        let index = chosen(self.seed, self.stride, self.index / self.stride + 1);
        self.index = index;
        self.kept += 1;
        Step { thinned, gap: (index - next).saturating_mul(self.length), index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::sample::is_chosen;

    /// The stretches that are left of a run of so many, and the stride.
    fn left_of(stretches: u64, windows: u64, seed: u64) -> (Vec<u64>, u64) {
        let mut sample = Sample::new(windows, 10, seed);
        let (mut kept, mut blocks) = (vec![0], 1);
        loop {
            let before = sample.index();
            let step = sample.advance();
            assert_eq!(step.gap, (step.index - before - 1) * 10);
            if let Some((stride, of)) = step.thinned {
                assert_eq!((kept.len() as u64, stride, of), (2 * windows, 2 * blocks, seed));
                blocks = stride;
                kept.retain(|&index| is_chosen(seed, stride, index));
                assert_eq!(kept.len() as u64, windows);
            }
            if step.index >= stretches {
                return (kept, blocks);
            }
            kept.push(step.index);
        }
    }

    #[test]
    fn between_n_and_twice_as_many_are_left_one_of_each_block() {
        for seed in 0..20 {
            for stretches in 1..400 {
                let (kept, stride) = left_of(stretches, 4, seed);
                let count = kept.len() as u64;
                if stretches < 8 {
                    assert_eq!(kept, (0..stretches).collect::<Vec<_>>());
                } else {
                    assert!((4..=8).contains(&count), "{count} of {stretches}");
                }
                let blocks: Vec<u64> = kept.iter().map(|index| index / stride).collect();
                assert_eq!(blocks, (0..count).collect::<Vec<_>>());
                // Of the last block, which the run's end may cut off, none may be left.
                assert!(stretches <= (count + 1) * stride);
            }
        }
    }

    #[test]
    fn each_of_a_block_is_as_likely_as_the_others_whatever_comes_of_its_neighbour() {
        let mut seen = [[0_u32; 8]; 8];
        for seed in 0..6400 {
            let (kept, stride) = left_of(100, 8, seed);
            assert_eq!(stride, 8);
            seen[(kept[0] % 8) as usize][(kept[1] % 8) as usize] += 1;
        }
        // A hundred of each pair are to be expected; 5 of their deviations are 50.
        assert!(seen.iter().flatten().all(|count| (50..=150).contains(count)), "{seen:?}");
    }
}
