//! What a controller daemon keeps, while everything is killed: what should run runs once.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::processes::{Cluster, Done, LIMIT, Process};

/// A cluster, its controller daemon, and a file of workloads.
struct Kept {
    cluster: Cluster,
    daemon: Option<Process>,
}

impl Kept {
    fn new(agents: usize) -> Self {
        let mut cluster = Cluster::new("--state scheduler-state");
        for _ in 0..agents {
            cluster.agent("");
        }
        cluster.controller_sees(agents);
        let mut kept = Self {
            cluster,
            daemon: None,
        };
        kept.start();
        let made = kept.words(&[
            "controller",
            "token",
            "add",
            "test",
            "--write",
            "--store",
            "store",
        ]);
        let token = made
            .stdout
            .split_whitespace()
            .find(|word| word.starts_with("ssntp-"));
        fs::write(kept.cluster.path("token"), token.unwrap()).unwrap();
        kept
    }

    fn words(&self, words: &[&str]) -> Done {
        let mut command = self.cluster.command(words);
        command.env(
            "SSNTP_HTTP",
            format!("unix:{}", self.cluster.path("api").display()),
        );
        command.env("SSNTP_TOKEN_FILE", self.cluster.path("token"));
        Done::of(command)
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

    /// Runs `ssntp ctl`, which has to succeed; gives its lines as JSON.
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

    /// What runs for real.
    fn instances(&self) -> Vec<Value> {
        self.done("instances").remove(0).as_array().unwrap().clone()
    }

    /// Applies a workload of this size, whose instances sleep so long.
    fn apply(&self, count: usize, seconds: usize) {
        let text = format!(
            "name: web\ncount: {count}\nstart: {{command: [sleep, \"{seconds}\"], mem_mb: 8}}\n\
             update: {{healthy_s: 0, max_unavailable: 4}}\nreschedule: {{grace_s: 120}}\n"
        );
        fs::write(self.cluster.path("web.yaml"), text).unwrap();
        self.done("apply -f web.yaml");
    }

    /// Waits until the history has a row of this kind behind that one.
    fn happens(&self, kind: &str, after: i64) {
        until(kind, || {
            let rows = self.done(&format!("history --kind {kind} --limit 1"));
            rows.first()
                .is_some_and(|row| row["id"].as_i64().unwrap() > after)
        });
    }

    fn last_row(&self) -> i64 {
        self.done("history --limit 1")
            .first()
            .map_or(0, |row| row["id"].as_i64().unwrap())
    }

    /// Waits until the controller says that all is done, then counts what runs for real: one
    /// instance for each slot.
    fn settles(&self, count: usize, seconds: usize) {
        let mut said = Value::Null;
        until("all run", || {
            said = self.done("get web").remove(0);
            let web = &said["workload"];
            web["rollout"]["state"] == "steady"
                && web["status"]["healthy"] == count
                && said["instances"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|one| one["wanted"] == true)
                    .count()
                    == count
        });
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        until("nothing else runs", || {
            let instances = self.instances();
            let alive = instances.iter().filter(|one| one["state"] != "exited");
            running.clear();
            for one in alive {
                *running
                    .entry(one["name"].as_str().unwrap().to_owned())
                    .or_default() += 1;
            }
            running.values().sum::<usize>() == count
        });
        let names: Vec<_> = (1..=count).map(|slot| format!("web-{slot}")).collect();
        assert!(
            names.iter().all(|name| running.get(name) == Some(&1)),
            "{running:?}"
        );
        let version = said["workload"]["versions"].as_array().unwrap().last().unwrap();
        assert_eq!(version["template"]["start"]["command"][1], seconds.to_string());
    }
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + 2 * LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_should_run_runs_once_wherever_the_controller_is_killed() {
    let mut kept = Kept::new(2);
    // Killed before anything was decided, when STARTs are written down, when instances run, and
    // in the middle of a roll-out.
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
    // In order, too; instances go on meanwhile.
    let mut daemon = kept.daemon.take().unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(LIMIT), Some(0), "{}", daemon.log());
    kept.start();
    kept.settles(7, 1003);
    kept.done("remove web");
    until("all is gone", || {
        kept.done("get").is_empty() && kept.instances().is_empty()
    });
}

#[test]
fn what_should_run_runs_once_when_the_scheduler_and_an_agent_are_killed() {
    let mut kept = Kept::new(2);
    kept.apply(4, 1000);
    kept.happens("starting", 0);
    kept.cluster.kill_scheduler();
    kept.cluster.start_scheduler();
    kept.settles(4, 1000);
    // Its instances go on, and are there when it is.
    kept.cluster.kill_node(0);
    kept.apply(6, 1000);
    kept.happens("node", 0);
    kept.cluster.start_node(0, "agent", "");
    kept.settles(6, 1000);
}

#[test]
fn a_version_that_fails_goes_back_by_itself() {
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
    until("it goes back", || {
        let web = kept.done("rollout web").remove(0);
        let why = web["rollout"]["why"].as_str().unwrap_or_default();
        why.contains("version 2: 2 instances failed")
            && web["version"] == 1
            && web["rollout"]["state"] == "steady"
            && web["status"]["healthy"] == 2
    });
    // What is wrong is said before it is sent.
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
