//! The writer: serde_yaml's output, with quotes around texts that YAML 1.1 would not read as text.

use bytes::Bytes;
use serde::Serialize;

use crate::error::{Error, ErrorKind};

/// Writes one document, ending with a line break.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the value's own `Serialize` fails, which never happens to payload
/// types.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, Error> {
    let text = serde_yaml::to_string(value).map_err(invalid)?;
    // In YAML 1.1 these two characters end a line, so serde_yaml indents the text after them, and
    // YAML 1.2 reads that indentation as text. JSON is YAML as well, and both versions read its
    // escapes, unless a key has more than 1,024 characters.
    if text.contains(['\u{2028}', '\u{2029}']) {
        let json = serde_json::to_string(value).map_err(invalid)?;
        return Ok((escaped(&json) + "\n").into());
    }
    Ok(quoted_for_older_readers(&text).into())
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid(error.to_string()))
}

/// JSON with escapes for characters that are not ASCII, because YAML allows fewer characters.
fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\u{7f}'..='\u{ffff}' => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Puts quotes around keys and values that are text to serde_yaml, and a boolean, a number or
/// a date to a reader of YAML 1.1. No number or boolean of a schema is ever written in such a
/// form, so the types need not be known.
///
/// serde_yaml breaks lines only in block scalars, so every other line has at most one key
/// and one value.
fn quoted_for_older_readers(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    // While a block scalar is copied: the column of its key or list item. The lines of the block
    // have a greater indentation.
    let mut block = None;
    for line in text.split_inclusive('\n') {
        let mut rest = line.trim_start_matches(' ');
        let mut column = line.len() - rest.len();
        if block.is_some_and(|owner| rest == "\n" || column > owner) {
            quoted.push_str(line);
            continue;
        }
        let mut owner = column;
        while let Some(inner) = ["- ", "? ", ": "].iter().find_map(|mark| rest.strip_prefix(mark)) {
            (owner, column, rest) = (column, column + 2, inner);
        }
        quoted.push_str(&line[..column]);
        if let Some(end) = key_end(rest) {
            owner = column;
            push(&mut quoted, &rest[..end]);
            let value = rest[end + 1..].trim_start_matches(' ');
            quoted.push_str(&rest[end..rest.len() - value.len()]);
            rest = value;
        }
        push(&mut quoted, rest.trim_end_matches('\n'));
        quoted.push('\n');
        block = rest.starts_with('|').then_some(owner);
    }
    quoted
}

/// The offset of the colon after a key. Colons in quotes are text. In single quotes a quote is
/// doubled, in double quotes it has a backslash before it.
fn key_end(line: &str) -> Option<usize> {
    let quote = line.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let (mut inside, mut escaped) = (false, false);
    for (at, character) in line.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if inside && quote == Some('"') => escaped = true,
            _ if quote == Some(character) => inside = !inside,
            ':' if !inside && line[at + 1..].starts_with([' ', '\n']) => return Some(at),
            _ => {}
        }
    }
    None
}

fn push(quoted: &mut String, scalar: &str) {
    if scalar == "''" {
        quoted.push_str("\"\"");
    } else if is_no_text_to_older_readers(scalar) {
        quoted.extend(["\"", scalar, "\""]);
    } else {
        quoted.push_str(scalar);
    }
}

/// True if YAML 1.1 reads an unquoted scalar as a boolean (`no`), a number (`1_000`, `12:30:45`), a
/// date or a merge key. Also true for some other texts; the quotes do not change them, because none
/// of these texts has a character that needs an escape in quotes.
fn is_no_text_to_older_readers(scalar: &str) -> bool {
    let words = ["y", "n", "yes", "no", "on", "off", "=", "<<"];
    if words.iter().any(|word| scalar.eq_ignore_ascii_case(word)) {
        return true;
    }
    let number = scalar.trim_start_matches(['-', '+']);
    let all = |text: &str, extra: &[u8]| text.bytes().all(|b| b.is_ascii_digit() || extra.contains(&b));
    let begins = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let separated = begins && number.contains(['_', ':']) && all(number, b"_:.eE+-");
    let in_base = ["0b", "0o", "0x"].iter().any(|base| {
        let digits = number.strip_prefix(base);
        digits.is_some_and(|digits| all(digits, b"_abcdefABCDEF"))
    });
    let is_year = |year: &str| year.len() == 4 && all(year, b"");
    let date = scalar
        .split_once('-')
        .is_some_and(|(year, rest)| is_year(year) && all(rest, b"-+:.tTzZ "));
    separated || in_base || date
}
