//! The time of placing one START, and of the READY that follows it.
//!
//! `cargo bench -p ssntp-benches --bench placement` prints a table: the median of several
//! rounds, in nanoseconds for each operation. Run by `cargo test`, it only
//! shows that it runs.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark is about the clock"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp_cluster::Needs;
use ssntp_payload::Ready;
use ssntp_scheduler::placement::{Placement, Policy, Siblings, Verdict};
use uuid::Uuid;

const ROUNDS: usize = 21;

fn main() {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let (counts, operations): (&[usize], _) = if measured {
        (&[100, 1_000, 10_000], 10_000)
    } else {
        (&[100], 10)
    };
    println!(
        "{:<58} {:>10} {:>12}",
        "median of placing one START", "nodes", "ns"
    );
    for (name, set_up) in SCENARIOS {
        for count in counts {
            let mut cluster = set_up(*count);
            let mut rounds: Vec<_> = (0..ROUNDS).map(|_| cluster.round(operations)).collect();
            rounds.sort();
            let median = rounds[ROUNDS / 2].as_nanos() / operations as u128;
            println!("{name:<58} {count:>10} {median:>12}");
        }
    }
}

type Scenario = (&'static str, fn(usize) -> Cluster);

const SCENARIOS: &[Scenario] = &[
    ("opportunistic, every node has room", |nodes| {
        let mut cluster = Cluster::new(Policy::Opportunistic, nodes, |_| (1 << 40, 1 << 40));
        cluster.needs.mem_mb = 1;
        cluster
    }),
    (
        "strict, every node has room; its READY follows at once",
        |nodes| {
            let mut cluster = Cluster::new(Policy::Strict, nodes, |_| (1 << 20, 1 << 20));
            cluster.ready = Some(report(1 << 20, 1 << 20));
            cluster
        },
    ),
    ("every node but one is full; its READY follows", |nodes| {
        let mut cluster = Cluster::new(Policy::Strict, nodes, |_| (1 << 20, 1 << 20));
        for node in 0..nodes - 1 {
            cluster.placement.close(uuid(node));
        }
        cluster.ready = Some(report(1 << 20, 1 << 20));
        cluster
    }),
    ("every node but one is too small; its READY follows", |nodes| {
        let mut cluster = Cluster::new(Policy::Strict, nodes, |node| match node {
            0 => (1 << 20, 1 << 20),
            _ => (100, 1 << 20),
        });
        cluster.ready = Some(report(1 << 20, 1 << 20));
        cluster
    }),
    ("no node has room: full_cloud", |nodes| {
        Cluster::new(Policy::Strict, nodes, |_| (100, 1 << 20))
    }),
    ("strict, every node waits for its READY: held", |nodes| {
        let mut cluster = Cluster::new(Policy::Strict, nodes, |_| (1 << 20, 1 << 20));
        while let Verdict::Placed(_) = cluster.placement.place(&cluster.needs, None, &Siblings::new()) {}
        cluster
    }),
    (
        "memory here, disk there, never both: full_cloud (worst)",
        |nodes| {
            let mut cluster = Cluster::new(Policy::Strict, nodes, |node| match node % 2 {
                0 => (1 << 20, 100),
                _ => (100, 1 << 20),
            });
            cluster.needs.disk_mb = 1000;
            cluster
        },
    ),
    ("a node by its UUID; its READY follows", |nodes| {
        let mut cluster = Cluster::new(Policy::Strict, nodes, |_| (1 << 20, 1 << 20));
        cluster.needs.node_id = uuid(nodes / 2).into();
        cluster.ready = Some(report(1 << 20, 1 << 20));
        cluster
    }),
    ("a node by its name; its READY follows", |nodes| {
        let mut cluster = Cluster::new(Policy::Strict, nodes, |_| (1 << 20, 1 << 20));
        for node in 0..nodes {
            cluster.describe(node, format!("host-{node}"));
        }
        cluster.needs.hostname = format!("host-{}", nodes / 2);
        let ready = report(1 << 20, 1 << 20);
        cluster.ready = Some(Ready {
            hostname: cluster.needs.hostname.clone(),
            ..ready
        });
        cluster
    }),
    (
        "one of nodes of one name, all but one full; its READY follows",
        |nodes| {
            let mut cluster = Cluster::new(Policy::Strict, nodes, |_| (1 << 20, 1 << 20));
            for node in 0..nodes {
                cluster.describe(node, "localhost".to_owned());
                if node != nodes / 2 {
                    cluster.placement.close(uuid(node));
                }
            }
            cluster.needs.hostname = "localhost".into();
            let ready = report(1 << 20, 1 << 20);
            cluster.ready = Some(Ready {
                hostname: cluster.needs.hostname.clone(),
                ..ready
            });
            cluster
        },
    ),
];

struct Cluster {
    placement: Placement,
    needs: Needs,
    /// The READY of a node after a START.
    ready: Option<Ready>,
}

impl Cluster {
    /// Nodes with this memory and disk.
    fn new(policy: Policy, nodes: usize, room: fn(usize) -> (i64, i64)) -> Self {
        let mut placement = Placement::new(policy);
        for node in 0..nodes {
            placement.connect(uuid(node), Role::AGENT);
            let (mem_mb, disk_mb) = room(node);
            placement.ready(uuid(node), &report(mem_mb, disk_mb));
        }
        Self {
            placement,
            needs: Needs {
                mem_mb: 1000,
                disk_mb: 1,
                vcpus: 1,
                ..Needs::default()
            },
            ready: None,
        }
    }

    fn describe(&mut self, node: usize, hostname: String) {
        let ready = Ready {
            hostname,
            ..Ready::default()
        };
        self.placement.describe(uuid(node), &ready);
    }

    fn round(&mut self, operations: usize) -> Duration {
        let start = Instant::now();
        for _ in 0..operations {
            let verdict = black_box(
                self.placement
                    .place(black_box(&self.needs), None, &Siblings::new()),
            );
            if let (Verdict::Placed(handed), Some(ready)) = (verdict, &self.ready) {
                self.placement.ready(handed.node, ready);
            }
        }
        start.elapsed()
    }
}

fn uuid(node: usize) -> Uuid {
    Uuid::from_u128(node as u128 + 1)
}

fn report(mem_mb: i64, disk_mb: i64) -> Ready {
    Ready {
        mem_available_mb: mem_mb,
        disk_available_mb: disk_mb,
        cpus_online: 16,
        ..Ready::default()
    }
}
