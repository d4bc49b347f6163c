//! `ssntp cert show` and `ssntp cert verify`: what the certificates and lists in a file say, and whether a peer
//! would accept them.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use ssntp::pki::{CertificateInfo, Error, Fault, Host, Identity, RevocationList, load_certificates};
use ssntp_daemon::{CrlArgs, Failure, Output, even_unread, print_json, print_line};
use ssntp_transport::wall_clock;

use crate::cmd::table::{Columns, sheet};

/// Show what the certificates and revocation lists in a file say
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// A PEM file with certificates or revocation lists
    file: PathBuf,
}

/// Check a certificate as a TLS peer would, and its private key if the file has one
///
/// This checks the signatures up to the authority, the lifetimes, that the usages allow
/// what the roles need, and that no list of --crl has the certificate.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// A PEM file with the trusted authorities
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    #[command(flatten)]
    crl: CrlArgs,
    /// A PEM file: the certificate, then the intermediate certificates
    file: PathBuf,
}

pub(super) fn show(args: &Show, json: bool) -> Result<(), Failure> {
    let lists = RevocationList::load(&args.file);
    let found = match load_certificates(&args.file) {
        // A file that has only revocation lists is fine.
        Err(Error::Content {
            fault: Fault::NoCertificate,
            ..
        }) if lists.is_ok() => Vec::new(),
        found => found?,
    };
    let lists = match lists {
        Err(Error::Content {
            fault: Fault::NoRevocationList,
            ..
        }) => Vec::new(),
        lists => lists?,
    };
    let info = |certificate| CertificateInfo::from_der(certificate).map_err(|e| Failure::at(&args.file, e));
    let certificates = found.iter().map(info).collect::<Result<Vec<_>, _>>()?;
    let key = if certificates.is_empty() {
        Key::None
    } else {
        key_state(&args.file)
    };
    let now = wall_clock();
    if json {
        return print_json(json!({
            "file": args.file.to_string_lossy(),
            "certificates": certificates.iter().map(|info| to_json(info, now)).collect::<Value>(),
            "revocation_lists": lists.iter().map(|list| list_to_json(list, now)).collect::<Value>(),
            "private_key": key.name(),
        }));
    }
    let mut output = Output::lock();
    let (origin, count) = (args.file.display(), certificates.len());
    for (info, number) in certificates.iter().zip(1..) {
        let title = format!("{origin}: certificate {number} of {count}");
        output.text(sheet(&title, CERTIFICATE, &now, info))?;
    }
    for list in &lists {
        output.text(sheet(&format!("{origin}: revocation list"), LIST, &now, list))?;
        for revoked in list.revoked() {
            let (serial, since) = (&revoked.serial, revoked.time_text());
            output.line(format_args!("    {serial}  {since}  {}", revoked.reason))?;
        }
    }
    if !certificates.is_empty() {
        output.line(format_args!("{origin}: private key: {}", key.text()))?;
    }
    output.flush()
}

/// The lines about a certificate. `valid` is as of the given time.
#[rustfmt::skip] // One source line for each row of the table.
const CERTIFICATE: Columns<SystemTime, CertificateInfo> = &[
    ("subject", |_, info| info.subject.clone()),
    ("issuer", |_, info| info.issuer.clone()),
    ("serial", |_, info| info.serial.clone()),
    ("roles", |_, info| info.roles.to_string()),
    ("uuid", |_, info| info.uuid.map(|uuid| uuid.to_string()).unwrap_or_default()),
    ("hosts", |_, info| hosts(info).join(", ")),
    ("other names", |_, info| info.other_names.join(", ")),
    ("valid", validity),
    ("key", |_, info| info.key.clone()),
    ("usage", |_, info| usages(info).to_owned()),
    ("sha256", |_, info| info.fingerprint.clone()),
];

/// The lines about a revocation list, before its entries.
#[rustfmt::skip]
const LIST: Columns<SystemTime, RevocationList> = &[
    ("issuer", |_, list| list.issuer.clone()),
    ("number", |_, list| list.number.map_or("none".to_owned(), |number| number.to_string())),
    ("this update", |_, list| list.this_update_text()),
    ("next update", |now, list| {
        let late = if is_current(list, *now) { "" } else { " (out of date)" };
        list.next_update_text().unwrap_or("none".to_owned()) + late
    }),
    ("revoked", |_, list| list.len().to_string()),
];

fn is_current(list: &RevocationList, now: SystemTime) -> bool {
    list.next_update.is_none_or(|next| next > now)
}

fn validity(now: &SystemTime, info: &CertificateInfo) -> String {
    let state = match info.check_validity(*now) {
        Ok(()) => "",
        Err(Fault::Expired { .. }) => " (expired)",
        Err(_) => " (not yet valid)",
    };
    format!("{} to {}{state}", info.not_before_text(), info.not_after_text())
}

fn usages(info: &CertificateInfo) -> &'static str {
    match (info.is_authority, info.server_auth, info.client_auth) {
        (true, ..) => "certificate authority",
        (_, true, true) => "serverAuth, clientAuth",
        (_, true, false) => "serverAuth",
        (_, false, true) => "clientAuth",
        (_, false, false) => "",
    }
}

fn hosts(info: &CertificateInfo) -> Vec<String> {
    info.hosts.iter().map(Host::to_string).collect()
}

pub(super) fn list_to_json(list: &RevocationList, now: SystemTime) -> Value {
    let revoked = list.revoked().into_iter().map(|revoked| {
        json!({
            "serial": revoked.serial.to_string(),
            "time": revoked.time_text(),
            "reason": revoked.reason.to_string(),
        })
    });
    json!({
        "issuer": list.issuer,
        "number": list.number,
        "this_update": list.this_update_text(),
        "next_update": list.next_update_text(),
        "valid_now": is_current(list, now),
        "revoked": revoked.collect::<Vec<_>>(),
    })
}

pub(super) fn to_json(info: &CertificateInfo, now: SystemTime) -> Value {
    json!({
        "subject": info.subject,
        "issuer": info.issuer,
        "serial": info.serial,
        "roles": info.roles.names(),
        "uuid": info.uuid,
        "hosts": hosts(info),
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

/// The state of the private key in a file with certificates.
enum Key {
    None,
    Matches,
    Bad(Fault),
}

impl Key {
    fn text(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Matches => "belongs to the first certificate".to_owned(),
            Self::Bad(fault) => fault.to_string(),
        }
    }

    /// The state as a word in JSON.
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
        // `Identity::load` also checks the certificate. Only faults of the key matter here.
        Err(Error::Content { fault, .. }) => match fault {
            Fault::NoKey => Key::None,
            // These faults are found after the key was checked.
            Fault::Expired { .. } | Fault::NotYetValid { .. } | Fault::NoRole => Key::Matches,
            other => Key::Bad(other),
        },
        Err(other) => Key::Bad(Fault::UnusableKey(other.to_string())),
    }
}

pub(super) fn verify(args: &Verify, json: bool) -> Result<(), Failure> {
    let trust = args.crl.trust(&args.ca)?;
    let chain = load_certificates(&args.file)?;
    let key = key_state(&args.file);
    let checked = trust.verify(&chain).and_then(|info| match &key {
        Key::Bad(fault) => Err(fault.clone()),
        _ => Ok(info),
    });
    let file = args.file.to_string_lossy();
    match checked {
        Ok(info) if json => print_json(json!({
            "file": file,
            "ok": true,
            "roles": info.roles.names(),
            "subject": info.subject,
            "uuid": info.uuid,
            "not_after": info.not_after_text(),
            "private_key": key.name(),
        })),
        Ok(info) => {
            let (roles, until) = (info.roles, info.not_after_text());
            print_line(format_args!("{file}: good for {roles}, valid until {until}"))
        }
        Err(fault) => {
            if json {
                let printed = print_json(json!({ "file": file, "ok": false, "reason": fault.to_string() }));
                even_unread(printed)?;
            }
            Err(Failure::at(&args.file, fault))
        }
    }
}
