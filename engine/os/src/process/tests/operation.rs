//! Random operations for a process and its models.

use flatwalk_paging::{Level, Width};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Event(Event),
    Touch(u64, AccessKind),
    Reshape(u64, Level, Width),
}

/// A few places that share regions, cross 1 GiB boundaries, and lie far apart.
fn address() -> impl Strategy<Value = u64> {
    let near =
        prop_oneof![Just(0), Just(GIB - 2 * LARGE), Just(GIB), Just(100 * GIB), Just(200 * GIB)];
    let page = prop_oneof![3 => 0_u64..40, 3 => 490_u64..540, 1 => 1000_u64..1600];
    (near, page).prop_map(|(base, page)| base + page * PAGE)
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (1_u64..30).prop_map(|pages| pages * PAGE),
        2 => (500_u64..530).prop_map(|pages| pages * PAGE),
        2 => (1_u64..4).prop_map(|regions| regions * LARGE),
        1 => Just(0),
    ]
}

/// Addresses and lengths that often fall on whole regions.
fn span() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        (address(), length()),
        (address(), 1_u64..4)
            .prop_map(|(address, regions)| (address & !(LARGE - 1), regions * LARGE)),
    ]
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    let protection = prop_oneof![4 => Just(RW), 1 => Just(RO), 1 => Just(RX), 1 => Just(NONE)];
    let backing = prop_oneof![4 => Just(Backing::Anonymous), 1 => Just(Backing::File)];
    let advice = prop_oneof![
        Just(Advice::HugePage),
        Just(Advice::NoHugePage),
        Just(Advice::DontNeed),
        Just(Advice::Populate)
    ];
    let access =
        prop_oneof![Just(AccessKind::Load), Just(AccessKind::Store), Just(AccessKind::Fetch)];
    let event = prop_oneof![
        4 => (span(), protection.clone(), backing, prop::bool::weighted(0.1)).prop_map(
            |((address, length), protection, backing, shared)| {
                Event::Map { address, length, protection, backing, shared }
            }
        ),
        2 => span().prop_map(|(address, length)| Event::Unmap { address, length }),
        2 => (span(), span()).prop_map(|((from, from_length), (to, to_length))| {
            Event::Remap { from, from_length, to, to_length }
        }),
        1 => (span(), length()).prop_map(|((from, from_length), to_length)| {
            Event::Remap { from, from_length, to: from, to_length }
        }),
        2 => (span(), protection)
            .prop_map(|((address, length), protection)| Event::Protect { address, length, protection }),
        3 => (span(), advice)
            .prop_map(|((address, length), advice)| Event::Advise { address, length, advice }),
        1 => (address(), address()).prop_filter("a heap is not that large", |(a, b)| a.abs_diff(*b) < 4 * LARGE)
            .prop_map(|(from, to)| Event::Break { from: from + 5, to: to + 9 }),
        2 => (span(), any::<bool>())
            .prop_map(|((address, length), store)| Event::Populate { address, length, store }),
    ];
    prop_oneof![
        5 => event.prop_map(Operation::Event),
        6 => (address(), access).prop_map(|(address, access)| Operation::Touch(address + 8, access)),
        1 => (address(), 1_u8..5, 1_u8..3).prop_map(|(a, level, width)| Operation::Reshape(a, level, width)),
    ]
}
