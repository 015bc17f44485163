//! The program's code, block by block.

use flatwalk_trace::BlockId;

use crate::btree::{Descent, KEY, NODE};
use crate::program::{Assembler, FLAGS, registers};

registers!(32; STATE, WAREHOUSE, DISTRICT, CUSTOMER, NUMBER, FIRST, AMOUNT, SUM, VALUE, CREDIT, WORD,
    COUNT, HISTORY, ORDER, LINE, ITEM, PRICE, QUANTITY, STOCK, INFO, LINES_LEFT, LEFT);

pub(super) struct Code {
    pub(super) choose: BlockId,
    pub(super) payment: BlockId,
    pub(super) by_number: Descent,
    pub(super) by_number_found: BlockId,
    pub(super) by_name: Descent,
    pub(super) namesake: BlockId,
    pub(super) middle: BlockId,
    pub(super) pay: BlockId,
    pub(super) bad_credit: BlockId,
    pub(super) history: BlockId,
    pub(super) order: BlockId,
    pub(super) orderer: Descent,
    pub(super) header: BlockId,
    pub(super) line: BlockId,
    pub(super) item: Descent,
    pub(super) item_found: BlockId,
    pub(super) stock: Descent,
    pub(super) stock_found: BlockId,
    pub(super) done: BlockId,
}

/// Adds to a field: a load, an addition and a store.
fn add(row: u8) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| {
        assembler.load(&[row], VALUE).operation(&[VALUE, AMOUNT], &[VALUE]).store(&[row, VALUE])
    }
}

/// Loads fields that only the reply needs.
fn show(row: u8, fields: usize) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| (0..fields).fold(assembler, |assembler, _| assembler.load(&[row], INFO))
}

/// Fills a new row.
fn fill(row: u8, fields: usize) -> impl Fn(&mut Assembler) -> &mut Assembler {
    move |assembler| (0..fields).fold(assembler, |assembler, _| assembler.store(&[row, VALUE]))
}

impl Code {
    pub(super) fn new(assembler: &mut Assembler) -> Self {
        Self {
            choose: assembler
                .operation(&[STATE], &[STATE])
                .operation(&[STATE], &[WAREHOUSE])
                .operation(&[STATE], &[DISTRICT])
                .operation(&[STATE], &[NUMBER])
                .operation(&[STATE], &[FLAGS])
                .branch(),
            payment: assembler
                .operation(&[STATE], &[AMOUNT])
                .then(add(WAREHOUSE))
                .then(add(DISTRICT))
                .operation(&[WAREHOUSE, DISTRICT, NUMBER], &[KEY])
                .operation(&[], &[NODE])
                .operation(&[STATE], &[FLAGS])
                .branch(),
            by_number: Descent::new(assembler),
            by_number_found: assembler.operation(&[NODE], &[CUSTOMER]).jump(),
            by_name: Descent::new(assembler),
            namesake: assembler
                .load(&[NODE, COUNT], CUSTOMER)
                .load(&[CUSTOMER], FIRST)
                .operation(&[COUNT], &[COUNT])
                .operation(&[FIRST, COUNT], &[FLAGS])
                .branch(),
            middle: assembler.load(&[NODE, COUNT], CUSTOMER).fall(),
            pay: assembler
                .then(add(CUSTOMER))
                .then(add(CUSTOMER))
                .then(add(CUSTOMER))
                .load(&[CUSTOMER], CREDIT)
                .operation(&[CREDIT], &[FLAGS])
                .branch(),
            bad_credit: assembler
                .load(&[CUSTOMER, COUNT], WORD)
                .store(&[CUSTOMER, COUNT, WORD])
                .operation(&[COUNT], &[COUNT])
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            history: assembler.then(fill(HISTORY, 6)).operation(&[HISTORY], &[HISTORY]).jump(),
            order: assembler
                .then(show(WAREHOUSE, 1))
                .then(show(DISTRICT, 1))
                .then(add(DISTRICT))
                .operation(&[WAREHOUSE, DISTRICT, NUMBER], &[KEY])
                .operation(&[], &[NODE])
                .fall(),
            orderer: Descent::new(assembler),
            header: assembler
                .then(show(NODE, 3))
                .then(fill(ORDER, 3))
                .store(&[ORDER])
                .operation(&[STATE], &[LINES_LEFT])
                .fall(),
            line: assembler
                .operation(&[STATE], &[STATE])
                .operation(&[STATE], &[ITEM])
                .operation(&[STATE], &[QUANTITY])
                .operation(&[ITEM], &[KEY])
                .operation(&[], &[NODE])
                .fall(),
            item: Descent::new(assembler),
            item_found: assembler
                .load(&[NODE], PRICE)
                .then(show(NODE, 2))
                .operation(&[WAREHOUSE, ITEM], &[KEY])
                .operation(&[], &[NODE])
                .fall(),
            stock: Descent::new(assembler),
            stock_found: assembler
                .load(&[NODE], STOCK)
                .operation(&[STOCK, QUANTITY], &[STOCK])
                .operation(&[STOCK], &[STOCK])
                .store(&[NODE, STOCK])
                .then(add(NODE))
                .then(add(NODE))
                .then(show(NODE, 3))
                .operation(&[PRICE, QUANTITY], &[VALUE])
                .operation(&[SUM, VALUE], &[SUM])
                .then(fill(LINE, 7))
                .operation(&[LINE], &[LINE])
                .operation(&[LINES_LEFT], &[LINES_LEFT])
                .operation(&[LINES_LEFT], &[FLAGS])
                .branch(),
            done: assembler.operation(&[LEFT], &[LEFT]).operation(&[LEFT], &[FLAGS]).branch(),
        }
    }
}
