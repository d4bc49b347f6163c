//! The workloads of a controller daemon run exactly once, while every process is killed.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::processes::{Cluster, Done, LIMIT, Process, processes_inside, until};
use crate::processes::words;

/// Runs a command that asks a controller daemon. It is repeated if the daemon calls itself busy, as on a slow
/// disk, or has closed the connection because the command got no processor for two seconds.
#[track_caller]
fn run(command: impl Fn() -> Command) -> Done {
    let deadline = Instant::now() + LIMIT;
    let is_late = |done: &Done| {
        let whys = [
            "the controller is busy",
            "the answer ends too early",
            "reset by peer",
        ];
        whys.iter().any(|why| done.stderr.contains(why))
    };
    loop {
        let done = Done::of(command());
        if !is_late(&done) || Instant::now() > deadline {
            return done;
        }
    }
}

/// A cluster, its controller daemon, and a file of workloads.
struct Kept {
    cluster: Cluster,
    daemon: Option<Process>,
}

impl Kept {
    fn new(agents: usize) -> Self {
        Self::with(Cluster::new("--state scheduler-state"), agents)
    }

    fn with(mut cluster: Cluster, agents: usize) -> Self {
        for _ in 0..agents {
            cluster.agent("");
        }
        cluster.controller_sees(agents);
        let mut kept = Self {
            cluster,
            daemon: None,
        };
        kept.start();
        let made = kept.words(&words("controller token add test --write --store store"));
        let token = made
            .stdout
            .split_whitespace()
            .find(|word| word.starts_with("ssntp-"));
        fs::write(kept.cluster.path("token"), token.unwrap()).unwrap();
        kept
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.cluster.command(words);
        command.env(
            "SSNTP_HTTP",
            format!("unix:{}", self.cluster.path("api").display()),
        );
        command.env("SSNTP_TOKEN_FILE", self.cluster.path("token"));
        command
    }

    fn words(&self, words: &[&str]) -> Done {
        run(|| self.command(words))
    }

    /// The exit code of a command whose output has no reader.
    fn unread(&self, line: &str) -> Option<i32> {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = self.command(&words(line));
        let status = command.stdout(writer).stderr(Stdio::null()).status();
        status.unwrap().code()
    }

    fn start(&mut self) {
        let http = format!("unix:{}", self.cluster.path("api").display());
        let words = ["controller", "--store", "store", "--http", &http];
        let daemon = Process::of(self.cluster.command(&words), &self.cluster.path(""), "controller");
        daemon.line_with("page");
        self.daemon = Some(daemon);
    }

    fn kill(&mut self) {
        self.daemon.take().unwrap().kill();
    }

    /// Runs `ssntp ctl`, which has to succeed, and returns its lines as JSON.
    #[track_caller]
    fn done(&self, line: &str) -> Vec<Value> {
        let words: Vec<_> = ["ctl", "--json"]
            .into_iter()
            .chain(line.split_whitespace())
            .collect();
        let done = self.words(&words);
        assert_eq!(done.code, Some(0), "{line}: {}", done.stderr);
        done.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The instances that the nodes report.
    fn instances(&self) -> Vec<Value> {
        self.done("instances").remove(0).as_array().unwrap().clone()
    }

    /// Applies a workload with this number of instances, which sleep for this time.
    fn apply(&self, count: usize, seconds: usize) {
        let text = format!(
            "name: web\ncount: {count}\nstart: {{command: [sleep, \"{seconds}\"], mem_mb: 8}}\n\
             update: {{healthy_s: 0, max_unavailable: 4}}\nreschedule: {{grace_s: 120}}\n"
        );
        fs::write(self.cluster.path("web.yaml"), text).unwrap();
        self.done("apply -f web.yaml");
    }

    /// As [`until`]. If it does not come, says what the controller has recorded as well.
    #[track_caller]
    fn comes(&self, what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
        let deadline = Instant::now() + LIMIT;
        until(what, || match is_so() {
            Err(seen) if Instant::now() > deadline => {
                let history = self.done("history --limit 50");
                Err(format!("{seen}; the history: {history:#?}"))
            }
            seen => seen,
        });
    }

    /// Waits until the history has a row of this kind after the given row.
    #[track_caller]
    fn happens(&self, kind: &str, after: i64) {
        self.comes(kind, || {
            let rows = self.done(&format!("history --kind {kind} --limit 1"));
            let last = rows.first().map(|row| row["id"].as_i64().unwrap());
            (last > Some(after)).then_some(()).ok_or(format!("{rows:?}"))
        });
    }

    fn last_row(&self) -> i64 {
        self.done("history --limit 1")
            .first()
            .map_or(0, |row| row["id"].as_i64().unwrap())
    }

    /// Waits until the controller reports a steady state, then counts the instances that run: one for
    /// each slot.
    fn settles(&self, count: usize, seconds: usize) {
        let mut last_status = Value::Null;
        self.comes("all run", || {
            last_status = self.done("get web").remove(0);
            let web = &last_status["workload"];
            let wanted = last_status["instances"].as_array().unwrap().iter();
            let all_run = web["rollout"]["state"] == "steady"
                && web["status"]["healthy"] == count
                && wanted.filter(|one| one["wanted"] == true).count() == count;
            all_run.then_some(()).ok_or(format!("{last_status:#}"))
        });
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        self.comes("nothing else runs", || {
            let instances = self.instances();
            let alive = instances.iter().filter(|one| one["state"] != "exited");
            running.clear();
            for one in alive {
                *running
                    .entry(one["name"].as_str().unwrap().to_owned())
                    .or_default() += 1;
            }
            let all = running.values().sum::<usize>();
            (all == count).then_some(()).ok_or(format!("{instances:#?}"))
        });
        let names: Vec<_> = (1..=count).map(|slot| format!("web-{slot}")).collect();
        assert!(
            names.iter().all(|name| running.get(name) == Some(&1)),
            "{running:?}"
        );
        let version = last_status["workload"]["versions"]
            .as_array()
            .unwrap()
            .last()
            .unwrap();
        assert_eq!(version["template"]["start"]["command"][1], seconds.to_string());
    }
}

#[test]
fn a_command_does_all_of_its_work_and_gives_its_answer_even_if_its_output_is_closed() {
    let kept = Kept::new(1);
    for name in ["one", "two"] {
        let text = format!("name: {name}\nstart: {{command: [sleep, \"1000\"]}}\n");
        fs::write(kept.cluster.path(name), text).unwrap();
    }
    assert_eq!(kept.unread("ctl diff -f one"), Some(1));
    assert_eq!(kept.unread("ctl apply -f one -f two"), Some(0));
    assert_eq!(kept.done("get").len(), 2);
    assert_eq!(kept.unread("ctl remove one two"), Some(0));
    assert!(kept.done("get").iter().all(|one| one["deleting"] == true));
    kept.done("start --name job -- false");
    assert_eq!(kept.unread("ctl wait job"), Some(3));
    assert_eq!(kept.unread("ctl start --count 2 -- /no/such/program"), Some(1));
}

#[test]
fn a_controller_whose_output_is_closed_serves() {
    let mut kept = Kept::new(0);
    kept.kill();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let http = format!("unix:{}", kept.cluster.path("api").display());
    let mut command = kept.command(&["controller", "--store", "store", "--http", &http]);
    let mut daemon = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + LIMIT;
    let mut last = kept.words(&words("ctl get"));
    while last.code != Some(0) && Instant::now() < deadline {
        last = kept.words(&words("ctl get"));
    }
    let ended = daemon.try_wait().unwrap();
    let _ = daemon.kill();
    daemon.wait().unwrap();
    assert!(last.code == Some(0) && ended.is_none(), "{last:?} {ended:?}");
}

#[test]
fn each_wanted_instance_runs_once_if_the_controller_is_killed_at_any_step() {
    let mut kept = Kept::new(2);
    // The controller is killed before its first decision, when STARTs are recorded, when instances
    // run, and in the middle of a roll-out.
    for (round, kind) in [None, Some("starting"), Some("running"), Some("gone")]
        .into_iter()
        .enumerate()
    {
        let (count, seconds) = (4 + round, 1000 + round);
        let before = kept.last_row();
        kept.apply(count, seconds);
        if let Some(kind) = kind {
            kept.happens(kind, before);
        }
        kept.kill();
        kept.start();
        kept.settles(count, seconds);
    }
    // The controller also ends in order. Meanwhile instances run on.
    let mut daemon = kept.daemon.take().unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.log());
    kept.start();
    kept.settles(7, 1003);
    kept.done("remove web");
    kept.comes("all is gone", || {
        let left = (kept.done("get"), kept.instances());
        let is_gone = left.0.is_empty() && left.1.is_empty();
        is_gone.then_some(()).ok_or(format!("{left:?}"))
    });
}

#[test]
fn each_wanted_instance_runs_once_if_the_scheduler_and_an_agent_are_killed() {
    let mut kept = Kept::new(2);
    kept.apply(4, 1000);
    kept.happens("starting", 0);
    kept.cluster.kill_scheduler();
    kept.cluster.start_scheduler();
    kept.settles(4, 1000);
    // The instances of the agent run on, and are reported by the next agent.
    kept.cluster.kill_node(0);
    kept.apply(6, 1000);
    kept.happens("node", 0);
    kept.cluster.start_node(0, "agent", "");
    kept.settles(6, 1000);
}

#[test]
fn a_node_that_leaves_while_the_scheduler_is_down_is_in_the_history() {
    let mut kept = Kept::new(2);
    kept.apply(1, 1000);
    // A steady workload shows that the daemon has seen both nodes.
    kept.settles(1, 1000);
    kept.cluster.kill_scheduler();
    kept.cluster.kill_node(0);
    kept.cluster.start_scheduler();
    kept.comes("the node is missed", || {
        let rows = kept.done("history --kind node --limit 100");
        let text = "did not come back with the new session";
        let is_it = |row: &&Value| row["text"].as_str().unwrap().contains(text);
        rows.iter().find(is_it).map(drop).ok_or(format!("{rows:#?}"))
    });
}

#[test]
fn a_failed_version_is_rolled_back() {
    let kept = Kept::new(1);
    kept.apply(2, 1000);
    kept.settles(2, 1000);
    let text =
        "name: web\ncount: 2\nstart: {command: [/does/not/exist], mem_mb: 8}\nupdate: {max_failures: 2}\n";
    fs::write(kept.cluster.path("bad.yaml"), text).unwrap();
    let diff = kept.words(&["ctl", "diff", "-f", "bad.yaml"]);
    assert_eq!(diff.code, Some(1), "{}", diff.stderr);
    assert!(
        diff.stdout
            .contains("start.command: [\"sleep\",\"1000\"] -> [\"/does/not/exist\"]"),
        "{}",
        diff.stdout
    );
    kept.done("apply -f bad.yaml");
    kept.comes("it goes back", || {
        let web = kept.done("rollout web").remove(0);
        let error = web["rollout"]["why"].as_str().unwrap_or_default();
        let is_back = error.contains("version 2: 2 instances failed")
            && web["version"] == 1
            && web["rollout"]["state"] == "steady"
            && web["status"]["healthy"] == 2;
        is_back.then_some(()).ok_or(format!("{web:#}"))
    });
    // A faulty file is refused before it is sent.
    fs::write(kept.cluster.path("bad.yaml"), "name: web\nstart: {comand: [a]}\n").unwrap();
    let refused = kept.words(&["ctl", "apply", "-f", "bad.yaml"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("bad.yaml: in the document at line 1") && refused.stderr.contains("comand")
    );
    let unknown = kept.words(&["ctl", "rollout", "db"]);
    assert_eq!(
        (unknown.code, unknown.stderr.contains("workload")),
        (Some(1), true),
        "{}",
        unknown.stderr
    );
}

#[test]
fn apply_can_wait_for_the_roll_out_and_instances_start_before_others_are_stopped() {
    let mut kept = Kept::new(1);
    let wait = |kept: &Kept, name: &str, more: &str| {
        let text = format!("name: {name}\n{more}\n");
        fs::write(kept.cluster.path("web.yaml"), text).unwrap();
        kept.words(&words("ctl apply --wait -f web.yaml"))
    };
    let update = "update: {max_unavailable: 0, surge: 1, healthy_s: 0, max_failures: 2}";
    let more = |command: &str| format!("count: 2\nstart: {{command: {command}, mem_mb: 8}}\n{update}");
    let first = wait(&kept, "web", &more("[sleep, \"1000\"]"));
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(
        first.stdout.trim_end().ends_with("workload web is rolled out"),
        "{}",
        first.stdout
    );
    assert_eq!(kept.done("get web")[0]["workload"]["status"]["healthy"], 2);
    let last = kept.last_row();
    let second = wait(&kept, "web", &more("[sleep, \"1001\"]"));
    assert_eq!(second.code, Some(0), "{second:?}");
    let rows = kept.done("history web --limit 100");
    let new = |row: &&Value| row["id"].as_i64() > Some(last);
    let (mut running, mut least) = (2, 2);
    for row in rows.iter().filter(new).rev() {
        running += i32::from(row["kind"] == "running")
            - i32::from(row["kind"] == "rollout" && row["instance"].is_string());
        least = least.min(running);
    }
    assert_eq!(least, 2, "{rows:#?}");
    kept.settles(2, 1001);
    let bad = wait(&kept, "web", &more("[/does/not/exist]"));
    assert_eq!(bad.code, Some(3), "{bad:?}");
    assert!(
        bad.stdout
            .contains("has gone back to version 2: version 3: 2 instances failed"),
        "{}",
        bad.stdout
    );
    let refused = wait(
        &kept,
        "web",
        "start: {command: [a]}\nupdate: {max_unavailable: 0}",
    );
    assert_eq!(refused.code, Some(2), "{refused:?}");
    // Nothing is known of a roll-out whose controller has ended.
    let slow = "start: {command: [sleep, \"9\"]}\nhealth: {command: [\"false\"], start_s: 600}";
    fs::write(kept.cluster.path("slow.yaml"), format!("name: slow\n{slow}\n")).unwrap();
    let mut command = kept.command(&words("ctl apply --wait --timeout 20 -f slow.yaml"));
    let waiting = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    kept.comes("it is applied", || {
        let all = kept.done("get");
        all.iter()
            .any(|one| one["name"] == "slow")
            .then_some(())
            .ok_or(format!("{all:?}"))
    });
    kept.kill();
    let ended = waiting.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(said.contains("workload slow has an unknown outcome"), "{said}");
}

#[test]
fn a_state_that_the_controller_only_remembers_is_told_as_such() {
    let mut kept = Kept::new(1);
    kept.apply(2, 1000);
    kept.settles(2, 1000);
    assert_eq!(kept.words(&words("ctl get")).stderr, "");
    kept.cluster.kill_scheduler();
    let is_told = |done: Done| {
        if done.stderr.contains("this is the last known state") {
            Ok(())
        } else {
            Err(done.stderr)
        }
    };
    kept.comes("the state is outdated", || is_told(kept.words(&words("ctl get"))));
    is_told(kept.words(&words("ctl get web"))).unwrap();
    is_told(kept.words(&words("ctl rollout web"))).unwrap();
    let waited = kept.words(&words("ctl apply --wait --timeout 2 -f web.yaml"));
    assert_eq!(waited.code, Some(4), "{waited:?}");
    assert!(
        waited
            .stdout
            .contains("web has an unknown outcome: the controller is not connected")
    );
}

#[test]
fn an_instance_that_fails_leaves_its_last_lines_and_its_logs_are_found_by_name() {
    let kept = Kept::new(1);
    let text = "name: web\nstart: {command: [sh, -c, \"echo one; echo two >&2; echo 'FATAL: three' >&2; exit 7\"]}\n\
                update: {max_failures: 2}\n";
    fs::write(kept.cluster.path("web.yaml"), text).unwrap();
    let failed = kept.words(&words("ctl apply --wait -f web.yaml"));
    let why = "exited 7; it wrote: two / FATAL: three";
    assert_eq!(failed.code, Some(3), "{failed:?}");
    assert!(failed.stdout.trim_end().ends_with(why), "{}", failed.stdout);
    let rows = kept.done("history web");
    let is_told = |row: &Value| {
        row["text"]
            .as_str()
            .unwrap()
            .ends_with(&format!("is replaced: {why}"))
    };
    assert!(rows.iter().any(is_told), "{rows:#?}");
    // Two of them are there by now, and neither runs.
    for name in ["web", "web-1"] {
        let logs = kept.words(&["ctl", "logs", name]);
        let written = (logs.stdout.as_str(), logs.stderr.as_str());
        assert_eq!((logs.code, written), (Some(0), ("one\n", "two\nFATAL: three\n")));
    }
    let described = kept.done("describe web-1");
    assert_eq!(described[0]["end"]["last_lines"], "two / FATAL: three");
}

#[test]
fn a_version_whose_checks_fail_on_the_node_goes_back_and_says_why() {
    let kept = Kept::new(2);
    let apply = |check: &str, start_s: u32| {
        let text = format!(
            "name: web\ncount: 2\nstart: {{command: [sh, -c, touch ready; exec sleep 1000], mem_mb: 8}}\n\
             health: {{command: {check}, interval_s: 1, failures: 1, start_s: {start_s}}}\n\
             update: {{healthy_s: 0, max_failures: 1}}\n"
        );
        fs::write(kept.cluster.path("web.yaml"), text).unwrap();
        kept.done("apply -f web.yaml");
    };
    let is_version = |version: u64, why: &str| {
        kept.comes("its roll-out is over", || {
            let web = kept.done("rollout web").remove(0);
            let said = web["rollout"]["why"].as_str().unwrap_or_default();
            let is_so = said.contains(why)
                && web["version"] == version
                && web["rollout"]["state"] == "steady"
                && web["status"]["healthy"] == 2;
            is_so.then_some(()).ok_or(format!("{web:#}"))
        });
    };
    apply("[test, -e, ready]", 600);
    is_version(1, "");
    apply("[sh, -c, echo not yet; false]", 0);
    is_version(1, "it is unhealthy: exit code 1: not yet");
    apply("[\"true\"]", 600);
    is_version(3, "");
}

#[test]
fn a_workload_is_spread_and_leaves_an_evacuated_node_one_instance_after_the_other() {
    let mut kept = Kept::new(2);
    let text =
        "name: web\ncount: 4\nstart: {command: [sleep, \"1000\"], mem_mb: 8}\nupdate: {healthy_s: 0}\n";
    fs::write(kept.cluster.path("web.yaml"), text).unwrap();
    kept.done("apply -f web.yaml");
    kept.settles(4, 1000);
    let nodes = |kept: &Kept| {
        let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
        for one in kept.instances().iter().filter(|one| one["state"] != "exited") {
            *nodes.entry(one["node"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        nodes
    };
    let before = nodes(&kept);
    assert_eq!(before.values().collect::<Vec<_>>(), [&2, &2]);
    let (node, other) = (before.keys().next().unwrap(), before.keys().last().unwrap());
    kept.done(&format!("start --node {node} -- sleep 1000"));
    let last = kept.last_row();
    kept.done(&format!("evacuate {node}"));
    kept.comes("all run on the other node", || {
        let seen = nodes(&kept);
        let is_so = seen.len() == 1 && seen.get(other) == Some(&4);
        is_so.then_some(()).ok_or(format!("{seen:?}"))
    });
    // A further instance leaves once the one before it runs elsewhere.
    let mut kinds = Vec::new();
    let rows = kept.done("history web --limit 100");
    for row in rows.iter().filter(|row| row["id"].as_i64() > Some(last)) {
        let kind = row["kind"].as_str().unwrap().to_owned();
        assert_ne!(kind, "failed", "{row}");
        if kind == "moved" || kind == "running" {
            kinds.push((row["id"].as_i64(), kind));
        }
    }
    kinds.sort();
    let kinds: Vec<_> = kinds.iter().map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(kinds, ["moved", "running", "moved", "running"]);
    // Nobody moves them any more.
    kept.done(&format!("restore {node}"));
    kept.kill();
    let late = kept.words(&words(&format!("ctl evacuate {other} --timeout 10")));
    let why = "no controller has moved web-";
    assert!(
        late.code == Some(1) && late.stderr.contains(why),
        "{}",
        late.stderr
    );
    assert_eq!(nodes(&kept)[other], 4, "they still run");
    kept.done(&format!("evacuate {other} --no-wait"));
    kept.done(&format!("evacuate {other}"));
    assert_eq!(nodes(&kept).get(other), None);
}

#[test]
fn a_workload_runs_on_nodes_with_its_labels_and_a_label_or_tenant_that_is_not_there_is_refused_with_its_line()
{
    let mut cluster = Cluster::new("--state scheduler-state");
    cluster.agent("--label zone=a --label disk=ssd");
    let kept = Kept::with(cluster, 2);
    let file = |zone: &str| {
        let text = format!(
            "name: db\ncount: 0\nstart: {{command: [a]}}\n---\nname: web\ncount: 2\nstart:\n  command: [sleep, \"1000\"]\n  \
             mem_mb: 8\n  constraint:\n    zone: {zone}\nupdate: {{healthy_s: 0}}\n"
        );
        fs::write(kept.cluster.path("web.yaml"), text).unwrap();
    };
    file("c");
    // The controller refuses nothing until all nodes have reported to it.
    kept.comes("the label is refused", || {
        let diff = kept.words(&words("ctl diff -f web.yaml"));
        let why = "web.yaml:11:5: web.start.constraint: no node has the label zone=c";
        let is_so = diff.code == Some(2) && diff.stderr.contains(why);
        is_so.then_some(()).ok_or(format!("{diff:?}"))
    });
    assert_eq!(kept.words(&words("ctl apply -f web.yaml")).code, Some(1));
    file("a");
    kept.done("apply -f web.yaml");
    kept.settles(2, 1000);
    let nodes = kept.done("nodes").remove(0);
    let of_a = |node: &&Value| node["labels"]["zone"] == "a";
    let node = nodes.as_array().unwrap().iter().find(of_a).unwrap()["uuid"].clone();
    let instances = kept.instances();
    assert!(instances.iter().all(|one| one["node"] == node), "{instances:#?}");
    let text = "name: red\ncount: 0\nstart:\n  command: [a]\n  tenant: red\n";
    fs::write(kept.cluster.path("red.yaml"), text).unwrap();
    let refused = kept.words(&words("ctl apply -f red.yaml"));
    let why = "start.tenant: there is no tenant \"red\"";
    assert!(
        refused.code == Some(1) && refused.stderr.contains("red.yaml:5:") && refused.stderr.contains(why),
        "{refused:?}"
    );
    let start = "ctl start --constraint zone=c --constraint disk=ssd -- sleep 9";
    let refused = kept.words(&words(start));
    let why = "no connected node has the label zone=c";
    assert!(
        refused.code == Some(1) && refused.stderr.contains(why),
        "{refused:?}"
    );
}

#[test]
fn a_change_with_an_old_revision_is_refused() {
    let kept = Kept::new(0);
    let apply = |count: usize, more: &str| {
        let text = format!("name: web\ncount: {count}\nstart: {{command: [sleep, \"9\"]}}\n");
        fs::write(kept.cluster.path("web.yaml"), text).unwrap();
        kept.words(&words(&format!("ctl {more} -f web.yaml")))
    };
    assert_eq!(apply(1, "apply --revision 0").code, Some(0));
    // Two clients read the same revision, and then both write.
    let diff = apply(2, "diff");
    let rest = diff.stdout.split("its revision is ").nth(1).unwrap();
    let revision = rest.split_whitespace().next().unwrap().to_owned();
    let first = apply(2, &format!("apply --revision {revision}"));
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    for (order, expected) in [("apply", revision.as_str()), ("diff", &revision), ("apply", "0")] {
        let second = apply(3, &format!("{order} --revision {expected}"));
        assert_eq!(
            second.code,
            Some(if order == "diff" { 2 } else { 1 }),
            "{}",
            second.stderr
        );
        assert!(
            second.stderr.contains("by now; read it again"),
            "{}",
            second.stderr
        );
    }
    assert_eq!(kept.done("get web")[0]["workload"]["spec"]["count"], 2);
    fs::write(
        kept.cluster.path("two.yaml"),
        "name: a\nstart: {command: [a]}\n---\nname: b\nstart: {command: [a]}\n",
    )
    .unwrap();
    let two = kept.words(&words("ctl apply --revision 0 -f two.yaml"));
    assert_eq!(
        (two.code, two.stderr.contains("a file of one workload")),
        (Some(2), true),
        "{}",
        two.stderr
    );
    let old = format!("--revision {revision} web");
    for order in ["rollout --pause", "remove"] {
        let late = kept.words(&words(&format!("ctl {order} {old}")));
        let message = format!("{order}: {}", late.stderr);
        assert_eq!(late.code, Some(1), "{message}");
        assert!(late.stderr.contains("by now; read it again"), "{message}");
    }
    let refused = kept.words(&words(&format!("ctl remove {old} other")));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let web = kept.done("get web").remove(0);
    assert_ne!(web["workload"]["deleting"], true, "{web}");
    kept.done(&format!("remove --revision {} web", web["workload"]["revision"]));
}

#[test]
fn a_second_controller_takes_over_and_starts_no_instance_twice() {
    let mut kept = Kept::with(Cluster::new("--state scheduler-state --controllers master"), 1);
    // The controller whose session begins first is the master.
    kept.happens("session", 0);
    let second = kept.cluster.path("second");
    let http = format!("unix:{}", second.display());
    let start = ["controller", "--store", "second-store", "--http", &http];
    let daemon = Process::of(kept.cluster.command(&start), &kept.cluster.path(""), "second");
    daemon.line_with("page");
    let token = words("controller token add test --write --store second-store");
    let made = Done::of(kept.cluster.command(&token));
    let token = made
        .stdout
        .split_whitespace()
        .find(|word| word.starts_with("ssntp-"));
    fs::write(kept.cluster.path("second-token"), token.unwrap()).unwrap();
    let second = |line: &str| {
        let words: Vec<_> = ["ctl", "--json"]
            .into_iter()
            .chain(line.split_whitespace())
            .collect();
        let done = run(|| {
            let mut command = kept.cluster.command(&words);
            command.env("SSNTP_HTTP", &http);
            command.env("SSNTP_TOKEN_FILE", kept.cluster.path("second-token"));
            command
        });
        assert_eq!(done.code, Some(0), "{line}: {}", done.stderr);
        let lines = done.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<Value>>()
    };
    // Both controllers have the same workload. Only the first one sends commands, and the other one
    // records the instances.
    kept.apply(3, 1000);
    kept.settles(3, 1000);
    second("apply -f web.yaml");
    let all_run = |step: &str| {
        until(step, || {
            let web = second("get web").remove(0);
            let all_run = web["workload"]["status"]["healthy"] == 3;
            all_run.then_some(()).ok_or(format!("{web:#}"))
        });
    };
    all_run("the second one sees what runs");
    assert!(
        second("history --kind adopted --limit 10").len() >= 3,
        "the second controller has started none of them"
    );
    kept.settles(3, 1000);
    // The first controller is killed, and an instance ends. Only the second one can replace it.
    kept.daemon.take().unwrap().kill();
    let before = second("history --limit 1")[0]["id"].as_i64().unwrap();
    let instances = kept.cluster.path("state-0/instances");
    let mut instances = fs::read_dir(instances).unwrap();
    let instance = instances.find_map(|entry| {
        let inside = processes_inside(&entry.unwrap().path());
        (!inside.is_empty()).then_some(inside)
    });
    for process in instance.unwrap() {
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
    until("another one is started", || {
        let rows = second("history --limit 20");
        let is_new = |row: &&Value| row["kind"] == "running" && row["id"].as_i64().unwrap() > before;
        let started = rows.iter().find(is_new).map(drop);
        started.ok_or(format!("{rows:#?}"))
    });
    all_run("all run again");
    let instances = kept.instances();
    let alive = instances.iter().filter(|one| one["state"] != "exited").count();
    assert_eq!(alive, 3, "{instances:#?}");
}

#[test]
fn the_certificate_of_a_page_client_gives_the_right_to_read_or_write() {
    let kept = Kept::new(0);
    let done = |words: &str| {
        let words: Vec<_> = words.split_whitespace().collect();
        Done::of(kept.cluster.command(&words))
    };
    for line in [
        "cert ca --dir look",
        "cert issue --dir look --role agent --name eyes",
        "cert ca --dir other",
        "cert issue --dir other --role controller --name stranger",
    ] {
        assert_eq!(done(line).code, Some(0), "{line}");
    }
    let refused = done("controller --store tls-store --http 0.0.0.0:0");
    assert!(
        refused.stderr.contains("controller,server"),
        "{:?}",
        refused.stderr
    );
    let line = "controller --store tls-store --http 0.0.0.0:0 --http-ca look/ca.pem --cert page.pem";
    let words: Vec<_> = line.split_whitespace().collect();
    let daemon = Process::of(kept.cluster.command(&words), &kept.cluster.path(""), "controller");
    let page = daemon.line_with("page");
    let url = page
        .trim()
        .rsplit(' ')
        .next()
        .unwrap()
        .replace("0.0.0.0", "127.0.0.1");
    let address = url
        .strip_prefix("https://")
        .expect("addresses that are not loopback use TLS");
    // The client uses no TLS for loopback addresses, so it gets another address of this host.
    let http = format!("https://{}", address.replace("127.0.0.1", "0.0.0.0"));
    fs::write(
        kept.cluster.path("web.yaml"),
        "name: web\nstart: {command: [sleep, \"9\"]}\n",
    )
    .unwrap();
    let ask = |cert: &str, line: &str| done(&format!("ctl {line} --http {http} --cert {cert}"));
    // The pages give a client two seconds for its handshake and request, which a machine under load may
    // need for the start of a program. So a command that is to succeed is tried again.
    let comes = |cert: &str, line: &str, is_it: &dyn Fn(&Done) -> bool| {
        until(&format!("{cert}: {line}"), || {
            let done = ask(cert, line);
            is_it(&done).then_some(()).ok_or(format!("{done:?}"))
        });
    };
    let may = |cert: &str, line: &str, expected: bool| {
        if expected {
            comes(cert, line, &|done| done.code == Some(0))
        } else {
            assert_ne!(ask(cert, line).code, Some(0), "{cert}: {line}")
        }
    };
    for (cert, looks, writes) in [
        ("controller.pem", true, true),
        ("look/eyes.pem", true, false),
        ("agent.pem", false, false),
        ("other/stranger.pem", false, false),
    ] {
        may(cert, "get", looks);
        may(cert, "apply -f web.yaml", writes);
    }
    comes("look/eyes.pem", "remove web", &|done| {
        done.stderr.contains("role controller")
    });
    comes("controller.pem", "get", &|done| done.stdout.contains("web"));
    // A connection without TLS gets no answer.
    let mut plain = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(
        &mut plain,
        b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    .unwrap();
    plain.set_read_timeout(Some(LIMIT)).unwrap();
    let mut received = Vec::new();
    let _ = std::io::Read::read_to_end(&mut plain, &mut received);
    assert!(
        !String::from_utf8_lossy(&received).contains("HTTP/1.1 200"),
        "{received:?}"
    );
}
