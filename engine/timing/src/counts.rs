//! Counts, and how they are put aside while nothing is measured.
//!
//! A component shows its counts to a visitor, each group once and always in the same order. So "forget
//! all", "put aside", "go on counting" and "add" are written once, and contents have no part in them.

use std::any::Any;

/// What can be added up, field by field.
pub trait Add {
    /// Adds `more`.
    fn add(&mut self, more: &Self);
}

impl Add for u64 {
    fn add(&mut self, more: &Self) {
        *self += more;
    }
}

impl<T: Add, const N: usize> Add for [T; N] {
    fn add(&mut self, more: &Self) {
        self.iter_mut().zip(more).for_each(|(sum, more)| sum.add(more));
    }
}

/// Lets a group of counts be added up: `add!(Figures { lookups, hits });` with all its fields.
macro_rules! add {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::counts::Add for $name {
            fn add(&mut self, more: &Self) {
                let Self { $($field),* } = self;
                $($crate::counts::Add::add($field, &more.$field);)*
            }
        }
    };
}
pub(crate) use add;

/// A group of counts that begin at their default.
pub trait Counts: Any + Send {
    /// What has been counted; counting begins anew.
    fn take(&mut self) -> Box<dyn Any + Send>;
    /// Goes on counting from what [`Counts::take`] gave.
    ///
    /// # Panics
    /// If that was another group's: a component showed its counts in another order.
    fn put(&mut self, taken: Box<dyn Any + Send>);
    /// Adds what [`Counts::take`] gave, of another core.
    ///
    /// # Panics
    /// As [`Counts::put`].
    fn add_taken(&mut self, taken: Box<dyn Any + Send>);
}

/// What a group of counts finds that was taken in another order.
const ORDER: &str = "counts are shown in the same order each time";

impl<T: Any + Send + Default + Add> Counts for T {
    fn take(&mut self) -> Box<dyn Any + Send> {
        Box::new(std::mem::take(self))
    }

    fn put(&mut self, taken: Box<dyn Any + Send>) {
        *self = *taken.downcast::<T>().expect(ORDER);
    }

    fn add_taken(&mut self, taken: Box<dyn Any + Send>) {
        self.add(&taken.downcast::<T>().expect(ORDER));
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
        self.hand_back(show, Counts::put);
    }

    /// Adds what was put aside to the counts of another core, which `show` shows.
    ///
    /// # Panics
    /// As [`Aside::put_back`].
    pub fn add_to(self, show: impl FnOnce(&mut Visitor<'_>)) {
        self.hand_back(show, Counts::add_taken);
    }

    fn hand_back(
        self,
        show: impl FnOnce(&mut Visitor<'_>),
        mut give: impl FnMut(&mut dyn Counts, Box<dyn Any + Send>),
    ) {
        let mut taken = self.0.into_iter();
        show(&mut |counts| give(counts, taken.next().expect("as many groups as were taken")));
        assert!(taken.next().is_none(), "as many groups as were taken");
    }
}

impl std::fmt::Debug for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aside({} groups)", self.0.len())
    }
}
