//! `ssntp cert`: makes, renews, revokes, shows and checks certificates.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | what an authority does: `ca`, `issue`, `issuer`, `renew`, `revoke`, `crl` |
//! | `signing` | `request` and `sign`, for holders that make their own key and send a request only |
//! | `show` | `show` and `verify`: what is in a file |

mod show;
mod signing;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Subcommand, value_parser};
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::pki::{
    Authority, AuthorityRequest, CertificateInfo, CertificateRequest, Error, Fault, Host, KeyKind,
    RenewalRequest, RevocationReason, Revoked, Serial, SignedRevocationList, Trust, load_certificates,
};
use ssntp_daemon::{CrlArgs, Failure, Given, Output, Stop, print_either, print_json, print_line, printable};
use ssntp_transport::wall_clock;
use uuid::Uuid;

use self::show::{list_to_json, to_json};

/// Make, renew, revoke, show and check certificates
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Ca(Ca),
    Issue(Issue),
    Issuer(IssuerArgs),
    Request(signing::Request),
    Sign(signing::Sign),
    Renew(Renew),
    Revoke(Revoke),
    Crl(Crl),
    #[command(alias = "inspect")]
    Show(show::Show),
    Verify(show::Verify),
}

/// Make a certificate authority: DIR/ca.pem and DIR/ca.key
#[derive(Debug, clap::Args)]
struct Ca {
    /// The directory for the authority's files; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The organization in the authority's certificate
    #[arg(long, value_name = "ORG", default_value = "ssntp")]
    name: String,
    /// A DNS name or IP address at which clients look for a server if they are given
    /// none; may be given several times
    #[arg(long = "host", value_name = "NAME-OR-IP")]
    hosts: Vec<Host>,
    /// Kind of the authority's key: p256, rsa2048, rsa4096 or ed25519
    #[arg(long, value_name = "KIND", default_value_t)]
    key: KeyKind,
    /// Lifetime in days
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Replace an existing authority; certificates that it issued are no longer valid
    #[arg(long)]
    force: bool,
}

/// Issue a certificate and its key in one file: DIR/NAME.pem
///
/// A certificate of that name stays as it is: `ssntp cert renew` replaces it, and keeps its
/// holder's UUID.
#[derive(Debug, clap::Args)]
struct Issue {
    /// The authority's directory; the certificate is written there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    holder: Holder,
    /// Kind of the key: p256, rsa2048, rsa4096 or ed25519
    #[arg(long, value_name = "KIND", default_value_t)]
    key: KeyKind,
    /// Lifetime in days; a certificate ends with its authority's at the latest
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Replace an existing file, also if that changes the UUID of its holder
    #[arg(long)]
    force: bool,
}

/// Make the issuer of a scheduler that lets nodes join: DIR/NAME.pem
///
/// The file is for `ssntp scheduler --issuer`. With it the scheduler gives nodes the roles
/// that it lists, and no other. Each of several schedulers has an issuer of its own.
#[derive(Debug, clap::Args)]
struct IssuerArgs {
    /// The authority's directory; the issuer is written there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The roles that it may give: agent, netagent or cnciagent, joined with commas
    #[arg(long = "role", value_name = "ROLE[,ROLE…]", default_value = "agent,netagent")]
    roles: Role,
    /// The name of the issuer and of the file
    #[arg(long, default_value = "issuer")]
    name: String,
    /// Lifetime in days; an issuer ends with its authority at the latest
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// The properties of a certificate's holder.
#[derive(Debug, clap::Args)]
struct Holder {
    /// The holder's roles: server, controller, agent, scheduler, netagent or cnciagent,
    /// or several of them joined with commas
    #[arg(long = "role", value_name = "ROLE[,ROLE…]")]
    roles: Role,
    /// A DNS name or IP address of a server; may be given several times [default: for a
    /// server or scheduler localhost, 127.0.0.1, ::1 and this machine's name; `cert sign`
    /// has no default]
    #[arg(long = "host", value_name = "NAME-OR-IP")]
    hosts: Vec<Host>,
    /// Bind the certificate to this UUID, the only one that its holder may connect with
    #[arg(long, conflicts_with = "bound")]
    uuid: Option<Uuid>,
    /// Bind the certificate to a new UUID, and print it; a scheduler without
    /// --allow-unbound admits nodes only with such a certificate
    #[arg(long)]
    bound: bool,
    /// The name of the holder and of the file [default: the roles joined with -]
    #[arg(long)]
    name: Option<String>,
}

impl Holder {
    fn request(self) -> CertificateRequest {
        let mut request = CertificateRequest::new(self.roles);
        request.hosts = self.hosts;
        request.uuid = self.uuid.or_else(|| self.bound.then(Uuid::new_v4));
        request.given(self.name, CertificateRequest::name)
    }
}

/// Replace a certificate in its file by a new one: DIR/NAME.pem
///
/// The new certificate has the same names and roles, as many days, and a new key. The
/// old one stays valid until it expires or is revoked. NAME `ca` is the authority
/// itself, which keeps its key: certificates that it has issued are valid under its
/// old and its new certificate.
#[derive(Debug, clap::Args)]
struct Renew {
    /// The directory of the authority and the certificate
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Keep the key
    #[arg(long)]
    keep_key: bool,
    /// Lifetime in days [default: that of the old certificate]; a certificate ends with
    /// its authority's at the latest
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=36_500))]
    days: Option<u32>,
    /// Revoke the old certificate with the reason `superseded`; the list is valid for 30 days
    #[arg(long)]
    revoke_old: bool,
    /// Accept old certificates of the authorities in this file as well, for a cluster that
    /// changes to another authority
    #[arg(long, value_name = "FILE")]
    issued_by: Option<PathBuf>,
    /// Revocation lists of those authorities; may be given several times
    /// [default: the crl.pem beside the file of --issued-by, if there is one]
    #[arg(long, value_name = "FILE", requires = "issued_by")]
    crl: Vec<PathBuf>,
    /// The certificate's name (DIR/NAME.pem), its file, or `ca` for the authority
    name: String,
}

/// Revoke certificates: put them on the revocation list, DIR/crl.pem
///
/// Servers and clients with this list (--crl) refuse the certificates on it. Entries are
/// never removed from it.
#[derive(Debug, clap::Args)]
struct Revoke {
    /// The directory of the authority and its list
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The reason: unspecified, key-compromise, affiliation-changed, superseded,
    /// cessation-of-operation or privilege-withdrawn
    #[arg(long, value_name = "REASON", default_value_t)]
    reason: RevocationReason,
    /// The number of days for which the list is valid
    #[arg(long, value_name = "N", default_value_t = LIST_DAYS, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// The certificates, each by its name (DIR/NAME.pem), its file, or its serial number
    /// as `ssntp cert show` prints it
    #[arg(value_name = "NAME|FILE|SERIAL", required = true)]
    certificates: Vec<String>,
}

/// Sign the list of revoked certificates again, so that it stays valid: DIR/crl.pem
#[derive(Debug, clap::Args)]
struct Crl {
    /// The directory of the authority and its list
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The number of days for which the list is valid
    #[arg(long, value_name = "N", default_value_t = LIST_DAYS, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Runs `ssntp cert`.
pub(crate) fn run(Args { json, what }: Args) -> Result<(), Failure> {
    // A signal does not interrupt the writing of a key or a list. If the program is killed instead, its
    // exit code is not 0.
    let _stop = Stop::install_for_commands()?;
    match what {
        What::Ca(ca) => make(ca, json),
        What::Issue(request) => issue(request, json),
        What::Issuer(args) => issuer(&args, json),
        What::Request(request) => signing::request(request, json),
        What::Sign(request) => signing::sign(request, json),
        What::Renew(args) => renew(&args, json),
        What::Revoke(args) => revoke(&args.dir, args.days, args.reason, &args.certificates, json),
        What::Crl(args) => revoke(&args.dir, args.days, RevocationReason::default(), &[], json),
        What::Show(args) => show::show(&args, json),
        What::Verify(args) => show::verify(&args, json),
    }
}

fn make(args: Ca, json: bool) -> Result<(), Failure> {
    let mut request = AuthorityRequest::default()
        .name(args.name)
        .key(args.key)
        .days(args.days);
    request.hosts = args.hosts;
    // Checked before the key is made, because an RSA key takes seconds.
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
    let (info, path) = (authority.info(), args.dir.join("ca.pem"));
    print_either(
        json,
        made_json(&path, info, None),
        made(&path, &info.subject, info),
    )
}

/// The line that reports a new certificate.
fn made(path: &Path, what: &str, info: &CertificateInfo) -> String {
    let (path, key, until) = (path.display(), &info.key, info.not_after_text());
    format!("{path}: {what}, {key} key, valid until {until}")
}

/// The same for programs, with the certificate that was in the file before.
fn made_json(path: &Path, info: &CertificateInfo, before: Option<&CertificateInfo>) -> Value {
    let now = wall_clock();
    json!({
        "file": path.to_string_lossy(),
        "certificate": to_json(info, now),
        "replaced": before.map(|before| to_json(before, now)),
    })
}

fn exists(path: &Path) -> Failure {
    Failure::at(path, "exists already; --force replaces the authority")
}

fn issue(args: Issue, json: bool) -> Result<(), Failure> {
    let request = args.holder.request().key(args.key).days(args.days);
    let path = args.dir.join(file_name(&request.name)?);
    let has_hosts = !request.hosts.is_empty();
    let authority = authority(&args.dir)?;
    let before = certificate_in(&path);
    let why = "exists already; `ssntp cert renew` replaces its certificate, and --force the file";
    let issued = new_file(&path, args.force, why, || {
        let issued = authority.issue(&request)?;
        issued.save(&path).map(|()| issued)
    })?;
    let info = issued.info();
    print_issued(&path, before.as_ref(), info, json)?;
    if !json && !has_hosts && !info.hosts.is_empty() {
        return print_line(format_args!(
            "clients reach it as {}; --host NAME gives it the name that other hosts use",
            info.hosts_text()
        ));
    }
    Ok(())
}

fn issuer(args: &IssuerArgs, json: bool) -> Result<(), Failure> {
    let path = args.dir.join(file_name(&args.name)?);
    let authority = authority(&args.dir)?;
    let why = "exists already; --force replaces the issuer";
    let issuer = new_file(&path, args.force, why, || {
        let issuer = authority.issuer(&args.name, args.roles, args.days)?;
        issuer.save(&path).map(|()| issuer)
    })?;
    let (what, info) = (format!("an issuer for {}", args.roles), issuer.info());
    print_either(json, made_json(&path, info, None), made(&path, &what, info))
}

/// Calls `make`, which writes this file. Without `force` an existing file is an error, also if another program makes it at
/// this moment: an empty file keeps its place meanwhile.
fn new_file<T>(
    path: &Path,
    force: bool,
    exists: &str,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Failure> {
    if force {
        return Ok(make()?);
    }
    let is_empty = || fs::metadata(path).is_ok_and(|file| file.len() == 0);
    File::create_new(path).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists if is_empty() => Failure::at(
            path,
            "is empty, as a command that was killed leaves it; --force replaces it",
        ),
        ErrorKind::AlreadyExists => Failure::at(path, exists),
        _ => Failure::at(path, e),
    })?;
    // If there is nothing to write, the empty file must not stay.
    Ok(make().inspect_err(|_| drop(fs::remove_file(path)))?)
}

/// The certificate that a new one is about to replace; `None` if there is none.
fn certificate_in(path: &Path) -> Option<CertificateInfo> {
    CertificateInfo::from_der(load_certificates(path).ok()?.first()?).ok()
}

/// Prints that a holder has a new certificate, in place of the one before, if there was one.
fn print_issued(
    path: &Path,
    before: Option<&CertificateInfo>,
    info: &CertificateInfo,
    json: bool,
) -> Result<(), Failure> {
    if json {
        return print_json(made_json(path, info, before));
    }
    let made = made(path, &format!("for {}", info.roles), info);
    match info.uuid {
        Some(uuid) => print_line(format_args!("{made}, bound to {uuid}"))?,
        None => print_line(made)?,
    }
    before.map_or(Ok(()), print_old)
}

/// Prints what is needed to revoke a certificate that is no longer in its file.
fn print_old(before: &CertificateInfo) -> Result<(), Failure> {
    print_line(format_args!(
        "the old certificate is valid until {}, serial {}",
        before.not_after_text(),
        before.serial
    ))
}

fn authority(directory: &Path) -> Result<Authority, Failure> {
    Authority::load(directory).map_err(|error| match &error {
        Error::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
            Failure::new(format_args!("{error}; `ssntp cert ca` makes an authority"))
        }
        _ => error.into(),
    })
}

fn renew(args: &Renew, json: bool) -> Result<(), Failure> {
    let authority = authority(&args.dir)?;
    if is_authority(&args.name) {
        return renew_authority(&authority, args, json);
    }
    let path = match Path::new(&args.name) {
        path if is_path(&args.name) => path.to_owned(),
        _ => args.dir.join(file_name(&args.name)?),
    };
    let mut request = RenewalRequest::default();
    request.days = args.days;
    request.keep_key = args.keep_key;
    if let Some(ca) = &args.issued_by {
        request.issued_by = Some(earlier_trust(ca, &args.crl)?);
    }
    if args.revoke_old {
        // Before the renewal, because only the authority that issued a certificate can revoke it.
        serial_in_file(&authority, &path)?;
    }
    let renewed = authority.renew(&args.dir, &path, &request).map_err(|error| {
        let has_no_key = matches!(
            error,
            Error::Content {
                fault: Fault::NoKey,
                ..
            }
        );
        if certificate_in(&path).is_some_and(|it| it.is_authority) && matches!(error, Error::Request(_)) {
            let why = "it is an issuer's: `ssntp cert issuer --force` makes another in its place";
            return Failure::at(&path, why);
        }
        let failure = Failure::from(error);
        // The key of a request is on the host of its holder.
        if has_no_key {
            failure.with_advice("a certificate of `ssntp cert sign` is renewed by signing its request again")
        } else {
            failure
        }
    })?;
    let (before, info) = (&renewed.before, renewed.issued.info());
    let revoke = || {
        let old = Revoked::now(Serial::from(before), RevocationReason::SUPERSEDED);
        authority.revoke(&args.dir, &[old], LIST_DAYS).map_err(|why| {
            // The file holds only the new certificate, so only this error still has the number.
            let serial = &before.serial;
            Failure::at(
                &path,
                format_args!(
                    "it is renewed, but the old certificate, serial {serial}, is not revoked: {why}"
                ),
            )
        })
    };
    // Before the first line is printed, because the command ends if the output is closed.
    let list = args.revoke_old.then(revoke).transpose()?;
    if json {
        let mut value = made_json(&path, info, Some(before));
        value["revocation_list"] = list.map_or(Value::Null, |list| signed_json(&args.dir, &list));
        return print_json(value);
    }
    let made = made(&path, &format!("renewed for {}", info.roles), info);
    print_line(format_args!("{made}, serial {}", info.serial))?;
    match list {
        Some(list) => print_list(&args.dir, &list),
        None => print_old(before),
    }
}

/// The authorities that may have issued the old certificate, with their revocation lists.
fn earlier_trust(ca: &Path, lists: &[PathBuf]) -> Result<Trust, Failure> {
    // Without the list of the earlier authority, a certificate that is on it would be renewed.
    let mut crl = lists.to_vec();
    let beside = ca.with_file_name("crl.pem");
    if crl.is_empty() && beside.symlink_metadata().is_ok() {
        crl.push(beside);
    }
    // The certificates on a list that is out of date must not be renewed either.
    let crl_strict = false;
    CrlArgs { crl, crl_strict }.trust(ca)
}

fn renew_authority(authority: &Authority, args: &Renew, json: bool) -> Result<(), Failure> {
    if args.revoke_old || args.issued_by.is_some() {
        return Err(Failure::usage(
            "an authority signs itself and keeps its key: --revoke-old and --issued-by are for what it issues",
        ));
    }
    let renewed = authority.renew_itself(&args.dir, args.days)?;
    let (info, path) = (renewed.info(), args.dir.join("ca.pem"));
    let made = made(&path, &format!("renewed {} with its old key", info.subject), info);
    let text = format_args!("{made}, serial {}", info.serial);
    print_either(json, made_json(&path, info, Some(authority.info())), text)
}

/// The number of days for which a revocation list is valid by default.
const LIST_DAYS: u32 = 30;

/// Signs a list that has these certificates as well.
fn revoke(
    dir: &Path,
    days: u32,
    reason: RevocationReason,
    certificates: &[String],
    json: bool,
) -> Result<(), Failure> {
    let authority = authority(dir)?;
    // All certificates are found before the first is revoked, so that one wrong name changes nothing.
    let mut revoked = Vec::new();
    for text in certificates {
        revoked.push(Revoked::now(serial(&authority, dir, text)?, reason));
    }
    let list = authority.revoke(dir, &revoked, days)?;
    if json {
        return print_json(signed_json(dir, &list));
    }
    let mut output = Output::lock();
    for (text, Revoked { serial, .. }) in certificates.iter().zip(&revoked) {
        let is_new = list.added.iter().any(|added| added.serial == *serial);
        let what = if is_new { "revoked" } else { "was already revoked" };
        output.line(format_args!("{}: {what}, serial {serial}", printable(text)))?;
    }
    output.flush()?;
    print_list(dir, &list)
}

/// A list that was signed, for programs: with the serial numbers that are new in it.
fn signed_json(directory: &Path, list: &SignedRevocationList) -> Value {
    let added = list.added.iter().map(|added| added.serial.to_string());
    json!({
        "file": directory.join("crl.pem").to_string_lossy(),
        "added": added.collect::<Vec<_>>(),
        "revocation_list": list_to_json(&list.info, wall_clock()),
    })
}

fn print_list(directory: &Path, list: &SignedRevocationList) -> Result<(), Failure> {
    let (path, info) = (directory.join("crl.pem"), &list.info);
    let (path, count, next) = (
        path.display(),
        info.len(),
        info.next_update_text().unwrap_or_default(),
    );
    print_line(format_args!(
        "{path}: {count} revoked, to be signed again before {next}"
    ))
}

/// The serial number of a certificate that the authority issued: `text` is its name, its file, or the
/// serial number.
fn serial(authority: &Authority, directory: &Path, text: &str) -> Result<Serial, Failure> {
    if is_path(text) {
        return serial_in_file(authority, Path::new(text));
    }
    let named = directory.join(format!("{text}.pem"));
    if named.exists() {
        return serial_in_file(authority, &named);
    }
    text.parse::<Serial>().map_err(|_| {
        Failure::new(format_args!(
            "{text:?}: {} does not exist, and the text is neither a path (with a / or .pem) nor a serial number",
            named.display()
        ))
    })
}

/// The serial number of the one certificate in a file that the authority has issued. Others may follow as its
/// chain.
fn serial_in_file(authority: &Authority, path: &Path) -> Result<Serial, Failure> {
    let refused = |fault: Fault| Failure::at(path, fault);
    let chain = load_certificates(path)?;
    let info = CertificateInfo::from_der(&chain[0]).map_err(refused)?;
    authority.check_issued(&info).map_err(|fault| match fault {
        Fault::AuthorityAsPeer => Failure::at(path, "the authority's own certificate cannot be revoked"),
        fault => refused(fault),
    })?;
    for further in &chain[1..] {
        let further = CertificateInfo::from_der(further).map_err(refused)?;
        if authority.check_issued(&further).is_ok() {
            let serials = (Serial::from(&info), Serial::from(&further));
            let why = format_args!(
                "it has two certificates of this authority, with the serial numbers {} and {}; name them by these",
                serials.0, serials.1
            );
            return Err(Failure::at(path, why));
        }
    }
    Ok(Serial::from(&info))
}

/// True if the text is a path, and not the name of a certificate.
fn is_path(text: &str) -> bool {
    text.contains('/') || text.ends_with(".pem")
}

fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case("ca")
}

/// The name of a certificate's file. The names of the authority's own files, `ca` and `crl`, are
/// refused.
fn file_name(name: &str) -> Result<String, Failure> {
    Ok(format!("{}.pem", stem(name)?))
}

fn stem(name: &str) -> Result<&str, Failure> {
    // Some file systems ignore case.
    let is_taken = is_authority(name) || name.eq_ignore_ascii_case("crl");
    // A name with a dot in front would make a hidden file. Other commands take a name that ends with
    // .pem for a path.
    let is_path = name.ends_with(".pem") || name.contains(['/', '\0']);
    if name.is_empty() || name.starts_with('.') || is_path || is_taken {
        let what = "cannot be a certificate's name: it is empty, hidden, a path or reserved";
        return Err(Failure::usage(format_args!("{name:?} {what}")));
    }
    Ok(name)
}
