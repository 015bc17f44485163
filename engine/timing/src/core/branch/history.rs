//! What branches did, as predictors remember it.

/// The latest bits of a history, at most 1024.
#[derive(Clone, Debug, Default)]
pub struct History {
    words: [u64; 16],
    /// Bits pushed so far.
    pushed: usize,
}

impl History {
    /// Bits remembered.
    pub const BITS: u32 = 1024;

    /// The bit that was pushed `age` bits before the latest; less than [`Self::BITS`].
    #[inline]
    pub fn bit(&self, age: u32) -> u32 {
        let at = self.pushed.wrapping_sub(1 + age as usize) % Self::BITS as usize;
        (self.words[at / 64] >> (at % 64)) as u32 & 1
    }

    /// Adds a bit.
    #[inline]
    pub fn push(&mut self, bit: bool) {
        let at = self.pushed % Self::BITS as usize;
        let word = &mut self.words[at / 64];
        *word = *word & !(1 << (at % 64)) | u64::from(bit) << (at % 64);
        self.pushed += 1;
    }
}

/// The exclusive or of the latest `length` bits of a history cut into pieces of `width`, the latest bit
/// lowest: a shift register that wraps around (Michaud, "A PPM-like, tag-based branch predictor", 2005).
#[derive(Clone, Copy, Debug, Default)]
pub struct Folded {
    /// The fold.
    pub value: u32,
    length: u32,
    width: u32,
}

impl Folded {
    /// Of an empty history. `length` is less than [`History::BITS`], `width` 1 to 31.
    pub fn new(length: u32, width: u32) -> Self {
        Self { value: 0, length, width }
    }

    /// `bit` is about to be pushed.
    #[inline]
    pub fn push(&mut self, history: &History, bit: bool) {
        let Some(oldest) = self.length.checked_sub(1) else { return };
        let leaves = history.bit(oldest) << (self.length % self.width);
        let shifted = self.value << 1 ^ u32::from(bit) ^ leaves;
        self.value = (shifted ^ shifted >> self.width) & ((1 << self.width) - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_are_those_of_the_bits_themselves() {
        let mut history = History::default();
        let mut folds: Vec<_> =
            [(0, 12), (1, 5), (11, 11), (12, 11), (987, 10), (232, 12), (5, 13)]
                .map(|(length, width)| Folded::new(length, width))
                .into();
        let mut random = 1_u32;
        for _ in 0..5000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bit = random >> 31 == 1;
            for fold in &mut folds {
                fold.push(&history, bit);
            }
            history.push(bit);
            for fold in &folds {
                let bits = (0..fold.length).map(|age| history.bit(age) << (age % fold.width));
                assert_eq!(fold.value, bits.fold(0, |sum, bit| sum ^ bit), "{fold:?}");
            }
        }
    }
}
