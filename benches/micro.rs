//! The cost of single steps on a frame's way: `cargo bench -p ssntp-benches --bench micro`.
//!
//! | group | measures |
//! |---|---|
//! | `codec` | encoding and decoding: small and large frames, of one kind and of several |
//! | `filter` | the look-up whether a role may send a kind |
//! | `routing` | 1,000 frames through a server over memory, beside more and more idle sessions |
//! | `yaml` | reading and writing START and STATS |
//!
//! The bench `placement` measures placement.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark may fail loudly"
)]

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};

fn main() {
    divan::main();
}

mod codec {
    use super::*;
    use bytes::BytesMut;
    use ssntp::proto::{Codec, Command, DEFAULT_MAX_PAYLOAD, Frame, Status};

    const LENGTHS: [usize; 4] = [0, 256, 4096, 65_536];
    /// About the size of one read.
    const READ: usize = 64 * 1024;

    #[divan::bench(args = LENGTHS)]
    fn encode(bencher: Bencher<'_, '_>, length: usize) {
        let frame = Frame::with_payload(Command::STATS, vec![b'x'; length]);
        bencher
            .counter(BytesCount::new(frame.encoded_len()))
            .bench(|| divan::black_box(&frame).encode());
    }

    /// Frames of one kind, which are one run.
    #[divan::bench(args = LENGTHS)]
    fn decode_a_read_of_one_kind(bencher: Bencher<'_, '_>, length: usize) {
        let frame = Frame::with_payload(Command::STATS, vec![b'x'; length]).encode();
        let count = (READ / frame.len()).max(1);
        decode(bencher, &frame.repeat(count), count);
    }

    /// Two kinds in turn, so that each frame is a run of its own.
    #[divan::bench(args = LENGTHS)]
    fn decode_a_read_of_two_kinds(bencher: Bencher<'_, '_>, length: usize) {
        let payload = vec![b'x'; length];
        let mut pair = Frame::with_payload(Command::STATS, payload.clone())
            .encode()
            .to_vec();
        pair.extend(Frame::with_payload(Status::READY, payload).encode());
        let pairs = (READ / pair.len()).max(1);
        decode(bencher, &pair.repeat(pairs), 2 * pairs);
    }

    fn decode(bencher: Bencher<'_, '_>, wire: &[u8], frames: usize) {
        let mut codec = Codec::new(DEFAULT_MAX_PAYLOAD, false);
        let mut items = Vec::new();
        bencher
            .counter(ItemsCount::new(frames))
            .counter(BytesCount::new(wire.len()))
            .with_inputs(|| BytesMut::from(wire))
            .bench_local_values(|mut input| {
                items.clear();
                codec.decode(&mut input, &mut items).unwrap();
                items.len()
            });
    }

    /// The additional cost of a handler that takes single frames.
    #[divan::bench(args = LENGTHS)]
    fn frames_of_a_run(bencher: Bencher<'_, '_>, length: usize) {
        let frame = Frame::with_payload(Command::STATS, vec![b'x'; length]).encode();
        let count = (READ / frame.len()).max(1);
        let mut input = BytesMut::from(&frame.repeat(count)[..]);
        let mut items = Vec::new();
        Codec::new(DEFAULT_MAX_PAYLOAD, false)
            .decode(&mut input, &mut items)
            .unwrap();
        let Some(ssntp::proto::Item::Run(run)) = items.first() else {
            return;
        };
        bencher
            .counter(ItemsCount::new(count))
            .bench_local(|| run.frames().map(|f| f.payload_bytes().len()).sum::<usize>());
    }
}

mod filter {
    use super::*;
    use ssntp::Role;
    use ssntp::proto::FrameKind;
    use ssntp::server::Filter;

    #[divan::bench]
    fn every_kind_for_every_role(bencher: Bencher<'_, '_>) {
        let filter = Filter::spec();
        let kinds: Vec<_> = FrameKind::all().collect();
        let roles = [Role::CONTROLLER, Role::AGENT, Role::NETAGENT, Role::CNCIAGENT];
        bencher
            .counter(ItemsCount::new(kinds.len() * roles.len()))
            .bench_local(|| {
                let allowed = kinds
                    .iter()
                    .flat_map(|kind| roles.map(|role| filter.allows(role, divan::black_box(*kind))));
                allowed.filter(|allowed| *allowed).count()
            });
    }
}

mod routing {
    use super::*;
    use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
    use ssntp::proto::{Command, Frame};
    use ssntp::server::{Rules, Server, ServerConfig};
    use ssntp::transport::memory::MemoryListener;
    use ssntp::{Client, ClientConfig, Role};

    const FRAMES: usize = 1_000;

    /// Frames from an agent to the only controller, beside this number of idle agents.
    #[divan::bench(args = [0, 10, 100, 300], sample_count = 30, sample_size = 1)]
    fn one_agent_to_the_controller(bencher: Bencher<'_, '_>, idle: usize) {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let identity = |role| {
            authority
                .issue(&CertificateRequest::new(role))
                .unwrap()
                .identity()
        };
        let place = MemoryListener::new();
        let config = ServerConfig::new(identity(Role::SERVER), authority.trust())
            .listen_in_memory(&place)
            .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER));
        let server = Server::start(config, ()).unwrap();
        let (agent, controller) = (identity(Role::AGENT), identity(Role::CONTROLLER));
        let connect = |identity: &ssntp::pki::Identity| {
            let config = ClientConfig::new(identity.clone(), authority.trust());
            Client::connect(config.connect_in_memory(&place)).unwrap()
        };
        let receiver = connect(&controller);
        let sender = connect(&agent);
        let _idle: Vec<_> = (0..idle).map(|_| connect(&agent)).collect();
        let frame = Frame::with_payload(Command::STATS, vec![b'x'; 256]);
        bencher.counter(ItemsCount::new(FRAMES)).bench_local(|| {
            for _ in 0..FRAMES {
                sender.send(frame.clone()).unwrap();
            }
            for _ in 0..FRAMES {
                receiver.recv_frame().unwrap();
            }
        });
        server.stop();
    }
}

mod yaml {
    use super::*;
    use ssntp::payload::Payload;
    use ssntp_payload::{Start, Stats, StatsSummary};

    const START: &[u8] = include_bytes!("../crates/payload/tests/fixtures/payloads/START.yaml");
    const STATS: &[u8] = include_bytes!("../crates/payload/tests/fixtures/payloads/STATS.yaml");

    #[divan::bench]
    fn read_start(bencher: Bencher<'_, '_>) {
        bencher
            .counter(BytesCount::new(START.len()))
            .bench(|| Start::decode(divan::black_box(START)).unwrap());
    }

    #[divan::bench]
    fn write_start(bencher: Bencher<'_, '_>) {
        let start = Start::decode(START).unwrap();
        bencher.bench(|| divan::black_box(&start).encode());
    }

    /// STATS of a node with this number of instances.
    #[divan::bench(args = [1, 10, 100, 4000])]
    fn read_stats(bencher: Bencher<'_, '_>, instances: usize) {
        let document = stats(instances).encode();
        bencher
            .counter(BytesCount::new(document.len()))
            .bench(|| Stats::decode(divan::black_box(&document)).unwrap());
    }

    /// The summary that a scheduler reads of STATS.
    #[divan::bench(args = [1, 10, 100, 4000])]
    fn read_stats_summary(bencher: Bencher<'_, '_>, instances: usize) {
        let document = stats(instances).encode();
        bencher
            .counter(BytesCount::new(document.len()))
            .bench(|| StatsSummary::read(divan::black_box(&document)).unwrap());
    }

    #[divan::bench(args = [1, 10, 100])]
    fn write_stats(bencher: Bencher<'_, '_>, instances: usize) {
        let stats = stats(instances);
        bencher.bench(|| divan::black_box(&stats).encode());
    }

    fn stats(instances: usize) -> Stats {
        let mut stats = Stats::decode(STATS).unwrap();
        let one = stats.instances.first().cloned().unwrap_or_default();
        stats.instances = vec![one; instances];
        stats
    }
}
