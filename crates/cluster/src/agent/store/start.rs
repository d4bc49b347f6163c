//! The START of an instance, with the changes of a RESTART.

use std::fs;
use std::path::Path;

use uuid::Uuid;

use crate::summed::{fnv1a, sum_line};
use ssntp::payload::{Networking, Payload, Restart, Start, StartPayload};

/// Names the volumes that are made and deleted with an instance, which its START does not name. The
/// name depends only on the instance and the position of the volume.
pub(crate) fn name_own_volumes(start: &mut Start) {
    for (n, storage) in start.storage.iter_mut().enumerate() {
        if storage.id.is_empty() && !storage.boot {
            // Two hashes of the instance's UUID and the position are the halves of the name.
            let half = |salt| fnv1a(format!("{}/{n}/{salt}", start.instance_uuid).as_bytes());
            storage.id = Uuid::from_u64_pair(half("a"), half("b")).into();
            storage.local = true;
            storage.ephemeral = true;
        }
    }
}

/// The START of an instance with the changes of a RESTART.
pub(crate) fn restarted(start: &Start, restart: Restart) -> Start {
    let mut start = start.clone();
    let (needs, new) = (&mut start.requirements, &restart.requirements);
    for (need, new) in [(&mut needs.mem_mb, new.mem_mb), (&mut needs.vcpus, new.vcpus)] {
        if new != 0 {
            *need = new;
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

/// The RESTART that turns the START `before` into `after`; `None` if they are equal.
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
        return Err("its checksum is wrong: the file is incomplete, or was changed".into());
    }
    StartPayload::decode(start).map_err(|e| e.to_string())
}
