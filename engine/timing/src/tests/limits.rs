//! Relations between whole runs that hold whatever a program does: more of what limits it costs nothing, and
//! what cannot be full is not waited for.

use std::ops::ControlFlow;

use flatwalk_os::Placement;

use super::testing::{Scenario, scheme, shipped, shipped_machine};
use crate::config::machine::{Machine, Memory};
use crate::{Limits, RunConfiguration, RunResult, simulate};

/// Each of some configurations, for so many instructions of a workload of a size, after so many more.
fn run_all(
    configurations: Vec<RunConfiguration>,
    (workload, bytes): (&str, u64),
    (warmup, instructions): (u64, u64),
) -> Vec<RunResult> {
    let arguments = flatwalk_workloads::Arguments::new(bytes, 1);
    let source = flatwalk_workloads::open(workload, &arguments).unwrap();
    let limits = Limits { warmup, instructions: Some(instructions), ..Limits::default() };
    let go_on = &mut |_| ControlFlow::Continue(());
    simulate(source, configurations, &limits, 1, 1, go_on).unwrap().runs
}

/// A table of four levels on a machine.
fn run(machine: Machine, workload: (&str, u64), instructions: u64) -> RunResult {
    let scenario = Scenario { machine, ..Scenario::new(scheme(4, &[])) };
    run_all(vec![scenario.configuration()], workload, (20_000, instructions)).remove(0)
}

const RANDOM: (&str, u64) = ("random", 16 << 20);

/// Machine `name` with windows of these sizes, and queues of 896 entries.
fn windows<const N: usize>(name: &str, sizes: [u32; N]) -> [Machine; N] {
    sizes.map(|window| {
        let mut machine = shipped_machine(name);
        let core = machine.core.as_mut().unwrap();
        (core.window, core.load_queue, core.store_queue) = (window, 896, 896);
        machine
    })
}

/// Cycles of all, of which none is to have more than `most` times those of the one before.
fn assert_no_dearer<const N: usize>(runs: [RunResult; N], most: f64) {
    let cycles = runs.map(|run| run.cycles.unwrap() as f64);
    let mut pairs = cycles.iter().zip(&cycles[1..]);
    assert!(pairs.all(|(before, after)| *after < most * before), "{cycles:?}");
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
        run(machine, RANDOM, 60_000)
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
    // Another order of rows costs up to a per cent, and gains as much.
    for (machine, workload) in
        [("skylake-server", RANDOM), ("golden-cove", RANDOM), ("golden-cove", ("gups", 256 << 20))]
    {
        let sizes = windows(machine, [224, 448, 896, 1792]);
        assert_no_dearer(sizes.map(|machine| run(machine, workload, 100_000)), 1.01);
    }
}

#[test]
fn more_page_walkers_cost_nothing() {
    let runs = [2, 4, 8, 16, 64].map(|walkers| {
        let [mut machine] = windows("skylake-server", [1792]);
        machine.l1d.as_mut().unwrap().mshrs = 8;
        machine.walker.concurrent = walkers;
        run(machine, ("gups", 1 << 30), 100_000)
    });
    assert_no_dearer(runs, 1.005);
}

/// Loads that are known late lie behind younger ones here, and take all of the MSHRs for a few cycles each time.
#[test]
fn mshrs_that_are_taken_now_and_then_are_not_lost_in_between() {
    let graph = ("graph500", 32 << 20);
    let changed = |change: &dyn Fn(&mut Machine)| {
        let mut machine = shipped_machine("emt");
        change(&mut machine);
        run(machine, graph, 200_000)
    };
    let narrow = changed(&|machine| match machine.memory.as_mut().unwrap() {
        Memory::Fixed { bandwidth_gbs, .. } => *bandwidth_gbs = 5.0,
        Memory::Ddr4 { .. } => panic!("it has one latency"),
    });
    assert_no_dearer([narrow, changed(&|_| ())], 1.0);
    let windows = [128, 224, 448];
    let windows = windows.map(|of| changed(&|machine| machine.core.as_mut().unwrap().window = of));
    assert_no_dearer(windows, 1.0);
    let queues = [36, 72];
    let queues =
        queues.map(|of| changed(&|machine| machine.core.as_mut().unwrap().load_queue = of));
    assert_no_dearer(queues, 1.0);
    let mshrs = [8, 12, 16, 64];
    let mshrs = mshrs.map(|of| changed(&|machine| machine.l1d.as_mut().unwrap().mshrs = of));
    assert_no_dearer(mshrs, 1.005);
}

#[test]
fn a_load_queue_longer_than_the_window_is_as_good_as_one_of_its_length() {
    for name in ["golden-cove", "zen4", "xeon-w-2195"] {
        let [as_long, longer] = [1, 8].map(|times| {
            let mut machine = shipped_machine(name);
            let core = machine.core.as_mut().unwrap();
            assert!(core.reconvergence_instructions > Some(0));
            (core.load_queue, core.store_queue) = (times * core.window, times * core.window);
            run(machine, ("graphbig-bfs", 64 << 20), 100_000).cycles
        });
        assert_eq!(as_long, longer, "{name}");
    }
}

#[test]
fn nothing_is_faster_than_free_translation() {
    let shipped = shipped();
    let scheme = |name: &str| shipped.iter().find(|scheme| scheme.name == name).unwrap().clone();
    // Arrays that are swept together meet in memory's banks or not, as they lie: alike under all tables.
    for (on, workload, mib) in [
        ("skylake-server", "stream", 64),
        ("skylake-server", "stream", 96),
        ("skylake-server", "gups", 64),
        ("skylake-server", "graphbig-pr", 64),
        ("emt", "graph500", 32),
    ] {
        let configurations: Vec<_> = ["ideal", "radix4", "radix5", "fpt", "fpt+ptp", "ecpt"]
            .map(|name| {
                let machine = shipped_machine(on);
                let scenario = Scenario { machine, ..Scenario::new(scheme(name)) };
                RunConfiguration { frames: Placement::Apart, ..scenario.configuration() }
            })
            .into();
        let runs = run_all(configurations, (workload, mib << 20), (100_000, 1_000_000));
        let cycles: Vec<_> = runs.iter().map(|run| run.cycles.unwrap() as f64).collect();
        assert!(cycles.iter().all(|&its| its > 0.995 * cycles[0]), "{workload}: {cycles:?}");
    }
}
