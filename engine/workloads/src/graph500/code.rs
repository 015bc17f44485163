//! The code of the search and of the validation. For a neighbour (7 instructions) and for an edge of the
//! list (37) there are as many as GCC 12.2 makes of the reference with `-O2`.

use flatwalk_trace::BlockId;

use crate::Traced;
use crate::program::{Assembler, FLAGS, registers};

registers!(32; INDEX, VERTICES, PARENTS, QUEUE, OFFSETS, ADJACENCY, HEAD, TAIL, VERTEX, EDGE, END,
    NEIGHBOUR, PARENT, SEARCH, ROOT, EDGES, LEVELS, SEEN, LEVEL, ABOVE, HOPS, LAST, FROM, TO,
    FROM_PARENT, TO_PARENT, FROM_LEVEL, COUNT, VALUE);

/// The blocks, in the order in which they lie in memory.
#[derive(Clone, Copy)]
pub(super) struct Code {
    /// Fills [`FILLED`](super::FILLED) vertices' parents.
    pub(super) clear: BlockId,
    pub(super) root: BlockId,
    pub(super) vertex: BlockId,
    pub(super) edge: BlockId,
    pub(super) discover: BlockId,
    pub(super) next_edge: BlockId,
    pub(super) next_vertex: BlockId,
    pub(super) next_search: BlockId,
    /// None if searches are traced alone.
    pub(super) validation: Option<Validation>,
}

#[derive(Clone, Copy)]
pub(super) struct Validation {
    pub(super) begin: BlockId,
    pub(super) set_level: BlockId,
    pub(super) level: BlockId,
    pub(super) reached: BlockId,
    pub(super) unreached: BlockId,
    pub(super) climb: BlockId,
    pub(super) above: BlockId,
    pub(super) top: BlockId,
    pub(super) assign: BlockId,
    pub(super) assigned: BlockId,
    pub(super) recheck: BlockId,
    pub(super) check: BlockId,
    pub(super) checked: BlockId,
    pub(super) next_level: BlockId,
    /// Fills what is seen of [`FILLED`](super::FILLED) vertices.
    pub(super) clear_seen: BlockId,
    pub(super) edge: BlockId,
    pub(super) in_tree: BlockId,
    pub(super) from_parent: BlockId,
    pub(super) seen_from: BlockId,
    pub(super) to_parent: BlockId,
    pub(super) seen_to: BlockId,
    pub(super) levels: BlockId,
    pub(super) next_edge: BlockId,
    pub(super) parent: BlockId,
    pub(super) seen: BlockId,
    pub(super) next_parent: BlockId,
}

impl Code {
    pub(super) fn new(assembler: &mut Assembler, traced: Traced) -> Self {
        Self {
            clear: fill(assembler),
            root: assembler
                .store(&[PARENTS, VERTEX])
                .store(&[QUEUE, VERTEX])
                .operation(&[], &[HEAD])
                .operation(&[], &[TAIL])
                .fall(),
            vertex: assembler
                .load(&[QUEUE, HEAD], VERTEX)
                .load(&[OFFSETS, VERTEX], EDGE)
                .load(&[OFFSETS, VERTEX], END)
                .operation(&[EDGE, END], &[FLAGS])
                .branch(),
            edge: assembler
                .load(&[ADJACENCY, EDGE], NEIGHBOUR)
                .load(&[PARENTS, NEIGHBOUR], PARENT)
                .operation(&[PARENT], &[FLAGS])
                .branch(),
            discover: assembler
                .store(&[PARENTS, NEIGHBOUR, VERTEX])
                .store(&[QUEUE, TAIL, NEIGHBOUR])
                .operation(&[TAIL], &[TAIL])
                .fall(),
            next_edge: assembler
                .operation(&[EDGE], &[EDGE])
                .operation(&[EDGE, END], &[FLAGS])
                .branch(),
            next_vertex: assembler
                .operation(&[HEAD], &[HEAD])
                .operation(&[HEAD, TAIL], &[FLAGS])
                .branch(),
            validation: (traced == Traced::Whole).then(|| Validation::new(assembler)),
            next_search: assembler
                .operation(&[], &[INDEX])
                .operation(&[SEARCH], &[SEARCH])
                .operation(&[SEARCH], &[VERTEX, FLAGS])
                .branch(),
        }
    }
}

impl Validation {
    #[expect(clippy::too_many_lines, reason = "a listing of the program's code, block by block")]
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            begin: assembler
                .load(&[PARENTS, ROOT], PARENT)
                .then(|code| check(code, &[PARENT, ROOT]))
                .operation(&[], &[INDEX])
                .fall(),
            set_level: assembler
                .operation(&[INDEX, ROOT], &[FLAGS])
                .operation(&[FLAGS], &[VALUE])
                .operation(&[VALUE], &[VALUE])
                .store(&[LEVELS, INDEX, VALUE])
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, VERTICES], &[FLAGS])
                .branch(),
            level: assembler.load(&[LEVELS, INDEX], LEVEL).operation(&[LEVEL], &[FLAGS]).branch(),
            reached: assembler
                .load(&[PARENTS, INDEX], PARENT)
                .operation(&[PARENT], &[FLAGS])
                .branch(),
            unreached: assembler
                .then(|code| check(code, &[INDEX, ROOT]))
                .operation(&[INDEX], &[ABOVE])
                .operation(&[], &[HOPS])
                .fall(),
            climb: assembler
                .then(|code| check(code, &[ABOVE]))
                .load(&[LEVELS, ABOVE], LEVEL)
                .operation(&[LEVEL], &[FLAGS])
                .branch(),
            above: assembler
                .load(&[PARENTS, ABOVE], PARENT)
                .then(|code| check(code, &[PARENT, ABOVE]))
                .operation(&[PARENT], &[ABOVE])
                .operation(&[HOPS], &[HOPS])
                .operation(&[HOPS, VERTICES], &[FLAGS])
                .branch(),
            top: assembler
                .then(|code| check(code, &[ABOVE]))
                .operation(&[HOPS, LEVEL], &[HOPS])
                .operation(&[INDEX], &[ABOVE])
                .fall(),
            assign: assembler.load(&[LEVELS, ABOVE], LEVEL).operation(&[LEVEL], &[FLAGS]).branch(),
            assigned: assembler
                .then(|code| check(code, &[HOPS]))
                .store(&[LEVELS, ABOVE, HOPS])
                .operation(&[HOPS], &[HOPS])
                .load(&[PARENTS, ABOVE], ABOVE)
                .jump(),
            recheck: assembler
                .then(|code| check(code, &[HOPS, LEVEL]))
                .load(&[LEVELS, INDEX], LAST)
                .operation(&[LAST], &[LAST])
                .operation(&[INDEX], &[ABOVE])
                .fall(),
            check: assembler.load(&[LEVELS, ABOVE], LEVEL).operation(&[LEVEL], &[FLAGS]).branch(),
            checked: assembler
                .operation(&[LEVEL], &[VALUE])
                .then(|code| check(code, &[VALUE, LAST]))
                .operation(&[LEVEL], &[LAST])
                .load(&[PARENTS, ABOVE], ABOVE)
                .jump(),
            next_level: assembler
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, VERTICES], &[FLAGS])
                .branch(),
            clear_seen: fill(assembler),
            edge: assembler
                .load(&[EDGES, EDGE], FROM)
                .load(&[EDGES, EDGE], TO)
                .operation(&[FROM], &[VALUE])
                .then(|code| check(code, &[VALUE, TO]))
                .then(|code| check(code, &[FROM, VERTICES]))
                .then(|code| check(code, &[TO, VERTICES]))
                .then(|code| check(code, &[LAST]))
                .then(|code| check(code, &[FROM, VERTICES]))
                .load(&[PARENTS, FROM], FROM_PARENT)
                .operation(&[PARENTS, TO], &[VALUE])
                .load(&[VALUE], TO_PARENT)
                .then(|code| check(code, &[FROM_PARENT]))
                .operation(&[TO_PARENT], &[FLAGS])
                .branch(),
            in_tree: assembler
                .operation(&[COUNT], &[COUNT])
                .operation(&[FROM, TO], &[FLAGS])
                .branch(),
            from_parent: assembler.operation(&[FROM_PARENT, TO], &[FLAGS]).branch(),
            seen_from: assembler.store(&[SEEN, FROM]).fall(),
            to_parent: assembler.operation(&[TO_PARENT, FROM], &[FLAGS]).branch(),
            seen_to: assembler.store(&[SEEN, TO]).fall(),
            levels: assembler
                .load(&[LEVELS, FROM], FROM_LEVEL)
                .load(&[LEVELS, TO], LEVEL)
                .operation(&[], &[VALUE])
                .operation(&[LEVEL, FROM_LEVEL], &[LEVEL])
                .operation(&[LEVEL], &[FLAGS])
                .operation(&[FLAGS, VALUE, LAST], &[LAST])
                .jump(),
            next_edge: assembler
                .operation(&[EDGE], &[EDGE])
                .operation(&[EDGE, END], &[FLAGS])
                .branch(),
            parent: assembler
                .then(|code| check(code, &[INDEX, ROOT]))
                .load(&[PARENTS, INDEX], PARENT)
                .operation(&[PARENT], &[FLAGS])
                .branch(),
            seen: assembler.load(&[SEEN, INDEX], VALUE).then(|code| check(code, &[VALUE])).fall(),
            next_parent: assembler
                .then(|code| check(code, &[PARENT, INDEX]))
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, VERTICES], &[FLAGS])
                .branch(),
        }
    }
}

/// An iteration of `memset`.
fn fill(assembler: &mut Assembler) -> BlockId {
    assembler
        .store_bytes(16, &[VALUE, INDEX])
        .store_bytes(16, &[VALUE, INDEX])
        .store_bytes(16, &[VALUE, INDEX])
        .store_bytes(16, &[VALUE, INDEX])
        .operation(&[INDEX], &[INDEX])
        .operation(&[INDEX, END], &[FLAGS])
        .branch()
}

/// A comparison, and a jump that a valid tree takes at most once: it ends no block.
fn check<'a>(assembler: &'a mut Assembler, reads: &[u8]) -> &'a mut Assembler {
    assembler.operation(reads, &[FLAGS]).operation(&[FLAGS], &[])
}
