//! The part of STATS that a scheduler reads on its dispatcher, for every node.

use std::collections::BTreeMap;
use std::iter::{Map, Peekable};
use std::str::SplitTerminator;

use bytes::Bytes;
use uuid::Uuid;

use crate::{InstanceState, NodeStatus, Stats};
use ssntp::payload::schema::write;
use ssntp::payload::yaml;
use ssntp::payload::{Error, Id, MAX_READ_LEN, Payload};

/// A summary of STATS: the node, the interval, and the instances with their volumes.
///
/// ```
/// use ssntp::payload::Payload;
/// use ssntp_payload::{InstanceState, Stats, StatsSummary};
///
/// let stats = Stats::decode(b"
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// interval: 30
/// instances:
/// - instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
///   state: active
/// ")?;
/// let summary = StatsSummary::read(&stats.encode())?;
/// assert_eq!(summary.node_uuid, stats.node_uuid);
/// assert_eq!(summary.interval, 30);
/// let one = stats.instances[0].instance_uuid.uuid().unwrap();
/// assert_eq!(summary.instances, [(one, InstanceState::Active)]);
/// # Ok::<(), ssntp::payload::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsSummary {
    /// The node.
    pub node_uuid: Id,
    /// The interval at which the node sends STATS, in seconds; 0 if unknown.
    pub interval: i64,
    /// The instances, without those that have no UUID.
    pub instances: Vec<(Uuid, InstanceState)>,
    /// The attached volumes, each with its instance.
    pub volumes: Vec<(Uuid, Id)>,
}

impl StatsSummary {
    /// Reads a payload of STATS.
    ///
    /// If the document has the plain form in which [`Stats`](crate::Stats) are written, only these
    /// values are read, line by line, which takes a small part of the time of a full read. A full
    /// read finds the same values or refuses the document: mistakes in skipped lines, such as a
    /// duplicate key, are not noticed. A document in another form is read in full, if it has at
    /// most [`MAX_READ_LEN`] bytes.
    ///
    /// # Errors
    /// As [`yaml::decode`], also for a document in another form that is too long.
    pub fn read(payload: &[u8]) -> Result<Self, Error> {
        match Lines::of(payload).and_then(|mut lines| lines.summary()) {
            Some(summary) => Ok(summary),
            None => Ok(yaml::decode_within::<Stats>(payload, MAX_READ_LEN)?.into()),
        }
    }

    /// Replaces the status in a payload of STATS. In the plain form only the line of the status is
    /// replaced, in a payload of any length.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn with_status(payload: &[u8], status: NodeStatus) -> Result<Bytes, Error> {
        let is_plain = Lines::of(payload).is_some_and(|mut lines| lines.summary().is_some());
        let text = std::str::from_utf8(payload).ok().filter(|_| is_plain);
        let lines = || text.into_iter().flat_map(|text| text.split_inclusive('\n'));
        // A status with its value in the next lines is not a text, so the full reader refuses it.
        let has_it_below = || lines().any(|line| line.trim_end() == "status:");
        if text.is_none() || has_it_below() {
            let stats = yaml::decode_within::<Stats>(payload, MAX_READ_LEN)?;
            return Ok(Stats { status, ..stats }.encode());
        }
        let rest = lines().filter(|line| !line.starts_with("status:"));
        let mut changed = write(&BTreeMap::from([("status", status)]), None).to_vec();
        rest.for_each(|line| changed.extend_from_slice(line.as_bytes()));
        Ok(changed.into())
    }

    fn add(&mut self, instance: Uuid, state: InstanceState, volumes: Vec<Id>) {
        self.instances.push((instance, state));
        self.volumes
            .extend(volumes.into_iter().map(|volume| (instance, volume)));
    }
}

impl From<Stats> for StatsSummary {
    fn from(whole: Stats) -> Self {
        let mut summary = Self {
            node_uuid: whole.node_uuid,
            interval: whole.interval,
            ..Self::default()
        };
        for instance in whole.instances {
            if let Some(uuid) = instance.instance_uuid.uuid() {
                summary.add(uuid, instance.state, instance.volumes);
            }
        }
        summary
    }
}

/// The lines of a document in the plain form: each has one `key: value`, `key:`, or list item, and no
/// value continues in the next line. All functions return `None` if the document has another form.
struct Lines<'a>(Peekable<Map<SplitTerminator<'a, char>, ReadLine<'a>>>);

type ReadLine<'a> = fn(&'a str) -> Option<Line<'a>>;

/// A line of the plain form.
#[derive(Clone, Copy)]
struct Line<'a> {
    indent: usize,
    is_item: bool,
    key: &'a str,
    /// Empty if the value is in the next lines.
    value: &'a str,
}

impl<'a> Lines<'a> {
    fn of(payload: &'a [u8]) -> Option<Self> {
        // The full reader reports that a longer document is refused.
        let fits = payload.len() <= yaml::MAX_DOCUMENT_LEN;
        let text = fits.then(|| std::str::from_utf8(payload).ok())??;
        let read: ReadLine<'a> = Line::read;
        Some(Self(text.split_terminator('\n').map(read).peekable()))
    }

    fn summary(&mut self) -> Option<StatsSummary> {
        let (mut node_uuid, mut interval) = (None, None);
        let (mut summary, mut lists_instances) = (StatsSummary::default(), false);
        while !self.is_at_end() {
            let line = self.next()?;
            if line.indent > 0 || line.is_item {
                return None;
            }
            match line.key {
                "node_uuid" if node_uuid.is_none() => node_uuid = Some(Id::from(text(line.value)?)),
                "interval" if interval.is_none() => interval = Some(number(line.value)?),
                "instances" if !lists_instances => {
                    lists_instances = true;
                    match line.value {
                        "" => self.instances(&mut summary)?,
                        "[]" => {}
                        _ => return None,
                    }
                }
                // A duplicate key: the full reader reports it with its line.
                "node_uuid" | "interval" | "instances" => return None,
                _ => self.skip_below(line)?,
            }
        }
        Some(StatsSummary {
            node_uuid: node_uuid.unwrap_or_default(),
            interval: interval.unwrap_or_default(),
            ..summary
        })
    }

    /// Reads the items below `instances:`, which may have the same indentation.
    fn instances(&mut self, summary: &mut StatsSummary) -> Option<()> {
        let indent = self.peek()?.indent;
        while let Some(first) = self.peek()
            && first.is_item
            && first.indent == indent
        {
            let (mut uuid, mut state, mut volumes) = (None, None, None);
            let mut line = self.next()?;
            loop {
                match line.key {
                    "instance_uuid" if uuid.is_none() => uuid = Some(text(line.value)?),
                    "state" if state.is_none() => state = Some(text(line.value)?),
                    "volumes" if volumes.is_none() => {
                        volumes = Some(match line.value {
                            "" => self.texts(indent + 2)?,
                            "[]" => Vec::new(),
                            _ => return None,
                        });
                    }
                    "instance_uuid" | "state" | "volumes" | "" => return None,
                    _ => self.skip_below(Line {
                        indent: indent + 2,
                        ..line
                    })?,
                }
                match self.peek() {
                    Some(next) if !next.is_item && next.indent == indent + 2 => line = self.next()?,
                    _ => break,
                }
            }
            if let Some(uuid) = uuid.and_then(Id::uuid_in) {
                let (state, volumes) = (state.unwrap_or_default(), volumes.unwrap_or_default());
                summary.add(uuid, state.into(), volumes);
            }
        }
        // If the next line is not a key of the document, `summary` refuses it.
        Some(())
    }

    /// Reads the items of a list of texts whose key has the indentation `indent`.
    fn texts(&mut self, indent: usize) -> Option<Vec<Id>> {
        let mut texts = Vec::new();
        let at = self.peek()?.indent;
        while let Some(item) = self.peek()
            && item.is_item
            && item.indent == at
            && at >= indent
        {
            texts.push(Id::from(text(item.value).filter(|_| item.key.is_empty())?));
            self.next()?;
        }
        Some(texts)
    }

    /// Skips the lines that belong to the key of `line`. If the value is in `line` itself, there may
    /// be none.
    fn skip_below(&mut self, line: Line<'_>) -> Option<()> {
        while !self.is_at_end() {
            let next = self.peek()?;
            let is_below = next.indent > line.indent || (next.is_item && next.indent == line.indent);
            if !is_below {
                break;
            }
            if !line.value.is_empty() {
                return None;
            }
            self.next()?;
        }
        Some(())
    }

    fn is_at_end(&mut self) -> bool {
        self.0.peek().is_none()
    }

    fn peek(&mut self) -> Option<Line<'a>> {
        *self.0.peek()?
    }

    fn next(&mut self) -> Option<Line<'a>> {
        self.0.next()?
    }
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        let (is_item, text) = match text.strip_prefix("- ") {
            Some(item) => (true, item),
            None => (false, text),
        };
        let key = text
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric() || b"_./-".contains(b));
        let (key, value) = text.split_at(key.count());
        match value.strip_prefix(':') {
            Some(value) if !key.is_empty() => {
                let value = match value.strip_prefix(' ') {
                    Some(value) => is_scalar(value).then_some(value)?,
                    None => value.is_empty().then_some(value)?,
                };
                Some(Self {
                    indent,
                    is_item,
                    key,
                    value,
                })
            }
            // An item without a key, of a list of values.
            _ => (is_item && is_scalar(text)).then_some(Self {
                indent,
                is_item,
                key: "",
                value: text,
            }),
        }
    }
}

/// True if a value of any type ends in its line.
fn is_scalar(value: &str) -> bool {
    if let Some(quoted) = value.strip_prefix('"') {
        let mut bytes = quoted.bytes();
        loop {
            match bytes.next() {
                Some(b'"') => return bytes.len() == 0,
                Some(b'\\') if bytes.next().is_some() => {}
                Some(b'\\') | None => return false,
                Some(byte) if byte < b' ' => return false,
                Some(_) => {}
            }
        }
    }
    if let Some(quoted) = value.strip_prefix('\'') {
        // A quote inside is written twice.
        let inner = quoted.strip_suffix('\'').map(|inner| inner.replace("''", ""));
        return inner.is_some_and(|inner| !inner.contains(|c: char| c == '\'' || c.is_control()));
    }
    matches!(value, "[]" | "{}") || is_plain(value)
}

/// True for a text or a number without quotes, in which no character has a special meaning in YAML.
fn is_plain(value: &str) -> bool {
    // These characters begin an anchor, a tag, a list, a comment…
    if value.starts_with(|c: char| " ,[]{}#&*!|>'\"%@`".contains(c)) {
        return false;
    }
    // These characters do if they are alone or before a space.
    if let Some(rest) = value.strip_prefix(['-', '?', ':'])
        && (rest.is_empty() || rest.starts_with(' '))
    {
        return false;
    }
    let mut before = '\0';
    for character in value.chars() {
        let means_something = matches!((before, character), (':', ' ') | (' ', '#'));
        // The last three are the byte order mark, and line ends in YAML 1.1.
        if means_something || character.is_control() || "\u{feff}\u{2028}\u{2029}".contains(character) {
            return false;
        }
        before = character;
    }
    !matches!(before, '\0' | ':' | ' ')
}

/// A text without escapes. `None` for other values and for an empty value.
fn text(value: &str) -> Option<&str> {
    let between = |quote| {
        value
            .strip_prefix(quote)
            .and_then(|value| value.strip_suffix(quote))
    };
    let is_text = match between('"').or_else(|| between('\'')) {
        // Only the full reader resolves escapes.
        Some(quoted) => return (!quoted.contains(['\\', '\''])).then_some(quoted),
        None => is_plain(value) && !matches!(value, "null" | "Null" | "NULL" | "~"),
    };
    is_text.then_some(value)
}

/// A number that has only decimal digits.
fn number(value: &str) -> Option<i64> {
    // Other forms, such as 0x10 and 1_000, are rare and left to the full reader.
    let is_plain = value == "0" || (!value.starts_with('0') && value.bytes().all(|b| b.is_ascii_digit()));
    is_plain.then(|| value.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{InstanceStats, NodeNetwork};

    fn stats() -> Stats {
        let one = |number: u128, state: InstanceState| InstanceStats {
            instance_uuid: Uuid::from_u128(number).into(),
            state,
            ssh_ip: "10.0.0.1".into(),
            volumes: vec![Uuid::from_u128(number + 1).into(), "odd one".into()],
            ..InstanceStats::default()
        };
        Stats {
            node_uuid: Uuid::from_u128(7).into(),
            hostname: "a \"host\": of 'ours'".into(),
            interval: 30,
            labels: [("zone/a.b".to_owned(), "x: y".to_owned())].into(),
            networks: vec![NodeNetwork {
                ip: "fd00::1".into(),
                mac: "52:54:00:12:34:56".into(),
            }],
            instances: vec![
                one(1, InstanceState::Active),
                one(2, InstanceState::Other("new state".into())),
                one(3, InstanceState::default()),
            ],
            ..Stats::default()
        }
    }

    fn skimmed(document: &[u8]) -> Option<StatsSummary> {
        Lines::of(document)?.summary()
    }

    #[test]
    fn stats_of_this_project_are_skimmed() {
        let none = Stats {
            node_uuid: "x".into(),
            ..Stats::default()
        };
        for stats in [stats(), none] {
            let document = stats.encode();
            let whole: Stats = yaml::decode(&document).unwrap();
            assert_eq!(skimmed(&document), Some(whole.into()));
        }
    }

    #[test]
    fn a_status_is_replaced_in_stats_of_any_length_and_form() {
        let mut long = stats();
        let one = long.instances[0].clone();
        long.instances.resize(2000, one);
        for stats in [stats(), long] {
            let document = stats.encode();
            let changed = StatsSummary::with_status(&document, NodeStatus::Stale).unwrap();
            let wanted = Stats {
                status: NodeStatus::Stale,
                ..stats
            };
            assert_eq!(Stats::decode(&changed).unwrap(), wanted);
        }
        for odd in [
            "{node_uuid: a, status: FULL}",
            "status:\nnode_uuid: a\n",
            "node_uuid: a",
        ] {
            let changed = StatsSummary::with_status(odd.as_bytes(), NodeStatus::Stale).unwrap();
            let stats = Stats::decode(&changed).unwrap();
            assert_eq!(
                (stats.node_uuid.as_str(), stats.status),
                ("a", NodeStatus::Stale),
                "{odd}"
            );
        }
    }

    #[test]
    fn volumes_are_skimmed_before_and_after_other_keys() {
        let document = b"instances:\n- volumes:\n  - a\n  - b\n  instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\n- instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1002\n  volumes:\n    - c\nload: 1\n";
        let summary = skimmed(document).expect("the document has the form of STATS");
        assert_eq!(summary, yaml::decode::<Stats>(document).unwrap().into());
        assert_eq!(summary.volumes.len(), 3);
    }

    #[test]
    fn stats_with_any_label_are_skimmed() {
        for value in [
            "",
            "~",
            "null",
            "yes",
            "1_000",
            "0x1f",
            "12:30:45",
            "2001-01-01",
            ".5",
            "-",
            "- a",
            "-a",
            "? a",
            "?a",
            ": a",
            ":a",
            "a: b",
            "a:",
            "a #b",
            "#a",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "%a",
            "@a",
            "`a",
            "[a",
            "{a",
            "]",
            "}",
            ",a",
            "'",
            "'a'",
            "\"",
            "\"a\"",
            "\\",
            "a\\",
            "---",
            "...",
            "<<",
            "=",
            " a",
            "a ",
            "(a) $b",
            "_a",
            "müller",
            "ü",
            "日本",
            "€ 5",
            "\u{a0}a",
            "a\u{200d}b",
            "🙂",
        ] {
            let mut report = stats();
            report.hostname = value.into();
            for instance in &mut report.instances {
                instance.labels.insert("a/b".into(), value.into());
                instance.detail = value.into();
            }
            let document = report.encode();
            let skimmed = skimmed(&document).unwrap_or_else(|| panic!("{value:?}: {document:?}"));
            assert_eq!(
                skimmed,
                yaml::decode::<Stats>(&document).unwrap().into(),
                "{value:?}"
            );
        }
    }

    #[test]
    fn stats_of_older_senders_are_skimmed() {
        let document = include_bytes!("../tests/fixtures/payloads/STATS.yaml");
        let whole: Stats = yaml::decode(document).unwrap();
        assert_eq!(StatsSummary::read(document).unwrap(), whole.into());
        let document = b"node_uuid: 0\ninstances:\n- state: active\n  networks:\n  - a: b\n    c: d\n  instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\nload: 3\n";
        let summary = skimmed(document).expect("the document has the form of STATS");
        assert_eq!(summary.instances.len(), 1);
    }

    #[test]
    fn unknown_keys_are_skipped() {
        let document = b"node_uuid: n\ntaints:\n  example.org/gpu: only, for (some)\ninstances:\n- instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\n  labels:\n    state: odd\n    app.kubernetes.io/name: \"a: b \\\"c\\\"\"\n  state: exited\n  detail: it isn't there\n";
        let summary = skimmed(document).expect("the document has the form of STATS");
        assert_eq!(summary.instances[0].1, InstanceState::Exited);
        let whole: Stats = yaml::decode(document).unwrap();
        assert_eq!(summary, whole.into());
    }

    #[test]
    fn a_document_in_another_form_is_read_in_full() {
        for (document, node, interval) in [
            ("{node_uuid: a, interval: 3}", "a", 3),
            ("node_uuid: a\n  b\n", "a b", 0),
            ("node_uuid: |\n  interval: 3\n", "interval: 3\n", 0),
            ("other: |\n  text\nnode_uuid: a\n", "a", 0),
            ("other: 'a\n\n  node_uuid: b'\n", "", 0),
            ("node_uuid: &a b\nhostname: *a\ninterval: 0x10\n", "b", 16),
            ("node_uuid: \"a\\x41\"\n", "aA", 0),
            ("# a comment\nnode_uuid: a # another\n", "a", 0),
            ("node_uuid: null\ninterval:\n", "", 0),
            ("--- \nnode_uuid: a\n...\n", "a", 0),
            ("instances:\nnode_uuid: a\n", "a", 0),
        ] {
            let summary = StatsSummary::read(document.as_bytes());
            let summary = summary.unwrap_or_else(|e| panic!("{document:?}: {e}"));
            assert_eq!(
                (summary.node_uuid.as_str(), summary.interval),
                (node, interval),
                "{document:?}"
            );
        }
        assert!(StatsSummary::read(b"node_uuid: a\nnode_uuid: b\n").is_err());
    }

    proptest! {
        /// After any edits of the document, the summary equals that of a full read, unless the full
        /// read refuses the document.
        #[test]
        fn a_summary_equals_that_of_a_full_read(
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0..8usize, prop::sample::select(vec![
                "\n", " ", "  ", "- ", "volumes:\n", ":", ": ", "\"", "'", "#", "&a ", "*a", "|", ">-", "[", "]", "{", "}", ",", "\\",
                "!!str ", "? ", "---\n", "\t", "\r", "~", "0x1", "state: active\n", "instances:\n", "\u{85}", "é",
            ])), 1..6),
        ) {
            let mut document = String::from_utf8(stats().encode().to_vec()).unwrap();
            for (at, cut, put) in edits {
                let places: Vec<_> = document.char_indices().map(|(at, _)| at).collect();
                let from = at.index(places.len());
                let to = places.get(from + cut).copied().unwrap_or(document.len());
                document.replace_range(places[from]..to, put);
                document.push('\n');
            }
            if let Some(skimmed) = skimmed(document.as_bytes())
                && let Ok(whole) = yaml::decode::<Stats>(document.as_bytes())
            {
                prop_assert_eq!(skimmed, whole.into(), "{}", document);
            }
        }
    }
}
