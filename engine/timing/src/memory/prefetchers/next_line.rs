//! The next lines, after a miss and after the first use of a line that was prefetched.
//!
//! Source: "tagged prefetch" of Smith, "Cache Memories", ACM Computing Surveys 1982, section 2.1 (after
//! Gindele 1977), with `degree` lines instead of one. Intel's L1D has such a prefetcher (the DCU
//! prefetcher: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Data Prefetching"): it
//! fetches the next line at an ascending access to data that was loaded very recently.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Found, Parameters, Prefetcher, Request};

/// The next lines, after a miss and after the first use of a line that was prefetched.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Lines behind the one that is asked for.
    #[schemars(range(min = 1, max = 16))]
    degree: u64,
}

impl Parameters for Settings {
    const NAME: &'static str = "next_line";

    fn prefetcher(self) -> Box<dyn Prefetcher> {
        Box::new(self)
    }
}

impl Prefetcher for Settings {
    fn clone_box(&self) -> Box<dyn Prefetcher> {
        Box::new(self.clone())
    }

    fn observe(&mut self, request: &Request, wanted: &mut Vec<u64>) {
        if request.found != Found::Line {
            wanted.extend((1..=self.degree).map(|ahead| request.line().wrapping_add(ahead)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{NONE, load, only};
    use super::*;

    #[test]
    fn a_miss_and_a_first_use_want_the_next_lines() {
        let mut one = only(Settings::NAME, json!({ "degree": 2 }));
        assert_eq!(load(&mut one, (0, 0x1038), Found::Nothing), [0x41, 0x42]);
        assert_eq!(load(&mut one, (0, 0x1008), Found::Line), NONE);
        assert_eq!(load(&mut one, (0, 0x1040), Found::Unused), [0x42, 0x43]);
    }
}
