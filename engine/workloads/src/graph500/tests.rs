use std::collections::{BTreeSet, HashSet};

use super::*;
use crate::simulated::Native;

const SIZE: u64 = 256 << 10;

fn searches() -> Searches {
    Searches::new(
        &Shape::of(&Arguments::new(SIZE, 1)),
        Code::new(&mut Assembler::new(), Traced::Whole),
        1,
    )
}

fn edge_list() -> Vec<(u32, u32)> {
    let shape = Shape::of(&Arguments::new(SIZE, 1));
    Kronecker::new(shape.scale, 1).edges(shape.edges).collect()
}

/// Distances from `root`, by relaxing all edges until nothing changes.
fn distances(edges: &[(u32, u32)], vertices: usize, root: usize) -> Vec<u32> {
    let mut distances = vec![NONE; vertices];
    distances[root] = 0;
    loop {
        let before = distances.clone();
        for &(a, b) in edges {
            for (from, to) in [(a as usize, b as usize), (b as usize, a as usize)] {
                distances[to] = distances[to].min(distances[from].saturating_add(1));
            }
        }
        if distances == before {
            return distances;
        }
    }
}

/// Continues until a validation begins.
fn search(searches: &mut Searches) {
    while !matches!(searches.phase, Phase::Validate(_)) {
        assert!(searches.step(&mut Native));
    }
}

/// The parents are a tree from the root that reaches all that can be reached, along edges of the graph,
/// one level at a time; and the validation computes these levels and finds no fault.
#[test]
fn parents_form_a_breadth_first_tree_with_the_validations_levels() {
    let edges = edge_list();
    let joined: HashSet<_> = edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
    let mut searches = searches();
    let vertices = searches.data.vertices;
    for done in 0..SEARCHES {
        let root = searches.root;
        search(&mut searches);
        let parents = searches.data.parent.values.clone();
        while searches.left == SEARCHES - done {
            assert!(searches.step(&mut Native));
        }
        assert_eq!(searches.fault, None);
        assert_eq!(searches.data.parent.values, parents);
        if done % 8 != 0 {
            continue;
        }
        let distances = distances(&edges, vertices, root);
        assert!(distances.iter().filter(|&&d| d < NONE).count() > 100, "from {root}");
        assert_eq!(searches.data.work.values[vertices..], distances);
        for (vertex, &parent) in parents.iter().enumerate() {
            match distances[vertex] {
                0 => assert_eq!(parent as usize, root),
                NONE => assert_eq!(parent, NONE),
                distance => {
                    assert_eq!(distances[parent as usize], distance - 1);
                    assert!(joined.contains(&(vertex as u32, parent)));
                }
            }
        }
    }
    assert!(!searches.step(&mut Native));
}

#[test]
fn validation_finds_what_is_wrong() {
    let edges = edge_list();
    let mut searches = searches();
    search(&mut searches);
    let root = searches.root;
    let distances = &distances(&edges, searches.data.vertices, root);
    let joined: HashSet<_> = edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
    let parents = searches.data.parent.values.clone();
    let mut fault_with = |changes: &[(usize, u32)]| {
        searches.data.parent.values.clone_from(&parents);
        for &(vertex, parent) in changes {
            searches.data.parent.values[vertex] = parent;
        }
        let mut validation =
            Validation::new(searches.code.validation.unwrap(), root, &searches.kronecker);
        loop {
            match validation.step(&mut Native, &mut searches.data, &searches.kronecker) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(fault) => return Some(fault),
            }
        }
    };
    let at = |distance| (0..parents.len()).filter(move |&v| distances[v] == distance);
    let deep = at(2).next().unwrap();
    let above = parents[deep] as usize;
    let leaf = |&vertex: &usize| !parents.contains(&(vertex as u32));
    let stray = at(NONE).next().unwrap();

    assert_eq!(fault_with(&[]), None);
    assert_eq!(fault_with(&[(root, NONE)]), Some(Fault::Root));
    assert_eq!(fault_with(&[(deep, deep as u32)]), Some(Fault::SecondRoot));
    assert_eq!(fault_with(&[(above, deep as u32)]), Some(Fault::Cycle));
    assert_eq!(fault_with(&[(deep, stray as u32)]), Some(Fault::End));
    let lost = at(2).find(leaf).unwrap();
    assert_eq!(fault_with(&[(lost, NONE)]), Some(Fault::Unreached));
    // One level too deep: a neighbour of the root below a vertex of the second level.
    let near = at(1).find(leaf).unwrap();
    assert_eq!(fault_with(&[(near, deep as u32)]), Some(Fault::Levels));
    // At the right level, but no neighbour.
    let (child, other) = at(2)
        .flat_map(|child| at(1).map(move |other| (child, other as u32)))
        .find(|&(child, other)| !joined.contains(&(child as u32, other)))
        .unwrap();
    assert_eq!(fault_with(&[(child, other)]), Some(Fault::NoEdge));
}

/// Rows begin where the unsimplified ones without loops would, and are sorted and distinct.
#[test]
fn rows_are_sorted_and_leave_gaps() {
    let (edges, searches) = (edge_list(), searches());
    let vertices = searches.data.vertices;
    let mut rows = vec![Vec::new(); vertices];
    for (a, b) in edges.into_iter().filter(|(a, b)| a != b) {
        rows[a as usize].push(b as usize);
        rows[b as usize].push(a as usize);
    }
    let mut begin = 0;
    for (vertex, row) in rows.into_iter().enumerate() {
        assert_eq!(searches.begins[vertex], begin);
        begin += row.len() as u64;
        let kept: Vec<_> = searches.graph.edges(vertex).map(|e| searches.graph.target(e)).collect();
        assert_eq!(kept, Vec::from_iter(BTreeSet::from_iter(row)));
    }
    assert!(searches.graph.offsets()[vertices] < begin * 9 / 10, "some are repeated");
}

#[test]
fn sizes_give_the_benchmarks_scales() {
    for (mebibytes, scale, factor) in
        [(8832, 24, 16), (10880, 24, 20), (5440, 23, 20), (552, 20, 16)]
    {
        let shape = Shape::of(&Arguments::new(mebibytes << 20, 1));
        assert_eq!((shape.scale, shape.edges), (scale, factor << scale));
    }
    for (mebibytes, factor) in [(4608, 16), (5632, 20)] {
        let shape = Shape::of(&searches_alone(mebibytes << 20));
        assert_eq!((shape.scale, shape.edges), (24, factor << 24));
    }
    for shift in 16..37 {
        for arguments in [Arguments::new(1 << shift, 1), searches_alone(1 << shift)] {
            let shape = Shape::of(&arguments);
            let factor = shape.edges >> shape.scale;
            assert!((11..=22).contains(&factor), "{shift}: {factor}");
            assert_eq!(shape.layout.bytes(), 1 << shift);
        }
    }
}

fn searches_alone(size_bytes: u64) -> Arguments {
    Arguments { traced: Traced::Searches, ..Arguments::new(size_bytes, 1) }
}

#[test]
fn searches_alone_have_the_same_distances_and_validate_nothing() {
    let shape = Shape::of(&searches_alone(SIZE));
    let mut searches = Searches::new(&shape, Code::new(&mut Assembler::new(), Traced::Searches), 1);
    let edges: Vec<_> = Kronecker::new(shape.scale, 1).edges(shape.edges).collect();
    for left in (0..SEARCHES).rev() {
        let root = searches.root;
        while searches.left > left {
            assert!(!matches!(searches.phase, Phase::Validate(_)));
            assert!(searches.step(&mut Native));
        }
        if left % 16 != 0 {
            continue;
        }
        let distances = distances(&edges, searches.data.vertices, root);
        for (vertex, &parent) in searches.data.parent.values.iter().enumerate() {
            match distances[vertex] {
                0 => assert_eq!(parent as usize, root),
                NONE => assert_eq!(parent, NONE),
                distance => assert_eq!(distances[parent as usize], distance - 1),
            }
        }
    }
    assert!(!searches.step(&mut Native));
}

/// The queue and the levels share memory, as one is freed before the other is allocated.
#[test]
fn the_queue_is_next_to_the_parents() {
    let lies = |array_order| {
        let shape = Shape::of(&Arguments { array_order, ..Arguments::new(1 << 30, 1) });
        let (parent, queue) = (shape.parent.address(0), shape.work.address(shape.queue));
        (parent.abs_diff(queue), 8 << shape.scale)
    };
    for array_order in [ArrayOrder::Downwards, ArrayOrder::Upwards] {
        let (distance, bytes) = lies(array_order);
        assert_eq!(distance, bytes + 4096, "{array_order:?}");
    }
}
