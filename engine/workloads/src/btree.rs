//! A B+-tree over keys that are ranks: 0, 1, 2, … in the order of the index. It is bulk-loaded, so the
//! contents of a node follow from its place and are not stored.
//!
//! ```text
//! node  512 bytes: header 16 (count 8), 31 keys, 31 pointers; 22 of them are used, as after loading
//!       in random order. A key is the least one below its pointer; pointers of leaves lead to rows.
//! ```

use flatwalk_trace::BlockId;

use crate::program::{Assembler, FLAGS, registers};
use crate::simulated::{Column, Emitter, Layout};

const NODE_BYTES: u64 = 512;
/// Entries of a full node, and those in use.
const FANOUT: usize = 31;
const USED: usize = 22;
/// Where the keys and the pointers begin, in words.
const KEYS: usize = 2;
const POINTERS: usize = KEYS + FANOUT;

pub(crate) struct Tree {
    /// The number of entries on each level, from the leaves up, and the words of its nodes.
    levels: Vec<(usize, Column)>,
}

impl Tree {
    pub(crate) fn new(layout: &mut Layout, rows: u64) -> Self {
        let mut levels = Vec::new();
        let mut entries = rows;
        loop {
            let nodes = entries.div_ceil(USED as u64);
            levels.push((entries as usize, layout.objects(nodes, NODE_BYTES).split(8)));
            if nodes == 1 {
                return Self { levels };
            }
            entries = nodes;
        }
    }

    /// Goes from the root to the row of a rank.
    pub(crate) fn descend(&self, out: &mut impl Emitter, code: &Descent, rank: usize) {
        for level in (0..self.levels.len()).rev() {
            let (entries, words) = self.levels[level];
            let entry = rank / USED.pow(level as u32);
            let (node, place) = (entry / USED, entry % USED);
            let word = node * (NODE_BYTES / 8) as usize;
            out.enter(code.node);
            words.load(out, word);
            let (mut lower, mut length) = (0, USED.min(entries - node * USED));
            while length > 1 {
                out.enter(code.compare);
                let half = length / 2;
                words.load(out, word + KEYS + lower + half);
                if lower + half > place {
                    length = half;
                } else {
                    lower += half;
                    length -= half;
                }
            }
            out.enter(code.child);
            words.load(out, word + POINTERS + lower);
        }
    }

    /// Loads the pointer to a row from its leaf.
    pub(crate) fn leaf(&self, out: &mut impl Emitter, rank: usize) {
        let word = rank / USED * (NODE_BYTES / 8) as usize + POINTERS + rank % USED;
        self.levels[0].1.load(out, word);
    }
}

registers!(128; HEIGHT, LOWER, LENGTH, MIDDLE, FOUND);
/// The rank looked for.
pub(crate) const KEY: u8 = 120;
/// The node, and at last the row found.
pub(crate) const NODE: u8 = 121;

/// The code of a descent, which is inlined wherever there is one.
pub(crate) struct Descent {
    node: BlockId,
    compare: BlockId,
    child: BlockId,
}

impl Descent {
    pub(crate) fn new(assembler: &mut Assembler) -> Self {
        Self {
            node: assembler
                .load(&[NODE], LENGTH)
                .operation(&[], &[LOWER])
                .operation(&[LENGTH], &[FLAGS])
                .branch(),
            compare: assembler
                .operation(&[LENGTH], &[MIDDLE])
                .operation(&[LOWER, MIDDLE], &[MIDDLE])
                .load(&[NODE, MIDDLE], FOUND)
                .operation(&[FOUND, KEY], &[FLAGS])
                .operation(&[FLAGS, MIDDLE, LOWER], &[LOWER])
                .operation(&[FLAGS, LENGTH], &[LENGTH])
                .operation(&[LENGTH], &[FLAGS])
                .branch(),
            child: assembler
                .load(&[NODE, LOWER], NODE)
                .operation(&[HEIGHT], &[HEIGHT])
                .operation(&[HEIGHT], &[FLAGS])
                .branch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::Arguments;
    use crate::program::SMALL_DATA;

    /// Notes addresses.
    struct Log(Vec<u64>);

    impl Emitter for Log {
        fn enter(&mut self, _: BlockId) {}

        fn load(&mut self, address: u64, _: u16) {
            self.0.push(address);
        }

        fn store(&mut self, _: u64, _: u16) {}
    }

    /// Writes the tree into memory; returns it and the root's address.
    fn memory(tree: &Tree) -> (HashMap<u64, u64>, u64) {
        let mut memory = HashMap::new();
        // Of each entry of a level: its least key, and where it leads.
        let mut entries: Vec<(u64, u64)> =
            (0..tree.levels[0].0 as u64).map(|row| (row, 1_000_000 + row)).collect();
        for &(_, words) in &tree.levels {
            let mut nodes = Vec::new();
            for (number, node) in entries.chunks(22).enumerate() {
                let address = words.address(number * 64);
                memory.insert(address, node.len() as u64);
                for (place, &(key, pointer)) in (0..).zip(node) {
                    memory.insert(address + 16 + 8 * place, key);
                    memory.insert(address + 16 + 8 * 31 + 8 * place, pointer);
                }
                nodes.push((node[0].0, address));
            }
            entries = nodes;
        }
        assert_eq!(entries.len(), 1);
        (memory, entries[0].1)
    }

    #[test]
    fn a_descent_reads_what_a_search_of_the_nodes_needs() {
        for rows in [1, 2, 21, 22, 23, 484, 485, 11_000] {
            let tree = Tree::new(&mut Layout::new(&Arguments::new(1 << 30, 1)), rows);
            let (memory, root) = memory(&tree);
            let code = Descent::new(&mut Assembler::new());
            for rank in (0..rows).step_by(1 + rows as usize / 100).chain([rows - 1]) {
                let mut log = Log(Vec::new());
                tree.descend(&mut log, &code, rank as usize);
                let mut log = log.0.into_iter();
                let mut node = root;
                while node >= SMALL_DATA {
                    // The search itself, on the loaded values.
                    assert_eq!(log.next(), Some(node));
                    let (mut lower, mut upper) = (0, memory[&node]);
                    while upper - lower > 1 {
                        let middle = lower + (upper - lower) / 2;
                        let address = log.next().unwrap();
                        assert_eq!(address, node + 16 + 8 * middle);
                        if memory[&address] > rank { upper = middle } else { lower = middle }
                    }
                    let pointer = log.next().unwrap();
                    assert_eq!(pointer, node + 16 + 8 * (31 + lower));
                    node = memory[&pointer];
                }
                assert_eq!((node, log.next()), (1_000_000 + rank, None));
                let mut last = Log(Vec::new());
                tree.leaf(&mut last, rank as usize);
                assert_eq!(memory[&last.0[0]], 1_000_000 + rank);
            }
        }
    }
}
