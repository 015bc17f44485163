//! The memory of the machine that QEMU emulates, as this process has it mapped, and what the engine's
//! walker makes of the page tables in it.

use std::sync::atomic::{AtomicU64, Ordering};

use flatwalk_paging::hardware::Paging;
use flatwalk_paging::{Address, Fault, Gva, Leaf, Level};

/// How `/proc/self/maps` calls what `-object memory-backend-memfd` maps.
const NAME: &str = "/memfd:memory-backend-memfd";
/// MAXPHYADDR of QEMU's processors, unless they are asked for another.
const PHYSICAL_BITS: u8 = 40;
/// QEMU's q35 has all RAM below this, if it has no more …
const MOST_LOW: u64 = 0xb000_0000;
/// … and otherwise so much, and the rest from 4 GiB on.
const SPLIT_LOW: u64 = 0x8000_0000;
const HIGH: u64 = 1 << 32;

/// A guest's RAM.
pub struct Ram {
    /// Where this process has it.
    start: u64,
    bytes: u64,
}

/// What the engine's walker found, with the entries that it read.
pub struct Walked {
    /// Physical address, level and value of each entry, in order.
    pub entries: Vec<(u64, Level, u64)>,
    /// The page, or why there is none.
    pub result: Result<Leaf<flatwalk_paging::Hpa>, Fault<flatwalk_paging::Hpa>>,
}

impl Ram {
    /// Looks for it in `maps`, the text of `/proc/self/maps`.
    ///
    /// # Errors
    /// A message, if there is none, or it is in pieces.
    pub fn find(maps: &str) -> Result<Ram, String> {
        let mut found: Option<(u64, u64)> = None;
        for line in maps.lines().filter(|line| line.contains(NAME)) {
            let range =
                line.split_ascii_whitespace().next().and_then(|range| range.split_once('-'));
            let number = |text| u64::from_str_radix(text, 16).ok();
            let range = range.and_then(|(start, end)| Some((number(start)?, number(end)?)));
            found = match (found, range) {
                (None, Some(range)) => Some(range),
                // The kernel may show one mapping in pieces.
                (Some((first, last)), Some((start, end))) if last == start => Some((first, end)),
                _ => return Err("the guest's memory is mapped in a way not known".into()),
            };
        }
        let (start, end) = found.ok_or("the guest's memory is not a memory-backend-memfd")?;
        Ok(Ram { start, bytes: end - start })
    }

    /// Which byte of RAM is at a physical address, if one is.
    pub fn offset(&self, physical: u64) -> Option<u64> {
        let low = if self.bytes > MOST_LOW { SPLIT_LOW } else { self.bytes };
        if physical < low {
            Some(physical)
        } else {
            let offset = physical.checked_sub(HIGH)?.checked_add(low)?;
            (offset < self.bytes).then_some(offset)
        }
    }

    /// The physical address of what this process has at `address`, if that is RAM.
    pub fn physical(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start).filter(|&offset| offset < self.bytes)?;
        let low = if self.bytes > MOST_LOW { SPLIT_LOW } else { self.bytes };
        Some(if offset < low { offset } else { offset - low + HIGH })
    }

    /// The 8-byte word at a physical address that is a multiple of 8.
    pub fn read(&self, physical: u64) -> Option<u64> {
        let offset = self.offset(physical).filter(|offset| offset.is_multiple_of(8))?;
        // SAFETY: within the mapping, which lasts as long as QEMU does, and aligned.
        let word = unsafe { &*((self.start + offset) as *const AtomicU64) };
        Some(word.load(Ordering::Relaxed))
    }

    /// Walks for `address` by the tables that the registers name.
    ///
    /// # Errors
    /// A message, when a table is not in RAM.
    pub fn walk(&self, cr3: u64, cr4: u64, address: u64) -> Result<Walked, String> {
        let mut entries = Vec::with_capacity(5);
        let result = paging(cr4).translate(cr3, Gva::new(address), |at, level| {
            let word = self
                .read(at.raw())
                .ok_or_else(|| format!("the engine would read a table at {at:#x}, not in RAM"))?;
            entries.push((at.raw(), level, word));
            Ok::<_, String>(word)
        })?;
        Ok(Walked { entries, result })
    }

    /// Calls `work` with each page below `end`, from the lowest on: its address, its bytes, and how a walk
    /// ends there and which entries it reads.
    pub fn each_page(
        &self,
        cr3: u64,
        cr4: u64,
        end: u64,
        mut work: impl FnMut(u64, u64, &Leaf<flatwalk_paging::Hpa>, &[(u64, Level, u64)]),
    ) {
        let geometry = paging(cr4).geometry();
        let mut address = 0;
        while address < end {
            let Ok(walked) = self.walk(cr3, cr4, address) else { return };
            let bytes = match walked.result {
                Ok(leaf) => {
                    let bytes = geometry.span(leaf.level);
                    work(address, bytes, &leaf, &walked.entries);
                    bytes
                }
                Err(Fault::NotPresent { level, .. } | Fault::Reserved { level, .. }) => {
                    geometry.span(level)
                }
                Err(Fault::NotCanonical) => return,
            };
            address += bytes;
        }
    }

    /// The physical address that `address` translates to, if it does.
    pub fn translate(&self, cr3: u64, cr4: u64, address: u64) -> Option<u64> {
        let leaf = self.walk(cr3, cr4, address).ok()?.result.ok()?;
        let bytes = paging(cr4).geometry().span(leaf.level);
        Some(leaf.frame.raw() + address % bytes)
    }
}

/// How a machine whose CR4 is this reads its tables.
pub fn paging(cr4: u64) -> Paging {
    Paging::new(cr4, PHYSICAL_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(ranges: &[&str]) -> String {
        let lines =
            ranges.iter().map(|range| format!("{range} rw-s 00000000 00:01 7 {NAME} (deleted)\n"));
        format!(
            "00400000-00500000 r-xp 00000000 08:01 42 /usr/bin/qemu\n{}",
            lines.collect::<String>()
        )
    }

    #[test]
    fn memory_in_one_piece_or_in_adjacent_ones_is_found() {
        for ranges in [&["10000000-50000000"][..], &["10000000-20000000", "20000000-50000000"]] {
            let ram = Ram::find(&maps(ranges)).unwrap();
            assert_eq!((ram.start, ram.bytes), (0x1000_0000, 0x4000_0000));
        }
        assert!(Ram::find(&maps(&["10000000-20000000", "30000000-50000000"])).is_err());
        assert!(Ram::find(&maps(&[])).is_err());
    }

    #[test]
    fn memory_beyond_the_hole_for_devices_starts_at_4_gib() {
        let small = Ram { start: 1 << 40, bytes: MOST_LOW };
        assert_eq!(small.offset(MOST_LOW - 1), Some(MOST_LOW - 1));
        assert_eq!([small.offset(MOST_LOW), small.offset(HIGH)], [None, None]);
        let large = Ram { start: 1 << 40, bytes: 4 << 30 };
        assert_eq!(large.offset(SPLIT_LOW - 1), Some(SPLIT_LOW - 1));
        assert_eq!(large.offset(SPLIT_LOW), None);
        assert_eq!(large.offset(HIGH), Some(SPLIT_LOW));
        assert_eq!(large.offset(HIGH + (2 << 30)), None);
        for physical in [0, SPLIT_LOW - 1, HIGH, HIGH + (2 << 30) - 1] {
            let address = large.start + large.offset(physical).unwrap();
            assert_eq!(large.physical(address), Some(physical));
        }
        assert_eq!(large.physical(large.start - 1), None);
    }

    #[test]
    fn tables_in_memory_are_walked_and_tables_outside_it_are_errors() {
        // A root, a table of level 3 with a page of 1 GiB, and an entry that leads out of memory.
        let mut words = vec![0_u64; 2 * 512];
        words[0] = 0x1000 | 0x7;
        words[1] = 0x8_0000_0000 | 0x7;
        words[512] = 0x4000_0000 | 0x87;
        let ram = Ram { start: words.as_ptr() as u64, bytes: 0x2000 };
        let walked = ram.walk(0, 0, 0x1234).unwrap();
        assert_eq!(walked.entries, [(0, 4, words[0]), (0x1000, 3, words[512])]);
        assert_eq!(ram.translate(0, 0, 0x1234), Some(0x4000_1234));
        assert!(ram.walk(0, 0, 1 << 39).is_err());
        let mut pages = Vec::new();
        ram.each_page(0, 0, 1 << 39, |page, bytes, leaf, entries| {
            pages.push((page, bytes, leaf.frame.raw(), entries.len()));
        });
        assert_eq!(pages, [(0, 1 << 30, 0x4000_0000, 2)]);
        assert_eq!(ram.translate(0, 0, 2 << 39), None);
    }
}
