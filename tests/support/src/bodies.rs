//! The bodies of the fuzz targets in `fuzz/`, which a test also runs on their seeds. They assert the
//! properties that hold for any bytes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "each fuzz target uses one, and fails by panicking"
)]

use bytes::{Bytes, BytesMut};
use ssntp::Role;
use ssntp::payload::*;
use ssntp::pki::{
    CertificateInfo, Identity, JoinRefusal, JoinRequest, JoinToken, RevocationLists, SigningRequest,
    StoredToken, Trust,
};
use ssntp::proto::{ClientHandshake, Codec, Connect, Connected, Frame, Item, Run, ServerHandshake, Trace};
use ssntp::transport::Address;
use ssntp_opflex::message::{self, Incoming};
use ssntp_opflex::rpc::{self, Limits};
use ssntp_payload::*;
use uuid::Uuid;

/// The limit of payloads in these tests.
const MAX_PAYLOAD: u32 = 64 * 1024;

type Body = fn(&[u8]);

/// All bodies with the names of their fuzz targets.
pub const BODIES: [(&str, Body); 14] = [
    ("codec", codec),
    ("server_handshake", server_handshake),
    ("client_handshake", client_handshake),
    ("trace", trace),
    ("stream", stream),
    ("payload_yaml", payload_yaml),
    ("start_documents", start_documents),
    ("stats", stats),
    ("certificate", certificate),
    ("pem", pem),
    ("address", address),
    ("opflex", opflex),
    ("link", crate::links::link),
    ("join", join),
];

/// Decoding bytes in pieces gives the same frames as decoding them at once. The first byte chooses
/// whether tracing is on, and the second the length of the pieces.
pub fn codec(data: &[u8]) {
    let [options, piece, stream @ ..] = data else {
        return;
    };
    let tracing = options & 1 == 1;
    let whole = decode(tracing, stream, stream.len());
    let pieces = decode(tracing, stream, usize::from(*piece));
    assert_eq!(whole, pieces);
    for frame in &whole.0 {
        let Ok(frame) = frame else { continue };
        let mut encoded = BytesMut::from(&frame.encode()[..]);
        let mut items = Vec::new();
        let mut again = Codec::new(MAX_PAYLOAD, true);
        again
            .decode(&mut encoded, &mut items)
            .expect("the value was decoded");
        assert_eq!(frames(items), [Ok(frame.clone())]);
        assert!(encoded.is_empty());
        assert_eq!(Run::of(frame).frames().count(), 1);
    }
}

/// A frame, or the kind of an unsupported one.
type Found = Result<Frame, ssntp::proto::FrameKind>;

fn frames(items: Vec<Item>) -> Vec<Found> {
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Run(run) => {
                let before = found.len();
                found.extend(run.frames().map(Ok));
                assert_eq!(found.len() - before, run.len() as usize);
            }
            Item::Traced(frame) => found.push(Ok(frame)),
            Item::Unsupported(kind) => {
                let _ = item.answer();
                found.push(Err(kind));
            }
        }
    }
    found
}

fn decode(tracing: bool, stream: &[u8], piece: usize) -> (Vec<Found>, Option<String>, u64) {
    let mut codec = Codec::new(MAX_PAYLOAD, tracing);
    let mut input = BytesMut::new();
    let mut items = Vec::new();
    let mut fault = None;
    for piece in stream.chunks(piece.max(1)) {
        input.extend_from_slice(piece);
        if let Err(error) = codec.decode(&mut input, &mut items) {
            fault = Some(error.to_string());
            break;
        }
        let wanted = codec.wanted();
        assert!(wanted == 0 || wanted > input.len(), "complete frames do not wait");
    }
    (frames(items), fault, codec.bad_traces())
}

/// Feeds one side of the handshake byte by byte and at once. Both give the same result, and the bytes
/// after the handshake stay.
fn shake<T: PartialEq + std::fmt::Debug>(
    stream: &[u8],
    receive: impl Fn(&mut BytesMut) -> Result<Option<T>, ssntp::proto::Refusal>,
) -> Option<(T, BytesMut)> {
    let mut whole = BytesMut::from(stream);
    let verdict = receive(&mut whole);
    if let Err(refusal) = &verdict {
        let _ = (refusal.to_string(), refusal.answer(), refusal.may_retry());
    }
    let mut input = BytesMut::new();
    let mut pieces = Ok(None);
    for byte in stream {
        input.extend_from_slice(&[*byte]);
        pieces = receive(&mut input);
        if !matches!(pieces, Ok(None)) {
            break;
        }
    }
    assert_eq!(verdict, pieces);
    verdict.ok().flatten().map(|accepted| (accepted, whole))
}

/// A payload of streams that is read is written back equal, and belongs to the stream whose UUID it
/// begins with.
pub fn stream(data: &[u8]) {
    let payload = Bytes::copy_from_slice(data);
    let id = stream_of(data);
    if let Some(open) = OpenStream::decode(data) {
        assert_eq!(Some(open.stream), id);
        let again = open.frame();
        assert_eq!(OpenStream::decode(again.payload_bytes()), Some(open));
        assert_eq!(again.payload_bytes().len(), 44);
    }
    if let Some(credit) = StreamCredit::decode(data) {
        assert_eq!(Some(credit.stream), id);
        assert_eq!(StreamCredit::decode(credit.frame().payload_bytes()), Some(credit));
    }
    if let Some(piece) = StreamData::decode(&payload) {
        assert_eq!(Some(piece.stream), id);
        assert!((1..=MAX_STREAM_CHUNK).contains(&piece.data.len()));
        assert_eq!(piece.cost() as usize, piece.frame().encoded_len());
        assert_eq!(StreamData::room(piece.cost()), piece.data.len());
        assert_eq!(StreamData::decode(piece.frame().payload_bytes()), Some(piece));
    }
    if let Some(ended) = StreamEnded::decode(data) {
        assert_eq!(Some(ended.stream), id);
        let again =
            StreamEnded::decode(ended.frame().payload_bytes()).expect("the payload is within its limit");
        assert!(again.text.len() <= 512 && ended.text.starts_with(&again.text));
        let _ = ended.reason.to_string();
    }
}

/// The first byte is the roles of the client's certificate.
pub fn server_handshake(data: &[u8]) {
    let [roles, stream @ ..] = data else { return };
    for bound in [None, Some(Uuid::from_u128(1))] {
        let server = ServerHandshake::new(Role::from_bits(u32::from(*roles)), bound);
        if let Some((connect, rest)) = shake(stream, |input| server.receive(input)) {
            let connect: Connect = connect;
            assert!(stream.ends_with(&rest));
            assert!(!connect.source.is_nil() && bound.is_none_or(|bound| bound == connect.source));
            let answer =
                ServerHandshake::connected(&connect, Uuid::from_u128(2), Role::SERVER, true, Bytes::new());
            assert_eq!(answer.trace, connect.trace);
        }
    }
}

/// The first byte is the roles of the server's certificate.
pub fn client_handshake(data: &[u8]) {
    let [roles, stream @ ..] = data else { return };
    let connect = Connect::new(Role::AGENT, Uuid::from_u128(1), roles & 0x80 != 0);
    let certified = Role::from_bits(u32::from(*roles & 0x7f));
    for bound in [None, Some(Uuid::from_u128(2))] {
        let client = ClientHandshake::new(connect, certified, bound, MAX_PAYLOAD);
        if let Some((connected, rest)) = shake(stream, |input| client.receive(input)) {
            let connected: Connected = connected;
            assert!(stream.ends_with(&rest));
            assert_eq!(connected.client, Uuid::from_u128(1));
            assert!(connect.trace || !connected.trace);
            assert!(certified.bits() & connected.role.bits() == connected.role.bits());
        }
    }
}

/// A trace block that is read is written back equal.
pub fn trace(data: &[u8]) {
    match Trace::decode(data) {
        Ok(mut trace) => {
            let mut encoded = Vec::new();
            trace.encode(&mut encoded);
            assert_eq!(encoded, data);
            assert_eq!(trace.encoded_len(), data.len());
            let _ = (trace.label(), trace.duration(), trace.hops().count());
            trace.stamp_received(Uuid::from_u128(1), Role::AGENT, u64::MAX);
            trace.stamp_sent(Uuid::from_u128(1), Role::AGENT, u64::MAX);
            let mut stamped = Vec::new();
            trace.encode(&mut stamped);
            assert_eq!(Trace::decode(&stamped), Ok(trace));
        }
        Err(bad) => assert!(!bad.to_string().is_empty()),
    }
}

/// A value that is read is written so that it is read back equal. An error has a text.
fn read<P: Payload + PartialEq + std::fmt::Debug>(data: &[u8]) {
    match P::decode(data) {
        Ok(payload) => {
            let encoded = payload.encode();
            // The written form may be longer, and then exceed the limit.
            if encoded.len() <= MAX_READ_LEN {
                assert_eq!(P::decode(&encoded).as_ref(), Ok(&payload), "{encoded:?}");
            }
        }
        Err(error) => {
            let _ = (error.path(), error.line(), error.is_malformed());
            assert!(!error.to_string().is_empty());
        }
    }
}

/// The summary of STATS equals that of a full read.
pub fn stats(data: &[u8]) {
    read::<Stats>(data);
    let (Ok(skimmed), Ok(whole)) = (StatsSummary::read(data), Stats::decode(data)) else {
        return;
    };
    let named = |one: &InstanceStats| Some((one.instance_uuid.uuid()?, one.state.clone()));
    let instances: Vec<_> = whole.instances.iter().filter_map(named).collect();
    assert_eq!(skimmed.instances, instances);
    assert_eq!(
        (skimmed.node_uuid, skimmed.interval),
        (whole.node_uuid, whole.interval)
    );
}

/// The first byte chooses the schema.
pub fn payload_yaml(data: &[u8]) {
    const READERS: [Body; SCHEMAS] = [
        read::<AssignPublicIp>,
        read::<AssignPublicIpFailure>,
        read::<AttachVolume>,
        read::<AttachVolumeFailure>,
        read::<ConcentratorInstanceAdded>,
        read::<Configure>,
        read::<Delete>,
        read::<DeleteFailure>,
        read::<DetachVolume>,
        read::<DetachVolumeFailure>,
        read::<Evacuate>,
        read::<InstanceDeleted>,
        read::<InstanceStopped>,
        read::<InvalidConfiguration>,
        read::<InvalidFrameType>,
        read::<Maintenance>,
        read::<NodeConnected>,
        read::<NodeDisconnected>,
        read::<PublicIpAssigned>,
        read::<PublicIpUnassigned>,
        read::<Ready>,
        read::<RefreshCnci>,
        read::<ReleasePublicIp>,
        read::<Restart>,
        read::<RestartFailure>,
        read::<Restore>,
        read::<Start>,
        read::<StartFailure>,
        stats,
        read::<Stop>,
        read::<StopFailure>,
        read::<TenantAdded>,
        read::<TenantRemoved>,
        read::<TraceReport>,
        read::<UnassignPublicIpFailure>,
        read::<ListSessions>,
        read::<Sessions>,
        read::<Kick>,
        read::<Kicked>,
        read::<ListBans>,
        read::<Bans>,
        read::<Unban>,
        read::<Unbanned>,
        read::<ListServers>,
        read::<DrainServer>,
        read::<Servers>,
        read::<Tenant>,
        read::<Tenants>,
        read::<Draining>,
        read::<SnapshotComplete>,
        read::<Watch>,
        read::<Watched>,
        read::<NewLeader>,
    ];
    let [schema, document @ ..] = data else { return };
    READERS[usize::from(*schema) % SCHEMAS](document);
}

const SCHEMAS: usize = 53;

const COMMAND: &[u8] = b"start: {instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001}\n";

/// A START with its further documents.
pub fn start_documents(data: &[u8]) {
    read::<StartPayload>(data);
    if let Ok(document) = RawDocument::new(Bytes::copy_from_slice(data)) {
        let start = StartPayload {
            meta_data: Some(document),
            ..StartPayload::decode(COMMAND).expect("the document is complete")
        };
        let again = StartPayload::decode(&start.encode()).expect("the value was encoded");
        assert_eq!(again.start, start.start);
    }
}

/// A certificate in DER, and files in PEM.
pub fn certificate(data: &[u8]) {
    let der = data.to_vec().into();
    match CertificateInfo::from_der(&der) {
        Ok(info) => {
            let _ = (
                info.not_before_text(),
                info.not_after_text(),
                info.is_for(&info.hosts_text()),
                info.dns_names().count(),
            );
            let _ = (info.addresses().count(), info.check_validity(info.not_before));
            assert_eq!(info.der, der);
        }
        Err(fault) => assert!(!fault.to_string().contains('\n')),
    }
    for error in [
        Identity::from_pem(data, "fuzz").map(drop),
        Trust::from_pem(data, "fuzz").map(drop),
    ] {
        if let Err(error) = error {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// A PEM file of an identity, of a trust or of revocation lists, as the first byte chooses. A file that
/// is refused is refused in one line, which names it and shows nothing of a key.
pub fn pem(data: &[u8]) {
    let [what, file @ ..] = data else { return };
    let read = match what % 3 {
        0 => Identity::from_pem(file, "fuzz").map(drop),
        1 => Trust::from_pem(file, "fuzz").map(drop),
        _ => RevocationLists::from_pem(file, "fuzz").map(drop),
    };
    if let Err(error) = read {
        let error = error.to_string();
        assert!(error.contains("fuzz") && !error.contains('\n'), "{error}");
        assert!(error.len() < 1000, "{error}");
    }
}

/// An address that is read is written so that it is read back equal.
pub fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<Address>() {
        Ok(address) => {
            let _ = address.server_name();
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let _ = (
        text.parse::<Role>().is_ok(),
        text.parse::<ssntp::pki::Host>().is_ok(),
    );
}

/// Decoding OpFlex messages in pieces gives the same messages as decoding them at once. The first byte
/// has no meaning, and the second is the length of the pieces.
pub fn opflex(data: &[u8]) {
    let [_, piece, stream @ ..] = data else {
        return;
    };
    let limits = Limits {
        message: 64 * 1024,
        memory: 16 << 20,
        nesting: 16,
    };
    let read = |piece: usize| {
        let mut decoder = message::Decoder::new(limits);
        let mut input = BytesMut::new();
        let mut messages: Vec<Incoming> = Vec::new();
        for piece in stream.chunks(piece.max(1)) {
            input.extend_from_slice(piece);
            if let Err(error) = decoder.decode(&mut input, &mut messages) {
                assert!(!error.to_string().is_empty());
                return (messages, Some(error));
            }
        }
        (messages, None)
    };
    assert_eq!(read(stream.len()), read(usize::from(*piece)));
    let mut raw = rpc::Deframer::new(limits);
    let _ = raw.decode(&mut BytesMut::from(stream), &mut Vec::new());
}

/// A request to join, and the URL of a token. No bytes guess a secret.
pub fn join(data: &[u8]) {
    if let Ok(request) = ssntp::simulation::read_join::<JoinRequest>(data) {
        let _ = SigningRequest::from_pem(&request.request);
        let token = StoredToken {
            id: request.id.clone(),
            secret_sha256: "unknown".to_owned(),
            roles: Role::AGENT,
            uuid: None,
            uses_left: 1,
            ends: u64::MAX,
            made_by: String::new(),
        };
        let decided = token.decide(&request, false, std::time::UNIX_EPOCH);
        assert_eq!(decided, Err(JoinRefusal::Proof));
    }
    match String::from_utf8_lossy(data).parse::<JoinToken>() {
        Ok(token) => assert_eq!(token.to_string().parse(), Ok(token)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
