//! How fast tables are walked and built. The simulator walks at every TLB miss and maps at every
//! first touch, so neither may show next to the model of the machine.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use flatwalk_paging::{
    Address, Attributes, Entry, EntryMemory, EntryMemoryMut, Geometry, Gva, Hpa, Layout,
    NodeAllocator, Rights, Step, Tree, organisations,
};

/// Memory as one vector, filled from the bottom.
#[derive(Clone)]
struct Flat {
    words: Vec<u64>,
    next: u64,
}

impl EntryMemory<Hpa> for Flat {
    #[inline]
    fn read(&self, at: Hpa) -> u64 {
        self.words[at.raw() as usize / 8]
    }
}

impl EntryMemoryMut<Hpa> for Flat {
    #[inline]
    fn write(&mut self, at: Hpa, value: u64) {
        self.words[at.raw() as usize / 8] = value;
    }
}

impl NodeAllocator<Hpa> for Flat {
    fn allocate(&mut self, size_shift: u8) -> Option<Hpa> {
        let at = self.next.next_multiple_of(1 << size_shift);
        self.next = at + (1 << size_shift);
        (self.next <= self.words.len() as u64 * 8).then_some(Hpa::new(at))
    }

    fn end_bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn free(&mut self, _at: Hpa, _size_shift: u8) {}
}

const MEMORY_BYTES: usize = 64 << 20;
/// 8 GiB of them; a power of two.
const PAGES: u64 = 2 << 20;

fn layouts() -> [(&'static str, Layout); 3] {
    let layout = |organisation: &str, groups: &[&str]| {
        let mut parameters = serde_json::Map::new();
        if !groups.is_empty() {
            parameters.insert("flatten".to_owned(), groups.into());
        }
        organisations::layout(organisation, Geometry::X86_4, &parameters).expect("a valid layout")
    };
    [
        ("radix4", layout("radix", &[])),
        ("L4L3+L2L1", layout("flattened", &["L4L3", "L2L1"])),
        ("L3L2", layout("flattened", &["L3L2"])),
    ]
}

/// The first `pages` base pages, mapped one after the other.
fn build(layout: &Layout, memory: &mut Flat, pages: u64) -> Tree<Gva, Hpa> {
    let mut table = Tree::new(layout.geometry(), layout, memory).expect("there is memory");
    for page in 0..pages {
        let (input, frame) = (Gva::new(page << 12), Hpa::new((1 << 40) + (page << 12)));
        let attributes = Attributes::new(Rights::ALL);
        let _ = table.map(memory, layout, input, frame, 1, attributes).expect("nothing is there");
    }
    table
}

/// Cold walks of pages within 64 MiB (whose entries stay in the host's caches) and within 8 GiB.
fn walks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("walk");
    group.throughput(Throughput::Elements(1024));
    for (name, layout) in layouts() {
        let mut memory = Flat { words: vec![0; MEMORY_BYTES / 8], next: 0 };
        let table = build(&layout, &mut memory, PAGES);
        for (range, pages) in [("64MiB", 1 << 14), ("8GiB", PAGES)] {
            let mut state = 1u64;
            group.bench_function(format!("{name}/{range}"), |bencher| {
                bencher.iter(|| {
                    let mut sum = 0;
                    for _ in 0..1024 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let mut walk = table.walk(Gva::new(((state >> 33) & (pages - 1)) << 12));
                        loop {
                            match walk.feed(Entry(memory.read(walk.entry_address()))) {
                                Step::Table(at) => sum ^= at.base.raw(),
                                Step::Leaf(leaf) => break sum ^= leaf.frame.raw(),
                                Step::Fault(fault) => panic!("{fault:?}"),
                            }
                        }
                    }
                    black_box(sum)
                });
            });
        }
    }
    group.finish();
}

/// Demand paging of 2 M base pages, and of 4096 pages of 2 MiB.
fn maps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("map");
    group.sample_size(10);
    let empty = || Flat { words: vec![0; MEMORY_BYTES / 8], next: 0 };
    for (name, layout) in layouts() {
        group.throughput(Throughput::Elements(PAGES));
        group.bench_function(format!("{name}/4K"), |bencher| {
            bencher.iter_batched_ref(
                empty,
                |memory| build(&layout, memory, PAGES),
                BatchSize::PerIteration,
            );
        });
        group.throughput(Throughput::Elements(4096));
        group.bench_function(format!("{name}/2M"), |bencher| {
            bencher.iter_batched_ref(
                empty,
                |memory| {
                    let mut table =
                        Tree::<Gva, Hpa>::new(layout.geometry(), &layout, memory).expect("memory");
                    for page in 0..4096 {
                        let input = Gva::new(page << 21);
                        let attributes = Attributes::new(Rights::ALL);
                        let frame = Hpa::new(1 << 40);
                        let made = table.map(memory, &layout, input, frame, 2, attributes);
                        let _ = made.expect("room");
                    }
                    table
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, walks, maps);
criterion_main!(benches);
