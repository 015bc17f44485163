//! One configuration of a request: a scheme on a machine, and the conditions.

use std::sync::LazyLock;

use flatwalk_os::{Placement, Thp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::machine::Machine;
use super::require;
use super::schema;
use super::scheme::Scheme;
use crate::ConfigError;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Cycles: core, caches, memory, walks.
    Timing,
    /// Counts only: TLBs and page-walk caches.
    Functional,
}

/// One configuration to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfiguration {
    /// The scheme.
    pub scheme: Scheme,
    /// The machine.
    pub machine: Machine,
    /// By key: what of these two differs from their files. For the reader; the two hold it already.
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// Per cent of the touched memory that large pages back, lowest addresses first; or `thp`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100), extend("unit" = "%"))]
    pub large_pages: Option<u8>,
    /// Linux's policy for large pages instead.
    #[serde(default)]
    pub thp: Option<Thp>,
    /// Share of physical 2 MiB blocks that cannot be had whole.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1))]
    pub fragmentation: f64,
    /// Per cent of a guest's memory that the host backs with large pages, lowest addresses first.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100), extend("unit" = "%"))]
    pub host_large_pages: u8,
    /// Where a guest's frames lie in its memory.
    #[serde(default)]
    pub guest_frames: Placement,
    /// Where the machine's own frames lie in its memory: the process's, or the host's.
    #[serde(default = "apart")]
    pub frames: Placement,
    /// What is computed.
    pub mode: Mode,
    /// Milliseconds after which another process takes the core, and gives it back at once with TLBs and
    /// page-walk caches empty; never if absent.
    #[serde(default)]
    #[schemars(range(min = 0.001, max = 1_000_000))]
    pub context_switch_ms: Option<f64>,
    /// Physical memory in bytes, instead of the machine's; the guest's, where there is one.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Cores that the program's threads run on, at most; those of the machine if absent.
    #[serde(default)]
    #[schemars(range(min = 1, max = 64))]
    pub cores: Option<u32>,
}

/// Where the machine's own frames lie, if nothing else is said.
pub(super) fn apart() -> Placement {
    Placement::Apart
}

/// Cores that threads run on, where a machine does not say how many it has.
const CORES: u32 = 8;

impl RunConfiguration {
    /// The schema of one configuration of a request.
    pub fn schema() -> &'static Value {
        static SCHEMA: LazyLock<Value> =
            LazyLock::new(|| schema::read::<RunConfiguration>().to_value());
        &SCHEMA
    }

    /// Cores that the program's threads run on, at most.
    pub fn most_cores(&self) -> u32 {
        let of_machine = self.machine.multicore.map_or(CORES, |multicore| multicore.cores);
        self.cores.unwrap_or(of_machine)
    }

    /// Checks every figure, and what scheme, machine and conditions are to each other. The first
    /// problem is reported.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        schema::conforms(Self::schema(), self)?;
        self.validate_together()
    }

    /// Checks what no schema expresses.
    pub(crate) fn validate_together(&self) -> Result<(), ConfigError> {
        let Self { scheme, machine, .. } = self;
        machine.validate_together().map_err(|error| error.within("machine"))?;
        scheme.validate_together().map_err(|error| error.within("scheme"))?;
        require(self.large_pages.is_none() || self.thp.is_none(), "thp", || {
            "says which pages are large, and so does large_pages: give one of them".to_owned()
        })?;
        let percent = self.host_large_pages;
        require(!scheme.shadow || matches!(percent, 0 | 100), "host_large_pages", || {
            format!(
                "{percent} (the pages of a shadow page table are no larger than the host's: 0 or 100 for \
                 scheme `{}`)",
                scheme.name
            )
        })?;
        let functional = self.mode == Mode::Functional;
        require(self.context_switch_ms.is_none() || !functional, "context_switch_ms", || {
            "has no meaning in functional mode, which has no clock to switch by".to_owned()
        })?;
        if let Some(multicore) = machine.multicore {
            require(self.most_cores() <= multicore.cores, "cores", || {
                let (asked, has) = (self.most_cores(), multicore.cores);
                format!("{asked} (machine `{}` has {has}, see `multicore.cores`)", machine.name)
            })?;
        }
        if !functional && !machine.is_timed() {
            return Err(ConfigError::NotTimed(machine.name.clone()));
        }
        if (scheme.host.is_some() || scheme.shadow) && machine.virtualisation.is_none() {
            return Err(ConfigError::NotVirtual(machine.name.clone(), scheme.name.clone()));
        }
        Ok(())
    }
}
