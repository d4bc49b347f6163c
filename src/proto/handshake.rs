//! The handshake of both sides without I/O: it reads bytes and accepts or refuses.
//!
//! ```text
//!  client                                   server
//!  ClientHandshake::connect() ── CONNECT ──▶ ServerHandshake::receive()
//!        │                                     │ Ok(None): more bytes
//!        │                                     │ Err(Refusal): answer(), close
//!        │                                     ▼ Ok(Some(Connect))
//!        │                                   application admits or refuses
//!        ▼                                     ▼
//!  ClientHandshake::receive() ◀─ CONNECTED ─ ServerHandshake::connected()
//!        │ Ok(Some(Connected))
//!        ▼
//!     session                                session
//! ```
//!
//! Each side removes only the bytes of the handshake from the front of the buffer. Frames that
//! follow in the same read stay there.

use bytes::{Buf, Bytes, BytesMut};
use uuid::Uuid;

use super::{Command, Connect, Connected, ErrorCode, Fields, Header, Refusal, Status};
use ssntp_pki::Role;

/// The server's side, which checks a CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct ServerHandshake {
    certified: Role,
    bound: Option<Uuid>,
}

impl ServerHandshake {
    /// A handshake with a client whose certificate holds the roles `certified` and is bound to the
    /// UUID `bound`. `None` if it is bound to no UUID.
    pub fn new(certified: Role, bound: Option<Uuid>) -> Self {
        Self { certified, bound }
    }

    /// Removes the CONNECT from the front of `input`. `None` while it is incomplete.
    ///
    /// # Errors
    /// The [`Refusal`] that applies. A first frame that is not CONNECT is refused as soon as its
    /// header has arrived.
    pub fn receive(&self, input: &mut BytesMut) -> Result<Option<Connect>, Refusal> {
        let Some(header) = Header::decode(input) else {
            return Ok(None);
        };
        if header.version() != Header::MAJOR {
            return Err(Refusal::Version(header.version()));
        }
        // Checked before the other 32 bytes arrive, so that another protocol is refused at once.
        if header.kind != Command::CONNECT {
            return Err(Refusal::NotConnect(header.kind));
        }
        let Some(connect) = Connect::decode(input) else {
            return Ok(None);
        };
        input.advance(Connect::LEN);
        if connect.source.is_nil() {
            return Err(Refusal::NilSource);
        }
        if !connect.destination.is_nil() {
            return Err(Refusal::Destination(connect.destination));
        }
        check_peer(connect.role, connect.source, self.certified, self.bound)?;
        Ok(Some(connect))
    }

    /// The answer to a CONNECT that the application admits.
    pub fn connected(
        connect: &Connect,
        server: Uuid,
        role: Role,
        trace: bool,
        configuration: Bytes,
    ) -> Connected {
        Connected {
            role,
            server,
            client: connect.source,
            trace: connect.trace && trace,
            payload: configuration,
        }
    }
}

/// The client's side, which writes a CONNECT and checks the answer.
#[derive(Clone, Copy, Debug)]
pub struct ClientHandshake {
    connect: Connect,
    certified: Role,
    bound: Option<Uuid>,
    max_payload: u32,
}

impl ClientHandshake {
    /// A handshake of a client that sends `connect` to a server whose certificate holds the roles
    /// `certified` and is bound to the UUID `bound`, if there is one. `max_payload` is the limit of
    /// the configuration, in bytes.
    pub fn new(connect: Connect, certified: Role, bound: Option<Uuid>, max_payload: u32) -> Self {
        Self {
            connect,
            certified,
            bound,
            max_payload,
        }
    }

    /// The bytes to send first.
    pub fn connect(&self) -> [u8; Connect::LEN] {
        self.connect.encode()
    }

    /// Removes the server's answer from the front of `input`. `None` while it is incomplete.
    ///
    /// # Errors
    /// The [`Refusal`] that applies; [`Self::answer`] is the error frame for the server.
    pub fn receive(&self, input: &mut BytesMut) -> Result<Option<Connected>, Refusal> {
        let Some(header) = Header::decode(input) else {
            return Ok(None);
        };
        if header.version() != Header::MAJOR {
            return Err(Refusal::Version(header.version()));
        }
        if header.kind == ErrorCode::CONNECTION_FAILURE {
            return Err(Refusal::PeerFailed);
        }
        if header.kind == ErrorCode::CONNECTION_ABORTED {
            return Err(Refusal::PeerAborted);
        }
        if header.kind != Status::CONNECTED {
            return Err(Refusal::NotConnected(header.kind));
        }
        let Some(fixed) = input.get(Header::LEN..Connected::LEN) else {
            return Ok(None);
        };
        let Some((server, client, announced)) = Connected::read(&mut Fields::new(fixed)) else {
            return Ok(None);
        };
        // A server may have further roles. One of these two makes it a server.
        let role = Role::from_bits(header.word);
        if !role.intersects(Role::SERVER | Role::SCHEDULER) {
            return Err(Refusal::NotAServer(role));
        }
        check_peer(role, server, self.certified, self.bound)?;
        if server.is_nil() {
            return Err(Refusal::WrongUuid(server));
        }
        if client != self.connect.source {
            return Err(Refusal::WrongUuid(client));
        }
        // Checked before the configuration is awaited, so that its length is bounded.
        if announced > self.max_payload {
            return Err(Refusal::ConfigurationTooLong {
                announced,
                limit: self.max_payload,
            });
        }
        let whole = Connected::LEN + announced as usize;
        if input.len() < whole {
            return Ok(None);
        }
        input.advance(Connected::LEN);
        let payload = input.split_to(announced as usize).freeze();
        // Both sides have to want traces, so the server's bit counts only if this client asked.
        let trace = header.traced() && self.connect.trace;
        Ok(Some(Connected {
            role,
            server,
            client,
            trace,
            payload,
        }))
    }

    /// The client's error frame for the server, which is always ConnectionFailure. `None` if the
    /// refusal is not answered.
    pub fn answer(refusal: &Refusal) -> Option<ErrorCode> {
        // ConnectionAborted would mean that no later attempt can succeed, but a server's fault can be
        // corrected.
        refusal.answer().map(|_| ErrorCode::CONNECTION_FAILURE)
    }
}

/// Checks that the certificate holds the advertised roles, and that it is not bound to another
/// UUID than the claimed one.
fn check_peer(advertised: Role, claimed: Uuid, certified: Role, bound: Option<Uuid>) -> Result<(), Refusal> {
    if !advertised.may_be_advertised_with(certified) {
        return Err(Refusal::Role {
            advertised,
            certified,
        });
    }
    match bound {
        Some(bound) if bound != claimed => Err(Refusal::BorrowedUuid { claimed, bound }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Uuid = Uuid::from_u128(0xc0ffee);
    const SERVER: Uuid = Uuid::from_u128(0x5e17e7);

    fn judge(connect: &Connect, certified: Role, bound: Option<Uuid>) -> Result<Option<Connect>, Refusal> {
        ServerHandshake::new(certified, bound).receive(&mut BytesMut::from(&connect.encode()[..]))
    }

    fn agent() -> Connect {
        Connect::new(Role::AGENT, CLIENT, false)
    }

    #[test]
    fn connect_has_the_expected_bytes() {
        let bytes = Connect::new(Role::AGENT | Role::NETAGENT, CLIENT, true).encode();
        assert_eq!(bytes[..8], [0x80, 1, 0, 0, 0, 0, 0, 0x14]);
        assert_eq!(&bytes[8..24], CLIENT.as_bytes());
        assert_eq!(bytes[24..], [0; 16]);
    }

    #[test]
    fn connected_has_the_expected_bytes() {
        let reply = ServerHandshake::connected(
            &agent(),
            SERVER,
            Role::SCHEDULER,
            true,
            Bytes::from_static(b"a: b\n"),
        );
        let bytes = reply.encode();
        assert_eq!(bytes[..8], [0, 1, 1, 0, 0, 0, 0, 8]);
        assert_eq!(&bytes[8..24], SERVER.as_bytes());
        assert_eq!(&bytes[24..40], CLIENT.as_bytes());
        assert_eq!(bytes[40..], *b"\0\0\0\x05a: b\n");
    }

    #[test]
    fn a_certified_role_is_admitted() {
        assert_eq!(
            judge(&agent(), Role::AGENT | Role::NETAGENT, Some(CLIENT)),
            Ok(Some(agent()))
        );
    }

    #[test]
    fn role_mismatch_superset_none_and_unknown_are_aborted() {
        for (bits, certified) in [(4, 2), (6, 2), (0, 4), (0x44, 0x3f), (4, 0)] {
            let connect = Connect::new(Role::from_bits(bits), CLIENT, false);
            let refusal = judge(&connect, Role::from_bits(certified), None).unwrap_err();
            assert_eq!(refusal.answer(), Some(ErrorCode::CONNECTION_ABORTED), "{refusal}");
            assert!(!refusal.may_retry());
        }
    }

    #[test]
    fn a_borrowed_uuid_is_aborted() {
        let refusal = judge(&agent(), Role::AGENT, Some(SERVER)).unwrap_err();
        assert_eq!(
            refusal,
            Refusal::BorrowedUuid {
                claimed: CLIENT,
                bound: SERVER
            }
        );
        assert_eq!(refusal.answer(), Some(ErrorCode::CONNECTION_ABORTED));
    }

    #[test]
    fn malformed_connect_fails_and_may_be_retried() {
        let nil = Connect::new(Role::AGENT, Uuid::nil(), false);
        let addressed = Connect {
            destination: SERVER,
            ..agent()
        };
        for connect in [nil, addressed] {
            let refusal = judge(&connect, Role::AGENT, None).unwrap_err();
            assert_eq!(refusal.answer(), Some(ErrorCode::CONNECTION_FAILURE), "{refusal}");
            assert!(refusal.may_retry());
        }
    }

    #[test]
    fn wrong_major_fails_and_another_minor_passes() {
        let mut bytes = agent().encode();
        bytes[1] = 99;
        let handshake = ServerHandshake::new(Role::AGENT, None);
        assert!(
            handshake
                .receive(&mut BytesMut::from(&bytes[..]))
                .unwrap()
                .is_some()
        );
        bytes[0] = 1;
        let refusal = handshake.receive(&mut BytesMut::from(&bytes[..8])).unwrap_err();
        assert_eq!(refusal.answer(), Some(ErrorCode::CONNECTION_FAILURE));
    }

    #[test]
    fn a_first_frame_that_is_not_connect_gets_no_answer() {
        let ready = Header::new(Status::READY.into(), 0).encode();
        let refusal = ServerHandshake::new(Role::ALL, None)
            .receive(&mut BytesMut::from(&ready[..]))
            .unwrap_err();
        assert_eq!(refusal, Refusal::NotConnect(Status::READY.into()));
        assert_eq!(refusal.answer(), None);
    }

    #[test]
    fn connect_may_arrive_in_any_pieces_and_later_bytes_are_kept() {
        let mut bytes = agent().encode().to_vec();
        bytes.extend([0, 1, 1, 2, 0, 0, 0, 0]);
        let handshake = ServerHandshake::new(Role::AGENT, None);
        let mut input = BytesMut::new();
        for (at, byte) in bytes.iter().enumerate().take(Connect::LEN) {
            assert_eq!(handshake.receive(&mut input), Ok(None), "after {at} bytes");
            input.extend([*byte]);
        }
        input.extend(&bytes[Connect::LEN..]);
        assert_eq!(handshake.receive(&mut input), Ok(Some(agent())));
        assert_eq!(input[..], bytes[Connect::LEN..]);
    }

    fn reply(role: Role, server: Uuid, client: Uuid) -> Vec<u8> {
        Connected {
            role,
            server,
            client,
            trace: true,
            payload: Bytes::from_static(b"configure: {}\n"),
        }
        .encode()
    }

    fn client(certified: Role) -> ClientHandshake {
        ClientHandshake::new(agent(), certified, None, 64)
    }

    #[test]
    fn the_client_sends_connect_first() {
        assert_eq!(client(Role::SERVER).connect(), agent().encode());
    }

    #[test]
    fn frames_are_traced_if_the_client_asks_and_the_server_agrees() {
        for (asks, agrees) in [(false, false), (false, true), (true, false), (true, true)] {
            let connect = Connect::new(Role::AGENT, CLIENT, asks);
            let asked = judge(&connect, Role::AGENT, None).unwrap().unwrap();
            let connected = ServerHandshake::connected(&asked, SERVER, Role::SERVER, agrees, Bytes::new());
            let mut answer = BytesMut::from(&connected.encode()[..]);
            let client = ClientHandshake::new(connect, Role::SERVER, None, 64);
            let received = client.receive(&mut answer).unwrap().unwrap();
            assert_eq!(received, connected);
            assert_eq!(received.trace, asks && agrees);
        }
    }

    #[test]
    fn a_configuration_may_be_as_long_as_the_limit_and_no_longer() {
        let mut bytes = reply(Role::SERVER, SERVER, CLIENT);
        bytes.extend([b'#'; 64]);
        for (length, fits) in [(64, true), (65, false)] {
            bytes[40..44].copy_from_slice(&u32::to_be_bytes(length));
            let received = client(Role::SERVER).receive(&mut BytesMut::from(&bytes[..]));
            let taken = received.ok().flatten().map(|connected| connected.payload.len());
            assert_eq!(taken, fits.then_some(64), "{length} bytes");
        }
    }

    #[test]
    fn the_client_accepts_connected_in_any_pieces() {
        let bytes = reply(Role::SERVER, SERVER, CLIENT);
        let mut input = BytesMut::new();
        for byte in &bytes {
            assert_eq!(client(Role::SERVER).receive(&mut input), Ok(None));
            input.extend([*byte]);
        }
        let connected = client(Role::SERVER).receive(&mut input).unwrap().unwrap();
        assert_eq!(connected.payload[..], *b"configure: {}\n");
        assert!(!connected.trace, "the client did not ask for tracing");
        assert!(input.is_empty());
    }

    #[test]
    fn the_client_fails_a_server_whose_role_is_wrong_and_does_not_retry() {
        for (role, certified) in [
            (Role::SERVER, Role::SCHEDULER),
            (Role::AGENT, Role::AGENT),
            (Role::NONE, Role::SERVER),
        ] {
            let mut input = BytesMut::from(&reply(role, SERVER, CLIENT)[..]);
            let refusal = client(certified).receive(&mut input).unwrap_err();
            assert_eq!(
                ClientHandshake::answer(&refusal),
                Some(ErrorCode::CONNECTION_FAILURE),
                "{refusal}"
            );
            assert!(!refusal.may_retry());
        }
    }

    #[test]
    fn the_client_fails_a_malformed_connected() {
        for (server, other) in [(SERVER, SERVER), (Uuid::nil(), CLIENT)] {
            let mut input = BytesMut::from(&reply(Role::SERVER, server, other)[..]);
            let refusal = client(Role::SERVER).receive(&mut input).unwrap_err();
            assert!(matches!(refusal, Refusal::WrongUuid(_)));
            assert!(refusal.may_retry());
        }
        let mut huge = reply(Role::SERVER, SERVER, CLIENT);
        huge[40..44].copy_from_slice(&u32::MAX.to_be_bytes());
        let refusal = client(Role::SERVER)
            .receive(&mut BytesMut::from(&huge[..]))
            .unwrap_err();
        assert_eq!(
            refusal,
            Refusal::ConfigurationTooLong {
                announced: u32::MAX,
                limit: 64
            }
        );
        let refusal = client(Role::SERVER)
            .receive(&mut BytesMut::from(
                &Header::new(Status::READY.into(), 0).encode()[..],
            ))
            .unwrap_err();
        assert_eq!(refusal, Refusal::NotConnected(Status::READY.into()));
    }

    #[test]
    fn the_client_distinguishes_the_refusals_of_a_server() {
        for (code, refusal, retry) in [
            (ErrorCode::CONNECTION_FAILURE, Refusal::PeerFailed, true),
            (ErrorCode::CONNECTION_ABORTED, Refusal::PeerAborted, false),
        ] {
            let bytes = Header::new(code.into(), 0).encode();
            assert_eq!(
                client(Role::SERVER).receive(&mut BytesMut::from(&bytes[..])),
                Err(refusal.clone())
            );
            assert_eq!(ClientHandshake::answer(&refusal), None);
            assert_eq!(refusal.may_retry(), retry);
        }
    }
}
