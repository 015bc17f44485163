//! Prefetching for the simulator itself: its data structures miss the caches of the machine it runs on
//! about as often as the program's accesses miss simulated ones. Nothing that is simulated changes.

/// Prefetches the line of `word` into the caches of the simulator's own machine.
#[inline]
pub fn prefetch<T>(word: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, which changes no state that a program can
        // see and never faults, whatever the address.
        #[expect(unsafe_code, reason = "there is no safe way to ask for a line")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}
