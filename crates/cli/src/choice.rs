//! Flags whose value is one word of a short list, and flags that may be left out.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// The words of a flag, each with its help text and with the value that it stands for.
pub(crate) type Choices<T> = &'static [(&'static str, &'static str, T)];

/// Reads one of the words, and gives the value that it stands for.
pub(crate) fn one_of<T: Clone + Send + Sync>(choices: Choices<T>) -> impl TypedValueParser<Value = T> {
    let words = choices.iter().map(|(word, help, _)| match *help {
        "" => PossibleValue::new(*word),
        help => PossibleValue::new(*word).help(help),
    });
    PossibleValuesParser::new(words).try_map(|given| {
        // clap has compared the word already, without regard to case if the flag says so.
        let chosen = choices
            .iter()
            .find(|(word, ..)| word.eq_ignore_ascii_case(&given));
        chosen.map(|(.., value)| value.clone()).ok_or("not a known word")
    })
}

/// A configuration that has a default for each of its values.
pub(crate) trait Given: Sized {
    /// The configuration with a value if the user gave one, else as it is.
    fn given<T>(self, value: Option<T>, set: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => set(self, value),
            None => self,
        }
    }
}

impl<C> Given for C {}
