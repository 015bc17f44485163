//! What a walk reads and finds, and what takes note of it.

use flatwalk_paging::keyed::LineRead;
use flatwalk_paging::{Address, Entry, Gpa, Gva, Hpa, Level, Rights};

use crate::memory::hierarchy::{Response, Served};
use crate::system::Untranslated;

/// Whose table an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The process's own, or the guest's.
    One,
    /// The host's.
    Two,
}

/// Entries that walks of trees read at most: guest and host of six levels.
const READS: usize = 48;

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
}

/// The entries that a walk read, and who had them.
#[derive(Clone, Debug)]
pub struct WalkLog {
    reads: [(Stage, u8, Served); READS],
    used: usize,
    /// What has no room there: of tables without a tree in two dimensions.
    more: Vec<(Stage, u8, Served)>,
}

impl WalkLog {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { reads: [(Stage::One, 0, Served::L1); READS], used: 0, more: Vec::new() }
    }

    /// A line of a TLB in memory was read. Its class is 0.
    pub(crate) fn translations(&mut self, served: Served) {
        self.note((Stage::One, 0, served));
    }

    #[inline]
    fn note(&mut self, note: (Stage, u8, Served)) {
        match self.reads.get_mut(self.used) {
            Some(slot) => {
                *slot = note;
                self.used += 1;
            }
            None => self.more.push(note),
        }
    }

    /// Their stages, classes and who had them, in the order in which they were read.
    #[inline]
    pub fn reads(&self) -> impl Iterator<Item = &(Stage, u8, Served)> {
        self.reads[..self.used].iter().chain(&self.more)
    }

    /// How many they are.
    #[inline]
    pub fn count(&self) -> u64 {
        (self.used + self.more.len()) as u64
    }
}

impl WalkObserver for WalkLog {
    #[inline]
    fn read(&mut self, read: &Read) {
        self.note((read.stage, read.class, read.response.served));
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
