#![no_main]

#[path = "../../tests/common/parsers.rs"]
#[allow(dead_code)] // Sealing alone.
mod parsers;
#[path = "../../../timing/tests/common/simulated.rs"]
mod simulated;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| simulated::simulated(bytes));
