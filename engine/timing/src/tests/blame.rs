//! Where walks come from, by a model that knows each page's mapping.

use std::collections::BTreeMap;

use flatwalk_trace::{Backing, Event, Protection};
use proptest::prelude::*;

use crate::counts::{Aside, forget};
use crate::driver::piece::Piece;
use crate::driver::run::{Mode, Run};
use crate::mmu::blame::{Code, Count, Kind};
use crate::tests::testing::{DATA, Do, Scenario, go, host_table, scheme};

const PAGE: u64 = 4096;
const RIGHTS: Protection = Protection { read: true, write: true, execute: true };

/// What a page is, and by which name.
type Label = (Kind, String);

/// Changes of an address space, in pages, and accesses to it.
#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64, Backing),
    Unmap(u64, u64),
    Remap(u64, u64, u64, u64),
    Break(u64, u64),
    Name(u64, u64, u8),
    Access(u64, u8),
}

const PAGES: u64 = 96;

fn step() -> impl Strategy<Value = Step> {
    let backing = prop::sample::select(vec![
        Backing::Anonymous,
        Backing::File,
        Backing::Stack,
        Backing::Heap,
    ]);
    let range = || (0..PAGES - 20, 1..20_u64);
    prop_oneof![
        3 => (range(), backing).prop_map(|((at, n), backing)| Step::Map(at, n, backing)),
        1 => range().prop_map(|(at, n)| Step::Unmap(at, n)),
        1 => (range(), range()).prop_map(|((a, n), (b, m))| Step::Remap(a, n, b, m)),
        1 => (0..PAGES, 0..PAGES).prop_map(|(from, to)| Step::Break(from, to)),
        2 => (range(), 0..3_u8).prop_map(|((at, n), name)| Step::Name(at, n, name)),
        20 => (0..PAGES, 0..3_u8).prop_map(|(page, block)| Step::Access(page, block)),
    ]
}

/// The address of page number `page` of the tests' data.
fn at(page: u64) -> u64 {
    DATA + page * PAGE
}

fn map(page: u64, pages: u64, backing: Backing) -> Event {
    let (address, length) = (at(page), pages * PAGE);
    Event::Map { address, length, protection: RIGHTS, backing, shared: false }
}

fn name(page: u64, pages: u64, offset: u64, name: &str, build_id: &str) -> Event {
    let (address, length) = (at(page), pages * PAGE);
    Event::Name { address, length, offset, name: name.into(), build_id: build_id.into() }
}

/// Each page's mapping, page by page.
#[derive(Default)]
struct Model {
    pages: BTreeMap<u64, Label>,
}

impl Model {
    fn event(&mut self, step: &Step) -> Option<Event> {
        let pages = &mut self.pages;
        Some(match *step {
            Step::Map(page, n, backing) => {
                let label = match backing {
                    Backing::Anonymous => (Kind::Anonymous, String::new()),
                    Backing::File => (Kind::File, String::new()),
                    Backing::Stack => (Kind::Stack, String::new()),
                    Backing::Heap => (Kind::Heap, "[heap]".into()),
                };
                pages.extend((page..page + n).map(|page| (page, label.clone())));
                map(page, n, backing)
            }
            Step::Unmap(page, n) => {
                pages.retain(|known, _| !(page..page + n).contains(known));
                Event::Unmap { address: at(page), length: n * PAGE }
            }
            Step::Remap(from, n, to, m) => {
                // Linux moves one mapping, and not onto itself.
                let label = pages.get(&from)?.clone();
                let overlap = from < to + m && to < from + n;
                if overlap || (from..from + n).any(|page| pages.get(&page) != Some(&label)) {
                    return None;
                }
                pages.retain(|known, _| !(from..from + n).contains(known));
                pages.extend((to..to + m).map(|page| (page, label.clone())));
                let (from_length, to_length) = (n * PAGE, m * PAGE);
                Event::Remap { from: at(from), from_length, to: at(to), to_length }
            }
            Step::Break(from, to) => {
                let heap = (Kind::Heap, "[heap]".to_owned());
                pages.retain(|known, _| !(to..from).contains(known));
                pages.extend((from..to).map(|page| (page, heap.clone())));
                Event::Break { from: at(from), to: at(to) }
            }
            Step::Name(page, n, which) => {
                let called = format!("/file {which}");
                for (_, label) in pages.range_mut(page..page + n) {
                    label.1.clone_from(&called);
                }
                name(page, n, 0, &called, "")
            }
            Step::Access(..) => return None,
        })
    }
}

/// What the run says, by label and by instruction.
fn blamed(run: &Run) -> (BTreeMap<Label, u64>, BTreeMap<u64, u64>) {
    let (mut labels, mut instructions) = (BTreeMap::new(), BTreeMap::new());
    for (region, Count { walks, .. }) in run.mmu.blame.regions() {
        if walks > 0 {
            *labels.entry((region.kind, region.name.to_string())).or_default() += walks;
        }
    }
    for (site, Count { walks, .. }) in run.mmu.blame.instructions() {
        if walks > 0 {
            *instructions.entry(site.expect("there are few").address).or_default() += walks;
        }
    }
    (labels, instructions)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_walk_belongs_to_the_mapping_and_the_instruction_that_made_it(
        steps in prop::collection::vec(step(), 1..300),
        (levels, in_guest, timed) in (3..5_u8, any::<bool>(), any::<bool>()),
    ) {
        // Of three levels, the data lies elsewhere than in the trace.
        let mut scenario = Scenario::new(scheme(levels, &[]));
        scenario.scheme.host = in_guest.then(|| host_table(4, &[]));
        scenario.mode = if timed { Mode::Timing } else { Mode::Functional };
        // The tests' code lies at 0.
        let mut run = scenario.start(&[(0, PAGE), (DATA, PAGES * PAGE)], false);
        prop_assert_eq!(run.is_relocated(), levels == 3);
        run.take(&Piece::Event(Event::Unmap { address: DATA, length: PAGES * PAGE })).unwrap();
        let mut model = Model::default();
        let (mut labels, mut instructions) = (BTreeMap::new(), BTreeMap::new());
        for step in &steps {
            let &Step::Access(page, block) = step else {
                if let Some(event) = model.event(step) {
                    run.take(&Piece::Event(event)).unwrap();
                }
                continue;
            };
            let before = run.mmu.statistics.total().walks;
            let address = at(page) + 8 * u64::from(block);
            go(&mut run, &[[Do::Load, Do::Chase, Do::Store][usize::from(block)](address)]);
            let walks = run.mmu.statistics.total().walks - before;
            if walks > 0 {
                let unmapped = (Kind::Unmapped, String::new());
                let label = model.pages.get(&page).cloned().unwrap_or(unmapped);
                *labels.entry(label).or_default() += walks;
                *instructions.entry(4 * u64::from(block)).or_default() += walks;
            }
        }
        prop_assert_eq!(blamed(&run), (labels, instructions));
    }
}

#[test]
fn counts_are_those_of_windows() {
    let mut run = Scenario::new(scheme(4, &[])).start(&[(DATA, PAGES * PAGE)], true);
    let sweep: Vec<Do> = (0..PAGES).map(|page| Do::Load(at(page))).collect();
    go(&mut run, &sweep);
    let walks = |run: &Run| run.mmu.blame.regions().map(|(_, count)| count.walks).sum::<u64>();
    assert_eq!(walks(&run), PAGES);
    let aside = Aside::take(|visit| run.mmu.shared_counts(visit));
    go(&mut run, &sweep);
    assert_eq!(walks(&run), PAGES, "those of outside");
    aside.put_back(|visit| run.mmu.shared_counts(visit));
    assert_eq!(walks(&run), PAGES, "those of the window");
    go(&mut run, &sweep);
    assert_eq!(walks(&run), 2 * PAGES);
    forget(|visit| run.mmu.shared_counts(visit));
    assert_eq!(walks(&run), 0);
}

/// The anonymous regions that walks came from: page and size of the largest mapping, and walks.
fn anonymous(run: &Run) -> Vec<(u64, u64, u64)> {
    let regions = run.mmu.blame.regions().filter(|(region, _)| region.kind == Kind::Anonymous);
    let known = regions.map(|(region, count)| {
        let (address, bytes) = region.largest;
        ((address - DATA) / PAGE, bytes / PAGE, count.walks)
    });
    known.collect()
}

#[test]
fn neighbouring_anonymous_memory_is_one_region_as_large_as_it_ever_was() {
    let mut run = Scenario::new(scheme(4, &[])).start(&[], false);
    let anonymous_at = |page, pages| Piece::Event(map(page, pages, Backing::Anonymous));
    let unmap =
        |page, pages| Piece::Event(Event::Unmap { address: at(page), length: pages * PAGE });
    // Two apart, one above the first, one below the second; later the first two of these are gone.
    for piece in
        [anonymous_at(10, 4), anonymous_at(40, 4), anonymous_at(14, 6), anonymous_at(38, 2)]
    {
        run.take(&piece).unwrap();
    }
    go(&mut run, &[Do::Load(at(10)), Do::Load(at(19)), Do::Load(at(38)), Do::Load(at(43))]);
    run.take(&unmap(10, 4)).unwrap();
    go(&mut run, &[Do::Load(at(15))]);
    assert_eq!(anonymous(&run), [(10, 10, 3), (38, 6, 2)]);
    // What was there and is mapped again is the same; what is mapped elsewhere is another.
    run.take(&unmap(14, 30)).unwrap();
    for piece in [anonymous_at(40, 2), anonymous_at(60, 1)] {
        run.take(&piece).unwrap();
    }
    go(&mut run, &[Do::Load(at(40)), Do::Load(at(60))]);
    assert_eq!(anonymous(&run), [(10, 10, 3), (38, 6, 3), (60, 1, 1)]);
}

#[test]
fn code_is_known_by_its_offset_in_its_file() {
    for levels in [3, 4] {
        let mapped = [(0, PAGE), (DATA, PAGES * PAGE)];
        let mut run = Scenario::new(scheme(levels, &[])).start(&mapped, false);
        assert_eq!(run.is_relocated(), levels == 3);
        let (address, length) = mapped[0];
        let (backing, shared) = (Backing::File, false);
        let mapped = Event::Map { address, length, protection: RIGHTS, backing, shared };
        run.take(&Piece::Event(mapped)).unwrap();
        let (offset, name, build_id) = (0x7000, "/program".to_owned(), "12ab".to_owned());
        let named = Event::Name { address, length, offset, name, build_id };
        run.take(&Piece::Event(named)).unwrap();
        go(&mut run, &[Do::Store(at(1))]);
        // What comes there later is not what has run.
        run.take(&Piece::Event(Event::Unmap { address, length })).unwrap();
        go(&mut run, &[Do::Store(at(2)), Do::Load(at(3))]);
        let other = Event::Map { address, length, protection: RIGHTS, backing, shared };
        run.take(&Piece::Event(other)).unwrap();
        let (name, build_id) = ("/library".to_owned(), "34cd".to_owned());
        let named = Event::Name { address, length, offset: 0, name, build_id };
        run.take(&Piece::Event(named)).unwrap();
        go(&mut run, &[Do::Store(at(4)), Do::Store(at(5))]);
        let code = |site: Option<&crate::mmu::blame::Site>| site.unwrap().code.clone();
        let known: Vec<_> =
            run.mmu.blame.instructions().map(|(site, count)| (code(site), count.walks)).collect();
        let store = Code { file: "/program".into(), build_id: "12ab".into(), offset: 0x7008 };
        let later = Code { file: "/library".into(), build_id: "34cd".into(), offset: 8 };
        assert_eq!(known, [(Some(store), 1), (None, 1), (None, 1), (Some(later), 2)]);
    }
}

#[test]
fn fetches_count_for_the_code_that_is_fetched() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.machine = crate::tests::testing::machine();
    for mode in [Mode::Functional, Mode::Timing] {
        scenario.mode = mode;
        let mut run = scenario.start(&[(0, PAGE), (DATA, PAGE)], true);
        go(&mut run, &[Do::Load(at(0))]);
        let (labels, instructions) = blamed(&run);
        assert_eq!(labels, BTreeMap::from([((Kind::Anonymous, String::new()), 2)]));
        assert_eq!(instructions, BTreeMap::from([(0, 2)]));
        assert_eq!(run.mmu.statistics.instruction_side, 1);
    }
}
