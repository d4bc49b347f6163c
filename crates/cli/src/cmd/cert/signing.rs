//! `ssntp cert request` and `ssntp cert sign`: the key stays with its holder, and what travels is
//! a signing request (PKCS#10) and a certificate.

use std::fs;
use std::path::PathBuf;

use clap::value_parser;
use serde_json::json;
use ssntp::Role;
use ssntp::pki::KeyKind;
use ssntp_daemon::{Failure, print_either};

use super::{Holder, authority, certificate_in, file_name, print_issued, stem};

/// Make a key, and a request for a certificate that an authority is to sign: DIR/NAME.key
/// and DIR/NAME.csr
///
/// `ssntp cert sign` signs the request, and so do other authorities. If DIR/NAME.key exists,
/// the request is for that key. Programs take the certificate with --cert and the key with
/// --key.
#[derive(Debug, clap::Args)]
pub(super) struct Request {
    /// The directory for both files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    holder: Holder,
    /// Kind of a new key: p256, rsa2048, rsa4096 or ed25519
    #[arg(long, value_name = "KIND", default_value_t)]
    key: KeyKind,
}

/// Sign a request for a certificate: DIR/NAME.pem, without a key
///
/// The certificate says what this command line says. Of the request only the key counts, and
/// that its holder has signed the request.
#[derive(Debug, clap::Args)]
pub(super) struct Sign {
    /// The directory of the authority, and for the certificate
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    holder: Holder,
    /// Lifetime in days; it ends with the authority's own at the latest
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Replace a certificate that is bound to another UUID, an issuer, or a file with a key
    #[arg(long)]
    force: bool,
    /// The file with the request (PEM)
    #[arg(value_name = "CSR")]
    file: PathBuf,
}

/// The end of the first line of a private key of any kind, in PEM.
const KEY_LINE: &[u8] = b"PRIVATE KEY-----";

pub(super) fn request(args: Request, json: bool) -> Result<(), Failure> {
    let request = args.holder.request().key(args.key);
    let name = stem(&request.name)?;
    let path = |ending| args.dir.join(format!("{name}.{ending}"));
    let (key, to) = (path("key"), path("csr"));
    let had_key = request.write_signing_request(&key, &to)?;
    let was = if had_key { "there already" } else { "new" };
    let value = json!({
        "file": to.to_string_lossy(), "key": key.to_string_lossy(), "is_new_key": !had_key,
        "roles": request.roles.names(),
    });
    let (to, key, roles) = (to.display(), key.display(), request.roles);
    let text = format_args!("{to}: a request for {roles}, by the key {key} ({was})");
    print_either(json, value, text)
}

pub(super) fn sign(args: Sign, json: bool) -> Result<(), Failure> {
    let is_server = args.holder.roles.intersects(Role::SERVER | Role::SCHEDULER);
    // The default names are those of this machine, and the server is on another one.
    if is_server && args.holder.hosts.is_empty() {
        return Err(Failure::usage(
            "--host is needed: the names at which clients find the server",
        ));
    }
    let request = args.holder.request().days(args.days);
    let path = args.dir.join(file_name(&request.name)?);
    let (authority, before) = (authority(&args.dir)?, certificate_in(&path));
    let bound = before.as_ref().and_then(|before| before.uuid);
    if let Some(uuid) = bound.filter(|bound| !args.force && request.uuid != Some(*bound)) {
        let why =
            format!("the certificate is bound to {uuid}: --uuid {uuid} keeps it, and --force replaces it");
        return Err(Failure::at(&path, why));
    }
    if before.as_ref().is_some_and(|before| before.is_authority) && !args.force {
        return Err(Failure::at(&path, "it is an issuer, which --force replaces"));
    }
    let holds_key =
        fs::read(&path).is_ok_and(|file| file.windows(KEY_LINE.len()).any(|line| line == KEY_LINE));
    if holds_key && !args.force {
        let why = "it also holds a private key, which --force removes; --name NAME names another file";
        return Err(Failure::at(&path, why));
    }
    let signed = authority.sign(&request, &args.file, &path)?;
    print_issued(&path, before.as_ref(), &signed, json)
}
