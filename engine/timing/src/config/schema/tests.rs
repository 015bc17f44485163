use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{add_sections, add_variants, check, conforms, describe, read};

/// A house.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct House {
    /// Its name.
    #[schemars(length(min = 1))]
    name: String,
    /// How high it is.
    #[schemars(range(min = 1, max = 9))]
    floors: u32,
    /// Rooms, biggest first.
    rooms: Vec<Room>,
    /// What it is warmed by.
    heating: Heating,
    /// A second house.
    #[serde(default)]
    annex: Option<Room>,
    /// Numbers that mean luck.
    #[serde(default)]
    lucky: Option<[u8; 2]>,
}

/// A room.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Room {
    /// Its area.
    #[schemars(extend("powerOfTwo" = true, "unit" = "m²"))]
    area: u32,
    /// Share of the walls.
    #[serde(default = "half")]
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    glass_fraction: f64,
    /// What stands in it.
    #[serde(default)]
    things: Vec<Thing>,
}

#[derive(JsonSchema)]
#[allow(dead_code)]
struct Place {
    country: String,
}

fn half() -> f64 {
    0.5
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Thing {
    /// To sit on.
    Chair,
    /// To eat at.
    Table,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Heating {
    /// Wood.
    Stove {
        /// How much it takes.
        #[schemars(extend("multipleOf" = 5))]
        logs: u64,
    },
    /// The sun.
    None,
}

fn house() -> Value {
    json!({
        "name": "ours", "floors": 2, "rooms": [{ "area": 16 }, { "area": 8, "things": ["chair"] }],
        "heating": { "kind": "stove", "logs": 10 },
    })
}

/// The problems of a house in which `change` was done, as `key problem`.
fn problems(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut house = house();
    change(&mut house);
    let found = check(&read::<House>().to_value(), &house);
    found.iter().map(|one| format!("{} {}", one.key, one.with_known())).collect()
}

#[test]
fn what_is_right_passes() {
    assert_eq!(problems(|_| {}), Vec::<String>::new());
    assert_eq!(problems(|house| house["annex"] = Value::Null), Vec::<String>::new());
    assert_eq!(
        problems(|house| house["heating"] = json!({ "kind": "none" })),
        Vec::<String>::new()
    );
}

#[test]
fn every_problem_is_found_at_once_and_with_its_key() {
    let found = problems(|house| {
        house["name"] = json!("  ");
        house["floors"] = json!(0);
        house["rooms"][1]["area"] = json!(12);
        house["rooms"][1]["things"][0] = json!("chiar");
        house["rooms"][0]["aera"] = json!(4);
        house["heating"] = json!({ "kind": "stove", "logs": 7 });
        house["lucky"] = json!([7]);
    });
    assert_eq!(
        found,
        [
            "name must be a text that is not empty (it is \"  \")",
            "floors must be a whole number, 1 to 9 (it is 0)",
            "rooms[1].aera is not a known key; known here: area, glass_fraction, things",
            "rooms[2].area must be a whole number, a power of two, at least 0 (it is 12)",
            "rooms[2].things[1] cannot be \"chiar\"; known here: chair, table",
            "heating.logs must be a whole number, a multiple of 5, at least 0 (it is 7)",
            "lucky must be a list of 2 (it is [7])",
        ]
    );
}

#[test]
fn types_are_told_apart() {
    let one = |key: &str, value: Value| problems(|house| house[key] = value).join("; ");
    assert_eq!(one("floors", json!(2.5)), "floors must be a whole number, 1 to 9 (it is 2.5)");
    assert_eq!(one("floors", json!(true)), "floors must be a whole number, 1 to 9 (it is true)");
    assert_eq!(one("floors", json!(1e30)), "floors must be a whole number, 1 to 9 (it is 1e+30)");
    assert_eq!(one("floors", Value::Null), "floors must be a whole number, 1 to 9 (it is null)");
    assert_eq!(one("rooms", json!({})), "rooms must be an array of tables: write [[rooms]]");
    assert_eq!(one("heating", json!([])), "heating must be a table: write [heating]");
    assert_eq!(one("annex", json!(3)), "annex must be a table: write [annex]");
    assert_eq!(
        one("rooms", json!([{ "area": 5_000_000_000u64, "glass_fraction": 0 }])),
        "rooms[1].area must be a whole number, a power of two, at least 0 (it is 5000000000); \
         rooms[1].glass_fraction must be a number, more than 0, up to 1 (it is 0)"
    );
}

#[test]
fn keys_follow_from_the_variant() {
    let heating = |value: Value| problems(|house| house["heating"] = value).join("; ");
    assert_eq!(heating(json!({ "logs": 5 })), "heating.kind is missing");
    assert_eq!(
        heating(json!({ "kind": "stvoe", "logs": "many" })),
        "heating.kind cannot be \"stvoe\"; known here: stove, none"
    );
    assert_eq!(
        heating(json!({ "kind": "none", "logs": 5 })),
        "heating.logs is not a known key; known here: kind"
    );
    assert_eq!(heating(json!({ "kind": "stove" })), "heating.logs is missing");
}

#[test]
fn what_code_builds_is_checked_too() {
    let mut house: House = serde_json::from_value(house()).unwrap();
    let schema = read::<House>().to_value();
    assert!(conforms(&schema, &house).is_ok());
    house.rooms[0].glass_fraction = f64::NAN;
    let error = conforms(&schema, &house).unwrap_err().to_string();
    assert!(error.starts_with("`rooms[1].glass_fraction`: must be a number"), "{error}");
}

#[test]
fn a_description_has_each_key_once() {
    let keys = describe(&read::<House>().to_value(), &[]);
    let names: Vec<_> = keys.iter().map(|key| key.key.as_str()).collect();
    assert_eq!(
        names,
        [
            "name",
            "floors",
            "rooms",
            "rooms[].area",
            "rooms[].glass_fraction",
            "rooms[].things",
            "heating",
            "heating.kind",
            "heating.logs",
            "annex",
            "lucky",
        ]
    );
    let find = |name: &str| keys.iter().find(|key| key.key == name).unwrap();
    let area = find("rooms[].area");
    assert_eq!((area.meaning.as_str(), area.unit.as_deref()), ("Its area.", Some("m²")));
    assert_eq!((area.kind.as_str(), area.optional), ("whole number", false));
    let glass = find("rooms[].glass_fraction");
    assert_eq!((glass.unit.as_deref(), &glass.default), (Some("share"), &Some(json!(0.5))));
    assert_eq!(glass.range.as_deref(), Some("more than 0, up to 1"));
    let things = find("rooms[].things");
    assert_eq!(things.kind, "list of choice");
    assert_eq!(things.choices[1].value, "table");
    assert_eq!(things.choices[1].meaning, "To eat at.");
    assert_eq!(find("heating.logs").when.as_deref(), Some("kind = \"stove\""));
    assert_eq!(find("annex").same_as.as_deref(), Some("rooms"));
}

#[test]
fn sections_and_variants_of_registries_come_in() {
    let mut schema = read::<Room>().to_value();
    add_sections(&mut schema, [("heating", read::<Room>())]);
    let room = json!({ "area": 4, "heating": { "area": 3 }, "cellar": {} });
    let keys: Vec<_> = check(&schema, &room).into_iter().map(|one| one.key).collect();
    assert_eq!(keys, ["heating.area", "cellar"]);

    let mut schema = json!({
        "type": "object", "properties": { "what": { "type": "string" } }, "required": ["what"],
    });
    add_variants(&mut schema, "what", [("room", read::<Room>()), ("place", read::<Place>())]);
    let keys = |value| check(&schema, &value).into_iter().map(|one| one.key).collect::<Vec<_>>();
    assert_eq!(keys(json!({ "what": "place", "country": "Utopia" })), Vec::<String>::new());
    assert_eq!(keys(json!({ "what": "place", "area": 4 })), ["area", "country"]);
    assert_eq!(keys(json!({ "what": "room", "area": 3 })), ["area"]);
    assert_eq!(keys(json!({ "what": "ship" })), ["what"]);
}
