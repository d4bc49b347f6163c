//! The routes for programs, below `/api/v1`. `docs/controller.md` lists them.

use std::sync::Mutex;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use ssntp_http::{Answer, JSON, Refused, Reply, Request};
use uuid::Uuid;

use super::access::{self, Access, Client};
use super::sight::unavailable;
use super::tokens::Right;
use super::{events, names};
use crate::daemon::{Snapshot, UserRequest};
use crate::model::{self, Row, Spec, without_output};
use crate::page::params::{Params, decode};
use crate::reconcile::{self, RolloutOrder};
use crate::source::Source;
use crate::store::Query;
use ssntp::pki::rfc3339;
use ssntp_payload::FrameTrace;
use ssntp_view::{Instance, Node, View};

/// The rows of an answer to a request without `limit`.
const ROWS: usize = 100;
/// The highest `limit`.
const MOST_ROWS: usize = 1000;

pub(super) type Found = Result<Reply, Refused>;

fn found(value: &impl Serialize) -> Found {
    answer(serde_json::to_vec(value))
}

/// A list. Each element is written before the next one is made, because all elements as values would
/// take several times the memory of their text.
fn list<T: Serialize>(elements: impl Iterator<Item = T>) -> Found {
    let mut text = Vec::new();
    let written = serde_json::Serializer::new(&mut text).collect_seq(elements);
    answer(written.map(|()| text))
}

fn answer(text: serde_json::Result<Vec<u8>>) -> Found {
    let mut text = text.map_err(|e| unavailable(format!("the answer cannot be written: {e}")))?;
    text.push(b'\n');
    Ok(Answer::new(200, JSON, text).into())
}

fn unknown(what: &str) -> Refused {
    Refused::new(404, format!("there is no such {what}"))
}

impl From<reconcile::Refused> for Refused {
    fn from(refused: reconcile::Refused) -> Self {
        let why = refused.to_string();
        match refused {
            reconcile::Refused::Invalid(mistake) => Self::at(400, mistake.at, mistake.why),
            reconcile::Refused::NotFound(_) => Self::new(404, why),
            reconcile::Refused::Conflict(_) => Self::new(409, why),
            reconcile::Refused::Busy | reconcile::Refused::Store(_) => unavailable(why),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ordered {
    order: RolloutOrder,
}

/// The routes for programs.
#[derive(Debug)]
pub(super) struct Programs {
    access: Access,
    /// Held while an answer about the whole cluster is made.
    making: Mutex<()>,
    /// Held from the comparison of the revision until the workload is written.
    writing: Mutex<()>,
}

impl Programs {
    pub(super) fn new(access: Access) -> Self {
        Self {
            access,
            making: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// The answer to a client that sees `source`.
    pub(super) fn reply(&self, request: &Request, client: &Client, source: &dyn Source) -> Found {
        let path = request.path.strip_prefix("/api/v1/").unwrap_or_default();
        let parts: Vec<&str> = path.split('/').collect();
        let params = Params::decode(&request.query);
        let allow = |names: &[&str]| allow(&params, names);
        // A script whose variable is empty sends `revision=`. It would write without a comparison.
        if let Some((name, _)) = request.query.iter().find(|(_, value)| value.is_empty()) {
            return Err(Refused::at(400, name, "it has no value"));
        }
        if let Some(name) = params.repeated() {
            return Err(Refused::at(400, name, "it is there twice"));
        }
        match (request.method.as_str(), &parts[..]) {
            ("GET" | "HEAD", ["events"]) => {
                allow(&["after", "output"])?;
                // A browser that reconnects repeats its first address, so the header is newer.
                let after = match request.header("last-event-id") {
                    Some(id) => parsed("Last-Event-ID", id)?,
                    None => number(&params, "after")?,
                };
                let output = number(&params, "output")?;
                if output.is_some() && !client.reads_output {
                    let why = "a token is needed to read the output of an instance";
                    return Err(Refused::new(401, why));
                }
                // The client's token may be removed or expire while the stream is open, and its
                // certificate may be revoked.
                let (access, request) = (self.access.clone(), request.clone());
                let may_read = move || {
                    let client = access.client(&request).ok().flatten();
                    client.is_some_and(|client| client.reads_output || output.is_none())
                };
                events::reply(source, after, output, client.right, may_read)
            }
            ("GET" | "HEAD", ["history"]) => found(&rows(source, &params, None, client.right)?),
            ("GET" | "HEAD", ["traces"]) => traces(source, &params, client.right),
            ("GET" | "HEAD", ["nodes", node, "figures"]) => {
                allow(&["since"])?;
                let since = number(&params, "since")?.unwrap_or(0);
                let figures = source.figures(uuid(node)?, since);
                found(&figures.map_err(unavailable)?)
            }
            ("GET" | "HEAD", _) => {
                let is_filtered = matches!(parts[..], ["instances"]);
                allow(if is_filtered { &["workload"] } else { &[] })?;
                let picture = source.picture().map_err(unavailable)?;
                // One answer is made at a time. An answer of all instances may have many megabytes, and
                // it counts as a large one only when it is complete.
                let _making = self.making.lock();
                // The picture may be some 250 ms old. The desired state is read at once, so that a
                // client that has written reads what it wrote.
                read(&source.kept(), &picture.view, &parts, &params, client.right)
            }
            (method, parts) => {
                allow(if method == "PUT" {
                    &["revision", "dry_run"]
                } else {
                    &["revision"]
                })?;
                // A dry run changes nothing.
                if client.right < Right::Write && !is_dry_run(request) {
                    let why = "a token that may write is needed, or a certificate of the role controller";
                    return Err(Refused::new(403, why));
                }
                // A certificate is sent with the requests of any page, so the origin is checked too.
                access::check_origin(request)?;
                self.write(source, client, method, parts, request, &params)
            }
        }
    }

    fn write(
        &self,
        source: &dyn Source,
        client: &Client,
        method: &str,
        parts: &[&str],
        request: &Request,
        params: &Params,
    ) -> Found {
        let name = match (method, parts) {
            ("PUT" | "DELETE", ["workloads", name]) | ("POST", ["workloads", name, "rollout"]) => {
                decode(name)
            }
            ("PUT", ["workloads"]) if !params.get("revision").is_empty() => {
                let why = "each of several workloads has a revision of its own";
                return Err(Refused::at(400, "revision", why));
            }
            ("PUT", ["workloads"]) => String::new(),
            _ => return Err(unknown("route")),
        };
        if method == "DELETE" && !request.body.is_empty() {
            return Err(Refused::at(400, "body", "a deletion has none"));
        }
        if method != "DELETE" {
            let kind = request.header("content-type").unwrap_or_default();
            let kind = kind.split(';').next().unwrap_or_default().trim();
            // A page of another site cannot send this type without a CORS preflight, which fails.
            if !kind.eq_ignore_ascii_case(JSON) {
                return Err(Refused::at(415, "Content-Type", "it must be application/json"));
            }
        }
        // Writers compare and write one after the other. So of two writers that know the same
        // revision, the second one gets a 409. A dry run makes no writer wait.
        let _writing = (!is_dry_run(request)).then(|| self.writing.lock());
        check_revision(source, &name, params)?;
        match method {
            "PUT" => {
                let dry_run = match params.get("dry_run") {
                    "" | "0" => false,
                    "1" => true,
                    _ => return Err(Refused::at(400, "dry_run", "it must be 1 or 0")),
                };
                let apply = |mut specs: Vec<Spec>| {
                    names::check(source, &specs)?;
                    // A comparison must not confirm a guess of a value that the client may not read.
                    if client.right < Right::Write {
                        specs = specs.iter().map(Spec::without_values).collect();
                    }
                    Ok::<_, Refused>(source.request(&client.name, UserRequest::Apply { specs, dry_run })?)
                };
                if parts.len() == 1 {
                    return found(&apply(body(&request.body)?)?.1);
                }
                let spec: Spec = body(&request.body)?;
                if spec.name != name {
                    return Err(Refused::at(400, "name", "it is not the name in the address"));
                }
                found(&apply(vec![spec])?.1.pop())
            }
            _ => {
                let change = match method {
                    "DELETE" => UserRequest::Delete(name),
                    _ => UserRequest::Rollout(name, body::<Ordered>(&request.body)?.order),
                };
                found(&json!({ "revision": source.request(&client.name, change)?.0 }))
            }
        }
    }
}

/// True if a request asks only what it would change.
pub(super) fn is_dry_run(request: &Request) -> bool {
    request
        .query
        .iter()
        .any(|(name, value)| name == "dry_run" && value == "1")
}

/// Compares the parameter `revision`, if it is there, with the present revision of the workload.
/// A workload that does not exist has the revision 0.
fn check_revision(source: &dyn Source, name: &str, params: &Params) -> Result<(), Refused> {
    let Some(expected) = number::<i64>(params, "revision")? else {
        return Ok(());
    };
    let kept = source.kept();
    let known = kept.state.workloads.get(name);
    let present = known.map_or(0, |workload| workload.revision);
    if present == expected {
        return Ok(());
    }
    let why = format!("workload {name} has the revision {present} by now; read it again");
    Err(Refused::at(409, "revision", why))
}

fn rows(
    source: &dyn Source,
    params: &Params,
    kind: Option<String>,
    right: Right,
) -> Result<Vec<Row>, Refused> {
    let known = [
        "after", "before", "limit", "workload", "instance", "node", "kind", "order",
    ];
    allow(params, &known)?;
    let text = |name| Some(params.get(name).to_owned()).filter(|text| !text.is_empty());
    let limit = number(params, "limit")?.unwrap_or(ROWS);
    if !(1..=MOST_ROWS).contains(&limit) {
        return Err(Refused::at(400, "limit", format!("it is 1 to {MOST_ROWS}")));
    }
    let newest_first = match params.get("order") {
        "" | "oldest" => false,
        "newest" => true,
        _ => return Err(Refused::at(400, "order", "it is newest or oldest")),
    };
    let query = Query {
        after: number(params, "after")?,
        before: number(params, "before")?,
        workload: text("workload"),
        instance: number(params, "instance")?,
        node: number(params, "node")?,
        kind: kind.or(text("kind")),
        limit,
        newest_first,
        tenant: None,
    };
    let rows = source.rows(&query).map_err(unavailable)?;
    Ok(match right {
        Right::Write => rows,
        Right::Read => rows.into_iter().map(|row| row.cut(without_output)).collect(),
    })
}

fn traces(source: &dyn Source, params: &Params, right: Right) -> Found {
    let rows = rows(source, params, Some("trace".into()), right)?;
    let traces = rows.iter().filter_map(|row| {
        let trace: FrameTrace = serde_json::from_str(&row.text).ok()?;
        Some(json!({ "id": row.id, "at": row.at, "trace": trace }))
    });
    list(traces)
}

/// Refuses unknown parameters. If they were ignored, a filter with a misspelt name would show
/// everything.
fn allow(params: &Params, names: &[&str]) -> Result<(), Refused> {
    match params.without(names).next() {
        Some((name, _)) => Err(Refused::at(400, name.as_str(), "there is no such parameter")),
        None => Ok(()),
    }
}

/// The value of a parameter, parsed; `None` if the parameter is missing.
fn number<T: std::str::FromStr>(params: &Params, name: &str) -> Result<Option<T>, Refused> {
    match params.get(name) {
        "" => Ok(None),
        text => parsed(name, text),
    }
}

fn parsed<T: std::str::FromStr>(name: &str, text: &str) -> Result<Option<T>, Refused> {
    let wrong = |_| Refused::at(400, name, format!("not a valid value: {text:.64}"));
    text.parse().map(Some).map_err(wrong)
}

fn uuid(text: &str) -> Result<Uuid, Refused> {
    text.parse()
        .map_err(|_| Refused::at(400, "path", format!("not a UUID: {text:.64}")))
}

/// Reads the JSON of a body. An error names the line and the column.
fn body<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|e| {
        let at = format!("line {}, column {}", e.line(), e.column());
        Refused::at(400, at, e.to_string())
    })
}

fn read(kept: &Snapshot, view: &View, parts: &[&str], params: &Params, right: Right) -> Found {
    match parts {
        ["status"] => found(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "revision": kept.revision,
            "health": kept.health,
            "workloads": kept.state.workloads.len(),
            "instances": view.instances().count(),
            "nodes": view.nodes().count(),
        })),
        ["workloads"] => {
            let workloads = kept.state.workloads.values();
            list(workloads.map(|workload| of_workload(kept, workload, right)))
        }
        ["workloads", name] => {
            let name = decode(name);
            let workload = kept.state.workloads.get(&name);
            let workload = workload.ok_or(reconcile::Refused::NotFound(name))?;
            found(&of_workload(kept, workload, right))
        }
        ["instances"] => {
            let asked = params.get("workload");
            let wanted = kept.state.instances.values();
            let wanted = wanted.filter(|kept| asked.is_empty() || kept.workload == asked);
            let wanted = wanted.map(|kept| of_instance(view, Some(kept), view.instance(kept.uuid), right));
            let others = view
                .instances()
                .filter(|seen| asked.is_empty() && !kept.state.instances.contains_key(&seen.uuid));
            let others = others.map(|seen| of_instance(view, None, Some(seen), right));
            list(wanted.chain(others))
        }
        ["instances", instance] => {
            let instance = uuid(instance)?;
            match (kept.state.instances.get(&instance), view.instance(instance)) {
                (None, None) => Err(unknown("instance")),
                (kept, seen) => found(&of_instance(view, kept.map(|kept| &**kept), seen, right)),
            }
        }
        ["nodes"] => list(view.nodes().map(of_node)),
        ["nodes", node] => match view.node(uuid(node)?) {
            Some(node) => {
                let mut value = of_node(node);
                value["instances"] = json!(node.instances);
                value["networks"] = json!(node.stats.networks);
                value["tunnels"] = json!(node.stats.tunnels);
                found(&value)
            }
            None => Err(unknown("node")),
        },
        _ => Err(unknown("route")),
    }
}

fn of_workload(kept: &Snapshot, workload: &model::Workload, right: Right) -> Value {
    let mut status = kept.status.get(&workload.name).cloned();
    let mut value = match right {
        Right::Write => json!(workload),
        Right::Read => {
            for problem in status.iter_mut().filter_map(|status| status.problem.as_mut()) {
                problem.truncate(without_output(problem).len());
            }
            json!(workload.without_values())
        }
    };
    value["status"] = json!(status);
    value
}

/// An instance: the desired one, and as `seen` the state that its node has reported last.
fn of_instance(view: &View, kept: Option<&model::Instance>, seen: Option<&Instance>, right: Right) -> Value {
    let mut value = match (kept, seen) {
        (Some(kept), _) => json!(kept),
        (None, Some(seen)) => json!({ "uuid": seen.uuid, "workload": null, "node": seen.node }),
        (None, None) => Value::Null,
    };
    let current = |seen: &Instance| view.node(seen.node).is_some_and(Node::is_current);
    let node = kept.map_or_else(|| seen.map(|seen| seen.node), |kept| kept.node);
    let name = node
        .and_then(|node| view.node(node))
        .map(|node| &node.stats.hostname);
    value["node_name"] = json!(name.filter(|name| !name.is_empty()));
    value["seen"] = json!(seen.map(|seen| json!({
        "current": current(seen),
        "since": rfc3339(seen.since),
        "node": seen.node,
        "stats": seen.stats,
        "ending": seen.ending().map(|ending| ending.to_string()),
    })));
    if right == Right::Read {
        for text in ["/ending", "/seen/stats/health_detail"] {
            if let Some(text) = value.pointer_mut(text) {
                *text = without_output(text.as_str().unwrap_or_default()).into();
            }
        }
        if let Some(stats) = value.pointer_mut("/seen/stats").and_then(Value::as_object_mut) {
            stats.remove("last_lines");
        }
    }
    value
}

fn of_node(node: &Node) -> Value {
    json!({
        "uuid": node.uuid,
        "name": node.stats.hostname,
        "connected": node.connected,
        "since": rfc3339(node.since),
        "status": node.status.as_str(),
        "seen": node.seen.map(rfc3339),
        "compute": node.compute,
        "network": node.network,
        "mem_total_mb": node.stats.mem_total_mb,
        "mem_available_mb": node.stats.mem_available_mb,
        "disk_total_mb": node.stats.disk_total_mb,
        "disk_available_mb": node.stats.disk_available_mb,
        "load": node.stats.load,
        "cpus_online": node.stats.cpus_online,
        "interval": node.stats.interval,
        "labels": node.stats.labels,
        "instances": node.instances.len(),
    })
}
