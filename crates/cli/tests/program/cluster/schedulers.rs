//! Several schedulers as processes that share an etcd.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use ssntp_engine::{Answer, Endpoints, Engine, Etcd, EtcdConfig, EtcdCredentials, Request};
use ssntp_test_support::etcd::EtcdProcess;
use ssntp_test_support::port::HeldPort;
use ssntp_test_support::proxy::Proxy;
use uuid::Uuid;

use crate::cluster::processes::{Cluster, Done, Process, processes_inside, until};

/// The number of STARTs in a load.
const LOAD: usize = 20;

pub(super) struct Schedulers {
    pub(super) cluster: Cluster,
    pub(super) join: String,
    pub(super) addresses: Vec<String>,
    pub(super) processes: Vec<Process>,
    ports: Vec<HeldPort>,
    /// The proxies from each scheduler to etcd, and from the other schedulers to it, which a test can
    /// cut.
    ways: Vec<[Proxy; 2]>,
    nodes: usize,
}

impl Schedulers {
    /// This number of schedulers, with one node each.
    pub(super) fn start(etcd: &EtcdProcess, count: usize) -> Self {
        Self::with(etcd, count, Vec::new())
    }

    /// The same with proxies that can be cut. Clients connect without a proxy.
    pub(super) fn with_ways(etcd: &EtcdProcess, count: usize) -> Self {
        let ways = (0..count).map(|_| [Proxy::start(), Proxy::start()]);
        Self::with(etcd, count, ways.collect())
    }

    fn with(etcd: &EtcdProcess, count: usize, ways: Vec<[Proxy; 2]>) -> Self {
        let mut all = Self {
            cluster: Cluster::without_scheduler(),
            join: etcd.join(),
            addresses: Vec::new(),
            processes: Vec::new(),
            ports: (0..count).map(|_| HeldPort::new()).collect(),
            ways,
            nodes: count,
        };
        for at in 0..count {
            if let Some([engine, _]) = all.ways.get(at) {
                engine.lead_to(all.join.strip_prefix("etcd://").unwrap());
            }
            let address = all.ports[at].address();
            if let Some([_, links]) = all.ways.get(at) {
                links.lead_to(&address);
            }
            all.addresses.push(address);
            let process = all.scheduler(at);
            all.processes.push(process);
        }
        for at in 0..count {
            all.prefer(at);
            all.cluster.agent("");
        }
        all.next_start();
        all
    }

    fn scheduler(&self, at: usize) -> Process {
        let address = &self.addresses[at];
        let way = match self.ways.get(at) {
            Some([engine, links]) => format!("etcd://{} --advertise {}", engine.address(), links.address()),
            None => self.join.clone(),
        };
        let line = format!(
            "scheduler --listen {address} --ca ca.pem --cert scheduler.pem --allow-unbound \
             --config cluster-{at}.yaml --cluster test --join {way}"
        );
        let words: Vec<_> = line.split_whitespace().collect();
        // A busy etcd may not answer in the time limit of a call. Then a scheduler does not start.
        let mut started = None;
        until("a scheduler listens", || {
            let process = Process::start(&self.cluster.path(""), &words);
            process.try_line_with("listening at")?;
            started = Some(process);
            Ok(())
        });
        started.unwrap()
    }

    /// Starts each scheduler that has ended again, as a service manager does.
    pub(super) fn revive(&mut self) {
        for at in 0..self.processes.len() {
            if self.processes[at].has_ended() {
                self.processes[at] = self.scheduler(at);
            }
        }
    }

    /// Cuts the links between all schedulers, or restores them.
    pub(super) fn cut_links(&self, are_cut: bool) {
        self.ways.iter().for_each(|[_, links]| links.cut(are_cut));
    }

    /// Cuts the connection of a scheduler to etcd, or restores it.
    pub(super) fn cut_engine(&self, at: usize, is_cut: bool) {
        self.ways[at][0].cut(is_cut);
    }

    /// The number of the leader, if there is one.
    fn leads(&self) -> Option<usize> {
        let endpoints: Endpoints = self.join.parse().unwrap();
        let mut engine = Etcd::new(EtcdConfig {
            endpoints,
            credentials: EtcdCredentials::default(),
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
        let is_it = |at: usize| match self.ways.get(at) {
            Some([_, links]) => links.address() == address,
            None => self.addresses[at] == address,
        };
        (0..self.addresses.len()).find(|at| is_it(*at))
    }

    /// Waits until a scheduler leads, other than `except`.
    #[track_caller]
    pub(super) fn leader(&mut self, except: Option<usize>) -> usize {
        let mut found = 0;
        until("another scheduler leads", || {
            let leads = self.leads();
            self.revive();
            found = leads
                .filter(|leader| Some(*leader) != except)
                .ok_or(format!("{leads:?} leads, and that is {except:?}"))?;
            Ok(())
        });
        found
    }

    /// Clients that start from now on dial this scheduler first.
    pub(super) fn prefer(&mut self, at: usize) {
        let (before, from) = self.addresses.split_at(at);
        self.cluster.serve_at(&[from, before].concat().join(","));
    }

    /// Starts workloads until one runs, and returns the time until then.
    #[track_caller]
    pub(super) fn next_start(&mut self) -> Duration {
        let begin = Instant::now();
        let line = "start --mem 8 --persistent --timeout 30 -- sleep 1000";
        until("a START is done", || {
            let done = self.cluster.ctl(line);
            self.revive();
            let seen = format!("{done:?}");
            (done.code == Some(0)).then_some(()).ok_or(seen)
        });
        begin.elapsed()
    }

    /// Starts workloads until one is refused because there is no leader.
    #[track_caller]
    pub(super) fn refused_start(&mut self) {
        until("a START is refused", || {
            let refused = self.cluster.ctl("start --timeout 30 --mem 8 -- sleep 1000");
            if refused.stderr.contains("no scheduler leads") {
                Ok(())
            } else {
                Err(format!("{refused:?}"))
            }
        });
    }

    /// Starts twenty workloads through this scheduler, and calls `act` in the middle. Each START is
    /// accounted for: it runs, has failed, or is not known. Returns the time until the next START was
    /// done.
    #[track_caller]
    pub(super) fn under_load(&mut self, by: usize, act: impl FnOnce(&mut Self)) -> Duration {
        let before = self.running().len();
        self.prefer(by);
        let mut load = self.load();
        until("the load has begun", || {
            let running = self.running().len();
            if running >= before + 4 {
                return Ok(());
            }
            let mut seen = format!("{running} instances run, {before} of them ran before");
            // On a busy machine its time limit may be over first.
            if load.try_wait().unwrap().is_some() {
                let ended = Done::of_child(std::mem::replace(&mut load, self.load()));
                seen = format!("{seen}; {ended:?}");
            }
            Err(seen)
        });
        act(self);
        let took = self.next_start();
        let done = Done::of_child(load);
        let answers = done.stdout.lines().count();
        assert_eq!(answers, LOAD, "{}{}", done.stdout, done.stderr);
        self.nothing_runs_twice();
        took
    }

    /// The command that starts twenty workloads.
    fn load(&self) -> Child {
        let line = format!("ctl start --count {LOAD} --mem 8 --timeout 10 --json -- sleep 1000");
        let mut load = self.cluster.command(&line.split(' ').collect::<Vec<_>>());
        let load = load.stdout(Stdio::piped()).stderr(Stdio::piped());
        load.spawn().unwrap()
    }

    /// The same, and in the middle a scheduler gets a signal.
    #[track_caller]
    pub(super) fn signal_under_load(&mut self, by: usize, to: usize, signal: Signal) {
        let took = self.under_load(by, |all| all.processes[to].signal(signal));
        println!("from {signal:?} of the leader to the next START done: {took:?}");
    }

    /// The instances that run, and the number of nodes that run each.
    fn running(&self) -> Vec<(Uuid, usize)> {
        let mut running: Vec<(Uuid, usize)> = Vec::new();
        for node in 0..self.nodes {
            for uuid in self.running_on(node) {
                match running.iter_mut().find(|(other, _)| *other == uuid) {
                    Some((_, count)) => *count += 1,
                    None => running.push((uuid, 1)),
                }
            }
        }
        running
    }

    /// The instances that run on one node.
    pub(super) fn running_on(&self, node: usize) -> Vec<Uuid> {
        let mut running = Vec::new();
        let instances = self.cluster.path(&format!("state-{node}/instances"));
        for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let uuid = name.to_str().and_then(|name| Uuid::try_parse(name).ok());
            running.extend(uuid.filter(|_| !processes_inside(&entry.path()).is_empty()));
        }
        running
    }

    #[track_caller]
    pub(super) fn nothing_runs_twice(&self) -> Vec<(Uuid, usize)> {
        let running = self.running();
        assert!(running.iter().all(|(_, nodes)| *nodes == 1), "{running:?}");
        running
    }

    /// Waits until all instances that run now are listed, and checks that none runs twice.
    #[track_caller]
    pub(super) fn lists_all(&self) {
        let running = self.nothing_runs_twice();
        until("all instances are listed", || {
            let listed = self.cluster.ctl("instances --json");
            let missing = |(uuid, _): &&(Uuid, usize)| !listed.stdout.contains(&uuid.to_string());
            match running.iter().find(missing) {
                Some((uuid, _)) => Err(format!("{uuid} is not in {listed:?}")),
                None => Ok(()),
            }
        });
    }

    /// Checks that each scheduler still runs.
    #[track_caller]
    pub(super) fn have_not_ended(&mut self) {
        let ended: Vec<_> = self.processes.iter_mut().map(Process::has_ended).collect();
        assert!(!ended.contains(&true), "{ended:?}");
    }
}

impl Drop for Schedulers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in &self.processes {
                eprintln!("a scheduler: {}", process.log());
            }
        }
    }
}
