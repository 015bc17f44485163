//! Saturating counters.

/// Moves a signed counter of `bits` bits one up or down, if it is not at its end.
#[inline]
pub fn step(counter: &mut i8, up: bool, bits: u32) {
    let most = ((1_i16 << (bits - 1)) - 1) as i8;
    *counter = if up { (*counter).min(most - 1) + 1 } else { (*counter).max(-most) - 1 };
}

/// Twice the counter plus one: how far it says taken (positive) or not (negative). Never 0.
#[inline]
pub fn centred(counter: i8) -> i32 {
    2 * i32::from(counter) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_stay_within_their_bits() {
        for (bits, least, most) in [(2, -2, 1), (3, -4, 3), (6, -32, 31), (8, -128, 127)] {
            let mut counter = 0;
            (0..300).for_each(|_| step(&mut counter, true, bits));
            assert_eq!(counter, most);
            (0..300).for_each(|_| step(&mut counter, false, bits));
            assert_eq!(counter, least);
            step(&mut counter, true, bits);
            assert_eq!(centred(counter), 2 * i32::from(least) + 3);
        }
    }
}
