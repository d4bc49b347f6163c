//! The changes and failures that settle each order. `failures` has the words of
//! every failure, and `sessions` the effects of sessions on orders.

mod failures;
mod sessions;

use std::time::UNIX_EPOCH;

use uuid::Uuid;

use super::*;
use crate::error::OrderError;
use crate::goal::{self, Orderable, Shown};
use crate::subscribers::MAX_CHANGES;
use ssntp::payload::*;
use ssntp::proto::Command;
use ssntp::proto::ErrorCode;
use ssntp_payload::*;

const NODE: Uuid = Uuid::from_u128(0x5be1c0de_7d1a_4b52_8a55_90d2c3b4a501);
const INSTANCE: Uuid = Uuid::from_u128(0x0f7a5a1e_3c55_4a0b_9d3c_6f1f2f9a1001);
const VOLUME: Uuid = Uuid::from_u128(0x7c9e6679_7425_40de_944b_e07fc1f90ae7);

/// A controller without a client: the test feeds it with frames.
struct Rig {
    shared: Shared,
}

impl Rig {
    /// A node with an instance in a state.
    fn with(state: InstanceState) -> Self {
        let rig = Self {
            shared: Shared::new(View::default()),
        };
        rig.shared.online("scheduler".into(), None);
        rig.stats(NodeStatus::Ready, &[(INSTANCE, state)]);
        rig
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
    assert!(order.try_recv().is_err(), "no event has settled the order yet");
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
    let rig = Rig::with(InstanceState::Active);
    let other = Start {
        instance_uuid: VOLUME,
        ..Start::default()
    };
    let order = rig.order(&other);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    rig.stats(
        NodeStatus::Ready,
        &[
            (INSTANCE, InstanceState::Active),
            (VOLUME, InstanceState::Pending),
        ],
    );
    open(&order);
    rig.stats(
        NodeStatus::Ready,
        &[(INSTANCE, InstanceState::Active), (VOLUME, InstanceState::Active)],
    );
    assert_eq!(shown(&order), format!("instance {VOLUME} runs on node {NODE}"));
}

#[test]
fn a_start_whose_program_has_ended_was_started() {
    let rig = Rig::with(InstanceState::Active);
    let quick = Start {
        instance_uuid: VOLUME,
        ..Start::default()
    };
    let order = rig.order(&quick);
    rig.stats(NodeStatus::Ready, &[(VOLUME, InstanceState::Exited)]);
    assert_eq!(
        shown(&order),
        format!("instance {VOLUME} was started and has ended")
    );
}

/// STATS then list a persistent instance as `exited`, which the view knows already.
#[test]
fn a_start_that_is_stopped_before_stats_show_it_active_was_started() {
    let stopped = |rig: &Rig, instance: Uuid| {
        rig.frame(&InstanceStopped {
            instance_uuid: instance.into(),
            ..InstanceStopped::default()
        });
    };
    let quick = Start {
        instance_uuid: VOLUME,
        ..Start::default()
    };
    for listed in [
        &[][..],
        &[(VOLUME, InstanceState::Pending)],
        &[(VOLUME, InstanceState::Stopping)],
    ] {
        let rig = Rig::with(InstanceState::Active);
        let order = rig.order(&quick);
        rig.stats(NodeStatus::Ready, listed);
        open(&order);
        stopped(&rig, VOLUME);
        assert!(shown(&order).contains("was started and has ended"));
    }
    // Another controller may have stopped it before this START, which will be refused.
    let rig = Rig::with(InstanceState::Active);
    let order = rig.order(&start());
    stopped(&rig, INSTANCE);
    open(&order);
}

#[test]
fn a_start_that_is_no_longer_listed_was_not_shown_to_run() {
    let rig = Rig::with(InstanceState::Active);
    let other = Start {
        instance_uuid: VOLUME,
        ..Start::default()
    };
    let order = rig.order(&other);
    rig.stats(NodeStatus::Ready, &[(VOLUME, InstanceState::Pending)]);
    rig.stats(NodeStatus::Ready, &[]);
    open(&order);
    rig.frame(&StartFailure {
        instance_uuid: VOLUME.into(),
        reason: Reason::LaunchFailure,
        ..StartFailure::default()
    });
    assert!(failed(&order).ends_with("(launch_failure)"));
}

#[test]
fn a_failure_has_the_detail_of_its_frame() {
    let rig = Rig::with(InstanceState::Pending);
    let order = rig.order(&Start {
        instance_uuid: INSTANCE,
        ..Start::default()
    });
    rig.frame(&StartFailure {
        instance_uuid: INSTANCE.into(),
        reason: Reason::LaunchFailure,
        detail: "/opt/tool: Permission denied".into(),
        ..StartFailure::default()
    });
    let reason = "it cannot be launched: /opt/tool: Permission denied (launch_failure)";
    assert!(failed(&order).ends_with(reason));
}

#[test]
fn a_start_of_a_former_session_that_no_node_shows_is_lost() {
    let rig = Rig::with(InstanceState::Active);
    let other = |instance_uuid| Start {
        instance_uuid,
        ..Start::default()
    };
    let (lost, pending) = (rig.order(&other(VOLUME)), rig.order(&other(NODE)));
    let look = || {
        let mut state = locked(&rig.shared.state);
        let at = state.orders.next_deadline()?;
        state.handle_deadline(at);
        Some(())
    };
    assert_eq!(look(), None, "the session of the order continues");
    rig.shared.offline("lost".into(), UNIX_EPOCH);
    rig.shared.online("scheduler".into(), None);
    rig.stats(NodeStatus::Ready, &[(NODE, InstanceState::Pending)]);
    let of_this = rig.order(&other(Uuid::nil()));
    look().expect("the check is due");
    assert!(matches!(
        lost.try_recv().unwrap(),
        Err(OrderError::Lost(Command::START))
    ));
    open(&pending);
    open(&of_this);
    rig.stats(NodeStatus::Ready, &[]);
    look().expect("the check is repeated while an order waits");
    assert!(matches!(pending.try_recv().unwrap(), Err(OrderError::Lost(_))));
    assert_eq!(look(), None);
    open(&of_this);
}

#[test]
fn repeated_restarts_of_the_scheduler_do_not_delay_a_lost_start() {
    let rig = Rig::with(InstanceState::Active);
    let lost = rig.order(&Start {
        instance_uuid: VOLUME,
        ..Start::default()
    });
    let again = || {
        rig.shared.offline("lost".into(), UNIX_EPOCH);
        rig.shared.online("scheduler".into(), None);
        locked(&rig.shared.state).orders.next_deadline()
    };
    let at = again().expect("a check is scheduled");
    assert_eq!(again(), Some(at));
    rig.shared.offline("lost".into(), UNIX_EPOCH);
    let look = |at| locked(&rig.shared.state).handle_deadline(at);
    look(at);
    open(&lost);
    rig.shared.online("scheduler".into(), None);
    let at = locked(&rig.shared.state)
        .orders
        .next_deadline()
        .expect("the check is repeated");
    look(at);
    assert!(matches!(lost.try_recv().unwrap(), Err(OrderError::Lost(_))));
    assert_eq!(locked(&rig.shared.state).orders.next_deadline(), None);
}

#[test]
fn a_configuration_is_adopted_when_it_returns_or_the_next_session_has_it() {
    let rig = Rig::with(InstanceState::Active);
    let watch = || rig.shared.watch(configured("configure: {}")).unwrap().1;
    let comes = |yaml: &'static str| {
        let frame = Frame::with_payload(Command::CONFIGURE, yaml);
        rig.shared.frame(&frame, UNIX_EPOCH);
    };
    let order = watch();
    comes("configure: {storage: {}}");
    open(&order);
    comes("configure: {}");
    assert_eq!(shown(&order), "the cluster has the configuration");
    let order = watch();
    rig.shared.online("scheduler".into(), Some("other: {}".into()));
    open(&order);
    rig.shared
        .online("scheduler".into(), Some("configure: {}".into()));
    assert_eq!(shown(&order), "the cluster has the configuration");
}

#[test]
fn a_refused_configuration_fails_only_its_own_order() {
    let rig = Rig::with(InstanceState::Active);
    let watch = |yaml| rig.shared.watch(configured(yaml)).unwrap().1;
    let refuse = |refused: &'static str| {
        rig.frame(&InvalidConfiguration {
            refused: refused.into(),
        });
    };
    let (good, bad) = (watch("configure: {}"), watch("configure: 3"));
    refuse("configure: 4");
    open(&bad);
    refuse("configure: 3");
    assert!(failed(&bad).contains("cannot use it"));
    open(&good);
    // Of equal configurations the scheduler refuses the older one, which the newer one has replaced.
    let again = watch("configure: {}");
    refuse("configure: {}");
    failed(&good);
    open(&again);
}

#[test]
fn a_stop_is_done_by_stats_or_either_event() {
    type Show = fn(&Rig);
    let shows: [(Show, &str); 4] = [
        (
            |rig| rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]),
            "has stopped",
        ),
        (|rig| rig.stats(NodeStatus::Ready, &[]), "is gone"),
        (
            |rig| {
                rig.frame(&InstanceStopped {
                    instance_uuid: INSTANCE.into(),
                    ..Default::default()
                })
            },
            "has stopped",
        ),
        (
            |rig| {
                rig.frame(&InstanceDeleted {
                    instance_uuid: INSTANCE.into(),
                    ..Default::default()
                })
            },
            "is gone",
        ),
    ];
    for (show, text) in shows {
        let rig = Rig::with(InstanceState::Active);
        let order = rig.order(&stop());
        rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Stopping)]);
        rig.frame(&InstanceDeleted {
            instance_uuid: VOLUME.into(),
            ..Default::default()
        });
        open(&order);
        show(&rig);
        assert!(shown(&order).ends_with(text));
    }
}

#[test]
fn a_restart_is_done_when_it_is_active_again() {
    let rig = Rig::with(InstanceState::Exited);
    let order = rig.order(&restart());
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Pending)]);
    open(&order);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    assert!(shown(&order).contains("runs on node"));
}

#[test]
fn a_restart_that_ended_at_once_is_done_and_an_end_before_it_is_not() {
    let rig = Rig::with(InstanceState::Active);
    let order = rig.order(&restart());
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    open(&order);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Pending)]);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    assert!(shown(&order).ends_with("was started and has ended"));
}

#[test]
fn an_instance_that_is_being_deleted_counts_as_neither_running_nor_gone() {
    for command in ["STOP", "DELETE"] {
        let rig = Rig::with(InstanceState::Active);
        let order = match command {
            "STOP" => rig.order(&stop()),
            _ => rig.order(&delete()),
        };
        rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Deleted)]);
        assert!(shown(&order).ends_with("is gone"), "{command}");
    }
}

#[test]
fn a_delete_is_done_when_the_instance_is_gone_and_not_when_it_has_stopped() {
    let rig = Rig::with(InstanceState::Active);
    let order = rig.order(&delete());
    rig.frame(&InstanceStopped {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Exited)]);
    open(&order);
    rig.frame(&InstanceDeleted {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    assert!(shown(&order).ends_with("is gone"));

    // A DELETE with `stop` is answered by InstanceStopped.
    let rig = Rig::with(InstanceState::Active);
    let order = rig.order(&Delete {
        stop: true,
        ..delete()
    });
    rig.frame(&InstanceStopped {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    assert!(shown(&order).ends_with("has stopped"));
}

#[test]
fn a_delete_on_a_second_node_is_done_when_that_node_no_longer_lists_it() {
    let rig = Rig::with(InstanceState::Active);
    let second = Uuid::from_u128(9);
    let stats = |foreign: &[Uuid]| {
        rig.frame(&Stats {
            node_uuid: second.into(),
            foreign: foreign.iter().map(|id| (*id).into()).collect(),
            ..Stats::default()
        });
    };
    stats(&[INSTANCE]);
    let order = rig.order(&Delete {
        workload_agent_uuid: second.into(),
        ..delete()
    });
    let own = rig.order(&delete());
    stats(&[VOLUME, INSTANCE]);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    open(&order);
    stats(&[VOLUME]);
    assert!(shown(&order).ends_with("is gone"));
    open(&own);
    rig.shared
        .look(|view| assert_eq!(view.instance(INSTANCE).unwrap().node, NODE));
}

#[test]
fn volumes_are_attached_and_detached_when_stats_say_so() {
    let rig = Rig::with(InstanceState::Active);
    let attach = AttachVolume {
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.to_string().to_uppercase().into(),
        workload_agent_uuid: NODE.into(),
    };
    let order = rig.order(&attach);
    rig.volumes(&[NODE]);
    open(&order);
    rig.volumes(&[NODE, VOLUME]);
    assert!(shown(&order).contains("is attached to"));
    let detach = DetachVolume {
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.into(),
        workload_agent_uuid: NODE.into(),
    };
    let order = rig.order(&detach);
    rig.volumes(&[VOLUME]);
    open(&order);
    rig.volumes(&[]);
    assert!(shown(&order).contains("is detached from"));
}

#[test]
fn an_evacuation_is_done_when_no_instance_runs() {
    let rig = Rig::with(InstanceState::Active);
    let evacuate = |next_state| Evacuate {
        workload_agent_uuid: NODE.into(),
        next_state,
        ..Evacuate::default()
    };
    let order = rig.order(&evacuate(NextState::Maintenance));
    rig.stats(NodeStatus::Maintenance, &[(INSTANCE, InstanceState::Stopping)]);
    rig.stats(NodeStatus::Ready, &[]);
    open(&order);
    rig.stats(NodeStatus::Maintenance, &[(INSTANCE, InstanceState::Exited)]);
    assert!(shown(&order).ends_with("is empty, and in maintenance"));

    // The order does not wait for an instance that cannot be ended.
    let order = rig.order(&evacuate(NextState::Maintenance));
    rig.stats(
        NodeStatus::Maintenance,
        &[(INSTANCE, InstanceState::Hung), (VOLUME, InstanceState::Stopping)],
    );
    open(&order);
    rig.stats(NodeStatus::Maintenance, &[(INSTANCE, InstanceState::Hung)]);
    assert!(shown(&order).ends_with("in maintenance, but 1 instances cannot be ended"));

    // The node disconnects only if the command requires it.
    let stays = rig.order(&evacuate(NextState::Maintenance));
    let leaves = rig.order(&evacuate(NextState::Reboot));
    rig.frame(&NodeDisconnected {
        node_uuid: NODE.into(),
        ..NodeDisconnected::default()
    });
    open(&stays);
    assert!(shown(&leaves).ends_with("has left"));
}

#[test]
fn a_restore_is_done_when_the_node_takes_commands() {
    let rig = Rig::with(InstanceState::Exited);
    let restore = Restore {
        workload_agent_uuid: NODE.into(),
    };
    let order = rig.order(&restore);
    rig.stats(NodeStatus::Maintenance, &[]);
    rig.stats(NodeStatus::Offline, &[]);
    open(&order);
    rig.stats(NodeStatus::Full, &[]);
    assert!(shown(&order).ends_with("is back in service"));
}

#[test]
fn public_addresses_are_confirmed_by_their_events() {
    let rig = Rig::with(InstanceState::Active);
    let public_ip = "198.51.100.20".to_owned();
    let assign = AssignPublicIp {
        concentrator_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: public_ip.clone(),
        ..AssignPublicIp::default()
    };
    let order = rig.order(&assign);
    let assigned = PublicIpAssigned {
        concentrator_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: "198.51.100.21".into(),
        ..PublicIpAssigned::default()
    };
    rig.frame(&assigned);
    open(&order);
    rig.frame(&PublicIpAssigned {
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
    let order = rig.order(&release);
    rig.frame(&PublicIpUnassigned {
        concentrator_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        public_ip,
        ..PublicIpUnassigned::default()
    });
    assert!(shown(&order).contains("is taken from"));
}

#[test]
fn a_request_for_output_is_for_all_that_the_node_keeps_unless_it_says_less() {
    let all = crate::StreamRequest {
        outputs: Outputs::BOTH,
        tail: None,
        follow: false,
    };
    assert_eq!(crate::StreamRequest::default(), all);
}
