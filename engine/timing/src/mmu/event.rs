//! What a walk reads and finds, and what takes note of it.

use flatwalk_os::OrderedNodes;
use flatwalk_paging::keyed::LineRead;
use flatwalk_paging::{AccessKind, Address, Entry, Gpa, Gva, Hpa, Level, Rights};

use crate::memory::hierarchy::{Response, Served};
use crate::memory::reader::MemoryPort;
use crate::system::Untranslated;

/// A translation that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be translated.
    pub address: Gva,
    /// What for.
    pub kind: AccessKind,
    /// Cycle in which it is asked for.
    pub at: u64,
}

/// Whose table an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The process's own, or the guest's.
    One,
    /// The host's.
    Two,
}

/// An entry that a walk reads.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Whose table it belongs to.
    pub stage: Stage,
    /// The address that the stage translates.
    pub input: u64,
    /// Under what it is counted: the level of a tree's entry, or what the table says. 0 and all from 8 on
    /// are not entries of a table, but a mechanism's.
    pub class: u8,
    /// Address of the node, in the memory that its table is in.
    pub node: u64,
    /// Topmost level that the node spans.
    pub top: Level,
    /// Lowest level that the node spans, which its entries belong to.
    pub level: Level,
    /// Address of the entry, in the memory that its table is in.
    pub entry_address: u64,
    /// The entry as it was found.
    pub entry: Entry,
    /// What the entries before it permit.
    pub rights: Rights,
    /// Of a table without a tree: the line that was read.
    pub line: Option<LineRead>,
    /// Cycle in which it was asked for.
    pub asked: u64,
    /// When it was there, and who had it.
    pub response: Response,
}

/// What takes note of a walk.
pub trait WalkObserver {
    /// An entry was read.
    fn read(&mut self, read: &Read);

    /// A mechanism read a line of its own. It counts as an entry of level 0.
    fn mechanism_read(&mut self, served: Served) {
        let _ = served;
    }

    /// A walk of the host's table for `input` begins at cycle `at`; `nodes` says where that table's
    /// nodes stand in order, if they do.
    #[inline]
    fn before_host_walk(
        &mut self,
        input: Gpa,
        at: u64,
        nodes: Option<&OrderedNodes<Hpa>>,
        port: &mut dyn MemoryPort,
    ) {
        let _ = (input, at, nodes, port);
    }

    /// The walk of the host's table is over.
    #[inline]
    fn after_host_walk(&mut self) {}
}

/// A read in a walk's log.
#[derive(Clone, Copy, Debug)]
struct Logged {
    stage: Stage,
    class: u8,
    asked: u64,
    response: Response,
}

/// The entries that a walk read, when, and who had them.
#[derive(Clone, Debug, Default)]
pub struct WalkLog {
    reads: Vec<Logged>,
}

impl WalkLog {
    /// Forgets all, but keeps the room.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.reads.clear();
    }

    /// Their stages, classes and who had them, in the order in which they were read.
    #[inline]
    pub fn reads(&self) -> impl Iterator<Item = (Stage, u8, Served)> {
        self.reads.iter().map(|read| (read.stage, read.class, read.response.served()))
    }

    /// When each was asked for, when it was there, and whom it waited for meanwhile. A mechanism's own
    /// take no time here.
    #[inline]
    pub fn times(&self) -> impl Iterator<Item = (u64, u64, Served)> {
        self.reads.iter().map(|read| (read.asked, read.response.ready, read.response.awaited()))
    }

    /// How many they are.
    #[inline]
    pub fn count(&self) -> u64 {
        self.reads.len() as u64
    }

    #[cfg(test)]
    pub(super) fn note_times(&mut self, asked: u64, ready: u64, awaited: Served) {
        let response = Response::new(ready, awaited);
        self.reads.push(Logged { stage: Stage::One, class: 1, asked, response });
    }
}

impl WalkObserver for WalkLog {
    #[inline]
    fn read(&mut self, &Read { stage, class, asked, response, .. }: &Read) {
        self.reads.push(Logged { stage, class, asked, response });
    }

    fn mechanism_read(&mut self, served: Served) {
        let response = Response::new(0, served);
        self.reads.push(Logged { stage: Stage::One, class: 0, asked: 0, response });
    }
}

/// Counts reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadCount(pub u64);

impl WalkObserver for ReadCount {
    fn read(&mut self, _read: &Read) {
        self.0 += 1;
    }
}

/// A walk that ended without a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// When.
    pub at: u64,
    /// Where.
    pub untranslated: Untranslated,
    /// A page is there, but does not permit the access.
    pub protection: bool,
}

/// A page that a whole walk found, in the host's memory.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Physical address of the page.
    pub frame: Hpa,
    /// Its level: the smaller of both stages' pages.
    pub level: Level,
    /// What both stages permit.
    pub rights: Rights,
    /// Both stages' dirty bits are set.
    pub dirty: bool,
    /// When it is known.
    pub ready: u64,
}

/// A walk of `stage` for `input` that ended at cycle `at` without a translation.
pub(super) fn stopped(stage: Stage, input: u64, at: u64, protection: bool) -> Stopped {
    let untranslated = match stage {
        Stage::One => Untranslated::Virtual(Gva::new(input)),
        Stage::Two => Untranslated::GuestPhysical(Gpa::new(input)),
    };
    Stopped { at, untranslated, protection }
}
