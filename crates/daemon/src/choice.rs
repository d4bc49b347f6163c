//! Flags with a value from a short list of words, and optional values of a configuration.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// The words of a flag, each with its help text and its value.
pub type Choices<T> = &'static [(&'static str, &'static str, T)];

/// A parser that reads one of the words and returns its value.
pub fn one_of<T: Clone + Send + Sync>(choices: Choices<T>) -> impl TypedValueParser<Value = T> {
    let words = choices
        .iter()
        .map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(words).try_map(|given| {
        // clap has accepted the word.
        let chosen = choices.iter().find(|(word, ..)| *word == given);
        chosen.map(|(.., value)| value.clone()).ok_or("not a known word")
    })
}

/// A configuration that has a default for each of its values.
pub trait Given: Sized {
    /// The configuration with the value if there is one, else unchanged.
    fn given<T>(self, value: Option<T>, set: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => set(self, value),
            None => self,
        }
    }
}

impl<C> Given for C {}
