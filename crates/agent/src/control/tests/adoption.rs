//! Instances that a former agent left.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Mutex;

use super::*;
use crate::driver::boot_id;
use crate::network::{Attachment, Network, Wire};
use crate::store;

fn stored(id: Uuid, record: Option<Record>, start: Option<Start>) -> Stored {
    Stored {
        instance: id,
        record,
        start: start.map(|start| Box::new(start.into())),
        volumes: BTreeSet::new(),
        rebooted: false,
        age: Duration::ZERO,
    }
}

fn record() -> Record {
    Record {
        driver: "fake".into(),
        ..Record::default()
    }
}

fn adopting(fake: Fake, maintenance: bool, stored: Vec<Stored>) -> Stage {
    let mut stage = Stage::offline(Settings {
        drivers: vec![Arc::new(fake)],
        ..settings()
    });
    let node = NodeRecord {
        maintenance,
        ..NodeRecord::default()
    };
    stage.control.adopt(stage.now, node, stored);
    stage.connect();
    stage
}

#[test]
fn a_restarted_agent_takes_over_the_recorded_instances() {
    let running = || record().running(&handle(ONE), 0);
    let stopped = record().stopped(Exit::code(4));
    let mut stage = adopting(
        Fake::default(),
        false,
        vec![
            stored(ONE, Some(running()), Some(persistent(ONE))),
            stored(TWO, Some(stopped), Some(persistent(TWO))),
            stored(OTHER, Some(record()), Some(start(OTHER))),
        ],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    assert_eq!(stage.state(TWO), Some(InstanceState::Exited));
    assert_eq!(stage.state(OTHER), None, "the instance never ran");
    stage.job(|job| matches!(job, Job::Watch(_, running) if running.handle == handle(ONE)).then_some(()));
    stage.job(|job| matches!(job, Job::Remove { instance: OTHER, .. }).then_some(()));
    assert_eq!(stage.next::<Ready>().mem_available_mb, 900);

    // An instance that ended while no agent ran.
    let fake = || Fake {
        found: Some(Exit::code(9)),
        ..Fake::default()
    };
    let mut stage = adopting(
        fake(),
        false,
        vec![stored(ONE, Some(running()), Some(persistent(ONE)))],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.job(|job| matches!(job, Job::Save { record, .. } if record.exit_code == 9).then_some(()));
    stage.send(&restart(ONE));
    stage.nothing::<RestartFailure>();

    // Commands to the former agent are carried out.
    let asked = |after| {
        let record = Record { after, ..running() };
        vec![stored(ONE, Some(record), Some(start(ONE)))]
    };
    let mut stage = adopting(fake(), false, asked(RecordAfter::Delete));
    stage.removed(ONE);
    assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, ONE);
    let mut stage = adopting(Fake::default(), false, asked(RecordAfter::Delete));
    stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
    assert_eq!(stage.state(ONE), Some(InstanceState::Stopping));

    // An evacuation under way is continued.
    let mut stage = adopting(
        Fake::default(),
        true,
        vec![stored(ONE, Some(running()), Some(persistent(ONE)))],
    );
    stage.nothing::<Ready>();
    stage.end(ONE, 143);
    assert_eq!(stage.kinds(), ["STATS", "InstanceStopped", "MAINTENANCE"]);
    let mut stage = adopting(Fake::default(), true, vec![]);
    assert_eq!(stage.kinds(), ["MAINTENANCE", "STATS"]);
}

/// The former agent died after it wrote the record and before it let the program run.
#[test]
fn an_instance_whose_launch_was_cut_off_is_removed_unless_it_ran_before() {
    let fake = || Fake {
        never_ran: true,
        ..Fake::default()
    };
    let first = record().running(&handle(ONE), 0);
    let again = record()
        .running(&handle(ONE), 0)
        .stopped(Exit::code(0))
        .running(&handle(ONE), 0);
    for (record, state) in [(first, None), (again, Some(InstanceState::Exited))] {
        let mut stage = adopting(
            fake(),
            false,
            vec![stored(ONE, Some(record), Some(persistent(ONE)))],
        );
        assert_eq!(stage.state(ONE), state);
        let removed = |job: &Job| matches!(job, Job::Remove { instance: ONE, .. });
        assert_eq!(stage.jobs.iter().any(removed), state.is_none());
    }
}

#[test]
fn a_restart_that_the_end_of_the_agent_cut_off_is_answered_by_the_next_agent() {
    let stopped = || record().running(&handle(ONE), 0).stopped(Exit::code(0));
    let stored = |record: Record| vec![stored(ONE, Some(record), Some(persistent(ONE)))];
    let mut stage = adopting(Fake::default(), false, stored(stopped()));
    stage.send(&restart(ONE));
    let launching = stage.job(|job| match job {
        Job::Launch(job) => Some(job.record.clone()),
        _ => None,
    });
    // The former agent died before the launch, or after it wrote the record and before it let the program run.
    for record in [launching.clone(), launching.running(&handle(ONE), 0)] {
        let fake = Fake {
            never_ran: true,
            ..Fake::default()
        };
        let mut stage = adopting(fake, false, stored(record));
        let failure: RestartFailure = stage.next();
        assert_eq!(failure.instance_uuid, ONE);
        assert_eq!(failure.reason, Reason::LaunchFailure);
        assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
        // It is answered once.
        let saved = stage.job(|job| match job {
            Job::Save { record, .. } => Some(record.clone()),
            _ => None,
        });
        assert!(saved.detail.contains("its agent ended"), "{}", saved.detail);
        let stage = adopting(Fake::default(), false, stored(saved));
        stage.nothing::<RestartFailure>();
    }
    // The program ran, which STATS show.
    let ran = launching.running(&handle(ONE), 0);
    let stage = adopting(Fake::default(), false, stored(ran));
    stage.nothing::<RestartFailure>();
}

/// The signal also killed the supervisor, so no exit code was written.
#[test]
fn a_killed_instance_has_the_exit_code_of_the_signal() {
    let running = record().running(&handle(ONE), 0);
    let mut stage = adopting(
        Fake::default(),
        false,
        vec![stored(ONE, Some(running), Some(persistent(ONE)))],
    );
    stage.send(&stop(ONE));
    stage.pass(settings().grace);
    stage.job(|job| matches!(job, Job::Kill(..)).then_some(()));
    stage.jobs.clear();
    stage.feed(Input::News(News::Ended(Ended {
        instance: ONE,
        handle: handle(ONE),
        exit: Exit::default(),
    })));
    let record = stage.job(|job| match job {
        Job::Save { record, .. } => Some(record.clone()),
        _ => None,
    });
    assert_eq!(record.exit_code, 137);
}

#[test]
fn lost_records_are_replaced() {
    // The record is lost: it is made from the START and the processes.
    let fake = Fake {
        unrecorded: Some(handle(ONE)),
        ..Fake::default()
    };
    let mut stage = adopting(fake, false, vec![stored(ONE, None, Some(persistent(ONE)))]);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    stage.job(|job| {
        let Job::Save { record, .. } = job else {
            return None;
        };
        (record.handle() == Some(handle(ONE)) && record.driver == "fake").then_some(())
    });
    let mut stage = adopting(
        Fake::default(),
        false,
        vec![stored(ONE, None, Some(persistent(ONE)))],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.send(&restart(ONE));
    stage.nothing::<RestartFailure>();

    // The START is lost: the instance may run, stop and be deleted, but not start again.
    let running = record().running(&handle(ONE), 0);
    let mut stage = adopting(Fake::default(), false, vec![stored(ONE, Some(running), None)]);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    stage.send(&stop(ONE));
    stage.end(ONE, 0);
    assert_eq!(stage.state(ONE), Some(InstanceState::Missing));
    stage.send(&restart(ONE));
    assert_eq!(stage.next::<RestartFailure>().reason, Reason::InstanceCorrupt);
    stage.send(&start(ONE));
    assert_eq!(stage.next::<StartFailure>().reason, Reason::InstanceExists);
    stage.send(&delete(ONE, false));
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();

    // The record and the START are lost.
    let mut stage = adopting(Fake::default(), false, vec![stored(ONE, None, None)]);
    assert_eq!(stage.state(ONE), Some(InstanceState::Missing));
    stage.send(&delete(ONE, false));
    stage.removed(ONE);

    // The next agent does not have the driver of the instance.
    let record = Record {
        driver: "qemu".into(),
        ..record().running(&handle(ONE), 0)
    };
    let mut stage = adopting(
        Fake::default(),
        false,
        vec![stored(ONE, Some(record), Some(persistent(ONE)))],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Missing));
    stage.send(&restart(ONE));
    assert_eq!(stage.next::<RestartFailure>().reason, Reason::LaunchFailure);
    // The instance may run, so its record is neither changed nor removed.
    stage.send(&delete(ONE, false));
    assert_eq!(stage.next::<DeleteFailure>().reason, Reason::InvalidData);
    let changes = |job: &Job| matches!(job, Job::Save { .. } | Job::Remove { .. });
    assert!(!stage.jobs.iter().any(changes));
}

#[test]
fn a_start_that_the_former_agent_could_not_answer_is_answered() {
    let fake = Fake {
        never_ran: true,
        ..Fake::default()
    };
    let again = Start {
        restart: true,
        ..start(TWO)
    };
    let mut stage = adopting(
        fake,
        false,
        vec![
            stored(ONE, Some(record()), Some(start(ONE))),
            stored(TWO, Some(record().running(&handle(TWO), 0)), Some(again)),
        ],
    );
    for (instance, restart) in [(ONE, false), (TWO, true)] {
        let failure: StartFailure = stage.next();
        assert_eq!(
            (failure.node_uuid, failure.instance_uuid),
            (NODE.into(), instance.into())
        );
        assert_eq!(
            (failure.reason, failure.restart),
            (Reason::LaunchFailure, restart)
        );
    }
    stage.nothing::<StartFailure>();
}

/// A volume that the START names may have been there before.
#[test]
fn of_a_launch_that_was_cut_off_only_volumes_without_a_name_are_deleted() {
    let mut first = start(ONE);
    for id in [Id::from(VOLUME), Id::default()] {
        first.storage.push(Storage {
            id,
            ephemeral: true,
            ..Storage::default()
        });
    }
    store::name_own_volumes(&mut first);
    let own = first.storage[1].id.uuid().unwrap();
    let cut_off = vec![stored(ONE, Some(record()), Some(first))];
    let mut stage = adopting(Fake::default(), false, cut_off);
    let deleted = stage.job(|job| match job {
        Job::Remove { ephemeral, .. } => Some(ephemeral.clone()),
        _ => None,
    });
    assert_eq!(deleted, [own]);
}

/// The files of the START that was cut off are still being removed when the second one arrives.
#[test]
fn a_second_start_of_an_instance_whose_launch_was_cut_off_is_not_forgotten() {
    let cut_off = || vec![stored(ONE, Some(record()), Some(start(ONE)))];
    for result in [Ok(()), Err("the disk fails".to_owned())] {
        let mut stage = adopting(Fake::default(), false, cut_off());
        stage.send(&start(ONE));
        stage.feed(Input::Done(Done::Removed {
            instance: ONE,
            result,
        }));
        assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
        stage.launched(ONE);
        assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    }
}

/// Both drivers find the supervisor, but only one runs such instances.
#[test]
fn a_lost_record_gets_the_driver_that_takes_the_start() {
    let finds = |name| {
        Arc::new(Fake {
            name,
            unrecorded: Some(handle(ONE)),
            ..Fake::default()
        })
    };
    let mut stage = Stage::offline(Settings {
        drivers: vec![finds("other"), finds("fake")],
        ..settings()
    });
    let lost = stored(ONE, None, Some(persistent(ONE)));
    stage.control.adopt(stage.now, NodeRecord::default(), vec![lost]);
    stage.connect();
    let name = stage.job(|job| match job {
        Job::Save { record, .. } => Some(record.driver.clone()),
        _ => None,
    });
    assert_eq!(name, "fake");
}

/// It may run, and an agent with its driver can end it.
#[test]
fn an_instance_whose_driver_is_missing_is_neither_stopped_nor_deleted() {
    let mut stage = Stage::offline(Settings {
        drivers: Vec::new(),
        ..settings()
    });
    let runs = stored(
        ONE,
        Some(record().running(&handle(ONE), 0)),
        Some(persistent(ONE)),
    );
    stage.control.adopt(stage.now, NodeRecord::default(), vec![runs]);
    stage.connect();
    stage.send(&stop(ONE));
    assert_eq!(stage.next::<StopFailure>().reason, Reason::InvalidData);
    stage.send(&delete(ONE, false));
    assert_eq!(stage.next::<DeleteFailure>().reason, Reason::InvalidData);
}

/// Networks that note which instances they are made for.
#[derive(Debug, Default)]
struct Noted(Mutex<Vec<Uuid>>);

impl Network for Noted {
    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::LOCALHOST
    }

    fn check(&self, _: &Attachment) -> Result<(), String> {
        Ok(())
    }

    fn wire<'a>(&'a self, _: Uuid, _: Attachment) -> Box<dyn Wire + 'a> {
        unreachable!("nothing is launched")
    }

    fn restore(&self, instances: &[(Uuid, Attachment, i32)]) -> Result<(), String> {
        self.0
            .lock()
            .unwrap()
            .extend(instances.iter().map(|(instance, ..)| *instance));
        Ok(())
    }

    fn detach(&self, _: Uuid) {}

    fn tunnels(&self, _: &dyn Fn(Uuid) -> PathBuf) -> Vec<TunnelStats> {
        Vec::new()
    }

    fn faults(&self) -> usize {
        0
    }
}

/// The program that has the number of its process today would get the address of a tenant.
#[test]
fn an_instance_whose_driver_is_missing_keeps_its_network_only_while_its_process_is_there() {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (pid, rest) = stat.split_once(" (").unwrap();
    let after_name = rest.rsplit_once(") ").unwrap().1;
    let this = RunId {
        pid: pid.parse().unwrap(),
        start_time: after_name.split(' ').nth(19).unwrap().parse().unwrap(),
        boot_id: boot_id(),
    };
    let later = RunId {
        start_time: this.start_time + 1,
        ..this.clone()
    };
    let other_boot = RunId {
        boot_id: "another".into(),
        ..this.clone()
    };
    let network = Arc::new(Noted::default());
    let mut stage = Stage::offline(Settings {
        drivers: Vec::new(),
        network: Some(network.clone()),
        ..settings()
    });
    let runs = [ONE, TWO, OTHER].into_iter().zip([this, later, other_boot]);
    let all = runs.map(|(id, run)| {
        let mut of_tenant = persistent(id);
        of_tenant.networking = Networking {
            subnet: "172.16.0.0/24".into(),
            subnet_key: "1".into(),
            private_ip: "172.16.0.5".into(),
            concentrator_ip: "10.0.0.33".into(),
            ..Networking::default()
        };
        stored(id, Some(record().running(&run, 0)), Some(of_tenant))
    });
    stage
        .control
        .adopt(stage.now, NodeRecord::default(), all.collect());
    assert_eq!(*network.0.lock().unwrap(), [ONE]);
}

#[test]
fn recent_failures_of_starts_are_sent_again_in_a_new_session() {
    let mut stage = Stage::new();
    let fails = |stage: &mut Stage| {
        stage.send(&start(ONE));
        stage.job(|job| matches!(job, Job::Launch(_)).then_some(()));
        let result = Err(Refused::new(Reason::ImageFailure, "it is not there"));
        stage.feed(Input::Done(Done::Launched {
            instance: ONE,
            result,
        }));
        assert_eq!(stage.next::<StartFailure>().instance_uuid, ONE);
    };
    let reconnect = |stage: &mut Stage| {
        stage.feed(Input::Disconnected);
        stage.sent.clear();
        stage.connect();
    };
    fails(&mut stage);
    reconnect(&mut stage);
    let again: StartFailure = stage.next();
    assert_eq!(
        (again.instance_uuid, again.reason),
        (ONE.into(), Reason::ImageFailure)
    );
    stage.pass(REPEATED);
    reconnect(&mut stage);
    stage.nothing::<StartFailure>();
    // A later START of the same instance has not failed, so no failure is sent again.
    fails(&mut stage);
    stage.send(&start(ONE));
    reconnect(&mut stage);
    stage.nothing::<StartFailure>();
}

/// A full disk or a crash may leave an empty file, which asks for nothing.
#[test]
fn a_node_whose_record_was_lost_runs_its_instances_on_and_takes_no_start_until_restore() {
    let mut stage = Stage::offline(settings());
    let closed = NodeRecord {
        closed: true,
        ..NodeRecord::default()
    };
    let stored = stored(ONE, Some(record().running(&handle(ONE), 0)), Some(start(ONE)));
    stage.control.adopt(stage.now, closed, vec![stored]);
    stage.connect();
    stage.next::<Maintenance>();
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    assert!(!stage.jobs.iter().any(|job| matches!(job, Job::Terminate(..))));
    stage.send(&start(TWO));
    assert_eq!(stage.next::<StartFailure>().reason, Reason::NodeMaintenance);
    // The next agent is closed as well, whatever is written meanwhile.
    stage.feed(Input::ToggleOffline);
    let saved = |job: &Job| match job {
        Job::SaveNode(record, _) => Some((record.maintenance, record.closed)),
        _ => None,
    };
    assert_eq!(stage.job(saved), (false, true));
    stage.feed(Input::ToggleOffline);
    stage.job(saved);
    stage.send(&restore());
    assert_eq!(stage.job(saved), (false, false));
    stage.run(&start(TWO));
}
