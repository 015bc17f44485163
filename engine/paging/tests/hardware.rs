//! The vectors of flat page tables (docs/flat-page-tables.md), walked by the engine's walker.

use std::collections::HashMap;

use flatwalk_paging::hardware::Paging;
use flatwalk_paging::{Address, Fault, Gva, Hpa, Rights, Step, Walk};

/// What an access comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Physical address and size of the page.
    Page(u64, u64),
    /// Error code of a page fault.
    PageFault(u64),
    /// #GP.
    Protection,
}

struct Access {
    /// "read", "write" or "execute".
    kind: String,
    user: bool,
    address: u64,
    reads: Vec<u64>,
    outcome: Option<Outcome>,
    after: Vec<(u64, u64)>,
}

struct Case {
    name: String,
    paging: Paging,
    cr3: u64,
    words: HashMap<u64, u64>,
    accesses: Vec<Access>,
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

/// Reads the file, whose format its first lines describe.
fn vectors() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/flat-page-tables.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        if let ["case", name] = fields[..] {
            let paging = Paging { five_levels: false, flat: false, physical_bits: 40 };
            let (name, words) = (name.to_owned(), HashMap::new());
            cases.push(Case { name, paging, cr3: 0, words, accesses: Vec::new() });
            continue;
        }
        let case = cases.last_mut().unwrap();
        if let ["access", kind, mode, address] = fields[..] {
            case.accesses.push(Access {
                kind: kind.to_owned(),
                user: mode == "user",
                address: number(address),
                reads: Vec::new(),
                outcome: None,
                after: Vec::new(),
            });
            continue;
        }
        let access = case.accesses.last_mut();
        match fields[..] {
            ["levels", levels] => case.paging.five_levels = levels == "5",
            ["flat", flag] => case.paging.flat = flag == "1",
            ["cr3", value] => case.cr3 = number(value),
            ["word", at, word] => assert_eq!(case.words.insert(number(at), number(word)), None),
            // The control registers themselves are not the walker's.
            ["feature", _] | ["load", ..] => {}
            ["reads", ref reads @ ..] => {
                access.unwrap().reads = reads.iter().map(|at| number(at)).collect();
            }
            ["page", at, bytes] => {
                access.unwrap().outcome = Some(Outcome::Page(number(at), number(bytes)));
            }
            ["fault", code] => access.unwrap().outcome = Some(Outcome::PageFault(number(code))),
            ["gp"] => access.unwrap().outcome = Some(Outcome::Protection),
            ["after", at, word] => access.unwrap().after.push((number(at), number(word))),
            _ => panic!("not understood: {line}"),
        }
    }
    cases
}

/// Physical address and size of a page, and the rights to it.
type Translation = (u64, u64, Rights);

/// Walks; gives the entries read and what came of it.
fn walk(case: &Case, address: u64) -> (Vec<u64>, Result<Translation, Fault<Hpa>>) {
    let geometry = case.paging.geometry();
    if !geometry.is_canonical(address) {
        return (Vec::new(), Err(Fault::NotCanonical));
    }
    let address = Gva::new(address);
    let mut walk = Walk::from(geometry, case.paging.root(case.cr3, address), address);
    let mut reads = Vec::new();
    loop {
        let at = walk.entry_address().raw();
        reads.push(at);
        let word = case.words.get(&at).copied().unwrap_or(0);
        match walk.feed(case.paging.entry(word, walk.at().bottom())) {
            Step::Table(_) => {}
            Step::Fault(fault) => return (reads, Err(fault)),
            Step::Leaf(leaf) => {
                let bytes = geometry.span(leaf.level);
                let physical = leaf.frame.raw() + address.raw() % bytes;
                return (reads, Ok((physical, bytes, leaf.rights)));
            }
        }
    }
}

#[test]
fn the_walker_does_what_the_vectors_say() {
    let cases = vectors();
    for case in &cases {
        for access in &case.accesses {
            let what = format!("{}: {} {:#x}", case.name, access.kind, access.address);
            let (reads, found) = walk(case, access.address);
            assert_eq!(reads, access.reads, "{what}");
            let why = u64::from(access.kind == "write") << 1
                | u64::from(access.user) << 2
                | u64::from(access.kind == "execute") << 4;
            let outcome = match found {
                Err(Fault::NotCanonical) => Outcome::Protection,
                Err(Fault::NotPresent { .. }) => Outcome::PageFault(why),
                Err(Fault::Reserved { .. }) => Outcome::PageFault(why | 0b1001),
                Ok((physical, bytes, rights)) => {
                    let wanted = match access.kind.as_str() {
                        "write" => rights.write,
                        "execute" => rights.execute,
                        _ => true,
                    };
                    if wanted && (rights.user || !access.user) {
                        Outcome::Page(physical, bytes)
                    } else {
                        Outcome::PageFault(why | 1)
                    }
                }
            };
            assert_eq!(Some(&outcome), access.outcome.as_ref(), "{what}");
            let after: Vec<(u64, u64)> = match outcome {
                Outcome::Page(..) => touched(case, &reads, access.kind == "write"),
                _ => Vec::new(),
            };
            assert_eq!(after, access.after, "{what}");
        }
    }
    let accesses: usize = cases.iter().map(|case| case.accesses.len()).sum();
    assert!(accesses > 1500, "only {accesses} accesses were read from the vectors");
}

/// Words that setting A on `reads`, and D on the last of them, changes, by address.
fn touched(case: &Case, reads: &[u64], store: bool) -> Vec<(u64, u64)> {
    let mut after: Vec<(u64, u64)> = reads
        .iter()
        .enumerate()
        .map(|(number, &at)| {
            let leaf = number + 1 == reads.len();
            let word = flatwalk_paging::Entry(case.words[&at]);
            (at, word.touched(leaf && store).0)
        })
        .filter(|(at, word)| case.words[at] != *word)
        .collect();
    after.sort_unstable();
    after.dedup();
    after
}

#[test]
fn cold_walks_read_as_many_entries_as_the_specification_says() {
    let cases = vectors();
    for (name, reads) in
        [("off", 4), ("l3l2", 3), ("l4l3", 3), ("l2l1", 3), ("l4l3+l2l1", 2), ("off5", 5)]
    {
        let case = cases.iter().find(|case| case.name == format!("{name}-low")).unwrap();
        assert_eq!(walk(case, case.accesses[0].address).0.len(), reads, "{name}");
    }
}
