//! All connections of a server, sessions and links, from their admission until their threads are joined.

use std::sync::Arc;

use super::certificates::Certificates;
use super::links::ServerLink;
use ssntp_pki::{CertificateDer, CertificateInfo, KeptCertificate};
use ssntp_transport::{ConnectionId, OutboxCounters, Table};

/// The connections with their certificates, and what ended ones have lost.
#[derive(Debug, Default)]
pub(super) struct Connections {
    table: Table<(KeptCertificate, OutboxCounters)>,
    certificates: Certificates,
    /// The servers at the other ends of links, including links that have ended.
    links: Table<Arc<ServerLink>>,
    frames_lost: u64,
}

impl Connections {
    /// Adds a connection. `intermediates` are the certificates that the peer sent after its own.
    pub(super) fn add(
        &mut self,
        id: ConnectionId,
        certificate: &CertificateInfo,
        intermediates: Vec<CertificateDer<'static>>,
        outbox: OutboxCounters,
    ) -> KeptCertificate {
        let certificate = self.certificates.add(certificate, intermediates);
        self.table.insert(id, (certificate.clone(), outbox));
        certificate
    }

    /// Notes that a connection is a link to this server.
    pub(super) fn set_link(&mut self, id: ConnectionId, server: Arc<ServerLink>) {
        self.links.insert(id, server);
    }

    /// Removes a connection whose threads have ended. Returns the number of frames that were lost with it,
    /// and the other server if it was a link.
    pub(super) fn remove(&mut self, id: ConnectionId) -> (u64, Option<Arc<ServerLink>>) {
        let lost = self.table.remove(id).map_or(0, |(certificate, outbox)| {
            self.certificates.remove(&certificate);
            // The number is final, because the connection's threads have ended.
            outbox.figures().lost
        });
        self.frames_lost += lost;
        (lost, self.links.remove(id))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn links(&self) -> usize {
        self.links.len()
    }

    pub(super) fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// The number of frames that were lost with connections which are gone.
    pub(super) fn frames_lost(&self) -> u64 {
        self.frames_lost
    }
}
