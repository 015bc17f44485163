//! The hash functions of hashed tables: one function of 64 bits, which a salt makes many.

/// The salt of hash function `number`.
pub fn salt(number: u64) -> u64 {
    (number + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Spreads a key over 64 bits, the upper of which count.
#[inline]
pub fn mix(key: u64) -> u64 {
    let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ product >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Where `key` belongs among 2^`shift` places.
#[inline]
pub fn index(key: u64, salt: u64, shift: u8) -> u64 {
    mix(key ^ salt) >> (64 - shift)
}
