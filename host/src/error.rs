//! Errors, with messages that say how to fix them.

use std::io;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("usage: flatwalk-host pagefault|gups|walk|ebizzy|tlb|cpuid '{{JSON parameters}}'")]
    Usage,
    /// The parameters cannot be parsed.
    #[error("parameters: {0}")]
    Parameters(serde_json::Error),
    /// A parameter has an impossible value.
    #[error("parameter `{name}`: {what}")]
    Value {
        /// Its name.
        name: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The kernel refused.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// Exit status of the program.
    pub fn status(&self) -> u8 {
        match self {
            Self::System { .. } => 1,
            _ => 2,
        }
    }
}

/// Says what was attempted when the kernel refused.
pub trait Attempt<T> {
    /// Adds `what` to the error.
    ///
    /// # Errors
    /// The kernel's, with `what`.
    fn attempting(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempting(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::System { what: what(), source })
    }
}

/// Checks a parameter.
///
/// # Errors
/// `Error::Value` unless `fine`.
pub fn require(fine: bool, name: &'static str, what: impl Into<String>) -> Result<(), Error> {
    if fine { Ok(()) } else { Err(Error::Value { name, what: what.into() }) }
}
