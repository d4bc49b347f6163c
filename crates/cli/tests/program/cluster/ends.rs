//! The ends of workloads and their names, as `ssntp ctl` shows them.

use std::fs;
use std::time::Instant;

use serde_json::Value;
use ssntp_payload::InstanceState;
use uuid::Uuid;

use crate::cluster::processes::{Cluster, Done, LIMIT, Process, wait_for};

/// Starts a workload, and returns its UUID even if the workload ends at once.
#[track_caller]
fn start(cluster: &Cluster, flags: &str, script: &str) -> Uuid {
    let words: Vec<_> = ["start", "--json"]
        .into_iter()
        .chain(flags.split_whitespace())
        .collect();
    let done = cluster.ctl_words(&[&words[..], &["--", "sh", "-c", script]].concat());
    assert!(done.code == Some(0) && done.errors().is_empty(), "{done:?}");
    let result: Value = serde_json::from_str(&done.stdout).unwrap();
    result["subject"].as_str().unwrap().parse().unwrap()
}

#[track_caller]
fn described(cluster: &Cluster, instance: &str) -> Value {
    serde_json::from_str(&cluster.done(&format!("describe {instance} --json"))).unwrap()
}

fn listed(cluster: &Cluster, flags: &str) -> Vec<Uuid> {
    let listed: Vec<Value> =
        serde_json::from_str(&cluster.done(&format!("instances --json {flags}"))).unwrap();
    let uuid = |instance: &Value| instance["uuid"].as_str().unwrap().parse().unwrap();
    listed.iter().map(uuid).collect()
}

#[test]
fn the_end_of_a_workload_is_shown_and_survives_its_agent() {
    let mut cluster = Cluster::with_agents(1);
    let failed = start(&cluster, "--name failing --label tier=front", "exit 3");
    let killed = start(&cluster, "", "kill -9 $$");
    let fine = start(&cluster, "", "true");
    for (instance, end, code) in [
        (failed, "exited 3", 3),
        (killed, "killed SIGKILL", 3),
        (fine, "exited 0", 0),
    ] {
        let done = cluster.ctl(&format!("wait {instance}"));
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        assert_eq!(
            (&done.stdout, done.errors()),
            (&format!("instance {instance} has ended: {end}\n"), Vec::new())
        );
        let table = cluster.done("instances");
        let line = table
            .lines()
            .find(|line| line.contains(&instance.to_string()))
            .unwrap();
        assert!(line.contains(end), "{table}");
    }
    let check = |cluster: &Cluster| {
        let shown = described(cluster, "failing");
        assert_eq!(
            (&shown["uuid"], &shown["name"]),
            (&failed.to_string().into(), &"failing".into())
        );
        assert_eq!(shown["labels"]["tier"], "front");
        assert_eq!(
            (&shown["end"]["exit_code"], &shown["end"]["text"]),
            (&3.into(), &"exited 3".into())
        );
        assert_eq!(shown["end"]["signal"], Value::Null);
        let (started, ended) = (
            shown["started"].as_str().unwrap(),
            shown["ended"].as_str().unwrap(),
        );
        // Fractions have no trailing zeros, so times are compared without the final Z.
        let is_before = started.trim_end_matches('Z') <= ended.trim_end_matches('Z');
        assert!(started.starts_with("20") && is_before, "{started} {ended}");
        let shown = described(cluster, &killed.to_string());
        assert_eq!(
            (&shown["end"]["signal"], &shown["end"]["signal_name"]),
            (&9.into(), &"SIGKILL".into())
        );
    };
    check(&cluster);
    let sheet = cluster.done("describe failing");
    for line in [
        "  name        failing\n",
        "  labels      tier=front\n",
        "  end         exited 3\n",
    ] {
        assert!(sheet.contains(line), "{sheet}");
    }
    let node = described(&cluster, "failing")["node"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(described(&cluster, &node)["status"], "READY");
    let sheet = cluster.done(&format!("describe {node}"));
    assert!(
        sheet.contains("READY") && sheet.contains(&format!("{failed} exited exited 3 failing")),
        "{sheet}"
    );
    assert!(
        cluster
            .fails("describe nothing")
            .contains("no instance and no node is known as \"nothing\"")
    );

    cluster.kill_node(0);
    cluster.start_node(0, "agent", "--volumes volumes");
    let controller = cluster.controller_sees(1);
    wait_for(&controller, failed, &InstanceState::Exited);
    check(&cluster);
}

#[test]
fn start_reports_the_end_of_an_instance_that_ends_at_once() {
    let cluster = Cluster::with_agents(1);
    // `start` may see the instance run before it ends. Then another attempt is needed.
    let deadline = Instant::now() + 2 * LIMIT;
    while Instant::now() < deadline {
        let done = cluster.ctl_words(&["start", "--json", "--", "sh", "-c", "exit 7"]);
        assert_eq!(done.code, Some(0), "the instance was started: {}", done.stderr);
        let result: Value = serde_json::from_str(&done.stdout).unwrap();
        if result["node"].is_null() {
            assert_eq!(result["end"]["exit_code"], 7, "{result}");
            assert!(
                result["text"]
                    .as_str()
                    .unwrap()
                    .ends_with(" was started and has ended: exited 7"),
                "{result}"
            );
            return;
        }
    }
    panic!("each instance was seen to run");
}

#[test]
fn an_instance_that_ignores_sigterm_is_shown_as_killed() {
    let cluster = Cluster::with_agents(1);
    let stubborn = start(
        &cluster,
        "--persistent --name stubborn",
        "trap : TERM; while :; do sleep 1; done",
    );
    cluster.done("stop stubborn");
    let shown = described(&cluster, &stubborn.to_string());
    assert_eq!(shown["end"]["text"], "killed SIGKILL", "{shown}");
    assert!(
        shown["end"]["detail"]
            .as_str()
            .unwrap()
            .contains("did not end when it was asked to")
    );
}

#[test]
fn wait_ends_when_the_instance_runs_or_has_ended() {
    let cluster = Cluster::with_agents(1);
    let lasting = start(&cluster, "--persistent --name lasting", "sleep 1000");
    let output = cluster.done("wait lasting --for running");
    assert!(
        output.starts_with(&format!("instance {lasting} runs on node ")),
        "{output}"
    );
    let wanted = format!("instance {lasting} has not ended in time: it is active on node ");
    cluster.is_over("wait lasting", |error, _| error.starts_with(&wanted));

    let mut wait = Process::of(
        cluster.command(&["ctl", "wait", "lasting", "--json"]),
        &cluster.path(""),
        "wait",
    );
    wait.handles_signals();
    cluster.done("stop lasting");
    let result: Value = serde_json::from_str(&wait.line()).unwrap();
    assert_eq!(
        (&result["result"], &result["end"]["signal_name"]),
        (&"ended".into(), &"SIGTERM".into())
    );
    assert_eq!(wait.end(), Some(3), "{}", wait.log());
    let done = cluster.ctl("wait lasting --for running");
    assert_eq!(done.code, Some(3), "the instance has ended: {}", done.stderr);

    // Both instances are looked up before the end of the first one is reported.
    let over = start(&cluster, "", "true");
    cluster.done("restart lasting");
    let line = ["ctl", "wait", "lasting", &over.to_string()];
    let mut wait = Process::of(cluster.command(&line), &cluster.path(""), "wait");
    assert_eq!(wait.line(), format!("instance {over} has ended: exited 0"));
    cluster.done("delete lasting");
    assert_eq!(wait.line(), format!("instance {lasting} is gone"));
    assert_eq!(wait.end(), Some(1));
}

#[test]
fn a_name_selects_its_instance_and_an_ambiguous_name_lists_the_candidates() {
    let cluster = Cluster::with_agents(2);
    let output = cluster.done("start --persistent --name web --label tier=front --count 2 -- sleep 1000");
    assert_eq!(output.lines().count(), 2);
    let db = start(
        &cluster,
        "--persistent --name db --label tier=back --label keep=yes",
        "sleep 1000",
    );
    assert_eq!(listed(&cluster, "--label tier").len(), 3);
    assert_eq!(listed(&cluster, "--label tier=front").len(), 2);
    assert_eq!(listed(&cluster, "--label tier=back --label keep"), [db]);
    assert!(listed(&cluster, "--label tier=back --label keep=no").is_empty());
    cluster.done("stop web-1");
    let stopped = listed(&cluster, "--state exited");
    assert_eq!(stopped.len(), 1);
    assert_eq!(described(&cluster, "web-1")["uuid"], stopped[0].to_string());
    let node = described(&cluster, "db")["node"].as_str().unwrap().to_owned();
    assert!(listed(&cluster, &format!("--node {node}")).contains(&db));
    let nodes: Vec<Value> = serde_json::from_str(&cluster.done("nodes --state ready --json")).unwrap();
    assert_eq!(nodes.len(), 2);
    assert_eq!(cluster.done("nodes --state gone --json"), "[]\n");

    let other = start(&cluster, "--persistent --name db", "sleep 1000");
    let error = cluster.fails("stop db");
    assert!(error.starts_with("2 instances are called db: "), "{error}");
    assert!(
        error.contains(&db.to_string()) && error.contains(&other.to_string()),
        "{error}"
    );
    assert_eq!(cluster.ctl("start --name a/b -- sleep 1").code, Some(2));
    assert_eq!(cluster.ctl("start --label a -- sleep 1").code, Some(2));
    assert_eq!(cluster.ctl("instances --state mad").code, Some(2));
}

#[test]
fn prune_deletes_only_ended_instances() {
    let cluster = Cluster::with_agents(1);
    let lasting = start(&cluster, "", "sleep 1000");
    let front = start(&cluster, "--label tier=front", "exit 1");
    let back = start(&cluster, "--label tier=back", "exit 0");
    for instance in [front, back] {
        cluster.ctl(&format!("wait {instance}"));
    }
    assert_eq!(cluster.done("prune --older-than 1h").trim(), "nothing to delete");
    assert_eq!(cluster.done("prune --json --older-than 1h"), "");
    let result: Value = serde_json::from_str(&cluster.done("prune --label tier=front --json")).unwrap();
    assert_eq!(
        (&result["subject"], &result["result"]),
        (&front.to_string().into(), &"done".into())
    );
    assert_eq!(cluster.done("prune --older-than 0s").lines().count(), 1);
    assert_eq!(listed(&cluster, ""), [lasting]);
}

#[test]
fn the_environment_comes_from_files_and_flags() {
    let cluster = Cluster::with_agents(1);
    fs::write(cluster.path("one.env"), "# both\nA=one\nB=one\nC=a b\n").unwrap();
    fs::write(cluster.path("two.env"), "B=two\n").unwrap();
    let flags = "--env-file one.env --env-file two.env --env A=flag --name told";
    start(&cluster, flags, "[ \"$A $B $C\" = 'flag two a b' ]");
    assert_eq!(
        cluster.ctl("wait told").code,
        Some(0),
        "{}",
        cluster.done("describe told")
    );
    fs::write(cluster.path("bad.env"), "A=1\nB\n").unwrap();
    let error = cluster.fails("start --env-file bad.env -- sleep 1");
    assert_eq!(error, "bad.env: line 2: expected NAME=VALUE");
}

#[test]
fn errors_are_json_if_a_flag_says_so() {
    let cluster = Cluster::with_agents(1);
    let error = |done: Done, code: i32| -> String {
        assert_eq!(
            (done.code, done.errors().len()),
            (Some(code), 1),
            "{}",
            done.stderr
        );
        let error: Value = serde_json::from_str(done.errors()[0]).unwrap();
        assert_eq!(error["exit_code"], code, "{error}");
        error["error"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        error(cluster.ctl("stop zz --json"), 1),
        "no instance is called \"zz\""
    );
    let done = cluster.ctl("start --json -- /nonexistent");
    let result: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        (&result["result"], &result["reason"]),
        (&"failed".into(), &"launch_failure".into())
    );
    assert!(
        result["detail"].as_str().unwrap().contains("/nonexistent"),
        "{result}"
    );
    error(done, 1);
    assert!(error(cluster.ctl("wait --json"), 2).contains("INSTANCE"));
    error(cluster.ctl("nodes --json --ca missing.pem"), 1);
}
