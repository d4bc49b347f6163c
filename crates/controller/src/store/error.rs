//! Errors of the database. Each names the file.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use thiserror::Error;

/// Why the database was not opened, read or written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// Another process uses the database.
    #[error("{}: another controller uses it", .0.display())]
    InUse(PathBuf),
    /// A later version of this program has written the database.
    #[error("{}: it has the schema {found}, and this program knows the schemas up to {known}; \
        use the later program, or another directory", file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The latest version that this program knows.
        known: i64,
    },
    /// SQLite or the system reports an error.
    #[error("{}: {fault}: {why}", file.display())]
    Failed {
        /// The file.
        file: PathBuf,
        /// The kind of error.
        fault: Fault,
        /// The message of SQLite or of the system.
        why: String,
    },
    /// The controller has ended.
    #[error("the controller has ended")]
    Closed,
}

/// The kind of an error of the database.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full, or the file has its largest size.
    #[error("there is no room for it")]
    Full,
    /// The file or the directory cannot be written.
    #[error("it cannot be written")]
    ReadOnly,
    /// The file is damaged, or is not a database.
    #[error("it is damaged, and has to be restored from a backup or moved away")]
    Damaged,
    /// The file is the database of another program.
    #[error("it is not a database of a controller, and was not changed")]
    Foreign,
    /// Any other error.
    #[error("it cannot be used")]
    Other,
}

impl StoreError {
    pub(super) fn failed(file: &Path, fault: Fault, why: String) -> Self {
        let file = file.to_owned();
        Self::Failed { file, fault, why }
    }

    pub(super) fn of(file: &Path, error: rusqlite::Error) -> Self {
        let fault = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Fault::Full,
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                Fault::ReadOnly
            }
            // The faults are those that an operator can act on; the text of SQLite has the rest.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Fault::Damaged,
            // A row whose content this program does not write.
            None => Fault::Damaged,
            Some(_) => Fault::Other,
        };
        Self::failed(file, fault, error.to_string())
    }

    pub(super) fn io(file: &Path, error: &io::Error) -> Self {
        let fault = match error.kind() {
            io::ErrorKind::StorageFull => Fault::Full,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => Fault::ReadOnly,
            _ => Fault::Other,
        };
        Self::failed(file, fault, error.to_string())
    }
}
