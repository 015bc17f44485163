//! What the processor says of itself: the leaves of `cpuid` that describe its caches, TLBs and clock, on
//! the processor that this thread runs on. They are read here and understood elsewhere.

use serde::Serialize;

/// The leaves by number and sub-leaf: `[leaf, subleaf, eax, ebx, ecx, edx]`; none on other architectures.
#[derive(Debug, Serialize)]
pub struct Leaves {
    leaves: Vec<[u32; 6]>,
}

/// Sub-leaves of one leaf, at most.
#[cfg(target_arch = "x86_64")]
const MOST: u32 = 64;

/// Reads them.
#[cfg(target_arch = "x86_64")]
pub fn read() -> Leaves {
    use std::arch::x86_64::__cpuid_count;

    let mut leaves = Vec::new();
    for base in [0, 0x8000_0000] {
        let last = __cpuid_count(base, 0).eax;
        for leaf in base..=last.min(base + 0x40) {
            for subleaf in 0..MOST {
                let found = __cpuid_count(leaf, subleaf);
                let goes_on = match leaf {
                    // The sub-leaf that names no cache is the last.
                    4 | 0x8000_001d => found.eax & 0x1f != 0,
                    // Sub-leaf 0 says how many there are.
                    0x18 => subleaf < __cpuid_count(leaf, 0).eax,
                    _ => false,
                };
                leaves.push([leaf, subleaf, found.eax, found.ebx, found.ecx, found.edx]);
                if !goes_on {
                    break;
                }
            }
        }
    }
    Leaves { leaves }
}

/// There is no such instruction.
#[cfg(not(target_arch = "x86_64"))]
pub fn read() -> Leaves {
    Leaves { leaves: Vec::new() }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_first_leaf_names_the_vendor_and_each_comes_once() {
        let leaves = read().leaves;
        let vendor: Vec<u8> =
            [3, 5, 4].iter().flat_map(|&place| leaves[0][place].to_le_bytes()).collect();
        assert!(vendor.iter().all(u8::is_ascii_alphabetic), "{vendor:?}");
        assert!(leaves.windows(2).all(|pair| pair[0][..2] < pair[1][..2]));
        assert!(leaves.iter().any(|leaf| leaf[0] == 0x8000_0000));
    }
}
