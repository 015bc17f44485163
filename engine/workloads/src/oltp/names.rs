//! The index of customers by name, with the original's keys: different names of different districts
//! have the same one, and then one list.

use std::collections::HashMap;

use super::tables::Scale;

/// What TPC-C composes names of (clause 4.3.2.3).
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// A name's key in a district, by its number among all.
pub(super) fn key(name: usize, district: usize) -> u64 {
    let syllables = [name / 100, name / 10, name].map(|digit| SYLLABLES[digit % 10]);
    let letters = syllables.iter().flat_map(|syllable| syllable.bytes());
    let letters = letters.fold(0, |key: u64, letter| (key << 2) + u64::from(letter - b'A'));
    // Warehouses and districts are numbered from 1.
    (letters << 3) + 11 + district as u64
}

/// Letters of a name.
pub(super) fn length(name: usize) -> usize {
    [name / 100, name / 10, name].iter().map(|digit| SYLLABLES[digit % 10].len()).sum()
}

/// Lists of customers, by their rows.
pub(super) struct Names {
    /// Of each key, whom its node was made for, and who came last.
    keys: HashMap<u64, (u32, u32)>,
    /// Whom a bucket's nodes were made for.
    buckets: HashMap<u64, Vec<u32>>,
    /// The customer of the same key who came before, or the same customer.
    before: Vec<u32>,
    count: u64,
}

impl Names {
    pub(super) fn new(scale: Scale, buckets: usize) -> Self {
        let mut names = Self {
            keys: HashMap::new(),
            buckets: HashMap::new(),
            before: Vec::with_capacity(scale.all_customers()),
            count: buckets as u64,
        };
        for row in 0..scale.all_customers() {
            let (district, number) = (row / scale.customers, row % scale.customers);
            let (key, row) = (key(number % scale.names(), district), row as u32);
            if let Some((_, last)) = names.keys.get_mut(&key) {
                names.before.push(std::mem::replace(last, row));
            } else {
                names.keys.insert(key, (row, row));
                names.buckets.entry(key % names.count).or_default().push(row);
                names.before.push(row);
            }
        }
        names
    }

    /// A key's bucket, and whom its nodes were made for up to the key's.
    pub(super) fn nodes(&self, key: u64) -> (usize, impl Iterator<Item = usize>) {
        let (bucket, maker) = (key % self.count, self.keys[&key].0);
        let nodes = &self.buckets[&bucket];
        let place = nodes.iter().position(|&node| node == maker);
        let nodes = &nodes[..=place.expect("a key's node is in its bucket")];
        (bucket as usize, nodes.iter().map(|&row| row as usize))
    }

    /// The customers of a key, the last one first.
    pub(super) fn bearers(&self, key: u64) -> Vec<usize> {
        let mut bearers = vec![self.keys[&key].1];
        while let Some(&row) = bearers.last()
            && self.before[row as usize] != row
        {
            bearers.push(self.before[row as usize]);
        }
        bearers.into_iter().map(|row| row as usize).collect()
    }
}
