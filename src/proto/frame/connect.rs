//! CONNECT and CONNECTED, the two frames of the handshake
//! (docs/protocol.md, "Handshake").

use bytes::Bytes;
use uuid::Uuid;

use super::fields::{Fields, Notes};
use super::{Command, Header, Status};
use ssntp_pki::Role;

/// The first frame of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The roles the client advertises.
    pub role: Role,
    /// The client's UUID.
    pub source: Uuid,
    /// The nil UUID in a well-formed frame, because the client does not know the server's UUID.
    pub destination: Uuid,
    /// True if the client asks for trace blocks.
    pub trace: bool,
}

impl Connect {
    /// The length of a CONNECT frame in bytes.
    pub const LEN: usize = Header::LEN + 32;

    /// A well-formed CONNECT.
    pub const fn new(role: Role, source: Uuid, trace: bool) -> Self {
        Self {
            role,
            source,
            destination: Uuid::nil(),
            trace,
        }
    }

    /// The 40 bytes on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut header = Header::new(Command::CONNECT.into(), self.role.bits());
        header.major = version_byte(self.trace);
        bytes[..8].copy_from_slice(&header.encode());
        bytes[8..24].copy_from_slice(self.source.as_bytes());
        bytes[24..].copy_from_slice(self.destination.as_bytes());
        bytes
    }

    /// Reads the 40 bytes; `None` if there are fewer. The handshake checks the values.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let header = Header::decode(bytes)?;
        Self::read(&header, &mut Fields::new(bytes.get(Header::LEN..)?))
    }

    /// Reads what follows the header.
    pub(super) fn read(header: &Header, fields: &mut Fields<'_, impl Notes>) -> Option<Self> {
        Some(Self {
            role: Role::from_bits(header.word),
            source: fields.uuid("source")?,
            destination: fields.uuid("destination")?,
            trace: header.traced(),
        })
    }
}

/// The server's answer to a CONNECT that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The roles the server advertises.
    pub role: Role,
    /// The server's UUID.
    pub server: Uuid,
    /// The client's UUID, repeated.
    pub client: Uuid,
    /// True if frames of this session may have trace blocks.
    pub trace: bool,
    /// The cluster configuration as YAML, possibly empty.
    pub payload: Bytes,
}

impl Connected {
    /// The length of a CONNECTED frame before its payload, in bytes.
    pub const LEN: usize = Header::LEN + 32 + 4;

    /// The frame's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut header = Header::new(Status::CONNECTED.into(), self.role.bits());
        header.major = version_byte(self.trace);
        let mut bytes = Vec::with_capacity(Self::LEN + self.payload.len());
        bytes.extend(header.encode());
        bytes.extend(self.server.as_bytes());
        bytes.extend(self.client.as_bytes());
        // The length fits: a configuration comes from a frame or a file, and both have limits far
        // below 4 GiB.
        bytes.extend(
            u32::try_from(self.payload.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes(),
        );
        bytes.extend(&self.payload);
        bytes
    }
}

impl Connected {
    /// Reads what is between the header and the payload: the UUIDs of the server and of the client, and the
    /// length of the payload.
    pub(crate) fn read(fields: &mut Fields<'_, impl Notes>) -> Option<(Uuid, Uuid, u32)> {
        let (server, client) = (fields.uuid("server")?, fields.uuid("client")?);
        Some((server, client, fields.u32("payload length")?))
    }
}

fn version_byte(trace: bool) -> u8 {
    if trace {
        Header::MAJOR | Header::TRACE_FLAG
    } else {
        Header::MAJOR
    }
}
