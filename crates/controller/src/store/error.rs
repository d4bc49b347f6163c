//! What is wrong with a database, with its file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use thiserror::Error;

/// Why the database was not opened, read or written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// Another process has opened it.
    #[error("{}: another controller uses it", .0.display())]
    InUse(PathBuf),
    /// A later version of this program has written it.
    #[error("{}: it has the schema {found}, and this program knows the schemas up to {known}; \
        use the later program, or another directory", file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The latest version that is known here.
        known: i64,
    },
    /// The database refused.
    #[error("{}: {fault}: {why}", file.display())]
    Failed {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        fault: Fault,
        /// The words of the database or the system.
        why: String,
    },
    /// The controller has ended.
    #[error("the controller has ended")]
    Closed,
}

/// What is wrong with a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk or the file is full.
    Full,
    /// It cannot be written.
    ReadOnly,
    /// It is damaged, or no database at all.
    Damaged,
    /// It is the database of another program.
    Foreign,
    /// Anything else.
    Other,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "there is no room for it",
            Self::ReadOnly => "it cannot be written",
            Self::Damaged => "it is damaged, and has to be restored from a backup or moved away",
            Self::Foreign => "it is no database of a controller, and is left as it is",
            Self::Other => "it cannot be used",
        })
    }
}

impl StoreError {
    pub(super) fn of(file: &Path, error: rusqlite::Error) -> Self {
        let fault = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Fault::Full,
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                Fault::ReadOnly
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Fault::Damaged,
            // A row that is not what this program writes.
            None => Fault::Damaged,
            Some(_) => Fault::Other,
        };
        Self::Failed {
            file: file.to_owned(),
            fault,
            why: error.to_string(),
        }
    }

    pub(super) fn io(file: &Path, error: &io::Error) -> Self {
        let fault = match error.kind() {
            io::ErrorKind::StorageFull => Fault::Full,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => Fault::ReadOnly,
            _ => Fault::Other,
        };
        Self::Failed {
            file: file.to_owned(),
            fault,
            why: error.to_string(),
        }
    }
}
