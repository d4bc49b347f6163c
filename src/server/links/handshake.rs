//! The handshake of a link: HELLO in both directions, and the check that the two servers fit.
//!
//! ```text
//!  dialler: TLS ─▶ HELLO ─────────▶ acceptor: check ─▶ Admit
//!  Admit ◀─ check ◀───────────────── HELLO, or END ◀─────┘
//! ```

use std::io;

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::DUPLICATE;
use super::facts::LinkRequest;
use super::frames::{EndCode, Hello, LinkFrame, VERSION};
use crate::proto::{FrameKind, Header, LINK, Refusal};
use crate::server::own::OwnServer;
use ssntp_pki::CertificateInfo;
use ssntp_pki::Role;
use ssntp_transport::Outgoing;

/// The longest first frame, in bytes. A HELLO of this version has less than 400.
const MAX_FIRST: usize = 1024;

/// The reason for which there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkFailure {
    /// The peer is this server itself.
    #[error("it is the same server")]
    Own,
    /// The two servers are linked already.
    #[error("{DUPLICATE}")]
    Duplicate(Uuid),
    /// The connection is lost, or was never made.
    #[error("{0}")]
    Lost(io::Error),
    /// The two servers do not fit, or one of them stops.
    #[error("{0}")]
    Refused(String),
}

impl LinkFailure {
    /// The END for the peer; `None` if the connection is lost.
    pub(crate) fn answer(&self, server: Uuid) -> Option<Outgoing> {
        let code = match self {
            Self::Own => EndCode::Own,
            Self::Duplicate(_) => EndCode::Duplicate,
            Self::Refused(_) => EndCode::Refused,
            Self::Lost(_) => return None,
        };
        let reason = self.to_string();
        let end = LinkFrame::End { code, server, reason };
        Some(Outgoing::whole(end.encode(), 1))
    }
}

/// The state of an entry whose peer is a server.
#[derive(Debug)]
pub(crate) struct LinkHandshake {
    /// The HELLO of this server, if it has dialled.
    pub(crate) hello: Option<Bytes>,
    /// The UUID in the peer's HELLO, once it has arrived.
    pub(crate) peer: Option<Uuid>,
}

impl LinkHandshake {
    pub(crate) fn new(hello: Option<Bytes>) -> Self {
        Self { hello, peer: None }
    }

    /// Reads the first frame, HELLO. `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`LinkFailure`] if the peer is not a server, has sent END, or does not fit.
    pub(crate) fn receive(
        &mut self,
        own: &OwnServer,
        certificate: &CertificateInfo,
        input: &mut BytesMut,
    ) -> Result<Option<LinkRequest>, LinkFailure> {
        let roles = certificate.roles;
        if !roles.intersects(Role::SERVER | Role::SCHEDULER) {
            let why = format!("its certificate has the roles {roles}, and a link needs server or scheduler");
            return Err(LinkFailure::Refused(why));
        }
        let Some(header) = Header::decode(input) else {
            return Ok(None);
        };
        let (kind, length) = (header.kind, header.word as usize);
        // The length is checked before the whole frame is awaited, so that a stranger cannot make this
        // server buffer a long one.
        if kind.frame_type != LINK || header.major != Header::MAJOR || length > MAX_FIRST {
            let major = header.major;
            return Err(LinkFailure::Refused(format!(
                "the first frame is not HELLO of this protocol: {kind}, version {major}, {length} bytes"
            )));
        }
        if input.len() < Header::LEN + length {
            return Ok(None);
        }
        let frame = input.split_to(Header::LEN + length).freeze();
        let hello = decode_first(kind, frame.slice(Header::LEN..))?;
        check(own, certificate, &hello)?;
        self.peer = Some(hello.uuid);
        Ok(Some(LinkRequest {
            hello,
            dialled: self.hello.is_some(),
        }))
    }

    /// Translates a refusal of the dispatcher.
    pub(crate) fn refused(&self, refusal: &Refusal) -> LinkFailure {
        match (refusal, self.peer) {
            (Refusal::Busy(DUPLICATE), Some(peer)) => LinkFailure::Duplicate(peer),
            (refusal, _) => LinkFailure::Refused(refusal.to_string()),
        }
    }
}

/// Checks that this server and the sender of HELLO can be linked.
fn check(own: &OwnServer, certificate: &CertificateInfo, hello: &Hello) -> Result<(), LinkFailure> {
    // The version is first, because the other fields may have another meaning in another version.
    let why = if hello.version != VERSION {
        format!(
            "it has version {} of links, this server has {VERSION}",
            hello.version
        )
    } else if hello.uuid == own.uuid && hello.incarnation == own.incarnation {
        return Err(LinkFailure::Own);
    } else if hello.uuid == own.uuid {
        format!("two servers have the UUID {}", hello.uuid)
    } else if own.role.intersects(Role::SCHEDULER) && !certificate.roles.intersects(Role::SCHEDULER) {
        // A linked server is trusted in what it reports of its clients and its token, and a scheduler
        // commands a cluster. So a certificate for some other service must not be enough.
        let roles = certificate.roles;
        format!("its certificate has the roles {roles}, and a scheduler links with schedulers only")
    } else if let Some(bound) = certificate.uuid.filter(|bound| *bound != hello.uuid) {
        format!(
            "its certificate is bound to {bound}, but its HELLO names {}",
            hello.uuid
        )
    } else if !hello.role.may_be_advertised_with(certificate.roles) {
        format!(
            "its certificate has the roles {}, but its HELLO names {}",
            certificate.roles, hello.role
        )
    } else if hello.max_payload != own.max_payload {
        format!(
            "its longest payload is {} bytes, this server's {}: they must be equal",
            hello.max_payload, own.max_payload
        )
    } else {
        return Ok(());
    };
    Err(LinkFailure::Refused(why))
}

fn decode_first(kind: FrameKind, payload: Bytes) -> Result<Hello, LinkFailure> {
    match LinkFrame::decode(kind, payload) {
        Ok(LinkFrame::Hello { hello }) => Ok(hello),
        Ok(LinkFrame::End { code, server, reason }) => Err(match code {
            EndCode::Duplicate => LinkFailure::Duplicate(server),
            EndCode::Own => LinkFailure::Own,
            _ => LinkFailure::Refused(format!("the other server refuses: {reason}")),
        }),
        Ok(other) => Err(LinkFailure::Refused(format!(
            "the first frame is {}, not HELLO",
            other.name()
        ))),
        Err(fault) => Err(LinkFailure::Refused(fault.to_string())),
    }
}
