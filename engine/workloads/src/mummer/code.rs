//! The instructions of the matching.

use flatwalk_trace::BlockId;

use crate::program::{Assembler, FLAGS, registers};

registers!(32; QUERY, QUERY_END, TEXT, NODE, TABLE, WORD, END, DEPTH, HEAD, BELOW, LETTER, OTHER, CHILD, EDGE,
    LENGTH, LEFT, RIGHT, STACK, TOP, COMMON, OUTPUT, DIGIT, LEAVES);

/// Reads what a node's large node knows.
pub(super) struct Info {
    pub(super) test: BlockId,
    pub(super) small: BlockId,
    pub(super) large: BlockId,
}

impl Info {
    /// Loads as many words, by `registers`.
    fn new(assembler: &mut Assembler, registers: &[u8]) -> Self {
        let words = |assembler: &mut Assembler, base: u8| {
            for &register in registers {
                assembler.load_bytes(4, &[TABLE, base], register);
            }
        };
        let test =
            assembler.load_bytes(4, &[TABLE, NODE], WORD).operation(&[WORD], &[FLAGS]).branch();
        assembler.load_bytes(4, &[TABLE, NODE], END).operation(&[NODE, END], &[END]);
        words(assembler, END);
        for &register in registers {
            assembler.operation(&[register, END], &[register]);
        }
        let small = assembler.jump();
        words(assembler, NODE);
        Self { test, small, large: assembler.fall() }
    }
}

/// Goes down from a node along given letters.
pub(super) struct Descent {
    pub(super) top: BlockId,
    pub(super) first: BlockId,
    pub(super) children: BlockId,
    pub(super) roots: BlockId,
    pub(super) nil: BlockId,
    pub(super) kind: BlockId,
    pub(super) head: Info,
    pub(super) branch: BlockId,
    pub(super) branch_past: BlockId,
    pub(super) brother: BlockId,
    pub(super) depth: Info,
    pub(super) branch_letters: BlockId,
    pub(super) edge_end: BlockId,
    pub(super) edge_exit: BlockId,
    pub(super) leaf: BlockId,
    pub(super) leaf_past: BlockId,
    pub(super) leaf_brother: BlockId,
    pub(super) leaf_letters: BlockId,
    pub(super) leaf_exit: BlockId,
}

/// Compares a letter of the text with one of the query, in a loop.
fn letters(assembler: &mut Assembler) -> BlockId {
    assembler
        .operation(&[LEFT, QUERY_END], &[FLAGS])
        .load_bytes(1, &[LEFT], LETTER)
        .load_bytes(1, &[RIGHT], OTHER)
        .operation(&[LEFT], &[LEFT])
        .operation(&[RIGHT], &[RIGHT])
        .operation(&[LETTER, OTHER], &[FLAGS])
        .branch()
}

/// Loads the first letter of an edge and compares it.
fn first_letter(assembler: &mut Assembler) -> BlockId {
    assembler
        .operation(&[HEAD, DEPTH], &[EDGE])
        .load_bytes(1, &[TEXT, EDGE], OTHER)
        .operation(&[OTHER, LETTER], &[FLAGS])
        .branch()
}

/// Loads the next of a list of children.
fn next(assembler: &mut Assembler, base: u8) -> BlockId {
    assembler.load_bytes(4, &[base, CHILD], CHILD).jump()
}

impl Descent {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            top: assembler.operation(&[LEFT, RIGHT], &[FLAGS]).branch(),
            first: assembler
                .load_bytes(1, &[LEFT], LETTER)
                .operation(&[NODE, TABLE], &[FLAGS])
                .branch(),
            children: assembler
                .load_bytes(4, &[TABLE, NODE], CHILD)
                .operation(&[CHILD], &[CHILD])
                .jump(),
            roots: assembler.load_bytes(4, &[LETTER], CHILD).fall(),
            nil: assembler.operation(&[CHILD], &[FLAGS]).branch(),
            kind: assembler.operation(&[CHILD], &[FLAGS]).branch(),
            head: Info::new(assembler, &[HEAD]),
            branch: first_letter(assembler),
            branch_past: assembler.operation(&[OTHER, LETTER], &[FLAGS]).branch(),
            brother: next(assembler, TABLE),
            depth: Info::new(assembler, &[BELOW]),
            branch_letters: letters(assembler),
            edge_end: assembler
                .operation(&[BELOW, DEPTH], &[LENGTH])
                .operation(&[LEFT, LENGTH], &[LEFT])
                .operation(&[BELOW], &[DEPTH])
                .operation(&[LENGTH, LEFT], &[FLAGS])
                .branch(),
            edge_exit: assembler.jump(),
            leaf: first_letter(assembler),
            leaf_past: assembler.operation(&[OTHER, LETTER], &[FLAGS]).branch(),
            leaf_brother: next(assembler, LEAVES),
            leaf_letters: letters(assembler),
            leaf_exit: assembler.operation(&[LEFT, DEPTH], &[LENGTH]).jump(),
        }
    }
}

/// Goes on from a place that may be within an edge.
pub(super) struct Scan {
    pub(super) resume: BlockId,
    pub(super) letters: BlockId,
    pub(super) end: BlockId,
    pub(super) exit: BlockId,
    pub(super) begin: BlockId,
    pub(super) info: Info,
    pub(super) descent: Descent,
}

impl Scan {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            resume: assembler.operation(&[LENGTH, DEPTH], &[FLAGS]).branch(),
            letters: letters(assembler),
            end: assembler.operation(&[LEFT, LENGTH], &[FLAGS]).branch(),
            exit: assembler.jump(),
            begin: assembler.operation(&[NODE, TABLE], &[FLAGS]).branch(),
            info: Info::new(assembler, &[DEPTH, HEAD]),
            descent: Descent::new(assembler),
        }
    }
}

pub(super) struct Code {
    pub(super) suffix: BlockId,
    /// To a node's suffix link.
    pub(super) link: BlockId,
    pub(super) link_test: BlockId,
    pub(super) link_small: BlockId,
    pub(super) link_large: BlockId,
    pub(super) exact: BlockId,
    pub(super) rescan: BlockId,
    pub(super) rescan_info: Info,
    pub(super) rescan_descent: Descent,
    pub(super) scan: Scan,
    pub(super) judge: BlockId,
    pub(super) extend: Scan,
    /// Every leaf below.
    pub(super) below: BlockId,
    pub(super) visit: BlockId,
    pub(super) push: BlockId,
    pub(super) report: BlockId,
    pub(super) begin_digits: BlockId,
    pub(super) digit: BlockId,
    pub(super) next_leaf: BlockId,
    pub(super) listed: BlockId,
    pub(super) pop: BlockId,
    pub(super) popped: BlockId,
    pub(super) next_suffix: BlockId,
}

impl Code {
    pub(super) fn new(assembler: &mut Assembler) -> Self {
        Self {
            suffix: assembler.operation(&[QUERY], &[QUERY]).operation(&[LENGTH], &[FLAGS]).branch(),
            link: assembler.operation(&[NODE, LENGTH], &[FLAGS]).branch(),
            link_test: assembler
                .load_bytes(4, &[TABLE, NODE], WORD)
                .operation(&[WORD], &[FLAGS])
                .branch(),
            link_small: assembler.operation(&[NODE], &[NODE]).jump(),
            link_large: assembler.load_bytes(4, &[TABLE, NODE], NODE).fall(),
            exact: assembler.operation(&[LENGTH], &[FLAGS]).branch(),
            rescan: assembler.operation(&[NODE, TABLE], &[FLAGS]).branch(),
            rescan_info: Info::new(assembler, &[DEPTH, HEAD]),
            rescan_descent: Descent::new(assembler),
            scan: Scan::new(assembler),
            judge: assembler.operation(&[LENGTH], &[FLAGS]).branch(),
            extend: Scan::new(assembler),
            below: assembler.operation(&[STACK], &[TOP]).operation(&[LENGTH], &[COMMON]).fall(),
            visit: assembler.operation(&[CHILD], &[FLAGS]).branch(),
            push: assembler
                .load_bytes(4, &[TABLE, CHILD], WORD)
                .load_bytes(4, &[TABLE, CHILD], OTHER)
                .operation(&[TOP], &[TOP])
                .store(&[TOP, OTHER])
                .operation(&[CHILD, COMMON], &[COMMON])
                .operation(&[WORD], &[CHILD])
                .jump(),
            report: assembler
                .load_bytes(1, &[TEXT, CHILD], LETTER)
                .load_bytes(1, &[QUERY], OTHER)
                .operation(&[LETTER, OTHER], &[FLAGS])
                .branch(),
            begin_digits: assembler.operation(&[COMMON, CHILD], &[DIGIT]).fall(),
            digit: assembler
                .operation(&[DIGIT], &[LETTER])
                .operation(&[DIGIT, LETTER], &[DIGIT])
                .operation(&[OUTPUT], &[OUTPUT])
                .store_bytes(1, &[OUTPUT, LETTER])
                .operation(&[DIGIT], &[FLAGS])
                .branch(),
            next_leaf: assembler.load_bytes(4, &[LEAVES, CHILD], CHILD).fall(),
            listed: assembler.operation(&[CHILD, TOP], &[FLAGS]).branch(),
            pop: assembler.operation(&[TOP, STACK], &[FLAGS]).branch(),
            popped: assembler.load(&[TOP], CHILD).operation(&[TOP], &[TOP]).jump(),
            next_suffix: assembler.operation(&[QUERY, QUERY_END], &[FLAGS]).branch(),
        }
    }
}
