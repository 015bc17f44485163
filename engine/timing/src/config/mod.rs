//! What is simulated, as files say it: machines, schemes, mixes, experiments and sweeps, their keys, and
//! what makes them valid.
//!
//! The structures are the one description of the files: what each key means, its range, whether it
//! may be left out. [`schema`] reads it off them; [`crate::schemas`] checks files by it.

pub mod experiment;
pub mod machine;
pub mod mix;
pub mod run;
pub mod schema;
pub mod scheme;
pub mod sections;
pub mod sweep;
pub mod table;

use crate::ConfigError;

/// Refuses the value of `key` unless `condition` holds.
pub(crate) fn require(
    condition: bool,
    key: &str,
    problem: impl FnOnce() -> String,
) -> Result<(), ConfigError> {
    if condition {
        Ok(())
    } else {
        Err(ConfigError::Value { key: key.to_owned(), problem: problem() })
    }
}
