use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::proto::{Codec, Item};
use crate::server::sessions::Rank;
use ssntp_transport::PeerAddress;

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn row() -> impl Strategy<Value = Row> {
    let address = prop_oneof![
        Just(PeerAddress::Memory),
        Just(PeerAddress::Unix),
        any::<std::net::SocketAddrV4>().prop_map(|a| PeerAddress::Ip(a.into())),
        any::<(std::net::Ipv6Addr, u16)>().prop_map(|a| PeerAddress::Ip(a.into())),
    ];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    (uuid(), numbers, 0..=Role::ALL.bits(), any::<bool>(), address).prop_map(
        |(uuid, (number, token, stamp), role, tracing, address)| Row {
            uuid,
            number,
            rank: Rank { token, stamp },
            role: Role::from_bits(role),
            tracing,
            address,
        },
    )
}

fn bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn frame() -> impl Strategy<Value = LinkFrame> {
    let hello = (
        any::<u16>(),
        uuid(),
        any::<[u64; 2]>(),
        any::<u32>(),
        "[a-z:0-9]{0,30}",
    );
    let to = prop_oneof![
        proptest::collection::vec(uuid(), 0..5).prop_map(Receivers::Sessions),
        (0..=Role::ALL.bits()).prop_map(|role| Receivers::Role(Role::from_bits(role))),
        Just(Receivers::Application),
    ];
    let forward = (any::<[u64; 2]>(), uuid(), to, any::<bool>(), bytes());
    let end = prop_oneof![
        Just(EndCode::Closing),
        Just(EndCode::Duplicate),
        Just(EndCode::Refused),
        Just(EndCode::Fault),
        Just(EndCode::Own)
    ];
    prop_oneof![
        hello.prop_map(|(version, uuid, [incarnation, token], max_payload, advertised)| {
            LinkFrame::Hello {
                hello: Hello {
                    version,
                    uuid,
                    incarnation,
                    role: Role::SERVER,
                    token,
                    max_payload,
                    advertised,
                },
            }
        }),
        (
            any::<u64>(),
            any::<bool>(),
            proptest::collection::vec(row(), 0..4)
        )
            .prop_map(|(sequence, is_last, rows)| LinkFrame::Snapshot {
                sequence,
                is_last,
                rows
            }),
        (any::<u64>(), row()).prop_map(|(sequence, row)| LinkFrame::Connected { sequence, row }),
        (any::<[u64; 2]>(), uuid()).prop_map(|([sequence, number], uuid)| LinkFrame::Gone {
            sequence,
            number,
            uuid
        }),
        forward.prop_map(|([token, number], from, to, traced, frames)| {
            LinkFrame::Forward {
                forward: Forward {
                    token,
                    number,
                    from,
                    to,
                    traced,
                    frames,
                },
            }
        }),
        any::<u64>().prop_map(|number| LinkFrame::Hold { number }),
        any::<u64>().prop_map(|number| LinkFrame::Go { number }),
        (any::<u64>(), bytes()).prop_map(|(token, message)| LinkFrame::Tell { token, message }),
        (any::<u64>(), uuid(), bytes()).prop_map(|(id, uuid, certificates)| LinkFrame::Claim {
            id,
            uuid,
            certificates
        }),
        (any::<u64>(), any::<u8>()).prop_map(|(id, verdict)| LinkFrame::Claimed { id, verdict }),
        Just(LinkFrame::Alive {}),
        (end, uuid(), "[ -~]{0,256}").prop_map(|(code, server, reason)| LinkFrame::End {
            code,
            server,
            reason
        }),
    ]
}

/// Splits these bytes with the codec of a link and decodes each frame.
fn decode(bytes: &[u8]) -> Vec<Result<LinkFrame, LinkFault>> {
    let mut items = Vec::new();
    let mut codec = Codec::of_links(1 << 16);
    codec.decode(&mut BytesMut::from(bytes), &mut items).unwrap();
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Run(run) => found.extend(
                run.frames()
                    .map(|frame| LinkFrame::decode(frame.kind(), frame.payload_bytes().clone())),
            ),
            other => found.push(Err(LinkFault::Kind(other.kind()))),
        }
    }
    found
}

proptest! {
    #[test]
    fn every_frame_is_decoded_to_what_was_encoded(frames in proptest::collection::vec(frame(), 1..5)) {
        let bytes: Vec<u8> = frames.iter().flat_map(LinkFrame::encode).collect();
        let read: Result<Vec<_>, _> = decode(&bytes).into_iter().collect();
        prop_assert_eq!(read, Ok(frames));
    }

    #[test]
    fn a_frame_with_too_few_or_too_many_bytes_is_refused(frame in frame(), cut in 1usize..40) {
        let whole = frame.encode().slice(Header::LEN..);
        let kind = FrameKind::new(LINK, frame.operand());
        // These frames end with bytes or rows of any number.
        let is_open = matches!(
            frame,
            LinkFrame::Forward { .. } | LinkFrame::Tell { .. } | LinkFrame::Claim { .. } | LinkFrame::Snapshot { .. }
        );
        let is_later = matches!(&frame, LinkFrame::Hello { hello } if hello.version != VERSION);
        let is_open = is_open || is_later;
        if !is_open {
            let longer = Bytes::from([&whole[..], &vec![0; cut]].concat());
            prop_assert!(LinkFrame::decode(kind, longer).is_err());
            if !whole.is_empty() {
                let shorter = whole.slice(..whole.len() - cut.min(whole.len()));
                prop_assert_eq!(LinkFrame::decode(kind, shorter), Err(LinkFault::Short(frame.name())));
            }
        }
    }

    #[test]
    fn garbage_is_decoded_or_refused_and_never_panics(operand: u8, garbage in bytes()) {
        let kind = FrameKind::new(LINK, operand);
        let known = usize::from(operand) < LinkFrame::OPERANDS;
        match LinkFrame::decode(kind, garbage.clone()) {
            Ok(LinkFrame::Hello { hello }) if hello.version != VERSION => {}
            Ok(frame) => {
                // Roles keep undefined bits, so the frame is encoded to the same bytes.
                prop_assert_eq!(frame.encode().slice(Header::LEN..), garbage);
            }
            Err(fault) => prop_assert!(known || fault == LinkFault::Kind(kind)),
        }
    }
}

#[test]
fn a_fault_names_the_frame_and_the_field() {
    let decode = |operand, bytes: &'static [u8]| {
        let read = LinkFrame::decode(FrameKind::new(LINK, operand), Bytes::from_static(bytes));
        read.unwrap_err().to_string()
    };
    assert_eq!(decode(5, &[0; 7]), "HOLD is too short");
    assert_eq!(decode(10, &[0; 7]), "ALIVE has 7 bytes too many");
    assert_eq!(decode(11, &[9, 0, 0]), "END: the value of its code is not valid");
    assert_eq!(decode(200, &[]), "a frame 0x4c/0xc8 does not belong on a link");
}
