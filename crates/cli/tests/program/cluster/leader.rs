//! Several schedulers as processes that share an etcd. After any fault of a scheduler, of a link or
//! of etcd each START is accounted for, and no instance runs twice.

use std::fs;

use rustix::process::Signal;
use ssntp_payload::Start;
use ssntp_test_support::etcd::EtcdProcess;
use ssntp_view::OrderError;
use uuid::Uuid;

use crate::cluster::processes::{Done, LIMIT, ssntp, until};
use crate::cluster::schedulers::Schedulers;

/// The number of nodes: one for each scheduler.
const NODES: usize = 3;
const YAML: &str = "configure:\n  launcher:\n    mgmt_net: [10.1.0.0/16]\n";

/// Three schedulers that keep the same configuration in etcd.
fn configured(etcd: &EtcdProcess) -> Schedulers {
    let all = Schedulers::start(etcd, NODES);
    fs::write(all.cluster.path("new.yaml"), YAML).unwrap();
    // On a very busy machine a leader may lose its lease without a fault, so this is repeated.
    until("a configuration is accepted", || {
        let done = all.cluster.ctl("configure new.yaml --timeout 20");
        match done.code {
            Some(0) => Ok(()),
            _ => Err(format!("{done:?}")),
        }
    });
    all
}

fn keep_their_configuration(all: &Schedulers) {
    let kept = fs::read_to_string(all.cluster.path("cluster-0.yaml"));
    let controller = all.cluster.controller_sees(NODES);
    assert_eq!(controller.client().configuration().unwrap(), YAML, "{kept:?}");
}

#[test]
fn when_a_leader_is_killed_another_one_leads() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = configured(&etcd);
    // The leader is killed while STARTs arrive at another scheduler, whose sessions continue.
    let leader = all.leader(None);
    all.signal_under_load((leader + 1) % 3, leader, Signal::KILL);
    all.revive();
    // All instances are listed again, also those on the node of the killed scheduler.
    all.lists_all();
    keep_their_configuration(&all);
}

#[test]
fn a_stopped_leader_is_a_follower_when_it_continues() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = Schedulers::start(&etcd, NODES);
    // The leader is stopped, as by a hypervisor, and another scheduler leads. When the stopped one
    // continues, it follows, and its clients are served again.
    let leader = all.leader(None);
    all.prefer(leader);
    let controller = all.cluster.controller_sees(NODES);
    all.signal_under_load((leader + 1) % 3, leader, Signal::STOP);
    let next = all.leader(Some(leader));
    // Frames that wait for the former leader are not forwarded over its old links, which have ended.
    let waits = controller.order(&Start {
        instance_uuid: Uuid::new_v4(),
        ..Start::default()
    });
    all.processes[leader].signal(Signal::CONT);
    let answer = waits.unwrap().wait(2 * LIMIT);
    // If the next scheduler led late, as on a busy machine, the session with the stopped one has ended
    // meanwhile. Then the answer may be lost, which is reported after 90 s.
    let is_known = matches!(answer, Ok(_) | Err(OrderError::Failed(_) | OrderError::Lost(_)));
    assert!(is_known, "{answer:?}");
    drop(controller);
    all.prefer(leader);
    all.next_start();
    // On a very busy machine yet another scheduler may lead by now.
    println!(
        "{next} led while {leader} was stopped, and {} leads now",
        all.leader(None)
    );
    assert!(!all.processes[leader].has_ended());
    all.nothing_runs_twice();
}

#[test]
fn without_etcd_no_scheduler_leads_after_its_lease_and_with_it_one_leads_again() {
    let Some(mut etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = configured(&etcd);
    all.next_start();
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
    // The leader continues until its lease ends. A START that arrives just before is lost.
    all.refused_start();
    // A cluster without a leader is not shown as one without instances.
    let list = all.cluster.ctl("instances --timeout 6");
    assert_eq!((list.code, &list.stdout[..]), (Some(1), ""), "{}", list.stderr);
    assert!(
        list.stderr
            .contains("the nodes are not known: no scheduler leads"),
        "{}",
        list.stderr
    );
    etcd.restart(0, false);
    all.next_start();
    all.have_not_ended();
    all.nothing_runs_twice();
    keep_their_configuration(&all);
}

#[test]
fn a_leader_that_ends_or_drains_is_replaced_at_once() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = configured(&etcd);
    let leader = all.leader(None);
    all.processes[leader].signal(Signal::TERM);
    assert_eq!(all.processes[leader].end(), Some(0));
    println!(
        "from SIGTERM of the leader to the next START done: {:?}",
        all.next_start()
    );
    let mut leader = 0;
    let mut at = String::new();
    // On a busy machine etcd may just not have answered in the time limit of a call, and the lease of the
    // leader may have ended.
    until("the leader lists the servers", || {
        leader = all.leader(None);
        at = format!("--connect {}", all.addresses[leader]);
        let listed = all.cluster.done(&format!("servers {at}"));
        let is_complete = listed.contains(", fencing token ")
            && listed.contains("; the engine answers\n")
            && listed.matches("own, leader").count() == 1;
        is_complete.then_some(()).ok_or(listed)
    });
    let drain = format!("servers drain {} --within 1s {at}", all.addresses[leader]);
    all.cluster.done(&drain);
    assert_eq!(all.processes[leader].end(), Some(0));
    println!(
        "from the drain of the leader to the next START done: {:?}",
        all.next_start()
    );
    keep_their_configuration(&all);
}

#[test]
fn a_rolling_restart_of_all_schedulers_under_load_loses_no_instance() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = Schedulers::start(&etcd, NODES);
    let leader = all.leader(None);
    // The followers are restarted first, and the leader last.
    for at in [leader + 1, leader + 2, leader].map(|at| at % NODES) {
        let took = all.under_load((at + 1) % NODES, |all| {
            all.processes[at].signal(Signal::TERM);
            assert_eq!(all.processes[at].end(), Some(0));
            all.revive();
        });
        println!(
            "from SIGTERM of number {at}, which leads if it is {leader}, to the next START done: {took:?}"
        );
        all.lists_all();
    }
    all.cluster.controller_sees(NODES);
    all.have_not_ended();
}

#[test]
fn schedulers_work_without_one_etcd_of_three_and_refuse_commands_without_two() {
    let Some(mut etcd) = EtcdProcess::start(3) else {
        return;
    };
    let mut all = Schedulers::start(&etcd, NODES);
    let took = all.under_load(0, |_| etcd.kill(0));
    println!("from the end of one etcd of three to the next START done: {took:?}");
    all.under_load(1, |all| {
        etcd.kill(1);
        all.refused_start();
        etcd.spawn(0);
        etcd.spawn(1);
    });
    all.lists_all();
    all.have_not_ended();
}

#[test]
fn schedulers_that_are_cut_off_from_each_other_start_no_instance_twice() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = Schedulers::with_ways(&etcd, 2);
    // Start at least one more instance on each node.
    for at in 0..2 {
        all.under_load(at, |_| {});
    }
    let leader = all.leader(None);
    let other = 1 - leader;
    let away = all.running_on(other);

    // Both schedulers run and reach etcd, and only the link between them is cut. The leader continues,
    // and the node of the follower keeps its instances.
    all.cut_links(true);
    all.prefer(other);
    all.refused_start();
    all.prefer(leader);
    all.next_start();
    for instance in &away {
        let line = format!("start --uuid {instance} --mem 8 --persistent --timeout 30 -- sleep 1000");
        let refused = all.cluster.ctl(&line);
        assert!(
            refused.stderr.contains("already_running"),
            "{}{}",
            refused.stdout,
            refused.stderr
        );
    }
    all.cut_links(false);
    all.prefer(other);
    all.next_start();
    all.lists_all();
    all.have_not_ended();
}

#[test]
fn a_leader_that_is_cut_off_from_all_but_its_clients_starts_no_instance() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let mut all = Schedulers::with_ways(&etcd, 2);
    let leader = all.leader(None);
    let other = 1 - leader;
    let took = all.under_load(other, |all| {
        all.cut_engine(leader, true);
        all.cut_links(true);
        assert_eq!(all.leader(Some(leader)), other);
    });
    println!("from the cut to the next START done: {took:?}");
    all.prefer(leader);
    all.refused_start();
    all.cut_engine(leader, false);
    all.cut_links(false);
    all.prefer(leader);
    all.next_start();
    all.lists_all();
    all.have_not_ended();
}
