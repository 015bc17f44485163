//! One function for each parser, to be run on any bytes: by the fuzz targets in `fuzz/`, and by
//! `tests/fuzz_corpus.rs` on a fixed set. Each panics if the parser breaks a promise.

use std::path::Path;

use flatwalk_trace::format::{MAX_ACCESS_BYTES, MAX_ADDRESS};
use flatwalk_trace::{Event, Format, Item, Reader, Source, TraceError, open_bytes};
use xxhash_rust::xxh3::xxh3_64;

/// What messages call the bytes.
const NAME: &str = "bytes";
const CHUNK_HEADER_BYTES: usize = 80;

/// flatwalk's own format.
pub fn own(bytes: &[u8]) {
    let opened = Reader::from_bytes(Path::new(NAME), bytes.to_vec());
    let Ok(mut reader) = opened.inspect_err(check_message) else { return };
    let total = reader.summary().instructions;
    let verified = reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(()));
    let executed = drain(&mut reader, MAX_ACCESS_BYTES);
    if verified.inspect_err(check_message).is_ok() {
        assert_eq!(executed.expect("what was verified can be read"), total);
        reader.seek(total / 2);
        assert!(drain(&mut reader, MAX_ACCESS_BYTES).expect("from any place") >= total - total / 2);
    }
}

/// The same behind its checksums and compression: `bytes` is what [`unseal`] returns.
pub fn own_unsealed(bytes: &[u8]) {
    own(&seal(bytes));
}

/// ChampSim's records of 64 bytes.
pub fn champsim(bytes: &[u8]) {
    foreign(Some(Format::ChampSim), bytes);
}

/// ChampSim's records of 96 bytes.
pub fn cloudsuite(bytes: &[u8]) {
    foreign(Some(Format::CloudSuite), bytes);
}

/// drmemtrace: raw, compressed, or a zip archive.
pub fn drmemtrace(bytes: &[u8]) {
    foreign(Some(Format::DrMemTrace), bytes);
}

/// The map of virtual to physical pages that belongs to a drmemtrace.
pub fn v2p(bytes: &[u8]) {
    let events = flatwalk_trace::import::physical_pages(Path::new(NAME), bytes);
    let Ok(events) = events.inspect_err(check_message) else { return };
    // Every entry lies in a table that an entry before it, or the root, leads to.
    let frame = |word: u64| word & 0x000f_ffff_ffff_f000;
    let mut tables = std::collections::HashSet::new();
    for event in events {
        match event {
            Event::Root { cr3, .. } => assert!(tables.is_empty() && tables.insert(cr3)),
            Event::Entry { address, level, value } => {
                assert!(tables.contains(&frame(address)) && value & 1 == 1);
                let is_page = level == 1 || value & 0x80 != 0;
                assert!(is_page && !tables.contains(&frame(value)) || tables.insert(frame(value)));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// lackey's text.
pub fn lackey(bytes: &[u8]) {
    foreign(Some(Format::Lackey), bytes);
}

/// Any format, as for a file of which nothing is known.
pub fn any(bytes: &[u8]) {
    foreign(None, bytes);
}

fn foreign(format: Option<Format>, bytes: &[u8]) {
    let source = open_bytes(Path::new(NAME), format, bytes.to_vec());
    // Of ChampSim's accesses the first byte is known: nothing says that they reach another line.
    let most = match format {
        Some(Format::ChampSim | Format::CloudSuite) => 1,
        _ => MAX_ACCESS_BYTES,
    };
    let _ = source.and_then(|mut source| drain(&mut *source, most)).inspect_err(check_message);
}

fn check_message(error: &TraceError) {
    let message = error.to_string();
    assert!(message.starts_with("bytes: ") && message.contains(';'), "{message}");
    assert!(!matches!(error, TraceError::Io { .. }), "{message}");
}

/// Reads everything and checks what a source promises, accesses of `most` bytes included; returns the
/// instructions executed.
fn drain(source: &mut dyn Source, most: u16) -> Result<u64, TraceError> {
    let mut blocks = Vec::new();
    let mut executed = 0;
    while let Some(item) = source.next_item()? {
        match item {
            Item::Define { id, block } => {
                assert_eq!(id as usize, blocks.len());
                assert!(!block.instructions.is_empty());
                let count = block.instructions.len();
                let accesses = &block.accesses;
                assert!(accesses.is_sorted_by_key(|access| access.instruction));
                assert!(accesses.iter().all(|access| usize::from(access.instruction) < count));
                let sizes = 1..=most;
                assert!(accesses.iter().all(|access| sizes.contains(&access.size)));
                blocks.push((count as u64, accesses.len()));
            }
            Item::Slice(slice) => {
                let ran = slice.blocks.iter().map(|&id| blocks[id as usize]);
                let (instructions, accesses) =
                    ran.fold((0, 0), |sums, block| (sums.0 + block.0, sums.1 + block.1));
                assert!(instructions > 0);
                assert_eq!(accesses, slice.addresses.len());
                assert!(slice.addresses.iter().all(|&address| address <= MAX_ADDRESS));
                executed += instructions;
            }
            Item::Event(_) => {}
        }
    }
    Ok(executed)
}

/// A trace's chunks of some kinds without their seals: each header, with the payload decompressed
/// behind it.
pub fn unseal(trace: &[u8], kinds: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = &trace[16 + word(trace, 12) + 8..];
    while let Some((header, behind)) = rest.split_first_chunk::<CHUNK_HEADER_BYTES>()
        && header.starts_with(b"FWck")
    {
        let (stored, next) = behind.split_at(word(header, 8));
        if kinds.contains(&header[4]) {
            out.extend_from_slice(header);
            out.extend(zstd::bulk::decompress(stored, word(header, 12)).expect("a trace"));
        }
        rest = next;
    }
    out
}

/// Makes a trace of what [`unseal`] returns, with correct lengths, checksums and an index around it. A
/// chunk ends where the next begins; without a summary as the last the trace ends early.
pub fn seal(unsealed: &[u8]) -> Vec<u8> {
    let description = br#"{"name":"","origin":"","architecture":""}"#;
    let mut out = b"\x89FWTR\r\n\x1a\x01\0\0\0".to_vec();
    out.extend((description.len() as u32).to_le_bytes());
    out.extend(description);
    out.extend(xxh3_64(&out).to_le_bytes());
    let (mut index, mut last) = (Vec::new(), 0);
    let starts = (0..unsealed.len()).filter(|&at| unsealed[at..].starts_with(b"FWck"));
    let starts: Vec<usize> = starts.chain([unsealed.len()]).collect();
    for chunk in starts.windows(2) {
        let chunk = &unsealed[chunk[0]..chunk[1]];
        if let Some((&header, payload)) = chunk.split_first_chunk() {
            last = header[4];
            index.extend(put_chunk(&mut out, header, payload));
        }
    }
    if last == 5 {
        let offset = out.len() as u64;
        let mut header = [0; CHUNK_HEADER_BYTES];
        header[4] = 6;
        put_chunk(&mut out, header, &index);
        let trailer = [&offset.to_le_bytes()[..], &[0; 8], b"FWTR-end"].concat();
        out.extend(&trailer);
        out.extend(xxh3_64(&trailer).to_le_bytes());
    }
    out
}

/// Appends a chunk with correct lengths and checksums; returns its header.
fn put_chunk(
    out: &mut Vec<u8>,
    mut header: [u8; CHUNK_HEADER_BYTES],
    payload: &[u8],
) -> [u8; CHUNK_HEADER_BYTES] {
    let stored = zstd::bulk::compress(payload, 1).expect("zstd compresses anything");
    header[0..4].copy_from_slice(b"FWck");
    header[8..12].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    header[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[64..72].copy_from_slice(&xxh3_64(&stored).to_le_bytes());
    let checksum = xxh3_64(&header[..72]);
    header[72..80].copy_from_slice(&checksum.to_le_bytes());
    out.extend(header);
    out.extend(stored);
    header
}

fn word(bytes: &[u8], at: usize) -> usize {
    bytes[at..].first_chunk().map_or(0, |&word| u32::from_le_bytes(word) as usize)
}
