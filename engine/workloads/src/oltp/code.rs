//! The program's code, block by block. Registers have the query.

use flatwalk_trace::BlockId;

use crate::dbx1000::{COPIED, Code as Functions, INDEX, ITEM, KEY, ROW_AT, overhead, work};
use crate::program::{Assembler, FLAGS, registers};

registers!(32; STATE, AMOUNT, VALUE, LINES_LEFT, LEFT, SETTING, COUNT, BEARER, MIDDLE, LETTER);

pub(super) struct Code {
    pub(super) choose: BlockId,
    pub(super) payment: BlockId,
    pub(super) paid_warehouse: Got,
    pub(super) pay_warehouse: BlockId,
    pub(super) paid_district: Got,
    pub(super) pay_district: BlockId,
    pub(super) by_number: BlockId,
    pub(super) number_found: BlockId,
    pub(super) by_name: BlockId,
    pub(super) letter: BlockId,
    pub(super) name: BlockId,
    pub(super) name_found: BlockId,
    pub(super) bearer: BlockId,
    pub(super) middle: BlockId,
    pub(super) more: BlockId,
    pub(super) chosen: BlockId,
    pub(super) customer: BlockId,
    pub(super) pay: BlockId,
    pub(super) paid: BlockId,
    pub(super) order: BlockId,
    pub(super) warehouse: Got,
    pub(super) tax: BlockId,
    pub(super) orderer: Got,
    pub(super) discount: BlockId,
    pub(super) district: Got,
    pub(super) number: BlockId,
    pub(super) line: BlockId,
    pub(super) item: Got,
    pub(super) price: BlockId,
    pub(super) stock: Got,
    pub(super) take: BlockId,
    pub(super) remote: BlockId,
    pub(super) taken: BlockId,
    pub(super) commit: BlockId,
    pub(super) done: BlockId,
}

/// What follows a look-up: the item's row is taken into the transaction.
#[derive(Clone, Copy)]
pub(super) struct Got(pub(super) BlockId);

impl Got {
    fn new(assembler: &mut Assembler) -> Self {
        Self(assembler.load(&[ITEM], ROW_AT).then(overhead(5)).call())
    }
}

/// Asks the copy's table where a field lies, and loads it.
fn get(assembler: &mut Assembler) -> &mut Assembler {
    assembler.then(overhead(7)).load(&[COPIED], VALUE)
}

/// The same, and stores it.
fn set(assembler: &mut Assembler) -> &mut Assembler {
    assembler.then(overhead(9)).store(&[COPIED, VALUE])
}

/// Adds to a field.
fn add(assembler: &mut Assembler) -> &mut Assembler {
    assembler.then(get).operation(&[VALUE, AMOUNT], &[VALUE]).then(set)
}

/// Computes a key and calls the look-up.
fn look_up(assembler: &mut Assembler) -> BlockId {
    assembler.then(work(STATE, KEY, 4)).operation(&[STATE], &[INDEX]).then(overhead(6)).call()
}

impl Code {
    pub(super) fn new(assembler: &mut Assembler) -> (Self, Functions) {
        let code = Self {
            // thread_t::run and run_txn.
            choose: assembler
                .then(overhead(60))
                .then(work(STATE, SETTING, 12))
                .operation(&[STATE], &[FLAGS])
                .branch(),
            payment: look_up(assembler),
            paid_warehouse: Got::new(assembler),
            pay_warehouse: look_up(assembler.then(add).then(get).then(get).then(overhead(8))),
            paid_district: Got::new(assembler),
            pay_district: assembler
                .then(add)
                .then(get)
                .then(get)
                .then(overhead(8))
                .operation(&[STATE], &[FLAGS])
                .branch(),
            by_number: look_up(assembler),
            number_found: assembler.load(&[ITEM], ROW_AT).jump(),
            by_name: assembler.then(overhead(20)).operation(&[STATE], &[KEY]).fall(),
            letter: assembler
                .operation(&[LETTER], &[LETTER])
                .then(overhead(1))
                .operation(&[KEY, LETTER], &[KEY])
                .operation(&[KEY], &[KEY])
                .operation(&[LETTER], &[FLAGS])
                .branch(),
            name: look_up(assembler.then(overhead(4))),
            name_found: assembler
                .operation(&[ITEM], &[BEARER])
                .operation(&[ITEM], &[MIDDLE])
                .operation(&[], &[COUNT])
                .fall(),
            bearer: assembler
                .operation(&[COUNT], &[COUNT])
                .load(&[BEARER], BEARER)
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            middle: assembler.load(&[MIDDLE], MIDDLE).fall(),
            more: assembler.operation(&[BEARER], &[FLAGS]).branch(),
            chosen: assembler.load(&[MIDDLE], ROW_AT).fall(),
            customer: assembler.then(overhead(5)).call(),
            pay: assembler.then(add).then(add).then(add).then(get).then(overhead(70)).call(),
            paid: assembler.jump(),
            order: look_up(assembler),
            warehouse: Got::new(assembler),
            tax: look_up(assembler.then(get)),
            orderer: Got::new(assembler),
            discount: look_up(assembler.then(get)),
            district: Got::new(assembler),
            number: assembler.then(get).operation(&[VALUE], &[VALUE]).then(set).fall(),
            line: look_up(assembler.then(overhead(8))),
            item: Got::new(assembler),
            price: look_up(assembler.then(get)),
            stock: Got::new(assembler),
            take: assembler.then(get).then(add).then(add).operation(&[STATE], &[FLAGS]).branch(),
            remote: assembler.then(add).fall(),
            taken: assembler
                .then(work(VALUE, VALUE, 4))
                .then(set)
                .then(overhead(4))
                .operation(&[LINES_LEFT], &[LINES_LEFT])
                .operation(&[LINES_LEFT], &[FLAGS])
                .branch(),
            commit: assembler.then(overhead(4)).call(),
            done: assembler
                .then(overhead(30))
                .then(work(STATE, SETTING, 12))
                .operation(&[LEFT], &[LEFT])
                .operation(&[LEFT], &[FLAGS])
                .branch(),
        };
        let functions = Functions::new(assembler);
        (code, functions)
    }
}
