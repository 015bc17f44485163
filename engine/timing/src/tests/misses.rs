//! Limits of caches in whole runs: what a cache cannot have on its way, those below need not have room for.

use std::ops::ControlFlow;

use super::testing::{Scenario, scheme, shipped_machine};
use crate::config::machine::Machine;
use crate::{Limits, RunResult, simulate};

/// 60,000 instructions that read lines of 16 MiB in no order.
fn run(machine: Machine) -> RunResult {
    let scenario = Scenario { machine, ..Scenario::new(scheme(4, &[])) };
    let arguments = flatwalk_workloads::Arguments::new(16 << 20, 1);
    let source = flatwalk_workloads::open("random", &arguments).unwrap();
    let limits = Limits { warmup: 20_000, instructions: Some(60_000), ..Limits::default() };
    let go_on = &mut |_| ControlFlow::Continue(());
    let configurations = vec![scenario.configuration()];
    simulate(source, configurations, &limits, 1, 1, go_on).unwrap().runs.remove(0)
}

#[test]
fn l2_is_never_waited_for_where_all_requests_hold_mshrs_of_an_l1_cache() {
    let [small, large] = [None, Some(254)].map(|mshrs| {
        let mut machine = shipped_machine("skylake-server");
        let [l1i, l1d, l2, llc] =
            [&mut machine.l1i, &mut machine.l1d, &mut machine.l2, &mut machine.llc]
                .map(|cache| cache.as_mut().unwrap());
        let enough = mshrs.unwrap_or(l1i.mshrs + l1d.mshrs);
        (l2.mshrs, llc.mshrs) = (enough, enough);
        run(machine)
    });
    let waits = |run: &RunResult| -> Vec<u64> {
        run.caches.iter().map(|cache| cache.mshr_wait_cycles).collect()
    };
    assert!(waits(&small)[1] > 1_000_000, "{:?}", waits(&small));
    assert_eq!(waits(&small)[2..], [0, 0]);
    assert_eq!((waits(&small), small.cycles), (waits(&large), large.cycles));
}

#[test]
fn a_larger_window_costs_nothing() {
    let cycles = [224, 448, 896, 1792].map(|window| {
        let mut machine = shipped_machine("skylake-server");
        let core = machine.core.as_mut().unwrap();
        (core.window, core.load_queue) = (window, 896);
        run(machine).cycles.unwrap() as f64
    });
    // Another order of rows costs a little, and gains as much.
    assert!(cycles.iter().all(|&cycles_of| cycles_of < 1.005 * cycles[0]), "{cycles:?}");
}
