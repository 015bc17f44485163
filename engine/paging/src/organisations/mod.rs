//! The registry of page-table organisations. Each is one file (or folder), and has two lines here: its module,
//! and its line of [`REGISTRY`].

mod clustered;
mod compendia;
mod dmt;
mod elastic_cuckoo;
mod flattened;
mod hashed;
mod inverted;
mod open;
mod radix;

use schemars::{JsonSchema, Schema, schema_for};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::layout::Layout;
use crate::prototypes::{DESIGNS, Prototype};

/// An organisation's parameters, as scheme files have them.
trait NewLayout: DeserializeOwned + JsonSchema {
    /// The organisation's name in scheme files.
    const NAME: &'static str;

    /// Checks them, and makes the layout for a geometry.
    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError>;

    /// Parameters of small tables, for the tests of every organisation: some that are resized all the
    /// time, and some that are crowded, where it can be so.
    fn examples() -> Vec<Value>;
}

/// An organisation: its name, its parameters, and how its layout is made.
pub struct Organisation {
    /// Name in scheme files.
    pub name: &'static str,
    /// Makes the layout for a geometry and the organisation's parameters.
    pub layout: fn(Geometry, &Map<String, Value>) -> Result<Layout, LayoutError>,
    /// The JSON schema of its parameters.
    pub schema: fn() -> Schema,
    /// Parameters of small tables, for tests: objects with its keys.
    pub examples: fn() -> Vec<Value>,
}

impl Organisation {
    /// The organisation with these parameters.
    const fn of<P: NewLayout>() -> Self {
        Self { name: P::NAME, layout: read::<P>, schema: || schema_for!(P), examples: P::examples }
    }
}

/// A table whose class was registered by the program that runs the engine.
impl NewLayout for Prototype {
    const NAME: &str = "python";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        let design = DESIGNS.find(&self);
        let design =
            design.map_err(|(key, problem)| LayoutError::value(Self::NAME, key, problem))?;
        Ok(Layout::of_design(geometry, design))
    }

    fn examples() -> Vec<Value> {
        Vec::new()
    }
}

/// Stands for all that are registered while the program runs.
const PROTOTYPE: Organisation = Organisation::of::<Prototype>();

/// Every organisation that is known: those of [`REGISTRY`], and prototypes.
pub fn all() -> impl Iterator<Item = &'static Organisation> {
    REGISTRY.iter().chain([const { &PROTOTYPE }])
}

/// Every organisation of the engine's own.
pub const REGISTRY: &[Organisation] = &[
    Organisation::of::<radix::Parameters>(),
    Organisation::of::<flattened::Parameters>(),
    Organisation::of::<compendia::Parameters>(),
    Organisation::of::<dmt::Parameters>(),
    Organisation::of::<elastic_cuckoo::Parameters>(),
    Organisation::of::<hashed::Parameters>(),
    Organisation::of::<clustered::Parameters>(),
    Organisation::of::<inverted::Parameters>(),
    Organisation::of::<open::Parameters>(),
];

/// The organisation called `name`.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> Result<&'static Organisation, LayoutError> {
    all().find(|o| o.name == name).ok_or_else(|| LayoutError::UnknownOrganisation {
        name: name.to_owned(),
        known: all().map(|o| o.name).collect::<Vec<_>>().join(", "),
    })
}

/// The layout of organisation `name` for a geometry and its parameters.
///
/// # Errors
/// When there is no such organisation, or it cannot have such parameters.
pub fn layout(
    name: &str,
    geometry: Geometry,
    parameters: &Map<String, Value>,
) -> Result<Layout, LayoutError> {
    (find(name)?.layout)(geometry, parameters)
}

fn read<P: NewLayout>(
    geometry: Geometry,
    parameters: &Map<String, Value>,
) -> Result<Layout, LayoutError> {
    let parameters: P =
        serde_json::from_value(Value::Object(parameters.clone())).map_err(|error| {
            LayoutError::Parameters { organisation: P::NAME, problem: error.to_string() }
        })?;
    parameters.layout(geometry)
}

/// A share as so many of 1000.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn permille(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}
