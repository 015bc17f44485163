//! The cost of walking: dependent references that miss the TLB, as far apart as one chooses, and plain
//! dependent loads from cold memory to compare them with. As Holt (LKML, 2005), twice the caches' worth
//! of data is dragged through the processor between groups.

use std::io;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Context;
use crate::error::{Attempt, Error, require};
use crate::flush::Flusher;
use crate::random::Random;
use crate::region::region;
use crate::sys::{Behind, Mapping, Pages, page_bytes};

/// What a reference is.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One load each from pages this many bytes apart: a TLB miss, a walk, and the load itself.
    Pages {
        /// A multiple of the page size.
        stride_bytes: usize,
    },
    /// This many loads, one after another, in one page that the TLB holds: a walk of that depth, and
    /// nothing else.
    Loads {
        /// Loads per reference.
        depth: usize,
        /// Bytes of the page: a transparent huge page's if there are any.
        area_bytes: usize,
    },
}

/// Parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    kind: Kind,
    /// References in a group, between two flushes.
    group: usize,
    groups: usize,
    /// Bytes written before each group, to flush the caches.
    flush_bytes: usize,
    seed: u64,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Mean of the groups between the quartiles, so that a group with an interrupt does not count.
    nanoseconds_per_reference: f64,
    references: usize,
}

const LINE_BYTES: usize = 64;
/// Where mappings begin: far from programs, libraries and stacks, for 39 or more bits of user addresses.
const LOWEST: usize = 1 << 34;

/// A chain of pointers, each load giving the address of the next.
struct Chain {
    /// Keeps the memory mapped.
    _memory: Vec<Mapping>,
    /// Where each reference's first load goes; its last leads to the next reference's first.
    starts: Vec<*const usize>,
    loads_per_reference: usize,
}

/// Links `places` to one chain and returns it.
fn link(places: &[*mut usize]) {
    for (index, &place) in places.iter().enumerate() {
        let following = places[(index + 1) % places.len()];
        // SAFETY: every place is an aligned word inside a writable mapping that is owned.
        unsafe { place.write(following as usize) };
    }
}

/// Maps one page every `stride` bytes, `count` in all, skipping addresses that are in use.
fn pages_apart(stride: usize, count: usize) -> io::Result<Vec<Mapping>> {
    let mut mappings = Vec::with_capacity(count);
    let mut at = LOWEST.next_multiple_of(stride);
    while mappings.len() < count {
        match Mapping::new(page_bytes(), Behind::Anonymous, Some(at)) {
            Ok(mapping) => {
                mapping.advise(Pages::Small);
                mappings.push(mapping);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        at = at.checked_add(stride).ok_or(io::ErrorKind::OutOfMemory)?;
    }
    Ok(mappings)
}

impl Chain {
    fn of_pages(stride: usize, group: usize, random: &mut Random) -> Result<Self, Error> {
        require(
            stride > 0 && stride.is_multiple_of(page_bytes()),
            "stride_bytes",
            format!("must be a multiple of the page size, {}", page_bytes()),
        )?;
        let memory = pages_apart(stride, group).attempting(|| {
            format!(
                "mapping {group} pages {stride} bytes apart (the address space may be too small: \
                 choose a smaller stride or group)"
            )
        })?;
        let lines = page_bytes() / LINE_BYTES;
        let places: Vec<*mut usize> = random
            .permutation(group)
            .into_iter()
            .map(|page| memory[page].word(random.below(lines) * LINE_BYTES / 8).cast())
            .collect();
        link(&places);
        let starts = places.iter().map(|&place| place.cast_const()).collect();
        Ok(Self { _memory: memory, starts, loads_per_reference: 1 })
    }

    fn of_loads(
        depth: usize,
        area: usize,
        group: usize,
        random: &mut Random,
    ) -> Result<Self, Error> {
        let lines = area / LINE_BYTES;
        require(depth > 0, "depth", "must be at least 1")?;
        require(
            area.is_power_of_two() && area >= page_bytes() && lines >= group * depth,
            "area_bytes",
            format!("must be a power of two with at least {} lines", group * depth),
        )?;
        let memory = Mapping::aligned(area, area, Pages::Huge)
            .attempting(|| format!("mapping {area} bytes"))?;
        memory.store(0, 0);
        let places: Vec<*mut usize> = random
            .permutation(lines)
            .into_iter()
            .take(group * depth)
            .map(|line| memory.word(line * LINE_BYTES / 8).cast())
            .collect();
        link(&places);
        let starts = places.iter().step_by(depth).map(|&place| place.cast_const()).collect();
        Ok(Self { _memory: vec![memory], starts, loads_per_reference: depth })
    }

    /// Follows the chain once around and returns the nanoseconds.
    fn follow(&self) -> f64 {
        let mut place = self.starts[0];
        let start = Instant::now();
        for _ in 0..self.starts.len() * self.loads_per_reference {
            // SAFETY: every word of the chain holds the address of another (`link`).
            place = unsafe { place.read_volatile() } as *const usize;
        }
        let elapsed = start.elapsed();
        std::hint::black_box(place);
        elapsed.as_nanos() as f64
    }
}

/// Mean of the values between the quartiles.
fn midmean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let cut = values.len() / 4;
    let kept = &values[cut..values.len() - cut];
    kept.iter().sum::<f64>() / kept.len() as f64
}

/// Measures.
pub fn measure(parameters: &Parameters, context: &mut Context) -> Result<Answer, Error> {
    require((1..=1 << 15).contains(&parameters.group), "group", "must be 1 to 32768")?;
    require(parameters.groups > 0, "groups", "must be at least 1")?;
    let mut random = Random::new(parameters.seed);
    let chain = match parameters.kind {
        Kind::Pages { stride_bytes } => {
            Chain::of_pages(stride_bytes, parameters.group, &mut random)?
        }
        Kind::Loads { depth, area_bytes } => {
            Chain::of_loads(depth, area_bytes, parameters.group, &mut random)?
        }
    };
    let flusher = Flusher::new(parameters.flush_bytes)
        .attempting(|| format!("mapping {} bytes to flush with", parameters.flush_bytes))?;
    let mut times = Vec::with_capacity(parameters.groups);
    for group in 0..=parameters.groups {
        flusher.flush();
        let time = context.measured(|| region(|| chain.follow()));
        if group > 0 {
            times.push(time / parameters.group as f64); // the first group warms the code
        }
    }
    Ok(Answer {
        nanoseconds_per_reference: midmean(&mut times),
        references: parameters.group * parameters.groups,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::testing::context;

    /// The addresses that a chain visits from its start until it comes back.
    fn visited(chain: &Chain) -> Vec<usize> {
        let mut seen = Vec::new();
        let mut place = chain.starts[0];
        loop {
            seen.push(place as usize);
            // SAFETY: as in `follow`.
            place = unsafe { place.read() } as *const usize;
            if place == chain.starts[0] {
                return seen;
            }
        }
    }

    #[test]
    fn a_chain_of_pages_visits_each_once_a_stride_apart() {
        let stride = 1 << 30;
        let chain = Chain::of_pages(stride, 20, &mut Random::new(1)).unwrap();
        let seen = visited(&chain);
        let pages: HashSet<usize> = seen.iter().map(|address| address / stride).collect();
        assert_eq!((seen.len(), pages.len()), (20, 20));
        assert!(seen.iter().all(|address| address % stride < page_bytes()));
    }

    #[test]
    fn a_chain_of_loads_visits_as_many_lines_as_references_times_depth() {
        let chain = Chain::of_loads(5, 1 << 21, 16, &mut Random::new(1)).unwrap();
        let lines: HashSet<usize> = visited(&chain).iter().map(|address| address / 64).collect();
        assert_eq!(lines.len(), 80);
        assert_eq!(chain.starts.len(), 16);
    }

    #[test]
    fn impossible_strides_are_refused() {
        assert_eq!(Chain::of_pages(100, 4, &mut Random::new(1)).err().map(|e| e.status()), Some(2));
        assert_eq!(
            Chain::of_pages(1 << 60, 40, &mut Random::new(1)).err().map(|e| e.status()),
            Some(1)
        );
    }

    #[test]
    fn outliers_do_not_enter_the_midmean() {
        assert!((midmean(&mut [5.0, 1.0, 1e9, 7.0]) - 6.0).abs() < 1e-12);
    }

    #[test]
    fn it_measures() {
        let parameters = Parameters {
            kind: Kind::Pages { stride_bytes: 1 << 21 },
            group: 8,
            groups: 3,
            flush_bytes: 1 << 20,
            seed: 1,
        };
        let answer = measure(&parameters, &mut context()).unwrap();
        assert_eq!(answer.references, 24);
        assert!(answer.nanoseconds_per_reference > 0.0);
    }
}
