//! The tables: how many rows they have, and where they and their indices lie.

use crate::Arguments;
use crate::dbx1000::{Desk, Index, Table, Tables, greatest};
use crate::simulated::Layout;

/// Districts of a warehouse.
pub(super) const DISTRICTS: usize = 10;
/// Customers of a district and items of the catalogue, at full size.
const CUSTOMERS: usize = 3000;
const ITEMS: usize = 100_000;
/// Customers of the same name in a district, and the most names that there are.
const NAMESAKES: usize = 3;
const NAMES: usize = 1000;
/// Order lines of an order, on average, and the most.
const LINES: usize = 10;
pub(super) const MOST_LINES: usize = 15;
/// Warehouses whose keys an index has buckets for.
const INDEXED: usize = 4;

/// How many rows of each kind there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) warehouses: usize,
    /// Of a district.
    pub(super) customers: usize,
    pub(super) items: usize,
}

impl Scale {
    pub(super) fn districts(self) -> usize {
        self.warehouses * DISTRICTS
    }

    pub(super) fn all_customers(self) -> usize {
        self.districts() * self.customers
    }

    pub(super) fn names(self) -> usize {
        (self.customers / NAMESAKES).clamp(1, NAMES)
    }
}

pub(super) struct Shape {
    pub(super) scale: Scale,
    pub(super) layout: Layout,
    pub(super) all: Tables,
    pub(super) tables: Rows,
    pub(super) indices: Indices,
    pub(super) desk: Desk,
}

#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) warehouse: Table,
    pub(super) district: Table,
    pub(super) customer: Table,
    pub(super) stock: Table,
    pub(super) item: Table,
}

#[derive(Clone, Copy)]
pub(super) struct Indices {
    pub(super) warehouse: Index,
    pub(super) district: Index,
    pub(super) customer: Index,
    pub(super) name: Index,
    pub(super) stock: Index,
    pub(super) item: Index,
}

impl Shape {
    /// As many warehouses of full size as fit, then as many customers and items as fit into these; or
    /// one smaller one.
    pub(super) fn of(arguments: &Arguments) -> Self {
        let fits = |warehouses, customers, items| {
            let shape = Self::at(Scale { warehouses, customers, items }, arguments);
            shape.layout.bytes() <= arguments.size_bytes
        };
        let warehouses = greatest(|warehouses| fits(warehouses, CUSTOMERS, ITEMS));
        let items = |customers: usize| customers * (ITEMS / 100) / (CUSTOMERS / 100);
        let customers = greatest(|customers| fits(warehouses, customers, items(customers)));
        let items = greatest(|items| fits(warehouses, customers, items));
        Self::at(Scale { warehouses, customers, items }, arguments)
    }

    fn at(scale: Scale, arguments: &Arguments) -> Self {
        let Scale { warehouses, customers, items } = scale;
        let (all_customers, full) = (scale.all_customers(), customers >= CUSTOMERS);
        let mut layout = Layout::new(arguments);
        let mut all = Tables::default();
        let memory = &mut layout;
        let stock = all.table(memory, warehouses * items, 384, 1);
        let customer = all.table(memory, all_customers, 768, 2);
        let item = all.table(memory, items, 128, 1);
        // Orders, of which the last 900 of a district are new, their lines, and the history.
        if full {
            Tables::unread(memory, all_customers, 64, 0);
            Tables::unread(memory, 900 * scale.districts(), 64, 0);
            Tables::unread(memory, LINES * all_customers, 128, 0);
            Tables::unread(memory, all_customers, 128, 0);
        }
        let district = all.table(memory, scale.districts(), 128, 1);
        let warehouse = all.table(memory, warehouses, 128, 1);
        // Warehouse, district and customer; item and stock of each line.
        let desk = Desk::new(memory, 3 + 2 * MOST_LINES);
        let named = INDEXED * DISTRICTS * customers;
        let mut index = |buckets, number| Index::new(memory, buckets, number);
        let indices = Indices {
            item: index(INDEXED * items, 0),
            warehouse: index((customers / 30).clamp(1, 100), 0),
            district: index((customers / 3).clamp(1, 1000), 0),
            customer: index(named, 1),
            name: index(named, 0),
            stock: index(INDEXED * items, 0),
        };
        let tables = Rows { warehouse, district, customer, stock, item };
        Self { scale, layout, all, tables, indices, desk }
    }
}
