//! The copies of files that concentrators get from their node: authorities, lists and certificates.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use log::debug;
use ssntp_transport::replace;
use uuid::Uuid;

use super::config::NetworkConfig;

/// Replaces the files of a concentrator that runs, if the originals have changed. The concentrator
/// notices the change and reads them again.
pub(super) fn renew(config: &NetworkConfig, concentrator: Uuid, directory: &Path) {
    for (name, from) in config.files_of(concentrator) {
        if let Err(e) = copy(&name, &from, directory) {
            // This is logged at debug only, because the certificate may be missing for a long time.
            debug!("concentrator {concentrator}: {name}: {e}");
        }
    }
}

/// Makes a file with the content of these files, unless it exists, and returns its path. A new copy
/// has the owner of the former one.
pub(super) fn copy(name: &str, from: &[PathBuf], directory: &Path) -> io::Result<PathBuf> {
    let to = directory.join(name.to_ascii_lowercase());
    let content = joined(from)?;
    // The user of the concentrator owns the copy, and may have made it longer than the memory.
    let mut present = Vec::new();
    let read = File::open(&to).and_then(|file| file.take(content.len() as u64 + 1).read_to_end(&mut present));
    match read {
        Ok(_) if present == content => Ok(to),
        _ => replace(&to, &content).map(|()| to),
    }
}

/// The content of all these files, each with a line break at its end.
fn joined(files: &[PathBuf]) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for file in files {
        let content =
            fs::read(file).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))?;
        all.extend(content);
        all.push(b'\n');
    }
    Ok(all)
}
