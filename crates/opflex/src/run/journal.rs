//! Edits of policy behind the file that it is kept in, so that keeping an edit
//! costs as much as it changes, and not as much as there is.
//!
//! ```text
//!  policy.json         all policy, as it was written last
//!  policy.json.edits   {"of":…}             which file these lines go on with
//!                      {"delete":[…],"put":[…]}   an edit each, in their order
//! ```
//!
//! A line says how the objects are after its edit, so a line whose edit is in the
//! file already changes nothing. The first line has a digest of the file. If the
//! process ended after it had written the file and before it had removed the edits,
//! the edits belong to the former file: the digests differ, and the edits are
//! ignored. A line that was being written when the process ended is ignored, too,
//! with all lines behind it. The caller was not told yet that this edit is kept.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use log::warn;
use serde::{Deserialize, Serialize};

use super::SERVER_LOG as LOG;
use crate::model::{ChangeKind, Changes, ManagedObject, ModelError, Tree, Uri};

/// If the edits are longer than this and longer than the file, all policy is written again.
const LONGEST: u64 = 1 << 20;

/// The objects that one edit has changed, as they are after it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Line {
    delete: Vec<Uri>,
    put: Vec<ManagedObject>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    of: Digest,
}

/// A checksum that tells one version of the file from another. It need not resist an attacker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Digest {
    bytes: usize,
    fnv: u64,
}

impl Digest {
    fn of(text: &[u8]) -> Self {
        // FNV-1a. A checksum is enough: a program that can write these files can write any policy.
        let fnv = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self {
            bytes: text.len(),
            fnv,
        }
    }
}

/// The state of a file, which shows whether somebody has replaced or changed it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl Seen {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl Line {
    /// The line for an edit.
    pub(super) fn of(changes: &Changes, tree: &Tree) -> Self {
        let mut line = Self::default();
        for change in changes {
            // An object that is put keeps the parent it had, unless it is new.
            line.delete
                .extend((change.kind != ChangeKind::Created).then(|| change.uri.clone()));
            if let Some(object) = tree.get(&change.uri) {
                let mut object = object.to_object();
                // A child that is in the tree names its parent in its own entry.
                object.children.retain(|child| tree.get(child).is_none());
                line.put.push(object);
            }
        }
        line
    }

    /// The number of objects in it.
    pub(super) fn len(&self) -> usize {
        self.delete.len() + self.put.len()
    }

    fn make(self, tree: &mut Tree) -> Result<(), ModelError> {
        // The line lists each deleted object, so objects below that it does not list stay.
        let alone: HashSet<&Uri> = self.delete.iter().collect();
        tree.delete_sparing(&self.delete, |_, uri| !alone.contains(uri));
        tree.merge(self.put).map(drop)
    }
}

/// The edits behind one file.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    digest: Digest,
    /// The state of the kept file when the journal began.
    kept: Option<Seen>,
    /// Opened for the first edit.
    file: Option<File>,
    written: u64,
}

impl Journal {
    /// Begins anew behind a file that was just written.
    pub(super) fn begin(kept: &Path, text: &[u8]) -> Self {
        Self {
            path: beside(kept),
            digest: Digest::of(text),
            // Another program may have changed the file since it was written.
            kept: Seen::of(kept).filter(|seen| seen.len == text.len() as u64),
            file: None,
            written: 0,
        }
    }

    /// Whether further edits can be appended: the journal is not too long, and the kept file has
    /// not been changed.
    pub(super) fn goes_on(&self, kept: &Path) -> bool {
        self.written <= LONGEST.max(self.digest.bytes as u64)
            && self.kept.is_some()
            && self.kept == Seen::of(kept)
    }

    /// Whether there is an edit in it.
    pub(super) fn is_used(&self) -> bool {
        self.file.is_some()
    }

    /// Writes edits to the disk. After an error nothing more can be appended.
    pub(super) fn append(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut text = Vec::new();
        if self.file.is_none() {
            let of = Digest { ..self.digest };
            serde_json::to_writer(&mut text, &Head { of })?;
            text.push(b'\n');
        }
        for line in lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(File::create(&self.path)?),
        };
        file.write_all(&text)?;
        // The caller is told that the edit is kept, also if the host loses power now.
        file.sync_all()?;
        // Longer than the policy itself, it would cost more to read than it saves to write.
        self.written += text.len() as u64;
        Ok(())
    }
}

/// Removes the edits behind a file that has all of them.
pub(super) fn remove(kept: &Path) {
    let _ = fs::remove_file(beside(kept));
}

/// The policy of a file with the edits behind it.
pub(super) fn with_edits(kept: &Path, text: &[u8], objects: Vec<ManagedObject>) -> Vec<ManagedObject> {
    let path = beside(kept);
    let Ok(edits) = fs::read(&path) else {
        return objects;
    };
    let shown = path.display();
    let mut lines = edits.split_inclusive(|byte| *byte == b'\n');
    let head = lines
        .next()
        .and_then(|head| serde_json::from_slice::<Head>(head).ok());
    if head.is_none_or(|head| head.of != Digest::of(text)) {
        // The process ended between writing the file and beginning the edits anew.
        warn!(target: LOG, "{shown}: left out: these edits do not belong to {}", kept.display());
        return objects;
    }
    // The edits are made on a tree, because each may delete what an earlier one has put.
    let mut tree = Tree::new();
    if tree.merge(objects.clone()).is_err() {
        return objects;
    }
    for (n, line) in lines.enumerate() {
        let edit = Some(line).filter(|line| line.ends_with(b"\n"));
        let edit = edit.and_then(|line| serde_json::from_slice::<Line>(line).ok());
        if edit.and_then(|edit| edit.make(&mut tree).ok()).is_none() {
            warn!(target: LOG, "{shown}: what follows {n} edits is left out: it was not written to its end");
            break;
        }
    }
    tree.to_objects()
}

fn beside(kept: &Path) -> PathBuf {
    let mut name = kept.as_os_str().to_owned();
    name.push(".edits");
    name.into()
}
