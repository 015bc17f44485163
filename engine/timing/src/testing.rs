//! A small machine whose latencies can be computed by hand.

use crate::machine::Machine;

/// 1 GHz, so that a cycle is a nanosecond; L1 4, L2 12, LLC 42 cycles, memory 100 more; tiny caches.
pub fn machine() -> Machine {
    let cache = |size_bytes: u64, ways: u32, latency_cycles: u64, mshrs: u32| {
        serde_json::json!({
            "size_bytes": size_bytes, "ways": ways, "latency_cycles": latency_cycles,
            "mshrs": mshrs,
        })
    };
    let machine = serde_json::json!({
        "name": "test", "title": "test", "source": "none", "frequency_mhz": 1000,
        "core": {
            "width": 4, "window": 64, "load_queue": 32, "store_queue": 32, "frontend_cycles": 5,
            "branch_predictor": "gshare", "branch_history_bits": 10,
        },
        "l1i": cache(512, 2, 4, 2),
        "l1d": cache(512, 2, 4, 2),
        "l2": cache(4096, 4, 12, 8),
        "llc": cache(65536, 8, 42, 16),
        "memory": { "kind": "fixed", "latency_ns": 100.0, "bandwidth_gbs": 64.0 },
        "tlb": {
            "l1i": [{ "pages": ["4K", "2M", "1G"], "entries": 4, "ways": 4, "latency_cycles": 1 }],
            "l1d": [{ "pages": ["4K"], "entries": 4, "ways": 2, "latency_cycles": 1 },
                    { "pages": ["2M"], "entries": 2, "ways": 2, "latency_cycles": 1 }],
            "l2": [{ "pages": ["4K", "2M"], "entries": 16, "ways": 4, "latency_cycles": 9 }],
        },
        "pwc": { "kind": "split", "latency_cycles": 1,
                 "entries": { "L5": 4, "L4": 4, "L3": 4, "L2": 24 } },
        "walker": { "concurrent": 2, "entry": "l1d" },
        "priority": { "evict_data_percent": 99, "window_instructions": 10000,
                      "enter_l2_tlb_mpki": 1.0, "enter_l2_data_miss_ratio": 0.5,
                      "exit_fraction": 0.5 },
        "os": { "fault_cycles": 1000, "zero_bytes_per_cycle": 16, "memory_bytes": 1u64 << 36 },
    });
    let machine: Machine = serde_json::from_value(machine).expect("the test machine reads");
    machine.validate().expect("the test machine is valid");
    machine
}
