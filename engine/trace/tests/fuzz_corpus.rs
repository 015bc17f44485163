//! Runs what the fuzz targets run, on seeds and on a fixed set of changes to them. With the
//! environment variable `FUZZ_SEEDS` set to a folder, the seeds are written there for the fuzzer.

mod common;

use std::path::Path;

use common::foreign::{champsim, drmemtrace, lackey};
use common::{parsers, steps};
use flatwalk_trace::Options;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Changed copies of each seed: no more than this, and no more bytes than this together.
const CHANGES: usize = 4000;
const CHANGED_BYTES: usize = 4 << 20;
/// No input of a few KiB may take more address space than this.
const MOST_BYTES: u64 = 1 << 30;

/// A fuzz target's name, its function and its seeds.
type Target = (&'static str, fn(&[u8]), Vec<Vec<u8>>);

fn targets() -> Vec<Target> {
    let own = own_traces();
    // As if they had ended early, without and with the touched pages, which are long; and complete.
    let kinds: [&[u8]; 3] = [&[1, 2, 4], &[1, 2, 3, 4], &[1, 2, 3, 4, 5]];
    let unsealed = kinds.iter().flat_map(|kinds| own.iter().map(|own| parsers::unseal(own, kinds)));
    let [short, far] = [champsim::LINES.to_vec(), champsim::far()].map(|l| champsim::short(&l));
    let [long, far_long] = [champsim::LINES.to_vec(), champsim::far()].map(|l| champsim::long(&l));
    let raw = drmemtrace::trace(0x40, &drmemtrace::plain());
    let code = drmemtrace::trace(0x240, &drmemtrace::with_code());
    let synthetic = drmemtrace::trace(0x2_0200, &drmemtrace::with_synthetic());
    let far_raw = drmemtrace::trace(0x40, &drmemtrace::far());
    let map =
        drmemtrace::v2p(&[(1 << 21, &[(0, 0), (1 << 21, 3 << 21)]), (4096, &[(1 << 30, 4096)])]);
    let zips = [false, true].map(|deflate| {
        drmemtrace::zip(&[("chunk.0000", &raw[..120]), ("chunk.0001", &raw[120..])], deflate)
    });
    let hostile = drmemtrace::zip(&[("\x1b]0;chunk\x07/../chunk.0000", &raw)], false);
    let text = lackey::TEXT.as_bytes().to_vec();
    let compressed = compressed(&text);
    let any =
        [&own[..1], &[short.clone(), long.clone(), raw.clone(), text.clone()], &zips].concat();
    vec![
        ("own", parsers::own, own.clone()),
        ("own_unsealed", parsers::own_unsealed, unsealed.collect()),
        ("champsim", parsers::champsim, vec![short, far]),
        ("cloudsuite", parsers::cloudsuite, vec![long, far_long]),
        (
            "drmemtrace",
            parsers::drmemtrace,
            [vec![raw, code, synthetic, far_raw, hostile], zips.to_vec()].concat(),
        ),
        ("v2p", parsers::v2p, vec![map.into_bytes()]),
        ("lackey", parsers::lackey, [vec![text], compressed].concat()),
        ("any", parsers::any, any),
    ]
}

/// Small traces, always the same: one by hand, some random.
fn own_traces() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    let mut traces = vec![common::small().0];
    while traces.len() < 3 {
        let steps = steps().new_tree(&mut runner).expect("some steps").current();
        let (summary, _) = common::write(&path, &steps, Options::default(), true).expect("written");
        if summary.instructions > 100 {
            traces.push(std::fs::read(&path).expect("read"));
        }
    }
    traces
}

fn compressed(bytes: &[u8]) -> Vec<Vec<u8>> {
    use std::io::Write;
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    let mut bz = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    for encoder in [&mut gz as &mut dyn Write, &mut xz, &mut bz] {
        encoder.write_all(bytes).expect("compressed");
    }
    let zst = zstd::encode_all(bytes, 1);
    [gz.finish(), xz.finish(), bz.finish(), zst].map(|done| done.expect("compressed")).to_vec()
}

/// Numbers that look random and are always the same.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as usize) % limit.max(1)
    }

    /// Changes `bytes` in a few places: bits, numbers at their limits; in half of the cases parts are
    /// cut, doubled or moved as well.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        let kinds = if self.below(2) == 0 { 3 } else { 6 };
        for _ in 0..=self.below(3) {
            if bytes.is_empty() {
                return;
            }
            let (at, length) = (self.below(bytes.len()), 1 + self.below(16));
            let end = (at + length).min(bytes.len());
            let part = bytes[at..end].to_vec();
            match self.below(kinds) {
                0 => bytes[at] ^= 1 << (length % 8),
                1 => bytes[at..end].fill([0, 0xff, 0x7f, 0x80][length % 4]),
                2 => bytes[at] = length as u8,
                3 => drop(bytes.drain(at..end)),
                4 => drop(bytes.splice(at..at, part)),
                _ => bytes[at..].rotate_left(part.len() / 2),
            }
        }
        if kinds > 3 && self.below(8) == 0 {
            bytes.truncate(self.below(bytes.len()));
        }
    }
}

/// The most address space that this process ever had, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has this file");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("VmPeak");
    let kibibytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kibibytes << 10
}

#[test]
fn no_change_to_any_seed_breaks_a_parser() {
    let before = peak_bytes();
    for (name, parse, seeds) in targets() {
        let mut sequence = Sequence(1);
        for (number, seed) in seeds.iter().enumerate() {
            parse(seed);
            for _ in 0..CHANGES.min(CHANGED_BYTES / seed.len()) {
                let mut bytes = seed.clone();
                sequence.change(&mut bytes);
                parse(&bytes);
            }
            let grown = peak_bytes() - before;
            assert!(grown < MOST_BYTES, "{name}, seed {number}: {grown} bytes");
        }
    }
}

#[test]
fn what_the_fuzzer_kept_is_read_or_refused() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/kept");
    let before = peak_bytes();
    for (name, parse, _) in targets() {
        let files: Vec<_> = std::fs::read_dir(kept.join(name)).expect("a folder").collect();
        assert!(files.len() > 10, "{name}");
        for file in files {
            let path = file.expect("a file").path();
            parse(&std::fs::read(&path).expect("read"));
            let grown = peak_bytes() - before;
            assert!(grown < MOST_BYTES, "{}: {grown} bytes", path.display());
        }
    }
}

#[test]
fn seeds_are_sound() {
    for (name, _, seeds) in targets() {
        assert!(!seeds.is_empty(), "{name}");
        if let Some(folder) = std::env::var_os("FUZZ_SEEDS") {
            let folder = Path::new(&folder).join(name);
            std::fs::create_dir_all(&folder).expect("made");
            for (number, seed) in seeds.iter().enumerate() {
                std::fs::write(folder.join(number.to_string()), seed).expect("written");
            }
        }
    }
    // Sealing undoes unsealing, so the fuzzer gets behind the checksums.
    for own in own_traces() {
        let sealed = parsers::seal(&parsers::unseal(&own, &[1, 2, 3, 4, 5]));
        let read = |bytes: Vec<u8>| {
            let path = Path::new("trace");
            let mut reader = flatwalk_trace::Reader::from_bytes(path, bytes).expect("sound");
            assert!(!reader.ended_early());
            reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).expect("sound");
            common::read(&mut reader).expect("sound")
        };
        assert_eq!(read(sealed), read(own));
    }
}
