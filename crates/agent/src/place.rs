//! The directory and the user of an instance.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The directory of an instance.
///
/// ```text
/// DIR/
///   instance.yaml  start.yaml      the records of the agent
///   stdout.log  stderr.log         the output of all runs, within bounds
///   run/                           the state and the socket of the last run
///   disks/                         the disks of a virtual machine
///   volumes/UUID                   a link to each volume
///   work/                          the working directory of the instance
/// ```
///
/// An instance with a user of its own can write in `work` and in no other directory here, so the
/// agent can trust the content of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDir {
    instance: Uuid,
    dir: PathBuf,
}

impl InstanceDir {
    /// The directory `dir` of an instance.
    pub fn new(instance: Uuid, dir: impl Into<PathBuf>) -> Self {
        Self {
            instance,
            dir: dir.into(),
        }
    }

    /// The instance.
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    /// The path of the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The working directory of the instance.
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// The directory of links to the attached volumes.
    pub fn volumes(&self) -> PathBuf {
        self.dir.join("volumes")
    }
}

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The UID.
    pub uid: u32,
    /// The GID of the user's only group.
    pub gid: u32,
    /// True if the user runs only this instance.
    pub alone: bool,
}
