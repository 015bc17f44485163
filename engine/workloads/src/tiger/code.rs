//! The instructions of the assembly.

use flatwalk_trace::BlockId;

use crate::program::{Assembler, FLAGS, registers};

registers!(32; FRAGMENT, LETTERS, PLACE, LETTER, WORD, TABLE, ENTRY, OTHER, COUNT_AT, COUNT, TOUCHED, DIAGONAL,
    OLD, NUMBER, LIMIT, CANDIDATES, LEFT, RIGHT, TO, KEY, OTHER_KEY, FIRST, SECOND, CONTIG, OTHER_CONTIG,
    ROW, CELL, ABOVE, SCORE, BEST, COLUMN, MEMBER, OFFSET);

pub(super) struct Code {
    // A fragment's words are looked up, and fragments that have them counted.
    pub(super) fragment: BlockId,
    pub(super) place: BlockId,
    pub(super) entry: BlockId,
    pub(super) count: BlockId,
    pub(super) touch: BlockId,
    pub(super) vote: BlockId,
    pub(super) next_place: BlockId,
    pub(super) counted: BlockId,
    pub(super) collect: BlockId,
    pub(super) candidate: BlockId,
    pub(super) next_touched: BlockId,
    pub(super) next_fragment: BlockId,
    // Candidates are sorted by merging.
    pub(super) run: BlockId,
    pub(super) merge: BlockId,
    pub(super) rest_test: BlockId,
    pub(super) rest: BlockId,
    pub(super) run_end: BlockId,
    pub(super) pass_end: BlockId,
    // The best are aligned and joined.
    pub(super) pair: BlockId,
    pub(super) align: BlockId,
    pub(super) row: BlockId,
    pub(super) cell: BlockId,
    pub(super) row_end: BlockId,
    pub(super) judge: BlockId,
    pub(super) join: BlockId,
    pub(super) member: BlockId,
    pub(super) joined: BlockId,
    pub(super) next_pair: BlockId,
}

/// Copies a candidate.
fn copy(assembler: &mut Assembler, from: u8) -> &mut Assembler {
    assembler
        .load(&[from], FIRST)
        .load(&[from], SECOND)
        .store(&[TO, FIRST])
        .store(&[TO, SECOND])
        .operation(&[from], &[from])
        .operation(&[TO], &[TO])
        .operation(&[LEFT, RIGHT, LIMIT], &[FLAGS])
}

impl Code {
    #[expect(clippy::too_many_lines, reason = "a listing of the program's code, block by block")]
    pub(super) fn new(assembler: &mut Assembler) -> Self {
        Self {
            fragment: assembler
                .load(&[FRAGMENT], LETTERS)
                .load_bytes(4, &[FRAGMENT], LIMIT)
                .operation(&[], &[PLACE])
                .operation(&[], &[WORD])
                .fall(),
            place: assembler
                .load_bytes(1, &[LETTERS, PLACE], LETTER)
                .operation(&[LETTER], &[LETTER])
                .operation(&[WORD], &[WORD])
                .operation(&[WORD, LETTER], &[WORD])
                .load(&[TABLE, WORD], ENTRY)
                .operation(&[ENTRY], &[FLAGS])
                .branch(),
            entry: assembler
                .load_bytes(4, &[ENTRY], OTHER)
                .operation(&[OTHER, NUMBER], &[FLAGS])
                .branch(),
            count: assembler
                .operation(&[OTHER], &[COUNT_AT])
                .load_bytes(4, &[COUNT_AT], COUNT)
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            touch: assembler
                .store_bytes(4, &[TOUCHED, OTHER])
                .operation(&[TOUCHED], &[TOUCHED])
                .fall(),
            vote: assembler
                .load_bytes(4, &[ENTRY], DIAGONAL)
                .operation(&[DIAGONAL, PLACE], &[DIAGONAL])
                .load_bytes(4, &[COUNT_AT], OLD)
                .operation(&[OLD, DIAGONAL], &[FLAGS])
                .operation(&[FLAGS, COUNT], &[COUNT])
                .operation(&[FLAGS, OLD, DIAGONAL], &[OLD])
                .store_bytes(4, &[COUNT_AT, COUNT])
                .store_bytes(4, &[COUNT_AT, OLD])
                .load(&[ENTRY], ENTRY)
                .operation(&[ENTRY], &[FLAGS])
                .branch(),
            next_place: assembler
                .operation(&[PLACE], &[PLACE])
                .operation(&[PLACE, LIMIT], &[FLAGS])
                .branch(),
            counted: assembler.operation(&[TOUCHED], &[FLAGS]).branch(),
            collect: assembler
                .load_bytes(4, &[TOUCHED], OTHER)
                .operation(&[OTHER], &[COUNT_AT])
                .load_bytes(4, &[COUNT_AT], COUNT)
                .store_bytes(4, &[COUNT_AT])
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            candidate: assembler
                .load_bytes(4, &[COUNT_AT], DIAGONAL)
                .store_bytes(4, &[CANDIDATES, COUNT])
                .store_bytes(4, &[CANDIDATES, NUMBER])
                .store_bytes(4, &[CANDIDATES, OTHER])
                .store_bytes(4, &[CANDIDATES, DIAGONAL])
                .operation(&[CANDIDATES], &[CANDIDATES])
                .fall(),
            next_touched: assembler
                .operation(&[TOUCHED], &[TOUCHED])
                .operation(&[TOUCHED], &[FLAGS])
                .branch(),
            next_fragment: assembler
                .operation(&[NUMBER], &[NUMBER])
                .operation(&[FRAGMENT], &[FRAGMENT])
                .operation(&[NUMBER], &[FLAGS])
                .branch(),
            run: assembler
                .operation(&[LEFT], &[RIGHT])
                .operation(&[RIGHT], &[LIMIT])
                .operation(&[RIGHT, LIMIT], &[FLAGS])
                .branch(),
            merge: assembler
                .load_bytes(4, &[LEFT], KEY)
                .load_bytes(4, &[RIGHT], OTHER_KEY)
                .operation(&[KEY, OTHER_KEY], &[FLAGS])
                .operation(&[FLAGS, LEFT, RIGHT], &[MEMBER])
                .then(|assembler| copy(assembler, MEMBER))
                .branch(),
            rest_test: assembler.operation(&[LEFT, RIGHT], &[FLAGS]).branch(),
            rest: copy(assembler, LEFT).branch(),
            run_end: assembler.operation(&[TO], &[FLAGS]).branch(),
            pass_end: assembler
                .operation(&[LIMIT], &[LIMIT])
                .operation(&[LIMIT], &[FLAGS])
                .branch(),
            pair: assembler
                .load_bytes(4, &[CANDIDATES], COUNT)
                .load_bytes(4, &[CANDIDATES], FIRST)
                .load_bytes(4, &[CANDIDATES], SECOND)
                .load_bytes(4, &[CANDIDATES], DIAGONAL)
                .load_bytes(4, &[FIRST], CONTIG)
                .load_bytes(4, &[SECOND], OTHER_CONTIG)
                .operation(&[CONTIG, OTHER_CONTIG], &[FLAGS])
                .branch(),
            align: assembler
                .load(&[FIRST], LETTERS)
                .load(&[SECOND], TABLE)
                .load_bytes(4, &[FIRST], LIMIT)
                .load_bytes(4, &[SECOND], OTHER)
                .operation(&[DIAGONAL, LIMIT], &[ROW])
                .operation(&[], &[BEST])
                .fall(),
            row: assembler
                .load_bytes(1, &[LETTERS, ROW], LETTER)
                .operation(&[ROW, DIAGONAL], &[COLUMN])
                .operation(&[], &[SCORE])
                .fall(),
            cell: assembler
                .load_bytes(1, &[TABLE, COLUMN], OTHER)
                .load_bytes(4, &[CELL, COLUMN], OLD)
                .load_bytes(4, &[CELL, COLUMN], ABOVE)
                .operation(&[LETTER, OTHER], &[FLAGS])
                .operation(&[FLAGS, OLD], &[OLD])
                .operation(&[ABOVE, SCORE], &[ABOVE])
                .operation(&[OLD, ABOVE], &[SCORE])
                .operation(&[SCORE], &[SCORE])
                .store_bytes(4, &[CELL, COLUMN, SCORE])
                .operation(&[BEST, SCORE], &[BEST])
                .operation(&[COLUMN], &[COLUMN])
                .operation(&[COLUMN], &[FLAGS])
                .branch(),
            row_end: assembler
                .operation(&[ROW], &[ROW])
                .operation(&[ROW, LIMIT], &[FLAGS])
                .branch(),
            judge: assembler.operation(&[BEST, COUNT], &[FLAGS]).branch(),
            join: assembler
                .load_bytes(4, &[FIRST], OFFSET)
                .load_bytes(4, &[SECOND], OLD)
                .load_bytes(4, &[CONTIG], COUNT)
                .load_bytes(4, &[OTHER_CONTIG], OTHER)
                .operation(&[COUNT, OTHER], &[FLAGS])
                .operation(&[FLAGS, CONTIG, OTHER_CONTIG], &[MEMBER])
                .operation(&[OFFSET, OLD, DIAGONAL], &[OFFSET])
                .fall(),
            member: assembler
                .load_bytes(4, &[MEMBER], OLD)
                .operation(&[OLD, OFFSET], &[OLD])
                .store_bytes(4, &[MEMBER, OLD])
                .store_bytes(4, &[MEMBER, CONTIG])
                .load_bytes(4, &[MEMBER], MEMBER)
                .operation(&[MEMBER], &[FLAGS])
                .branch(),
            joined: assembler
                .load_bytes(4, &[CONTIG], OLD)
                .store_bytes(4, &[MEMBER, OLD])
                .store_bytes(4, &[CONTIG, MEMBER])
                .store_bytes(4, &[CONTIG, COUNT])
                .fall(),
            next_pair: assembler
                .operation(&[CANDIDATES], &[CANDIDATES])
                .operation(&[CANDIDATES], &[FLAGS])
                .branch(),
        }
    }
}
