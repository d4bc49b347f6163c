//! Contexts: each names the address of a server and the files to connect with, so that commands
//! need no flags.
//!
//! ```yaml
//! # $XDG_CONFIG_HOME/ssntp/contexts.yaml, else ~/.config/ssntp/contexts.yaml
//! current: work
//! contexts:
//!   work:
//!     connect: scheduler.example:8888     # or a list
//!     ca: ca.pem                          # relative to this file
//!     cert: controller.pem
//!     key: controller.key                 # if it is not in the certificate's file
//!     crl: crl.pem                        # or a list; optional
//!     server_name: scheduler              # the name in the server's certificate
//! ```

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ssntp::payload::yaml;
use ssntp::proto::DEFAULT_PORT;
use ssntp::transport::{Address, AddressError};

use crate::failure::Failure;
use crate::input;

/// The longest file of contexts, in bytes: some thousand contexts.
const LONGEST: u64 = 1 << 20;

/// The contexts of a user.
#[derive(Debug, Default, Deserialize, Serialize)]
// A misspelt key is an error, here and in each context: without its value a command would connect
// to another server, or with another certificate.
#[serde(default, deny_unknown_fields)]
pub struct Contexts {
    /// The name of the current context; empty if there is none.
    pub current: String,
    pub contexts: BTreeMap<String, Context>,
}

/// The address of a server and the files to connect with. An empty value is not set.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    #[serde(deserialize_with = "yaml::one_or_many")]
    pub connect: Vec<String>,
    pub ca: String,
    pub cert: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "yaml::one_or_many")]
    pub crl: Vec<String>,
    pub server_name: String,
}

impl Context {
    /// The addresses to connect to.
    pub fn addresses(&self) -> Result<Vec<Address>, Failure> {
        let parse = |text: &String| {
            let address = address(text);
            address.map_err(|e| Failure::usage(format!("connect of the context: {text:?}: {e}")))
        };
        let given = self.connect.iter().filter(|text| !text.is_empty());
        given.map(parse).collect()
    }
}

/// Reads an address. Without a port it has that of SSNTP.
pub fn address(text: &str) -> Result<Address, AddressError> {
    Address::with_default_port(text, DEFAULT_PORT)
}

impl Contexts {
    /// Reads the user's file, which may be missing.
    pub fn load() -> Result<Self, Failure> {
        // A service may run without HOME. It has no contexts then, and needs none if its flags set
        // every value.
        path().map_or_else(|| Ok(Self::default()), |path| read(&path))
    }

    /// The context with this name, or the current context; `None` if there is no current context.
    /// File names in it are made absolute.
    pub fn find(&self, name: Option<&str>) -> Result<Option<Context>, Failure> {
        let name = name.unwrap_or(&self.current);
        if name.is_empty() {
            return Ok(None);
        }
        let context = self.contexts.get(name).cloned();
        let mut context = context.ok_or_else(|| self.unknown(name))?;
        let directory = path().and_then(|path| path.parent().map(Path::to_owned));
        let files = [&mut context.ca, &mut context.cert, &mut context.key];
        for file in files.into_iter().chain(&mut context.crl) {
            if let Some(directory) = &directory
                && !file.is_empty()
            {
                // `join` leaves an absolute name as it is.
                *file = directory.join(&*file).to_string_lossy().into_owned();
            }
        }
        Ok(Some(context))
    }

    pub fn unknown(&self, name: &str) -> Failure {
        let names: Vec<_> = self.contexts.keys().map(String::as_str).collect();
        Failure::usage(match names.as_slice() {
            [] => format!("there is no context {name:?}: `ssntp context add` has added none yet"),
            names => format!("there is no context {name:?}; there are: {}", names.join(", ")),
        })
    }

    /// Changes the user's file. The new file replaces the old one as a whole. A second program that
    /// changes it blocks until the first is done.
    pub fn change(change: impl FnOnce(&mut Self) -> Result<(), Failure>) -> Result<(), Failure> {
        let path = path().ok_or_else(|| {
            Failure::new("contexts cannot be kept: neither HOME nor XDG_CONFIG_HOME is set")
        })?;
        let directory = path.parent().unwrap_or(Path::new("."));
        // The lock is held until the file is replaced, because a change by another program
        // meanwhile would be lost.
        let _lock = lock(directory)?;
        let mut contexts = read(&path)?;
        change(&mut contexts)?;
        let text = yaml::encode(&contexts).map_err(|e| Failure::at(&path, e))?;
        ssntp_transport::replace(&path, &text).map_err(|e| Failure::at(&path, e))
    }
}

/// Locks a directory of the user against other `ssntp` processes until the file is dropped.
/// Blocks while another process has the lock. The directory is created if it does not exist.
pub fn lock(directory: &Path) -> Result<File, Failure> {
    let hold = || {
        // 0700, as the XDG specification requires.
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // The lock is on the directory: each change replaces the file, so a lock on the file would be
        // on a file that was removed.
        let held = File::open(directory)?;
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(held)
    };
    hold().map_err(|e: io::Error| Failure::at(directory, e))
}

/// The directory `ssntp` for the user's files: in the directory that the variable `name` names, else
/// in `below_home` of HOME. A relative value is ignored, as the XDG specification requires.
pub fn user_directory(name: &str, below_home: &str) -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = || Some(variable("HOME")?.join(below_home));
    let base = variable(name).filter(|path| path.is_absolute()).or_else(home)?;
    Some(base.join("ssntp"))
}

/// The file of the user's contexts; `None` if no variable names a directory.
fn path() -> Option<PathBuf> {
    Some(user_directory("XDG_CONFIG_HOME", ".config")?.join("contexts.yaml"))
}

fn read(path: &Path) -> Result<Contexts, Failure> {
    // A missing file is normal. It is recognized here, because the error of `input::file` is only
    // text.
    if fs::metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
        return Ok(Contexts::default());
    }
    let decoded = yaml::decode(&input::file(path, LONGEST)?);
    decoded.map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}
