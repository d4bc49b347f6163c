//! The configuration of the cluster: checked, kept, distributed, and taken
//! back when it turns out not to work.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use log::{debug, info, warn};
use uuid::Uuid;

use super::{Scheduler, SchedulerError};
use crate::Role;
use crate::log_limit::LogLimit;
use crate::payload::Configure;
use crate::payload::yaml::MAX_DOCUMENT_LEN;
use crate::printable::excerpt;
use crate::proto::{Command, ErrorCode, Frame};
use crate::replace::{directory, replace};
use crate::server::{Context, SessionInfo};

/// Who is configured.
const CONFIGURED: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits() | Role::CNCIAGENT.bits());

/// The current configuration, and the one before it.
#[derive(Debug)]
pub(super) struct Configuration {
    current: Bytes,
    /// Who sent it; none where it was there from the beginning.
    sender: Option<Uuid>,
    previous: Option<(Bytes, Option<Uuid>)>,
    file: Option<PathBuf>,
}

impl Configuration {
    pub(super) fn in_memory(yaml: Bytes) -> Result<Self, SchedulerError> {
        check(&yaml).map_err(|e| SchedulerError::Configuration(None, e))?;
        Ok(Self {
            current: yaml,
            sender: None,
            previous: None,
            file: None,
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

    /// What CONNECTED carries.
    pub(super) fn current(&self) -> &Bytes {
        &self.current
    }

    fn accept(&mut self, yaml: &Bytes, sender: Uuid) -> Result<(), String> {
        check(yaml).map_err(|e| e.to_string())?;
        // The one before it stays the one before it.
        if *yaml == self.current {
            return Ok(());
        }
        // A copy of its own: the payload is a piece of a longer read.
        let yaml = Bytes::copy_from_slice(yaml);
        self.keep(&yaml).map_err(|e| format!("it cannot be kept: {e}"))?;
        let old = std::mem::replace(&mut self.current, yaml);
        let old_sender = self.sender.replace(sender);
        self.previous = Some((old, old_sender));
        Ok(())
    }

    /// Goes back to the previous configuration, and gives who had sent the
    /// one that is refused, and whether the file has it.
    fn revert(&mut self, refused: &[u8]) -> Result<(Option<Uuid>, io::Result<()>), &'static str> {
        if *refused != self.current {
            return Err("it is not the current one");
        }
        let Some((yaml, sender)) = self.previous.take() else {
            return Err("there is none before it");
        };
        // Better back in memory alone than not at all.
        let kept = self.keep(&yaml);
        self.current = yaml;
        Ok((std::mem::replace(&mut self.sender, sender), kept))
    }

    fn keep(&self, yaml: &[u8]) -> io::Result<()> {
        match &self.file {
            Some(path) => replace(path, yaml),
            None => Ok(()),
        }
    }
}

impl Scheduler {
    pub(super) fn configure(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let yaml = frame.payload_bytes();
        if let Err(why) = self.configuration.accept(yaml, from.uuid()) {
            if let Some(more) = self.log.admit(from.uuid(), "CONFIGURE refused", cx.now()) {
                warn!(target: "ssntp::scheduler", "{from}: CONFIGURE refused: {}{more}", excerpt(why));
            }
            refuse(cx, &mut self.log, from.uuid(), yaml);
            return;
        }
        if let Some(more) = self.log.admit(from.uuid(), "CONFIGURE", cx.now()) {
            info!(target: "ssntp::scheduler",
                "{from}: new cluster configuration of {} bytes{more}",
                yaml.len()
            );
        }
        cx.set_configuration(self.configuration.current.clone());
        // Only a kind that cannot be sent is an error.
        let _ = cx.forward_all(from, CONFIGURED, frame);
        // How its sender learns that it was taken up.
        let taken = Frame::with_payload(Command::CONFIGURE, self.configuration.current.clone());
        if let Err(e) = cx.send(from.uuid(), &taken) {
            debug!(target: "ssntp::scheduler", "{from}: CONFIGURE: {e}");
        }
    }

    /// A client cannot use the configuration.
    pub(super) fn configuration_refused(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let refused = frame.payload_bytes();
        match self.configuration.revert(refused) {
            Ok((sender, kept)) => {
                if let Some(more) = self.log.admit(from.uuid(), "back to the previous one", cx.now()) {
                    warn!(target: "ssntp::scheduler",
                        "{from}: cannot use the configuration: back to the previous one{more}"
                    );
                }
                if let Err(e) = kept
                    && let Some(more) = self.log.admit(from.uuid(), "cannot be kept", cx.now())
                {
                    warn!(target: "ssntp::scheduler",
                        "the previous configuration cannot be kept: {e}{more}"
                    );
                }
                let yaml = self.configuration.current.clone();
                cx.set_configuration(yaml.clone());
                let _ = cx.multicast(CONFIGURED, &Frame::with_payload(Command::CONFIGURE, yaml));
                if let Some(sender) = sender.filter(|sender| *sender != from.uuid()) {
                    refuse(cx, &mut self.log, sender, refused);
                }
            }
            Err(why) => {
                if let Some(more) = self.log.admit(from.uuid(), "it stays", cx.now()) {
                    warn!(target: "ssntp::scheduler",
                        "{from}: cannot use a configuration; it stays, since {why}{more}"
                    );
                }
            }
        }
    }
}

fn refuse(cx: &mut Context<'_>, log: &mut LogLimit<Uuid>, to: Uuid, refused: &Bytes) {
    let answer = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, refused.clone());
    if let Err(e) = cx.send(to, &answer)
        && let Some(more) = log.admit(to, "InvalidConfiguration", cx.now())
    {
        info!(target: "ssntp::scheduler", "InvalidConfiguration for {to}: {e}{more}");
    }
}

/// A cluster may be without any configuration, which is every default.
fn check(yaml: &[u8]) -> Result<(), crate::payload::Error> {
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
