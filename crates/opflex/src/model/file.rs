//! Files of objects: policy to load, and dumps of trees.

use serde::de::DeserializeOwned;

use super::error::FileError;
use super::managed_object::ManagedObject;

/// The format of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// JSON, the format of the policy file of agent-ovs.
    #[default]
    Json,
    /// YAML with the same contents.
    Yaml,
}

impl Format {
    /// The format of a file by its extension: YAML for `.yaml` and `.yml`, otherwise JSON.
    pub fn of_name(name: &str) -> Self {
        let end = name.rsplit_once('.').map_or("", |(_, end)| end);
        if end.eq_ignore_ascii_case("yaml") || end.eq_ignore_ascii_case("yml") {
            Self::Yaml
        } else {
            Self::Json
        }
    }

    pub(super) fn read<T: DeserializeOwned>(self, text: &[u8]) -> Result<T, FileError> {
        match self {
            Self::Json => serde_json::from_slice(ssntp_yaml::without_mark(text))
                .map_err(|error| FileError::Json(error.to_string())),
            // The size has no limit, because the file is the user's own.
            Self::Yaml => ssntp_yaml::Node::parse(text, 1, usize::MAX)
                .map_err(|error| error.to_string())
                // A file that a full disk has emptied would delete all objects; `[]` has none on purpose.
                .and_then(|file| {
                    if file.is_empty() {
                        return Err("line 1: it is empty".to_owned());
                    }
                    file.decode(None).map_err(|error| error.to_string())
                })
                .map_err(FileError::Yaml),
        }
    }
}

impl ManagedObject {
    /// Reads the text of an array of objects in the form of messages, such as that of the policy file
    /// of agent-ovs's `opflex_server`. Objects without members are skipped, because the policy file
    /// in the container of agent-ovs has one.
    pub fn read_all(text: &[u8], format: Format) -> Result<Vec<Self>, FileError> {
        let error = match format.read(text) {
            Ok(objects) => return Ok(objects),
            Err(error) => error,
        };
        let values: Vec<serde_json::Value> = format.read(text).unwrap_or_default();
        let is_empty = |value: &serde_json::Value| value.as_object().is_some_and(serde_json::Map::is_empty);
        if !values.iter().any(is_empty) {
            return Err(error);
        }
        // The error above may be about an object without members.
        let values = values.into_iter().enumerate();
        let objects = values.filter(|(_, value)| !is_empty(value)).map(|(n, value)| {
            serde_json::from_value(value).map_err(|error| {
                let why = format!("object {}: {error}", n + 1);
                match format {
                    Format::Json => FileError::Json(why),
                    Format::Yaml => FileError::Yaml(why),
                }
            })
        });
        objects.collect()
    }

    /// The text of these objects, which [`read_all`](Self::read_all) reads.
    pub fn write_all(objects: &[Self], format: Format) -> Result<String, FileError> {
        match format {
            Format::Json => serde_json::to_string_pretty(objects)
                .map(|text| text + "\n")
                .map_err(|error| FileError::Json(error.to_string())),
            Format::Yaml => {
                let text = ssntp_yaml::encode(objects).map_err(|error| FileError::Yaml(error.to_string()))?;
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_extension_determines_the_format() {
        for (name, format) in [
            ("policy.yaml", Format::Yaml),
            ("a.b.YML", Format::Yaml),
            ("policy.json", Format::Json),
            ("policy", Format::Json),
            ("yaml", Format::Json),
        ] {
            assert_eq!(Format::of_name(name), format, "{name}");
        }
    }

    #[test]
    fn an_empty_object_is_skipped() {
        for (text, format) in [("[ { } ]", Format::Json), ("- {}\n", Format::Yaml)] {
            assert_eq!(ManagedObject::read_all(text.as_bytes(), format).unwrap(), []);
        }
        let text = r#"[{}, {"subject": "a", "uri": "/a/"}]"#;
        assert_eq!(
            ManagedObject::read_all(text.as_bytes(), Format::Json)
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn errors_have_the_position_of_the_fault() {
        for (text, format) in [
            ("[{\"subject\":\"a\",\n\"uri\":7}]", Format::Json),
            ("{}", Format::Json),
            ("- subject: a\n  uri: {}\n", Format::Yaml),
            ("a: &x 1\nb: *x\n", Format::Yaml),
            ("", Format::Json),
            ("", Format::Yaml),
            ("\u{feff}# all objects were here\n---\n", Format::Yaml),
            ("~\n", Format::Yaml),
        ] {
            let error = ManagedObject::read_all(text.as_bytes(), format)
                .unwrap_err()
                .to_string();
            assert!(error.contains("line") || error.contains("anchor"), "{error}");
        }
        for (text, format) in [
            (r#"[{}, {"subject": "a", "uri": 7}]"#, Format::Json),
            ("- {}\n- {subject: a, uri: 7}\n", Format::Yaml),
        ] {
            let error = ManagedObject::read_all(text.as_bytes(), format)
                .unwrap_err()
                .to_string();
            assert!(error.contains("object 2") && error.contains('7'), "{error}");
        }
    }

    #[test]
    fn hand_written_yaml_is_read() {
        let text = "
- subject: GbpEpGroup
  uri: /GbpEpGroup/web/
  properties:
    - {name: name, data: web}
    - {name: encapId, data: 12}
    - name: target
      data: {subject: GbpContract, reference_uri: /GbpContract/c/}
";
        let objects = ManagedObject::read_all(text.as_bytes(), Format::Yaml).unwrap();
        assert_eq!(objects[0].property("encapId"), Some(&json!(12)));
        assert_eq!(
            objects[0].property("target").unwrap()["reference_uri"],
            "/GbpContract/c/"
        );
    }

    proptest! {
        #[test]
        fn both_formats_read_back(values in prop::collection::vec(value(), 0..6)) {
            let mut object = ManagedObject::new("class", "/class/x/".parse().unwrap());
            for (n, value) in values.into_iter().enumerate() {
                object = object.with(format!("p{n}"), value);
            }
            let objects = vec![object];
            for format in [Format::Json, Format::Yaml] {
                let text = ManagedObject::write_all(&objects, format).unwrap();
                prop_assert_eq!(&ManagedObject::read_all(text.as_bytes(), format).unwrap(), &objects, "{}", text);
            }
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1_000_000i64..1_000_000).prop_map(|n| Value::from(n as f64 / 1000.0)),
            "[ -~é]{0,12}".prop_map(Value::from),
            prop::sample::select(vec![
                "yes",
                "null",
                "~",
                "010",
                "1_000",
                "12:30:45",
                "0x1f",
                "1e3",
                ".inf",
                "- a",
                "a: b",
                "#x",
                "",
                " x ",
                "true",
                "=",
                "2001-01-01",
                "a\nb\n",
                "\t",
                "'",
                "\"",
                "---",
                "...",
                "%2f",
                "&a",
                "*a",
                "!t",
                "1.",
                ".5",
                "0b1",
                "0o7",
            ])
            .prop_map(Value::from),
            Just(json!({"subject": "c", "reference_uri": "/c/%2fx%2f/"})),
            Just(json!(["a", 1, {"k": []}])),
        ]
    }
}
