//! The journal: edits that are newer than the file in which policy is kept. With it, the cost of
//! keeping an edit depends on the size of the edit and not on the size of the policy.
//!
//! ```text
//!  policy.json         all policy at the time of the last full write
//!  policy.json.edits   {"of":…}                   the digest of policy.json
//!                      {"delete":[…],"put":[…]}   one line for each edit, in their order
//! ```
//!
//! A line has the state of the objects after its edit. The first line has a digest of the
//! file. If the process ended after it had written the file and before it had removed the
//! journal, the digest is that of the former file, and the journal is ignored. If the process
//! ended while it was writing the last line, this line is ignored. The caller of that edit had not
//! got an answer yet. Any other line that is not an edit is an error: later edits were answered.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use log::warn;
use serde::{Deserialize, Serialize};

use super::config::{SERVER_LOG as LOG, StartError};
use crate::model::{ChangeKind, Changes, ManagedObject, ModelError, Tree, Uri};

/// If the journal is longer than this and longer than the file, all policy is written again.
const LONGEST: u64 = 1 << 20;

/// The objects that one edit has changed, in their state after the edit.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EditLine {
    delete: Vec<Uri>,
    put: Vec<ManagedObject>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    of: Digest,
}

/// A checksum that identifies a version of the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Digest {
    bytes: usize,
    fnv: u64,
}

impl Digest {
    fn of(text: &[u8]) -> Self {
        // FNV-1a. It need not resist an attacker: a program that can write the journal can write policy.
        let fnv = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self {
            bytes: text.len(),
            fnv,
        }
    }
}

/// The metadata of a file, which differs if another program has replaced or changed the file.
#[derive(Debug, PartialEq, Eq)]
struct Fingerprint {
    inode: u64,
    mode: u32,
    len: u64,
    changed: (i64, i64),
}

impl Fingerprint {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            inode: metadata.ino(),
            mode: metadata.mode(),
            len: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl EditLine {
    /// The line for an edit.
    pub(super) fn of(changes: &Changes, tree: &Tree) -> Self {
        let mut line = Self::default();
        for change in changes {
            // Deleted first, because a merge without a parent keeps the former parent.
            line.delete
                .extend((change.kind != ChangeKind::Created).then(|| change.uri.clone()));
            if let Some(object) = tree.get(&change.uri) {
                let mut object = object.to_object();
                // The other children name their parent themselves.
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

    fn apply(self, tree: &mut Tree) -> Result<(), ModelError> {
        // The line lists each deleted object, so objects below that it does not list stay.
        tree.delete_alone(&self.delete);
        tree.merge(self.put).map(drop)
    }
}

/// The journal of one file.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    digest: Digest,
    /// The fingerprint of the kept file when the journal began.
    kept: Option<Fingerprint>,
    /// Opened for the first edit.
    file: Option<File>,
    written: u64,
}

impl Journal {
    /// Begins the journal of a file that was just written with `text`.
    pub(super) fn begin(kept: &Path, text: &[u8]) -> Self {
        Self {
            path: beside(kept),
            digest: Digest::of(text),
            // Another program may have changed the file since it was written.
            kept: Fingerprint::of(kept).filter(|kept| kept.len == text.len() as u64),
            file: None,
            written: 0,
        }
    }

    /// True if further edits can be appended: the journal is not too long, and the kept file is
    /// unchanged.
    pub(super) fn is_appendable(&self, kept: &Path) -> bool {
        self.written <= LONGEST.max(self.digest.bytes as u64)
            && self.kept.is_some()
            && self.kept == Fingerprint::of(kept)
    }

    /// True if the journal has an edit.
    pub(super) fn is_used(&self) -> bool {
        self.file.is_some()
    }

    /// Writes edits to the disk. After an error the journal must not be used any more.
    pub(super) fn append(&mut self, lines: &[EditLine]) -> io::Result<()> {
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
            None => {
                // The journal has policy, so it gets the permissions of the kept file.
                let mode = self.kept.as_ref().map_or(0o600, |kept| kept.mode & 0o777);
                self.file.insert(create(&self.path, mode)?)
            }
        };
        file.write_all(&text)?;
        // The edit has to survive a loss of power once its caller has the answer.
        file.sync_all()?;
        self.written += text.len() as u64;
        Ok(())
    }
}

/// Creates the journal, which replaces the journal of an earlier process.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    let _ = fs::remove_file(path);
    // `create_new` opens no file and follows no link that another user has put there.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    // Otherwise the directory may lack the file after a loss of power.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

/// Removes the journal of a file that has all its edits.
pub(super) fn remove(kept: &Path) {
    let _ = fs::remove_file(beside(kept));
}

/// Checks that a file that does not exist has no journal: somebody has removed the file, and the next one would
/// replace the edits.
///
/// # Errors
/// There is a journal.
pub(super) fn check_absent(kept: &Path) -> Result<(), StartError> {
    let path = beside(kept);
    if fs::symlink_metadata(&path).is_err() {
        return Ok(());
    }
    let why = format!(
        "it is missing, and {} has edits of it; restore it, or delete those",
        path.display()
    );
    Err(StartError::Keep(
        kept.into(),
        io::Error::new(io::ErrorKind::NotFound, why),
    ))
}

/// The policy of a file with the edits of its journal.
///
/// # Errors
/// The journal exists and cannot be read, or has a line that is no edit.
pub(super) fn with_edits(
    kept: &Path,
    text: &[u8],
    objects: Vec<ManagedObject>,
) -> Result<Vec<ManagedObject>, StartError> {
    let path = beside(kept);
    let edits = match fs::read(&path) {
        Ok(edits) => edits,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(objects),
        // Without an error here, edits that were answered as kept would be lost.
        Err(e) => return Err(StartError::Keep(path, e)),
    };
    let shown = path.display();
    let damaged = |n: usize| {
        // Each line but the first one is an edit that was answered.
        let way = match n {
            1 => "delete the file to begin without its edits",
            _ => "remove the line to begin without that edit; deleting the file would lose all edits",
        };
        let why = format!("line {n} is damaged; {way}");
        StartError::Keep(path.clone(), io::Error::new(io::ErrorKind::InvalidData, why))
    };
    let mut lines = edits.split_inclusive(|byte| *byte == b'\n').zip(1..);
    // A crash leaves a part of a line at the end.
    let is_torn = |line: &[u8]| !line.ends_with(b"\n");
    let head = match lines.next().filter(|(head, _)| !is_torn(head)) {
        Some((head, n)) => Some(serde_json::from_slice::<Head>(head).map_err(|_| damaged(n))?),
        None => None,
    };
    if head.is_none_or(|head| head.of != Digest::of(text)) {
        // The process ended between writing the file and removing the journal.
        warn!(target: LOG, "{shown}: ignored: these edits do not belong to {}", kept.display());
        return Ok(objects);
    }
    // A tree, because an edit may delete objects that an earlier edit has added.
    let mut tree = Tree::new();
    if tree.merge(objects.clone()).is_err() {
        return Ok(objects);
    }
    for (line, n) in lines {
        if is_torn(line) {
            warn!(target: LOG, "{shown}: line {n} is ignored: it was not written completely");
            break;
        }
        let edit = serde_json::from_slice::<EditLine>(line).map_err(|_| damaged(n))?;
        edit.apply(&mut tree).map_err(|_| damaged(n))?;
    }
    Ok(tree.to_objects())
}

fn beside(kept: &Path) -> PathBuf {
    let mut name = kept.as_os_str().to_owned();
    name.push(".edits");
    name.into()
}
