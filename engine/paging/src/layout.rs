//! Layouts: what a page table is like, before there is one.

use std::sync::Arc;

use crate::geometry::{Geometry, Level, Width};
use crate::keyed::Design;

/// Which levels the nodes of a new table should span. The table asks at each node that it makes;
/// when memory has no block that large it falls back to narrower nodes by itself.
pub trait Shape {
    /// Levels that a new node with topmost level `level`, on the path of `address`, should span.
    fn width(&self, level: Level, address: u64) -> Width;

    /// When the table merges nodes, and takes them apart again, by how full they are; `None`: it
    /// never does by itself. Asked once, for a new table.
    fn density(&self) -> Option<Density> {
        None
    }
}

/// When a node of one level is merged with its child nodes: by how many of its entries lead to a
/// child node of one level, which are those that merging makes a walk shorter for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Density {
    /// Merged when another entry comes to lead to a node, and there are this many or more.
    pub merge_slots: u32,
    /// Taken apart again when there are fewer than this many.
    pub unmerge_slots: u32,
}

/// The shape of a tree: the same throughout the address space but for the rules that it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TreeShape {
    /// `widths[level]`: width of a node whose topmost level is `level`.
    pub widths: [Width; 8],
    /// When nodes are merged by how full they are.
    pub density: Option<Density>,
    /// Kernel time that merging a node takes, or taking one apart, in microseconds.
    pub merge_us: f64,
    /// The NF rule (Park et al., ASPLOS 2022, section 3.4): a region of a lowest flattened node (1 GiB
    /// with L2+L1) that has this many large pages is not flattened down to level 1. 0: no such rule.
    pub no_flatten_threshold: u32,
}

impl TreeShape {
    /// Every node spans one level.
    pub const CONVENTIONAL: Self =
        Self { widths: [1; 8], density: None, merge_us: 0.0, no_flatten_threshold: 0 };

    /// A shape in which the level groups in `groups`, each `(top, width)`, are flattened.
    pub fn with_groups(groups: &[(Level, Width)]) -> Self {
        let mut shape = Self::CONVENTIONAL;
        for &(top, width) in groups {
            shape.widths[usize::from(top)] = width;
        }
        shape
    }
}

/// What a table is, in memory.
#[derive(Clone, Debug)]
enum Structure {
    Tree(TreeShape),
    Keyed(Arc<dyn Design>),
}

/// A geometry, and the shape of a tree or the design of a table without one.
#[derive(Clone, Debug)]
pub struct Layout {
    geometry: Geometry,
    structure: Structure,
}

impl Layout {
    /// That of a tree.
    pub fn tree(geometry: Geometry, shape: TreeShape) -> Self {
        Self { geometry, structure: Structure::Tree(shape) }
    }

    /// That of a table without a tree.
    pub fn keyed(geometry: Geometry, design: impl Design + 'static) -> Self {
        Self::of_design(geometry, Arc::new(design))
    }

    /// That of a table without a tree, whose design others have, too.
    pub fn of_design(geometry: Geometry, design: Arc<dyn Design>) -> Self {
        Self { geometry, structure: Structure::Keyed(design) }
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The shape, if it is that of a tree.
    pub fn shape(&self) -> Option<&TreeShape> {
        match &self.structure {
            Structure::Tree(shape) => Some(shape),
            Structure::Keyed(_) => None,
        }
    }

    /// The design, if it is that of a table without a tree.
    pub fn design(&self) -> Option<&Arc<dyn Design>> {
        match &self.structure {
            Structure::Tree(_) => None,
            Structure::Keyed(design) => Some(design),
        }
    }

    /// True if it is that of a tree.
    pub fn is_tree(&self) -> bool {
        self.shape().is_some()
    }

    /// True if it is that of a conventional tree, without any rule.
    pub fn is_conventional(&self) -> bool {
        self.shape() == Some(&TreeShape::CONVENTIONAL)
    }

    /// Level groups, root first, as `(top level, width)`: what a tree without fall-backs has.
    pub fn groups(&self) -> Vec<(Level, Width)> {
        let mut groups = Vec::new();
        let Some(shape) = self.shape() else { return groups };
        let mut level = self.geometry.levels();
        while level > 0 {
            let width = shape.widths[usize::from(level)];
            groups.push((level, width));
            level -= width;
        }
        groups
    }

    /// [`TreeShape::no_flatten_threshold`], if it is that of a tree.
    pub fn no_flatten_threshold(&self) -> u32 {
        self.shape().map_or(0, |shape| shape.no_flatten_threshold)
    }

    /// [`TreeShape::merge_us`], if it is that of a tree.
    pub fn merge_us(&self) -> f64 {
        self.shape().map_or(0.0, |shape| shape.merge_us)
    }

    /// [`Design::is_made_with_machine`]; trees are not.
    pub fn is_made_with_machine(&self) -> bool {
        self.design().is_some_and(|design| design.is_made_with_machine())
    }
}

impl Shape for Layout {
    #[inline]
    fn width(&self, level: Level, _address: u64) -> Width {
        self.shape().map_or(1, |shape| shape.widths[usize::from(level)])
    }

    fn density(&self) -> Option<Density> {
        self.shape()?.density
    }
}
