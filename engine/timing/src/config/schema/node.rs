//! A schema as what it says of one value, without its many spellings.

use serde_json::{Map, Value};

/// The schema of a value within the schema of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    root: &'a Value,
    /// Where the key is described.
    at: &'a Value,
}

/// What a value can be.
#[derive(Debug)]
pub(super) enum Shape<'a> {
    /// A table with these keys.
    Table(Table<'a>),
    /// A table whose other keys follow from the value of one of them, by those values.
    Tagged(&'a str, Vec<(&'a str, Table<'a>)>),
    /// A list of such values.
    List(Node<'a>),
    /// One of some values, each with its meaning.
    Choice(Vec<(&'a Value, &'a str)>),
    /// A whole number.
    Whole(Numbers),
    /// A number.
    Number(Numbers),
    /// A text.
    Text,
    /// True or false.
    Flag,
    /// One of several shapes.
    Either(Vec<Node<'a>>),
    /// Anything.
    Any,
    /// Nothing: the key is refused in these words.
    Refused(&'a str),
}

/// The keys of a table.
#[derive(Debug)]
pub(super) struct Table<'a> {
    /// What it is.
    pub meaning: &'a str,
    pub keys: Vec<Key<'a>>,
    /// What keys of any other name hold, where there may be some.
    pub others: Option<Node<'a>>,
}

/// A key of a table.
#[derive(Debug)]
pub(super) struct Key<'a> {
    pub name: &'a str,
    pub value: Node<'a>,
    pub optional: bool,
}

/// The numbers that a value may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub least: Option<f64>,
    pub most: Option<f64>,
    /// What its type holds, where nobody chose less.
    pub fits: Option<f64>,
    /// It must be more than this.
    pub above: Option<f64>,
    pub multiple_of: Option<f64>,
    pub power_of_two: bool,
}

static ANYTHING: Value = Value::Bool(true);

impl<'a> Node<'a> {
    /// The whole of a schema.
    pub fn root(root: &'a Value) -> Self {
        Self { root, at: root }
    }

    fn of(self, at: &'a Value) -> Self {
        Self { root: self.root, at }
    }

    /// What the key means.
    pub fn meaning(self) -> Option<&'a str> {
        self.word("description").or_else(|| self.resolved().word("description"))
    }

    /// The value of a keyword that is a text.
    pub fn word(self, keyword: &str) -> Option<&'a str> {
        self.at.get(keyword)?.as_str()
    }

    /// What stands for a value that is left out.
    pub fn default(self) -> Option<&'a Value> {
        self.at.get("default").filter(|value| match value {
            Value::Object(keys) => keys.values().any(|value| !value.is_null()),
            value => !value.is_null(),
        })
    }

    /// Name of the structure that the value is, or that the items of the list are.
    pub fn structure(self) -> Option<&'a str> {
        let node = self.named();
        match node.at.get("$ref") {
            Some(path) => path.as_str()?.rsplit('/').next(),
            None => node.of(node.at.get("items")?).structure(),
        }
    }

    /// Texts and lists: how long at least.
    pub fn least_length(self) -> u64 {
        let node = self.resolved();
        let length = |keyword| node.at.get(keyword).and_then(Value::as_u64);
        length("minLength").or_else(|| length("minItems")).unwrap_or(0)
    }

    /// Lists: how long at most.
    pub fn most_length(self) -> Option<u64> {
        self.resolved().at.get("maxItems")?.as_u64()
    }

    /// True if nothing may stand for the value.
    pub fn nullable(self) -> bool {
        let null = |value: &Value| value.get("type").is_some_and(|t| t == "null");
        let any = |keyword| self.at.get(keyword).and_then(Value::as_array);
        any("type").is_some_and(|types| types.iter().any(|t| t == "null"))
            || any("anyOf").is_some_and(|all| all.iter().any(null))
            || self.at == &ANYTHING
    }

    /// The schema without the null that may stand in its place.
    fn named(self) -> Self {
        let Some(all) = self.at.get("anyOf").and_then(Value::as_array) else { return self };
        let mut present = all.iter().filter(|one| one.get("type").is_none_or(|t| t != "null"));
        match (present.next(), present.next()) {
            (Some(only), None) => self.of(only).named(),
            _ => self,
        }
    }

    /// The schema where it is written out.
    fn resolved(self) -> Self {
        let node = self.named();
        let target = node
            .at
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|path| self.root.pointer(path.strip_prefix('#')?));
        target.map_or(node, |target| self.of(target).resolved())
    }

    /// What a value can be.
    pub fn shape(self) -> Shape<'a> {
        let node = self.resolved();
        if let Some(words) = node.word("refused") {
            return Shape::Refused(words);
        }
        let list = |keyword| node.at.get(keyword).and_then(Value::as_array);
        if let Some(all) = list("anyOf") {
            let parts = all.iter().map(|one| self.of(one));
            return Shape::Either(parts.filter(|one| one.kind() != Some("null")).collect());
        }
        if let Some(choices) = list("enum") {
            return Shape::Choice(choices.iter().map(|choice| (choice, "")).collect());
        }
        if let Some(all) = list("oneOf") {
            return self.one_of(all);
        }
        match node.kind() {
            Some("object") => Shape::Table(node.table()),
            Some("array") => Shape::List(node.of(node.at.get("items").unwrap_or(&ANYTHING))),
            Some("integer") => Shape::Whole(node.numbers()),
            Some("number") => Shape::Number(node.numbers()),
            Some("string") => Shape::Text,
            Some("boolean") => Shape::Flag,
            _ => Shape::Any,
        }
    }

    fn one_of(self, all: &'a [Value]) -> Shape<'a> {
        if let Some((tag, _)) = all.first().and_then(tag_of) {
            let variants = all.iter().filter_map(|one| {
                let (_, value) = tag_of(one)?;
                Some((value, self.of(one).table()))
            });
            return Shape::Tagged(tag, variants.collect());
        }
        let mut choices = Vec::new();
        for one in all {
            match (one.get("const"), one.get("enum").and_then(Value::as_array)) {
                (Some(choice), _) => {
                    choices.push((choice, self.of(one).word("description").unwrap_or("")));
                }
                (None, Some(several)) => choices.extend(several.iter().map(|c| (c, ""))),
                (None, None) => return Shape::Any,
            }
        }
        Shape::Choice(choices)
    }

    /// The type's name, null aside.
    fn kind(self) -> Option<&'a str> {
        match self.at.get("type")? {
            Value::String(name) => Some(name),
            Value::Array(names) => names.iter().filter_map(Value::as_str).find(|&n| n != "null"),
            _ => None,
        }
    }

    fn table(self) -> Table<'a> {
        let required = self.at.get("required").and_then(Value::as_array);
        let optional = |name: &str| required.is_none_or(|all| !all.iter().any(|key| key == name));
        let properties = self.at.get("properties").and_then(Value::as_object);
        let keys = properties.into_iter().flatten().map(|(name, value)| Key {
            name,
            value: self.of(value),
            optional: optional(name),
        });
        let rest = ["additionalProperties", "unevaluatedProperties"];
        let rest = rest.iter().find_map(|keyword| self.at.get(*keyword)).unwrap_or(&ANYTHING);
        Table {
            meaning: self.word("description").unwrap_or(""),
            keys: keys.collect(),
            others: (rest != false).then(|| self.of(rest)),
        }
    }

    fn numbers(self) -> Numbers {
        let figure = |keyword| self.at.get(keyword).and_then(Value::as_f64);
        Numbers {
            least: figure("minimum"),
            most: figure("maximum"),
            fits: (self.word("format") == Some("uint32")).then_some(f64::from(u32::MAX)),
            above: figure("exclusiveMinimum"),
            multiple_of: figure("multipleOf"),
            power_of_two: self.at.get("powerOfTwo").is_some_and(|flag| flag == true),
        }
    }
}

/// The key of a table that has but one value, and that value.
fn tag_of(table: &Value) -> Option<(&str, &str)> {
    let properties: &Map<_, _> = table.get("properties")?.as_object()?;
    properties.iter().find_map(|(key, value)| Some((key.as_str(), value.get("const")?.as_str()?)))
}

impl Numbers {
    /// True if `value` is one of them.
    pub fn contain(&self, value: f64) -> bool {
        self.least.is_none_or(|least| value >= least)
            && self.most.or(self.fits).is_none_or(|most| value <= most)
            && self.above.is_none_or(|above| value > above)
            && self.multiple_of.is_none_or(|unit| value % unit == 0.0)
            // Whole, small numbers: the conversion is exact.
            && (!self.power_of_two || (value >= 1.0 && value.log2().fract() == 0.0))
    }

    /// The range in words, such as `1 to 64`; `None` where there is none.
    pub fn words(&self) -> Option<String> {
        let figure = |value: f64| figure(value, self.multiple_of);
        let bounds = match (self.least, self.most, self.above) {
            (_, None, Some(above)) => Some(format!("more than {above}")),
            (_, Some(most), Some(above)) => Some(format!("more than {above}, up to {most}")),
            (Some(least), Some(most), None) => {
                Some(format!("{} to {}", figure(least), figure(most)))
            }
            (Some(least), None, None) => Some(format!("at least {}", figure(least))),
            (None, Some(most), None) => Some(format!("at most {}", figure(most))),
            (None, None, None) => None,
        };
        let multiple = self.multiple_of.map(|unit| format!("a multiple of {}", figure(unit)));
        let power = self.power_of_two.then(|| "a power of two".to_owned());
        let all: Vec<_> = [power, multiple, bounds].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// A bound; as gibibytes where only whole ones are meant.
fn figure(value: f64, multiple_of: Option<f64>) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    if multiple_of == Some(GIB) && value >= 1024.0 * GIB {
        format!("{} TiB", value / (1024.0 * GIB))
    } else if multiple_of == Some(GIB) {
        format!("{} GiB", value / GIB)
    } else {
        value.to_string()
    }
}
