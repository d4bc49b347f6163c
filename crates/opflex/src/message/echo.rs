//! `echo` (draft 4.2.3).

use serde_json::Value;

/// The parameters of an echo, which checks that the other side is alive.
///
/// In the draft an echo has no parameters and is answered with an empty object. libopflex sends its
/// clock in milliseconds and answers with the parameters. Both sides send an echo as soon as they
/// are connected, before their identities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Echo(pub Vec<Value>);

impl Echo {
    /// The answer: the parameters, as libopflex expects, or the empty object of the draft if there
    /// are no parameters.
    pub fn answer(self) -> Value {
        if self.0.is_empty() {
            Value::Object(serde_json::Map::new())
        } else {
            Value::Array(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_returned_and_missing_ones_as_an_object() {
        assert_eq!(Echo(vec![json!(1_383_103)]).answer(), json!([1_383_103]));
        assert_eq!(Echo(vec![]).answer(), json!({}));
    }
}
