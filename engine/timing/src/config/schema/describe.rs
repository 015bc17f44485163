//! A schema as a list of keys, for a reader.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::node::{Key, Node, Shape, Table};

/// What there is to know of one key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyDescription {
    /// The key with its tables: `tlb.l1d[].pages` is a key of each table in the array `tlb.l1d`, and
    /// `*` stands for a name of one's own.
    pub key: String,
    /// The key that this one goes with, and its value, such as `kind = "ddr4"`.
    pub when: Option<String>,
    /// What it says.
    pub meaning: String,
    /// What it is measured in.
    pub unit: Option<String>,
    /// What its value is: `table`, `array of tables`, `list of …`, `whole number`, `number`, `text`,
    /// `choice`, `flag`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The numbers that it may be.
    pub range: Option<String>,
    /// The values that it may have, where there are but a few.
    pub choices: Vec<Choice>,
    /// Whether it may be left out.
    pub optional: bool,
    /// What it is then.
    pub default: Option<Value>,
    /// The key of another table with the same keys, which are listed there.
    pub same_as: Option<String>,
}

/// A value that a key may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The value.
    pub value: Value,
    /// What it means.
    pub meaning: String,
}

/// Every key of `schema`, a table before what is in it. What is within the structures `apart` is left
/// out: they have descriptions of their own.
pub fn describe(schema: &Value, apart: &[&str]) -> Vec<KeyDescription> {
    let mut described = Description { apart, structures: BTreeMap::new(), keys: Vec::new() };
    described.within(&Node::root(schema).shape(), "", None);
    described.keys
}

/// A description in the making.
struct Description<'a> {
    apart: &'a [&'a str],
    /// Where each structure was met first.
    structures: BTreeMap<String, String>,
    keys: Vec<KeyDescription>,
}

impl Description<'_> {
    /// Describes what is within a value.
    fn within(&mut self, shape: &Shape<'_>, at: &str, when: Option<&str>) {
        match shape {
            Shape::Table(table) => self.table(table, at, when),
            Shape::Tagged(tag, variants) => {
                let choices = variants.iter().map(|(name, table)| Choice {
                    value: (*name).into(),
                    meaning: plain(table.meaning),
                });
                self.keys.push(KeyDescription {
                    key: below(at, tag),
                    when: when.map(str::to_owned),
                    meaning: "Which of them it is.".to_owned(),
                    unit: None,
                    kind: "choice".to_owned(),
                    range: None,
                    choices: choices.collect(),
                    optional: false,
                    default: None,
                    same_as: None,
                });
                for (name, table) in variants {
                    self.table(table, at, Some(&format!("{tag} = \"{name}\"")));
                }
            }
            Shape::List(items) => self.within(&items.shape(), &format!("{at}[]"), when),
            Shape::Either(nodes) => {
                for node in nodes {
                    self.within(&node.shape(), at, when);
                }
            }
            _ => {}
        }
    }

    fn table(&mut self, table: &Table<'_>, at: &str, when: Option<&str>) {
        // The key that says which variant it is has been described.
        let described = |key: &&Key<'_>| {
            key.value.word("const").is_none() && !matches!(key.value.shape(), Shape::Refused(_))
        };
        for key in table.keys.iter().filter(described) {
            self.key(key.value, &below(at, key.name), key.optional, when);
        }
        if let Some(others) = table.others.filter(|node| !matches!(node.shape(), Shape::Any)) {
            self.key(others, &below(at, "*"), true, when);
        }
    }

    fn key(&mut self, node: Node<'_>, key: &str, optional: bool, when: Option<&str>) {
        let last = key.rsplit('.').next().unwrap_or(key);
        let shape = node.shape();
        let (range, choices) = values(&shape);
        let unit = node.word("unit").or_else(|| unit(last)).filter(|_| is_figure(&shape));
        let structure = node.structure().filter(|_| choices.is_empty());
        let first = structure.and_then(|name| self.structures.get(name).cloned());
        let apart = structure.is_some_and(|name| self.apart.contains(&name));
        if let (Some(name), None) = (structure, &first) {
            self.structures.insert(name.to_owned(), key.to_owned());
        }
        let expand = first.is_none() && !apart;
        self.keys.push(KeyDescription {
            meaning: plain(node.meaning().unwrap_or_default()),
            unit: unit.map(str::to_owned),
            kind: type_words(&shape),
            range,
            choices,
            optional,
            default: node.default().cloned(),
            when: when.map(str::to_owned),
            key: key.to_owned(),
            same_as: first,
        });
        if expand {
            self.within(&shape, key, when);
        }
    }
}

/// The name of `key` in the table `at`.
fn below(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

/// Range and choices of a value, or of the items of a list.
fn values(shape: &Shape<'_>) -> (Option<String>, Vec<Choice>) {
    match shape {
        Shape::Whole(numbers) | Shape::Number(numbers) => (numbers.words(), Vec::new()),
        Shape::Choice(choices) => {
            let choices = choices.iter().map(|(value, meaning)| Choice {
                value: (*value).clone(),
                meaning: plain(meaning),
            });
            (None, choices.collect())
        }
        Shape::List(items) => values(&items.shape()),
        _ => (None, Vec::new()),
    }
}

fn is_figure(shape: &Shape<'_>) -> bool {
    match shape {
        Shape::Whole(_) | Shape::Number(_) => true,
        Shape::List(items) => is_figure(&items.shape()),
        _ => false,
    }
}

fn type_words(shape: &Shape<'_>) -> String {
    match shape {
        Shape::Table(_) | Shape::Tagged(..) => "table".to_owned(),
        Shape::List(items) => match items.shape() {
            Shape::Table(_) | Shape::Tagged(..) => "array of tables".to_owned(),
            items => format!("list of {}", type_words(&items)),
        },
        Shape::Choice(_) => "choice".to_owned(),
        Shape::Whole(_) => "whole number".to_owned(),
        Shape::Number(_) => "number".to_owned(),
        Shape::Text => "text".to_owned(),
        Shape::Flag => "flag".to_owned(),
        Shape::Either(nodes) => {
            let all: Vec<_> = nodes.iter().map(|node| type_words(&node.shape())).collect();
            all.join(" or ")
        }
        Shape::Any => "anything".to_owned(),
        Shape::Refused(_) => "nothing".to_owned(),
    }
}

/// The unit that a key's ending says.
fn unit(key: &str) -> Option<&'static str> {
    const ENDINGS: [(&str, &str); 18] = [
        ("_bytes_per_cycle", "bytes per cycle"),
        ("_bytes", "bytes"),
        ("_cycles", "cycles"),
        ("_mhz", "MHz"),
        ("_mts", "10⁶ transfers per second"),
        ("_gbs", "10⁹ bytes per second"),
        ("_ns", "ns"),
        ("_us", "µs"),
        ("_ms", "ms"),
        ("_pj", "pJ"),
        ("_nj", "nJ"),
        ("_percent", "%"),
        ("_instructions", "instructions"),
        ("_accesses", "accesses"),
        ("_mpki", "per 1000 instructions"),
        ("_fraction", "share"),
        ("_ratio", "share"),
        ("_occupancy", "share"),
    ];
    ENDINGS.iter().find(|(ending, _)| key.ends_with(ending)).map(|(_, unit)| *unit)
}

/// A meaning on one line.
fn plain(meaning: &str) -> String {
    meaning.split_whitespace().collect::<Vec<_>>().join(" ").replace("[`", "`").replace("`]", "`")
}
