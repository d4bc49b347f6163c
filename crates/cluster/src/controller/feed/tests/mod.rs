//! What settles each order. The sessions, and what a whole session refuses, are in `sessions`.

mod sessions;

use std::time::UNIX_EPOCH;

use uuid::Uuid;

use super::*;
use crate::controller::{Orderable, goal};
use ssntp::payload::*;
use ssntp::proto::{Command, ErrorCode};

const NODE: Uuid = Uuid::from_u128(0x5be1c0de_7d1a_4b52_8a55_90d2c3b4a501);
const INSTANCE: Uuid = Uuid::from_u128(0x0f7a5a1e_3c55_4a0b_9d3c_6f1f2f9a1001);
const VOLUME: Uuid = Uuid::from_u128(0x7c9e6679_7425_40de_944b_e07fc1f90ae7);

/// What a test is told in turn.
struct Told {
    shared: Shared,
}

impl Told {
    /// A node with an instance in a state.
    fn with(state: InstanceState) -> Self {
        let told = Self {
            shared: Shared::new(View::default()),
        };
        told.shared.online("scheduler".into(), None);
        told.stats(NodeStatus::Ready, &[(INSTANCE, state)]);
        told
    }

    fn frame(&self, payload: &impl Payload) {
        self.shared.frame(&Frame::of(payload), UNIX_EPOCH);
    }

    fn stats(&self, status: NodeStatus, instances: &[(Uuid, InstanceState)]) {
        let instances = instances.iter().map(|(uuid, state)| InstanceStats {
            instance_uuid: (*uuid).into(),
            state: state.clone(),
            ..InstanceStats::default()
        });
        self.frame(&Stats {
            node_uuid: NODE.into(),
            status,
            instances: instances.collect(),
            ..Stats::default()
        });
    }

    fn volumes(&self, volumes: &[Uuid]) {
        self.frame(&Stats {
            node_uuid: NODE.into(),
            status: NodeStatus::Ready,
            instances: vec![InstanceStats {
                instance_uuid: INSTANCE.into(),
                state: InstanceState::Active,
                volumes: volumes.iter().map(|v| (*v).into()).collect(),
                ..InstanceStats::default()
            }],
            ..Stats::default()
        });
    }

    fn order(&self, command: &impl Orderable) -> Receiver<Reply> {
        self.identified(command).1
    }

    /// An order, and the id of its command.
    fn identified(&self, command: &impl Orderable) -> (String, Receiver<Reply>) {
        let frame = goal::identified(command);
        let id = CommandSubject::of(&frame).command_id;
        (id, self.shared.watch(Goal::of(&frame)).unwrap().1)
    }
}

fn open(order: &Receiver<Reply>) {
    assert!(order.try_recv().is_err(), "nothing has shown yet");
}

fn shown(order: &Receiver<Reply>) -> String {
    order.try_recv().unwrap().unwrap().to_string()
}

fn failed(order: &Receiver<Reply>) -> String {
    match order.try_recv().unwrap() {
        Err(OrderError::Failed(failure)) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

fn start() -> Start {
    Start {
        instance_uuid: INSTANCE,
        ..Start::default()
    }
}

fn stop() -> Stop {
    Stop {
        instance_uuid: INSTANCE.into(),
        workload_agent_uuid: NODE.into(),
        stop: false,
    }
}

fn restart() -> Restart {
    Restart {
        instance_uuid: INSTANCE.into(),
        workload_agent_uuid: NODE.into(),
        ..Restart::default()
    }
}

fn configured(yaml: &'static str) -> Goal {
    Goal::of(&Frame::with_payload(Command::CONFIGURE, yaml))
}

fn delete() -> Delete {
    Delete {
        instance_uuid: INSTANCE.into(),
        workload_agent_uuid: NODE.into(),
        stop: false,
    }
}

#[test]
fn a_start_is_done_when_stats_show_it_active() {
    let told = Told::with(InstanceState::Active);
    let other = Start {
        instance_uuid: VOLUME,
        ..Start::default()
    };
    let order = told.order(&other);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    told.stats(
        NodeStatus::Ready,
        &[
            (INSTANCE, InstanceState::Active),
            (VOLUME, InstanceState::Pending),
        ],
    );
    open(&order);
    told.stats(
        NodeStatus::Ready,
        &[(INSTANCE, InstanceState::Active), (VOLUME, InstanceState::Active)],
    );
    assert_eq!(shown(&order), format!("instance {VOLUME} runs on node {NODE}"));
}

#[test]
fn a_start_whose_program_has_ended_was_started() {
    let told = Told::with(InstanceState::Active);
    let quick = Start {
        instance_uuid: VOLUME,
        ..Start::default()
    };
    let order = told.order(&quick);
    told.stats(NodeStatus::Ready, &[(VOLUME, InstanceState::Exited)]);
    assert_eq!(
        shown(&order),
        format!("instance {VOLUME} was started and has ended")
    );
}

#[test]
fn a_start_that_is_no_longer_listed_was_not_shown_to_run() {
    let told = Told::with(InstanceState::Active);
    let other = Start {
        instance_uuid: VOLUME,
        ..Start::default()
    };
    let order = told.order(&other);
    told.stats(NodeStatus::Ready, &[(VOLUME, InstanceState::Pending)]);
    told.stats(NodeStatus::Ready, &[]);
    open(&order);
    told.frame(&StartFailure {
        instance_uuid: VOLUME.into(),
        reason: StartFailureReason::LaunchFailure,
        ..StartFailure::default()
    });
    assert!(failed(&order).ends_with("(launch_failure)"));
}

#[test]
fn a_failure_says_in_full_why_where_that_is_told() {
    let told = Told::with(InstanceState::Pending);
    let order = told.order(&Start {
        instance_uuid: INSTANCE,
        ..Start::default()
    });
    told.frame(&StartFailure {
        instance_uuid: INSTANCE.into(),
        reason: StartFailureReason::LaunchFailure,
        detail: "/opt/tool: Permission denied".into(),
        ..StartFailure::default()
    });
    let why = "it cannot be launched: /opt/tool: Permission denied (launch_failure)";
    assert!(failed(&order).ends_with(why));
}

#[test]
fn a_start_of_a_former_session_that_nothing_shows_is_lost() {
    let told = Told::with(InstanceState::Active);
    let other = |instance_uuid| Start {
        instance_uuid,
        ..Start::default()
    };
    let (lost, pending) = (told.order(&other(VOLUME)), told.order(&other(NODE)));
    let look = || {
        let mut state = told.shared.lock();
        let at = state.look_at?;
        state.look_for_starts(at);
        Some(())
    };
    assert_eq!(look(), None, "its own session stands");
    told.shared.offline("lost".into(), UNIX_EPOCH);
    told.shared.online("scheduler".into(), None);
    told.stats(NodeStatus::Ready, &[(NODE, InstanceState::Pending)]);
    let of_this = told.order(&other(Uuid::nil()));
    look().expect("it looks");
    assert!(matches!(
        lost.try_recv().unwrap(),
        Err(OrderError::Lost(Command::START))
    ));
    open(&pending);
    open(&of_this);
    told.stats(NodeStatus::Ready, &[]);
    look().expect("it looks again while one waits");
    assert!(matches!(pending.try_recv().unwrap(), Err(OrderError::Lost(_))));
    assert_eq!(look(), None);
    open(&of_this);
}

#[test]
fn a_scheduler_that_is_started_again_and_again_does_not_put_off_that_a_start_is_lost() {
    let told = Told::with(InstanceState::Active);
    let lost = told.order(&Start {
        instance_uuid: VOLUME,
        ..Start::default()
    });
    let again = || {
        told.shared.offline("lost".into(), UNIX_EPOCH);
        told.shared.online("scheduler".into(), None);
        told.shared.lock().look_at
    };
    let at = again().expect("it will look");
    assert_eq!(again(), Some(at));
    told.shared.offline("lost".into(), UNIX_EPOCH);
    let look = |at| told.shared.lock().look_for_starts(at);
    look(at);
    open(&lost);
    told.shared.online("scheduler".into(), None);
    let at = told.shared.lock().look_at.expect("it looks again");
    look(at);
    assert!(matches!(lost.try_recv().unwrap(), Err(OrderError::Lost(_))));
    assert_eq!(told.shared.lock().look_at, None);
}

#[test]
fn a_configuration_is_taken_up_when_it_comes_back_or_the_next_session_has_it() {
    let told = Told::with(InstanceState::Active);
    let watch = || told.shared.watch(configured("configure: {}")).unwrap().1;
    let comes = |yaml: &'static str| {
        let frame = Frame::with_payload(Command::CONFIGURE, yaml);
        told.shared.frame(&frame, UNIX_EPOCH);
    };
    let order = watch();
    comes("configure: {storage: {}}");
    open(&order);
    comes("configure: {}");
    assert_eq!(shown(&order), "the cluster has the configuration");
    let order = watch();
    told.shared.online("scheduler".into(), Some("other: {}".into()));
    open(&order);
    told.shared
        .online("scheduler".into(), Some("configure: {}".into()));
    assert_eq!(shown(&order), "the cluster has the configuration");
}

#[test]
fn a_refused_configuration_fails_the_order_that_asked_for_it_and_no_other() {
    let told = Told::with(InstanceState::Active);
    let watch = |yaml| told.shared.watch(configured(yaml)).unwrap().1;
    let refuse = |refused: &'static str| {
        told.frame(&InvalidConfiguration {
            refused: refused.into(),
        });
    };
    let (good, bad) = (watch("configure: {}"), watch("configure: 3"));
    refuse("configure: 4");
    open(&bad);
    refuse("configure: 3");
    assert!(failed(&bad).contains("cannot use it"));
    open(&good);
    // Of equal ones the scheduler refuses the older one, which the newer one has replaced.
    let again = watch("configure: {}");
    refuse("configure: {}");
    failed(&good);
    open(&again);
}

#[test]
fn every_failure_settles_its_command_with_the_reason_in_words() {
    let told = Told::with(InstanceState::Active);
    let (node_uuid, instance_uuid) = (Id::from(NODE), Id::from(INSTANCE));

    let order = told.order(&start());
    told.frame(&StartFailure {
        instance_uuid: VOLUME.into(),
        reason: StartFailureReason::FullCloud,
        ..StartFailure::default()
    });
    open(&order);
    told.frame(&StartFailure {
        instance_uuid: instance_uuid.clone(),
        reason: StartFailureReason::FullCloud,
        ..StartFailure::default()
    });
    assert_eq!(
        failed(&order),
        format!("instance {INSTANCE} was not started: no node has enough room (full_cloud)")
    );

    let order = told.order(&stop());
    told.frame(&StopFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: StopFailureReason::AlreadyStopped,
        ..StopFailure::default()
    });
    assert!(failed(&order).ends_with("was not stopped: it has stopped already (already_stopped)"));

    let order = told.order(&restart());
    told.frame(&RestartFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: RestartFailureReason::AlreadyRunning,
        ..RestartFailure::default()
    });
    assert!(failed(&order).ends_with("was not restarted: it runs already (already_running)"));

    let order = told.order(&delete());
    told.frame(&DeleteFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: "quota".into(),
        ..DeleteFailure::default()
    });
    assert!(failed(&order).ends_with("was not deleted: the reason is not one of the protocol's (quota)"));

    // What is not there is gone, as it was to be, if the node itself can say so.
    let order = told.order(&delete());
    let gone = DeleteFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: DeleteFailureReason::NoInstance,
        ..DeleteFailure::default()
    };
    told.frame(&gone);
    assert_eq!(
        order.try_recv().unwrap().unwrap(),
        Shown::Gone {
            instance: INSTANCE,
            ending: None
        }
    );
    let order = told.order(&delete());
    told.frame(&DeleteFailure {
        node_uuid: VOLUME.into(),
        ..gone
    });
    assert!(failed(&order).ends_with("(no_instance)"));

    let attach = AttachVolume {
        instance_uuid: instance_uuid.clone(),
        volume_uuid: VOLUME.into(),
        workload_agent_uuid: node_uuid.clone(),
    };
    let order = told.order(&attach);
    let other_volume = AttachVolumeFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        volume_uuid: NODE.into(),
        reason: AttachVolumeFailureReason::AttachFailure,
        ..AttachVolumeFailure::default()
    };
    told.frame(&other_volume);
    open(&order);
    told.frame(&AttachVolumeFailure {
        volume_uuid: VOLUME.into(),
        ..other_volume
    });
    assert!(failed(&order).ends_with("attaching failed (attach_failure)"));

    let assign = AssignPublicIp {
        concentrator_uuid: NODE.into(),
        instance_uuid,
        public_ip: "198.51.100.20".into(),
        ..AssignPublicIp::default()
    };
    let order = told.order(&assign);
    told.frame(&AssignPublicIpFailure::of(
        CommandSubject::of(&Frame::of(&assign)),
        PublicIpFailureReason::NoInstance,
    ));
    assert!(
        failed(&order)
            .ends_with("there is no such instance, or its concentrator is not connected (no_instance)")
    );
}

/// Each reason of docs/cluster.md's tables has words of its own.
#[test]
fn every_reason_has_words() {
    fn words<R: ToString>(error: ErrorCode, reasons: &[R]) {
        for reason in reasons {
            let (payload, reason) = (format!("reason: {}\n", reason.to_string()), reason.to_string());
            let frame = Frame::with_payload(error, payload);
            let failure = crate::controller::Failure::read(&frame, UNIX_EPOCH)
                .unwrap()
                .unwrap();
            let text = failure.to_string();
            assert!(!text.contains("not one of the protocol's"), "{text}");
            assert!(text.ends_with(&format!(" ({reason})")), "{text}");
        }
    }
    words(ErrorCode::START_FAILURE, StartFailureReason::ALL);
    words(ErrorCode::STOP_FAILURE, StopFailureReason::ALL);
    words(ErrorCode::RESTART_FAILURE, RestartFailureReason::ALL);
    words(ErrorCode::DELETE_FAILURE, DeleteFailureReason::ALL);
    words(ErrorCode::ATTACH_VOLUME_FAILURE, AttachVolumeFailureReason::ALL);
    words(ErrorCode::DETACH_VOLUME_FAILURE, DetachVolumeFailureReason::ALL);
    words(ErrorCode::ASSIGN_PUBLIC_IP_FAILURE, PublicIpFailureReason::ALL);
    words(ErrorCode::UNASSIGN_PUBLIC_IP_FAILURE, PublicIpFailureReason::ALL);
    words(ErrorCode::INVALID_FRAME_TYPE, InvalidFrameTypeReason::ALL);
    words(
        ErrorCode::INVALID_FRAME_TYPE,
        &["not_connected", "invalid_data", "invalid_payload"],
    );
}

#[test]
fn a_stop_is_done_by_stats_or_either_event() {
    type Show = fn(&Told);
    let shows: [(Show, &str); 4] = [
        (
            |told| told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]),
            "has stopped",
        ),
        (|told| told.stats(NodeStatus::Ready, &[]), "is gone"),
        (
            |told| {
                told.frame(&InstanceStopped {
                    instance_uuid: INSTANCE.into(),
                    ..Default::default()
                })
            },
            "has stopped",
        ),
        (
            |told| {
                told.frame(&InstanceDeleted {
                    instance_uuid: INSTANCE.into(),
                    ..Default::default()
                })
            },
            "is gone",
        ),
    ];
    for (show, text) in shows {
        let told = Told::with(InstanceState::Active);
        let order = told.order(&stop());
        told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Stopping)]);
        told.frame(&InstanceDeleted {
            instance_uuid: VOLUME.into(),
            ..Default::default()
        });
        open(&order);
        show(&told);
        assert!(shown(&order).ends_with(text));
    }
}

#[test]
fn a_restart_is_done_when_it_is_active_again() {
    let told = Told::with(InstanceState::Exited);
    let order = told.order(&restart());
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Pending)]);
    open(&order);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    assert!(shown(&order).contains("runs on node"));
}

#[test]
fn a_restart_that_ended_at_once_is_done_and_an_end_before_it_is_not() {
    let told = Told::with(InstanceState::Active);
    let order = told.order(&restart());
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    open(&order);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Pending)]);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    assert!(shown(&order).ends_with("was started and has ended"));
}

#[test]
fn an_instance_that_is_deleted_is_neither_running_nor_there() {
    for command in ["STOP", "DELETE"] {
        let told = Told::with(InstanceState::Active);
        let order = match command {
            "STOP" => told.order(&stop()),
            _ => told.order(&delete()),
        };
        told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Deleted)]);
        assert!(shown(&order).ends_with("is gone"), "{command}");
    }
}

#[test]
fn a_delete_is_done_when_it_is_gone_and_not_when_it_has_stopped() {
    let told = Told::with(InstanceState::Active);
    let order = told.order(&delete());
    told.frame(&InstanceStopped {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    open(&order);
    told.frame(&InstanceDeleted {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    assert!(shown(&order).ends_with("is gone"));

    // Taken off its node alone, it is answered by InstanceStopped.
    let told = Told::with(InstanceState::Active);
    let order = told.order(&Delete {
        stop: true,
        ..delete()
    });
    told.frame(&InstanceStopped {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    assert!(shown(&order).ends_with("has stopped"));
}

#[test]
fn a_delete_on_a_second_node_is_done_when_that_node_no_longer_lists_it() {
    let told = Told::with(InstanceState::Active);
    let second = Uuid::from_u128(9);
    let stats = |foreign: &[Uuid]| {
        told.frame(&Stats {
            node_uuid: second.into(),
            foreign: foreign.iter().map(|id| (*id).into()).collect(),
            ..Stats::default()
        });
    };
    stats(&[INSTANCE]);
    let order = told.order(&Delete {
        workload_agent_uuid: second.into(),
        ..delete()
    });
    let own = told.order(&delete());
    stats(&[VOLUME, INSTANCE]);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    open(&order);
    stats(&[VOLUME]);
    assert!(shown(&order).ends_with("is gone"));
    open(&own);
    told.shared
        .look(|view| assert_eq!(view.instance(INSTANCE).unwrap().node, NODE));
}

#[test]
fn volumes_are_attached_and_detached_when_stats_say_so() {
    let told = Told::with(InstanceState::Active);
    let attach = AttachVolume {
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.to_string().to_uppercase().into(),
        workload_agent_uuid: NODE.into(),
    };
    let order = told.order(&attach);
    told.volumes(&[NODE]);
    open(&order);
    told.volumes(&[NODE, VOLUME]);
    assert!(shown(&order).contains("is attached to"));
    let detach = DetachVolume {
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.into(),
        workload_agent_uuid: NODE.into(),
    };
    let order = told.order(&detach);
    told.volumes(&[VOLUME]);
    open(&order);
    told.volumes(&[]);
    assert!(shown(&order).contains("is detached from"));
}

#[test]
fn an_evacuation_is_done_when_nothing_runs_any_more() {
    let told = Told::with(InstanceState::Active);
    let evacuate = |next_state| Evacuate {
        workload_agent_uuid: NODE.into(),
        next_state,
        ..Evacuate::default()
    };
    let order = told.order(&evacuate(NextState::Maintenance));
    told.stats(NodeStatus::Maintenance, &[(INSTANCE, InstanceState::Stopping)]);
    told.stats(NodeStatus::Ready, &[]);
    open(&order);
    told.stats(NodeStatus::Maintenance, &[(INSTANCE, InstanceState::Exited)]);
    assert!(shown(&order).ends_with("is empty, and in maintenance"));

    // What cannot be ended does not keep it waiting.
    let order = told.order(&evacuate(NextState::Maintenance));
    told.stats(
        NodeStatus::Maintenance,
        &[(INSTANCE, InstanceState::Hung), (VOLUME, InstanceState::Stopping)],
    );
    open(&order);
    told.stats(NodeStatus::Maintenance, &[(INSTANCE, InstanceState::Hung)]);
    assert!(shown(&order).ends_with("in maintenance, but 1 instances cannot be ended"));

    // It leaves only where it was to.
    let stays = told.order(&evacuate(NextState::Maintenance));
    let leaves = told.order(&evacuate(NextState::Reboot));
    told.frame(&NodeDisconnected {
        node_uuid: NODE.into(),
        ..NodeDisconnected::default()
    });
    open(&stays);
    assert!(shown(&leaves).ends_with("has left"));
}

#[test]
fn a_restore_is_done_when_the_node_takes_commands() {
    let told = Told::with(InstanceState::Exited);
    let restore = Restore {
        workload_agent_uuid: NODE.into(),
    };
    let order = told.order(&restore);
    told.stats(NodeStatus::Maintenance, &[]);
    told.stats(NodeStatus::Offline, &[]);
    open(&order);
    told.stats(NodeStatus::Full, &[]);
    assert!(shown(&order).ends_with("is back in service"));
}

#[test]
fn public_addresses_are_confirmed_by_their_events() {
    let told = Told::with(InstanceState::Active);
    let public_ip = "198.51.100.20".to_owned();
    let assign = AssignPublicIp {
        concentrator_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: public_ip.clone(),
        ..AssignPublicIp::default()
    };
    let order = told.order(&assign);
    let assigned = PublicIpAssigned {
        concentrator_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: "198.51.100.21".into(),
        ..PublicIpAssigned::default()
    };
    told.frame(&assigned);
    open(&order);
    told.frame(&PublicIpAssigned {
        public_ip: public_ip.clone(),
        ..assigned
    });
    assert!(shown(&order).contains("is assigned to"));
    let release = ReleasePublicIp {
        concentrator_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: public_ip.clone(),
        ..ReleasePublicIp::default()
    };
    let order = told.order(&release);
    told.frame(&PublicIpUnassigned {
        concentrator_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        public_ip,
        ..PublicIpUnassigned::default()
    });
    assert!(shown(&order).contains("is taken from"));
}
