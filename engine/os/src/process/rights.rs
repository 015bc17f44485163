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

/// The rights of a page. On x86 whatever can be accessed at all can be read. A page without any rights
/// stays in the table, but user mode cannot access it.
pub(super) fn rights(protection: Protection) -> Rights {
    Rights {
        write: protection.write,
        user: protection.is_accessible(),
        execute: protection.execute,
    }
}

/// `rights` and those that `access` needs.
pub(super) fn granted(mut rights: Rights, access: AccessKind) -> Rights {
    rights.user = true;
    rights.write |= access == AccessKind::Store;
    rights.execute |= access == AccessKind::Fetch;
    rights
}

/// The attributes of a page of `vma` with `protection` after its first access. Linux sets the accessed
/// bit of new pages, and the dirty bit of those that are private, anonymous and writable.
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
