//! How many pages the TLBs reach: a chain of dependent loads, one in each of so many base pages, in random
//! order, over and over. What fits is walked for once; the event counters show what does not.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Context;
use crate::error::{Attempt, Error, require};
use crate::random::Random;
use crate::region::region;
use crate::sys::{Mapping, Pages};

/// Parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Pages of 4 KiB in the chain, at least 2.
    pages: usize,
    /// Loads that are measured.
    loads: u64,
    /// Of the order.
    seed: u64,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    nanoseconds_per_load: f64,
    loads: u64,
}

/// Words of a page, and of a line.
const PAGE: usize = 512;
const LINE: usize = 8;
/// Pages at most: 4 GiB.
const MOST: usize = 1 << 20;

/// Writes a chain through all pages into `words`: each holds the index of the next. Lines differ from page
/// to page, so that the chain uses all sets of the caches.
fn link(words: &mut [u64], pages: usize, random: &mut Random) -> usize {
    let order = random.permutation(pages);
    let place = |page: usize| page * PAGE + page % (PAGE / LINE) * LINE;
    for (position, &page) in order.iter().enumerate() {
        words[place(page)] = place(order[(position + 1) % pages]) as u64;
    }
    place(order[0])
}

/// Follows the chain.
fn follow(words: &[u64], start: usize, loads: u64) -> usize {
    (0..loads).fold(start, |at, _| words[at] as usize)
}

/// Measures.
pub fn measure(parameters: &Parameters, context: &mut Context) -> Result<Answer, Error> {
    let &Parameters { pages, loads, seed } = parameters;
    require((2..=MOST).contains(&pages), "pages", "must be 2 to 1048576")?;
    require((1..=1 << 32).contains(&loads), "loads", "must be 1 to 4294967296")?;
    let bytes = pages * PAGE * 8;
    let mut memory =
        Mapping::aligned(bytes, 0, Pages::Small).attempting(|| format!("mapping {bytes} bytes"))?;
    let words = memory.words_mut();
    let start = link(words, pages, &mut Random::new(seed));
    let warm = follow(words, start, 2 * pages as u64);
    let began = Instant::now();
    let end = context.measured(|| region(|| follow(words, warm, loads)));
    let nanoseconds = began.elapsed().as_nanos() as f64;
    std::hint::black_box(end);
    Ok(Answer { nanoseconds_per_load: nanoseconds / loads as f64, loads })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    #[test]
    fn the_chain_goes_once_through_every_page() {
        let mut words = vec![0; 300 * PAGE];
        let start = link(&mut words, 300, &mut Random::new(1));
        let mut at = start;
        let mut seen = vec![false; 300];
        for _ in 0..300 {
            assert!(!std::mem::replace(&mut seen[at / PAGE], true));
            at = words[at] as usize;
        }
        assert!(seen.iter().all(|&page| page) && at == start);
        assert_eq!(follow(&words, start, 300), start);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        for (pages, loads) in [(1, 10), (MOST + 1, 10), (2, 0)] {
            let parameters = Parameters { pages, loads, seed: 1 };
            assert_eq!(measure(&parameters, &mut context()).unwrap_err().status(), 2);
        }
        let answer = measure(&Parameters { pages: 8, loads: 100, seed: 1 }, &mut context());
        assert_eq!(answer.unwrap().loads, 100);
    }
}
