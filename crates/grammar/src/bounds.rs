//! Bounds for schemas that state none, so that a model cannot spend its whole budget inside one string.
//!
//! Every bound only narrows what the schema allows: an answer under a bounded schema is valid under the
//! schema as it was written. Where narrowing could do otherwise, the matcher first reads the schema without
//! bounds; see [`excludes`].

use serde_json::{Map, Value, json};

/// How a JSON schema is narrowed and laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonOptions {
    /// The most characters of a string whose schema states no limit, pattern or format; `None` leaves it
    /// open.
    pub max_string: Option<usize>,
    /// The most items of an array whose schema states no limit; `None` leaves it open.
    pub max_items: Option<usize>,
    /// The largest magnitude of a number without limits, which is then written without an exponent; `None`
    /// leaves it open. Digits after the decimal point are not counted.
    pub max_number: Option<u64>,
    /// Whether objects that list properties and say nothing about others have no others.
    pub close_objects: bool,
    /// White space allowed in each place that may have some, as a regular expression; `None` allows any
    /// amount. Strings are not concerned.
    pub white_space: Option<String>,
}

impl Default for JsonOptions {
    /// Strings of 256 characters, arrays of 32 items, numbers up to 2⁵³, closed objects, and at most one
    /// space, or a line break with an indentation of 16, in one place.
    fn default() -> Self {
        Self {
            max_string: Some(256),
            max_items: Some(32),
            max_number: Some(1 << 53),
            close_objects: true,
            white_space: Some(r"\x20|\x0A\x20{0,16}".into()),
        }
    }
}

impl JsonOptions {
    /// The schema as it is written, with any white space.
    pub fn unbounded() -> Self {
        Self { max_string: None, max_items: None, max_number: None, close_objects: false, white_space: None }
    }
}

/// Deeper schemas are left as they are; JSON readers stop at this depth as well.
const DEEPEST: usize = 128;

/// The schema with the options' bounds and layout.
pub(crate) fn apply(schema: Value, options: &JsonOptions) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({ "not": {} }),
        other => other,
    };
    // The matcher merges schemas for one object, and closing one of them would close them all.
    let close = options.close_objects && !any_schema(&schema, 0, &describes_twice);
    narrow(&mut schema, options, close, 0);
    if let (Some(object), Some(pattern)) = (schema.as_object_mut(), &options.white_space) {
        let layout = object.entry("x-guidance").or_insert_with(|| json!({}));
        if let Some(layout) = layout.as_object_mut() {
            layout.entry("whitespace_pattern").or_insert_with(|| json!(pattern));
        }
    }
    schema
}

/// Whether exactly one of several schemas must hold somewhere. Narrowing one of them may then make more
/// values valid, unless no two of them share a value as they are written.
pub(crate) fn excludes(schema: &Value) -> bool {
    any_schema(schema, 0, &|object| object.contains_key("oneOf"))
}

fn narrow(schema: &mut Value, options: &JsonOptions, close: bool, depth: usize) {
    let Some(object) = schema.as_object_mut().filter(|_| depth < DEEPEST) else {
        return;
    };
    bound_string(object, options);
    bound_array(object, options);
    bound_number(object, options);
    if close && can_close(object) {
        object.entry("additionalProperties").or_insert(json!(false));
    }
    for (key, value) in object.iter_mut() {
        match (place(key), value) {
            (Place::Named, Value::Object(named)) => {
                named.values_mut().for_each(|each| narrow(each, options, close, depth + 1));
            }
            (Place::Listed, Value::Array(several)) => {
                several.iter_mut().for_each(|each| narrow(each, options, close, depth + 1));
            }
            (Place::Single, value) => narrow(value, options, close, depth + 1),
            _ => {}
        }
    }
}

/// Where a keyword holds schemas.
enum Place {
    Named,
    Listed,
    Single,
    Nowhere,
}

fn place(keyword: &str) -> Place {
    match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" => Place::Named,
        "anyOf" | "oneOf" | "allOf" | "prefixItems" => Place::Listed,
        "items" | "additionalItems" | "additionalProperties" => Place::Single,
        _ => Place::Nowhere,
    }
}

/// Whether a schema, or one inside it, has a property.
fn any_schema(schema: &Value, depth: usize, holds: &dyn Fn(&Map<String, Value>) -> bool) -> bool {
    let Some(object) = schema.as_object().filter(|_| depth < DEEPEST) else {
        return false;
    };
    let within = |inner: &Value| any_schema(inner, depth + 1, holds);
    holds(object)
        || object.iter().any(|(key, value)| match (place(key), value) {
            (Place::Named, Value::Object(named)) => named.values().any(within),
            (Place::Listed, Value::Array(several)) => several.iter().any(within),
            (Place::Single, value) => within(value),
            _ => false,
        })
}

/// Whether more than one schema speaks about the same object.
fn describes_twice(object: &Map<String, Value>) -> bool {
    let own = ["properties", "patternProperties", "additionalProperties", "required", "minProperties"];
    let all = object.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = ["anyOf", "oneOf", "$ref"].iter().filter(|key| object.contains_key(**key)).count();
    usize::from(states(object, &own)) + all + others > 1
}

/// Whether an object can be valid without properties that it does not list.
fn can_close(object: &Map<String, Value>) -> bool {
    let Some(listed) = object.get("properties").and_then(Value::as_object) else {
        return false;
    };
    let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
    let known = required.filter_map(Value::as_str).all(|name| listed.contains_key(name));
    known && least(object, "minProperties") <= listed.len() && !object.contains_key("patternProperties")
}

/// Whether a schema object is about values of this type, by name.
fn of_type(object: &Map<String, Value>, name: &str) -> bool {
    match object.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|each| each == name),
        _ => false,
    }
}

fn states(object: &Map<String, Value>, keys: &[&str]) -> bool {
    keys.iter().any(|key| object.contains_key(*key))
}

fn least(object: &Map<String, Value>, key: &str) -> usize {
    object.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

fn bound_string(object: &mut Map<String, Value>, options: &JsonOptions) {
    let stated = states(object, &["maxLength", "pattern", "format", "enum", "const"]);
    if let Some(limit) = options.max_string.filter(|_| of_type(object, "string") && !stated) {
        let limit = limit.max(least(object, "minLength"));
        object.insert("maxLength".into(), json!(limit));
    }
}

fn bound_array(object: &mut Map<String, Value>, options: &JsonOptions) {
    let stated = states(object, &["maxItems", "enum", "const"]);
    if let Some(limit) = options.max_items.filter(|_| of_type(object, "array") && !stated) {
        let listed = object.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
        let limit = limit.max(least(object, "minItems")).max(listed);
        object.insert("maxItems".into(), json!(limit));
    }
}

fn bound_number(object: &mut Map<String, Value>, options: &JsonOptions) {
    let upper = states(object, &["maximum", "exclusiveMaximum", "enum", "const", "multipleOf"]);
    let lower = states(object, &["minimum", "exclusiveMinimum", "enum", "const", "multipleOf"]);
    let numeric = of_type(object, "integer") || of_type(object, "number");
    let Some(limit) = options.max_number.filter(|_| numeric) else {
        return;
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let stated = |key: &str| object.get(key).and_then(Value::as_f64);
    let floor = stated("minimum").or(stated("exclusiveMinimum"));
    let ceiling = stated("maximum").or(stated("exclusiveMaximum"));
    // A stated bound beyond ours leaves no room between the two.
    if !upper && floor.is_none_or(|floor| floor < limit as f64) {
        object.insert("maximum".into(), json!(limit));
    }
    if !lower && ceiling.is_none_or(|ceiling| ceiling > -(limit as f64)) {
        object.insert("minimum".into(), json!(-limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(schema: Value) -> Value {
        let mut bounded = apply(schema, &JsonOptions { white_space: None, ..JsonOptions::default() });
        bounded.as_object_mut().unwrap().remove("x-guidance");
        bounded
    }

    #[test]
    fn open_ends_get_a_bound_and_stated_ones_stay() {
        assert_eq!(bounded(json!({ "type": "string" }))["maxLength"], 256);
        assert_eq!(bounded(json!({ "type": "string", "minLength": 300 }))["maxLength"], 300);
        assert_eq!(bounded(json!({ "type": ["null", "string"] }))["maxLength"], 256);
        for stated in [
            json!({ "type": "string", "maxLength": 9 }),
            json!({ "type": "string", "pattern": "^a+$" }),
            json!({ "enum": ["a"] }),
            json!({ "type": "array", "maxItems": 1 }),
            json!({ "type": "integer", "minimum": 0, "maximum": 5 }),
        ] {
            assert_eq!(bounded(stated.clone()), stated);
        }
        let array = bounded(json!({ "type": "array", "minItems": 40, "items": { "type": "string" } }));
        assert_eq!((&array["maxItems"], &array["items"]["maxLength"]), (&json!(40), &json!(256)));
        for kind in ["integer", "number"] {
            let number = bounded(json!({ "type": [kind, "null"], "minimum": 0 }));
            assert_eq!((&number["minimum"], &number["maximum"]), (&json!(0), &json!(1_u64 << 53)));
        }
    }

    #[test]
    fn objects_are_closed_unless_something_else_describes_them() {
        let object = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let closed = bounded(object.clone());
        assert_eq!(closed["additionalProperties"], false);
        assert_eq!(closed["properties"]["a"]["maxLength"], 256);
        assert_eq!(bounded(json!({ "allOf": [object, {}] }))["allOf"][0].get("additionalProperties"), None);
        let open = bounded(json!({ "properties": {}, "additionalProperties": { "type": "string" } }));
        assert_eq!(open["additionalProperties"]["maxLength"], 256);
        let branches = bounded(json!({ "properties": {}, "anyOf": [{ "properties": {} }] }));
        assert_eq!(branches["anyOf"][0].get("additionalProperties"), None);
    }

    #[test]
    fn the_layout_is_the_callers_where_he_states_one() {
        let own = json!({ "x-guidance": { "whitespace_flexible": false } });
        let laid_out = apply(own, &JsonOptions::default());
        assert_eq!(laid_out["x-guidance"]["whitespace_flexible"], false);
        assert_eq!(apply(json!(true), &JsonOptions::unbounded()), json!({}));
    }
}
