//! The rights and attributes of pages.

use flatwalk_paging::{AccessKind, Attributes as EntryAttributes, Rights};
use flatwalk_trace::{Backing, Protection};

use crate::vma::{Attributes, Vma};

/// The program-break heap.
pub(super) const HEAP: Attributes = Attributes {
    protection: Protection { read: true, write: true, execute: false },
    backing: Backing::Heap,
    shared: false,
    huge: None,
    implicit: false,
};

/// The rights of a page: on x86 whatever can be used at all can be read. A page without any rights
/// stays in the table, but closed to user mode.
pub(super) fn rights(protection: Protection) -> Rights {
    Rights {
        write: protection.write,
        user: protection.is_accessible(),
        execute: protection.execute,
    }
}

/// The rights that a page with `rights` has after `access`, which succeeded.
pub(super) fn granted(mut rights: Rights, access: AccessKind) -> Rights {
    rights.user = true;
    rights.write |= access == AccessKind::Store;
    rights.execute |= access == AccessKind::Fetch;
    rights
}

/// What a page of `vma` with `protection` is after its first access. Linux makes new pages accessed, and
/// private anonymous ones that may be written dirty.
pub(super) fn new_page(vma: &Vma, protection: Protection, access: AccessKind) -> EntryAttributes {
    let Attributes { backing, shared, .. } = vma.attributes;
    let private = backing != Backing::File && !shared;
    EntryAttributes {
        rights: granted(rights(protection), access),
        accessed: true,
        dirty: access == AccessKind::Store || (private && protection.write),
    }
}

/// True if user mode may do `access` to a page with `rights`.
pub(super) fn permits(rights: Rights, access: AccessKind) -> bool {
    rights.user && rights.permit(access)
}
