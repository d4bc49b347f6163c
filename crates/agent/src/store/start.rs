//! The START of an instance, with the changes of a RESTART.

use std::fs;
use std::path::Path;

use uuid::Uuid;

use ssntp::payload::Payload;
use ssntp_cluster::summed::{fnv1a, sum_line};
use ssntp_payload::{Networking, Restart, Start, StartPayload};

/// The name of a volume that its START does not name. It depends only on the instance and the position
/// of the volume.
fn own_name(instance: Uuid, n: usize) -> Uuid {
    // Two hashes of the instance's UUID and the position are the halves of the name.
    let half = |salt| fnv1a(format!("{instance}/{n}/{salt}").as_bytes());
    Uuid::from_u64_pair(half("a"), half("b"))
}

/// Names the volumes that are made and deleted with an instance, which its START does not name.
pub(crate) fn name_own_volumes(start: &mut Start) {
    for (n, storage) in start.storage.iter_mut().enumerate() {
        if storage.id.is_empty() && !storage.boot {
            storage.id = own_name(start.instance_uuid, n).into();
            storage.local = true;
            storage.ephemeral = true;
        }
    }
}

/// The volumes that [`name_own_volumes`] has named.
pub(crate) fn own_volumes(start: &Start) -> Vec<Uuid> {
    let names = start.storage.iter().enumerate();
    let own = names.filter_map(|(n, storage)| {
        let name = own_name(start.instance_uuid, n);
        (storage.id == name).then_some(name)
    });
    own.collect()
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
