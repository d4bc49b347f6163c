//! UUIDs that are kept on disk, and that no two running clients share.
//!
//! ```text
//!  DIR/agent.0.lock   locked while a client uses slot 0    agent.0.uuid   its UUID
//!  DIR/agent.1.lock   …                                    agent.1.uuid
//! ```
//!
//! A client takes the first slot of its roles whose lock is free. The operating system releases the
//! lock if the process ends. A UUID file is written in one step, so it is always complete. A file without a UUID was damaged from outside. That is an error: with a new
//! UUID, this host would silently become another member of its cluster.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::error::ClientError;
use ssntp_pki::Role;
use ssntp_transport::replace_with_mode;

/// The maximum number of clients of one role and directory at a time.
const SLOTS: u32 = 1024;

/// The mode of a UUID file, which holds no secret.
const MODE: u32 = 0o644;

/// A UUID, and the lock that keeps other clients from using it while this value lives.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) uuid: Uuid,
    _lock: Option<File>,
}

impl Claimed {
    /// A UUID without a lock.
    pub(super) fn unlocked(uuid: Uuid) -> Self {
        Self { uuid, _lock: None }
    }
}

/// Takes the first free UUID of `role` in `directory`.
pub(super) fn claim(directory: &Path, role: Role) -> Result<Claimed, ClientError> {
    fs::create_dir_all(directory).map_err(|e| at_fault(directory, e))?;
    let role = role.to_string().replace(',', "+");
    for slot in 0..SLOTS {
        let path = |kind: &str| directory.join(format!("{role}.{slot}.{kind}"));
        let lock_path = path("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            // Another client may hold the lock on this file.
            .truncate(false)
            .open(&lock_path)
            .map_err(|e| at_fault(&lock_path, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            // A running client has this UUID.
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(e)) => return Err(at_fault(&lock_path, e)),
        }
        let uuid = read_or_make(path("uuid"))?;
        return Ok(Claimed {
            uuid,
            _lock: Some(lock),
        });
    }
    Err(ClientError::UuidsInUse {
        directory: directory.into(),
        slots: SLOTS,
    })
}

fn read_or_make(path: PathBuf) -> Result<Uuid, ClientError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let uuid = Uuid::new_v4();
            // On the disk before it is used: a server that knows a client by its UUID must find the same one
            // after a crash.
            let written = replace_with_mode(&path, format!("{uuid}\n").as_bytes(), Some(MODE));
            return written.map(|()| uuid).map_err(|e| at_fault(&path, e));
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(ClientError::UuidCorrupt { path }),
        Err(e) => return Err(at_fault(&path, e)),
    };
    match Uuid::try_parse(text.trim_start_matches('\u{feff}').trim()) {
        Ok(uuid) if !uuid.is_nil() => Ok(uuid),
        _ => Err(ClientError::UuidCorrupt { path }),
    }
}

fn at_fault(path: &Path, error: io::Error) -> ClientError {
    ClientError::UuidFile {
        path: path.into(),
        error: Arc::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_survives_its_client() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("deeper").join("still");
        let first = claim(&directory, Role::AGENT).unwrap();
        let uuid = first.uuid;
        drop(first);
        assert_eq!(claim(&directory, Role::AGENT).unwrap().uuid, uuid);
    }

    #[test]
    fn two_clients_never_share_one_and_each_gets_its_own_back() {
        let directory = tempfile::tempdir().unwrap();
        let claim = |role| claim(directory.path(), role).unwrap();
        let clients: Vec<_> = (0..5).map(|_| claim(Role::AGENT)).collect();
        let other = claim(Role::AGENT | Role::NETAGENT);
        let mut uuids: Vec<_> = clients.iter().map(|c| c.uuid).collect();
        uuids.push(other.uuid);
        uuids.sort();
        uuids.dedup();
        assert_eq!(uuids.len(), 6);
        let third = clients[2].uuid;
        let mut clients = clients;
        clients.remove(2);
        assert_eq!(claim(Role::AGENT).uuid, third, "the first free slot");
    }

    #[test]
    fn clients_that_start_together_never_share_a_uuid() {
        let directory = tempfile::tempdir().unwrap();
        let mut threads = Vec::new();
        for _ in 0..8 {
            let directory = directory.path().to_owned();
            let claim = move || claim(&directory, Role::CONTROLLER).unwrap();
            threads.push(ssntp_transport::threads::spawn("t", claim).unwrap());
        }
        let clients: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let mut uuids: Vec<_> = clients.iter().map(|c| c.uuid).collect();
        uuids.sort();
        uuids.dedup();
        assert_eq!(uuids.len(), 8);
    }

    #[test]
    fn a_file_without_a_uuid_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let uuid = claim(directory.path(), Role::AGENT).unwrap().uuid;
        let text = fs::read_to_string(path("agent.0.uuid")).unwrap();
        assert_eq!(text, format!("{uuid}\n"));
        let nil = Uuid::nil().to_string();
        for damaged in [&b""[..], b"\n", b"0198f", b"\xff\xfe", nil.as_bytes()] {
            fs::write(path("agent.0.uuid"), damaged).unwrap();
            let error = claim(directory.path(), Role::AGENT).unwrap_err();
            assert!(
                matches!(&error, ClientError::UuidCorrupt { path } if path.ends_with("agent.0.uuid")),
                "{error}"
            );
        }
    }

    #[test]
    fn errors_of_the_system_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = claim(&file, Role::AGENT).unwrap_err().to_string();
        assert!(error.contains("file"), "{error}");
        fs::create_dir(directory.path().join("agent.0.lock")).unwrap();
        let error = claim(directory.path(), Role::AGENT).unwrap_err().to_string();
        assert!(error.contains("agent.0.lock"), "{error}");
    }
}
