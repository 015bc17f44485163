//! What the processor says of itself: the leaves of `cpuid` that describe its caches, TLBs and clock, on
//! the processor that this thread runs on. They are read here and understood elsewhere.

use serde::{Deserialize, Serialize};

use crate::error::{Attempt, Error};
use crate::sys;

/// Parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The processor that is asked; any, if not given. Of a hybrid one, cores of one type differ from
    /// those of another.
    cpu: Option<usize>,
}

/// The leaves by number and sub-leaf: `[leaf, subleaf, eax, ebx, ecx, edx]`; none on other architectures.
#[derive(Debug, Serialize)]
pub struct Leaves {
    leaves: Vec<[u32; 6]>,
}

/// Sub-leaves of one leaf, at most.
#[cfg(target_arch = "x86_64")]
const MOST: u32 = 64;

/// Reads the leaves of the processor that the parameters name.
pub fn ask(parameters: &Parameters) -> Result<Leaves, Error> {
    if let Some(cpu) = parameters.cpu {
        sys::pin(cpu).attempting(|| format!("running on processor {cpu}"))?;
    }
    Ok(read())
}

/// Reads them where this thread runs.
#[cfg(target_arch = "x86_64")]
fn read() -> Leaves {
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
fn read() -> Leaves {
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

    #[test]
    fn the_processor_that_is_named_is_asked() {
        let usable = |&cpu: &usize| ask(&Parameters { cpu: Some(cpu) }).is_ok();
        let mut asked = 0;
        for cpu in (0..libc::CPU_SETSIZE as usize).filter(usable) {
            assert!(!ask(&Parameters { cpu: Some(cpu) }).unwrap().leaves.is_empty());
            // SAFETY: returns a number.
            assert_eq!(unsafe { libc::sched_getcpu() } as usize, cpu);
            asked += 1;
        }
        assert!(asked > 0);
        // One that cannot be had is an error, not another one's leaves.
        assert_eq!(ask(&Parameters { cpu: Some(1 << 20) }).unwrap_err().status(), 1);
    }
}
