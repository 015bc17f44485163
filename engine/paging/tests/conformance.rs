//! Every registered organisation through the one interface that operating systems use: see
//! [`flatwalk_paging::conformance`].
//!
//! `FLATWALK_ORGANISATION=name` restricts the test to one organisation, while that is being written.

mod support;

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};

use flatwalk_paging::conformance::check;
use flatwalk_paging::organisations::REGISTRY;
use flatwalk_paging::{Geometry, Layout};
use support::{Case, cases_of, keyed_cases};

/// The layouts under test: some of each organisation, in geometries of all kinds.
fn layouts() -> Vec<(String, Layout)> {
    let odd = |page, bits, levels| Geometry::new(page, bits, levels).unwrap();
    let geometries =
        [Geometry::X86_4, Geometry::X86_3, Geometry::X86_5, odd(14, 11, 3), odd(12, 3, 4)];
    let mut layouts = Vec::new();
    for geometry in geometries {
        layouts.extend(keyed_cases(geometry));
        // Pages must keep their sizes: no group joins levels 3 and 2.
        let mut trees = cases_of(geometry);
        trees.retain(|case| !case.joins(3, 2));
        for organisation in REGISTRY {
            let of = |case: &&Case| case.name.starts_with(organisation.name);
            let mine: Vec<_> = trees.iter().filter(of).collect();
            let some = mine.iter().step_by(mine.len().div_ceil(2).max(1));
            layouts.extend(some.map(|case| (case.name.clone(), case.layout.clone())));
        }
    }
    for organisation in REGISTRY {
        let tested = layouts.iter().any(|(name, _)| name.starts_with(organisation.name));
        assert!(tested, "no layout of {} is tested", organisation.name);
    }
    layouts
}

/// Checks tables of `layout`; returns how many of them grew.
fn grown(name: &str, layout: &Layout) -> u32 {
    let cases = if layout.is_tree() { 3 } else { 12 };
    check(layout, cases, None).unwrap_or_else(|failure| panic!("{name}: {failure}"))
}

#[test]
fn every_organisation_maps_what_it_is_told_and_nothing_else() {
    let mut layouts = layouts();
    let only = std::env::var("FLATWALK_ORGANISATION").ok();
    if let Some(only) = &only {
        layouts.retain(|(name, _)| name.split(' ').next() == Some(only));
        assert!(!layouts.is_empty(), "no organisation is called {only}");
    }
    let layouts = Mutex::new(layouts.into_iter());
    let next = || layouts.lock().expect("nothing panics with it").next();
    let work = || std::iter::from_fn(next).map(|(name, layout)| grown(&name, &layout)).sum::<u32>();
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let grown: u32 = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let counts = workers.into_iter().map(ScopedJoinHandle::join);
        counts.map(|count| count.unwrap_or_else(|panic| resume_unwind(panic))).sum()
    });
    assert!(only.is_some() || grown > 20, "only {grown} tables were resized");
}
