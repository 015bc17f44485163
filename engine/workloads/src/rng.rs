//! Random numbers, permutations and skewed choices, all from seeds and without tables.

/// A well-mixed word from a seed: one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[inline]
pub(crate) fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number in [0, 1) from the upper bits of a random word.
#[inline]
pub(crate) fn unit(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// SplitMix64 as a stream.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Stream number `stream` of a seed: streams of different numbers are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(mix(mix(seed) ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03)))
    }

    #[inline]
    pub(crate) fn word(&mut self) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word
    }

    /// A number below `bound`, by the high half of a product (Lemire, 2019, without the rejection:
    /// the bias is below 2^-32 for the bounds in use).
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1).
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        unit(self.word())
    }

    /// A number of the standard normal distribution (Box and Muller, 1958).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Puts a slice in random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// A permutation of 0 to `length` - 1 that is computed, not stored: a bijection of the next power of
/// two, applied again and again until the result is in range.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    length: u64,
    mask: u64,
    half: u32,
    keys: [u64; 2],
}

impl Permutation {
    pub(crate) fn new(length: u64, seed: u64) -> Self {
        let mask = length.next_power_of_two() - 1;
        let half = (64 - mask.leading_zeros()).div_ceil(2);
        Self { length, mask, half, keys: [mix(seed), mix(!seed)] }
    }

    #[inline]
    pub(crate) fn at(&self, index: u64) -> u64 {
        let mut image = index;
        loop {
            // Each step can be undone.
            for key in self.keys {
                image = image.wrapping_add(key) & self.mask;
                image ^= image >> self.half;
                image = image.wrapping_mul(key | 1) & self.mask;
                image ^= image >> self.half;
            }
            image = image.wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.mask;
            image ^= image >> self.half;
            if image < self.length {
                return image;
            }
        }
    }
}

/// Ranks 0 to `length` - 1 with probabilities in proportion to 1 / (rank + 1)^exponent, by
/// rejection-inversion (Hörmann and Derflinger, ACM TOMACS 6, 1996): exact, and without a table.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    exponent: f64,
    length: f64,
    /// The integral's value at both ends.
    first: f64,
    last: f64,
    /// How far below the value a number may lie and still be accepted without the exact test.
    shortcut: f64,
}

impl Zipf {
    /// `exponent` is positive and not 1.
    pub(crate) fn new(length: u64, exponent: f64) -> Self {
        let mut zipf =
            Self { exponent, length: length as f64, first: 0.0, last: 0.0, shortcut: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.length + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - 2_f64.powf(-exponent));
        zipf
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.last + random.unit() * (self.first - self.last);
            let value = self.inverse(area);
            let rank = value.round().clamp(1.0, self.length);
            if rank - value <= self.shortcut
                || area >= self.integral(rank + 0.5) - rank.powf(-self.exponent)
            {
                return rank as u64 - 1;
            }
        }
    }

    /// The integral of x^-exponent, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        x.powf(1.0 - self.exponent) / (1.0 - self.exponent)
    }

    fn inverse(&self, area: f64) -> f64 {
        (area * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_permutation_hits_every_number_once(length in 1_u64..3000, seed: u64) {
            let permutation = Permutation::new(length, seed);
            let images: BTreeSet<_> = (0..length).map(|i| permutation.at(i)).collect();
            prop_assert_eq!(images, (0..length).collect());
        }
    }

    #[test]
    fn a_permutation_is_irregular() {
        let permutation = Permutation::new(1 << 16, 1);
        let strides: BTreeSet<_> = (1..1 << 16)
            .map(|i| permutation.at(i).wrapping_sub(permutation.at(i - 1)) & 0xffff)
            .collect();
        assert!(strides.len() > 30_000, "only {} strides", strides.len());
    }

    #[test]
    fn ranks_are_as_frequent_as_zipf_says() {
        for exponent in [0.5, 0.99, 1.3] {
            let (length, draws) = (50, 400_000);
            let zipf = Zipf::new(length, exponent);
            let mut random = Random::new(1, 0);
            let mut counts = vec![0_u32; length as usize];
            (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
            let weight = |rank: usize| ((rank + 1) as f64).powf(-exponent);
            let all: f64 = (0..length as usize).map(weight).sum();
            for (rank, &count) in counts.iter().enumerate() {
                let expected = f64::from(draws) * weight(rank) / all;
                // Six standard deviations.
                let difference = (f64::from(count) - expected).abs();
                assert!(
                    difference < 6.0 * expected.sqrt(),
                    "{exponent} {rank}: {count} {expected}"
                );
            }
        }
    }

    #[test]
    fn normal_numbers_have_their_moments() {
        let mut random = Random::new(7, 0);
        let numbers: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
