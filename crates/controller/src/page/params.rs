//! The query of a page's address. It alone selects the rows that a table shows.

use std::collections::HashSet;
use std::fmt::Write;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// Decodes the pairs of a request or a form. Pairs with an empty value are left out.
    pub(crate) fn decode(pairs: &[(String, String)]) -> Self {
        let pairs = pairs.iter().map(|(name, value)| (decode(name), decode(value)));
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(crate) fn of_form(body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        let pairs = body.split('&').filter_map(|pair| pair.split_once('='));
        let pairs: Vec<_> = pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self::decode(&pairs)
    }

    /// The value of a parameter; empty if the parameter is missing.
    pub(crate) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// A parameter that is there more than once.
    pub(crate) fn repeated(&self) -> Option<&str> {
        let mut known = HashSet::new();
        let mut names = self.0.iter().map(|(name, _)| name.as_str());
        names.find(|name| !known.insert(*name))
    }

    /// The value of a parameter as a number; `None` if it is missing or is not a number.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.get(name).parse().ok()
    }

    /// All parameters except those of these names.
    pub(crate) fn without<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a (String, String)> {
        self.0.iter().filter(|(name, _)| !names.contains(&name.as_str()))
    }

    /// The query after these changes; an empty value removes the parameter. The query begins with a
    /// question mark, so it can stand alone as a relative address.
    pub(crate) fn query(&self, changes: &[(&str, &str)]) -> String {
        let names: Vec<_> = changes.iter().map(|(name, _)| *name).collect();
        let kept = self
            .without(&names)
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let mut query = String::from("?");
        for (name, value) in kept
            .chain(changes.iter().copied())
            .filter(|(_, value)| !value.is_empty())
        {
            if query.len() > 1 {
                query.push('&');
            }
            query += &encode(name);
            query.push('=');
            query += &encode(value);
        }
        query
    }
}

/// Escapes a text for a path or a query.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(byte.into());
            }
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

/// Decodes a text of a path or a query. A `%` without two hexadecimal digits stays as it is.
pub(crate) fn decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let digits = after.first_chunk().and_then(|pair: &[u8; 2]| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok().filter(|_| !pair.contains('+'))
        });
        match (first, digits) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', _) => decoded.push(b' '),
            (other, _) => decoded.push(*other),
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        Params::of_form(query.as_bytes())
    }

    #[test]
    fn a_query_is_read_back_as_it_was_written() {
        for text in ["", "a b", "100%", "%4", "%+1", "ä/&=?#+", "<img onerror='x'>"] {
            assert_eq!(decode(&encode(text)), text);
        }
        assert_eq!(decode("100%&%zz%+1"), "100%&%zz% 1");
    }

    #[test]
    fn a_change_keeps_the_other_parameters() {
        let params = params("q=a+b&sort=name&page=3&empty=");
        assert_eq!(params.get("q"), "a b");
        assert_eq!(params.number::<usize>("page"), Some(3));
        assert_eq!(
            params.query(&[("sort", "-load"), ("page", "")]),
            "?q=a%20b&sort=-load"
        );
        assert_eq!(params.query(&[("q", ""), ("sort", ""), ("page", "")]), "?");
    }
}
