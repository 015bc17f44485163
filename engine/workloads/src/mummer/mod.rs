//! `mummer`: all maximal matches of a query genome in a reference genome, through its suffix tree.
//!
//! Source: Kurtz et al., "Versatile and open software for comparing large genomes", Genome Biology 5, 2004
//! (MUMmer 3, `mummer -maxmatch -l 20`), with the suffix tree of Kurtz, "Reducing the space requirement of
//! suffix trees", Software: Practice and Experience 29, 1999, as linked lists. For each suffix of the
//! query, what of it occurs (up to 20 letters) is found from the one before by a suffix link, a rescan and
//! a comparison; where 20 letters do, every leaf below is a match, if it cannot be prolonged to the left.
//!
//! ```text
//! text    1 byte a letter
//! leaf    4 bytes: the next child of its parent
//! node    12 bytes if its suffix link is the node after it: first child, next child of its parent, nodes to
//!         the next other one; 20 bytes else: first child, next child, depth, head, suffix link
//! query   1 byte a letter, half as many as the text has
//! ```
//!
//! The genomes are drawn (`genome.rs`): the reference has repeats, the query is pieces of it with
//! one letter in fifty drawn anew. Traced is the matching; the tree is there. Departs from it: a
//! match is written by its digits alone, and what MUMmer notes of its way down stays in registers.
//!
//! This process's memory holds the tree as it is.

mod code;
#[cfg(test)]
mod tests;
mod tree;

use flatwalk_trace::Source;

use crate::genome;
use crate::rng::Random;
use crate::simulated::{Algorithm, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};
use code::{Code, Descent, Info, Scan};
use tree::{DEPTH, DISTANCE, HEAD, LEAF, LINK, NIL, ROOT, Tree};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "mummer",
    "maximal matches of a query genome, as MUMmer's: follows suffix links and lists of children in a \
     suffix tree",
    // References to nodes are numbers of words, of 30 bits: from 5.9 GiB on there may be more words.
    5 << 30,
    &[
        Parameter {
            name: "size_bytes",
            description: "text, tree and query, in bytes: 64 KiB to 5 GiB, as references to nodes have 30 \
                          bits (takes as much memory)",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
);

/// Words of branching nodes for each letter, with room for chance.
const WORDS_A_LETTER: f64 = 2.9;
const LEAST_MATCH: usize = 20;
const STACK: u64 = 4096;
const OUTPUT: u64 = 4096;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Matching::new(&shape, code, seed)
    })
}

struct Shape {
    letters: usize,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    text: Column,
    leaf: Column,
    word: Column,
    query: Column,
    root: Column,
    stack: Column,
    output: Column,
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let bytes = (arguments.size_bytes - 8 * STACK / 8 - OUTPUT - 256) as f64;
        let letters = (bytes / (1.0 + 4.0 + 4.0 * WORDS_A_LETTER + 0.5)) as u64;
        let mut layout = Layout::new(arguments);
        let columns = Columns {
            text: layout.array(letters + 1, 1),
            leaf: layout.array(letters + 1, 4),
            word: layout.array((letters as f64 * WORDS_A_LETTER) as u64, 4),
            query: layout.array(letters / 2 + 1, 1),
            root: layout.objects(4, 4).field(0, 4),
            stack: layout.objects(STACK / 8, 8).field(0, 8),
            output: layout.objects(OUTPUT, 1).field(0, 1),
        };
        Self { letters: letters as usize, layout, columns }
    }
}

/// A place in the tree: on the edge from `node` (at `depth`) to `target`, or at `node` itself if it is as
/// deep. The edge's letters begin at `edge`, and it ends at depth `below`.
#[derive(Clone, Copy)]
struct Place {
    node: usize,
    depth: usize,
    target: u32,
    edge: usize,
    below: usize,
    length: usize,
}

struct Matching {
    code: Code,
    columns: Columns,
    tree: Tree,
    query: Vec<u8>,
    /// The suffix of the query, and where its letters are in the tree.
    suffix: usize,
    place: Place,
    /// Branching nodes below a match that are still being visited: the next child of their parent,
    /// letters in common with the query, and whether the whole way to it is.
    printed: usize,
    /// The answer: matches, and a sum over them.
    matches: u64,
    sum: u64,
}

/// Letters that a descent follows, and where they end.
#[derive(Clone, Copy)]
struct Letters {
    of_query: bool,
    from: usize,
    end: usize,
}

impl Matching {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let text = genome::reference(&mut Random::new(seed, 0), shape.letters);
        let query = genome::query(&mut Random::new(seed, 1), shape.letters / 2, &text);
        let tree = Tree::new(text);
        let room = (shape.letters as f64 * WORDS_A_LETTER) as usize;
        assert!(tree.table.len() <= room, "{} words in room for {room}", tree.table.len());
        let place = Place { node: ROOT, depth: 0, target: NIL, edge: 0, below: 0, length: 0 };
        let columns = shape.columns;
        Self { code, columns, tree, query, suffix: 0, place, printed: 0, matches: 0, sum: 0 }
    }

    fn info(&self, out: &mut impl Emitter, info: &Info, node: usize, words: &[usize]) {
        out.enter(info.test);
        self.columns.word.load(out, node);
        let (end, _) = self.tree.end(node);
        if self.tree.is_small(node) {
            out.enter(info.small);
            self.columns.word.load(out, node + DISTANCE);
        } else {
            out.enter(info.large);
        }
        for word in words {
            self.columns.word.load(out, end + word);
        }
    }

    fn letter(&self, letters: Letters, at: usize) -> u8 {
        if letters.of_query { self.query[at] } else { self.tree.text[at] }
    }

    /// Goes down from a node at `depth`; with `compare`, as far as letters agree, else as if they did.
    fn descend(
        &self,
        out: &mut impl Emitter,
        code: &Descent,
        (mut node, mut depth): (usize, usize),
        letters: Letters,
        compare: bool,
    ) -> Place {
        let tree = &self.tree;
        let mut at = letters.from;
        loop {
            let stay = Place { node, depth, target: NIL, edge: 0, below: depth, length: depth };
            out.enter(code.top);
            if at >= letters.end {
                return stay;
            }
            out.enter(code.first);
            let letter = self.letter(letters, at);
            let column = if letters.of_query { self.columns.query } else { self.columns.text };
            column.load(out, at);
            let mut child = if node == ROOT {
                out.enter(code.roots);
                self.columns.root.load(out, usize::from(letter));
                tree.roots[usize::from(letter)]
            } else {
                out.enter(code.children);
                self.columns.word.load(out, node);
                tree.child(node)
            };
            let edge = loop {
                out.enter(code.nil);
                if child & NIL != 0 {
                    return stay;
                }
                out.enter(code.kind);
                let is_leaf = child & LEAF != 0;
                let index = (child & !LEAF) as usize;
                let (first, past, brother) = if is_leaf {
                    (code.leaf, code.leaf_past, code.leaf_brother)
                } else {
                    self.info(out, &code.head, index, &[HEAD]);
                    (code.branch, code.branch_past, code.brother)
                };
                let edge = depth + if is_leaf { index } else { tree.head(index) };
                out.enter(first);
                self.columns.text.load(out, edge);
                let begins = tree.letter(edge);
                if begins == letter {
                    break edge;
                }
                out.enter(past);
                if begins > letter {
                    return stay;
                }
                out.enter(brother);
                child = if is_leaf {
                    self.columns.leaf.load(out, index);
                    tree.leaves[index]
                } else {
                    self.columns.word.load(out, index + 1);
                    tree.brother(index)
                };
            };
            let is_leaf = child & LEAF != 0;
            let below = if is_leaf {
                depth + tree.text.len() - edge
            } else {
                self.info(out, &code.depth, child as usize, &[DEPTH]);
                tree.depth(child as usize)
            };
            let most = (below - depth).min(letters.end - at);
            let loop_block = if is_leaf { code.leaf_letters } else { code.branch_letters };
            let equal =
                if compare { self.compare(out, loop_block, edge, at, 1, most) } else { most };
            if !compare {
                out.enter(loop_block);
                self.columns.text.load(out, edge);
                self.columns.text.load(out, at);
            }
            if is_leaf {
                out.enter(code.leaf_exit);
            } else {
                out.enter(code.edge_end);
                if equal == below - depth {
                    (node, depth, at) = (child as usize, below, at + equal);
                    continue;
                }
                out.enter(code.edge_exit);
            }
            return Place { node, depth, target: child, edge, below, length: depth + equal };
        }
    }

    /// How many letters from `from` on agree, at most `most`; compared from number `known` on.
    fn compare(
        &self,
        out: &mut impl Emitter,
        block: flatwalk_trace::BlockId,
        edge: usize,
        at: usize,
        known: usize,
        most: usize,
    ) -> usize {
        let mut equal = known;
        loop {
            out.enter(block);
            self.columns.text.load(out, edge + equal);
            self.columns.query.load(out, at + equal);
            if equal >= most || self.tree.text[edge + equal] != self.query[at + equal] {
                return equal;
            }
            equal += 1;
            if equal >= most {
                return equal;
            }
        }
    }

    /// Goes on from `place` with the query's letters up to `end`.
    fn scan(&self, out: &mut impl Emitter, code: &Scan, mut place: Place, end: usize) -> Place {
        let (mut node, mut depth) = (place.node, place.depth);
        out.enter(code.resume);
        if place.length > place.depth {
            let at = self.suffix + place.length;
            let edge = place.edge + (place.length - place.depth);
            let most = (place.below - place.length).min(end - at);
            place.length += self.compare(out, code.letters, edge, at, 0, most);
            out.enter(code.end);
            if place.length < place.below || place.target & LEAF != 0 {
                out.enter(code.exit);
                return place;
            }
            (node, depth) = (place.target as usize, place.below);
        }
        self.begin(out, code, (node, depth), end)
    }

    fn begin(
        &self,
        out: &mut impl Emitter,
        code: &Scan,
        (node, depth): (usize, usize),
        end: usize,
    ) -> Place {
        out.enter(code.begin);
        if node != ROOT {
            self.info(out, &code.info, node, &[DEPTH, HEAD]);
        }
        let letters = Letters { of_query: true, from: self.suffix + depth, end };
        self.descend(out, &code.descent, (node, depth), letters, true)
    }

    /// From the place of the suffix before to the same without the first letter.
    fn link(&self, out: &mut impl Emitter) -> Place {
        let Place { node, depth, edge, length, .. } = self.place;
        out.enter(self.code.link);
        let (mut linked, mut skipped) = (ROOT, usize::from(node == ROOT));
        if node != ROOT {
            out.enter(self.code.link_test);
            self.columns.word.load(out, node);
            if self.tree.is_small(node) {
                out.enter(self.code.link_small);
            } else {
                out.enter(self.code.link_large);
                self.columns.word.load(out, node + LINK);
            }
            (linked, skipped) = (self.tree.link(node), 0);
        }
        out.enter(self.code.exact);
        let linked_depth = if node == ROOT { 0 } else { depth - 1 };
        if length == depth {
            let (depth, edge) = (linked_depth, 0);
            return Place { node: linked, depth, target: NIL, edge, below: depth, length: depth };
        }
        out.enter(self.code.rescan);
        if linked != ROOT {
            self.info(out, &self.code.rescan_info, linked, &[DEPTH, HEAD]);
        }
        let letters =
            Letters { of_query: false, from: edge + skipped, end: edge + (length - depth) };
        self.descend(out, &self.code.rescan_descent, (linked, linked_depth), letters, false)
    }

    /// Reports every match below the place, whose first letters are the query's suffix's.
    fn enumerate(&mut self, out: &mut impl Emitter) {
        let longest = self.scan(out, &self.code.extend, self.place, self.query.len());
        out.enter(self.code.below);
        let whole = self.place.length == self.place.depth;
        let top = if whole { self.place.node as u32 } else { self.place.target };
        // Of each open node: where its parent's list goes on, and what that has in common.
        let mut stack: Vec<(u32, usize)> = Vec::new();
        let (mut node, mut common) = (top, self.place.length);
        loop {
            out.enter(self.code.visit);
            let mut next = if node & LEAF == 0 {
                let index = node as usize;
                out.enter(self.code.push);
                self.columns.word.load(out, index);
                self.columns.word.load(out, index + 1);
                self.columns.stack.store(out, stack.len() % (STACK / 8) as usize);
                stack.push((if node == top { NIL } else { self.tree.brother(index) }, common));
                common = self.common(node, common, &longest);
                self.tree.child(index)
            } else {
                let common = self.common(node, common, &longest);
                self.report(out, (node & !LEAF) as usize, common);
                out.enter(self.code.next_leaf);
                self.columns.leaf.load(out, (node & !LEAF) as usize);
                let brother = self.tree.leaves[(node & !LEAF) as usize];
                out.enter(self.code.listed);
                if node == top { NIL } else { brother }
            };
            while next & NIL != 0 {
                out.enter(self.code.pop);
                let Some((brother, of_list)) = stack.pop() else { return };
                out.enter(self.code.popped);
                self.columns.stack.load(out, stack.len() % (STACK / 8) as usize);
                out.enter(self.code.listed);
                (next, common) = (brother, of_list);
            }
            node = next;
        }
    }

    /// Letters that a child has in common with the query, of whose parent `above` are.
    fn common(&self, node: u32, above: usize, longest: &Place) -> usize {
        let is_leaf = node & LEAF != 0;
        let head = if is_leaf { (node & !LEAF) as usize } else { self.tree.head(node as usize) };
        // Its way and that of the longest match are one if the letters up to it agree.
        let depth = if is_leaf { usize::MAX } else { self.tree.depth(node as usize) };
        let most = longest.length.min(depth);
        if above == most {
            return most;
        }
        let text = |at: usize| self.tree.text.get(head + at).copied();
        let agrees = text(above) == self.query.get(self.suffix + above).copied();
        if agrees { most } else { above }
    }

    /// A match, if the letters before differ.
    fn report(&mut self, out: &mut impl Emitter, leaf: usize, length: usize) {
        out.enter(self.code.report);
        self.columns.text.load(out, leaf.saturating_sub(1));
        self.columns.query.load(out, self.suffix.saturating_sub(1));
        if leaf > 0 && self.suffix > 0 && self.tree.text[leaf - 1] == self.query[self.suffix - 1] {
            return;
        }
        self.matches += 1;
        self.sum += match_value(leaf, self.suffix, length);
        out.enter(self.code.begin_digits);
        for number in [leaf, self.suffix, length] {
            for _ in 0..=number.max(1).ilog10() {
                out.enter(self.code.digit);
                self.columns.output.store(out, self.printed % OUTPUT as usize);
                self.printed += 1;
            }
        }
    }
}

/// What a match adds to the sum.
fn match_value(place: usize, suffix: usize, length: usize) -> u64 {
    crate::rng::mix((place as u64) << 32 ^ (suffix as u64) << 8 ^ length as u64) >> 32
}

impl Algorithm for Matching {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.suffix + LEAST_MATCH > self.query.len() {
            return false;
        }
        let end = self.suffix + LEAST_MATCH;
        out.enter(self.code.suffix);
        self.place = if self.place.length == 0 {
            self.begin(out, &self.code.scan, (ROOT, 0), end)
        } else {
            let linked = self.link(out);
            self.scan(out, &self.code.scan, linked, end)
        };
        out.enter(self.code.judge);
        if self.place.length >= LEAST_MATCH {
            self.enumerate(out);
        }
        out.enter(self.code.next_suffix);
        self.suffix += 1;
        true
    }
}
