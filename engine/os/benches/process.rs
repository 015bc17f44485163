//! How fast the simulated operating system works: it must never be what a simulation waits for.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use flatwalk_os::{Buddy, Configuration, Process};
use flatwalk_paging::{
    AccessKind, Address, EntryMemory, Geometry, Gva, Hpa, Layout, Level, TreeShape, Width,
};
use flatwalk_trace::{Backing, Event, Protection};

const BASE: u64 = 64 << 30;
const BYTES: u64 = 1 << 30;
const PAGES: u64 = BYTES >> 12;

/// A process with 1 GiB of anonymous memory.
fn process(groups: &[(Level, Width)]) -> Process {
    let shape = TreeShape { no_flatten_threshold: 32, ..TreeShape::with_groups(groups) };
    let configuration = Configuration::new(Layout::tree(Geometry::X86_4, shape), 8 << 30);
    let mut process = <Process>::new(&configuration).expect("there is address space");
    let protection = Protection { read: true, write: true, execute: false };
    let backing = Backing::Anonymous;
    let map = Event::Map { address: BASE, length: BYTES, protection, backing, shared: false };
    let _ = process.apply(&map).expect("there is memory");
    process
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("buddy");
    group.throughput(Throughput::Elements(PAGES));
    group.bench_function("allocate and free a frame", |bencher| {
        let mut buddy = Buddy::new(BYTES);
        let mut frames = Vec::new();
        bencher.iter(|| {
            frames.extend(std::iter::from_fn(|| buddy.allocate(0)));
            for frame in frames.drain(..) {
                buddy.free(frame, 0);
            }
        });
    });
    group.finish();

    for (name, groups) in [("radix4", &[][..]), ("fpt", &[(4, 2), (2, 2)][..])] {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(PAGES)).sample_size(10);
        let populate = Event::Populate { address: BASE, length: BYTES, store: true };
        group.bench_function("populate a page", |bencher| {
            let run = |mut process: Process| process.apply(&populate).map(|_| process);
            bencher.iter_batched(|| process(groups), run, BatchSize::PerIteration);
        });
        group.bench_function("fault a page", |bencher| {
            let run = |mut process: Process| {
                for page in 0..PAGES {
                    let outcome = process.fault(Gva::new(BASE + (page << 12)), AccessKind::Store);
                    let _ = outcome.expect("there is memory");
                }
                process
            };
            bencher.iter_batched(|| process(groups), run, BatchSize::PerIteration);
        });
        group.bench_function("unmap a page", |bencher| {
            let setup = || {
                let mut process = process(groups);
                let _ = process.apply(&populate).expect("there is memory");
                process
            };
            let unmap = Event::Unmap { address: BASE, length: BYTES };
            let run = |mut process: Process| process.apply(&unmap).map(|_| process);
            bencher.iter_batched(setup, run, BatchSize::PerIteration);
        });
        group.bench_function("read an entry of a random page", |bencher| {
            let mut process = process(groups);
            let _ = process.apply(&populate).expect("there is memory");
            let memory = process.memory();
            let entries: Vec<Hpa> = (0..PAGES)
                .map(|page| {
                    let page = page.wrapping_mul(0x9e37_79b9) % PAGES;
                    let leaf = process.table().translate(memory, Gva::new(BASE + (page << 12)));
                    leaf.expect("it is mapped").entry_address
                })
                .collect();
            bencher.iter(|| entries.iter().fold(0, |sum, &at| sum ^ memory.read(at)));
        });
        group.finish();
    }
}

criterion_group!(all, benches);
criterion_main!(all);
