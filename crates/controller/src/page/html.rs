//! HTML in which data of peers is always text, never markup.

use std::fmt::{self, Display, Write};

/// A piece of HTML. Markup enters it only as a literal of this program; everything else is
/// escaped, in text and in quoted attributes alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

impl Html {
    /// Adds markup. The type allows only text that is known when this program is compiled.
    pub(crate) fn raw(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Adds text, or another piece of HTML.
    pub(crate) fn show(&mut self, shown: &(impl Show + ?Sized)) {
        shown.show_in(self);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// A value that can be added to HTML.
pub(crate) trait Show {
    fn show_in(&self, out: &mut Html);
}

impl Show for Html {
    fn show_in(&self, out: &mut Html) {
        out.0.push_str(&self.0);
    }
}

impl<T: Display + ?Sized> Show for T {
    fn show_in(&self, out: &mut Html) {
        // Writing to a String cannot fail.
        let _ = write!(Escaped(&mut out.0), "{self}");
    }
}

/// Escapes what is written through it.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // Characters that change the writing direction could make a name look like another.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.0.push('\u{fffd}'),
                c if c.is_control() && c != '\n' && c != '\t' => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

/// Adds to an [`Html`]: literals are markup, and expressions in braces are shown.
macro_rules! html {
    ($out:expr; $($part:tt)*) => {{
        let out: &mut $crate::page::html::Html = $out;
        $( $crate::page::html::html!(@ out, $part); )*
    }};
    (@ $out:ident, $markup:literal) => { $out.raw($markup) };
    (@ $out:ident, {$($shown:tt)*}) => { $out.show(&($($shown)*)) };
}
pub(crate) use html;

/// A piece of HTML of its own, from the same parts.
macro_rules! piece {
    ($($part:tt)*) => {{
        let mut out = $crate::page::html::Html::default();
        $crate::page::html::html!(&mut out; $($part)*);
        out
    }};
}
pub(crate) use piece;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_peer_is_escaped_everywhere() {
        let hostile = "<img src=x onerror='alert(1)'>\"&\u{202e}\u{1b}";
        let mut inner = Html::default();
        html!(&mut inner; "<b>" {hostile} "</b>");
        let mut out = Html::default();
        html!(&mut out; "<a title='" {hostile} "'>" {inner} {7} "</a>");
        let safe = "&lt;img src=x onerror=&#39;alert(1)&#39;&gt;&quot;&amp;\u{fffd}\u{fffd}";
        assert_eq!(out.into_string(), format!("<a title='{safe}'><b>{safe}</b>7</a>"));
    }
}
