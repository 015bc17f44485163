//! Page faults.

use flatwalk_paging::{AccessKind, Address, Fault, Physical, TableError};

use super::Process;
use super::outcome::{FaultKind, FaultOutcome, Flushes, Outcome};
use super::rights::{granted, permits};
use crate::error::OsError;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Handles the fault that an access to `address` raised: maps the page, or grants the right that
    /// was missing.
    ///
    /// # Errors
    /// [`OsError::BeyondAddressSpace`] or [`OsError::OutOfMemory`].
    pub fn fault(&mut self, address: In, access: AccessKind) -> Result<FaultOutcome<In>, OsError> {
        self.reject_window(address.raw())?;
        let page = address.raw() >> self.geometry.page_shift();
        let mut flushes = Flushes::default();
        let mut found = self.table.translate(&self.memory, address);
        if found.is_ok_and(|leaf| !permits(leaf.rights, access)) && self.areas.find(page).is_none()
        {
            // A large page that reaches beyond its areas: the implicit area made here splits it.
            self.area_of(page, &mut flushes)?;
            found = self.table.translate(&self.memory, address);
        }
        let mut filled = Vec::new();
        let (kind, level) = match found {
            Ok(leaf) if permits(leaf.rights, access) => {
                let split = flushes.leaves.is_some();
                (if split { FaultKind::Upgraded } else { FaultKind::Spurious }, leaf.level)
            }
            Ok(leaf) => {
                let rights = granted(leaf.rights, access);
                self.statistics.protection_mismatches += 1;
                let Self { table, memory, .. } = self;
                let (_, flush) = table.protect(memory, address, rights).map_err(OsError::Table)?;
                flushes.add(flush);
                (FaultKind::Upgraded, leaf.level)
            }
            Err(Fault::NotPresent { .. }) => {
                let vma = self.area_of(page, &mut flushes)?;
                let (level, frame) = self.map_page(page, &vma, access, &mut flushes)?;
                filled.push(frame.raw()..frame.raw() + self.geometry.span(level));
                if level == 1 {
                    self.map_around(page, &vma, access, (&mut filled, &mut flushes))?;
                }
                self.statistics.large_page_faults += u64::from(level > 1);
                (FaultKind::Mapped, level)
            }
            Err(Fault::NotCanonical) => return Err(self.beyond(address.raw())),
            Err(Fault::Reserved { .. }) => {
                return Err(OsError::Table(TableError::Corrupt(address.raw())));
            }
        };
        self.statistics.faults += 1;
        self.widen_nodes(&mut flushes)?;
        let Outcome { work, nodes, flushes, .. } = self.outcome(flushes);
        filled.extend(nodes);
        Ok(FaultOutcome { kind, level, work, filled, flushes })
    }
}
