//! Random JSON with the member names of the protocol.

use proptest::prelude::*;
use serde_json::Value;

/// Random JSON with the member names of the protocol.
pub(crate) fn json_value() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "subject",
        "uri",
        "policy_uri",
        "policy_ident",
        "endpoint_uri",
        "endpoint_ident",
        "context",
        "name",
        "identifier",
        "prr",
        "data",
        "properties",
        "children",
        "parent_uri",
        "replace",
        "merge_children",
        "delete",
        "endpoint",
        "observable",
        "policy",
        "peers",
        "role",
        "connectivity_info",
        "my_role",
        "code",
        "method",
        "params",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(/[a-z]{1,3}){0,3}/?".prop_map(Value::from),
        "[ -~]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(name.clone(), inner, 0..6)
                .prop_map(|members| members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}
