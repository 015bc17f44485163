//! Which stretches of a sampled recording are kept, as both sides know it.

/// Of block `block` of `stride` stretches, a power of two, the one that is kept. A block is two
/// halves, of each of which one is kept while the stride is half as long, and then a coin of `seed`
/// decides between these two. So each of a block's stretches is as likely, whatever becomes of
/// those of other blocks: a stratified sample, which no period of the program can be in step with
/// (Cochran, "Sampling Techniques", 1977, chapters 5 and 8).
pub fn chosen(seed: u64, stride: u64, block: u64) -> u64 {
    let (mut stride, mut at) = (stride, block);
    while stride > 1 {
        stride /= 2;
        at = at.wrapping_mul(2).wrapping_add(coin(seed, stride, at));
    }
    at
}

/// Whether the stretch `number` is kept of its block of `stride`.
pub fn is_chosen(seed: u64, stride: u64, number: u64) -> bool {
    chosen(seed, stride, number / stride) == number
}

/// 0 or 1, for one block's halves of `half` stretches.
fn coin(seed: u64, half: u64, block: u64) -> u64 {
    mixed(mixed(seed.wrapping_add(half.wrapping_mul(0x9e37_79b9_7f4a_7c15))).wrapping_add(block))
        >> 63
}

/// SplitMix64's finaliser.
fn mixed(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
