//! Marks where the measured part begins and ends for a tool that watches the machine's instructions: the
//! markers of `recorder/flatwalk.h`, which do nothing by themselves. `flatwalk vm bench --host` counts between them.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;

/// Runs `work` between the two markers.
#[inline]
pub fn region<R>(work: impl FnOnce() -> R) -> R {
    start();
    let result = work();
    stop();
    result
}

#[cfg(target_arch = "x86_64")]
fn start() {
    // SAFETY: an instruction without effect, and a jump to the next one, which ends QEMU's block.
    unsafe { asm!("nopl 0x464c5701(%rax,%rax,1)", "jmp 2f", "2:", options(att_syntax)) };
}

#[cfg(target_arch = "x86_64")]
fn stop() {
    // SAFETY: as in `start`.
    unsafe { asm!("nopl 0x464c5702(%rax,%rax,1)", "jmp 2f", "2:", options(att_syntax)) };
}

// Guests are x86-64; elsewhere nothing watches.
#[cfg(not(target_arch = "x86_64"))]
fn start() {}

#[cfg(not(target_arch = "x86_64"))]
fn stop() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_between_the_markers() {
        let mut done = 0;
        let result = region(|| {
            done += 1;
            7
        });
        assert_eq!((done, result), (1, 7));
    }
}
