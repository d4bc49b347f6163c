//! The metrics of the pages, compared with docs/metrics.md, the dashboard and the alerts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::admin::{Daemon, certificates, client};

/// docs/metrics.md lists each metric of a server with its type. The text is valid for promtool and
/// for the grammar of this test.
#[test]
fn prometheus_reads_the_metrics() {
    let dir = certificates();
    let (server, address) = Daemon::server(dir.path(), "--admin 127.0.0.1:0");
    drop(client(dir.path(), &address, "agent"));
    let (_, text) = server.wait("/metrics", |_, text| text.contains("ssntp_sessions_ended_total{"));
    check_text(&text);
    promtool(&["check", "metrics"], &text);
    server.end();
}

/// Checks a text with promtool, if it is installed.
fn promtool(words: &[&str], text: &str) {
    let promtool = Command::new("promtool")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(e) => return eprintln!("skipped: promtool: {e}"),
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // promtool exits with success if it has only hints.
    assert!(output.status.success() && !text.contains("error"), "{text}");
    assert!(words[1] != "metrics" || text.is_empty(), "{text}");
}

/// The grammar of the text format: HELP and TYPE before the samples of a family, each
/// family once, each series once, and names as Prometheus wants them.
#[track_caller]
pub(super) fn check_text(text: &str) {
    let documented = documented();
    let (mut family, mut kind) = (String::new(), String::new());
    let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            let of_type = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (same, found) = of_type.split_once(' ').unwrap();
            assert_eq!(name, same);
            assert!(!help.is_empty() && families.insert(name.to_owned()), "{line}");
            (family, kind) = (name.to_owned(), found.to_owned());
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            let entry = (kind.clone(), help.to_owned());
            assert_eq!(documented.get(name), Some(&entry), "docs/metrics.md: {name}");
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap();
        assert!(series.insert(name.to_owned()), "{name}");
        let base = name.split('{').next().unwrap();
        let own = match &kind[..] {
            "histogram" => ["_sum", "_count", "_bucket"]
                .map(|end| format!("{family}{end}"))
                .to_vec(),
            _ => vec![family.clone()],
        };
        assert!(own.iter().any(|own| own == base), "{line} in {family}");
        if let Some(labels) = name.strip_prefix(base).and_then(|rest| rest.strip_prefix('{')) {
            let labels = labels.strip_suffix('}').unwrap();
            for label in labels.split("\",") {
                let (label, value) = label.split_once("=\"").unwrap();
                assert!(
                    label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                    "{line}"
                );
                assert!(!value.trim_end_matches('"').contains('"'), "{line}");
            }
        }
    }
}

/// The content of docs/metrics.md: each metric with its type and its meaning.
fn documented() -> BTreeMap<String, (String, String)> {
    let page = include_str!("../../../../../docs/metrics.md");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ");
        let name = cells.next()?.split(['`', '{']).next()?;
        Some((
            name.to_owned(),
            (cells.next()?.to_owned(), cells.next()?.to_owned()),
        ))
    });
    rows.filter(|(name, _)| name.starts_with("ssntp_") || name.starts_with("process_"))
        .collect()
}

/// The sources, the page and the dashboard have the same names of metrics.
#[test]
fn each_metric_is_documented_and_the_dashboard_shows_only_known_metrics() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut names = BTreeSet::new();
    let mut paths = vec![root.join("crates/admin/src"), root.join("crates/cli/src/admin")];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        for prefix in ["\"ssntp_", "\"process_"] {
            for (at, _) in text.match_indices(prefix) {
                let word = &text[at + 1..];
                let name: String = word.chars().take_while(|c| is_of_name(*c)).collect();
                if word[name.len()..].starts_with('"') {
                    names.insert(name);
                }
            }
        }
    }
    // The target of the log has a name of the same form.
    names.remove("ssntp_admin");
    let documented: BTreeSet<_> = documented().into_keys().collect();
    assert_eq!(names, documented);

    let dashboard = include_str!("../../../../../docs/grafana-ssntp.json");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    // How many metrics an expression uses. Each of them is known.
    let used_by = |expression: &str| {
        let words = expression.split(|c| !is_of_name(c));
        let used = words.filter(|word| word.starts_with("ssntp_") || word.starts_with("process_"));
        used.inspect(|word| {
            let base = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(names.contains(base), "{word} in {expression}");
        })
        .count()
    };
    let mut shown = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            shown += used_by(target["expr"].as_str().unwrap());
        }
    }
    assert!(shown > 20, "{shown}");

    // The alerts use known metrics, and each has its line in the runbook.
    let rules: Value = serde_yaml(include_str!("../../../../../docs/ssntp.rules.yaml"));
    let runbook = include_str!("../../../../../docs/runbook.md");
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules: Vec<_> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    for rule in &rules {
        let (alert, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        assert!(runbook.contains(alert), "{alert}");
        assert!(used_by(expression) > 0 || alert == "SsntpDown", "{alert}");
    }
    assert_eq!(rules.len(), 15);
    let file = root.join("docs/ssntp.rules.yaml");
    promtool(&["check", "rules", file.to_str().unwrap()], "");
}

/// YAML as JSON.
fn serde_yaml(text: &str) -> Value {
    ssntp::payload::yaml::decode(text.as_bytes()).unwrap()
}
