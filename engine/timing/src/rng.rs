//! A small, fast, reproducible random number generator (SplitMix64, Steele et al., 2014).

/// The generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose sequence depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True in `percent` of 100 cases.
    #[inline]
    pub fn percent(&mut self, percent: u32) -> bool {
        // The high half of a 64-bit product is uniform over 0..100 to within 2^-57.
        ((u128::from(self.next_u64()) * 100) >> 64) < u128::from(percent)
    }
}
