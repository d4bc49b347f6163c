//! The configuration of the cluster. A new one is checked, written to its file and distributed.
//! If a client refuses it, the scheduler restores the previous one.
//!
//! ```text
//!  CONFIGURE ─ check ─▶ next ─▶ being written ─ done ─▶ current ─▶ CONNECTED, all agents
//!                │        │           │                    ▲
//!                ▼        ▼ a newer   ▼ not written        └─ the previous one, if a
//!            InvalidConfiguration to its sender               client refuses this one
//! ```
//!
//! If the engine's answer to a write is lost, the outcome is unknown: the next leader may read that
//! configuration. Its sender is told so, and the current configuration is written until the engine
//! confirms it.
//!
//! A configuration is on the disk before any client gets it. One configuration is written at a
//! time, and at most one waits: a newer CONFIGURE replaces it. So each CONFIGURE is either
//! distributed or refused, unless the scheduler stops first: then the newest is still written, and is the
//! configuration of the next start, and its sender's session ends without an answer.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::{info, warn};
use uuid::Uuid;

use super::config::SchedulerError;
use super::keeper::Keeper;
use super::messages::Message;
use super::out::{Out, limited};
use super::shared::Written;
use ssntp::Role;
use ssntp::payload::MAX_READ_LEN;
use ssntp::proto::{Command, ErrorCode, Frame};
use ssntp::server::SessionInfo;
use ssntp_cluster::refusal::Reason;
use ssntp_payload::Configure;
use ssntp_transport::{directory, excerpt};

/// The roles whose clients receive the configuration.
const CONFIGURED: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits() | Role::CNCIAGENT.bits());

/// The time between two attempts to write the current configuration to an engine that does not confirm it.
const RETRY: Duration = Duration::from_secs(1);

/// The current configuration, the previous one, and the next one.
#[derive(Debug)]
pub(super) struct Configuration {
    current: Bytes,
    /// The controller that sent `current`; `None` if the scheduler began with it.
    sender: Option<Uuid>,
    /// The configuration before `current`, with its sender.
    previous: Option<(Bytes, Option<Uuid>)>,
    keeper: Keeper,
    being_written: Option<Content>,
    /// The newest CONFIGURE, while another one is being written.
    next: Option<Proposal>,
    /// The time from which `current` must be written, because the file or the engine may have another
    /// one: a client has refused that, or the outcome of its write is unknown.
    write_at: Option<Instant>,
}

/// A CONFIGURE that passed the check.
#[derive(Debug)]
struct Proposal {
    from: SessionInfo,
    frame: Frame,
}

impl Proposal {
    fn yaml(&self) -> &Bytes {
        self.frame.payload_bytes()
    }
}

/// What a write is for: a CONFIGURE, or else the current configuration once more.
type Content = Option<Proposal>;

impl Configuration {
    pub(super) fn in_memory(yaml: Bytes) -> Result<Self, SchedulerError> {
        check(&yaml).map_err(|e| SchedulerError::Configuration(None, e))?;
        Ok(Self {
            current: yaml,
            sender: None,
            previous: None,
            keeper: Keeper::default(),
            being_written: None,
            next: None,
            write_at: None,
        })
    }

    /// Reads the file, which may not exist yet.
    pub(super) fn load(path: PathBuf) -> Result<Self, SchedulerError> {
        let yaml = match read(&path) {
            Ok(yaml) => yaml,
            Err(e) => return Err(SchedulerError::Read(path, e)),
        };
        let mut configuration = Self::in_memory(Bytes::new())?;
        match yaml {
            // It may have restored that there is none.
            Some(yaml) if yaml.trim_ascii().is_empty() => {
                warn!(target: "ssntp::scheduler", "{} is empty: no configuration", path.display());
            }
            Some(yaml) => match check(&yaml) {
                Ok(()) => configuration.current = yaml.into(),
                Err(e) => return Err(SchedulerError::Configuration(Some(path), e)),
            },
            // As at the first start of each cluster.
            None => info!(target: "ssntp::scheduler", "{} does not exist: no configuration", path.display()),
        }
        configuration.keeper = Keeper::of(path);
        Ok(configuration)
    }

    /// Has the current configuration written to the engine, which has none.
    pub(super) fn write_current(&mut self, now: Instant) {
        self.write_at = (!self.current.is_empty()).then_some(now);
    }

    /// Replaces the configuration with the engine's.
    pub(super) fn replace(&mut self, yaml: Bytes) -> Result<(), SchedulerError> {
        check(&yaml).map_err(|e| SchedulerError::Configuration(None, e))?;
        if yaml != self.current {
            (self.sender, self.previous) = (None, None);
            self.current = yaml;
        }
        self.write_at = None;
        Ok(())
    }

    /// The configuration that CONNECTED carries.
    pub(super) fn current(&self) -> &Bytes {
        &self.current
    }

    /// Takes the result of the thread and hands over the next configuration. Returns a content and
    /// what became of it; `None` if nothing can be done until the thread has finished.
    fn next_outcome(&mut self, now: Instant, leads_others: bool) -> Option<(Content, Written)> {
        loop {
            if self.being_written.is_some() {
                let written = self.keeper.take_result()?;
                let content = self.being_written.take()?;
                match (&content, &written) {
                    (Some(proposal), Written::Done) => {
                        // The file has a newer configuration than the restored one.
                        self.write_at = None;
                        self.adopt(proposal);
                    }
                    (Some(_), Written::Refused(_)) => {}
                    // The next leader would read it, so the current one is written over it.
                    (Some(_), Written::Unknown(_)) => self.write_at = leads_others.then_some(now),
                    (None, Written::Done) => continue,
                    // An engine is asked until it confirms. A file keeps the refused configuration,
                    // but the cluster runs with the previous one.
                    (None, _) => self.write_at = leads_others.then_some(now + RETRY),
                }
                return Some((content, written));
            }
            let content = self.next.take();
            let yaml = match &content {
                // There is no file, or it has this configuration already, so only the answer is due.
                Some(proposal)
                    if !self.keeper.is_durable()
                        || *proposal.yaml() == self.current && self.write_at.is_none() =>
                {
                    self.adopt(proposal);
                    return Some((content, Written::Done));
                }
                Some(proposal) => proposal.yaml().clone(),
                None if self.next_deadline().is_some_and(|at| at <= now) => {
                    self.write_at = None;
                    self.current.clone()
                }
                None => return None,
            };
            self.keeper.write(Ok(yaml));
            self.being_written = Some(content);
        }
    }

    fn adopt(&mut self, proposal: &Proposal) {
        // If the same configuration is sent again, it must not replace the previous one, which
        // could not be restored then.
        if *proposal.yaml() != self.current {
            // Copied, because the payload is a part of a longer read and keeps it in memory.
            let yaml = Bytes::copy_from_slice(proposal.yaml());
            let old = std::mem::replace(&mut self.current, yaml);
            let old_sender = self.sender.replace(proposal.from.uuid());
            self.previous = Some((old, old_sender));
        }
    }

    /// Restores the previous configuration. Returns the controller that had sent the refused one;
    /// the error is the reason why the configuration stays.
    fn revert(&mut self, refused: &[u8], now: Instant) -> Result<Option<Uuid>, &'static str> {
        if *refused != self.current {
            return Err("it is not the current one");
        }
        let Some((yaml, sender)) = self.previous.take() else {
            return Err("there is none before it");
        };
        self.current = yaml;
        self.write_at = self.keeper.is_durable().then_some(now);
        Ok(std::mem::replace(&mut self.sender, sender))
    }

    /// The keeper of the configuration's file. The caller starts its thread.
    pub(super) fn keeper(&mut self) -> &mut Keeper {
        &mut self.keeper
    }

    /// True if a write is done whose result has not been handled.
    pub(super) fn is_done(&self) -> bool {
        self.keeper.is_done()
    }

    /// The time at which the current configuration must be written again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.write_at.filter(|_| self.being_written.is_none())
    }

    /// Handles CONFIGURE of a controller. `token` is that of this scheduler, if it leads others.
    pub(super) fn handle_configure(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        token: Option<u64>,
    ) {
        let proposal = Proposal {
            from: from.clone(),
            frame: frame.clone(),
        };
        if let Err(e) = check(proposal.yaml()) {
            return refuse(out, &proposal, e.to_string());
        }
        // Only the newest waits, so a slow disk does not cause a queue.
        if let Some(older) = self.next.replace(proposal) {
            refuse(
                out,
                &older,
                "a newer one arrived before it was written".to_owned(),
            );
        }
        self.proceed(out, token);
    }

    /// Distributes a configuration that has been written, and answers the others.
    pub(super) fn proceed(&mut self, out: &mut Out<'_, '_>, token: Option<u64>) {
        while let Some(outcome) = self.next_outcome(out.now(), token.is_some()) {
            match outcome {
                (Some(Proposal { from, frame }), Written::Done) => {
                    limited!(info, out, from.uuid(), "CONFIGURE";
                        "{from}: new cluster configuration of {} bytes", frame.payload_bytes().len());
                    self.show(out, token);
                    // It fails only for kinds that cannot be sent, and CONFIGURE can.
                    let _ = out.cx.forward_all(&from, CONFIGURED, &frame);
                    // It returns to its sender as the confirmation.
                    out.send(from.uuid(), &self.frame());
                }
                (Some(proposal), Written::Refused(why)) => {
                    refuse(out, &proposal, format!("it cannot be written: {why}"));
                }
                // The engine may have it, although this scheduler does not distribute it.
                (Some(Proposal { from, frame }), Written::Unknown(why)) => {
                    limited!(warn, out, from.uuid(), "CONFIGURE unknown";
                        "{from}: the outcome of CONFIGURE is unknown: {why}; the current configuration is written again");
                    out.invalid_frame(&from, frame.kind(), &Reason::Unknown);
                }
                (None, Written::Refused(why) | Written::Unknown(why)) => {
                    limited!(warn, out, out.cx.uuid(), "not written";
                        "the current configuration cannot be written: {why}");
                }
                (None, Written::Done) => {}
            }
        }
    }

    /// CONFIGURE with the current configuration.
    pub(super) fn frame(&self) -> Frame {
        Frame::with_payload(Command::CONFIGURE, self.current.clone())
    }

    /// Puts the current configuration into CONNECTED of this server, and of the others before any of
    /// their clients gets it.
    fn show(&self, out: &mut Out<'_, '_>, token: Option<u64>) {
        out.cx.set_configuration(self.current.clone());
        if let Some(token) = token {
            let configuration = self.current.clone();
            out.cx
                .send_to_servers(&Message::Leads { token, configuration }.encode());
        }
    }

    /// Handles InvalidConfiguration: a client cannot use a configuration.
    pub(super) fn handle_refused(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        token: Option<u64>,
    ) {
        let refused = frame.payload_bytes();
        match self.revert(refused, out.now()) {
            Ok(sender) => {
                limited!(warn, out, from.uuid(), "back to the previous one";
                    "{from}: cannot use the configuration: back to the previous one");
                self.show(out, token);
                let _ = out.cx.multicast(CONFIGURED, &self.frame());
                // A client that refuses a configuration that it has sent itself needs no answer.
                if let Some(sender) = sender.filter(|sender| *sender != from.uuid()) {
                    send_refusal(out, sender, refused);
                }
                self.proceed(out, token);
            }
            Err(why) => {
                limited!(warn, out, from.uuid(), "it stays";
                    "{from}: cannot use a configuration; it stays, since {why}");
            }
        }
    }
}

impl Drop for Configuration {
    /// Hands over the configuration that has not been written yet, before the thread ends.
    fn drop(&mut self) {
        let next = self.next.take().map(|proposal| proposal.yaml().clone());
        let last = next.or_else(|| self.write_at.map(|_| self.current.clone()));
        if let Some(yaml) = last {
            self.keeper.write(Ok(yaml));
        }
    }
}

fn refuse(out: &mut Out<'_, '_>, proposal: &Proposal, why: String) {
    let from = &proposal.from;
    limited!(warn, out, from.uuid(), "CONFIGURE refused";
        "{from}: CONFIGURE refused: {}", excerpt(why));
    send_refusal(out, from.uuid(), proposal.yaml());
}

fn send_refusal(out: &mut Out<'_, '_>, to: Uuid, refused: &Bytes) {
    let answer = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, refused.clone());
    out.send(to, &answer);
}

/// Checks a configuration. An empty one is valid: every option has its default.
fn check(yaml: &[u8]) -> Result<(), ssntp::payload::Error> {
    if yaml.trim_ascii().is_empty() {
        return Ok(());
    }
    Configure::decode_valid(yaml).map(drop)
}

/// The content of the file; `None` if it does not exist in a directory that does.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let metadata = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return if fs::metadata(directory(path))?.is_dir() {
                Ok(None)
            } else {
                Err(io::ErrorKind::NotADirectory.into())
            };
        }
        metadata => metadata?,
    };
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut yaml = Vec::new();
    // One byte more than the limit, so that the check sees that it is too long.
    let limit = MAX_READ_LEN as u64 + 1;
    File::open(path)?.take(limit).read_to_end(&mut yaml)?;
    Ok(Some(yaml))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_transport::now;

    #[test]
    fn a_file_that_was_never_there_is_no_warning_and_an_empty_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.yaml");
        let load = || {
            ssntp_test_support::warnings(|| {
                let loaded = Configuration::load(path.clone()).unwrap();
                assert!(loaded.current().is_empty());
            })
        };
        assert_eq!(load(), Vec::<String>::new());
        fs::write(&path, "\n").unwrap();
        let warned = load();
        assert!(warned.len() == 1 && warned[0].contains("is empty"), "{warned:?}");
    }

    /// Otherwise the next leader might read a configuration that its sender was refused.
    #[test]
    fn the_current_configuration_is_written_until_the_engine_confirms_it() {
        let (keeper, results) = Keeper::held();
        let yaml = Bytes::from("configure:\n  scheduler:\n    storage_uri: /etc\n");
        let mut configuration = Configuration::in_memory(yaml).unwrap();
        configuration.keeper = keeper;
        let mut now = now();
        configuration.write_current(now);
        for outcome in [Written::Unknown("lost".into()), Written::Refused("full".into())] {
            assert!(configuration.next_outcome(now, true).is_none());
            assert_eq!(configuration.next_deadline(), None, "it is being written");
            results.send(outcome).unwrap();
            let outcome = configuration.next_outcome(now, true);
            assert!(matches!(
                outcome,
                Some((None, Written::Refused(_) | Written::Unknown(_)))
            ));
            assert_eq!(configuration.next_deadline(), Some(now + RETRY));
            now += RETRY;
        }
        assert!(configuration.next_outcome(now, true).is_none());
        results.send(Written::Done).unwrap();
        assert!(configuration.next_outcome(now, true).is_none());
        assert_eq!(configuration.next_deadline(), None);
    }

    /// Otherwise a new leader would write its own configuration over that of the engine.
    #[test]
    fn the_configuration_of_the_engine_leaves_nothing_to_write() {
        let [own, other] = ["/etc", "/srv"]
            .map(|uri| Bytes::from(format!("configure:\n  scheduler:\n    storage_uri: {uri}\n")));
        let mut configuration = Configuration::in_memory(own).unwrap();
        configuration.write_current(now());
        assert!(configuration.next_deadline().is_some());
        configuration.replace(other.clone()).unwrap();
        assert_eq!(
            (configuration.next_deadline(), configuration.current()),
            (None, &other)
        );
    }
}
