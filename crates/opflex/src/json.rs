//! Reading JSON more strictly than serde derives, and the memory of JSON values.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Reads a struct from a JSON object and refuses an array. A derived `Deserialize` also accepts an
/// array and uses its elements as the members in their order.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapOnly<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MapOnly<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        // `deserialize_map` refuses arrays, which `deserialize_struct` takes.
        deserializer.deserialize_map(MapOnly(PhantomData))
    }
}

/// Reads a member that is an array of objects. Null counts as an empty array.
pub(crate) fn objects<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let values: Option<Vec<Object<T>>> = Option::deserialize(deserializer)?;
    Ok(values
        .unwrap_or_default()
        .into_iter()
        .map(|Object(value)| value)
        .collect())
}

/// Reads a member that is an array. Null counts as an empty array.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a type from a JSON string. `expected` describes the type in error texts. The string is
/// copied only if it has escapes.
pub(crate) fn text<'de, D, T>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    struct Text<T>(&'static str, PhantomData<T>);
    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Text(expected, PhantomData))
}

/// The approximate length of a value as JSON text, in bytes.
pub(crate) fn text_len(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => 2 + text.len(),
        Value::Array(values) => 2 + values.iter().map(|value| 1 + text_len(value)).sum::<usize>(),
        Value::Object(members) => {
            let members = members.iter();
            2 + members
                .map(|(name, value)| 4 + name.len() + text_len(value))
                .sum::<usize>()
        }
    }
}

// The memory of values, in bytes. The scanner adds these constants up by brackets, commas and
// colons, before the JSON is parsed.

/// The memory of an object with one member: its map allocates a node with places for 11 members.
pub(crate) const OBJECT: usize = 11 * (size_of::<String>() + size_of::<Value>()) + ALLOCATION;
/// The memory of a further member: its share of a node that is half full, and its name.
pub(crate) const MEMBER: usize = OBJECT / 6 + ALLOCATION;
/// The memory of a list with one element: it has places for four at once.
pub(crate) const LIST: usize = 4 * size_of::<Value>() + ALLOCATION;
/// The memory of a further element: up to two places, because a list that is full doubles, and one
/// allocation, such as its text.
pub(crate) const ELEMENT: usize = 2 * size_of::<Value>() + ALLOCATION;
/// The memory of the smallest allocation, with the overhead of the allocator.
const ALLOCATION: usize = 32;

/// The memory of an allocation of this size, with the overhead of the allocator.
pub(crate) fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        // Allocators round up, and keep some bytes for themselves.
        bytes => (bytes + 16).next_multiple_of(16).max(ALLOCATION),
    }
}

/// The approximate memory that a value has allocated, without `size_of::<Value>()`.
pub(crate) fn memory(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => allocated(text.capacity()),
        Value::Array(values) => {
            allocated(values.capacity() * size_of::<Value>()) + values.iter().map(memory).sum::<usize>()
        }
        Value::Object(members) => map_memory(members),
    }
}

/// The approximate memory that the members of an object have allocated.
pub(crate) fn map_memory(members: &Map<String, Value>) -> usize {
    // The nodes of a map into which members are inserted in any order are at least half full.
    let nodes = members.len().div_ceil(6) * OBJECT;
    let inner = members
        .iter()
        .map(|(name, value)| allocated(name.capacity()) + memory(value));
    nodes + inner.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Pair {
        a: u32,
        b: u32,
    }

    #[test]
    fn an_array_is_refused_as_an_object() {
        let value = json!([1, 2]);
        assert!(serde_json::from_value::<Pair>(value.clone()).is_ok());
        assert!(serde_json::from_value::<Object<Pair>>(value).is_err());
        let Object(pair) = serde_json::from_str::<Object<Pair>>(r#"{"b":2,"a":1}"#).unwrap();
        assert_eq!(pair, Pair { a: 1, b: 2 });
        assert!(objects::<_, Pair>(json!([[1, 2]])).is_err());
        assert_eq!(objects::<_, Pair>(json!(null)).unwrap(), []);
    }
}
