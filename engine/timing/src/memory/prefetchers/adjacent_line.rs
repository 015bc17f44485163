//! The other line of an aligned pair, after a miss.
//!
//! Source: the spatial prefetcher of Intel's L2 (Intel 64 and IA-32 Architectures Optimization Reference
//! Manual, "Data Prefetching"), which completes every line that is fetched to L2 to an aligned block of
//! 128 bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Found, Parameters, Prefetcher, Request};

/// The other line of an aligned pair of 128 bytes, after a miss.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {}

impl Parameters for Settings {
    const NAME: &'static str = "adjacent_line";

    fn prefetcher(self) -> Box<dyn Prefetcher> {
        Box::new(self)
    }
}

impl Prefetcher for Settings {
    fn clone_box(&self) -> Box<dyn Prefetcher> {
        Box::new(self.clone())
    }

    fn observe(&mut self, request: &Request, wanted: &mut Vec<u64>) {
        if request.found == Found::Nothing {
            wanted.push(request.line() ^ 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{NONE, load, only};
    use super::*;

    #[test]
    fn a_miss_wants_the_other_line_of_its_pair() {
        let mut one = only(Settings::NAME, json!({}));
        assert_eq!(load(&mut one, (0, 0x1000), Found::Nothing), [0x41]);
        assert_eq!(load(&mut one, (0, 0x1048), Found::Nothing), [0x40]);
        assert_eq!(load(&mut one, (0, 0x1080), Found::Unused), NONE);
        assert_eq!(load(&mut one, (0, 0x1080), Found::Line), NONE);
    }
}
