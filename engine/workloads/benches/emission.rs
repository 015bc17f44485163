//! How fast the workloads yield accesses. The simulator must never wait for them.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flatwalk_trace::Item;
use flatwalk_workloads::{REGISTRY, open};

const SLICES: usize = 200;

fn emission(criterion: &mut Criterion) {
    for workload in REGISTRY {
        let run = || {
            let mut source = open(workload.name, 8 << 30, 1).expect("8 GiB suits every workload");
            let (mut slices, mut accesses) = (0, 0);
            while slices < SLICES {
                match source.next_item().expect("workloads do not fail") {
                    Some(Item::Slice(slice)) => {
                        slices += 1;
                        accesses += slice.addresses.len() as u64;
                        black_box(slice);
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            accesses
        };
        let mut group = criterion.benchmark_group("emission");
        group.throughput(Throughput::Elements(run()));
        group.bench_function(workload.name, |bencher| bencher.iter(run));
        group.finish();
    }
}

criterion_group!(benches, emission);
criterion_main!(benches);
