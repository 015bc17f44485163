//! Giga-updates per second by the rules of HPCC's single-process `RandomAccess`: a table of a power of
//! two words, four updates for each, 128 streams of the prescribed sequence, and a check at the end.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Context;
use crate::error::{Attempt, Error, require};
use crate::region::region;
use crate::sys::{self, Mapping, Pages, page_bytes};

/// Parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// A power of two, at least 1 KiB.
    table_bytes: usize,
    /// Bytes of a transparent huge page; base pages if not given.
    huge: Option<usize>,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    giga_updates_per_second: f64,
    updates: u64,
    seconds: f64,
    /// Words that do not hold what they should after all updates are undone.
    errors: u64,
    /// Page faults per base page while the table was filled: one in 512, where it is on huge pages.
    faults_per_page: f64,
}

const STREAMS: u64 = 128;
const UPDATES_PER_WORD: u64 = 4;
/// x^64 reduced by the sequence's polynomial x^64 + x^2 + x + 1.
const REDUCED: u64 = 7;

/// The next number of the sequence: the last one times x.
#[inline]
fn next(number: u64) -> u64 {
    (number << 1) ^ if number >> 63 == 1 { REDUCED } else { 0 }
}

/// Product of two polynomials over GF(2), reduced.
fn product(mut a: u64, mut b: u64) -> u64 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        a = next(a);
        b >>= 1;
    }
    sum
}

/// Number `index` of the sequence that begins with 1: x to the power of `index`.
fn nth(mut index: u64) -> u64 {
    let (mut power, mut result) = (2, 1);
    while index != 0 {
        if index & 1 == 1 {
            result = product(result, power);
        }
        power = product(power, power);
        index >>= 1;
    }
    result
}

/// All updates; XOR, so the same updates again undo them.
fn update(table: &mut [u64], updates: u64) {
    let mask = table.len() - 1;
    let mut streams: [u64; STREAMS as usize] =
        std::array::from_fn(|stream| nth(updates / STREAMS * stream as u64));
    for _ in 0..updates / STREAMS {
        for number in &mut streams {
            *number = next(*number);
            table[*number as usize & mask] ^= *number;
        }
    }
}

/// Measures.
pub fn measure(parameters: &Parameters, context: &mut Context) -> Result<Answer, Error> {
    require(
        parameters.table_bytes.is_power_of_two() && parameters.table_bytes >= 1024,
        "table_bytes",
        "must be a power of two, at least 1024",
    )?;
    let pages = if parameters.huge.is_some() { Pages::Huge } else { Pages::Small };
    let mut memory = Mapping::aligned(parameters.table_bytes, parameters.huge.unwrap_or(0), pages)
        .attempting(|| format!("mapping a table of {} bytes", parameters.table_bytes))?;
    let pages = parameters.table_bytes.div_ceil(page_bytes()) as f64;
    let table = memory.words_mut();
    let before = sys::faults();
    for (index, word) in table.iter_mut().enumerate() {
        *word = index as u64;
    }
    let faults_per_page = (sys::faults() - before) as f64 / pages;
    let updates = UPDATES_PER_WORD * table.len() as u64;
    let start = Instant::now();
    context.measured(|| region(|| update(table, updates)));
    let seconds = start.elapsed().as_secs_f64();
    update(table, updates);
    let errors =
        table.iter().enumerate().filter(|&(index, &word)| index as u64 != word).count() as u64;
    Ok(Answer {
        giga_updates_per_second: updates as f64 / seconds / 1e9,
        updates,
        seconds,
        errors,
        faults_per_page,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    #[test]
    fn jumping_ahead_is_stepping_often() {
        let mut number = 1;
        for index in 0..1000 {
            assert_eq!(nth(index), number);
            number = next(number);
        }
    }

    #[test]
    fn streams_together_make_the_one_sequence() {
        let mut by_streams = vec![0; 256];
        update(&mut by_streams, 1024);
        let mut by_steps = vec![0; 256];
        let mut number = 1;
        for _ in 0..1024 {
            number = next(number);
            by_steps[number as usize & 255] ^= number;
        }
        assert_eq!(by_streams, by_steps);
    }

    #[test]
    fn the_check_finds_no_error_and_counts_updates() {
        let parameters = Parameters { table_bytes: 1 << 16, huge: None };
        let answer = measure(&parameters, &mut context()).unwrap();
        assert_eq!((answer.errors, answer.updates), (0, 4 << 13));
    }

    #[test]
    fn every_small_page_of_the_table_is_one_fault() {
        let parameters = Parameters { table_bytes: 1 << 22, huge: None };
        let answer = measure(&parameters, &mut context()).unwrap();
        assert!((1.0..1.1).contains(&answer.faults_per_page), "{answer:?}");
    }

    #[test]
    fn tables_that_are_no_power_of_two_are_refused() {
        let parameters = Parameters { table_bytes: 3000, huge: None };
        assert_eq!(measure(&parameters, &mut context()).unwrap_err().status(), 2);
    }
}
