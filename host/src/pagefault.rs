//! The cost of a page fault, by the method of lmbench's `lat_pagefault`: map, touch every page once in
//! random order, unmap; and the same without touching, which is subtracted.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Context;
use crate::error::{Attempt, Error, require};
use crate::median::median;
use crate::random::Random;
use crate::region::region;
use crate::sys::{self, Behind, Mapping, Pages, page_bytes};

/// What is faulted in.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// A file in the page cache, read only and shared. Neighbours come with each page where the kernel
    /// faults around.
    File(PathBuf),
    /// A file in memory of which only every 16th page exists, so that fault-around finds nothing: every
    /// page is a fault.
    Sparse,
    /// Zeroed pages.
    Anonymous,
    /// Zeroed transparent huge pages of this many bytes.
    Huge(usize),
}

/// Parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    memory: Memory,
    /// Base pages to touch.
    pages: usize,
    /// Repetitions; the result is their median.
    repetitions: usize,
    /// Repetitions before that, which do not count.
    warmup: usize,
    seed: u64,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Per base page: touching it, and unmapping what that mapped.
    nanoseconds_per_page: f64,
    /// The same for the fastest repetition: what the hardware and the kernel need when undisturbed.
    least_nanoseconds_per_page: f64,
    /// Page faults per base page: below one where a fault maps several.
    faults_per_page: f64,
    /// Mapping and unmapping without touching; already subtracted.
    map_nanoseconds: f64,
}

/// Pages between two that exist in a sparse file: what Linux faults around by default.
const APART: usize = 16;

/// What is mapped repeatedly, and where in it pages are touched.
struct Target {
    length: usize,
    file: Option<OwnedFd>,
    pages: Pages,
    alignment: usize,
    offsets: Vec<usize>,
}

impl Target {
    fn new(parameters: &Parameters) -> Result<Self, Error> {
        let page = page_bytes();
        let order = Random::new(parameters.seed).permutation(parameters.pages);
        let dense: Vec<usize> = order.iter().map(|index| index * page).collect();
        let length = parameters.pages * page;
        let of = |file, pages, alignment| Self {
            length,
            file,
            pages,
            alignment,
            offsets: dense.clone(),
        };
        Ok(match &parameters.memory {
            Memory::File(path) => {
                let file = OpenOptions::new()
                    .read(true)
                    .open(path)
                    .attempting(|| format!("opening {}", path.display()))?;
                let there = file.metadata().attempting(|| "asking the file's length".to_owned())?;
                require(
                    there.len() >= length as u64,
                    "memory",
                    format!("the file must have at least {length} bytes"),
                )?;
                of(Some(file.into()), Pages::Small, page)
            }
            Memory::Sparse => {
                let length = length * APART;
                let mut file =
                    sys::memory_file(length).attempting(|| "making a file in memory".to_owned())?;
                for index in 0..parameters.pages {
                    file.seek(SeekFrom::Start((index * APART * page) as u64))
                        .and_then(|_| file.write_all(&[1]))
                        .attempting(|| "filling a file in memory".to_owned())?;
                }
                let offsets = order.iter().map(|index| index * APART * page).collect();
                Self {
                    length,
                    file: Some(file.into()),
                    pages: Pages::Small,
                    alignment: page,
                    offsets,
                }
            }
            Memory::Anonymous => of(None, Pages::Small, page),
            Memory::Huge(bytes) => {
                require(
                    bytes.is_power_of_two() && length >= *bytes && length.is_multiple_of(*bytes),
                    "pages",
                    format!("must fill huge pages of {bytes} bytes"),
                )?;
                of(None, Pages::Huge, *bytes)
            }
        })
    }

    fn map(&self) -> std::io::Result<Mapping> {
        match &self.file {
            Some(file) => Mapping::new(self.length, Behind::File(file), None),
            None => Mapping::aligned(self.length, self.alignment, self.pages),
        }
    }

    /// Nanoseconds of the thread's processor time for one round, with or without touching: on a quiet
    /// processor the same as real time, on a busy one without what others take.
    fn round(&self, touch: bool) -> std::io::Result<f64> {
        let start = sys::thread_nanoseconds();
        let mapping = self.map()?;
        if touch {
            for &offset in &self.offsets {
                match self.file {
                    Some(_) => drop(mapping.touch(offset)),
                    None => mapping.store(offset, 1),
                }
            }
        }
        drop(mapping);
        Ok((sys::thread_nanoseconds() - start) as f64)
    }
}

/// Measures.
pub fn measure(parameters: &Parameters, context: &mut Context) -> Result<Answer, Error> {
    require(parameters.pages > 0, "pages", "must be at least 1")?;
    require(parameters.repetitions > 0, "repetitions", "must be at least 1")?;
    let target = Target::new(parameters)?;
    let mut touched = Vec::with_capacity(parameters.repetitions);
    let mut empty = Vec::with_capacity(parameters.repetitions);
    let mut rounds = |count: usize| -> std::io::Result<()> {
        touched.clear();
        empty.clear();
        for _ in 0..count {
            touched.push(region(|| target.round(true))?);
            empty.push(region(|| target.round(false))?);
        }
        Ok(())
    };
    let mapping = || "mapping the memory".to_owned();
    rounds(parameters.warmup).attempting(mapping)?;
    let before = sys::faults();
    context.measured(|| rounds(parameters.repetitions)).attempting(mapping)?;
    let faults = sys::faults() - before;
    let map_nanoseconds = median(&mut empty);
    let middle = median(&mut touched); // which also sorts
    let pages = parameters.pages as f64;
    Ok(Answer {
        nanoseconds_per_page: (middle - map_nanoseconds) / pages,
        least_nanoseconds_per_page: (touched[0] - empty[0]) / pages,
        faults_per_page: faults as f64 / parameters.repetitions as f64 / pages,
        map_nanoseconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    fn parameters(memory: Memory) -> Parameters {
        Parameters { memory, pages: 512, repetitions: 3, warmup: 1, seed: 1 }
    }

    #[test]
    fn every_anonymous_page_is_one_fault() {
        let answer = measure(&parameters(Memory::Anonymous), &mut context()).unwrap();
        assert!((1.0..1.1).contains(&answer.faults_per_page), "{answer:?}");
    }

    #[test]
    fn every_page_of_a_sparse_file_is_one_fault() {
        let answer = measure(&parameters(Memory::Sparse), &mut context()).unwrap();
        assert!((1.0..1.1).contains(&answer.faults_per_page), "{answer:?}");
    }

    #[test]
    fn a_short_file_is_refused() {
        let path = std::env::temp_dir().join(format!("flatwalk-host-{}", std::process::id()));
        std::fs::write(&path, [0; 100]).unwrap();
        let answer = measure(&parameters(Memory::File(path.clone())), &mut context());
        std::fs::remove_file(path).unwrap();
        assert_eq!(answer.unwrap_err().status(), 2);
    }

    #[test]
    fn huge_pages_must_be_filled() {
        let answer = measure(&parameters(Memory::Huge(4 << 20)), &mut context());
        assert_eq!(answer.unwrap_err().status(), 2);
    }
}
