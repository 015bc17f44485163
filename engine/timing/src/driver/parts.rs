//! The parts that a run joins: what is translated, core and caches, and the walker.

use flatwalk_os::{Configuration, LargePages};
use flatwalk_paging::Layout;

use crate::ConfigError;
use crate::config::machine::Machine;
use crate::config::run::{Mode, RunConfiguration};
use crate::config::scheme::Scheme;
use crate::core::Core;
use crate::mechanisms::{Policies, Setup, TableSetup, host_memory_bytes};
use crate::memory::hierarchy::Hierarchy;
use crate::mmu::walker::Walker;
use crate::system::System;
use crate::system::recorded::Recorded;

/// What timing mode needs in addition to the MMU.
pub(crate) type Timed = (Box<Core>, Box<Hierarchy>);

/// What mechanisms may know of a table of `layout`.
pub(super) fn table_setup(layout: &Layout) -> TableSetup {
    TableSetup { geometry: layout.geometry(), is_tree: layout.is_tree() }
}

/// What is translated: by tables of `layouts`, the process's own and the host's, as the mechanisms of
/// `setup` need it; or by those of a recorded machine.
pub(super) fn system(
    configuration: &RunConfiguration,
    setup: &mut Setup<'_>,
    (layout, host_layout): (&Layout, Option<&Layout>),
    large_pages: LargePages,
    seed: u64,
) -> Result<System, ConfigError> {
    let (scheme, memory_bytes) = (&configuration.scheme, setup.memory_bytes);
    let own = Configuration {
        layout: layout.clone(),
        large_pages,
        touched: setup.touched.to_vec(),
        memory_bytes,
        reserved_bytes: setup.own_needs.reserved_bytes,
        segment: setup.own_needs.segment.take(),
        fragmentation: configuration.fragmentation,
        large_failure_probability: 0.0,
        ordered_levels: std::mem::take(&mut setup.own_needs.ordered_levels),
        recursive_index: scheme.recursive_index,
        placement: match scheme.host {
            Some(_) => configuration.guest_frames,
            None => configuration.frames,
        },
        seed,
    };
    if scheme.recorded {
        let recorded = Recorded::new(layout.geometry(), memory_bytes)?;
        return Ok(System::Recorded(Box::new(recorded)));
    }
    let Some(layout) = host_layout else { return Ok(System::new(&own, None)?) };
    let all = [(0, memory_bytes)];
    let percent = configuration.host_large_pages;
    let host = Configuration {
        layout: layout.clone(),
        large_pages: LargePages::share(percent, &all, layout.geometry())?,
        touched: Vec::new(),
        memory_bytes: host_memory_bytes(memory_bytes),
        reserved_bytes: setup.host_needs.reserved_bytes,
        segment: setup.host_needs.segment.take(),
        ordered_levels: std::mem::take(&mut setup.host_needs.ordered_levels),
        // A host reaches its table for a guest without that table's help.
        recursive_index: None,
        placement: configuration.frames,
        seed: !seed,
        ..own.clone()
    };
    Ok(System::new(&own, Some(&host))?)
}

/// The core and the caches, in timing mode.
pub(super) fn timed(
    RunConfiguration { machine, mode, .. }: &RunConfiguration,
    policies: Policies,
    seed: u64,
) -> Result<Option<Timed>, ConfigError> {
    if *mode == Mode::Functional {
        return Ok(None);
    }
    let missing = || ConfigError::NotTimed(machine.name.clone());
    let core = Core::new(machine.core.as_ref().ok_or_else(missing)?);
    let mut caches = Hierarchy::new(machine, seed).ok_or_else(missing)?;
    let [l2, llc] = policies;
    caches.set_l2_policy(l2);
    caches.set_llc_policy(llc);
    caches.set_prefetchers(machine)?;
    Ok(Some((Box::new(core), Box::new(caches))))
}

/// The walker for tables of these layouts: the process's own and the host's.
pub(super) fn walker(
    scheme: &Scheme,
    machine: &Machine,
    (own, host): (&Layout, Option<&Layout>),
) -> Result<Walker, ConfigError> {
    let no_guests = || ConfigError::NotVirtual(machine.name.clone(), scheme.name.clone());
    match host {
        None => Walker::native(machine, own),
        Some(host) => {
            let virtualisation = machine.virtualisation.as_ref().ok_or_else(no_guests)?;
            Walker::nested(machine, virtualisation, own, host)
        }
    }
}
