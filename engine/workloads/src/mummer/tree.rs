//! The suffix tree: Kurtz' linked lists, built as McCreight does it (Journal of the ACM 23, 1976).

use super::WORDS_A_LETTER;

/// Marks references to leaves, and the end of a list of children.
pub(super) const LEAF: u32 = 1 << 30;
pub(super) const NIL: u32 = 1 << 31;
/// Marks the first word of a small node.
const SMALL: u32 = 1 << 31;
/// Words of a small and of a large node; the next small node's suffix link is the node behind it.
const SMALL_WORDS: usize = 3;
const LARGE_WORDS: usize = 5;
/// Words of a node: child, brother, depth (of a small node: nodes to the next large one), head, link.
const BROTHER: usize = 1;
pub(super) const DEPTH: usize = 2;
pub(super) const DISTANCE: usize = 2;
pub(super) const HEAD: usize = 3;
pub(super) const LINK: usize = 4;
pub(super) const ROOT: usize = 0;
/// What ends the text: greater than every letter, and equal to nothing.
const SENTINEL: u8 = 4;

/// A suffix tree of a text of four letters, 0 to 3.
pub(super) struct Tree {
    pub(super) text: Vec<u8>,
    /// Brother of each leaf.
    pub(super) leaves: Vec<u32>,
    /// The branching nodes' words, in the order in which they were made.
    pub(super) table: Vec<u32>,
    /// Children of the root.
    pub(super) roots: [u32; 4],
    /// Where the nodes begin that are not known yet to be small or large, and the last of them.
    open: usize,
    last: Option<usize>,
}

/// A place that refers to a node.
#[derive(Clone, Copy)]
enum Slot {
    Root(u8),
    Child(usize),
    Brother(usize),
    Leaf(usize),
}

impl Tree {
    pub(super) fn new(text: Vec<u8>) -> Self {
        let mut table = Vec::with_capacity((text.len() as f64 * WORDS_A_LETTER) as usize);
        table.resize(LARGE_WORDS, 0);
        let mut tree = Self {
            leaves: vec![NIL; text.len() + 1],
            table,
            roots: [NIL; 4],
            open: usize::MAX,
            last: None,
            text,
        };
        let (mut node, mut parent) = (ROOT, ROOT);
        for suffix in 0..tree.text.len() {
            (node, parent) = tree.insert(suffix, node, parent);
        }
        tree.complete(ROOT);
        tree
    }

    /// The letter at a place of the text.
    pub(super) fn letter(&self, place: usize) -> u8 {
        self.text.get(place).copied().unwrap_or(SENTINEL)
    }

    pub(super) fn is_small(&self, node: usize) -> bool {
        self.table[node] & SMALL != 0
    }

    pub(super) fn child(&self, node: usize) -> u32 {
        self.table[node] & !SMALL
    }

    pub(super) fn brother(&self, node: usize) -> u32 {
        self.table[node + BROTHER]
    }

    /// The large node that has a small one's data, and how many nodes it is away.
    pub(super) fn end(&self, node: usize) -> (usize, u32) {
        if !self.is_small(node) {
            return (node, 0);
        }
        let distance = match self.last {
            Some(last) if node >= self.open => (last - node) / SMALL_WORDS,
            _ => self.table[node + DISTANCE] as usize,
        };
        (node + SMALL_WORDS * distance, distance as u32)
    }

    /// Letters from the root to a node.
    pub(super) fn depth(&self, node: usize) -> usize {
        let (end, distance) = self.end(node);
        (self.table[end + DEPTH] + distance) as usize
    }

    /// The suffix that a node was made for, which begins with the letters from the root to it.
    pub(super) fn head(&self, node: usize) -> usize {
        let (end, distance) = self.end(node);
        (self.table[end + HEAD] - distance) as usize
    }

    /// The node with the same letters but the first.
    pub(super) fn link(&self, node: usize) -> usize {
        if self.is_small(node) { node + SMALL_WORDS } else { self.table[node + LINK] as usize }
    }

    fn get(&self, slot: Slot) -> u32 {
        match slot {
            Slot::Root(letter) => self.roots[usize::from(letter)],
            Slot::Child(node) => self.child(node),
            Slot::Brother(node) => self.brother(node),
            Slot::Leaf(leaf) => self.leaves[leaf],
        }
    }

    fn set(&mut self, slot: Slot, reference: u32) {
        match slot {
            Slot::Root(letter) => self.roots[usize::from(letter)] = reference,
            Slot::Child(node) => self.table[node] = self.table[node] & SMALL | reference,
            Slot::Brother(node) => self.table[node + BROTHER] = reference,
            Slot::Leaf(leaf) => self.leaves[leaf] = reference,
        }
    }

    /// Where the list of which a node is a member goes on.
    fn after(reference: u32) -> Slot {
        if reference & LEAF != 0 {
            Slot::Leaf((reference & !LEAF) as usize)
        } else {
            Slot::Brother(reference as usize)
        }
    }

    /// Where the letters of the edge to a node that is reached at `depth` begin in the text.
    fn edge(&self, reference: u32, depth: usize) -> usize {
        depth
            + if reference & LEAF != 0 {
                (reference & !LEAF) as usize
            } else {
                self.head(reference as usize)
            }
    }

    /// Where a node refers to the child whose edge begins with a letter, or where such a one belongs.
    fn find(&self, node: usize, depth: usize, letter: u8) -> (Slot, bool) {
        if node == ROOT {
            return (Slot::Root(letter), self.roots[usize::from(letter)] != NIL);
        }
        let mut slot = Slot::Child(node);
        loop {
            let child = self.get(slot);
            let begins =
                if child == NIL { None } else { Some(self.letter(self.edge(child, depth))) };
            match begins {
                Some(begins) if begins < letter => slot = Self::after(child),
                begins => return (slot, begins == Some(letter) && letter != SENTINEL),
            }
        }
    }

    /// Inserts a suffix: first down to where the last one's head without its first letter leads, then as
    /// far as letters agree. Takes and gives the head and, if it is new, its parent.
    fn insert(&mut self, suffix: usize, head: usize, parent: usize) -> (usize, usize) {
        let from = if self.last.is_some() { parent } else { head };
        let mut node = self.link(from);
        let mut depth = self.depth(node);
        let known = if self.last.is_some() { self.depth(head) - 1 } else { depth };
        while depth < known {
            let (slot, _) = self.find(node, depth, self.letter(suffix + depth));
            let child = self.get(slot);
            let below = if child & LEAF != 0 { usize::MAX } else { self.depth(child as usize) };
            if below > known {
                return (self.split(slot, suffix, depth, known), node);
            }
            (node, depth) = (child as usize, below);
        }
        self.complete(node);
        loop {
            let letter = self.letter(suffix + depth);
            let (slot, found) = self.find(node, depth, letter);
            if !found {
                self.leaves[suffix] = self.get(slot);
                self.set(slot, LEAF | suffix as u32);
                return (node, ROOT);
            }
            let child = self.get(slot);
            let below = if child & LEAF != 0 { usize::MAX } else { self.depth(child as usize) };
            let edge = self.edge(child, depth) - depth;
            let mut equal = depth + 1;
            while equal < below && self.letter(edge + equal) == self.letter(suffix + equal) {
                equal += 1;
            }
            if equal < below {
                return (self.split(slot, suffix, depth, equal), node);
            }
            (node, depth) = (child as usize, below);
        }
    }

    /// Makes a node at depth `at` of the edge that begins at `depth`, with a leaf for `suffix`.
    fn split(&mut self, slot: Slot, suffix: usize, depth: usize, at: usize) -> usize {
        let child = self.get(slot);
        let (leaf, brother) = (LEAF | suffix as u32, self.get(Self::after(child)));
        let old = self.letter(self.edge(child, depth) - depth + at);
        let (first, second) =
            if old < self.letter(suffix + at) { (child, leaf) } else { (leaf, child) };
        let new = if let Some(last) = self.last {
            // So the last one's suffix link is this one.
            self.table.truncate(last + SMALL_WORDS);
            self.table[last] |= SMALL;
            last + SMALL_WORDS
        } else {
            self.open = self.table.len();
            self.table.len()
        };
        self.table.extend([first, brother, at as u32, suffix as u32, 0]);
        debug_assert_eq!(self.table.len(), new + LARGE_WORDS);
        self.last = Some(new);
        self.set(slot, new as u32);
        self.set(Self::after(first), second);
        self.set(Self::after(second), NIL);
        new
    }

    /// The last node made, if it has no suffix link, gets one and so is large.
    fn complete(&mut self, link: usize) {
        let Some(last) = self.last.take() else { return };
        self.table[last + LINK] = link as u32;
        for node in (self.open..last).step_by(SMALL_WORDS) {
            self.table[node + DISTANCE] = ((last - node) / SMALL_WORDS) as u32;
        }
        self.open = usize::MAX;
    }
}
