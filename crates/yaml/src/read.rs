//! The tree as a serde `Deserializer`, which converts texts, numbers and empty values to the types of
//! a schema.

use std::iter::Enumerate;
use std::slice::Iter;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{Error, Segment, shortened};
use crate::tree::{Entry, Node, Style, Value};

/// Reads a list, or a single value as a list of one, because older writers wrote that. For serde's
/// `deserialize_with`. Only [`decode`](crate::decode) supports the single value.
///
/// # Errors
/// A value has another type.
pub fn one_or_many<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    // The tree's deserializer recognizes this name. serde has no other way to request that.
    #[derive(Deserialize)]
    #[serde(rename = "ssntp::OneOrMany")]
    struct OneOrMany<T>(Vec<T>);

    OneOrMany::deserialize(deserializer).map(|list| list.0)
}

const ONE_OR_MANY: &str = "ssntp::OneOrMany";

impl Node<'_> {
    /// The error of a value that has another type than expected.
    pub(crate) fn expected(&self, what: &str) -> Error {
        Error::type_error(what, self.describe()).at(self.position)
    }

    fn describe(&self) -> String {
        match self.value() {
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
            Value::Scalar(_, Style::Binary) => "binary data".to_owned(),
            Value::Scalar(..) if self.is_empty() => "nothing".to_owned(),
            Value::Scalar(text, Style::Plain) if boolean(text).is_some() => format!("boolean {text}"),
            Value::Scalar(text, Style::Plain) if is_ambiguous(text) => {
                format!("ambiguous number {} (octal in YAML 1.1)", shortened(text))
            }
            Value::Scalar(text, Style::Plain) if integer(text).is_some() || float(text).is_some() => {
                format!("number {}", shortened(text))
            }
            Value::Scalar(text, _) if text.is_empty() => "empty text".to_owned(),
            Value::Scalar(text, _) => format!("text {:?}", shortened(text)),
            // `value` resolves anchors, so this does not occur.
            Value::Shared(_) => String::new(),
        }
    }

    /// A scalar's text as it was written; an empty text for an empty value.
    ///
    /// # Errors
    /// This is a list or a map.
    pub fn text(&self) -> Result<&str, Error> {
        match self.value() {
            // Some senders write `name: ~` for an empty text.
            Value::Scalar(..) if self.is_empty() => Ok(""),
            Value::Scalar(text, Style::Plain | Style::Text) => Ok(text),
            _ => Err(self.expected("text")),
        }
    }

    /// Converts an unquoted scalar by `read`. An empty value gives the default.
    fn scalar<T: Default>(&self, read: fn(&str) -> Option<T>, what: &str) -> Result<T, Error> {
        let found = match self.value() {
            Value::Scalar(..) if self.is_empty() => Some(T::default()),
            // A quoted scalar is always text.
            Value::Scalar(text, Style::Plain) => read(text),
            _ => None,
        };
        found.ok_or_else(|| self.expected(what))
    }

    fn integer(&self, minimum: i128, maximum: i128) -> Result<i128, Error> {
        let number = self.scalar(integer, "an integer")?;
        if (minimum..=maximum).contains(&number) {
            Ok(number)
        } else {
            Err(self.expected(&format!("an integer from {minimum} to {maximum}")))
        }
    }

    fn map<'de, V: Visitor<'de>>(&self, visitor: V, skip_empty: bool) -> Result<V::Value, Error> {
        let entries = Entries {
            entries: self.entries()?.iter(),
            current: None,
            skip_empty,
        };
        visitor
            .visit_map(entries)
            .map_err(|error| error.at(self.position))
    }

    fn elements(&self) -> Result<&[Self], Error> {
        match self.list() {
            Some(nodes) => Ok(nodes),
            None if self.is_empty() => Ok(&[]),
            None => Err(self.expected("a list")),
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
                let number = self.integer(<$type>::MIN.into(), <$type>::MAX.into())?;
                // `integer` has checked the range.
                visitor.$visit(<$type>::try_from(number).unwrap_or_default())
            }
        )*
    };
}

macro_rules! forwards {
    ($($method:ident $to:ident;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
                self.$to(visitor)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for &Node<'_> {
    type Error = Error;

    forwards! {
        deserialize_f32 deserialize_f64;
        deserialize_char deserialize_str;
        deserialize_string deserialize_str;
        deserialize_bytes deserialize_str;
        deserialize_byte_buf deserialize_str;
        deserialize_identifier deserialize_str;
    }

    integers! {
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value() {
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
            Value::Scalar(..) if self.is_empty() => visitor.visit_unit(),
            Value::Scalar(text, Style::Plain) => {
                if is_ambiguous(text) {
                    Err(self.expected("a number without a leading zero, or a quoted text"))
                } else if let Some(value) = boolean(text) {
                    visitor.visit_bool(value)
                } else if let Some(number) = integer(text).and_then(|n| u64::try_from(n).ok()) {
                    visitor.visit_u64(number)
                } else if let Some(number) = integer(text).and_then(|n| i64::try_from(n).ok()) {
                    visitor.visit_i64(number)
                } else if let Some(number) = float(text) {
                    visitor.visit_f64(number)
                } else {
                    visitor.visit_str(text)
                }
            }
            _ => visitor.visit_str(self.text()?),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.scalar(boolean, "a boolean")?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(self.scalar(float, "a number")?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor
            .visit_str(self.text()?)
            .map_err(|error: Error| error.at(self.position))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_empty() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == ONE_OR_MANY && !self.is_empty() && !matches!(self.value(), Value::List(_)) {
            let one = Elements(std::slice::from_ref(self).iter().enumerate());
            return visitor.visit_newtype_struct(SeqAccessDeserializer::new(one));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor
            .visit_seq(Elements(self.elements()?.iter().enumerate()))
            .map_err(|error| error.at(self.position))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.map(visitor, false)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        // A field with an empty value has its default, as if it were missing.
        self.map(visitor, true)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor
            .visit_enum(IntoDeserializer::<Error>::into_deserializer(self.text()?))
            .map_err(|error| error.at(self.position))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! { unit unit_struct tuple tuple_struct }
}

struct Elements<'n, 'a>(Enumerate<Iter<'n, Node<'a>>>);

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some((index, node)) = self.0.next() else {
            return Ok(None);
        };
        seed.deserialize(node)
            .map(Some)
            .map_err(|error| error.at(node.position).under(Segment::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Entries<'n, 'a> {
    entries: Iter<'n, Entry<'a>>,
    /// The entry whose key was read and whose value was not.
    current: Option<&'n Entry<'a>>,
    skip_empty: bool,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let skip_empty = self.skip_empty;
        self.current = self.entries.find(|entry| !(skip_empty && entry.value.is_empty()));
        let Some(entry) = self.current else {
            return Ok(None);
        };
        let key: serde::de::value::StrDeserializer<'_, Error> = (*entry.key).into_deserializer();
        seed.deserialize(key)
            .map(Some)
            .map_err(|error| error.at(entry.at))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        // serde reads a value only after its key.
        let Some(entry) = self.current.take() else {
            return Err(serde::de::Error::custom("a value without its key"));
        };
        seed.deserialize(&entry.value)
            .map_err(|error| error.at(entry.value.position).under(Segment::key(&entry.key)))
    }
}

/// The booleans of YAML 1.1: each word in lower case, capitalized or in
/// upper case.
fn boolean(text: &str) -> Option<bool> {
    let value = match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => true,
        "false" | "no" | "off" | "n" => false,
        _ => return None,
    };
    let (first, rest) = text.split_at(1);
    let capitalized = first == first.to_ascii_uppercase() && rest == rest.to_ascii_lowercase();
    let same_case = text == text.to_ascii_lowercase() || text == text.to_ascii_uppercase();
    (capitalized || same_case).then_some(value)
}

/// An integer: decimal, or with `0x`, `0o` or `0b`; `_` is allowed between digits. A decimal number
/// with a leading zero is refused, because only YAML 1.1 reads it as octal.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(start) if start.starts_with('0') => return None,
        _ => (10, digits),
    };
    let outer = digits.starts_with('_') || digits.ends_with('_');
    if digits.is_empty() || outer || !digits.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return None;
    }
    // Also refused if most of the digits are zeros: the time to read them must be bounded.
    if digits.len() > 128 {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

/// True for a number such as `017`, which is 15 in YAML 1.1 and 17 in YAML 1.2.
fn is_ambiguous(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit())
}

/// A number with a fraction or an exponent, or an integer that is not ambiguous.
fn float(text: &str) -> Option<f64> {
    if is_ambiguous(text) {
        return None;
    }
    let unsigned = text.trim_start_matches(['-', '+']);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        // Rust reads the same words without the dot.
        return text.replace('.', "").parse().ok();
    }
    // Rust also reads "infinity" and "nan", which are text in YAML.
    let numeric = unsigned
        .bytes()
        .all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
    let begins = unsigned
        .trim_start_matches('.')
        .starts_with(|c: char| c.is_ascii_digit());
    (numeric && begins).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_yaml() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("+12", Some(12)),
            ("1_000", Some(1000)),
            ("0x1f", Some(31)),
            ("-0b11", Some(-3)),
            ("0o17", Some(15)),
            ("010", None),
            ("1:30", None),
            ("_1", None),
            ("1_", None),
            ("", None),
            ("-", None),
            ("0x", None),
            ("--1", None),
            ("0x-1", None),
            ("1.0", None),
            ("99999999999999999999999999999999999999999", None),
            ("é1", None),
        ] {
            assert_eq!(integer(text), number, "{text:?}");
        }
    }

    #[test]
    fn booleans_are_those_of_yaml_1_1() {
        for text in ["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "y", "Y"] {
            assert_eq!(boolean(text), Some(true), "{text:?}");
        }
        for text in ["false", "False", "no", "NO", "off", "Off", "n", "N"] {
            assert_eq!(boolean(text), Some(false), "{text:?}");
        }
        for text in ["", "tRUE", "yEs", "1", "oN", "é"] {
            assert_eq!(boolean(text), None, "{text:?}");
        }
    }

    #[test]
    fn floats_are_not_words() {
        for text in ["1.5", ".5", "-1e3", "0.", "6.02E+23"] {
            assert!(float(text).is_some(), "{text:?}");
        }
        assert_eq!(float("-.inf"), Some(f64::NEG_INFINITY));
        assert_eq!(float("+.INF"), Some(f64::INFINITY));
        assert!(float(".NaN").is_some_and(f64::is_nan));
        for text in [
            "", ".", "inf", "nan", "--.inf", "1.2.3", "e3", "10.0.0.7", "010", "-010",
        ] {
            assert!(float(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_number_has_one_sign() {
        assert!(is_ambiguous("-01") && !is_ambiguous("--01"));
        let text: String = crate::decode(b"--01").unwrap();
        let any: serde_json::Value = crate::decode(b"--01").unwrap();
        assert_eq!((text.as_str(), any.as_str()), ("--01", Some("--01")));
    }
}
