//! `ssntp cert`: makes, shows and checks certificates.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Subcommand, value_parser};
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::pki::{
    Authority, AuthorityRequest, CertificateInfo, CertificateRequest, Error, Fault, Host, Identity, KeyKind,
    Trust, load_certificates,
};
use uuid::Uuid;

use crate::failure::Failure;
use crate::output::Output;
use crate::signals::Stop;

/// Make, show and check certificates
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ca(Ca),
    Issue(Issue),
    Inspect(Inspect),
    Verify(Verify),
}

/// Make a certificate authority: DIR/ca.pem and DIR/ca.key
#[derive(Debug, clap::Args)]
struct Ca {
    /// Where to put it; made where there is none
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The organization it stands for
    #[arg(long, value_name = "ORG", default_value = "ssntp")]
    name: String,
    /// Where clients may look for a server: a DNS name or an IP address;
    /// may be given several times
    #[arg(long = "host", value_name = "NAME-OR-IP")]
    hosts: Vec<Host>,
    /// Kind of its key: p256, rsa2048, rsa4096 or ed25519
    #[arg(long, value_name = "KIND", default_value_t)]
    key: KeyKind,
    /// Lifetime in days
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Replace an authority that is there; what it issued is worth nothing then
    #[arg(long)]
    force: bool,
}

/// Issue a certificate and its key in one file: DIR/NAME.pem
///
/// An older file of that name is replaced.
#[derive(Debug, clap::Args)]
struct Issue {
    /// Where the authority is and the certificate goes
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// What its holder may be: server, controller, agent, scheduler, netagent
    /// or cnciagent, or several of them joined with commas
    #[arg(long = "role", value_name = "ROLE[,ROLE…]")]
    roles: Role,
    /// A DNS name or IP address of a server; may be given several times.
    /// Without it a server or scheduler gets localhost, 127.0.0.1, ::1 and
    /// this machine's name
    #[arg(long = "host", value_name = "NAME-OR-IP")]
    hosts: Vec<Host>,
    /// The only UUID its holder may connect with
    #[arg(long, conflicts_with = "bound")]
    uuid: Option<Uuid>,
    /// Bind it to a new UUID, which is printed: what --require-bound of a
    /// scheduler asks for
    #[arg(long)]
    bound: bool,
    /// Kind of the key: p256, rsa2048, rsa4096 or ed25519
    #[arg(long, value_name = "KIND", default_value_t)]
    key: KeyKind,
    /// Lifetime in days, cut where the authority's own ends
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Its holder's name and that of the file [default: the roles joined with -]
    #[arg(long)]
    name: Option<String>,
}

/// Show what the certificates in a file say
#[derive(Debug, clap::Args)]
struct Inspect {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A PEM file with certificates
    file: PathBuf,
}

/// Check a certificate as a TLS peer would, its role, and its key if there
///
/// Checked are the signatures up to the authority, the lifetimes, and that
/// it may be used for what its roles need.
#[derive(Debug, clap::Args)]
struct Verify {
    /// A PEM file with the trusted authorities
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A PEM file: the certificate, then intermediate ones
    file: PathBuf,
}

/// Runs `ssntp cert`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let _stop = Stop::install()?;
    match args.command {
        Command::Ca(ca) => make(ca),
        Command::Issue(request) => issue(request),
        Command::Inspect(what) => inspect(&what),
        Command::Verify(what) => verify(&what),
    }
}

fn make(args: Ca) -> Result<(), Failure> {
    let mut request = AuthorityRequest::default()
        .name(args.name)
        .key(args.key)
        .days(args.days);
    request.hosts = args.hosts;
    // Seconds for an RSA key would be wasted on an authority that is there.
    let present = ["ca.pem", "ca.key"].map(|name| args.dir.join(name));
    if let Some(path) = present.iter().find(|path| path.exists() && !args.force) {
        return Err(exists(path));
    }
    let authority = Authority::new(&request)?;
    authority
        .save(&args.dir, args.force)
        .map_err(|error| match error {
            Error::Exists { path } => exists(&path),
            other => other.into(),
        })?;
    let info = authority.info();
    let mut output = Output::new();
    output.line(format_args!(
        "{}: {}, {} key, valid until {}",
        args.dir.join("ca.pem").display(),
        info.subject,
        info.key,
        info.not_after_text()
    ))?;
    output.flush()
}

fn exists(path: &Path) -> Failure {
    Failure::new(format_args!(
        "{}: exists already; --force replaces the authority",
        path.display()
    ))
}

fn issue(args: Issue) -> Result<(), Failure> {
    let mut request = CertificateRequest::new(args.roles).key(args.key).days(args.days);
    request.hosts = args.hosts;
    request.uuid = args.uuid.or_else(|| args.bound.then(Uuid::new_v4));
    if let Some(name) = args.name {
        request.name = name;
    }
    let path = args.dir.join(file_name(&request.name)?);
    let authority = Authority::load(&args.dir).map_err(|error| match &error {
        Error::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Failure::new(format_args!("{error}; `ssntp cert ca` makes an authority"))
        }
        _ => error.into(),
    })?;
    let issued = authority.issue(&request)?;
    issued.save(&path)?;
    let info = issued.info();
    let mut output = Output::new();
    let bound = request.uuid.map(|uuid| format!(", bound to {uuid}"));
    output.line(format_args!(
        "{}: for {}, {} key, valid until {}{}",
        path.display(),
        info.roles,
        info.key,
        info.not_after_text(),
        bound.unwrap_or_default()
    ))?;
    output.flush()
}

/// The file of a certificate: beside the authority's, and never one of them.
fn file_name(name: &str) -> Result<String, Failure> {
    let is_authority = name.eq_ignore_ascii_case("ca");
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) || is_authority {
        return Err(Failure::usage(format_args!("{name:?} cannot be a file's name")));
    }
    Ok(format!("{name}.pem"))
}

fn inspect(args: &Inspect) -> Result<(), Failure> {
    let origin = args.file.display();
    let mut certificates = Vec::new();
    for certificate in load_certificates(&args.file)? {
        let info = CertificateInfo::from_der(&certificate);
        certificates.push(info.map_err(|fault| Failure::new(format_args!("{origin}: {fault}")))?);
    }
    let key = key_state(&args.file);
    let now = now();
    let mut output = Output::new();
    if args.json {
        let list: Vec<Value> = certificates.iter().map(|info| to_json(info, now)).collect();
        output.json(json!({
            "file": args.file.to_string_lossy(),
            "certificates": list,
            "private_key": key.name(),
        }))?;
        return output.flush();
    }
    for (index, info) in certificates.iter().enumerate() {
        let count = certificates.len();
        output.line(format_args!("{origin}: certificate {} of {count}", index + 1))?;
        for (name, value) in lines(info, now) {
            output.line(format_args!("  {name:<12} {value}"))?;
        }
    }
    output.line(format_args!("{origin}: private key: {}", key.text()))?;
    output.flush()
}

fn lines(info: &CertificateInfo, now: SystemTime) -> Vec<(&'static str, String)> {
    let mut usages = Vec::new();
    for (has, name) in [
        (info.is_authority, "certificate authority"),
        (info.server_auth && !info.is_authority, "serverAuth"),
        (info.client_auth && !info.is_authority, "clientAuth"),
    ] {
        if has {
            usages.push(name);
        }
    }
    let state = match info.check_validity(now) {
        Ok(()) => "",
        Err(Fault::Expired { .. }) => " (expired)",
        Err(_) => " (not yet)",
    };
    let validity = format!("{} to {}{state}", info.not_before_text(), info.not_after_text());
    let hosts: Vec<String> = info.hosts.iter().map(Host::to_string).collect();
    let mut lines = vec![
        ("subject", info.subject.clone()),
        ("issuer", info.issuer.clone()),
        ("serial", info.serial.clone()),
        ("roles", info.roles.to_string()),
    ];
    lines.extend(info.uuid.map(|uuid| ("uuid", uuid.to_string())));
    if !hosts.is_empty() {
        lines.push(("hosts", hosts.join(", ")));
    }
    if !info.other_names.is_empty() {
        lines.push(("other names", info.other_names.join(", ")));
    }
    lines.push(("valid", validity));
    lines.push(("key", info.key.clone()));
    lines.push(("usage", usages.join(", ")));
    lines.extend(info.fingerprint.clone().map(|text| ("sha256", text)));
    lines
}

fn to_json(info: &CertificateInfo, now: SystemTime) -> Value {
    let hosts: Vec<String> = info.hosts.iter().map(Host::to_string).collect();
    json!({
        "subject": info.subject,
        "issuer": info.issuer,
        "serial": info.serial,
        "roles": role_names(info.roles),
        "uuid": info.uuid.map(|uuid| uuid.to_string()),
        "hosts": hosts,
        "other_names": info.other_names,
        "not_before": info.not_before_text(),
        "not_after": info.not_after_text(),
        "valid_now": info.check_validity(now).is_ok(),
        "key": info.key,
        "is_authority": info.is_authority,
        "server_auth": info.server_auth,
        "client_auth": info.client_auth,
        "sha256": info.fingerprint,
    })
}

fn role_names(roles: Role) -> Vec<String> {
    roles.iter().map(|role| role.to_string()).collect()
}

/// What is known of the private key in a file with certificates.
enum Key {
    None,
    Matches,
    Bad(Fault),
}

impl Key {
    fn text(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Matches => "there, and the first certificate's".to_owned(),
            Self::Bad(fault) => fault.to_string(),
        }
    }

    /// For programs.
    fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Matches => "matches",
            Self::Bad(Fault::KeyMismatch) => "mismatch",
            Self::Bad(Fault::EncryptedKey) => "encrypted",
            Self::Bad(_) => "unusable",
        }
    }
}

fn key_state(file: &Path) -> Key {
    match Identity::load(file) {
        Ok(_) => Key::Matches,
        Err(Error::Content { fault, .. }) => match fault {
            Fault::NoKey => Key::None,
            // These are looked at after the key.
            Fault::Expired { .. } | Fault::NotYetValid { .. } | Fault::NoRole => Key::Matches,
            other => Key::Bad(other),
        },
        Err(other) => Key::Bad(Fault::UnusableKey(other.to_string())),
    }
}

fn verify(args: &Verify) -> Result<(), Failure> {
    let trust = Trust::load(&args.ca)?;
    let chain = load_certificates(&args.file)?;
    let key = key_state(&args.file);
    let checked = trust.verify(&chain).and_then(|info| match &key {
        Key::Bad(fault) => Err(fault.clone()),
        _ => Ok(info),
    });
    let mut output = Output::new();
    let file = args.file.display();
    match checked {
        Ok(info) if args.json => output.json(json!({
            "file": args.file.to_string_lossy(),
            "ok": true,
            "roles": role_names(info.roles),
            "subject": info.subject,
            "uuid": info.uuid.map(|uuid| uuid.to_string()),
            "not_after": info.not_after_text(),
            "private_key": key.name(),
        }))?,
        Ok(info) => output.line(format_args!(
            "{file}: good for {}, valid until {}",
            info.roles,
            info.not_after_text()
        ))?,
        Err(fault) => {
            if args.json {
                let (file, reason) = (args.file.to_string_lossy(), fault.to_string());
                output.json(json!({ "file": file, "ok": false, "reason": reason }))?;
                output.flush()?;
            }
            return Err(Failure::new(format_args!("{file}: {fault}")));
        }
    }
    output.flush()
}

#[expect(
    clippy::disallowed_methods,
    reason = "says whether a certificate is valid now"
)]
fn now() -> SystemTime {
    SystemTime::now()
}
