//! Several schedulers as processes that share an etcd.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use ssntp_test_support::etcd::EtcdProcess;
use uuid::Uuid;

use crate::cluster::processes::{Cluster, Done, LIMIT, Process, processes_inside, ssntp};

const YAML: &str = "configure:\n  launcher:\n    mgmt_net: [10.1.0.0/16]\n";

struct Schedulers {
    cluster: Cluster,
    join: String,
    addresses: Vec<String>,
    processes: Vec<Process>,
}

impl Schedulers {
    fn start(etcd: &EtcdProcess, count: usize) -> Self {
        let mut all = Self {
            cluster: Cluster::without_scheduler(""),
            join: etcd.join(),
            addresses: Vec::new(),
            processes: Vec::new(),
        };
        for at in 0..count {
            let process = all.scheduler(at, "127.0.0.1:0");
            let said = process.line();
            let address = said.trim().strip_prefix("listening at ").unwrap();
            all.addresses.push(address.to_owned());
            all.processes.push(process);
        }
        all.cluster.serve_at(&all.addresses.join(","));
        all
    }

    fn scheduler(&self, at: usize, address: &str) -> Process {
        let copy = format!("cluster-{at}.yaml");
        let line = format!(
            "scheduler --listen {address} --ca ca.pem --cert scheduler.pem --allow-unbound --config {copy} \
             --join {} --cluster test",
            self.join
        );
        let words: Vec<_> = line.split_whitespace().collect();
        Process::start(&self.cluster.path(""), &words)
    }

    /// Starts those again that have ended, as a service manager does. On a machine that is very
    /// busy a leader may lose its lease without a fault.
    fn revive(&mut self) {
        for at in 0..self.processes.len() {
            if self.processes[at].has_ended() {
                let process = self.scheduler(at, &self.addresses[at].clone());
                process.line_with("listening at");
                self.processes[at] = process;
            }
        }
    }

    /// The number of the one that serves.
    #[track_caller]
    fn leader(&mut self) -> usize {
        let end = Instant::now() + LIMIT;
        let mut seconds = 0;
        while Instant::now() < end {
            self.revive();
            // One that is stopped takes connections and does not answer. Short waits find the
            // leader fast, longer ones also on a slow machine.
            seconds += 1;
            let serves = |at: &usize| {
                let line = format!("nodes --timeout {seconds} --connect {}", self.addresses[*at]);
                self.cluster.ctl(&line).code == Some(0)
            };
            if let Some(at) = (0..self.addresses.len()).find(serves) {
                return at;
            }
        }
        panic!("nobody leads in time");
    }

    /// Starts workloads until one runs, and says how long that took.
    #[track_caller]
    fn next_start(&mut self) -> Duration {
        let begin = Instant::now();
        let line = "start --mem 8 --persistent --timeout 30 -- sleep 1000";
        while self.cluster.ctl(line).code != Some(0) {
            assert!(begin.elapsed() < 2 * LIMIT, "no START is done");
            self.revive();
        }
        begin.elapsed()
    }

    /// The instances that run, and how many nodes run each.
    fn running(&self, nodes: usize) -> Vec<(Uuid, usize)> {
        let mut running: Vec<(Uuid, usize)> = Vec::new();
        for node in 0..nodes {
            let instances = self.cluster.path(&format!("state-{node}/instances"));
            for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let uuid = name.to_str().and_then(|name| Uuid::try_parse(name).ok());
                let Some(uuid) = uuid.filter(|_| !processes_inside(&entry.path()).is_empty()) else {
                    continue;
                };
                match running.iter_mut().find(|(other, _)| *other == uuid) {
                    Some((_, count)) => *count += 1,
                    None => running.push((uuid, 1)),
                }
            }
        }
        running
    }
}

#[test]
fn whatever_happens_to_a_leader_another_one_serves_and_nothing_runs_twice() {
    let Some(mut etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = Schedulers::start(&etcd, 3);
    for _ in 0..2 {
        all.cluster.agent("");
    }
    all.next_start();
    fs::write(all.cluster.path("new.yaml"), YAML).unwrap();
    all.cluster.done("configure new.yaml");

    // Killed in the middle of STARTs: each is answered or unknown, and none runs twice.
    let leader = all.leader();
    let words = [
        "ctl",
        "start",
        "--count",
        "20",
        "--mem",
        "8",
        "--timeout",
        "15",
        "--json",
        "--",
        "sleep",
        "1000",
    ];
    let mut load = all.cluster.command(&words);
    let load = load
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + LIMIT;
    while all.running(2).len() < 4 {
        assert!(Instant::now() < end, "the load has begun");
    }
    all.processes[leader].signal(Signal::KILL);
    let took = all.next_start();
    println!("from kill -9 of the leader to the next START done: {took:?}");
    let said = Done::of_child(load);
    let answers = said.stdout.lines().count();
    assert_eq!(
        answers, 20,
        "each START is accounted for: {}{}",
        said.stdout, said.stderr
    );
    let running = all.running(2);
    assert!(running.iter().all(|(_, nodes)| *nodes == 1), "{running:?}");
    // The leader lists all instances only after both nodes have connected to it again.
    let end = Instant::now() + LIMIT;
    let is_missing = |listed: &str| {
        let missing = |(uuid, _): &&(Uuid, usize)| !listed.contains(&uuid.to_string());
        running.iter().find(missing).map(|(uuid, _)| *uuid)
    };
    while let Some(uuid) = is_missing(&all.cluster.ctl("instances --json").stdout) {
        assert!(Instant::now() < end, "{uuid} is not listed");
    }

    // Stopped, as by a hypervisor: it ends when it wakes, and its clients go to the next one.
    let leader = all.leader();
    all.processes[leader].signal(Signal::STOP);
    assert_ne!(all.leader(), leader);
    all.processes[leader].signal(Signal::CONT);
    assert_eq!(all.processes[leader].end(LIMIT), Some(1));
    let log = all.processes[leader].log();
    assert!(log.contains("its lease is over"), "{log}");
    all.next_start();

    // Without the engine nobody leads for long; with it, all is as before.
    let leader = all.leader();
    etcd.kill(0);
    assert_eq!(all.processes[leader].end(LIMIT), Some(1));
    let mut early = ssntp(&all.cluster.path(""), &["scheduler", "--listen", "127.0.0.1:0"]);
    early.args(["--ca", "ca.pem", "--cert", "scheduler.pem", "--join", &all.join]);
    let early = Done::of(early);
    assert_eq!(early.code, Some(1));
    assert!(
        early.stderr.contains("--join: the engine is away: 127.0.0.1:"),
        "{}",
        early.stderr
    );
    etcd.restart(0, false);
    all.next_start();
    let running = all.running(2);
    assert!(running.iter().all(|(_, nodes)| *nodes == 1), "{running:?}");

    // A leader that is told to end, or is drained, is replaced at once.
    let leader = all.leader();
    all.processes[leader].signal(Signal::TERM);
    assert_eq!(all.processes[leader].end(LIMIT), Some(0));
    println!(
        "from SIGTERM of the leader to the next START done: {:?}",
        all.next_start()
    );
    let leader = all.leader();
    let at = format!("--connect {}", all.addresses[leader]);
    let listed = all.cluster.done(&format!("servers {at}"));
    assert!(listed.contains(" leads with token "), "{listed}");
    assert!(listed.contains("; the engine answers\n"), "{listed}");
    assert_eq!(listed.matches("own, leads").count(), 1, "{listed}");
    all.cluster
        .done(&format!("servers drain {} {at}", all.addresses[leader]));
    assert_eq!(all.processes[leader].end(LIMIT), Some(0));
    println!(
        "from the drain of the leader to the next START done: {:?}",
        all.next_start()
    );
    let kept = fs::read_to_string(all.cluster.path("cluster-0.yaml"));
    let shown = all.cluster.controller_sees(2).client().configuration().unwrap();
    assert_eq!(shown, YAML, "{kept:?}");
}
