//! What the fuzz target `simulated` runs, on what it has kept.

#[path = "../../trace/tests/common/parsers.rs"]
#[allow(dead_code)] // Sealing alone.
mod parsers;
#[path = "common/simulated.rs"]
mod simulated;

use std::path::Path;

#[test]
fn what_the_fuzzer_kept_is_simulated() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/fuzz/kept/simulated");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(files.len() > 10);
    for file in files {
        simulated::simulated(&std::fs::read(file.unwrap().path()).unwrap());
    }
}
