//! What is done to a table under test: steps that are drawn at random.

use proptest::prelude::*;

use crate::entry::Rights;
use crate::geometry::Level;

/// What is done to a table.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Maps so many pages of a level, so many of their size apart, from a place on.
    Map {
        at: u64,
        level: Level,
        count: u64,
        apart: u64,
        rights: Rights,
    },
    /// Unmaps every n-th page, with the nodes that become empty or without.
    Unmap {
        first: prop::sample::Index,
        step: usize,
        with_nodes: bool,
    },
    /// Frees the nodes that hold nothing around a page, but for those for so many pages of level 2 or more.
    FreeEmpty(prop::sample::Index, u64),
    Protect(prop::sample::Index, Rights),
    Migrate(prop::sample::Index),
    ClearUsage(prop::sample::Index),
    Split(prop::sample::Index),
    /// Sees to densities, and gives a node on the way another width.
    Reshape(prop::sample::Index, Level, u8),
    /// An access, by hardware.
    Touch(prop::sample::Index, bool),
    /// What must be refused.
    Wrong(prop::sample::Index),
}

/// Something that is done, and what memory does meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// What is done.
    pub(super) action: Action,
    /// Which of the next allocations fail.
    pub(super) refuse: u32,
    /// No allocation of more than the smallest node succeeds.
    pub(super) refuse_large: bool,
}

/// Up to 29 steps.
pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rights =
        || any::<[bool; 3]>().prop_map(|[write, user, execute]| Rights { write, user, execute });
    let index = any::<prop::sample::Index>;
    let apart = prop_oneof![Just(1u64), Just(3), Just(8), Just(9), Just(513)];
    // The first pages of the address space, the last ones, and any.
    let last = (0u64..4).prop_map(|before| u64::MAX - before);
    let place = prop_oneof![6 => 0u64..4, 1 => last, 2 => any::<u64>()];
    let action = prop_oneof![
        8 => (place, 1u8..=3, 1u64..40, apart, rights())
            .prop_map(|(at, level, count, apart, rights)| Action::Map { at, level, count, apart, rights }),
        4 => (index(), 1usize..4, any::<bool>())
            .prop_map(|(first, step, with_nodes)| Action::Unmap { first, step, with_nodes }),
        2 => (index(), prop_oneof![Just(2u64), Just(1025), Just(u64::MAX)])
            .prop_map(|(i, most)| Action::FreeEmpty(i, most)),
        2 => (index(), rights()).prop_map(|(i, r)| Action::Protect(i, r)),
        2 => index().prop_map(Action::Migrate),
        1 => index().prop_map(Action::ClearUsage),
        2 => index().prop_map(Action::Split),
        3 => (index(), 1u8..=6, 1u8..=3).prop_map(|(i, l, w)| Action::Reshape(i, l, w)),
        4 => (index(), any::<bool>()).prop_map(|(i, store)| Action::Touch(i, store)),
        1 => index().prop_map(Action::Wrong),
    ];
    let refuse = prop_oneof![5 => Just(0u32), 2 => any::<u32>(), 1 => Just(u32::MAX)];
    let step = (action, refuse, prop::bool::weighted(0.2))
        .prop_map(|(action, refuse, refuse_large)| Step { action, refuse, refuse_large });
    prop::collection::vec(step, 1..30)
}
