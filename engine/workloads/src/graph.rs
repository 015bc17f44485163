//! The graph that the kernels compute with: compressed sparse rows with 4-byte vertex numbers.

use std::ops::Range;

/// A directed graph; an undirected one has each edge in both directions.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    /// Where each vertex's edges begin in `targets`, and at last where they end.
    offsets: Vec<u64>,
    targets: Vec<u32>,
}

impl Graph {
    /// The undirected graph with the given edges, of which there may be several between the same two
    /// vertices. `edges` is called twice and must give the same both times.
    ///
    /// Edges are distributed to a few hundred groups of vertices first, and within each group then to
    /// their rows, so that the processor's caches and TLB can follow.
    pub(crate) fn undirected<E: Iterator<Item = (u32, u32)>>(
        vertices: usize,
        edges: impl Fn() -> E,
    ) -> Self {
        let group_bits = (vertices.ilog2().saturating_sub(8)).min(u16::BITS);
        let group = |vertex: u32| (vertex >> group_bits) as usize;
        let groups = group(vertices as u32 - 1) + 1;
        let mut begins = vec![0; groups + 1];
        for (a, b) in edges() {
            begins[group(a) + 1] += 1;
            begins[group(b) + 1] += 1;
        }
        add_up(&mut begins);

        let ends = begins[groups];
        // Each group's edges: where they lead, and from which of its vertices.
        let (mut targets, mut sources) = (vec![0; ends], vec![0; ends]);
        let mut next = begins.clone();
        for (a, b) in edges() {
            for (from, to) in [(a, b), (b, a)] {
                let place = &mut next[group(from)];
                targets[*place] = to;
                sources[*place] = (from & ((1 << group_bits) - 1)) as u16;
                *place += 1;
            }
        }

        let mut offsets = Vec::with_capacity(vertices + 1);
        for group in begins.windows(2) {
            let edges = group[0]..group[1];
            let rows = (vertices - offsets.len()).min(1 << group_bits);
            let mut next = vec![0; rows + 1];
            sources[edges.clone()].iter().for_each(|&row| next[usize::from(row) + 1] += 1);
            add_up(&mut next);
            offsets.extend(next[..rows].iter().map(|&offset| (edges.start + offset) as u64));
            let unsorted = targets[edges.clone()].to_vec();
            for (&row, target) in sources[edges.clone()].iter().zip(unsorted) {
                let place = &mut next[usize::from(row)];
                targets[edges.start + *place] = target;
                *place += 1;
            }
        }
        offsets.push(ends as u64);
        Self { offsets, targets }
    }

    /// Sorts every row and leaves out loops and repeated edges.
    pub(crate) fn simplify(&mut self) {
        let (vertices, mut kept) = (self.vertices(), 0);
        for vertex in 0..vertices {
            let row = self.edges(vertex);
            self.offsets[vertex] = kept as u64;
            self.targets[row.clone()].sort_unstable();
            let mut last = vertex as u32;
            for edge in row {
                let target = self.targets[edge];
                if target != vertex as u32 && target != last {
                    self.targets[kept] = target;
                    kept += 1;
                    last = target;
                }
            }
        }
        self.offsets[vertices] = kept as u64;
        self.targets.truncate(kept);
        self.targets.shrink_to_fit();
    }

    pub(crate) fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Where each vertex's edges begin, and at last where they end.
    pub(crate) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The numbers of a vertex's edges.
    #[inline]
    pub(crate) fn edges(&self, vertex: usize) -> Range<usize> {
        self.offsets[vertex] as usize..self.offsets[vertex + 1] as usize
    }

    /// Where an edge leads.
    #[inline]
    pub(crate) fn target(&self, edge: usize) -> usize {
        self.targets[edge] as usize
    }

    /// All edges.
    #[cfg(test)]
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.vertices())
            .flat_map(move |v| self.edges(v).map(move |edge| (v, self.target(edge))))
    }
}

/// Replaces each number by the sum of all up to it.
fn add_up(numbers: &mut [usize]) {
    for i in 1..numbers.len() {
        numbers[i] += numbers[i - 1];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_graph_has_the_edges_it_was_given(
            vertices in 1_usize..2000,
            ends in prop::collection::vec((0_u32..2000, 0_u32..2000), 0..3000),
        ) {
            let below = |end| end % vertices as u32;
            let edges: Vec<_> = ends.into_iter().map(|(a, b)| (below(a), below(b))).collect();
            let mut graph = Graph::undirected(vertices, || edges.iter().copied());
            let both = edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
            let mut expected: Vec<_> = both.map(|(a, b)| (a as usize, b as usize)).collect();
            expected.sort_unstable();
            let mut found: Vec<_> = graph.pairs().collect();
            found.sort_unstable();
            prop_assert_eq!(&found, &expected);

            graph.simplify();
            let distinct: BTreeSet<_> = expected.into_iter().filter(|(a, b)| a != b).collect();
            prop_assert_eq!(graph.vertices(), vertices);
            prop_assert_eq!(graph.pairs().collect::<Vec<_>>(), Vec::from_iter(distinct));
        }
    }
}
