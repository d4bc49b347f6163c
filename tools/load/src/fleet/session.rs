//! One agent's session, on a thread that it shares with others.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;
use uuid::Uuid;

use super::now;
use ssntp::Role;
use ssntp::pki::CertificateInfo;
use ssntp::proto::{ClientHandshake, Codec, Connect, DEFAULT_MAX_PAYLOAD, Frame, Item, Refusal};
use ssntp_transport::tls::{Connector, Secured};
use ssntp_transport::{
    BufferPool, Cancel, Duplex, Halves, Outgoing, PeerAddress, TcpOptions, connect_unless,
};

/// The time limit for connecting, and for TLS and CONNECT after it.
const CONNECT: Duration = Duration::from_secs(20);
/// The time for which a write of an agent may block.
const WRITE: Duration = Duration::from_secs(20);

/// An established session.
pub(super) struct Session {
    stream: Arc<Polled>,
    halves: Halves,
    codec: Codec,
    pub(super) configuration: Bytes,
}

impl Session {
    /// The frames that have arrived, and true at the end of the session.
    pub(super) fn receive(&mut self) -> Result<(Vec<Frame>, bool), String> {
        let mut frames = Vec::new();
        loop {
            let mut items = Vec::new();
            let decoded = self.codec.decode(self.halves.inbox.bytes_mut(), &mut items);
            for item in items {
                match item {
                    Item::Run(run) => frames.extend(run.frames()),
                    Item::Traced(frame) => frames.push(frame),
                    // A real agent answers this frame as well.
                    Item::Unsupported(_) => {}
                }
            }
            decoded.map_err(|e| e.to_string())?;
            let before = self.halves.inbox.bytes_mut().len();
            match self.halves.receive.receive(&mut self.halves.inbox) {
                Ok(received) => {
                    if received.flush {
                        self.halves.transmit.flush().map_err(|e| e.to_string())?;
                    }
                    if received.end {
                        return Ok((frames, true));
                    }
                    if self.halves.inbox.bytes_mut().len() == before && !received.flush {
                        return Ok((frames, false));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok((frames, false)),
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    pub(super) fn send(&mut self, frames: &[Frame]) -> io::Result<()> {
        let batch: Vec<_> = frames.iter().map(outgoing).collect();
        let sent = self.halves.transmit.transmit(&batch);
        self.halves.transmit.idle();
        sent
    }

    /// The descriptor to poll, and the events.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.tcp.as_fd()
    }

    /// Announces the end of the session to the server.
    pub(super) fn part(mut self, limit: Duration) {
        if self.stream.set_write_timeout(Some(limit)).is_ok() {
            let _ = self.halves.transmit.finish();
        }
    }
}

/// The encoded frame. Agents send no traced frames.
fn outgoing(frame: &Frame) -> Outgoing {
    Outgoing::framed(frame.header().encode(), frame.payload_bytes().clone())
}

/// Connects agents.
pub(super) struct Dialer {
    pub(super) connector: Connector,
    /// The host and port of each server.
    pub(super) servers: Vec<(String, u16)>,
    pub(super) role: Role,
    pub(super) pool: BufferPool,
}

impl Dialer {
    /// Blocks until the session is established, or the attempt fails or is
    /// cancelled. Each attempt of an agent is at the next server.
    pub(super) fn dial(&self, uuid: Uuid, attempt: usize, cancel: &Cancel) -> Result<Session, String> {
        let mut servers = self.servers.iter().cycle();
        let (host, port) = servers
            .nth(attempt % self.servers.len().max(1))
            .ok_or("there is no address")?;
        let tcp = connect_unless(host, *port, &TcpOptions::default(), CONNECT, cancel);
        let tcp = tcp.map_err(|e| e.to_string())?;
        let stream = Arc::new(Polled {
            tcp,
            polled: AtomicBool::new(false),
        });
        let deadline = now() + CONNECT;
        let duplex: Arc<dyn Duplex> = stream.clone();
        let _watch = cancel.watch(&duplex);
        let secured = self
            .connector
            .connect(Arc::clone(&duplex), host, &self.pool, deadline);
        let Secured { mut halves, peer, .. } = secured.map_err(|e| e.to_string())?;
        let first = peer.first().ok_or("the server has no certificate")?;
        let server = CertificateInfo::from_der(first).map_err(|e| e.to_string())?;
        let connect = Connect::new(self.role, uuid, false);
        let handshake = ClientHandshake::new(connect, server.roles, server.uuid, DEFAULT_MAX_PAYLOAD);
        let said = Outgoing::whole(Bytes::copy_from_slice(&handshake.connect()), 1);
        halves.transmit.transmit(&[said]).map_err(|e| e.to_string())?;
        stream
            .set_read_timeout(Some(CONNECT))
            .map_err(|e| e.to_string())?;
        let connected = loop {
            match handshake.receive(halves.inbox.bytes_mut()) {
                Ok(Some(connected)) => break connected,
                Ok(None) if now() >= deadline => return Err(Refusal::Deadline.to_string()),
                Ok(None) => {}
                Err(refusal) => return Err(refusal.to_string()),
            }
            let received = halves
                .receive
                .receive(&mut halves.inbox)
                .map_err(|e| e.to_string())?;
            if received.flush {
                halves.transmit.flush().map_err(|e| e.to_string())?;
            }
            if received.end {
                return Err("closed by the server".into());
            }
        };
        stream.set_write_timeout(Some(WRITE)).map_err(|e| e.to_string())?;
        stream.polled.store(true, Ordering::Relaxed);
        Ok(Session {
            stream,
            halves,
            codec: Codec::new(DEFAULT_MAX_PAYLOAD, false),
            configuration: connected.payload,
        })
    }
}

/// A TCP stream that blocks until its session is established. Afterwards it never waits
/// for bytes, because the crew polls before it reads.
#[derive(Debug)]
struct Polled {
    tcp: Socket,
    polled: AtomicBool,
}

impl Duplex for Polled {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.polled.load(Ordering::Relaxed) {
            self.tcp.try_read(buffer)
        } else {
            Duplex::read(&self.tcp, buffer)
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp.try_read(buffer)
    }

    /// Returns `WouldBlock` if there is no input, before a buffer is allocated.
    fn wait_readable(&self) -> io::Result<()> {
        if !self.polled.load(Ordering::Relaxed) {
            return self.tcp.wait_readable();
        }
        let mut fds = [PollFd::new(&self.tcp, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::default()))? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Duplex::write(&self.tcp, bytes)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        Duplex::shutdown(&self.tcp, how)
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Duplex::set_read_timeout(&self.tcp, limit)
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Duplex::set_write_timeout(&self.tcp, limit)
    }

    fn peer(&self) -> PeerAddress {
        self.tcp.peer()
    }
}
