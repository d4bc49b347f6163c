//! The requests for new certificates that wait for the thread which answers them: [`Renewals`].

use std::collections::HashSet;

use crossbeam_channel::{Sender, TrySendError};
use uuid::Uuid;

use super::config::Renewal;
use super::sessions::SessionInfo;
use crate::request::Request;

/// The way to the thread that renews certificates, and the clients that wait for it. Each UUID has one place, so that no
/// client keeps the others from renewing.
#[derive(Debug)]
pub(super) struct Renewals {
    /// `None` if this server renews no certificates.
    jobs: Option<Sender<Renewal>>,
    waiting: HashSet<Uuid>,
}

impl Renewals {
    pub(super) fn new(jobs: Option<Sender<Renewal>>) -> Self {
        Self {
            jobs,
            waiting: HashSet::new(),
        }
    }

    /// Hands over a request. Returns the reason why it is refused.
    pub(super) fn hand_over(&mut self, info: &SessionInfo, request: &Request) -> Result<(), &'static str> {
        let jobs = self.jobs.as_ref().ok_or("this server renews no certificates")?;
        if self.waiting.contains(&info.uuid) {
            return Err("an earlier request of this UUID is not answered yet");
        }
        // Copied, because the request may wait, and its payload is a slice of a receive buffer.
        let sent = jobs.try_send((info.clone(), request.clone().copied()));
        sent.map_err(|why| match why {
            TrySendError::Full(_) => "queue_full",
            TrySendError::Disconnected(_) => "not_answered",
        })?;
        self.waiting.insert(info.uuid);
        Ok(())
    }

    /// The request of this UUID is answered.
    #[cfg(feature = "issue")]
    pub(super) fn answered(&mut self, uuid: Uuid) {
        self.waiting.remove(&uuid);
    }
}
