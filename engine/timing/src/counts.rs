//! Counts, and how they are put aside while nothing is measured.
//!
//! A component shows its counts to a visitor, each group once and always in the same order. So "forget
//! all", "put aside" and "go on counting" are written once, and contents have no part in them.

use std::any::Any;

/// A group of counts that begin at their default.
pub trait Counts: Any + Send {
    /// What has been counted; counting begins anew.
    fn take(&mut self) -> Box<dyn Any + Send>;
    /// Goes on counting from what [`Counts::take`] gave.
    ///
    /// # Panics
    /// If that was another group's: a component showed its counts in another order.
    fn put(&mut self, taken: Box<dyn Any + Send>);
}

impl<T: Any + Send + Default> Counts for T {
    fn take(&mut self) -> Box<dyn Any + Send> {
        Box::new(std::mem::take(self))
    }

    fn put(&mut self, taken: Box<dyn Any + Send>) {
        *self = *taken.downcast::<T>().expect("counts are shown in the same order each time");
    }
}

/// What a component shows its counts to.
pub type Visitor<'a> = dyn FnMut(&mut dyn Counts) + 'a;

/// Forgets all counts that `show` shows.
pub fn forget(show: impl FnOnce(&mut Visitor<'_>)) {
    show(&mut |counts| drop(counts.take()));
}

/// Counts that were put aside.
#[derive(Default)]
pub struct Aside(Vec<Box<dyn Any + Send>>);

impl Aside {
    /// Puts all counts aside that `show` shows; what is counted from here on is thrown away.
    pub fn take(show: impl FnOnce(&mut Visitor<'_>)) -> Self {
        let mut taken = Vec::new();
        show(&mut |counts| taken.push(counts.take()));
        Self(taken)
    }

    /// Goes on counting from what was put aside.
    ///
    /// # Panics
    /// If `show` does not show what it showed then.
    pub fn put_back(self, show: impl FnOnce(&mut Visitor<'_>)) {
        let mut taken = self.0.into_iter();
        show(&mut |counts| counts.put(taken.next().expect("as many groups as were taken")));
        assert!(taken.next().is_none(), "as many groups as were taken");
    }
}

impl std::fmt::Debug for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aside({} groups)", self.0.len())
    }
}
