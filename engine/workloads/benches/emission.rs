//! How fast the workloads yield accesses, at their default sizes. The simulator must never wait for
//! them.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flatwalk_trace::{Item, Slice, Source};
use flatwalk_workloads::{Arguments, Description, REGISTRY, open};

const SLICES: usize = 200;

/// A workload again and again.
struct Endless {
    workload: &'static Description,
    source: Box<dyn Source>,
}

impl Endless {
    fn new(workload: &'static Description) -> Self {
        let source = open(workload.name, &Arguments::new(workload.default_size_bytes, 1))
            .expect("the size suits it");
        Self { workload, source }
    }

    fn next(&mut self) -> Slice {
        loop {
            match self.source.next_item().expect("workloads do not fail") {
                Some(Item::Slice(slice)) => return slice,
                Some(_) => {}
                None => *self = Self::new(self.workload),
            }
        }
    }
}

fn emission(criterion: &mut Criterion) {
    for workload in REGISTRY {
        let mut endless = Endless::new(workload);
        let mut run =
            || (0..SLICES).map(|_| black_box(endless.next()).addresses.len() as u64).sum();
        let mut group = criterion.benchmark_group("emission");
        // Setting up comes with the first slice; later ones have about as many accesses as these.
        run();
        group.throughput(Throughput::Elements(run()));
        group.bench_function(workload.name, |bencher| bencher.iter(&mut run));
        group.finish();
    }
}

criterion_group!(benches, emission);
criterion_main!(benches);
