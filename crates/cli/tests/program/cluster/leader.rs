//! Several schedulers as processes that share an etcd.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use ssntp_engine::{Answer, Endpoints, Engine, Etcd, EtcdConfig, Request};
use ssntp_test_support::etcd::EtcdProcess;
use uuid::Uuid;

use crate::cluster::processes::{Cluster, Done, LIMIT, Process, processes_inside, ssntp};

/// One with each scheduler.
const NODES: usize = 3;
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

    /// Starts those again that have ended, as a service manager does.
    fn revive(&mut self) {
        for at in 0..self.processes.len() {
            if self.processes[at].has_ended() {
                let process = self.scheduler(at, &self.addresses[at].clone());
                process.line_with("listening at");
                self.processes[at] = process;
            }
        }
    }

    /// The number of the one that leads, if any does.
    fn leads(&self) -> Option<usize> {
        let endpoints: Endpoints = self.join.parse().unwrap();
        let mut engine = Etcd::new(EtcdConfig {
            endpoints,
            tls: None,
            user: None,
            cluster: "test".to_owned(),
        });
        let Ok(Answer::Kept(kept)) = engine.ask(&Request::Read) else {
            return None;
        };
        let read = |key: &str| -> Option<Value> {
            let entry = kept.entries.get(key)?;
            serde_json::from_slice(&entry.value).ok()
        };
        let leader = read("leader")?["uuid"].as_str()?.to_owned();
        let member = read(&format!("members/{leader}"))?;
        let address = member["addresses"][0].as_str()?;
        self.addresses.iter().position(|own| own == address)
    }

    /// Waits until one leads that is none of these.
    #[track_caller]
    fn leader(&mut self, except: Option<usize>) -> usize {
        let end = Instant::now() + LIMIT;
        loop {
            match self.leads().filter(|leader| Some(*leader) != except) {
                Some(leader) => return leader,
                None => assert!(Instant::now() < end, "nobody leads in time"),
            }
            self.revive();
            std::thread::yield_now();
        }
    }

    /// Clients that start from now on try this one first.
    fn prefer(&mut self, at: usize) {
        let (before, from) = self.addresses.split_at(at);
        self.cluster.serve_at(&[from, before].concat().join(","));
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

/// Starts twenty workloads by way of this scheduler, and signals the leader in the middle. Each
/// START is accounted for: it runs, has failed, or is not known.
#[track_caller]
fn start_and_signal(all: &mut Schedulers, by: usize, leader: usize, signal: Signal) {
    let before = all.running(NODES).len();
    all.prefer(by);
    let line = "ctl start --count 20 --mem 8 --timeout 10 --json -- sleep 1000";
    let words: Vec<_> = line.split(' ').collect();
    let mut load = all.cluster.command(&words);
    let load = load.stdout(Stdio::piped()).stderr(Stdio::piped());
    let load = load.spawn().unwrap();
    let end = Instant::now() + LIMIT;
    while all.running(NODES).len() < before + 4 {
        assert!(Instant::now() < end, "the load has begun");
    }
    all.processes[leader].signal(signal);
    let took = all.next_start();
    println!("from {signal:?} of the leader to the next START done: {took:?}");
    let said = Done::of_child(load);
    let answers = said.stdout.lines().count();
    assert_eq!(answers, 20, "{}{}", said.stdout, said.stderr);
    nothing_runs_twice(all);
}

#[track_caller]
fn nothing_runs_twice(all: &Schedulers) -> Vec<(Uuid, usize)> {
    let running = all.running(NODES);
    assert!(running.iter().all(|(_, nodes)| *nodes == 1), "{running:?}");
    running
}

#[test]
fn whatever_happens_to_a_leader_another_one_leads_and_nothing_runs_twice() {
    let Some(mut etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = Schedulers::start(&etcd, 3);
    for at in 0..NODES {
        all.prefer(at % 3);
        all.cluster.agent("");
    }
    all.next_start();
    fs::write(all.cluster.path("new.yaml"), YAML).unwrap();
    // On a machine that is very busy a leader may lose its lease without a fault.
    let end = Instant::now() + LIMIT;
    while all.cluster.ctl("configure new.yaml --timeout 20").code != Some(0) {
        assert!(Instant::now() < end, "no configuration is taken up");
    }

    // Killed while STARTs come by way of another one, whose sessions stand.
    let leader = all.leader(None);
    start_and_signal(&mut all, (leader + 1) % 3, leader, Signal::KILL);
    all.revive();
    let running = nothing_runs_twice(&all);
    // All instances are listed again, those of the nodes of the dead one, too.
    let end = Instant::now() + LIMIT;
    let is_missing = |listed: &str| {
        let missing = |(uuid, _): &&(Uuid, usize)| !listed.contains(&uuid.to_string());
        running.iter().find(missing).map(|(uuid, _)| *uuid)
    };
    while let Some(uuid) = is_missing(&all.cluster.ctl("instances --json").stdout) {
        assert!(Instant::now() < end, "{uuid} is not listed");
    }

    // Stopped, as by a hypervisor: another one leads. When it wakes it follows, and its clients
    // are served again.
    let leader = all.leader(None);
    start_and_signal(&mut all, (leader + 1) % 3, leader, Signal::STOP);
    let next = all.leader(Some(leader));
    all.processes[leader].signal(Signal::CONT);
    all.prefer(leader);
    all.next_start();
    assert_eq!(all.leader(None), next);
    assert!(!all.processes[leader].has_ended());
    nothing_runs_twice(&all);

    // Without the engine nobody leads for long; with it, all is as before.
    etcd.kill(0);
    let mut early = ssntp(&all.cluster.path(""), &["scheduler", "--listen", "127.0.0.1:0"]);
    early.args(["--ca", "ca.pem", "--cert", "scheduler.pem", "--join", &all.join]);
    let early = Done::of(early);
    assert_eq!(early.code, Some(1));
    assert!(
        early.stderr.contains("--join: the engine is away: 127.0.0.1:"),
        "{}",
        early.stderr
    );
    // The leader goes on until its lease ends. A START that reaches it in its last moment is lost.
    let end = Instant::now() + 2 * LIMIT;
    loop {
        let refused = all.cluster.ctl("start --timeout 20 --mem 8 -- sleep 1000");
        if refused.stderr.contains("no scheduler leads") {
            break;
        }
        assert!(Instant::now() < end, "{}{}", refused.stdout, refused.stderr);
    }
    etcd.restart(0, false);
    all.next_start();
    assert!(all.processes.iter_mut().all(|process| !process.has_ended()));
    nothing_runs_twice(&all);

    // A leader that is told to end, or is drained, is replaced at once.
    let leader = all.leader(None);
    all.processes[leader].signal(Signal::TERM);
    assert_eq!(all.processes[leader].end(LIMIT), Some(0));
    println!(
        "from SIGTERM of the leader to the next START done: {:?}",
        all.next_start()
    );
    let leader = all.leader(None);
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
    let shown = all
        .cluster
        .controller_sees(NODES)
        .client()
        .configuration()
        .unwrap();
    assert_eq!(shown, YAML, "{kept:?}");
}
