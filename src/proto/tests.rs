//! Properties of the codec and known bytes of every frame.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use ssntp_pki::Role;

const LIMIT: u32 = 1 << 20;

/// Feeds `wire` in pieces that end at `cuts`, and returns the decoded items.
fn feed(wire: &[u8], cuts: &[usize], tracing: bool) -> (Vec<Item>, Result<(), ProtocolError>) {
    let mut codec = Codec::new(LIMIT, tracing);
    let mut input = BytesMut::new();
    let mut items = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([wire.len()]) {
        let to = to.clamp(from, wire.len());
        input.extend_from_slice(&wire[from..to]);
        from = to;
        if let Err(fault) = codec.decode(&mut input, &mut items) {
            return (items, Err(fault));
        }
    }
    (items, Ok(()))
}

fn frames(items: &[Item]) -> Vec<Frame> {
    let mut frames = Vec::new();
    for item in items {
        match item {
            Item::Run(run) => {
                assert_eq!(run.frames().count(), run.len() as usize);
                frames.extend(run.frames());
            }
            Item::Traced(frame) => frames.push(frame.clone()),
            Item::Unsupported(kind) => panic!("{kind} is supported"),
        }
    }
    frames
}

fn any_kind() -> impl Strategy<Value = FrameKind> {
    let kinds: Vec<_> = FrameKind::all().filter(|kind| !kind.is_handshake()).collect();
    proptest::sample::select(kinds)
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let node = (any::<u128>(), any::<u32>(), any::<u64>(), any::<u64>());
    (".{0,80}", any::<u64>(), any::<u64>(), vec(node, 0..=32)).prop_map(|(label, start, end, nodes)| {
        let mut trace = Trace::new(&label);
        (trace.start, trace.end) = (start, end);
        for (uuid, role, received_at, sent_at) in nodes {
            let node = TraceNode {
                uuid: Uuid::from_u128(uuid),
                role: Role::from_bits(role),
                received_at,
                sent_at,
            };
            assert!(trace.push(node));
        }
        trace
    })
}

fn any_frame(traced: bool) -> impl Strategy<Value = Frame> {
    (
        any_kind(),
        vec(any::<u8>(), 0..200),
        proptest::option::of(any_trace()),
    )
        .prop_map(move |(kind, payload, trace)| {
            let frame = Frame::with_payload(kind, payload);
            match trace {
                Some(trace) if traced => frame.traced(trace),
                _ => frame,
            }
        })
}

fn wire(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.encode().to_vec()).collect()
}

proptest! {
    #[test]
    fn frames_survive_the_wire_in_any_pieces(
        sent in vec(any_frame(true), 0..12),
        mut cuts in vec(0usize..4000, 0..20),
    ) {
        cuts.sort_unstable();
        let (items, end) = feed(&wire(&sent), &cuts, true);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(frames(&items), sent);
    }

    #[test]
    fn no_bytes_panic_and_pieces_do_not_matter(
        bytes in vec(prop_oneof![any::<u8>(), 0u8..6], 0..400),
        mut cuts in vec(0usize..400, 0..10),
        tracing: bool,
    ) {
        cuts.sort_unstable();
        let (whole, end) = feed(&bytes, &[], tracing);
        let (pieces, pieces_end) = feed(&bytes, &cuts, tracing);
        prop_assert_eq!(end, pieces_end);
        let reports = |items: &[Item]| items.iter().filter(|i| matches!(i, Item::Unsupported(_))).count();
        prop_assert_eq!(reports(&whole), reports(&pieces));
        let mut input = BytesMut::from(&bytes[..]);
        let _ = ServerHandshake::new(Role::ALL, None).receive(&mut input);
        let connect = Connect::new(Role::AGENT, Uuid::from_u128(1), true);
        let _ = ClientHandshake::new(connect, Role::ALL, None, LIMIT).receive(&mut BytesMut::from(&bytes[..]));
        let _ = Trace::decode(&bytes);
    }

    #[test]
    fn a_trace_is_read_back_from_its_block(trace in any_trace()) {
        let mut block = Vec::new();
        trace.encode(&mut block);
        prop_assert_eq!(block.len(), trace.encoded_len());
        prop_assert!(block.len() <= Trace::MAX_LEN);
        prop_assert_eq!(Trace::decode(&block), Ok(trace));
        for cut in 0..block.len() {
            prop_assert!(Trace::decode(&block[..cut]).is_err(), "cut at {}", cut);
        }
    }
}

#[test]
fn every_split_of_a_conversation_gives_the_same_frames() {
    let sent = [
        Frame::with_payload(Command::STATS, "a: 1\n"),
        Frame::with_payload(Command::STATS, "a: 2\n"),
        Frame::new(Status::FULL),
        Frame::with_payload(Event::TRACE_REPORT, "x").traced(Trace::new("job")),
        Frame::with_payload(ErrorCode::STOP_FAILURE, vec![7; 40]),
    ];
    let wire = wire(&sent);
    for first in 0..=wire.len() {
        for second in first..=wire.len() {
            let (items, end) = feed(&wire, &[first, second], true);
            assert_eq!(end, Ok(()));
            assert_eq!(frames(&items), sent, "split at {first} and {second}");
        }
    }
}

#[test]
fn consecutive_frames_of_a_kind_are_one_run() {
    let sent = vec![Frame::with_payload(Command::STATS, "abc"); 5];
    let mut all = sent.clone();
    all.push(Frame::new(Status::READY));
    let (items, _) = feed(&wire(&all), &[], false);
    let [Item::Run(stats), Item::Run(ready)] = &items[..] else {
        panic!("{items:?}")
    };
    assert_eq!((stats.len(), stats.wire().len()), (5, 5 * 11));
    assert_eq!(stats.wire()[..], wire(&sent)[..]);
    assert_eq!((ready.kind(), ready.len()), (Status::READY.into(), 1));
}

#[test]
fn every_operand_has_its_number_and_name() {
    let table: [(u8, &[&str]); 4] = [
        (
            0,
            &[
                "CONNECT",
                "START",
                "STOP",
                "STATS",
                "EVACUATE",
                "DELETE",
                "RESTART",
                "AssignPublicIP",
                "ReleasePublicIP",
                "CONFIGURE",
                "AttachVolume",
                "DetachVolume",
                "Restore",
                "RefreshCNCI",
            ],
        ),
        (1, &["CONNECTED", "READY", "FULL", "OFFLINE", "MAINTENANCE"]),
        (
            3,
            &[
                "TenantAdded",
                "TenantRemoved",
                "InstanceDeleted",
                "ConcentratorInstanceAdded",
                "PublicIPAssigned",
                "TraceReport",
                "NodeConnected",
                "NodeDisconnected",
                "PublicIPUnassigned",
                "InstanceStopped",
            ],
        ),
        (
            4,
            &[
                "InvalidFrameType",
                "StartFailure",
                "StopFailure",
                "ConnectionFailure",
                "DeleteFailure",
                "RestartFailure",
                "ConnectionAborted",
                "InvalidConfiguration",
                "AttachVolumeFailure",
                "DetachVolumeFailure",
                "AssignPublicIPFailure",
                "UnassignPublicIPFailure",
            ],
        ),
    ];
    let ours = [
        (
            0,
            "OpenStream StreamCredit CloseStream ListSessions Kick ListBans Unban Tenant Watch ListServers \
             DrainServer RenewCertificate - ManageEnrolment",
        ),
        (
            3,
            "StreamOpened StreamData StreamEnded Sessions Kicked Bans Unbanned Tenants Draining \
             SnapshotComplete Watched Servers NewLeader EnrolmentList",
        ),
    ];
    for (frame_type, names) in ours {
        let names = names.split(' ');
        for (operand, name) in (0x40u8..).zip(names) {
            // A dash is a number that is not assigned.
            let name = Some(name).filter(|name| *name != "-");
            assert_eq!(FrameKind::new(FrameType(frame_type), operand).name(), name);
        }
    }
    let mut count = 13 + 14;
    for (frame_type, names) in table {
        for (operand, name) in (0u8..).zip(names) {
            let kind = FrameKind::new(FrameType(frame_type), operand);
            assert_eq!(kind.name(), Some(*name));
            assert_eq!(name.to_lowercase().parse(), Ok(kind));
            let bytes = Frame::with_payload(kind, "pay").encode();
            assert_eq!(
                bytes[..],
                [0, 1, frame_type, operand, 0, 0, 0, 3, b'p', b'a', b'y']
            );
            count += 1;
        }
        assert!(!FrameKind::new(FrameType(frame_type), u8::try_from(names.len()).unwrap()).is_known());
    }
    assert_eq!(FrameKind::all().count(), count);
    assert_eq!(FrameKind::new(FrameType(2), 9).to_string(), "0x02/0x09");
}

#[test]
fn a_traced_frame_has_the_expected_bytes() {
    let mut trace = Trace::new("j");
    (trace.start, trace.end) = (1, 2);
    trace.stamp_sent(Uuid::from_u128(0xab), Role::CONTROLLER, 3);
    let bytes = Frame::with_payload(Command::START, "P").traced(trace).encode();
    let mut expected = vec![0x80, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 56, 1, 1, b'j'];
    expected.extend([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1]);
    expected.extend(
        [
            [0; 15].as_slice(),
            &[0xab, 0, 0, 0, 2],
            &[0; 8],
            &[0, 0, 0, 0, 0, 0, 0, 3],
        ]
        .concat(),
    );
    expected.push(b'P');
    assert_eq!(bytes[..], expected[..]);
}

#[test]
fn a_trace_has_the_time_of_each_hop() {
    let (origin, server, end) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
    let mut trace = Trace::new("job");
    trace.stamp_sent(origin, Role::CONTROLLER, 100);
    trace.stamp_received(server, Role::SCHEDULER, 150);
    trace.stamp_sent(server, Role::SCHEDULER, 170);
    trace.stamp_received(end, Role::AGENT, 300);
    let nanos = |d: Option<std::time::Duration>| d.map(|d| d.as_nanos());
    assert_eq!(nanos(trace.duration()), Some(200));
    let hops: Vec<_> = trace
        .hops()
        .map(|hop| (nanos(hop.wire), nanos(hop.inside)))
        .collect();
    assert_eq!(hops, [(None, None), (Some(50), Some(20)), (Some(130), None)]);
    trace.stamp_received(origin, Role::CONTROLLER, 90);
    assert_eq!(trace.duration(), None, "clocks that disagree give no time");
}

#[test]
fn unknown_type_and_operand_are_skipped_and_reported_in_order() {
    for (frame_type, operand, reason) in [
        (2, 0, "unsupported_type"),
        (0, 0x3f, "unsupported_operand"),
        (9, 1, "unsupported_type"),
    ] {
        let mut bytes = Frame::new(Status::READY).encode().to_vec();
        bytes.extend([0, 1, frame_type, operand, 0, 0, 0, 3, 1, 2, 3]);
        bytes.extend(&Frame::new(Status::FULL).encode());
        for cut in 0..bytes.len() {
            let (items, end) = feed(&bytes, &[cut], false);
            assert_eq!(end, Ok(()));
            let kind = FrameKind::new(FrameType(frame_type), operand);
            let [Item::Run(_), Item::Unsupported(found), Item::Run(_)] = &items[..] else {
                panic!("{items:?}")
            };
            assert_eq!(*found, kind);
            let answer = Item::Unsupported(kind).answer().unwrap();
            assert_eq!(answer.kind(), ErrorCode::INVALID_FRAME_TYPE);
            let expected = format!("type: {frame_type}\noperand: {operand}\nreason: {reason}\n");
            assert_eq!(answer.payload_bytes()[..], *expected.as_bytes());
        }
    }
}

#[test]
fn a_codec_knows_that_it_is_within_a_frame_that_is_skipped() {
    let mut codec = Codec::new(LIMIT, false);
    let mut decode = |bytes: &[u8]| {
        codec.decode(&mut bytes.into(), &mut Vec::new()).unwrap();
        codec.skips()
    };
    let steps: [(&[u8], bool); 3] = [(&[0, 1, 2, 0, 0, 0, 0, 2], true), (&[1], true), (&[2], false)];
    for (bytes, skips) in steps {
        assert_eq!(decode(bytes), skips, "{bytes:?}");
    }
}

#[test]
fn an_error_is_never_answered() {
    assert_eq!(
        Item::Unsupported(FrameKind::new(FrameType::ERROR, 0x7f)).answer(),
        None
    );
    assert_eq!(
        invalid_frame_type(ErrorCode::STOP_FAILURE.into(), "role_not_allowed"),
        None
    );
    assert!(invalid_frame_type(Command::START.into(), "role_not_allowed").is_some());
}

#[test]
fn protocol_errors_are_found_in_the_header_and_earlier_frames_are_kept() {
    let max = LIMIT.to_be_bytes();
    let over = (LIMIT + 1).to_be_bytes();
    let cases: [(&[u8], ProtocolError); 6] = [
        (&[1, 1, 1, 1, 0, 0, 0, 0], ProtocolError::Version(1)),
        (
            &[0, 1, 0, 0, 0, 0, 0, 4],
            ProtocolError::HandshakeFrame(Command::CONNECT.into()),
        ),
        (
            &[0, 1, 1, 0, 0, 0, 0, 1],
            ProtocolError::HandshakeFrame(Status::CONNECTED.into()),
        ),
        (
            &[0x80, 1, 1, 1, 0, 0, 0, 0],
            ProtocolError::TraceNotAgreed(Status::READY.into()),
        ),
        (
            &[0, 1, 0, 3, over[0], over[1], over[2], over[3]],
            ProtocolError::PayloadTooLong {
                kind: Command::STATS.into(),
                announced: LIMIT + 1,
                limit: LIMIT,
            },
        ),
        (
            &[0, 1, 2, 3, 0xff, 0xff, 0xff, 0xff],
            ProtocolError::PayloadTooLong {
                kind: FrameKind::new(FrameType(2), 3),
                announced: u32::MAX,
                limit: LIMIT,
            },
        ),
    ];
    for (header, fault) in cases {
        let mut bytes = Frame::new(Status::FULL).encode().to_vec();
        bytes.extend(header);
        let (items, end) = feed(&bytes, &[], false);
        assert_eq!(end, Err(fault));
        assert_eq!(frames(&items), [Frame::new(Status::FULL)]);
    }
    let mut codec = Codec::new(LIMIT, false);
    let mut input = BytesMut::from(&[0, 1, 0, 3, max[0], max[1], max[2], max[3]][..]);
    assert_eq!(
        codec.decode(&mut input, &mut Vec::new()),
        Ok(()),
        "the limit itself is allowed"
    );
    assert_eq!(codec.wanted(), 8 + LIMIT as usize);
}

#[test]
fn a_malformed_trace_block_is_dropped_and_the_frame_is_kept() {
    let long = vec![1; Trace::MAX_LEN + 1];
    for block in [&b""[..], b"\x02", b"\x01\xffshort", &long] {
        let mut bytes = vec![0x80, 1, 1, 1, 0, 0, 0, 2];
        bytes.extend(u32::try_from(block.len()).unwrap().to_be_bytes());
        bytes.extend(block);
        bytes.extend(b"ok");
        bytes.extend(&Frame::new(Status::FULL).encode());
        for cut in [0, 3, 9, 12, 13, bytes.len() - 9] {
            let mut codec = Codec::new(LIMIT, true);
            let (mut input, mut items) = (BytesMut::new(), Vec::new());
            for piece in [&bytes[..cut], &bytes[cut..]] {
                input.extend_from_slice(piece);
                codec.decode(&mut input, &mut items).unwrap();
            }
            let expected = [Frame::with_payload(Status::READY, "ok"), Frame::new(Status::FULL)];
            assert_eq!(frames(&items), expected);
            assert_eq!(codec.bad_traces(), 1);
        }
    }
    // A block that is too long takes no memory, in whatever pieces it arrives.
    let head = [0x80, 1, 1, 1, 0, 0, 0, 2, 0, 0, 0x20, 0];
    let bytes = [&head[..], &[1; 0x2000], b"ok"].concat();
    let (mut codec, mut items) = (Codec::new(LIMIT, true), Vec::new());
    let mut input = BytesMut::new();
    for piece in bytes.chunks(7) {
        input.extend_from_slice(piece);
        codec.decode(&mut input, &mut items).unwrap();
        assert!(input.len() <= head.len() && codec.wanted() <= head.len());
    }
    assert_eq!(frames(&items), [Frame::with_payload(Status::READY, "ok")]);
    let (_, end) = feed(&[0x80, 1, 1, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff], &[], true);
    assert_eq!(end, Err(ProtocolError::TraceTooLong(u32::MAX)));
}

#[test]
fn every_type_has_a_name_and_is_read_back_by_it() {
    for (number, name) in [(0, "COMMAND"), (1, "STATUS"), (3, "EVENT"), (4, "ERROR")] {
        let frame_type = FrameType(number);
        assert!(frame_type.is_known());
        assert_eq!(
            (frame_type.name(), frame_type.to_string()),
            (Some(name), name.to_owned())
        );
        assert_eq!(name.to_lowercase().parse(), Ok(frame_type));
        let kind = FrameKind::new(frame_type, 0xee);
        assert_eq!(format!("{frame_type:?} {kind:?}"), format!("{name} {name}/0xee"));
    }
    let error = "STAT".parse::<FrameType>().unwrap_err();
    assert!(error.to_string().starts_with("\"STAT\" is not a frame type"));
    assert!(!FrameType(2).is_known());
    assert_eq!(FrameType(2).to_string(), "0x02");
}

#[test]
fn payloads_share_the_memory_they_arrived_in() {
    let (items, _) = feed(
        &wire(&[Frame::with_payload(Command::STATS, vec![9; 1000])]),
        &[],
        false,
    );
    let [Item::Run(run)] = &items[..] else {
        panic!("{items:?}")
    };
    let frame = run.frames().next().unwrap();
    let run_at = run.wire().as_ptr() as usize;
    assert_eq!(frame.payload_bytes().as_ptr() as usize, run_at + Header::LEN);
    assert_eq!(Frame::new(Status::FULL).payload_bytes(), &Bytes::new());
}

#[test]
fn a_small_run_does_not_keep_alive_the_bytes_around_it() {
    let long = Frame::with_payload(Status::READY, vec![1; 100_000]);
    let mut trace = Trace::new("t");
    trace.start = 1;
    let traced = Frame::with_payload(Command::STATS, "b").traced(trace);
    let mut input = BytesMut::from(&wire(&[long, Frame::with_payload(Command::STATS, "a"), traced])[..]);
    let mut items = Vec::new();
    Codec::new(LIMIT, true).decode(&mut input, &mut items).unwrap();
    let [Item::Run(_), Item::Run(small), Item::Traced(traced)] = &items[..] else {
        panic!("{items:?}")
    };
    assert!(small.wire().is_unique() && traced.payload_bytes().is_unique());
}

#[test]
fn a_frame_that_waits_keeps_no_long_run_alive() {
    let run = Bytes::from(vec![7; 100_000]);
    let small = apart(run.slice(..10), run.len());
    assert!(small.is_unique() && small == run[..10]);
    let most = apart(run.slice(..90_000), run.len());
    assert_eq!(most.as_ptr(), run.as_ptr(), "shared");
}
