//! Checks a value by a schema: every problem at once, each with its exact key.

use serde::Serialize;
use serde_json::{Map, Value};

use super::node::{Node, Numbers, Shape, Table};

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The key with its tables, such as `tlb.l1d[2].pages`; empty for the whole.
    pub key: String,
    /// What is wrong: words that stand after the key.
    pub problem: String,
    /// The word that is not known, if that is the problem.
    pub given: Option<String>,
    /// The words that are known in its place.
    pub known: Vec<String>,
}

impl Problem {
    /// A problem that is not a word that is not known.
    pub fn new(key: &str, problem: String) -> Self {
        Self { key: key.to_owned(), problem, given: None, known: Vec::new() }
    }

    /// What is wrong, and what is known instead.
    pub fn with_known(&self) -> String {
        if self.known.is_empty() {
            return self.problem.clone();
        }
        format!("{}; known here: {}", self.problem, self.known.join(", "))
    }
}

/// Every problem of `value` by `schema`.
pub fn check(schema: &Value, value: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    node(Node::root(schema), value, "", &mut problems);
    problems
}

fn node(schema: Node<'_>, value: &Value, key: &str, problems: &mut Vec<Problem>) {
    let mut refuse = |must: String| {
        problems.push(Problem::new(key, format!("must be {must} (it is {})", shown(value))));
    };
    if value.is_null() && schema.nullable() {
        return; // As structures in code leave a key out.
    }
    match schema.shape() {
        Shape::Table(keys) => match value {
            Value::Object(values) => table(&keys, values, key, problems),
            _ => refuse_table(key, problems),
        },
        Shape::Tagged(tag, variants) => match value {
            Value::Object(values) => tagged(tag, &variants, values, key, problems),
            _ => refuse_table(key, problems),
        },
        Shape::List(items) => match value {
            Value::Array(values) => {
                if let Some(must) = length(schema, values.len()) {
                    refuse(must);
                }
                for (value, number) in values.iter().zip(1..) {
                    node(items, value, &format!("{key}[{number}]"), problems);
                }
            }
            _ if matches!(items.shape(), Shape::Table(_) | Shape::Tagged(..)) => problems
                .push(Problem::new(key, format!("must be an array of tables: write [[{key}]]"))),
            _ => refuse("a list".to_owned()),
        },
        Shape::Choice(choices) => choice(&choices, value, key, problems),
        Shape::Whole(numbers) => {
            let fine = value.as_u64().is_some() || value.as_i64().is_some();
            let fine = fine && value.as_f64().is_some_and(|number| numbers.contain(number));
            if !fine {
                refuse(with_range("a whole number", &numbers));
            }
        }
        Shape::Number(numbers) => {
            if !value.as_f64().is_some_and(|number| numbers.contain(number)) {
                refuse(with_range("a number", &numbers));
            }
        }
        Shape::Text => {
            let least = schema.least_length();
            match value.as_str() {
                Some(text) if least == 0 || !text.trim().is_empty() => {}
                _ if least == 0 => refuse("a text".to_owned()),
                _ => refuse("a text that is not empty".to_owned()),
            }
        }
        Shape::Flag => {
            if !value.is_boolean() {
                refuse("true or false".to_owned());
            }
        }
        Shape::Either(shapes) => either(&shapes, value, key, problems),
        Shape::Refused(words) => problems.push(Problem::new(key, words.to_owned())),
        Shape::Any => {}
    }
}

fn refuse_table(key: &str, problems: &mut Vec<Problem>) {
    // A table in an array has no header of its own.
    let header = if key.is_empty() || key.ends_with(']') {
        String::new()
    } else {
        format!(": write [{key}]")
    };
    problems.push(Problem::new(key, format!("must be a table{header}")));
}

/// The name of `name` in the table `key`.
fn within(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") }
}

fn table(keys: &Table<'_>, values: &Map<String, Value>, key: &str, problems: &mut Vec<Problem>) {
    for (name, value) in values {
        let known = keys.keys.iter().find(|key| key.name == name);
        match known.map(|key| key.value).or(keys.others) {
            Some(schema) => node(schema, value, &within(key, name), problems),
            None => problems.push(Problem {
                key: within(key, name),
                problem: "is not a known key".to_owned(),
                given: Some(name.clone()),
                known: known_names(keys),
            }),
        }
    }
    for missing in keys.keys.iter().filter(|key| !key.optional && !values.contains_key(key.name)) {
        problems.push(Problem::new(&within(key, missing.name), "is missing".to_owned()));
    }
}

/// The keys that a table may have.
fn known_names(table: &Table<'_>) -> Vec<String> {
    let keys = table.keys.iter().filter(|key| !matches!(key.value.shape(), Shape::Refused(_)));
    keys.map(|key| key.name.to_owned()).collect()
}

fn tagged(
    tag: &str,
    variants: &[(&str, Table<'_>)],
    values: &Map<String, Value>,
    key: &str,
    problems: &mut Vec<Problem>,
) {
    let at = within(key, tag);
    let Some(given) = values.get(tag) else {
        problems.push(Problem::new(&at, "is missing".to_owned()));
        return;
    };
    match variants.iter().find(|(name, _)| given == name) {
        Some((_, keys)) => table(keys, values, key, problems),
        // The other keys cannot be judged.
        None => unknown(variants.iter().map(|(name, _)| (*name).to_owned()), given, &at, problems),
    }
}

fn choice(choices: &[(&Value, &str)], value: &Value, key: &str, problems: &mut Vec<Problem>) {
    if !choices.iter().any(|(choice, _)| *choice == value) {
        unknown(choices.iter().map(|(choice, _)| bare(choice)), value, key, problems);
    }
}

fn unknown(
    known: impl Iterator<Item = String>,
    value: &Value,
    key: &str,
    problems: &mut Vec<Problem>,
) {
    problems.push(Problem {
        key: key.to_owned(),
        problem: format!("cannot be {}", shown(value)),
        given: Some(bare(value)),
        known: known.collect(),
    });
}

fn either(shapes: &[Node<'_>], value: &Value, key: &str, problems: &mut Vec<Problem>) {
    let fits = |shape: &Shape<'_>| match shape {
        Shape::Table(_) | Shape::Tagged(..) => value.is_object(),
        Shape::List(_) => value.is_array(),
        Shape::Choice(_) | Shape::Text => value.is_string(),
        Shape::Whole(_) | Shape::Number(_) => value.is_number(),
        Shape::Flag => value.is_boolean(),
        Shape::Either(_) | Shape::Any | Shape::Refused(_) => true,
    };
    if let Some(schema) = shapes.iter().find(|schema| fits(&schema.shape())) {
        return node(*schema, value, key, problems);
    }
    let names: Vec<_> = shapes.iter().map(|schema| schema.shape().name()).collect();
    let must = names.join(" or ");
    problems.push(Problem::new(key, format!("must be {must} (it is {})", shown(value))));
}

impl Shape<'_> {
    /// What such a value is called, with its article.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Table(_) | Self::Tagged(..) => "a table",
            Self::List(_) => "a list",
            Self::Choice(_) => "a choice",
            Self::Whole(_) => "a whole number",
            Self::Number(_) => "a number",
            Self::Text => "a text",
            Self::Flag => "true or false",
            Self::Either(_) | Self::Any => "anything",
            Self::Refused(_) => "nothing",
        }
    }
}

fn with_range(what: &str, numbers: &Numbers) -> String {
    numbers.words().map_or_else(|| what.to_owned(), |range| format!("{what}, {range}"))
}

/// What a list of `length` items must be instead, if it must.
fn length(schema: Node<'_>, length: usize) -> Option<String> {
    let (least, length) = (schema.least_length(), length as u64);
    match schema.most_length() {
        Some(most) if most == least && length != most => Some(format!("a list of {most}")),
        Some(most) if length > most => Some(format!("a list of at most {most}")),
        _ if length < least => Some("a list that is not empty".to_owned()),
        _ => None,
    }
}

/// A value as a file has it, cut where it is long.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A value without quotes.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
