//! Escapes hidden characters in texts of peers and certificates, for terminals, logs and programs: none
//! moves the cursor, ends a line or changes the writing direction.

use std::fmt::{self, Display, Write};

/// The number of characters, as they are shown, of a peer's text that a log line repeats.
const EXCERPT: usize = 200;

/// The text in one line, with hidden characters escaped as in `\u{202e}`.
pub fn printable(text: &str) -> String {
    escaped(text, does_not_show, |c, out| out.extend(c.escape_default()))
}

/// The JSON text with hidden characters escaped, such as `\u202e`. Line ends stay, because in JSON they
/// can only be between values.
pub fn printable_json(json: &str) -> String {
    escaped(
        json,
        |c| does_not_show(c) && c != '\n',
        |c, out| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        },
    )
}

/// The beginning of a peer's text, in one line: at most 200 characters, as they are shown.
pub fn excerpt<T: Display>(said: T) -> Excerpt<T> {
    Excerpt(said)
}

/// As [`excerpt`], for bytes that may not be text.
pub fn excerpt_bytes(said: &[u8]) -> Excerpt<std::borrow::Cow<'_, str>> {
    // A character has at most four bytes, so the bytes that are cut here would not be shown.
    let most = said.len().min(4 * (EXCERPT + 1));
    Excerpt(String::from_utf8_lossy(&said[..most]))
}

/// The beginning of a text: at most `most` bytes, cut between characters.
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The beginning of a text, made by [`excerpt`].
#[derive(Clone, Copy, Debug)]
pub struct Excerpt<T>(T);

impl<T: Display> Display for Excerpt<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cut = Cut {
            to: f,
            left: EXCERPT,
            over: false,
        };
        match write!(cut, "{}", self.0) {
            Err(fmt::Error) if cut.over => cut.to.write_char('…'),
            result => result,
        }
    }
}

/// Passes on a number of characters, counted as they are shown, and then fails.
struct Cut<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    left: usize,
    over: bool,
}

impl Write for Cut<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            let is_hidden = does_not_show(c);
            let shown = if is_hidden { c.escape_default().len() } else { 1 };
            if shown > self.left {
                // An error, so that the rest of a long text is not even formatted.
                self.over = true;
                return Err(fmt::Error);
            }
            self.left -= shown;
            if is_hidden {
                write!(self.to, "{}", c.escape_default())?;
            } else {
                self.to.write_char(c)?;
            }
        }
        Ok(())
    }
}

fn escaped(text: &str, which: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if which(c) {
            escape(c, &mut out)
        } else {
            out.push(c)
        }
    }
    out
}

/// Controls, line and paragraph separators, and the characters that Unicode lists as
/// Default_Ignorable_Code_Point: marks of direction, joiners, fillers, selectors and tags, which change
/// the shown text without being visible.
fn does_not_show(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{34f}' | '\u{61c}'
        | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters of each class that is escaped.
    const HIDDEN: [(&str, &str); 8] = [
        ("C0 and line ends", "\0\u{7}\t\n\r\u{1b}"),
        ("DEL and C1", "\u{7f}\u{80}\u{85}\u{9b}\u{9f}"),
        (
            "embeddings and overrides",
            "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}",
        ),
        ("isolates", "\u{2066}\u{2067}\u{2068}\u{2069}"),
        ("marks of direction", "\u{200e}\u{200f}\u{61c}"),
        (
            "zero width",
            "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{ad}\u{34f}",
        ),
        ("separators", "\u{2028}\u{2029}"),
        (
            "fillers, selectors and tags",
            "\u{115f}\u{3164}\u{fe0f}\u{e0001}\u{e007f}",
        ),
    ];

    #[test]
    fn every_class_of_hidden_characters_is_escaped() {
        for (class, characters) in HIDDEN {
            for c in characters.chars() {
                let shown = printable(&format!("a{c}b"));
                assert_eq!(shown, format!("a{}b", c.escape_default()), "{class}");
            }
        }
    }

    #[test]
    fn visible_characters_stay() {
        let text = "a b ~ \\ \" ' ü é e\u{301} 漢字 עברית हिन्दी → █ 😀 \u{a0}";
        assert_eq!(printable(text), text);
    }

    #[test]
    fn escaped_json_keeps_its_meaning_and_hides_no_characters() {
        for (class, characters) in HIDDEN {
            let value = serde_json::json!({ characters: [characters, "ü"] });
            for json in [value.to_string(), format!("{value:#}")] {
                let shown = printable_json(&json);
                assert!(
                    !shown.chars().any(|c| c != '\n' && does_not_show(c)),
                    "{class}: {shown}"
                );
                assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
            }
        }
        assert_eq!(printable_json("\"\u{202e}\u{e0001}\""), r#""\u202e\udb40\udc01""#);
    }

    #[test]
    fn an_excerpt_is_short_and_in_one_line() {
        assert_eq!(excerpt("two\nlines").to_string(), "two\\nlines");
        let exact = "ü".repeat(EXCERPT);
        assert_eq!(excerpt(&exact).to_string(), exact);
        for long in [format!("{exact}x"), format!("{exact}{exact}")] {
            assert_eq!(excerpt(&long).to_string(), format!("{exact}…"));
        }
        let pieces = excerpt(format_args!("{exact}{}{}", 1, 2)).to_string();
        assert_eq!(pieces, format!("{exact}…"));
        // What is hidden counts as it is shown, and is not shown in part.
        let hidden = excerpt("\u{e0fff}".repeat(EXCERPT)).to_string();
        assert_eq!(hidden, format!("{}…", "\\u{e0fff}".repeat(EXCERPT / 9)));
    }

    #[test]
    fn an_excerpt_of_bytes_shows_no_cut_character() {
        let long = "😀".repeat(10_000);
        assert_eq!(
            excerpt_bytes(long.as_bytes()).to_string(),
            format!("{}…", "😀".repeat(EXCERPT))
        );
        assert_eq!(excerpt_bytes(&[b'a', 0xff, b'\n']).to_string(), "a\u{fffd}\\n");
    }
}
