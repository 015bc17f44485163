//! Mechanisms that help translation next to the page table. Each is one file, and has two lines here: its
//! module, and its line of [`REGISTRY`].
//!
//! A mechanism's file has its settings, its state, its hooks ([`Mechanism`]), its figures and what it
//! says of itself. Nothing else names it: a scheme or machine switches it on by a section of its name.

pub mod asap;
pub mod csalt;
pub mod direct_segment;
pub mod page_table_priority;
pub mod pom_tlb;
pub mod sequential_prefetcher;
pub mod vhpt;

use std::ops::Range;

use flatwalk_paging::{Address, Geometry, Gpa, Hpa};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use crate::ConfigError;
use crate::config::machine::{Isolation, Machine, Multicore};
use crate::config::scheme::Scheme;
use crate::config::sections::Sections;
use crate::memory::replacement::ReplacementPolicy;
use crate::mmu::mechanism::{Mechanism, ResultView};
use crate::mmu::segment::Segment;
use crate::prototypes::{self, FiguresByClass, MECHANISMS, Named, Place};

/// Every mechanism, in the order in which they are set up and called.
pub const REGISTRY: &[Registered] = &[
    vhpt::MECHANISM,
    asap::MECHANISM,
    pom_tlb::MECHANISM,
    sequential_prefetcher::MECHANISM,
    direct_segment::MECHANISM,
    csalt::MECHANISM,
    page_table_priority::MECHANISM,
    PROTOTYPE,
];

/// Stands for all that are registered while the program runs.
const PROTOTYPE: Registered = Registered {
    name: prototypes::NAME,
    scheme: Some(Section::of::<Named>()),
    host: None,
    machine: None,
    figures: Section::of_figures::<FiguresByClass>(),
    // A scheme may have several: see [`build_prototypes`].
    build: |_| Ok(None),
};

/// A mechanism: the sections that it owns, and how it is made.
pub struct Registered {
    /// Its name, and that of its sections.
    pub name: &'static str,
    /// What a section of a scheme says, if there is one.
    pub scheme: Option<Section>,
    /// What a section of a scheme's `host` says, if there is one.
    pub host: Option<Section>,
    /// What a section of a machine says, if there is one.
    pub machine: Option<Section>,
    /// What its figures are.
    pub figures: Section,
    /// Makes it, if the scheme or the machine switches it on.
    pub build: fn(&mut Setup<'_>) -> Built,
}

/// The mechanism, if it is switched on.
pub type Built = Result<Option<Box<dyn Mechanism>>, ConfigError>;

/// The keys of a section, or of figures.
#[derive(Clone, Copy)]
pub struct Section(pub fn() -> Schema);

impl Section {
    /// Those of `T`, which a file has.
    pub const fn of<T: JsonSchema>() -> Self {
        Self(|| section::<T>(SchemaSettings::draft2020_12().for_deserialize()))
    }

    /// Those of `T`, which a result has.
    pub const fn of_figures<T: JsonSchema>() -> Self {
        Self(|| section::<T>(SchemaSettings::draft2020_12().for_serialize()))
    }

    /// As a JSON schema, without references.
    pub fn schema(self) -> Schema {
        (self.0)()
    }
}

fn section<T: JsonSchema>(settings: SchemaSettings) -> Schema {
    let inline = settings.with(|settings| settings.inline_subschemas = true);
    inline.into_generator().into_root_schema_for::<T>()
}

/// A table of the setup: what a mechanism may have to know of it.
#[derive(Clone, Copy, Debug)]
pub struct TableSetup {
    /// Its geometry.
    pub geometry: Geometry,
    /// True if it is a tree.
    pub is_tree: bool,
}

/// What mechanisms need of an operating system.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Bytes at the end of its memory that it leaves alone.
    pub reserved_bytes: u64,
    /// Addresses that it need not map: a segment translates them.
    pub segment: Option<Range<u64>>,
    /// Levels whose nodes it keeps in order and contiguous.
    pub ordered_levels: Vec<u8>,
}

/// The run that is set up: what mechanisms see, and what they ask for.
pub struct Setup<'a> {
    /// The scheme.
    pub scheme: &'a Scheme,
    /// The machine.
    pub machine: &'a Machine,
    /// The process's own table, or the guest's.
    pub own: TableSetup,
    /// The host's table, if the process runs in a guest.
    pub host: Option<TableSetup>,
    /// What the trace touches: ranges of addresses.
    pub touched: &'a [(u64, u64)],
    /// Physical memory of the process's operating system, in bytes.
    pub memory_bytes: u64,
    /// What mechanisms need of the process's operating system.
    pub own_needs: Needs,
    /// What they need of the host.
    pub host_needs: Needs,
    /// A segment in place of the guest's table, where it reaches.
    pub guest_segment: Option<Segment<Gpa>>,
    /// A segment in place of the host's table.
    pub host_segment: Option<Segment>,
    /// Replacement policies of L2 and LLC, and whose they are.
    policies: Option<(&'static str, Policies)>,
    /// End of the machine's memory that is not reserved yet.
    end: u64,
}

/// The replacement policies of L2 and LLC; `None`: the least recently used line goes.
pub type Policies = [Option<Box<dyn ReplacementPolicy>>; 2];

/// Memory of the host of a guest with `guest_bytes`: room for all of the guest's, however it is backed,
/// and for the host's own table.
pub fn host_memory_bytes(guest_bytes: u64) -> u64 {
    2 * guest_bytes
}

impl<'a> Setup<'a> {
    /// Nothing asked for yet.
    pub fn new(
        (scheme, machine): (&'a Scheme, &'a Machine),
        own: TableSetup,
        host: Option<TableSetup>,
        touched: &'a [(u64, u64)],
        memory_bytes: u64,
    ) -> Self {
        let end = if host.is_some() { host_memory_bytes(memory_bytes) } else { memory_bytes };
        Self {
            scheme,
            machine,
            own,
            host,
            touched,
            memory_bytes,
            own_needs: Needs::default(),
            host_needs: Needs::default(),
            guest_segment: None,
            host_segment: None,
            policies: None,
            end,
        }
    }

    /// Reserves `bytes` at the end of the machine's memory; returns where they begin.
    pub fn reserve(&mut self, bytes: u64) -> Hpa {
        self.end -= bytes;
        let needs = if self.host.is_some() { &mut self.host_needs } else { &mut self.own_needs };
        needs.reserved_bytes += bytes;
        Hpa::new(self.end)
    }

    /// Gives L2 and LLC replacement policies, for the mechanism `name`.
    ///
    /// # Errors
    /// If another mechanism has done so.
    pub fn set_policies(
        &mut self,
        name: &'static str,
        policies: Policies,
    ) -> Result<(), ConfigError> {
        if let Some((other, _)) = &self.policies {
            let problem = format!("decides what the caches evict, as `{other}` does: keep one");
            return Err(ConfigError::Value { key: name.to_owned(), problem });
        }
        self.policies = Some((name, policies));
        Ok(())
    }

    /// The policies that were asked for.
    pub fn take_policies(&mut self) -> Policies {
        self.policies.take().map(|(_, policies)| policies).unwrap_or_default()
    }

    /// Refuses the mechanism `name` where the table is that of a recorded machine.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn refuse_recorded(&self, name: &str) -> Result<(), ConfigError> {
        if !self.scheme.recorded {
            return Ok(());
        }
        let problem = "has no meaning where the table is `recorded`: leave it out".to_owned();
        Err(ConfigError::Value { key: name.to_owned(), problem })
    }
}

/// Makes the mechanisms that the scheme and the machine of `setup` switch on.
///
/// # Errors
/// For a section that nobody knows, a setting that cannot be, or mechanisms that do not go together.
pub fn build(setup: &mut Setup<'_>) -> Result<Vec<Box<dyn Mechanism>>, ConfigError> {
    check_names("", &setup.scheme.mechanisms, |registered| registered.scheme.is_some())?;
    check_names("", &setup.machine.mechanisms, |registered| registered.machine.is_some())?;
    if let Some(host) = &setup.scheme.host {
        check_names("host.", &host.mechanisms, |registered| registered.host.is_some())?;
    }
    let mut mechanisms = Vec::new();
    for registered in REGISTRY {
        mechanisms.extend((registered.build)(setup)?);
    }
    mechanisms.extend(build_prototypes(setup)?);
    Ok(mechanisms)
}

/// Makes those that were registered while the program runs, in the order in which the scheme names them.
fn build_prototypes(setup: &mut Setup<'_>) -> Result<Vec<Box<dyn Mechanism>>, ConfigError> {
    let name = prototypes::NAME;
    let Some(Named(named)) = setup.scheme.mechanisms.get(name)? else { return Ok(Vec::new()) };
    setup.refuse_recorded(name)?;
    let mut made = Vec::new();
    for (before, prototype) in named.iter().enumerate() {
        let error = |(key, problem)| {
            let key = format!("{name}[{}].{key}", before + 1);
            ConfigError::Value { key, problem }
        };
        if named[..before].iter().any(|other| other.class == prototype.class) {
            let problem = "is there twice, and results know a mechanism by its class".to_owned();
            return Err(error(("class", problem)));
        }
        let known = MECHANISMS.find(prototype).map_err(error)?;
        let memory = setup.reserve(known.memory_bytes);
        made.push((known.make)(Place { geometry: setup.own.geometry, memory }));
    }
    Ok(made)
}

/// The policy of a cache that the cores of `multicore` share on `machine`, where no program's mechanism
/// brings its own: it spares the page tables of programs with page-table priority active.
///
/// # Errors
/// If the machine's section for it cannot be.
pub fn shared_policy(
    machine: &Machine,
    multicore: Multicore,
) -> Result<Box<dyn ReplacementPolicy>, ConfigError> {
    page_table_priority::shared_policy(machine, multicore)
}

/// The policy of a cache that the cores of `machine` share which run one program's threads: it spares
/// page tables while one of them has page-table priority active.
///
/// # Errors
/// If the machine's section for it cannot be.
pub fn policy_for_threads(machine: &Machine) -> Result<Box<dyn ReplacementPolicy>, ConfigError> {
    shared_policy(machine, Multicore { cores: 1, isolation: Isolation::Owners })
}

/// Says that `what` did nothing, in functional mode.
fn without_caches(what: &str, view: &ResultView<'_>) -> Vec<String> {
    let warning =
        || format!("there are no caches in functional mode, so {what} had nothing to work on");
    view.caches.is_none().then(warning).into_iter().collect()
}

/// Refuses sections for which no mechanism says that it `owns` one.
fn check_names(
    prefix: &str,
    sections: &Sections,
    owns: impl Fn(&Registered) -> bool,
) -> Result<(), ConfigError> {
    let known: Vec<_> = REGISTRY.iter().filter(|r| owns(r)).map(|r| r.name).collect();
    match sections.names().find(|name| !known.contains(name)) {
        Some(name) => {
            let problem = format!("is not a known key; mechanisms here are {}", known.join(", "));
            Err(ConfigError::Value { key: format!("{prefix}{name}"), problem })
        }
        None => Ok(()),
    }
}
