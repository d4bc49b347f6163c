//! `apply`, `diff`, `get`, `history`, `rollout`, `remove`: the workloads of a controller daemon.

use std::path::PathBuf;

use clap::value_parser;
use serde_json::{Value, json};
use ssntp::payload::yaml;
use ssntp::payload::yaml::Node;
use ssntp_controller::{Changed, Spec, encode};
use ssntp_daemon::{Failure, even_unread, input, print_either, print_json, print_line, printable};
use ssntp_payload::timestamp;

use super::Invocation;
use super::api::{Api, ApiArgs, rows, text};
use super::rollouts::{self, state};
use super::tables::short;
use crate::cmd::table::{Columns, list, print_values, sheet};

/// The maximum number of workloads of all files together.
const MOST: usize = 1000;

/// Set the workloads that should run; the controller starts, replaces and deletes their instances
///
/// docs/controller.md describes the file. All workloads in it are applied, or none if one is
/// refused. Workloads that are not in the file stay unchanged.
#[derive(Debug, clap::Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    workloads: FileArgs,
    /// Wait until all of them are rolled out, and print their progress
    ///
    /// Without --timeout, the wait has no limit. Exit codes: 0 if all instances run and are healthy;
    /// 1 if the file is refused, a workload is removed, or the time limit passes first; 3 if a
    /// roll-out goes back, fails without an earlier version, or is replaced by another order; 4 if the
    /// outcome is unknown, because the controller does not answer or is not connected.
    #[arg(long)]
    wait: bool,
}

// No help here, because it would replace that of `apply`.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Workloads as YAML, one a document; - is the standard input
    #[arg(short, long, value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// Fail without a change unless the one workload of the file has this revision, which `diff`
    /// and `get` show. 0 is for a workload that must not exist yet
    #[arg(long, value_name = "N")]
    revision: Option<i64>,
}

/// Show the workloads that should run, or one of them with its instances
#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Only this workload, with its instances
    #[arg(value_name = "WORKLOAD")]
    name: Option<String>,
}

/// Show the history of the cluster, the latest rows first
#[derive(Debug, clap::Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Only rows about this workload
    #[arg(value_name = "WORKLOAD")]
    workload: Option<String>,
    /// Only rows about this instance; the beginning of its UUID is enough
    #[arg(long, value_name = "UUID")]
    instance: Option<String>,
    /// Only rows about this node; the beginning of its UUID is enough
    #[arg(long, value_name = "UUID")]
    node: Option<String>,
    /// Only rows of this kind, for example starting, failed or rollout
    #[arg(long, value_name = "WORD")]
    kind: Option<String>,
    /// The maximum number of rows to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=1000))]
    limit: u32,
}

/// Show the roll-out of a workload's new version, or pause it, resume it, or go back
#[derive(Debug, clap::Args)]
pub(super) struct RolloutArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// The workload
    workload: String,
    /// Go back to the last good version before the present one
    #[arg(long, group = "order")]
    back: bool,
    /// Replace no further instances until --resume
    #[arg(long, group = "order")]
    pause: bool,
    /// Continue after --pause
    #[arg(long, group = "order")]
    resume: bool,
    /// Fail without a change unless the workload has this revision, which `get` shows
    #[arg(long, value_name = "N", requires = "order")]
    revision: Option<i64>,
}

/// Remove workloads, and delete their instances
#[derive(Debug, clap::Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// The workloads
    #[arg(value_name = "WORKLOAD", required = true)]
    names: Vec<String>,
    /// Fail without a change unless the one workload has this revision, which `get` shows
    #[arg(long, value_name = "N")]
    revision: Option<i64>,
}

impl FileArgs {
    /// Reads and checks the workloads of all files. Each has the place of its keys.
    fn specs(&self) -> Result<Vec<(Spec, Place)>, Failure> {
        let mut specs = Vec::new();
        for path in &self.file {
            let wrong = |why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", path.display()));
            let bytes = input::named(path)?;
            for document in yaml::documents(&bytes) {
                if document.bytes.trim_ascii().is_empty() {
                    continue;
                }
                let from = document.line;
                let spec: Spec = yaml::decode(document.bytes)
                    .map_err(|e| wrong(&format_args!("in the document at line {from}: {e}")))?;
                let place = Place {
                    file: path.display().to_string(),
                    line: from,
                    document: document.bytes.to_vec(),
                };
                spec.check().map_err(|e| {
                    Failure::usage(format!("{}: workload {}: {e}", place.of(&e.at), spec.name))
                })?;
                specs.push((spec, place));
            }
        }
        match specs.len() {
            0 => Err(Failure::usage("there is no workload in the files")),
            1..=MOST => Ok(specs),
            _ => Err(Failure::usage(format!(
                "there are more than {MOST} workloads in the files"
            ))),
        }
    }

    /// Applies all workloads or none. Returns the change of each.
    fn apply(&self, api: &Api<'_>, cx: &Invocation, dry_run: bool) -> Result<Vec<Value>, Failure> {
        let (specs, places): (Vec<_>, Vec<_>) = self.specs()?.into_iter().unzip();
        let mut body = serde_json::to_value(&specs).map_err(Failure::new)?;
        let mut path = format!("workloads?dry_run={}", u8::from(dry_run));
        if let Some(revision) = self.revision {
            let [one] = &specs[..] else {
                return Err(Failure::usage("--revision needs a file of one workload"));
            };
            path = path.replace('?', &format!("/{}?revision={revision}&", one.name));
            body = body[0].take();
        }
        let applied = rows(api.exchange("PUT", &path, Some(&body))?.map_err(|refusal| {
            // With several workloads, the key follows the name of its workload.
            let of = |spec: &Spec| match &specs[..] {
                [_] => Some(refusal.at.as_str()),
                _ => refusal.at.strip_prefix(&spec.name)?.strip_prefix('.'),
            };
            let mut found = specs
                .iter()
                .zip(&places)
                .filter_map(|(spec, place)| Some(place.of(of(spec)?)));
            match found.next().filter(|_| refusal.code == 400) {
                Some(place) => Failure::new(format!("{place}: {}", refusal.failure)),
                None => refusal.failure,
            }
        })?);
        for one in &applied {
            even_unread(print_either(cx.options.json, one, in_words(one, dry_run)))?;
        }
        Ok(applied)
    }
}

/// A workload's document in a file.
struct Place {
    file: String,
    line: usize,
    document: Vec<u8>,
}

impl Place {
    /// `FILE:LINE:COLUMN` of a key, or of the innermost map around it that is there.
    fn of(&self, key: &str) -> String {
        let tree = Node::parse(&self.document, self.line, yaml::MAX_DOCUMENT_LEN);
        let position = tree.map(|tree| {
            let inner = |node, key| Node::get(node, key).unwrap_or(node);
            key.split('.').fold(&tree, inner).position()
        });
        position.map_or(self.file.clone(), |position| format!("{}:{position}", self.file))
    }
}

/// The change of a workload, for people.
fn in_words(applied: &Value, dry_run: bool) -> String {
    let change = match text(&applied["change"]).as_str() {
        "created" => "new".into(),
        "rolled" => format!("rolled out as version {}", applied["version"]),
        other => other.to_owned(),
    };
    let name = text(&applied["name"]);
    let mut words = if dry_run {
        format!(
            "workload {name} would be {change}; its revision is {}",
            applied["revision"]
        )
    } else {
        format!("workload {name} is {change}")
    };
    for one in applied["differences"].as_array().into_iter().flatten() {
        let (path, before, after) = (text(&one["path"]), &one["before"], &one["after"]);
        words.push_str("\n  ");
        words.push_str(&printable(&format!("{path}: {before} -> {after}")));
    }
    words
}

pub(super) fn apply(cx: &Invocation, args: &ApplyArgs) -> Result<(), Failure> {
    let api = Api::new(&args.workloads.api, cx);
    let applied = args.workloads.apply(&api, cx, false)?;
    if args.wait {
        rollouts::wait(&api, cx, &applied)?;
    }
    Ok(())
}

pub(super) fn diff(cx: &Invocation, args: &FileArgs) -> Result<(), Failure> {
    let is_changed = |one: &Value| one["change"] != json!(Changed::Unchanged);
    match args.apply(&Api::new(&args.api, cx), cx, true) {
        Ok(applied) if applied.iter().any(is_changed) => Err(Failure::Silent(1)),
        Ok(_) => Ok(()),
        // The exit code 1 means that there are differences, as for diff(1).
        Err(Failure::Failed(why)) => Err(Failure::usage(why)),
        Err(other) => Err(other),
    }
}

pub(super) fn get(cx: &Invocation, args: &GetArgs) -> Result<(), Failure> {
    let api = Api::new(&args.api, cx);
    api.note_outdated()?;
    let Some(name) = &args.name else {
        return print_values(cx.options.json, WORKLOADS, &rows(api.get("workloads")?));
    };
    let workload = api.get(&format!("workloads/{}", encode(name)))?;
    let mut instances = rows(api.get(&format!("instances?workload={}", encode(name)))?);
    instances.sort_by_key(|one| (one["slot"].as_u64(), one["since"].as_i64()));
    if cx.options.json {
        return print_json(json!({"workload": workload, "instances": instances}));
    }
    print_line(shown(name, &workload))?;
    if instances.is_empty() {
        Ok(())
    } else {
        print_line(format_args!("\n{}", list(INSTANCES, &(), instances.iter())))
    }
}

pub(super) fn history(cx: &Invocation, args: &HistoryArgs) -> Result<(), Failure> {
    let mut path = format!("history?order=newest&limit={}", args.limit);
    let filters = [
        ("workload", &args.workload),
        ("instance", &args.instance),
        ("node", &args.node),
        ("kind", &args.kind),
    ];
    for (name, value) in filters {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encode(value)));
        }
    }
    let rows = rows(Api::new(&args.api, cx).get(&path)?);
    print_values(cx.options.json, HISTORY, &rows)
}

pub(super) fn rollout(cx: &Invocation, args: &RolloutArgs) -> Result<(), Failure> {
    let api = Api::new(&args.api, cx);
    // First, because what fails after the order has to say that this was accepted.
    api.note_outdated()?;
    let path = format!("workloads/{}", encode(&args.workload));
    let orders = [
        ("back", args.back),
        ("pause", args.pause),
        ("resume", args.resume),
    ];
    let order = orders
        .iter()
        .find_map(|(order, is_given)| is_given.then_some(*order));
    if let Some(order) = order {
        let body = json!({ "order": order });
        let path = format!("{path}/rollout{}", query(args.revision));
        api.ask("POST", &path, Some(&body))?;
    }
    let workload = api.get(&path).map_err(|why| match order {
        Some(order) => why.with_advice(format_args!("the order {order} was accepted")),
        None => why,
    })?;
    print_either(cx.options.json, &workload, shown(&args.workload, &workload))
}

fn shown(name: &str, workload: &Value) -> String {
    let text = sheet(&format!("workload {name}"), WORKLOAD, &(), workload);
    text.trim_end().to_owned()
}

pub(super) fn remove(cx: &Invocation, args: &RemoveArgs) -> Result<(), Failure> {
    if args.revision.is_some() && args.names.len() > 1 {
        return Err(Failure::usage("--revision is for one workload"));
    }
    let api = Api::new(&args.api, cx);
    for name in &args.names {
        let path = format!("workloads/{}{}", encode(name), query(args.revision));
        let removed = api.ask("DELETE", &path, None)?;
        let text = format_args!("workload {name} is being deleted");
        even_unread(print_either(cx.options.json, removed, text))?;
    }
    Ok(())
}

#[rustfmt::skip] // Tables: one row a column.
const WORKLOADS: Columns<(), Value> = &[
    ("WORKLOAD", |(), one| text(&one["name"])),
    ("VERSION", |(), one| text(&one["version"])),
    ("ROLL-OUT", |(), one| state(one)),
    ("WANTED", |(), one| text(&one["spec"]["count"])),
    ("RUNNING", |(), one| text(&one["status"]["running"])),
    ("HEALTHY", |(), one| text(&one["status"]["healthy"])),
    ("DONE", |(), one| text(&one["status"]["done"])),
    ("OUTDATED", |(), one| text(&one["status"]["outdated"])),
    ("PROBLEM", |(), one| text(&one["status"]["problem"])),
];

#[rustfmt::skip]
const WORKLOAD: Columns<(), Value> = &[
    ("version", |(), one| text(&one["version"])),
    ("last good", |(), one| text(&one["stable"])),
    ("roll-out", |(), one| state(one)),
    ("why", |(), one| text(&one["rollout"]["why"])),
    ("revision", |(), one| text(&one["revision"])),
    ("wanted", |(), one| text(&one["spec"]["count"])),
    ("running", |(), one| text(&one["status"]["running"])),
    ("healthy", |(), one| text(&one["status"]["healthy"])),
    ("done", |(), one| text(&one["status"]["done"])),
    ("surge", |(), one| text(&one["status"]["surge"])),
    ("outdated", |(), one| text(&one["status"]["outdated"])),
    ("starting", |(), one| text(&one["status"]["starting"])),
    ("problem", |(), one| text(&one["status"]["problem"])),
];

#[rustfmt::skip]
const INSTANCES: Columns<(), Value> = &[
    ("SLOT", |(), one| text(&one["slot"])),
    ("INSTANCE", |(), one| short(&text(&one["uuid"]))),
    ("VERSION", |(), one| text(&one["version"])),
    ("STATE", |(), one| if one["wanted"] == json!(false) { format!("{}, not wanted", text(&one["state"])) } else { text(&one["state"]) }),
    ("NODE", |(), one| node(one)),
    ("ENDING", |(), one| text(&one["ending"])),
];

#[rustfmt::skip]
const HISTORY: Columns<(), Value> = &[
    ("ID", |(), row| text(&row["id"])),
    ("AT", |(), row| at(row)),
    ("KIND", |(), row| text(&row["kind"])),
    ("BY", |(), row| text(&row["actor"])),
    ("TEXT", |(), row| text(&row["text"])),
];

/// The name of an instance's node, with the beginning of its UUID, because machines may have one host name.
fn node(instance: &Value) -> String {
    let beginning = short(&text(&instance["node"]));
    match instance["node_name"].as_str() {
        Some(name) => format!("{name} ({beginning})"),
        None => beginning,
    }
}

fn at(row: &Value) -> String {
    let at = row["at"].as_u64().unwrap_or_default();
    timestamp::format(at.saturating_mul(1_000_000))
}

/// The part of a path that makes the controller compare revisions.
fn query(revision: Option<i64>) -> String {
    revision.map_or(String::new(), |revision| format!("?revision={revision}"))
}
