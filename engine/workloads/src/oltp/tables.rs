//! The tables: how many rows they have, and where they lie.

use crate::Arguments;
use crate::btree::Tree;
use crate::simulated::{Layout, Records};

/// Districts of a warehouse.
pub(super) const DISTRICTS: usize = 10;
/// Customers of a district and items of the catalogue, at full size.
const CUSTOMERS: u64 = 3000;
const ITEMS: u64 = 100_000;
/// Customers of the same name in a district.
const NAMESAKES: usize = 3;
/// Order lines of an order, on average.
pub(super) const LINES: u64 = 10;
/// How many rows of each kind there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) warehouses: usize,
    /// Of a district.
    pub(super) customers: usize,
    pub(super) items: usize,
}

impl Scale {
    pub(super) fn all_customers(self) -> usize {
        self.warehouses * DISTRICTS * self.customers
    }

    pub(super) fn names(self) -> usize {
        (self.customers / NAMESAKES).max(1)
    }
}

pub(super) struct Shape {
    pub(super) scale: Scale,
    pub(super) layout: Layout,
    pub(super) tables: Tables,
    pub(super) customer_index: Tree,
    pub(super) name_index: Tree,
    pub(super) stock_index: Tree,
    pub(super) item_index: Tree,
}

#[derive(Clone, Copy)]
pub(super) struct Tables {
    pub(super) warehouse: Records,
    pub(super) district: Records,
    pub(super) customer: Records,
    pub(super) history: Records,
    pub(super) order: Records,
    pub(super) new_order: Records,
    pub(super) line: Records,
    pub(super) stock: Records,
    pub(super) item: Records,
}

impl Shape {
    /// As many warehouses of full size as fit, then as many customers and items as fit into these; or
    /// one smaller one.
    pub(super) fn of(arguments: &Arguments) -> Self {
        let fits = |warehouses, customers, items| {
            let shape = Self::at(Scale { warehouses, customers, items }, arguments);
            shape.layout.bytes() <= arguments.size_bytes
        };
        let full = (CUSTOMERS as usize, ITEMS as usize);
        let warehouses = greatest(|warehouses| fits(warehouses, full.0, full.1));
        let items =
            |customers: usize| customers * (ITEMS / 100) as usize / (CUSTOMERS / 100) as usize;
        let customers = greatest(|customers| fits(warehouses, customers, items(customers)));
        let items = greatest(|items| fits(warehouses, customers, items));
        Self::at(Scale { warehouses, customers, items }, arguments)
    }

    fn at(scale: Scale, arguments: &Arguments) -> Self {
        let (warehouses, items) = (scale.warehouses as u64, scale.items as u64);
        let customers = scale.all_customers() as u64;
        let mut layout = Layout::new(arguments);
        let tables = Tables {
            warehouse: layout.objects(warehouses, 96),
            district: layout.objects(warehouses * DISTRICTS as u64, 96),
            customer: layout.objects(customers, 656),
            history: layout.objects(customers, 48),
            order: layout.objects(customers, 24),
            new_order: layout.objects(customers, 8),
            line: layout.objects(customers * LINES, 56),
            stock: layout.objects(warehouses * items, 312),
            item: layout.objects(items, 88),
        };
        Self {
            scale,
            tables,
            customer_index: Tree::new(&mut layout, customers),
            name_index: Tree::new(&mut layout, customers),
            stock_index: Tree::new(&mut layout, warehouses * items),
            item_index: Tree::new(&mut layout, items),
            layout,
        }
    }
}

/// The greatest number, at least 1, that is good enough; all below it must be so too.
fn greatest(fits: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut step) = (1, 1);
    while fits(good + step) {
        good += step;
        step *= 2;
    }
    while step > 0 {
        if fits(good + step) {
            good += step;
        }
        step /= 2;
    }
    good
}
