//! Streams: requests to ascending or descending lines, which the prefetcher runs ahead of.
//!
//! Source: the streamer of Intel's L2 (Intel 64 and IA-32 Architectures Optimization Reference Manual, "Data
//! Prefetching"): it sees the requests of L1D, maintains 32 streams, one forward or backward in each 4 KiB
//! page, and runs up to 20 lines ahead, two of them for a request. AMD's L1 and L2 stream
//! prefetchers (Software Optimization Guide for the Zen 4 Microarchitecture, 57647) fetch further lines
//! in ascending or descending order.
//!
//! A request belongs to the stream that has last seen its 4 KiB page, or that leads there: within
//! `distance` lines of its last request, in its direction. One that belongs to none begins a
//! stream, in the place of the one that was used least recently. A stream has a direction once
//! `confidence` requests in a row have gone that way; then up to `degree` lines are wanted for each
//! request, from where the stream has got to on, up to `distance` lines ahead of the request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Parameters, Prefetcher, Request};
use crate::memory::line::PAGE_LINES;

/// Lines ahead of requests to ascending or descending lines.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Streams that are followed at once.
    #[schemars(range(min = 1, max = 1024))]
    streams: u32,
    /// Requests in a row that must go one way.
    #[schemars(range(min = 1, max = 16))]
    confidence: u32,
    /// Lines that it runs ahead at most.
    #[schemars(range(min = 1, max = 64))]
    distance: u32,
    /// Lines that are prefetched for a request at most.
    #[schemars(range(min = 1, max = 16))]
    degree: u32,
}

impl Parameters for Settings {
    const NAME: &'static str = "stream";

    fn prefetcher(self) -> Box<dyn Prefetcher> {
        Box::new(Streams { settings: self, streams: Vec::new() })
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Line of the last request.
    last: i64,
    /// The line that is furthest ahead of those that were wanted.
    reached: i64,
    /// 1 upwards, -1 downwards, 0 while there was one request.
    direction: i64,
    /// Requests in a row that went that way.
    steps: u32,
}

impl Stream {
    /// True if a request for `line` belongs to it.
    fn has(&self, line: i64, distance: i64) -> bool {
        let ahead = (line - self.last) * self.direction;
        line.div_euclid(PAGE_LINES) == self.last.div_euclid(PAGE_LINES)
            || (1..=distance).contains(&ahead)
    }
}

#[derive(Clone, Debug)]
struct Streams {
    settings: Settings,
    /// Most recently used first.
    streams: Vec<Stream>,
}

impl Prefetcher for Streams {
    fn clone_box(&self) -> Box<dyn Prefetcher> {
        Box::new(self.clone())
    }

    fn observe(&mut self, request: &Request, wanted: &mut Vec<u64>) {
        let line = request.line().cast_signed();
        let distance = i64::from(self.settings.distance);
        let Some(place) = self.streams.iter().position(|stream| stream.has(line, distance)) else {
            self.streams.truncate(self.settings.streams as usize - 1);
            let stream = Stream { last: line, reached: line, direction: 0, steps: 0 };
            self.streams.insert(0, stream);
            return;
        };
        self.streams[..=place].rotate_right(1);
        let stream = &mut self.streams[0];
        let direction = (line - stream.last).signum();
        if direction == 0 {
            return;
        }
        if direction != stream.direction {
            (stream.direction, stream.steps, stream.reached) = (direction, 0, line);
        }
        stream.last = line;
        stream.steps = stream.steps.saturating_add(1);
        if stream.steps < self.settings.confidence {
            return;
        }
        // What requests have caught up with is not wanted any more.
        let mut ahead = ((stream.reached - line) * direction).max(0);
        for _ in 0..self.settings.degree {
            if ahead == distance {
                break;
            }
            ahead += 1;
            stream.reached = line + ahead * direction;
            wanted.push(stream.reached.cast_unsigned());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{NONE, load, only};
    use super::super::{Found, Prefetchers};
    use super::*;

    fn prefetcher(streams: u32) -> Prefetchers {
        only(
            Settings::NAME,
            json!({ "streams": streams, "confidence": 2, "distance": 4, "degree": 2 }),
        )
    }

    fn lines(one: &mut Prefetchers, line: u64) -> Vec<u64> {
        load(one, (0, line << 6), Found::Nothing)
    }

    #[test]
    fn it_runs_ahead_two_lines_a_request_up_to_its_distance() {
        let mut one = prefetcher(4);
        assert_eq!(lines(&mut one, 100), NONE);
        assert_eq!(lines(&mut one, 101), NONE, "one step");
        assert_eq!(lines(&mut one, 102), [103, 104]);
        assert_eq!(lines(&mut one, 103), [105, 106]);
        assert_eq!(lines(&mut one, 104), [107, 108], "four ahead");
        assert_eq!(lines(&mut one, 105), [109], "and no further");
        assert_eq!(lines(&mut one, 105), NONE, "the same line again");
        assert_eq!(lines(&mut one, 120), [121, 122], "requests have overtaken it");
    }

    #[test]
    fn it_turns_and_begins_anew() {
        let mut one = prefetcher(4);
        for line in [100, 101, 102] {
            lines(&mut one, line);
        }
        assert_eq!(lines(&mut one, 99), NONE);
        assert_eq!(lines(&mut one, 98), [97, 96]);
    }

    #[test]
    fn a_stream_goes_on_in_another_page() {
        // Lines 64 and more are in page 1.
        let mut one = prefetcher(1);
        for line in [60, 61, 62] {
            lines(&mut one, line);
        }
        assert_eq!(lines(&mut one, 63), [65, 66]);
        assert_eq!(lines(&mut one, 64), [67, 68]);
        assert_eq!(lines(&mut one, 300), NONE, "too far away: another stream");
        assert_eq!(lines(&mut one, 65), NONE, "which took the only place");
    }

    #[test]
    fn the_least_recently_used_stream_makes_room() {
        let mut one = prefetcher(2);
        for line in [0, 1, 1000, 1001, 2, 2000] {
            lines(&mut one, line);
        }
        assert_eq!(lines(&mut one, 3), [5, 6], "it was used last but one");
        assert_eq!(lines(&mut one, 1002), NONE, "it is gone");
    }
}
