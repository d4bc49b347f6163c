//! The configuration of the cluster: checked, written to its file, distributed, and taken
//! back if a client cannot use it.
//!
//! ```text
//!  CONFIGURE ─ check ─▶ next ─▶ being written ─ done ─▶ current ─▶ CONNECTED, all agents
//!                │        │           │                    ▲
//!                ▼        ▼ a newer   ▼ not written        └─ the previous one, if a
//!            InvalidConfiguration to its sender               client refuses this one
//! ```
//!
//! A configuration is on the disk before any client gets it. One is written at a time, and
//! one waits: the newest, which replaces an older one that still waits. So each CONFIGURE is
//! either distributed or refused.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use crossbeam_channel::Sender;
use log::{debug, warn};
use uuid::Uuid;

use super::keeper::Keeper;
use super::term::{CONFIGURATION, Shared};
use super::{Scheduler, SchedulerError, limited};
use ssntp::Role;
use ssntp::payload::Configure;
use ssntp::payload::MAX_READ_LEN;
use ssntp::proto::{Command, ErrorCode, Frame};
use ssntp::server::{Context, ServerHandle, SessionInfo};
use ssntp_transport::LogLimit;
use ssntp_transport::directory;
use ssntp_transport::excerpt;

/// The roles that get the configuration.
const CONFIGURED: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits() | Role::CNCIAGENT.bits());

/// The current configuration, the previous one, and the next one.
#[derive(Debug)]
pub(super) struct Configuration {
    current: Bytes,
    /// The controller that sent it; none if the scheduler began with it.
    sender: Option<Uuid>,
    previous: Option<(Bytes, Option<Uuid>)>,
    /// Writes the file, if there is one.
    keeper: Keeper,
    being_written: Option<Written>,
    /// The newest CONFIGURE, while another one is being written.
    next: Option<Proposal>,
    /// The scheduler has gone back to the current one, and the file does not have it yet.
    behind: bool,
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

#[derive(Debug)]
enum Written {
    Proposed(Proposal),
    GoneBackTo,
}

/// The outcome of a CONFIGURE, or of going back.
enum Outcome {
    Adopted(Proposal),
    Refused(Proposal, io::Error),
    /// The file still has the configuration that a client has refused.
    Behind(io::Error),
}

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
            behind: false,
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
            Some(yaml) => match check(&yaml) {
                Ok(()) => configuration.current = yaml.into(),
                Err(e) => return Err(SchedulerError::Configuration(Some(path), e)),
            },
            None => {
                warn!(target: "ssntp::scheduler", "{} is not there yet: no configuration", path.display())
            }
        }
        // The file is replaced by a rename, which would replace a symbolic link, not its
        // target.
        configuration.keeper = Keeper::of(fs::canonicalize(&path).unwrap_or(path));
        Ok(configuration)
    }

    /// Starts the thread that writes the file, if there is a file. It wakes the server whose
    /// handle it is given.
    pub(super) fn start(&mut self) -> io::Result<Option<Sender<ServerHandle>>> {
        self.keeper.start()
    }

    /// From the start on, the engine has it, and the file a copy.
    pub(super) fn keep_in(&mut self, shared: &Arc<Shared>) {
        self.keeper.keep_in(shared, CONFIGURATION);
    }

    /// The engine has none, and is to have the one that the scheduler began with.
    pub(super) fn keep_now(&mut self) {
        self.behind = !self.current.is_empty();
    }

    /// Begins with what the engine has.
    pub(super) fn replace(&mut self, yaml: Bytes) -> Result<(), SchedulerError> {
        check(&yaml).map_err(|e| SchedulerError::Configuration(None, e))?;
        self.current = yaml;
        Ok(())
    }

    /// The configuration that CONNECTED carries.
    pub(super) fn current(&self) -> &Bytes {
        &self.current
    }

    /// Whether the thread has finished, and [`proceed`](Self::proceed) has something to do.
    pub(super) fn is_due(&self) -> bool {
        self.keeper.is_done()
    }

    /// Takes the result of the thread, and gives it the next configuration. Gives an outcome
    /// to tell; none if there is nothing to do until the thread has finished.
    fn proceed(&mut self) -> Option<Outcome> {
        loop {
            if self.being_written.is_some() {
                let result = self.keeper.result()?;
                match (self.being_written.take()?, result) {
                    (Written::Proposed(proposal), Ok(())) => {
                        // The file has a newer configuration now, which stands for the one that
                        // was gone back to.
                        self.behind = false;
                        return Some(self.adopt(proposal));
                    }
                    (Written::Proposed(proposal), Err(e)) => return Some(Outcome::Refused(proposal, e)),
                    (Written::GoneBackTo, Ok(())) => {}
                    (Written::GoneBackTo, Err(e)) => return Some(Outcome::Behind(e)),
                }
            }
            let (yaml, written) = match self.next.take() {
                // Without a file nothing has to be written first.
                Some(proposal) if !self.keeper.is_durable() => return Some(self.adopt(proposal)),
                // The file has it already, so only the answer is due.
                Some(proposal) if *proposal.yaml() == self.current && !self.behind => {
                    return Some(Outcome::Adopted(proposal));
                }
                Some(proposal) => (proposal.yaml().clone(), Written::Proposed(proposal)),
                None if self.behind && self.keeper.is_durable() => {
                    // Tried once. If it fails, the file keeps the refused configuration, but the
                    // cluster runs with the previous one.
                    self.behind = false;
                    (self.current.clone(), Written::GoneBackTo)
                }
                None => return None,
            };
            self.keeper.write(yaml);
            self.being_written = Some(written);
        }
    }

    fn adopt(&mut self, proposal: Proposal) -> Outcome {
        // The same configuration again must not become its own predecessor: then there would
        // be no way back.
        if *proposal.yaml() != self.current {
            // Copied, because the payload is a piece of a longer read that it would keep.
            let yaml = Bytes::copy_from_slice(proposal.yaml());
            let old = std::mem::replace(&mut self.current, yaml);
            let old_sender = self.sender.replace(proposal.from.uuid());
            self.previous = Some((old, old_sender));
        }
        Outcome::Adopted(proposal)
    }

    /// Goes back to the previous configuration. Gives the controller that had sent the
    /// refused one.
    fn revert(&mut self, refused: &[u8]) -> Result<Option<Uuid>, &'static str> {
        if *refused != self.current {
            return Err("it is not the current one");
        }
        let Some((yaml, sender)) = self.previous.take() else {
            return Err("there is none before it");
        };
        self.current = yaml;
        self.behind = true;
        Ok(std::mem::replace(&mut self.sender, sender))
    }
}

impl Drop for Configuration {
    /// Writes what still waits before the thread ends.
    fn drop(&mut self) {
        let next = self.next.take().map(|proposal| proposal.yaml().clone());
        let last = next.or_else(|| self.behind.then(|| self.current.clone()));
        if let Some(yaml) = last {
            self.keeper.write(yaml);
        }
    }
}

impl Scheduler {
    pub(super) fn configure(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let proposal = Proposal {
            from: from.clone(),
            frame: frame.clone(),
        };
        if let Err(e) = check(proposal.yaml()) {
            return self.refuse_proposal(cx, &proposal, e.to_string());
        }
        // Only the newest waits, so that a slow disk makes no queue.
        if let Some(older) = self.configuration.next.replace(proposal) {
            self.refuse_proposal(cx, &older, "a newer one came before it was kept".to_owned());
        }
        self.proceed_with_configuration(cx);
    }

    /// Distributes what has been written.
    pub(super) fn proceed_with_configuration(&mut self, cx: &mut Context<'_>) {
        while let Some(outcome) = self.configuration.proceed() {
            match outcome {
                Outcome::Adopted(Proposal { from, frame }) => {
                    limited!(info, self.log, cx, from.uuid(), "CONFIGURE";
                        "{from}: new cluster configuration of {} bytes", frame.payload_bytes().len());
                    cx.set_configuration(self.configuration.current.clone());
                    self.tell_configuration(cx);
                    // It fails only for kinds that cannot be sent, and CONFIGURE can.
                    let _ = cx.forward_all(&from, CONFIGURED, &frame);
                    // This is how its sender learns that it was taken up.
                    let taken = Frame::with_payload(Command::CONFIGURE, self.configuration.current.clone());
                    if let Err(e) = cx.send(from.uuid(), &taken) {
                        debug!(target: "ssntp::scheduler", "{from}: CONFIGURE: {e}");
                    }
                }
                Outcome::Refused(proposal, e) => {
                    self.refuse_proposal(cx, &proposal, format!("it cannot be kept: {e}"));
                }
                Outcome::Behind(e) => {
                    limited!(warn, self.log, cx, cx.uuid(), "cannot be kept";
                        "the previous configuration cannot be kept: {e}");
                }
            }
        }
    }

    fn refuse_proposal(&mut self, cx: &mut Context<'_>, proposal: &Proposal, why: String) {
        let from = &proposal.from;
        limited!(warn, self.log, cx, from.uuid(), "CONFIGURE refused";
            "{from}: CONFIGURE refused: {}", excerpt(why));
        refuse(cx, &mut self.log, from.uuid(), proposal.yaml());
    }

    /// Takes in InvalidConfiguration: a client cannot use a configuration.
    pub(super) fn configuration_refused(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let refused = frame.payload_bytes();
        match self.configuration.revert(refused) {
            Ok(sender) => {
                limited!(warn, self.log, cx, from.uuid(), "back to the previous one";
                    "{from}: cannot use the configuration: back to the previous one");
                let yaml = self.configuration.current.clone();
                cx.set_configuration(yaml.clone());
                self.tell_configuration(cx);
                let _ = cx.multicast(CONFIGURED, &Frame::with_payload(Command::CONFIGURE, yaml));
                // A client that refuses its own configuration knows that.
                if let Some(sender) = sender.filter(|sender| *sender != from.uuid()) {
                    refuse(cx, &mut self.log, sender, refused);
                }
                self.proceed_with_configuration(cx);
            }
            Err(why) => {
                limited!(warn, self.log, cx, from.uuid(), "it stays";
                    "{from}: cannot use a configuration; it stays, since {why}");
            }
        }
    }
}

fn refuse(cx: &mut Context<'_>, log: &mut LogLimit<Uuid>, to: Uuid, refused: &Bytes) {
    let answer = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, refused.clone());
    if let Err(e) = cx.send(to, &answer) {
        limited!(info, log, cx, to, "InvalidConfiguration"; "InvalidConfiguration for {to}: {e}");
    }
}

/// An empty configuration is valid: it means every default.
fn check(yaml: &[u8]) -> Result<(), ssntp::payload::Error> {
    if yaml.trim_ascii().is_empty() {
        return Ok(());
    }
    Configure::decode_valid(yaml).map(drop)
}

/// The content of the file; none if it does not exist, but its directory does.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let metadata = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return match fs::metadata(directory(path))?.is_dir() {
                true => Ok(None),
                false => Err(io::ErrorKind::NotADirectory.into()),
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
