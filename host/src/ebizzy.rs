//! The work of a search server, after ebizzy (`-m -l -p -n 7`): threads take a random chunk of records,
//! copy it into newly mapped memory, look a record up there by bisection and unmap it again. All threads
//! change one address space, so what they wait for are its locks. The control keeps its copy's memory.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Context;
use crate::error::{Attempt, Error, require};
use crate::random::Random;
use crate::region::region;
use crate::sys::{self, Mapping, Pages, page_bytes};

/// Parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    threads: usize,
    chunks: usize,
    chunk_bytes: usize,
    milliseconds: u64,
    /// Whether each copy's memory is unmapped after use.
    unmap: bool,
    seed: u64,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    records_per_second: f64,
    records: u64,
    /// Page faults per record.
    faults_per_record: f64,
}

/// Copies word by word, never by the library (`-l`), as the original does: the time is the program's own.
fn copy(from: &[u64], to: &mut [u64]) {
    for (source, target) in from.iter().zip(to) {
        // SAFETY: a reference is valid to write to; volatile, so that the loop stays one.
        unsafe { std::ptr::from_mut(target).write_volatile(*source) };
    }
}

/// Records found, and page faults on the way.
type Found = (u64, u64);

/// One thread's loop until `stop`, once at least: a thread may get no processor before that.
fn search(
    chunks: &[Vec<u64>],
    unmap: bool,
    mut random: Random,
    stop: &AtomicBool,
) -> std::io::Result<Found> {
    let bytes = chunks[0].len() * 8;
    let map = || Mapping::aligned(bytes, page_bytes(), Pages::Small);
    let mut kept = if unmap { None } else { Some(map()?) };
    let (mut records, before) = (0, sys::faults());
    loop {
        let chunk = &chunks[random.below(chunks.len())];
        let wanted = chunk[random.below(chunk.len())];
        let mut fresh = if unmap { Some(map()?) } else { None };
        let Some(memory) = fresh.as_mut().or(kept.as_mut()) else { break };
        let buffer = memory.words_mut();
        copy(chunk, buffer);
        if buffer.binary_search(&wanted).is_ok() {
            records += 1;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok((records, sys::faults() - before))
}

/// A chunk of records, ascending, so that they can be found by bisection.
fn chunk(parameters: &Parameters, random: &mut Random) -> Vec<u64> {
    let mut record = 0;
    let next = |_| {
        record += 1 + random.next() % 8;
        record
    };
    (0..parameters.chunk_bytes / 8).map(next).collect()
}

/// Keeps thread number `index` on its processor, if there are any to keep it on. A processor that may
/// not be used was noted when the first thread was pinned.
fn pin(cpus: &[usize], index: usize) {
    if let Some(&cpu) = cpus.get(index % cpus.len().max(1)) {
        drop(sys::pin(cpu));
    }
}

/// Measures.
pub fn measure(parameters: &Parameters, context: &mut Context) -> Result<Answer, Error> {
    require((1..=1024).contains(&parameters.threads), "threads", "must be 1 to 1024")?;
    require(parameters.chunks > 0, "chunks", "must be at least 1")?;
    require(parameters.chunk_bytes >= 8, "chunk_bytes", "must be at least 8")?;
    require(parameters.milliseconds > 0, "milliseconds", "must be at least 1")?;
    let mut random = Random::new(parameters.seed);
    let chunks: Vec<_> = (0..parameters.chunks).map(|_| chunk(parameters, &mut random)).collect();
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(parameters.threads + 1);
    let cpus = context.cpus.clone();
    let seeds: Vec<u64> = (0..parameters.threads).map(|_| random.next()).collect();
    let (found, seconds) = context
        .measured(|| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = seeds
                    .iter()
                    .enumerate()
                    .map(|(index, &seed)| {
                        let (chunks, stop, ready, cpus) = (&chunks, &stop, &ready, &cpus);
                        scope.spawn(move || {
                            pin(cpus, index);
                            ready.wait();
                            search(chunks, parameters.unmap, Random::new(seed), stop)
                        })
                    })
                    .collect();
                ready.wait();
                region(|| {
                    let start = Instant::now();
                    std::thread::sleep(Duration::from_millis(parameters.milliseconds));
                    stop.store(true, Ordering::Relaxed);
                    let found = threads
                        .into_iter()
                        .map(|thread| {
                            thread
                                .join()
                                .unwrap_or_else(|_| Err(std::io::Error::other("a thread failed")))
                        })
                        .collect::<std::io::Result<Vec<Found>>>();
                    found.map(|found| (found, start.elapsed().as_secs_f64()))
                })
            })
        })
        .attempting(|| "mapping a copy's memory".to_owned())?;
    let records: u64 = found.iter().map(|(records, _)| records).sum();
    let faults: u64 = found.iter().map(|(_, faults)| faults).sum();
    Ok(Answer {
        records_per_second: records as f64 / seconds,
        records,
        faults_per_record: faults as f64 / records as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    fn parameters(unmap: bool) -> Parameters {
        let chunk_bytes = 32 * page_bytes();
        Parameters { threads: 2, chunks: 3, chunk_bytes, milliseconds: 200, unmap, seed: 1 }
    }

    #[test]
    fn unmapping_faults_every_page_again() {
        let answer = measure(&parameters(true), &mut context()).unwrap();
        assert!((32.0..40.0).contains(&answer.faults_per_record), "{answer:?}");
    }

    #[test]
    fn keeping_the_memory_hardly_faults() {
        let answer = measure(&parameters(false), &mut context()).unwrap();
        assert!(answer.faults_per_record < 16.0, "{answer:?}");
    }

    #[test]
    fn a_thread_that_begins_late_finds_a_record() {
        let (chunks, stop) = ([vec![1, 2, 3]], AtomicBool::new(true));
        for unmap in [true, false] {
            let (records, _) = search(&chunks, unmap, Random::new(1), &stop).unwrap();
            assert_eq!(records, 1);
        }
    }

    #[test]
    fn copies_are_copies() {
        let mut to = [0; 3];
        copy(&[1, 2, 3], &mut to);
        assert_eq!(to, [1, 2, 3]);
    }
}
