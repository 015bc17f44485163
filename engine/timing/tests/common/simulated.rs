//! Simulates whatever a trace holds: for the fuzz target `simulated`, and for `tests/forged.rs`.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use flatwalk_timing::{Limits, RunConfiguration, SimulateError, simulate};
use flatwalk_trace::open_bytes;
use serde_json::{Value, json};

use crate::parsers::seal;

/// Instructions of a run at most: what a trace may say in a few bytes can take as long as it likes.
const MOST_INSTRUCTIONS: u64 = 1 << 19;

/// A tree with and without merged nodes, and a table without a tree, in both modes.
static CONFIGURATIONS: LazyLock<Vec<RunConfiguration>> = LazyLock::new(|| {
    let read = |text| toml::from_str::<Value>(text).expect("TOML");
    let machine = read(include_str!("../../../../python/flatwalk/data/machines/mobile.toml"));
    let schemes = [
        include_str!("../../../../python/flatwalk/data/schemes/radix4.toml"),
        include_str!("../../../../python/flatwalk/data/schemes/fpt+ptp.toml"),
        include_str!("../../../../python/flatwalk/data/schemes/inverted.toml"),
    ];
    let pairs =
        schemes.into_iter().flat_map(|scheme| ["functional", "timing"].map(|mode| (scheme, mode)));
    let of = |(scheme, mode)| {
        let configuration = json!({
            "scheme": read(scheme), "machine": machine, "mode": mode, "memory_bytes": 1u64 << 30,
        });
        serde_json::from_value(configuration).expect("shipped files")
    };
    pairs.map(of).collect()
});

/// `bytes` are a trace of any format, or flatwalk's own without its seals.
pub fn simulated(bytes: &[u8]) {
    let bytes = if bytes.starts_with(b"FWck") { seal(bytes) } else { bytes.to_vec() };
    let Ok(source) = open_bytes(Path::new("bytes"), None, bytes) else { return };
    let limits =
        Limits { skip: 0, warmup: 0, instructions: Some(MOST_INSTRUCTIONS), sampling: None };
    let go_on = &mut |_| ControlFlow::Continue(());
    match simulate(source, CONFIGURATIONS.clone(), &limits, 1, 1, go_on) {
        Ok(simulation) => {
            assert_eq!(simulation.runs.len(), CONFIGURATIONS.len());
            for run in simulation.runs {
                assert_eq!(run.instructions, simulation.instructions, "{}", run.scheme);
            }
        }
        Err(SimulateError::Stopped) => panic!("nobody asked to stop"),
        Err(error) => assert!(error.to_string().contains(';'), "no remedy: {error}"),
    }
}
