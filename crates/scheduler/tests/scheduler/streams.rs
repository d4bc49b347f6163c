//! Streams of the output of instances: their receivers, their senders, and their ends.

use ssntp::Role;
use ssntp::payload::{InvalidFrameType, InvalidFrameTypeReason};
use ssntp::proto::{Command, Event, Frame};
use ssntp_payload::{
    InstanceState, MAX_STREAM_CHUNK, MAX_STREAM_CREDIT, OpenStream, Outputs, StreamCredit, StreamData,
    StreamEndReason as Reason, StreamEnded, close_stream, stream_opened,
};
use ssntp_scheduler::{ControllerMode, SchedulerConfig};
use uuid::Uuid;

use super::client::Client;
use super::{Cluster, start, stats};

fn open(instance: Uuid) -> OpenStream {
    OpenStream {
        stream: Uuid::new_v4(),
        instance,
        outputs: Outputs::BOTH,
        follow: true,
        tail: None,
        credit: MAX_STREAM_CREDIT,
    }
}

fn data(stream: Uuid, length: usize) -> Frame {
    let data = StreamData {
        stream,
        output: Outputs::STDOUT,
        missing: false,
        data: vec![b'x'; length].into(),
    };
    data.frame()
}

/// A node that has an instance.
fn node_with_instance(cluster: &Cluster, controllers: &mut [&mut Client]) -> (Client, Uuid) {
    let mut node = cluster.node(1000, controllers);
    let instance = Uuid::new_v4();
    let mut report = stats(node.uuid, &[instance]);
    report.instances[0].state = InstanceState::Active;
    node.send_payload(&report);
    node.expect_nothing();
    for controller in controllers {
        controller.expect(Command::STATS);
    }
    (node, instance)
}

/// Opens a stream, which the node accepts.
#[track_caller]
fn opened(controller: &mut Client, node: &mut Client, open: &OpenStream) {
    controller.send(&open.frame());
    let asked = node.expect(Command::OPEN_STREAM);
    assert_eq!(OpenStream::decode(asked.payload_bytes()), Some(*open));
}

#[track_caller]
fn ended(controller: &mut Client, stream: Uuid) -> StreamEnded {
    let frame = controller.expect(Event::STREAM_ENDED);
    let ended = StreamEnded::decode(frame.payload_bytes()).unwrap();
    assert_eq!(ended.stream, stream);
    ended
}

#[test]
fn a_stream_goes_from_the_instances_node_only_to_the_session_that_opened_it() {
    let cluster = Cluster::strict();
    let (mut controller, mut other) = (cluster.controller(), cluster.controller());
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut controller, &mut other]);
    let open = open(instance);
    opened(&mut controller, &mut node, &open);
    let frames = [
        stream_opened(open.stream),
        data(open.stream, 1),
        data(open.stream, MAX_STREAM_CHUNK),
        StreamEnded::new(open.stream, Reason::DONE, "").frame(),
    ];
    frames.iter().for_each(|frame| node.send(frame));
    for frame in &frames {
        assert_eq!(&controller.recv(), frame);
    }
    other.expect_nothing();
    // The stream is over, so later data is dropped. The node learns that no stream has this data: an
    // earlier leader may have opened it.
    for late in [stream_opened(open.stream), data(open.stream, 1)] {
        node.send(&late);
        assert_eq!(node.recv(), close_stream(open.stream));
    }
    node.send(&StreamEnded::new(open.stream, Reason::DONE, "").frame());
    node.expect_nothing();
    controller.expect_nothing();

    let again = self::open(instance);
    opened(&mut controller, &mut node, &again);
    let credit = StreamCredit {
        stream: again.stream,
        bytes: 0,
    };
    controller.send(&credit.frame());
    assert_eq!(node.recv(), credit.frame());
    controller.send(&close_stream(again.stream));
    assert_eq!(node.recv(), close_stream(again.stream));
    node.send(&data(again.stream, 1));
    assert_eq!(node.recv(), close_stream(again.stream));
    controller.expect_nothing();
}

#[test]
fn frames_of_other_sessions_for_a_stream_are_dropped() {
    let cluster = Cluster::strict();
    let (mut controller, mut other) = (cluster.controller(), cluster.controller());
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut controller, &mut other]);
    let mut liar = cluster.node(1000, &mut [&mut controller, &mut other]);
    let open = open(instance);
    opened(&mut controller, &mut node, &open);
    for frame in [
        stream_opened(open.stream),
        data(open.stream, 1),
        StreamEnded::new(open.stream, Reason::DONE, "").frame(),
    ] {
        liar.send(&frame);
    }
    liar.expect_nothing();
    let credit = StreamCredit {
        stream: open.stream,
        bytes: 1,
    };
    other.send(&credit.frame());
    other.send(&close_stream(open.stream));
    other.expect_nothing();
    // Each role has its own frames.
    let of_controllers = [open.frame(), credit.frame(), close_stream(open.stream)];
    let of_agents = [stream_opened(open.stream), data(open.stream, 1)];
    for (client, frames) in [(&mut liar, &of_controllers[..]), (&mut other, &of_agents[..])] {
        for frame in frames {
            client.send(frame);
            let answer: InvalidFrameType = client.expect_payload();
            assert_eq!(answer.refused(), frame.kind());
            assert_eq!(answer.reason, InvalidFrameTypeReason::RoleNotAllowed);
        }
    }
    // Another session cannot open a stream with the same UUID.
    other.send(&open.frame());
    let answer: InvalidFrameType = other.expect_payload();
    assert_eq!(
        (answer.refused(), answer.reason.as_str()),
        (Command::OPEN_STREAM.into(), "invalid_data")
    );
    node.expect_nothing();
    controller.expect_nothing();
    // The stream is still open.
    node.send(&data(open.stream, 1));
    assert_eq!(controller.recv(), data(open.stream, 1));
}

#[test]
fn an_impossible_stream_is_refused_with_the_reason() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut controller]);
    let refused = |controller: &mut Client, open: OpenStream| {
        controller.send(&open.frame());
        ended(controller, open.stream)
    };
    let unknown = open(Uuid::new_v4());
    let end = refused(&mut controller, unknown);
    assert_eq!(end.reason, Reason::NO_INSTANCE);
    assert_eq!(end.text, format!("no node has instance {}", unknown.instance));

    for wrong in [
        OpenStream {
            outputs: Outputs(4),
            ..open(instance)
        },
        OpenStream {
            credit: MAX_STREAM_CREDIT + 1,
            ..open(instance)
        },
    ] {
        assert_eq!(refused(&mut controller, wrong).reason, Reason::REFUSED);
    }
    for payload in [Vec::new(), vec![1; 43], vec![0; 44]] {
        controller.send(&Frame::with_payload(Command::OPEN_STREAM, payload));
        let answer: InvalidFrameType = controller.expect_payload();
        assert_eq!(answer.reason.as_str(), "invalid_data");
    }
    node.expect_nothing();

    let [first, held] = [start(1), start(1)];
    super::start_on(&mut controller, &mut node, &first);
    controller.send_payload(&held);
    let end = refused(&mut controller, open(held.instance_uuid));
    assert_eq!(end.reason, Reason::NO_INSTANCE);
    assert!(end.text.ends_with("waits for a node"), "{}", end.text);

    let uuid = node.uuid;
    drop(node);
    cluster.wait_disconnected(uuid);
    controller.drain();
    let end = refused(&mut controller, open(instance));
    assert_eq!(end.reason, Reason::NOT_CONNECTED);
    assert_eq!(end.text, format!("its node {uuid} is not connected"));
}

#[test]
fn an_agent_that_exceeds_its_credit_has_its_stream_ended() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut controller]);
    let wrong = |stream: Uuid, output: u8, length: usize| {
        let mut payload = stream.as_bytes().to_vec();
        payload.extend([output, 0, 0, 0]);
        payload.extend(vec![b'x'; length]);
        Frame::with_payload(Event::STREAM_DATA, payload)
    };
    // 128 bytes of credit allow 100 bytes of data.
    for (length, wrong) in [
        (100, wrong(Uuid::nil(), 1, 1)),
        (99, wrong(Uuid::nil(), 1, 2)),
        (1, wrong(Uuid::nil(), 1, 0)),
        (1, wrong(Uuid::nil(), 3, 1)),
        (1, wrong(Uuid::nil(), 1, MAX_STREAM_CHUNK + 1)),
        (1, Frame::with_payload(Event::STREAM_ENDED, vec![7; 16])),
    ] {
        let open = OpenStream {
            credit: 128,
            ..open(instance)
        };
        opened(&mut controller, &mut node, &open);
        node.send(&data(open.stream, length));
        assert_eq!(controller.recv(), data(open.stream, length));
        let mut payload = wrong.payload_bytes().to_vec();
        payload[..16].copy_from_slice(open.stream.as_bytes());
        node.send(&Frame::with_payload(wrong.kind(), payload));
        assert_eq!(
            ended(&mut controller, open.stream).reason,
            Reason::BROKEN,
            "{length}"
        );
        assert_eq!(node.recv(), close_stream(open.stream));
    }
    // A credit beyond the limit of bytes on their way ends the stream as well.
    let open = open(instance);
    opened(&mut controller, &mut node, &open);
    let credit = StreamCredit {
        stream: open.stream,
        bytes: 1,
    };
    controller.send(&credit.frame());
    assert_eq!(ended(&mut controller, open.stream).reason, Reason::REFUSED);
    assert_eq!(node.recv(), close_stream(open.stream));
}

#[test]
fn a_stream_ends_with_the_session_of_either_end() {
    let cluster = Cluster::strict();
    let (mut controller, mut other) = (cluster.controller(), cluster.controller());
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut controller, &mut other]);
    let (first, second) = (open(instance), open(instance));
    opened(&mut controller, &mut node, &first);
    opened(&mut other, &mut node, &second);
    drop(other);
    assert_eq!(node.recv(), close_stream(second.stream));
    let uuid = node.uuid;
    drop(node);
    let end = ended(&mut controller, first.stream);
    assert_eq!(end.reason, Reason::NOT_CONNECTED);
    assert_eq!(end.text, format!("its node {uuid} has left"));
}

#[test]
fn an_agent_that_does_not_know_streams_ends_them() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut controller]);
    let open = open(instance);
    opened(&mut controller, &mut node, &open);
    let unsupported =
        |kind: Command| InvalidFrameType::new(kind.into(), InvalidFrameTypeReason::UnsupportedOperand);
    // A refusal of another frame changes nothing.
    node.send_payload(&unsupported(Command::START));
    node.expect_nothing();
    controller.expect_nothing();
    node.send_payload(&unsupported(Command::OPEN_STREAM));
    let end = ended(&mut controller, open.stream);
    assert_eq!(end.reason, Reason::NOT_SUPPORTED);
    assert!(
        end.text.ends_with("is of a version without streams"),
        "{}",
        end.text
    );
}

#[test]
fn streams_are_bounded_for_each_session_and_each_node() {
    let cluster = Cluster::strict();
    let mut controllers: Vec<_> = (0..3).map(|_| cluster.controller()).collect();
    let (mut node, instance) = node_with_instance(&cluster, &mut controllers.iter_mut().collect::<Vec<_>>());
    let [first, second, third] = &mut controllers[..] else {
        panic!("three streams are expected");
    };
    let mut opens = Vec::new();
    for _ in 0..32 {
        opens.push(open(instance));
        opened(first, &mut node, opens.last().unwrap());
        opened(second, &mut node, &open(instance));
    }
    for (controller, limit) in [
        (&mut *first, "this session has 32"),
        (third, "the instance's node has 64"),
    ] {
        let open = open(instance);
        controller.send(&open.frame());
        let end = ended(controller, open.stream);
        assert_eq!(end.reason, Reason::TOO_MANY);
        assert!(end.text.starts_with(limit), "{}", end.text);
    }
    node.expect_nothing();
    // The end of a stream makes room for another one.
    first.send(&close_stream(opens[0].stream));
    node.expect(Command::CLOSE_STREAM);
    opened(first, &mut node, &open(instance));
}

#[test]
fn a_controller_that_does_not_read_holds_no_other_connection_back() {
    let cluster = Cluster::strict();
    let (mut slow, mut other) = (cluster.controller(), cluster.controller());
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut slow, &mut other]);
    for _ in 0..32 {
        let open = open(instance);
        opened(&mut slow, &mut node, &open);
        let mut credit = open.credit;
        while StreamData::room(credit) > 0 {
            let length = StreamData::room(credit);
            node.send(&data(open.stream, length));
            credit -= StreamData::cost_of(length);
        }
    }
    // The scheduler has taken all data although the controller does not read.
    node.expect_nothing();
    node.send_payload(&stats(node.uuid, &[instance]));
    other.expect(Command::STATS);
    let length = |frame: &Frame| frame.payload_bytes().len();
    let came: usize = slow.drain().iter().map(length).sum();
    assert!(came > 31 * MAX_STREAM_CREDIT as usize, "{came}");
}

#[test]
fn a_backup_controller_may_open_streams() {
    let cluster = Cluster::new(SchedulerConfig::new().controllers(ControllerMode::Master));
    let (mut master, mut backup) = (cluster.controller(), cluster.controller());
    let (mut node, instance) = node_with_instance(&cluster, &mut [&mut master, &mut backup]);
    opened(&mut backup, &mut node, &open(instance));
}

#[test]
fn a_network_agent_serves_streams_as_well() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.agent(Role::NETAGENT, &mut [&mut controller]);
    let instance = Uuid::new_v4();
    node.send_payload(&stats(node.uuid, &[instance]));
    controller.expect(Command::STATS);
    let open = open(instance);
    opened(&mut controller, &mut node, &open);
    node.send(&data(open.stream, 1));
    assert_eq!(controller.recv(), data(open.stream, 1));
}
