//! The page walkers of a core, booked in time.
//!
//! Walks come in the order of the program, and not of time (see [`crate::memory::slots`]): a walker that an older
//! instruction's walk has from some cycle on may be free before it. How long a walk takes is known only when
//! it has been made, as its reads wait for the caches' MSHRs and for memory. So it begins in the first cycle in
//! which a walker is free, and is over later by the cycles in which older instructions' walks have all of
//! them, as a request is that has an MSHR ([`Mshrs`]). Its reads are not later by that.

use crate::memory::mshrs::Mshrs;

/// A core's page walkers.
#[derive(Clone, Debug)]
pub struct Walkers(Mshrs);

impl Walkers {
    /// So many, of which each makes one walk at a time; 254 at most.
    pub fn new(concurrent: u32) -> Self {
        Self(Mshrs::new(concurrent))
    }

    /// The first cycle from `at` on in which one is free.
    #[inline]
    pub fn earliest(&mut self, at: u64) -> u64 {
        self.0.earliest(at)
    }

    /// Books a walker for a walk that was made in `[start, end)`, where one is free in `start`. Returns by how
    /// many cycles it is over later. No later call may name a time before `frontier`.
    #[inline]
    pub fn book(&mut self, start: u64, end: u64, frontier: u64) -> u64 {
        let fit = self.0.fit(start, end, frontier);
        self.0.book_fit(fit);
        fit.waits
    }

    /// How many make a walk at `at`.
    #[cfg(test)]
    pub fn in_use(&self, at: u64) -> u8 {
        self.0.in_use(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_waits_where_older_ones_have_all_walkers() {
        let mut walkers = Walkers::new(1);
        assert_eq!(walkers.book(1000, 1080, 0), 0);
        assert_eq!([989, 1000, 1079, 1080].map(|at| walkers.earliest(at)), [989, 1080, 1080, 1080]);
        assert_eq!(
            walkers.book(990, 1010, 0),
            80,
            "ten cycles before the other, and ten behind it"
        );
        assert_eq!([980, 990, 1089, 1090].map(|at| walkers.earliest(at)), [980, 1090, 1090, 1090]);
    }
}
