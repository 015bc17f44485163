#![no_main]

#[path = "../../tests/common/parsers.rs"]
#[allow(dead_code)] // One target, one parser.
mod parsers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| parsers::v2p(bytes));
