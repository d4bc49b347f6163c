//! The names and labels of instances, which a START sets and STATS report, and the labels of nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de};

use ssntp::payload::Id;
use ssntp_transport::printable;

/// The maximum number of bytes of a name, and of the key and the value of a label.
pub const MAX_LABEL: usize = 63;
/// The maximum number of labels of an instance or a node.
pub const MAX_LABELS: usize = 32;

/// Checks the name of an instance: 1 to 63 ASCII letters, digits, `.`, `_` and `-`, a letter or a
/// digit first, and not a UUID, which would identify another instance.
///
/// # Errors
/// The rule that the name breaks.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    // Commands accept the name of an instance or its UUID, so no text may be both.
    if Id::uuid_in(name).is_some() {
        return Err("a name is not a UUID");
    }
    if is_word(name, b"._-") {
        Ok(())
    } else {
        Err("a name has 1 to 63 letters, digits, '.', '_' and '-', a letter or a digit first")
    }
}

/// Checks a label: the key is like a name and may also contain `/`; the value has at
/// most 63 bytes and only visible characters.
///
/// # Errors
/// The rule that the label breaks.
pub fn check_label(key: &str, value: &str) -> Result<(), &'static str> {
    if !is_word(key, b"._-/") {
        return Err(
            "the key of a label has 1 to 63 letters, digits, '.', '_', '-' and '/', a letter or a digit first",
        );
    }
    // Values are printed on terminals, where control characters could forge lines.
    if value.len() <= MAX_LABEL && printable(value) == value {
        Ok(())
    } else {
        Err("the value of a label has at most 63 bytes, and nothing in it that does not show")
    }
}

/// Reads a label in the form of a flag: `KEY=VALUE`.
///
/// # Errors
/// The rule that it breaks.
pub fn parse_label(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    check_label(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Checks the number of labels, and each of them.
///
/// # Errors
/// The rule that they break.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    // STATS repeat the labels of each instance, so their number is limited.
    if labels.len() > MAX_LABELS {
        return Err(format!("more than {MAX_LABELS} labels"));
    }
    let mut labels = labels.iter();
    labels
        .try_for_each(|(key, value)| check_label(key, value))
        .map_err(str::to_owned)
}

fn is_word(text: &str, others: &[u8]) -> bool {
    let first = text.bytes().next();
    text.len() <= MAX_LABEL
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
}

pub(crate) fn read_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.is_empty() {
        Ok(name)
    } else {
        check_name(&name).map(|()| name).map_err(de::Error::custom)
    }
}

pub(crate) fn read_labels<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let labels = BTreeMap::<String, String>::deserialize(deserializer)?;
    check_labels(&labels).map(|()| labels).map_err(de::Error::custom)
}
