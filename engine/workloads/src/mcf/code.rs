//! The instructions of the simplex.

use flatwalk_trace::BlockId;

use crate::program::{Assembler, FLAGS, registers};

registers!(32; NEXT, PERM, SLOT, ARC, STOP, STRIDE, STATE, COST, TAIL, HEAD, TAIL_POTENTIAL, HEAD_POTENTIAL,
    REDUCED, SIZE, PIVOT, LEFT, RIGHT, OTHER, TAIL_SIDE, HEAD_SIDE, TAIL_SIZE, HEAD_SIZE, UP, FLOW, DELTA,
    LEAVING, JOIN, NODE, FATHER, PRED, SIBLING, PREVIOUS, FIRST, BASIC, SUBTREE, TOP, CHANGE, POTENTIAL);

pub(super) struct Code {
    pub(super) begin: BlockId,
    pub(super) recheck: BlockId,
    pub(super) keep: BlockId,
    pub(super) rechecked: BlockId,
    pub(super) group: BlockId,
    pub(super) arc: BlockId,
    pub(super) price: BlockId,
    pub(super) insert: BlockId,
    pub(super) next_arc: BlockId,
    pub(super) group_end: BlockId,
    pub(super) full: BlockId,
    pub(super) pivot: BlockId,
    pub(super) left: BlockId,
    pub(super) right: BlockId,
    pub(super) meet: BlockId,
    pub(super) swap: BlockId,
    pub(super) parts: BlockId,
    pub(super) chosen: BlockId,
    pub(super) compare: BlockId,
    pub(super) up_tail: BlockId,
    pub(super) tail_joined: BlockId,
    pub(super) up_head: BlockId,
    pub(super) joined: BlockId,
    /// A test and a loop for the way from either end of the arc to where they join.
    pub(super) flow: [(BlockId, BlockId); 2],
    pub(super) rehang: BlockId,
    pub(super) unlink: BlockId,
    pub(super) has_sibling: BlockId,
    pub(super) unlink_next: BlockId,
    pub(super) unlink_previous: BlockId,
    pub(super) unlink_first: BlockId,
    pub(super) link: BlockId,
    pub(super) link_first: BlockId,
    pub(super) hang: BlockId,
    pub(super) subtree: [(BlockId, BlockId); 2],
    pub(super) adjust: BlockId,
    pub(super) add: BlockId,
    pub(super) at_top: BlockId,
    pub(super) sibling: BlockId,
    pub(super) up: BlockId,
    pub(super) done: BlockId,
    pub(super) refresh: BlockId,
    pub(super) renew: BlockId,
    pub(super) renew_sibling: BlockId,
    pub(super) renew_up: BlockId,
    pub(super) renewed: BlockId,
}

/// Loads an arc's data and its reduced cost.
fn reduced(assembler: &mut Assembler) -> &mut Assembler {
    assembler
        .load(&[ARC], COST)
        .load(&[ARC], TAIL)
        .load(&[TAIL], TAIL_POTENTIAL)
        .load(&[ARC], HEAD)
        .load(&[HEAD], HEAD_POTENTIAL)
        .operation(&[COST, TAIL_POTENTIAL], &[REDUCED])
        .operation(&[REDUCED, HEAD_POTENTIAL], &[REDUCED])
        .operation(&[REDUCED, STATE], &[FLAGS])
}

/// Stores into a slot of the basket.
fn fill(assembler: &mut Assembler) -> &mut Assembler {
    assembler
        .operation(&[SIZE], &[SIZE])
        .load(&[PERM, SIZE], SLOT)
        .store(&[SLOT, ARC])
        .store(&[SLOT, REDUCED])
        .operation(&[REDUCED], &[OTHER])
        .store(&[SLOT, OTHER])
}

/// Goes one step up the tree, noting how much flow the way allows.
fn climb(assembler: &mut Assembler, side: u8) -> BlockId {
    assembler
        .load_bytes(4, &[side], UP)
        .load(&[side], FLOW)
        .operation(&[UP, FLOW, DELTA], &[FLAGS])
        .operation(&[FLAGS, FLOW, DELTA], &[DELTA])
        .operation(&[FLAGS, side, LEAVING], &[LEAVING])
        .load(&[side], side)
        .operation(&[TAIL_SIDE, HEAD_SIDE], &[FLAGS])
        .branch()
}

/// A test whether a way has nodes, and a loop over them that changes 8 bytes of each.
fn along(assembler: &mut Assembler, orientation: bool) -> (BlockId, BlockId) {
    let test = assembler.operation(&[NODE, JOIN], &[FLAGS]).branch();
    if orientation {
        assembler.load_bytes(4, &[NODE], UP);
    }
    let step = assembler
        .load(&[NODE], FLOW)
        .operation(&[FLOW, UP, DELTA], &[FLOW])
        .store(&[NODE, FLOW])
        .load(&[NODE], NODE)
        .operation(&[NODE, JOIN], &[FLAGS])
        .branch();
    (test, step)
}

impl Code {
    #[expect(clippy::too_many_lines, reason = "a listing of the program's code, block by block")]
    pub(super) fn new(assembler: &mut Assembler) -> Self {
        Self {
            begin: assembler.operation(&[], &[NEXT]).operation(&[SIZE], &[FLAGS]).branch(),
            recheck: assembler
                .load(&[PERM, NEXT], SLOT)
                .load(&[SLOT], ARC)
                .load_bytes(4, &[ARC], STATE)
                .then(reduced)
                .branch(),
            keep: assembler.then(fill).fall(),
            rechecked: assembler.operation(&[NEXT], &[NEXT]).operation(&[NEXT], &[FLAGS]).branch(),
            group: assembler.operation(&[NEXT, STRIDE], &[ARC]).fall(),
            arc: assembler.load_bytes(4, &[ARC], STATE).operation(&[STATE], &[FLAGS]).branch(),
            price: assembler.then(reduced).branch(),
            insert: assembler.then(fill).fall(),
            next_arc: assembler
                .operation(&[ARC, STRIDE], &[ARC])
                .operation(&[ARC, STOP], &[FLAGS])
                .branch(),
            group_end: assembler
                .operation(&[NEXT], &[NEXT])
                .operation(&[NEXT, STRIDE], &[FLAGS, NEXT])
                .operation(&[SIZE], &[FLAGS])
                .branch(),
            full: assembler.operation(&[SIZE], &[FLAGS]).branch(),
            pivot: assembler
                .operation(&[LEFT, RIGHT], &[SLOT])
                .load(&[PERM, SLOT], SLOT)
                .load(&[SLOT], PIVOT)
                .fall(),
            left: assembler
                .load(&[PERM, LEFT], SLOT)
                .load(&[SLOT], OTHER)
                .operation(&[LEFT], &[LEFT])
                .operation(&[OTHER, PIVOT], &[FLAGS])
                .branch(),
            right: assembler
                .load(&[PERM, RIGHT], SLOT)
                .load(&[SLOT], OTHER)
                .operation(&[RIGHT], &[RIGHT])
                .operation(&[OTHER, PIVOT], &[FLAGS])
                .branch(),
            meet: assembler.operation(&[LEFT, RIGHT], &[FLAGS]).branch(),
            swap: assembler
                .load(&[PERM, LEFT], SLOT)
                .load(&[PERM, RIGHT], OTHER)
                .store(&[PERM, LEFT, OTHER])
                .store(&[PERM, RIGHT, SLOT])
                .operation(&[LEFT, RIGHT], &[FLAGS])
                .branch(),
            parts: assembler.operation(&[LEFT], &[FLAGS]).branch(),
            chosen: assembler
                .load(&[PERM], SLOT)
                .load(&[SLOT], ARC)
                .load(&[SLOT], REDUCED)
                .load(&[ARC], TAIL_SIDE)
                .load(&[ARC], HEAD_SIDE)
                .operation(&[], &[DELTA])
                .fall(),
            compare: assembler
                .load(&[TAIL_SIDE], TAIL_SIZE)
                .load(&[HEAD_SIDE], HEAD_SIZE)
                .operation(&[TAIL_SIZE, HEAD_SIZE], &[FLAGS])
                .branch(),
            up_tail: climb(assembler, TAIL_SIDE),
            tail_joined: assembler.jump(),
            up_head: climb(assembler, HEAD_SIDE),
            joined: assembler.operation(&[DELTA], &[FLAGS]).branch(),
            flow: [along(assembler, true), along(assembler, true)],
            rehang: assembler
                .load(&[LEAVING], BASIC)
                .load(&[LEAVING], SUBTREE)
                .operation(&[REDUCED], &[CHANGE])
                .fall(),
            unlink: assembler
                .load(&[NODE], PRED)
                .load(&[NODE], SIBLING)
                .load(&[NODE], PREVIOUS)
                .operation(&[SIBLING], &[FLAGS])
                .branch(),
            has_sibling: assembler.store(&[SIBLING, PREVIOUS]).fall(),
            unlink_next: assembler.operation(&[PREVIOUS], &[FLAGS]).branch(),
            unlink_previous: assembler.store(&[PREVIOUS, SIBLING]).jump(),
            unlink_first: assembler.store(&[PRED, SIBLING]).fall(),
            link: assembler
                .load(&[FATHER], FIRST)
                .store(&[NODE, FIRST])
                .operation(&[FIRST], &[FLAGS])
                .branch(),
            link_first: assembler.store(&[FIRST, NODE]).fall(),
            hang: assembler
                .store(&[FATHER, NODE])
                .store(&[NODE, FATHER])
                .store(&[NODE])
                .load_bytes(4, &[NODE], UP)
                .store_bytes(4, &[NODE, UP])
                .load(&[NODE], FLOW)
                .store(&[NODE, FLOW])
                .load(&[NODE], OTHER)
                .store(&[NODE, BASIC])
                .operation(&[OTHER], &[BASIC])
                .load(&[NODE], SUBTREE)
                .store(&[NODE, SUBTREE])
                .operation(&[NODE], &[FATHER])
                .operation(&[PRED], &[NODE])
                .operation(&[FATHER, LEAVING], &[FLAGS])
                .branch(),
            subtree: [along(assembler, false), along(assembler, false)],
            adjust: assembler.operation(&[TOP], &[NODE]).fall(),
            add: assembler
                .load(&[NODE], POTENTIAL)
                .operation(&[POTENTIAL, CHANGE], &[POTENTIAL])
                .store(&[NODE, POTENTIAL])
                .load(&[NODE], FIRST)
                .operation(&[FIRST], &[FLAGS])
                .branch(),
            at_top: assembler.operation(&[NODE, TOP], &[FLAGS]).branch(),
            sibling: assembler.load(&[NODE], SIBLING).operation(&[SIBLING], &[FLAGS]).branch(),
            up: assembler.load(&[NODE], NODE).jump(),
            done: assembler
                .store_bytes(4, &[ARC])
                .store_bytes(4, &[BASIC])
                .operation(&[STATE], &[FLAGS])
                .branch(),
            refresh: assembler.operation(&[], &[NODE]).fall(),
            renew: assembler
                .load_bytes(4, &[NODE], UP)
                .load(&[NODE], BASIC)
                .load(&[BASIC], COST)
                .load(&[NODE], PRED)
                .load(&[PRED], POTENTIAL)
                .operation(&[UP, COST, POTENTIAL], &[POTENTIAL])
                .store(&[NODE, POTENTIAL])
                .load(&[NODE], FIRST)
                .operation(&[FIRST], &[FLAGS])
                .branch(),
            renew_sibling: assembler
                .load(&[NODE], SIBLING)
                .operation(&[SIBLING], &[FLAGS])
                .branch(),
            renew_up: assembler.load(&[NODE], NODE).operation(&[NODE], &[FLAGS]).branch(),
            renewed: assembler.jump(),
        }
    }
}
