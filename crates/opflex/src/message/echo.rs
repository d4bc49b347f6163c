//! `echo` (draft 4.2.3).

use serde_json::Value;

/// Asks whether the other side is alive.
///
/// The draft has no parameters and an empty object for an answer. libopflex
/// sends its clock in milliseconds and answers with the parameters; both sides
/// send one at once on connect, before their identities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Echo(pub Vec<Value>);

impl Echo {
    /// The answer: the parameters, as libopflex expects, and the empty
    /// object of the draft when there are none.
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
    fn parameters_return_and_none_return_as_an_object() {
        assert_eq!(Echo(vec![json!(1_383_103)]).answer(), json!([1_383_103]));
        assert_eq!(Echo(vec![]).answer(), json!({}));
    }
}
