//! Pages: which ones an address range covers, and what is mapped at them.

use flatwalk_paging::{Address, Mapping, Physical};

use super::Process;
use crate::buddy::FRAME_BYTES;
use crate::error::OsError;
use crate::vma::Pages;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// The pages that `length` bytes from `address` lie in.
    pub(super) fn pages(&self, address: u64, length: u64) -> Result<Pages, OsError> {
        let shift = self.geometry.page_shift();
        let start = address >> shift;
        let Some(above) = length.checked_sub(1) else { return Ok(start..start) };
        let last = address.checked_add(above).ok_or_else(|| self.beyond(address))?;
        for end in [address, last] {
            if !self.geometry.is_canonical(end) {
                return Err(self.beyond(end));
            }
            self.reject_window(end)?;
        }
        if address >> 63 == last >> 63 {
            Ok(start..(last >> shift) + 1)
        } else {
            Err(self.beyond(last))
        }
    }

    /// The pages to free when the program gives up `length` bytes from `address`. Traced programs expect
    /// pages of 4 KiB: a larger page that they give up in part stays, for the rest of it.
    pub(super) fn given_up(&self, address: u64, length: u64) -> Result<Pages, OsError> {
        let touched = self.pages(address, length)?;
        let page_bytes = self.geometry.span(1);
        if page_bytes == FRAME_BYTES || touched.is_empty() {
            return Ok(touched);
        }
        let start = address.div_ceil(page_bytes);
        let last = (address + (length - 1)) | (FRAME_BYTES - 1);
        let end = if last % page_bytes == page_bytes - 1 { touched.end } else { touched.end - 1 };
        Ok(start..end.max(start))
    }

    /// The pages that a break adds when it moves from `from` to `to`: those that start between the two.
    pub(super) fn whole_pages(&self, from: u64, to: u64) -> Result<Pages, OsError> {
        let end = self.pages(from, to - from)?.end;
        Ok(from.div_ceil(self.geometry.span(1)).min(end)..end)
    }

    /// Refuses addresses at which a recursive table shows its own entries.
    pub(super) fn reject_window(&self, address: u64) -> Result<(), OsError> {
        match &self.memory.windows {
            Some(windows) if windows.recursion().contains(address) => {
                Err(OsError::InWindow { address })
            }
            _ => Ok(()),
        }
    }

    /// The pages of a 2 MiB region, the one that `page` lies in.
    pub(super) fn region(&self, page: u64) -> Pages {
        let size = 1_u64 << self.geometry.index_bits();
        let start = page & !(size - 1);
        start..start + size
    }

    /// `pages` cut at the boundaries of level-3 entries (1 GiB), so that looking through any range
    /// takes bounded memory.
    pub(super) fn chunks(&self, pages: Pages) -> impl Iterator<Item = Pages> + use<In, Out> {
        let size = 1_u64 << (2 * self.geometry.index_bits());
        let mut at = pages.start;
        std::iter::from_fn(move || {
            let start = at;
            at = pages.end.min((start / size + 1) * size);
            (start < pages.end).then_some(start..at)
        })
    }

    /// The pages that `mapping` maps.
    pub(super) fn pages_of(&self, mapping: &Mapping<In, Out>) -> Pages {
        let start = mapping.input.raw() >> self.geometry.page_shift();
        start..start + (self.geometry.span(mapping.level) >> self.geometry.page_shift())
    }

    /// The address of `page`.
    pub(super) fn address(&self, page: u64) -> In {
        In::new(page << self.geometry.page_shift())
    }

    /// Adds what is mapped in `pages` to `found`.
    pub(super) fn visit(
        &self,
        pages: Pages,
        found: &mut Vec<Mapping<In, Out>>,
    ) -> Result<(), OsError> {
        let bytes = pages.end.saturating_sub(pages.start) << self.geometry.page_shift();
        self.table
            .visit(&self.memory, self.address(pages.start), bytes, &mut |mapping| {
                found.push(mapping);
            })
            .map_err(OsError::Table)
    }

    /// True if no page is mapped in `region`.
    pub(super) fn is_empty(&self, region: &Pages) -> Result<bool, OsError> {
        let start = self.address(region.start);
        if !self.geometry.is_canonical(start.raw()) {
            return Err(self.beyond(start.raw()));
        }
        Ok(self.table.is_empty(&self.memory, start, 2))
    }
}
