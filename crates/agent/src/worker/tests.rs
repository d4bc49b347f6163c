//! Disks that fail.

use std::process::Command;

use crossbeam_channel::unbounded;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;
use crate::control::{Done, LaunchJob, Origin};
use crate::driver::{Cancel, Confinement, Exit, InstanceDir, Measurable, ProcessDriver, RunId};
use crate::store::{NodeRecord, Record, RecordPhase};
use ssntp::payload::Payload;
use ssntp_payload::{NextState, Start, StartPayload};

const PLACE: &str = "SSNTP_TEST_PLACE";

/// The next test runs this test in a process of its own.
#[test]
fn measure_without_free_descriptors() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let policy = Policy {
        disk_mb: Some(4),
        ..Policy::default()
    };
    let (inputs, outcomes) = unbounded();
    let workers = Workers::start(None, Arc::new(policy), None, inputs).unwrap();
    let driver = ProcessDriver::new(Confinement::ResourceLimits).unwrap();
    let few = Rlimit {
        current: Some(40),
        maximum: Some(40),
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let subject = Measurable {
        place: InstanceDir::new(Uuid::nil(), place),
        handle: Some(RunId {
            pid: i32::MAX,
            ..RunId::default()
        }),
        vcpus: 1,
        mem_mb: 0,
    };
    workers.give(Job::Measure(vec![(Arc::new(driver), vec![subject])]));
    // If the instance were to be killed, `Done::Condemned` would come first.
    match outcomes.recv_timeout(Duration::from_secs(60)).unwrap() {
        Input::Done(Done::Measured { usages, .. }) => {
            assert_eq!(usages[0].2.disk_mb, -1);
        }
        other => panic!("{other:?}"),
    }
}

/// These workers have no state directory.
#[test]
fn a_record_that_cannot_be_saved_is_reported() {
    let (inputs, outcomes) = unbounded();
    let workers = Workers::start(None, Arc::default(), None, inputs).unwrap();
    let (instance, record) = (Uuid::from_u128(1), Record::default());
    workers.give(Job::Save { instance, record });
    let done = || match outcomes.recv_timeout(Duration::from_secs(60)).unwrap() {
        Input::Done(done) => done,
        other => panic!("{other:?}"),
    };
    assert!(matches!(done(), Done::Unsaved { instance: it, .. } if it == instance));
    workers.give(Job::SaveNode(NodeRecord::default(), Some(NextState::Reboot)));
    assert!(matches!(done(), Done::NodeUnsaved { .. }));
}

#[test]
fn an_instance_whose_disk_cannot_be_measured_for_now_is_not_killed() {
    let dir = tempfile::tempdir().unwrap();
    // Each level needs a descriptor, and the limit is lower than the depth.
    std::fs::create_dir_all(dir.path().join("work").join("d/".repeat(50))).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker::tests::measure_without_free_descriptors"])
        .env(PLACE, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn the_record_of_a_restart_that_has_not_begun_is_written_when_the_agent_ends() {
    // Without a thread, the jobs that are still to be done stay in their queue.
    let (inputs, _outcomes) = unbounded();
    let ends = inputs.clone();
    let shared = Arc::new(Pool {
        queues: Mutex::default(),
        wakers: Default::default(),
        store: None,
        policy: Arc::default(),
        network: None,
        inputs,
        sink: Arc::new(move |news| ends.send(Input::News(news)).unwrap()),
    });
    let workers = Workers {
        shared: Arc::clone(&shared),
        ended: bounded(0).1,
    };
    let [restarted, started] = [1, 2].map(Uuid::from_u128);
    for instance in [restarted, started] {
        let record = Record {
            restarting: instance == restarted,
            ..Record::default()
        };
        workers.give(launch(instance, record));
    }
    drop(workers);
    let queues = locked(&shared.queues);
    let jobs: Vec<_> = queues.jobs.values().flatten().collect();
    let is_saved = |job: &Job| matches!(job, Job::Save { instance, record } if *instance == restarted && record.restarting);
    assert!(jobs.len() == 1 && is_saved(jobs[0]), "{jobs:?}");
}

/// The job that launches an instance again, by a driver that has no supervisor.
fn launch(instance: Uuid, record: Record) -> Job {
    let payload = StartPayload::from(Start {
        instance_uuid: instance,
        command: vec!["true".into()],
        ..Start::default()
    });
    let driver = ProcessDriver::new(Confinement::ResourceLimits).unwrap();
    Job::Launch(Box::new(LaunchJob {
        instance,
        driver: Arc::new(driver.supervisor("/nothing")),
        payload: Arc::new(payload),
        record,
        origin: Origin::Again(None),
        user: String::new(),
        volumes: Vec::new(),
        cancel: Cancel::default(),
    }))
}

/// On a full disk the record of the end may be missing when the restart policy starts the instance
/// again.
#[test]
fn a_further_launch_that_fails_leaves_the_end_of_the_run_before_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), None).unwrap());
    let instance = Uuid::from_u128(1);
    let payload = StartPayload::from(Start {
        instance_uuid: instance,
        command: vec!["true".into()],
        ..Start::default()
    });
    let first_run = Record::default().running(&RunId::default(), 0);
    store.create(instance, &payload.encode(), &first_run).unwrap();
    let (inputs, outcomes) = unbounded();
    let workers = Workers::start(Some(Arc::clone(&store)), Arc::default(), None, inputs).unwrap();
    workers.give(launch(instance, first_run.stopped(Exit::default())));
    match outcomes.recv_timeout(Duration::from_secs(60)).unwrap() {
        Input::Done(Done::Launched { result, .. }) => assert!(result.is_err(), "{result:?}"),
        other => panic!("{other:?}"),
    }
    let record = store.load().unwrap().1.remove(0).record.unwrap();
    assert_eq!(record.phase, RecordPhase::Stopped);
}
