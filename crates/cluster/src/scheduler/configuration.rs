//! The configuration of the cluster: checked, kept, distributed, and taken
//! back when it turns out not to work.
//!
//! ```text
//!  CONFIGURE ─ check ─▶ next ─▶ being written ─ kept ─▶ current ─▶ CONNECTED, everybody
//!                │        │           │                    ▲
//!                ▼        ▼ a newer   ▼ cannot be kept     └─ the previous one, when a
//!            InvalidConfiguration to who sent it              client refuses this one
//! ```
//!
//! A configuration is on the disk before anybody gets it. One is written at a
//! time, and one waits: the newest, which replaces an older one that has not
//! begun to be written. So each CONFIGURE is either passed on or comes back.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use crossbeam_channel::Sender;
use log::{debug, warn};
use uuid::Uuid;

use super::keeper::Keeper;
use super::{Scheduler, SchedulerError, limited};
use ssntp::Role;
use ssntp::payload::Configure;
use ssntp::payload::yaml::MAX_DOCUMENT_LEN;
use ssntp::proto::{Command, ErrorCode, Frame};
use ssntp::server::{Context, ServerHandle, SessionInfo};
use ssntp_transport::LogLimit;
use ssntp_transport::directory;
use ssntp_transport::excerpt;

/// Who is configured.
const CONFIGURED: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits() | Role::CNCIAGENT.bits());

/// The current configuration, the one before it, and the one to come.
#[derive(Debug)]
pub(super) struct Configuration {
    current: Bytes,
    /// Who sent it; none where it was there from the beginning.
    sender: Option<Uuid>,
    previous: Option<(Bytes, Option<Uuid>)>,
    file: Option<PathBuf>,
    /// Writes the file. None where there is no file, and before the start.
    keeper: Option<Keeper>,
    being_written: Option<Written>,
    /// The newest CONFIGURE, while another one is being written.
    next: Option<Proposal>,
    /// The current one was gone back to, and the file does not have it yet.
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

/// What has become of what was written.
enum Outcome {
    Adopted(Proposal),
    Refused(Proposal, io::Error),
    /// The file keeps what a client has refused.
    Behind(io::Error),
}

impl Configuration {
    pub(super) fn in_memory(yaml: Bytes) -> Result<Self, SchedulerError> {
        check(&yaml).map_err(|e| SchedulerError::Configuration(None, e))?;
        Ok(Self {
            current: yaml,
            sender: None,
            previous: None,
            file: None,
            keeper: None,
            being_written: None,
            next: None,
            behind: false,
        })
    }

    /// Reads the file, which may be missing.
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
        // What is renamed onto a link would take the link's place.
        configuration.file = Some(fs::canonicalize(&path).unwrap_or(path));
        Ok(configuration)
    }

    /// Starts the thread that writes the file, where there is one. It wakes the
    /// server whose handle it is given.
    pub(super) fn start(&mut self) -> io::Result<Option<Sender<ServerHandle>>> {
        let Some(path) = self.file.clone() else {
            return Ok(None);
        };
        let (keeper, server) = Keeper::start(path)?;
        self.keeper = Some(keeper);
        Ok(Some(server))
    }

    /// What CONNECTED carries.
    pub(super) fn current(&self) -> &Bytes {
        &self.current
    }

    /// Whether something has been written, which [`proceed`](Self::proceed)
    /// takes up.
    pub(super) fn is_due(&self) -> bool {
        self.keeper.as_ref().is_some_and(Keeper::is_done)
    }

    /// Takes up what has been written, and has the next one written. Gives
    /// what is to be told; none once there is nothing to do until the thread is
    /// done.
    fn proceed(&mut self) -> Option<Outcome> {
        loop {
            if self.being_written.is_some() {
                let result = self.keeper.as_ref()?.result()?;
                match (self.being_written.take()?, result) {
                    (Written::Proposed(proposal), Ok(())) => {
                        self.behind = false;
                        return Some(self.adopt(proposal));
                    }
                    (Written::Proposed(proposal), Err(e)) => return Some(Outcome::Refused(proposal, e)),
                    (Written::GoneBackTo, Ok(())) => {}
                    (Written::GoneBackTo, Err(e)) => return Some(Outcome::Behind(e)),
                }
            }
            let (yaml, written) = match self.next.take() {
                Some(proposal) if self.file.is_none() => return Some(self.adopt(proposal)),
                Some(proposal) if *proposal.yaml() == self.current && !self.behind => {
                    return Some(Outcome::Adopted(proposal));
                }
                Some(proposal) => (proposal.yaml().clone(), Written::Proposed(proposal)),
                None if self.behind && self.file.is_some() => {
                    // Tried once: better back in memory alone than not at all.
                    self.behind = false;
                    (self.current.clone(), Written::GoneBackTo)
                }
                None => return None,
            };
            let Some(keeper) = &self.keeper else {
                let e = io::Error::other("the scheduler was not started by its own start");
                return Some(match written {
                    Written::Proposed(proposal) => Outcome::Refused(proposal, e),
                    Written::GoneBackTo => Outcome::Behind(e),
                });
            };
            keeper.write(yaml);
            self.being_written = Some(written);
        }
    }

    fn adopt(&mut self, proposal: Proposal) -> Outcome {
        // Where it is the same again, the one before it stays the one before it.
        if *proposal.yaml() != self.current {
            // A copy of its own: the payload is a piece of a longer read.
            let yaml = Bytes::copy_from_slice(proposal.yaml());
            let old = std::mem::replace(&mut self.current, yaml);
            let old_sender = self.sender.replace(proposal.from.uuid());
            self.previous = Some((old, old_sender));
        }
        Outcome::Adopted(proposal)
    }

    /// Goes back to the previous configuration, and gives who had sent the
    /// one that is refused.
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
    /// What waits is written before the thread ends.
    fn drop(&mut self) {
        let next = self.next.take().map(|proposal| proposal.yaml().clone());
        let last = next.or_else(|| self.behind.then(|| self.current.clone()));
        if let (Some(keeper), Some(yaml)) = (&self.keeper, last) {
            keeper.write(yaml);
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
        if let Some(older) = self.configuration.next.replace(proposal) {
            self.refuse_proposal(cx, &older, "a newer one came before it was kept".to_owned());
        }
        self.proceed_with_configuration(cx);
    }

    /// Tells everybody of what has been kept.
    pub(super) fn proceed_with_configuration(&mut self, cx: &mut Context<'_>) {
        while let Some(outcome) = self.configuration.proceed() {
            match outcome {
                Outcome::Adopted(Proposal { from, frame }) => {
                    limited!(
                        info,
                        self.log,
                        cx,
                        from.uuid(),
                        "CONFIGURE",
                        "{from}: new cluster configuration of {} bytes",
                        frame.payload_bytes().len()
                    );
                    cx.set_configuration(self.configuration.current.clone());
                    // Only a kind that cannot be sent is an error.
                    let _ = cx.forward_all(&from, CONFIGURED, &frame);
                    // How its sender learns that it was taken up.
                    let taken = Frame::with_payload(Command::CONFIGURE, self.configuration.current.clone());
                    if let Err(e) = cx.send(from.uuid(), &taken) {
                        debug!(target: "ssntp::scheduler", "{from}: CONFIGURE: {e}");
                    }
                }
                Outcome::Refused(proposal, e) => {
                    self.refuse_proposal(cx, &proposal, format!("it cannot be kept: {e}"));
                }
                Outcome::Behind(e) => {
                    limited!(
                        warn,
                        self.log,
                        cx,
                        cx.uuid(),
                        "cannot be kept",
                        "the previous configuration cannot be kept: {e}"
                    );
                }
            }
        }
    }

    fn refuse_proposal(&mut self, cx: &mut Context<'_>, proposal: &Proposal, why: String) {
        let from = &proposal.from;
        limited!(
            warn,
            self.log,
            cx,
            from.uuid(),
            "CONFIGURE refused",
            "{from}: CONFIGURE refused: {}",
            excerpt(why)
        );
        refuse(cx, &mut self.log, from.uuid(), proposal.yaml());
    }

    /// A client cannot use the configuration.
    pub(super) fn configuration_refused(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let refused = frame.payload_bytes();
        match self.configuration.revert(refused) {
            Ok(sender) => {
                limited!(
                    warn,
                    self.log,
                    cx,
                    from.uuid(),
                    "back to the previous one",
                    "{from}: cannot use the configuration: back to the previous one"
                );
                let yaml = self.configuration.current.clone();
                cx.set_configuration(yaml.clone());
                let _ = cx.multicast(CONFIGURED, &Frame::with_payload(Command::CONFIGURE, yaml));
                if let Some(sender) = sender.filter(|sender| *sender != from.uuid()) {
                    refuse(cx, &mut self.log, sender, refused);
                }
                self.proceed_with_configuration(cx);
            }
            Err(why) => {
                limited!(
                    warn,
                    self.log,
                    cx,
                    from.uuid(),
                    "it stays",
                    "{from}: cannot use a configuration; it stays, since {why}"
                );
            }
        }
    }
}

fn refuse(cx: &mut Context<'_>, log: &mut LogLimit<Uuid>, to: Uuid, refused: &Bytes) {
    let answer = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, refused.clone());
    if let Err(e) = cx.send(to, &answer) {
        limited!(
            info,
            log,
            cx,
            to,
            "InvalidConfiguration",
            "InvalidConfiguration for {to}: {e}"
        );
    }
}

/// A cluster may be without any configuration, which is every default.
fn check(yaml: &[u8]) -> Result<(), ssntp::payload::Error> {
    if yaml.trim_ascii().is_empty() {
        return Ok(());
    }
    Configure::decode_valid(yaml).map(drop)
}

/// The content of the file; none where there is no file, but could be one.
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
    // One byte more than is taken, so that too much is refused as that.
    let limit = MAX_DOCUMENT_LEN as u64 + 1;
    File::open(path)?.take(limit).read_to_end(&mut yaml)?;
    Ok(Some(yaml))
}
