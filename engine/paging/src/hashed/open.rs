//! A hash table with open addressing: lines of eight entries, each in the first free place from its
//! own on.
//!
//! Source: Yaniv and Tsafrir, "Hash, Don't Cache (the Page Table)", SIGMETRICS 2016; see
//! `organisations/open.rs`.

use super::cuckoo::Resizes;
use super::hash;
use super::line::{Format, LINE_BYTES, Line, lines_shift, present, with_present, with_tag_of};
use super::walk::{Part, Probe};
use crate::addr::Physical;
use crate::entry::Entry;
use crate::geometry::Level;
use crate::memory::{EntryMemory, TableMemory};
use crate::tree::TableError;

/// Lines that are looked at for one page at most.
const FARTHEST: u64 = u8::MAX as u64;
/// Of 1000 lines, more in use than this make the table grow.
const GROW_PERMILLE: u64 = 600;
/// Where memory was refused for that, it is tried again when this share more of the lines is in use.
const RETRY_SHARE: u64 = 64;
/// The fewest lines: one frame of 4 KiB.
const LEAST_SHIFT: u8 = 6;

/// The table. What it holds is in memory; here are the registers that hardware has too, and the
/// operating system's count of lines in use.
#[derive(Clone, Debug)]
pub(super) struct Open<Out> {
    base: Out,
    /// log2 of the lines.
    shift: u8,
    salt: u64,
    used: u64,
    /// Lines in use at which growing is tried again.
    retry_at: u64,
    resizes: Resizes,
}

impl<Out: Physical> Open<Out> {
    /// An empty table of 2^`shift` lines, or fewer where memory has no such block; `number` chooses the
    /// hash function.
    pub(super) fn new(
        memory: &mut impl TableMemory<Out>,
        number: u64,
        shift: u8,
    ) -> Result<Self, TableError> {
        let mut resizes = Resizes::default();
        for fits in (LEAST_SHIFT..=shift.max(LEAST_SHIFT)).rev() {
            if let Some(base) = memory.allocate(lines_shift(fits)) {
                let salt = hash::salt(number);
                return Ok(Self { base, shift: fits, salt, used: 0, retry_at: 0, resizes });
            }
            resizes.curtailed = 1;
        }
        Err(TableError::OutOfMemory)
    }

    pub(super) fn resizes(&self) -> Resizes {
        self.resizes
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of the table.
    pub(super) fn bytes(&self) -> u64 {
        LINE_BYTES << self.shift
    }

    /// Number of the line that `key` belongs in.
    fn home(&self, key: u64) -> u64 {
        hash::index(key, self.salt, self.shift)
    }

    /// Address of line `index`, counted on from the first after the last.
    fn line(&self, index: u64) -> Out {
        self.base.offset((index & ((1 << self.shift) - 1)) * LINE_BYTES)
    }

    fn is_vacant(memory: &impl EntryMemory<Out>, at: Out) -> bool {
        Format::Entries.is_vacant(memory.read(at.offset(56)))
    }

    /// Where the line for `key` is; else the place where it would be put, if that is near enough.
    fn find(&self, memory: &impl EntryMemory<Out>, key: u64) -> Result<Out, Option<Out>> {
        let home = self.home(key);
        for at in (home..home + FARTHEST.min(1 << self.shift)).map(|i| self.line(i)) {
            let line = memory.read_line(at);
            if Format::Entries.is_vacant(line[7]) {
                return Err(Some(at));
            }
            if Format::Entries.matches(&line, key) {
                return Ok(at);
            }
        }
        Err(None)
    }

    /// The entry of page `number`, if it is present, and where it stands.
    pub(super) fn entry(
        &self,
        memory: &impl EntryMemory<Out>,
        number: u64,
    ) -> Option<(Out, Entry)> {
        let at = self.find(memory, number >> 3).ok()?.offset((number & 7) * 8);
        let entry = Entry(memory.read(at));
        entry.is_present().then_some((at, entry))
    }

    /// Puts in the entry of a page that has none.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] where no line is free near enough, and there is no memory for more.
    pub(super) fn insert_entry(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        let (key, i) = (number >> 3, (number & 7) as usize);
        let place = match self.find(memory, key) {
            Ok(at) => {
                let (slot, last) = (at.offset(8 * i as u64), at.offset(56));
                memory.write(slot, with_tag_of(entry, memory.read(slot)).0);
                let eighth = memory.read(last);
                memory.write(last, with_present(eighth, present(eighth) + 1));
                return Ok(());
            }
            Err(place) => place,
        };
        let mut line = Format::Entries.tagged(key);
        line[i] = with_tag_of(entry, line[i]).0;
        line[7] = with_present(line[7], 1);
        let crowded = (self.used + 1) * 1000 > GROW_PERMILLE << self.shift;
        let due = place.is_none() || (crowded && self.used >= self.retry_at);
        let grown = due && self.grow(memory);
        if due && !grown {
            self.resizes.refused += 1;
            self.retry_at = self.used + (1_u64 << self.shift).div_ceil(RETRY_SHARE);
        }
        let place = if grown { self.find(memory, key).err().flatten() } else { place };
        memory.write_line(place.ok_or(TableError::OutOfMemory)?, &line);
        self.used += 1;
        Ok(())
    }

    /// Takes the entry of page `number` away, which is present.
    pub(super) fn remove_entry(&mut self, memory: &mut impl TableMemory<Out>, number: u64) {
        let Ok(at) = self.find(memory, number >> 3) else { return };
        let last = at.offset(56);
        let left = present(memory.read(last)).saturating_sub(1);
        if left > 0 {
            let slot = at.offset((number & 7) * 8);
            memory.write(slot, with_tag_of(Entry::ABSENT, memory.read(slot)).0);
            memory.write(last, with_present(memory.read(last), left));
            return;
        }
        self.close_gap(memory, (at.raw() - self.base.raw()) / LINE_BYTES);
        self.used -= 1;
    }

    /// Moves lines up, so that none that has been put behind line `gap` for want of room is missed when
    /// that is vacant.
    fn close_gap(&self, memory: &mut impl TableMemory<Out>, mut gap: u64) {
        let mask = (1 << self.shift) - 1;
        for i in (gap + 1..).take(mask as usize) {
            let at = self.line(i);
            if Self::is_vacant(memory, at) {
                break;
            }
            let line = memory.read_line(at);
            let home = self.home(Format::Entries.key(&line));
            // Its way from home leads past the gap.
            if i.wrapping_sub(home) & mask >= (i - gap) & mask {
                memory.write_line(self.line(gap), &line);
                gap = i;
            }
        }
        memory.write_line(self.line(gap), &[0; 8]);
    }

    /// Twice the lines; false if there is no memory for them, or a line finds no place.
    fn grow(&mut self, memory: &mut impl TableMemory<Out>) -> bool {
        let shift = self.shift + 1;
        let Some(base) = memory.allocate(lines_shift(shift)) else { return false };
        let new = Self { base, shift, retry_at: 0, ..self.clone() };
        for i in 0..1 << self.shift {
            let line = memory.read_line(self.line(i));
            if Format::Entries.is_vacant(line[7]) {
                continue;
            }
            let Err(Some(place)) = new.find(memory, Format::Entries.key(&line)) else {
                new.destroy(memory);
                return false;
            };
            memory.write_line(place, &line);
        }
        std::mem::replace(self, new).destroy(memory);
        self.resizes.grown += 1;
        true
    }

    /// Gives all memory back.
    pub(super) fn destroy(self, memory: &mut impl TableMemory<Out>) {
        memory.free(self.base, lines_shift(self.shift));
    }

    // ---- the walk -------------------------------------------------------------------------------

    /// The first read of a walk for page `number`.
    pub(super) fn first(&self, number: u64, level: Level) -> Probe<Out> {
        Probe::whole(self.line(self.home(number >> 3)), Part::Open(level), 0, self.base)
    }

    /// The read after `probe`, whose `line` is another page's; `None` if it is vacant.
    pub(super) fn follow(&self, probe: &Probe<Out>, line: &Line) -> Option<Probe<Out>> {
        let way = probe.way.checked_add(1)?;
        let vacant = Format::Entries.is_vacant(line[7]);
        (!vacant).then(|| Probe { at: self.line(probe.line() + 1), way, ..*probe })
    }
}
