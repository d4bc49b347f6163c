//! SSNTP: the server forwards STATS of agents to controllers, and READY to schedulers.

use ssntp::Role;
use ssntp::proto::{
    ClientHandshake, Command, Connect, DEFAULT_MAX_PAYLOAD, Frame, FrameKind, FrameType, Header, Status,
};
use ssntp_transport::{Halves, Outgoing};
use uuid::Uuid;

use super::{Side, Subject, Wire, read_until, say};
use crate::failure::Failure;

#[derive(Debug)]
pub(crate) struct Ssntp;

impl Wire for Ssntp {
    fn greet(&self, halves: &mut Halves, side: Side) -> Result<(), Failure> {
        let role = match side {
            Side::Sender => Role::AGENT,
            Side::Receiver => Role::CONTROLLER,
            Side::Bystander => Role::SCHEDULER,
        };
        let connect = Connect::new(role, Uuid::new_v4(), false);
        // TLS has already verified the server's certificate, so every role is accepted here.
        let handshake = ClientHandshake::new(connect, Role::ALL, None, DEFAULT_MAX_PAYLOAD);
        say(halves, &handshake.connect())?;
        read_until(halves, |bytes| Ok(handshake.receive(bytes)?.is_some()))
    }

    fn publish(&self, payload: &[u8], subject: Subject, to: &mut Vec<u8>) -> usize {
        let kind: FrameKind = match subject {
            Subject::Load => Command::STATS.into(),
            Subject::Bystander => Status::READY.into(),
        };
        to.extend_from_slice(&Frame::with_payload(kind, payload.to_vec()).encode());
        Header::LEN
    }

    fn deliveries(&self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Option<usize> {
        let mut at = 0;
        while let Some(header) = bytes.get(at..).and_then(Header::decode) {
            let start = at + Header::LEN;
            let end = start + header.word as usize;
            let Some(payload) = bytes.get(start..end) else {
                break;
            };
            if header.kind.frame_type == FrameType::ERROR {
                return None;
            }
            each(payload);
            at = end;
        }
        Some(at)
    }
}

/// A frame that `child::Server` forwards to every agent.
pub(crate) fn broadcast(payload: usize) -> Outgoing {
    Outgoing::whole(
        Frame::with_payload(Command::EVACUATE, vec![b'x'; payload]).encode(),
        1,
    )
}
