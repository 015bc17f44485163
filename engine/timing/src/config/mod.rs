//! What is simulated, as files say it: machines and schemes, their keys, and what makes them valid.

pub mod machine;
pub mod scheme;
pub mod sections;
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
