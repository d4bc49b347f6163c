//! One attempt at one server: connect, TLS, CONNECT, CONNECTED.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::config::ClientConfig;
use super::core::Standing;
use super::error::DialFault;
use super::event::ServerInfo;
use crate::proto::{ClientHandshake, Connect, Connected, Frame, Refusal};
use crate::wire::outgoing;
use ssntp_pki::CertificateInfo;
use ssntp_transport::tls::{Connector, Secured};
use ssntp_transport::{BufferPool, Cancel, Duplex, Halves, Outgoing, Target, deadline, refuse};

/// The time that a server has to read the reason if this client refuses it.
const PARTING: Duration = Duration::from_millis(500);

/// The parts that all attempts share. Only the server's address and the credentials differ.
#[derive(Debug)]
pub(super) struct Dialer {
    connect: Connect,
    config: Arc<ClientConfig>,
    pool: BufferPool,
    cancel: Cancel,
}

impl Dialer {
    pub(super) fn new(config: Arc<ClientConfig>, uuid: uuid::Uuid, cancel: Cancel) -> Self {
        Self {
            connect: Connect::new(config.role, uuid, config.tracing),
            config,
            pool: BufferPool::new(),
            cancel,
        }
    }

    /// Connects to a server, at each of its addresses in turn until one confirms a session. Blocks until
    /// CONNECTED has arrived or the attempt has failed; closing the client makes it fail at once.
    pub(super) fn dial(
        &self,
        target: &Target,
        connector: &Connector,
    ) -> Result<(Standing, Halves), DialFault> {
        let addresses = target.addresses(self.config.connect_timeout, &self.cancel);
        let addresses = addresses.map_err(|e| DialFault::Connect(Arc::new(e)))?;
        self.dial_each(target, addresses, connector)
    }

    /// Tries one address after the other, with a time for connecting to each.
    pub(super) fn dial_each(
        &self,
        target: &Target,
        addresses: Vec<(Target, Duration)>,
        connector: &Connector,
    ) -> Result<(Standing, Halves), DialFault> {
        let lost = |e| DialFault::Connect(Arc::new(e));
        let mut fault: Option<DialFault> = None;
        for (address, limit) in addresses {
            let stream = address.connect(&self.config.tcp, limit, &self.cancel);
            match stream
                .map_err(lost)
                .and_then(|stream| self.meet(target, stream, connector))
            {
                Ok(established) => return Ok(established),
                // Its servers belong together, and this one has decided.
                Err(refused @ DialFault::Refused(Refusal::PeerAborted)) => return Err(refused),
                // A fault at one address does not end the attempts at others.
                Err(later) => {
                    fault = Some(match fault {
                        Some(earlier) => earlier.and(later),
                        None => later,
                    })
                }
            }
            if self.cancel.is_cancelled() {
                break;
            }
        }
        Err(fault.unwrap_or_else(|| lost(io::ErrorKind::NotFound.into())))
    }

    /// Makes the handshakes of TLS and of the protocol.
    fn meet(
        &self,
        target: &Target,
        stream: Arc<dyn Duplex>,
        connector: &Connector,
    ) -> Result<(Standing, Halves), DialFault> {
        let config = &*self.config;
        let deadline = deadline(config.handshake_timeout);
        // Closing the client shuts the stream down, which ends every read and
        // write below.
        let _watch = self.cancel.watch(&stream);
        let address = stream.peer();
        let name = config.server_name.as_deref();
        let name = name.unwrap_or_else(|| target.server_name());
        let secured = connector
            .connect(stream, name, &self.pool, deadline)
            .map_err(DialFault::of_tls)?;
        let Secured {
            mut halves,
            peer,
            version,
            resumed,
            ..
        } = secured;
        // TLS has verified the chain of certificates. The protocol's handshake checks the roles and
        // the UUID in the certificate.
        let first = peer
            .first()
            .ok_or_else(|| DialFault::ServerCertificate("there is none".into()))?;
        let certificate = CertificateInfo::from_der(first)?;
        let handshake = ClientHandshake::new(
            self.connect,
            certificate.roles,
            certificate.uuid,
            config.max_payload,
        );
        let connected = match exchange(&mut halves, &handshake, deadline) {
            Ok(connected) => connected,
            Err(fault) => {
                if resumed {
                    // The server may have refused because of the resumed TLS session. So the
                    // next attempt makes a full handshake, in which TLS reports the reason.
                    connector.forget(name);
                }
                if let DialFault::Refused(refusal) = &fault {
                    refuse_session(&mut halves, Some(refusal));
                }
                return Err(fault);
            }
        };
        let server = Arc::new(ServerInfo {
            uuid: connected.server,
            role: connected.role,
            name: target.to_string(),
            address,
            certificate,
            tracing: connected.trace,
            tls: version,
            resumed,
        });
        let standing = Standing {
            server,
            configuration: connected.payload,
            chain: peer,
            name: name.to_owned(),
        };
        Ok((standing, halves))
    }
}

/// Sends CONNECT and waits for the server's answer.
fn exchange(
    halves: &mut Halves,
    handshake: &ClientHandshake,
    deadline: Instant,
) -> Result<Connected, DialFault> {
    let connect = Outgoing::whole(Bytes::copy_from_slice(&handshake.connect()), 1);
    // A server that has refused our certificate may have closed the connection already. Then
    // writing fails, but its reason can still be read.
    let written = halves.transmit.transmit(&[connect]);
    loop {
        match handshake.receive(halves.inbox.bytes_mut()) {
            Ok(Some(connected)) => return Ok(connected),
            Ok(None) => {}
            Err(refusal) => return Err(DialFault::Refused(refusal)),
        }
        let before = halves.inbox.bytes_mut().len();
        match halves.receive_until(deadline) {
            Ok(received) => {
                // Bytes that arrived with the end of the stream may still be the answer.
                if received.end && halves.inbox.bytes_mut().len() == before {
                    return Err(DialFault::of_io(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                return Err(DialFault::Refused(Refusal::Deadline));
            }
            Err(read) => {
                return Err(match (DialFault::of_io(read), written) {
                    (DialFault::Lost(_), Err(write)) => DialFault::of_io(write),
                    (fault, _) => fault,
                });
            }
        }
    }
}

/// Ends the TLS session and the stream. If the protocol has an error frame for the refusal, that
/// is sent first, and the server has [`PARTING`] to read it.
pub(super) fn refuse_session(halves: &mut Halves, refusal: Option<&Refusal>) {
    let code = refusal.and_then(ClientHandshake::answer);
    let answer = code.map(|code| outgoing(&Frame::new(code), false));
    refuse(halves, answer, PARTING);
}
