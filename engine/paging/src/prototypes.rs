//! Prototypes: organisations, and whatever else, that are registered while the program runs, because they
//! are written in another language.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::keyed::Design;

/// A class of Python, as `Scheme.of` writes it down: it runs in a process that did, or that read its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prototype {
    /// The class.
    pub class: String,
    /// Name of the file that it is in.
    pub file: String,
    /// Hash of its code and parameters.
    pub code: String,
    /// Its parameters, by name.
    pub parameters: Map<String, Value>,
}

/// The prototypes of one kind that this process knows, by the hash of their code.
#[derive(Debug)]
pub struct Prototypes<T>(RwLock<BTreeMap<String, (Prototype, T)>>);

impl<T: Clone> Prototypes<T> {
    /// None yet.
    #[allow(clippy::new_without_default, reason = "only ever a static")]
    pub const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    /// Adds one, or replaces that with its hash.
    pub fn register(&self, prototype: Prototype, what: T) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(prototype.code.clone(), (prototype, what));
    }

    /// The one that `prototype` says.
    ///
    /// # Errors
    /// The key that names none that this process knows, and words that follow it.
    pub fn find(&self, prototype: &Prototype) -> Result<T, (&'static str, String)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Prototype { class, file, code, .. } = prototype;
        match all.get(code) {
            Some((known, what)) if known == prototype => Ok(what.clone()),
            Some((known, _)) if known.parameters != prototype.parameters => {
                let problem =
                    format!("are not those that {class} was made with: make another {class}");
                Err(("parameters", problem))
            }
            _ => Err((
                "code",
                format!(
                    "names a class that this process does not know, {class} of {file}: a class of Python \
                     runs only in a process that made a scheme of it, with Scheme.of or as FILE.py:NAME"
                ),
            )),
        }
    }
}

/// The designs of page tables among them.
pub static DESIGNS: Prototypes<Arc<dyn Design>> = Prototypes::new();
