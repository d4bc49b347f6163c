//! How to reach the scheduler, and as whom: each by a flag, else by the
//! environment, else by the user's file.
//!
//! ```yaml
//! # $XDG_CONFIG_HOME/ssntp/ctl.yaml, else ~/.config/ssntp/ctl.yaml
//! connect: scheduler.example:8888     # or a list
//! ca: ca.pem                          # relative to this file
//! cert: controller.pem
//! server_name: scheduler              # what the server's certificate has to hold
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use ssntp::Role;
use ssntp::client::{Backoff, ClientConfig};
use ssntp::cluster::controller::ControllerConfig;
use ssntp::payload::yaml;
use ssntp::pki::{Identity, Trust};
use ssntp::transport::Address;

use crate::failure::Failure;
use crate::seconds::Seconds;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The scheduler: HOST:PORT, [IPV6]:PORT or unix:PATH; of several, joined
    /// with commas, the first that answers [default: the file's, else the
    /// names in the CA certificate, else localhost]
    #[arg(
        long,
        value_name = "ADDR",
        global = true,
        env = "SSNTP_CONNECT",
        value_delimiter = ',',
        hide_env_values = true
    )]
    connect: Vec<Address>,
    /// The authority that the scheduler's certificate has to come from
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        env = "SSNTP_CA",
        hide_env_values = true
    )]
    ca: Option<PathBuf>,
    /// This controller's certificate and key
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        env = "SSNTP_CERT",
        hide_env_values = true
    )]
    cert: Option<PathBuf>,
    /// The name that the scheduler's certificate has to hold [default: the
    /// one connected to]
    #[arg(long, value_name = "NAME", global = true)]
    server_name: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// How long to wait until the scheduler answers, and again until a command
    /// is shown to be done [default: 180, and for a START as long as its node is
    /// at work on it]
    #[arg(long, value_name = "SECONDS", global = true)]
    timeout: Option<Seconds>,
}

/// Longer than the scheduler takes to answer a START of which nothing is heard,
/// so that users read its reason: 60 s held, and 90 s on a node.
const LIMIT: Duration = Duration::from_secs(180);

/// How long the scheduler is tried before a program that has one thing to do
/// gives up: six rounds, in between some three seconds at most. Once it was
/// there it may come back, for as long as the command is waited for.
const ATTEMPTS: u32 = 6;
const BACKOFF: Backoff = Backoff {
    initial: Duration::from_millis(100),
    factor: 2.0,
    cap: Duration::from_secs(1),
};

/// The user's file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    connect: Addresses,
    ca: String,
    cert: String,
    server_name: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Addresses {
    One(String),
    Several(Vec<String>),
}

impl Default for Addresses {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Options {
    /// How long to wait until the scheduler answers, and again until a command
    /// is shown to be done.
    pub(super) fn limit(&self) -> Duration {
        self.timeout.map_or(LIMIT, Duration::from)
    }

    /// For how long to wait, where the user has said it.
    pub(super) fn asked_limit(&self) -> Option<Duration> {
        self.timeout.map(Duration::from)
    }

    /// Whether the user has said for how long to wait.
    pub(super) fn is_limited(&self) -> bool {
        self.timeout.is_some()
    }

    /// A controller for a program that ends once it has done its work, or for
    /// one that goes on and connects again whenever it has to.
    pub(super) fn config(&self, goes_on: bool) -> Result<ControllerConfig, Failure> {
        let found = match (&self.ca, &self.cert) {
            // Then a file adds no more than an address.
            (Some(_), Some(_)) if !self.connect.is_empty() => None,
            _ => find_file()?,
        };
        let (file, directory) = found.unwrap_or_default();
        let path = |given: &Option<PathBuf>, in_file: &str, flag: &str, variable: &str| match given {
            Some(path) => Ok(path.clone()),
            None if in_file.is_empty() => Err(Failure::usage(format!(
                "--{flag} is needed: on the command line, as {variable}, or as {flag} in {}",
                file_path().map_or_else(
                    || "~/.config/ssntp/ctl.yaml".into(),
                    |path| path.display().to_string()
                )
            ))),
            None => Ok(directory.join(in_file)),
        };
        let ca = path(&self.ca, &file.ca, "ca", "SSNTP_CA")?;
        let cert = path(&self.cert, &file.cert, "cert", "SSNTP_CERT")?;
        let connect = match self.connect.is_empty() {
            true => file.addresses()?,
            false => self.connect.clone(),
        };
        let mut config = ClientConfig::new(Identity::load(cert)?, Trust::load(ca)?)
            .addresses(connect)
            .role(Role::CONTROLLER)
            .backoff(BACKOFF);
        let in_file = Some(&file.server_name).filter(|name| !name.is_empty());
        if let Some(name) = self.server_name.as_ref().or(in_file) {
            config = config.server_name(name);
        }
        if !goes_on {
            config = config.first_attempts(ATTEMPTS);
        }
        Ok(ControllerConfig::new(config))
    }
}

impl File {
    fn addresses(&self) -> Result<Vec<Address>, Failure> {
        let texts = match &self.connect {
            Addresses::One(text) => std::slice::from_ref(text),
            Addresses::Several(texts) => texts,
        };
        let parse = |text: &String| {
            let address = text.parse::<Address>();
            address.map_err(|e| Failure::usage(format!("connect in ctl.yaml: {text:?}: {e}")))
        };
        texts.iter().filter(|text| !text.is_empty()).map(parse).collect()
    }
}

/// Where the user's file is, if it is anywhere.
fn file_path() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = || Some(variable("HOME")?.join(".config"));
    // One that is relative is to be ignored, as the specification has it.
    let config = variable("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(home)?;
    Some(config.join("ssntp").join("ctl.yaml"))
}

/// The user's file and the directory that it is in.
fn find_file() -> Result<Option<(File, PathBuf)>, Failure> {
    let Some(path) = file_path() else {
        return Ok(None);
    };
    let shown = path.display();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::new(format!("{shown}: {e}"))),
    };
    let file = yaml::decode(&bytes).map_err(|e| Failure::usage(format!("{shown}: {e}")))?;
    let directory = path.parent().unwrap_or(Path::new("")).to_owned();
    Ok(Some((file, directory)))
}
