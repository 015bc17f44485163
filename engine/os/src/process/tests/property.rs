//! The process against its models, under random operations.

use flatwalk_paging::{EntryMemoryMut, Shape, Tree, TreeShape};
use proptest::prelude::*;

use super::hardware::Hardware;
use super::model::{Model, pages_in};
use super::operation::{Operation, operation};
use super::*;
use crate::placement::Placement;

fn policy() -> impl Strategy<Value = LargePages> {
    prop_oneof![
        Just(none()),
        Just(all()),
        Just(LargePages::Below { boundary: GIB + LARGE }),
        Just(LargePages::Transparent(Thp::Always)),
        Just(LargePages::Transparent(Thp::Madvise)),
    ]
}

/// Panics if a region whose pages moved, or got other rights, is not as the scenario has it.
fn check_scenario(process: &Process, event: &Event) {
    let LargePages::Below { boundary } = process.policy.large_pages else { return };
    let changed = match *event {
        Event::Remap { from, from_length, to, to_length } => {
            vec![pages_in(from, from_length), pages_in(to, to_length)]
        }
        Event::Protect { address, length, .. } => vec![pages_in(address, length)],
        _ => return,
    };
    for mapping in mappings(process) {
        let region = process.region(process.pages_of(&mapping).start);
        if mapping.level > 1 {
            assert!(mapping.input.raw() < boundary, "{mapping:?} is large");
        } else if changed.iter().any(|pages| pages.start < region.end && region.start < pages.end) {
            let large = process.policy.large(&process.areas, &region);
            assert!(large.is_none(), "{mapping:?} is small after {event:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn agrees_with_a_map_of_pages_whatever_happens(
        layout in prop::sample::select(layouts()),
        large_pages in policy(),
        no_flatten_threshold in 0_u32..4,
        fragmentation in prop_oneof![Just(0.0), Just(0.9), 0.0..1.0],
        large_failure_probability in prop_oneof![Just(0.0), 0.0..1.0],
        seed in any::<u64>(),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let layout = match layout.shape() {
            Some(&shape) => {
                Layout::tree(layout.geometry(), TreeShape { no_flatten_threshold, ..shape })
            }
            None => layout,
        };
        let configuration = Configuration {
            large_pages, fragmentation, large_failure_probability, seed,
            recursive_index: (seed % 3 == 0 && !layout.groups().is_empty() && layout.density().is_none()).then_some(300),
            placement: [Placement::Compact, Placement::Scattered, Placement::Permuted, Placement::Scattered4k]
                [(seed % 4) as usize],
            ..Configuration::new(layout.clone(), 8 * GIB)
        };
        let mut process = Process::new(&configuration).unwrap();
        let root = process.table().tree().map(Tree::root);
        let total_frames = process.frames().free_frames() + process.page_table_bytes() / PAGE;
        let blocks = process.frames().allocatable_blocks(9);
        let mut model = Model::default();
        let mut hardware = Hardware::default();
        for (step, operation) in operations.into_iter().enumerate() {
            hardware.fill(&process);
            let flushes = match operation {
                Operation::Event(event) => {
                    if let Event::Populate { address, length, store } = event {
                        let access = if store { AccessKind::Store } else { AccessKind::Load };
                        if !model.allows(&pages_in(address, length), access) {
                            continue;
                        }
                    }
                    let outcome = process.apply(&event).unwrap();
                    model.apply(&event);
                    // There are blocks then.
                    if fragmentation <= 0.9 && large_failure_probability == 0.0 {
                        check_scenario(&process, &event);
                    }
                    if let Event::Populate { address, length, .. } = event {
                        for page in pages_in(address, length) {
                            let input = Gva::new(page * PAGE);
                            prop_assert!(process.table.translate(process.memory(), input).is_ok());
                            if process.areas.find(page).is_some_and(|vma| vma.attributes.implicit) {
                                model.cover(page..page + 1);
                            }
                        }
                    }
                    outcome.flushes
                }
                Operation::Touch(address, access) => {
                    let page = address / PAGE;
                    if !model.allows(&(page..page + 1), access) {
                        continue;
                    }
                    let outcome = process.fault(Gva::new(address), access).unwrap();
                    let upgraded = outcome.kind == FaultKind::Upgraded;
                    prop_assert!(!upgraded || !model.areas.contains_key(&page));
                    if process.areas.find(page).is_some_and(|vma| vma.attributes.implicit) {
                        model.cover(page..page + 1);
                    }
                    let leaf =
                        process.table.translate(process.memory(), Gva::new(address)).unwrap();
                    prop_assert!(permits(leaf.rights, access));
                    prop_assert_eq!(leaf.level, outcome.level);
                    // Every access writes the number of its step through the translation. Where a
                    // large page reaches beyond its areas, nothing is guaranteed to stay.
                    if model.areas.contains_key(&page) {
                        let within = address & (process.geometry.span(leaf.level) - 1);
                        process.memory_mut().write(leaf.frame.offset(within), step as u64 + 1);
                        model.contents.insert(page, step as u64 + 1);
                    }
                    outcome.flushes
                }
                // Merging and splitting 1 GiB nodes takes too long here.
                Operation::Reshape(..) if root.is_none_or(|root| root.width == 3) => continue,
                // A recursive root stays as it is.
                Operation::Reshape(_, level, _)
                    if process.memory.windows.is_some() && root.is_some_and(|r| r.level == level) =>
                {
                    continue;
                }
                Operation::Reshape(address, level, width) => {
                    let Process { table, memory, .. } = &mut process;
                    let tree = table.tree_mut().expect("it has a root");
                    match tree.reshape(memory, Gva::new(address), level, width) {
                        Ok(Some(flush)) => vec![flush],
                        _ => continue,
                    }
                }
            };
            hardware.flush(process.geometry, &flushes);
            hardware.check(&process);
            model.check(&process, total_frames);
        }
        // Unmapping everything leaves the root alone, and memory as it was.
        let _ = process.apply(&Event::Unmap { address: 0, length: 256 * GIB }).unwrap();
        prop_assert!(process.large_pages.is_empty());
        prop_assert_eq!(process.data_bytes(), 0);
        if root.is_some() {
            prop_assert_eq!(process.nodes().iter().map(|nodes| nodes.nodes).sum::<u64>(), 1);
        }
        prop_assert_eq!(process.nodes().iter().map(|nodes| nodes.entries_used).sum::<u64>(), 0);
        let now = process.table().tree().map(Tree::root);
        if root.is_some_and(|root| now.is_some_and(|now| now.width == root.width)) {
            // A root that was widened and narrowed again lies elsewhere, and may be all that is in
            // a block now, or was all that was in one.
            let moved = u64::from(root.map(|root| root.base) != now.map(|now| now.base));
            prop_assert!(process.frames().allocatable_blocks(9).abs_diff(blocks) <= moved);
        }
    }
}
