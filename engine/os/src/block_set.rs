//! Sets of numbers, as bits under a 64-ary tree of summaries: every operation takes a few words.

/// A set of block numbers with a fast minimum and maximum: level 0 has one bit per block, each level above one
/// bit per non-zero word of the level below.
pub(crate) struct BlockSet {
    pub(crate) levels: Vec<Vec<u64>>,
    pub(crate) count: u64,
}

impl BlockSet {
    pub(crate) fn new(blocks: u64) -> Self {
        let mut levels = Vec::new();
        let mut words = blocks.div_ceil(64).max(1) as usize;
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels, count: 0 };
            }
            words = words.div_ceil(64);
        }
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.levels[0].get((block >> 6) as usize).is_some_and(|word| word >> (block & 63) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, mut block: u64) {
        self.count += 1;
        for level in &mut self.levels {
            let word = &mut level[(block >> 6) as usize];
            let summarised = *word != 0;
            *word |= 1 << (block & 63);
            if summarised {
                return;
            }
            block >>= 6;
        }
    }

    pub(crate) fn remove(&mut self, mut block: u64) {
        self.count -= 1;
        for level in &mut self.levels {
            let word = &mut level[(block >> 6) as usize];
            *word &= !(1 << (block & 63));
            if *word != 0 {
                return;
            }
            block >>= 6;
        }
    }

    /// The lowest member. The set must not be empty.
    pub(crate) fn first(&self) -> u64 {
        self.levels
            .iter()
            .rev()
            .fold(0, |word, level| word << 6 | u64::from(level[word as usize].trailing_zeros()))
    }

    /// The highest member. The set must not be empty.
    pub(crate) fn last(&self) -> u64 {
        self.levels
            .iter()
            .rev()
            .fold(0, |word, level| word << 6 | u64::from(level[word as usize].ilog2()))
    }
}
