//! The START of an instance, with what a RESTART changed.

use std::fs;
use std::path::Path;

use uuid::Uuid;

use crate::summed::{fnv1a, sum_line};
use ssntp::payload::{Networking, Payload, Restart, Start, StartPayload};

/// Names the volumes that are made with an instance, and go with it: those that
/// its START does not name. Each has the same name whenever it is asked for, and no
/// other instance's.
pub(crate) fn name_own_volumes(start: &mut Start) {
    for (n, storage) in start.storage.iter_mut().enumerate() {
        if storage.id.is_empty() && !storage.boot {
            // Two hashes of the instance and the index make a UUID that is always the same.
            let half = |salt| fnv1a(format!("{}/{n}/{salt}", start.instance_uuid).as_bytes());
            storage.id = Uuid::from_u64_pair(half("a"), half("b")).into();
            storage.local = true;
            storage.ephemeral = true;
        }
    }
}

/// The START of an instance with what a RESTART says anew.
pub(crate) fn restarted(start: &Start, restart: Restart) -> Start {
    let mut start = start.clone();
    let (needs, said) = (&mut start.requirements, &restart.requirements);
    for (need, said) in [(&mut needs.mem_mb, said.mem_mb), (&mut needs.vcpus, said.vcpus)] {
        if said != 0 {
            *need = said;
        }
    }
    if restart.persistence.as_str() != "" {
        start.persistence = restart.persistence;
    }
    if restart.fw_type.as_str() != "" {
        start.fw_type = restart.fw_type;
    }
    if restart.networking != Networking::default() {
        start.networking = restart.networking;
    }
    start
}

/// A RESTART that makes the one START of the other: what has to be written down
/// beside the first. `None` if they are equal.
pub(crate) fn changes(before: &Start, after: &Start) -> Option<Restart> {
    (before != after).then(|| Restart {
        instance_uuid: after.instance_uuid.into(),
        fw_type: after.fw_type.clone(),
        persistence: after.persistence.clone(),
        networking: after.networking.clone(),
        requirements: after.requirements.clone(),
        ..Restart::default()
    })
}

pub(super) fn read_start(path: &Path) -> Result<StartPayload, String> {
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (sum, start) = bytes.split_at(end.map_or(0, |at| at + 1));
    if sum != sum_line(start).as_bytes() {
        return Err("its checksum is wrong: it is incomplete, or was changed".into());
    }
    StartPayload::decode(start).map_err(|e| e.to_string())
}
