//! The files of certificates, authorities and revocation lists, and the lifetime of each.
//!
//! ```text
//!  --cert, --ca, --crl ─▶ CredentialFiles ─ read ─▶ FilesRead ─▶ (Identity, Trust)
//!                                                      └ lifetimes ─▶ Expiry ─▶ warnings in the log
//! ```

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ssntp::Role;
use ssntp::pki::{self, CertificateInfo, Identity, RevocationLists, Trust};

use crate::failure::Failure;
use crate::input;
use crate::watched::Watched;

/// Revocation lists.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CrlArgs {
    /// A file with one or several revocation lists of the authority: certificates
    /// in such a list are refused; may be given several times, or as SSNTP_CRL,
    /// joined with commas
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        env = "SSNTP_CRL",
        value_delimiter = ','
    )]
    pub crl: Vec<PathBuf>,
    /// Refuse all certificates while a revocation list is out of date, instead of
    /// logging a warning
    #[arg(long, global = true, env = "SSNTP_CRL_STRICT")]
    pub crl_strict: bool,
}

/// The files of a server or client. As flags, the files of a scheduler.
#[derive(Clone, Debug, clap::Args)]
pub struct CredentialFiles {
    /// The authority that must have issued the clients' certificates
    #[arg(long, value_name = "FILE")]
    pub ca: PathBuf,
    /// The scheduler's certificate and key
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// The key of --cert, if it is not in the same file
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub crl: CrlArgs,
}

impl CredentialFiles {
    /// Reads all files.
    pub fn load(&self) -> Result<(Identity, Trust), Failure> {
        let identity = identity(&self.cert, self.key.as_deref())?;
        Ok((identity, self.crl.trust(&self.ca)?))
    }

    /// Reads all files, and notes their state to watch them.
    pub fn read(&self) -> Result<(Identity, Trust, FilesRead), Failure> {
        let files = [&self.cert, &self.ca].into_iter();
        // The state of the files is noted before they are read. A file that is replaced meanwhile then
        // counts as changed, and is read again two checks later.
        let mut read = FilesRead::of(files.chain(&self.key).chain(&self.crl.crl));
        let (identity, trust) = self.load()?;
        read.lifetimes = vec![Lifetime::of_identity(&identity, &self.cert)];
        read.lifetimes.extend(self.crl.lifetimes(&trust, &self.ca));
        read.credentials = Some((identity.clone(), trust.clone()));
        Ok((identity, trust, read))
    }

    /// As [`read`](Self::read). Fails unless the certificate has one of the roles.
    pub fn read_as(&self, roles: Role) -> Result<(Identity, Trust, FilesRead), Failure> {
        let read = self.read()?;
        match read.0.roles() {
            held if held.intersects(roles) => Ok(read),
            held => Err(wrong_role(&self.cert, held, roles)),
        }
    }

    /// Reads all files again, and calls `renew` with the new credentials. An error of `renew` is
    /// reported with the file of the certificate.
    pub fn renew<E: Display>(
        &self,
        renew: impl FnOnce(&Identity, &Trust) -> Result<(), E>,
    ) -> Result<FilesRead, Failure> {
        let (identity, trust, read) = self.read()?;
        renew(&identity, &trust).map_err(|why| Failure::at(&self.cert, why))?;
        Ok(read)
    }
}

/// The failure for a certificate without one of the needed roles.
pub(crate) fn wrong_role(cert: &Path, found: Role, needed: Role) -> Failure {
    let (cert, any) = (cert.display(), needed.to_string().replace(',', " or "));
    Failure::new(format!("{cert}: the role is {found}, it must be {any}"))
}

/// Reads a certificate and its key, which is in the file of the certificate if `key` is `None`.
pub(crate) fn identity(cert: &Path, key: Option<&Path>) -> Result<Identity, pki::Error> {
    match key {
        Some(key) => Identity::load_parts(cert, key),
        None => Identity::load(cert),
    }
}

/// The results of reading a daemon's files.
#[derive(Clone, Debug, Default)]
pub struct FilesRead {
    /// The state of the files before they were read.
    pub watched: Watched,
    /// The lifetime of each certificate and list in the files.
    pub lifetimes: Vec<Lifetime>,
    /// The certificate and the authorities, for the pages of `--admin`.
    pub credentials: Option<(Identity, Trust)>,
    /// The keys of the settings file whose new values need a restart this time, beside those that always need one.
    pub waiting: Vec<&'static str>,
}

impl FilesRead {
    /// Notes the state of these files, which are to be read next.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        Self {
            watched: Watched::of(files.into_iter().cloned().collect()),
            ..Self::default()
        }
    }

    /// Reads the file of an authority, if a flag names one.
    pub fn authority(ca: Option<&Path>) -> Result<(Option<Trust>, Self), Failure> {
        let mut read = Self::default().and(ca.map(Path::to_owned));
        let trust = ca.map(Trust::load).transpose()?;
        if let (Some(trust), Some(ca)) = (&trust, ca) {
            read.lifetimes.extend(Lifetime::of_authorities(trust, ca));
        }
        Ok((trust, read))
    }

    /// Adds one more file to be watched, if there is one.
    #[must_use]
    pub fn and(mut self, path: Option<PathBuf>) -> Self {
        self.watched = self.watched.and(path);
        self
    }

    /// Adds the files of other flags. The credentials stay.
    #[must_use]
    pub fn with(mut self, others: Self) -> Self {
        self.watched = self.watched.with(others.watched);
        self.lifetimes.extend(others.lifetimes);
        self
    }
}

impl CrlArgs {
    /// Reads the authorities and the lists.
    pub fn trust(&self, ca: &Path) -> Result<Trust, Failure> {
        let trust = Trust::load(ca)?;
        if self.crl.is_empty() {
            // Otherwise a user would believe that revoked certificates are refused.
            return if self.crl_strict {
                Err(Failure::usage("--crl-strict needs a revocation list: give --crl"))
            } else {
                Ok(trust)
            };
        }
        let (mut all, mut alone) = (Vec::new(), None);
        for path in &self.crl {
            let pem = input::file(path, MAX_LISTS)?;
            // Each file is also parsed alone, so that an error names it.
            alone = Some(RevocationLists::from_pem(&pem, &path.display().to_string())?);
            all.push(pem);
        }
        let lists = match (alone, all.as_slice()) {
            // Parsing a list of 200,000 certificates takes 50 MB, so the only file is not parsed
            // twice.
            (Some(lists), [_]) => lists,
            _ => RevocationLists::from_pem(&all.join(&b'\n'), &names(&self.crl))?,
        };
        // The files have up to 16 MiB each and are parsed by now, so they are freed before the next
        // step allocates more.
        drop(all);
        Ok(trust.with_revocation_lists(&lists.enforce_expiry(self.crl_strict))?)
    }

    /// The lifetimes of the authorities and the lists.
    pub fn lifetimes(&self, trust: &Trust, ca: &Path) -> Vec<Lifetime> {
        let lists = trust.revocation_lists().iter().filter_map(|list| {
            Some(Lifetime {
                what: REVOCATION_LIST,
                of: list.issuer.clone(),
                file: names(&self.crl),
                since: list.this_update,
                // A list without a next update never goes out of date, so it needs no warning.
                end: list.next_update?,
            })
        });
        Lifetime::of_authorities(trust, ca).chain(lists).collect()
    }
}

/// The longest file of revocation lists, in bytes: a list of some 250,000 certificates.
const MAX_LISTS: u64 = 16 << 20;

fn names(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// The kinds of a [`Lifetime`], as log lines and metrics name them.
const CERTIFICATE: &str = "certificate";
const AUTHORITY: &str = "authority";
const REVOCATION_LIST: &str = "revocation list";

/// The lifetime of a certificate, an authority or a revocation list in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// One of the three kinds.
    pub what: &'static str,
    /// The subject of a certificate or an authority, or the issuer of a list.
    pub of: String,
    pub file: String,
    pub since: SystemTime,
    pub end: SystemTime,
}

impl Lifetime {
    fn of(what: &'static str, info: &CertificateInfo, file: &Path) -> Self {
        Self {
            what,
            of: info.subject.clone(),
            file: file.display().to_string(),
            since: info.not_before,
            end: info.not_after,
        }
    }

    /// The lifetime of the daemon's own certificate.
    pub fn of_identity(identity: &Identity, file: &Path) -> Self {
        Self::of(CERTIFICATE, identity.info(), file)
    }

    /// The lifetimes of the authorities in a file.
    pub fn of_authorities(trust: &Trust, file: &Path) -> impl Iterator<Item = Self> {
        let authorities = trust.authorities().iter();
        authorities.map(|info| Self::of(AUTHORITY, info, file))
    }

    /// The lifetime of an issuer, which is an authority below another one.
    pub fn of_issuer(info: &CertificateInfo, file: &Path) -> Self {
        Self::of(AUTHORITY, info, file)
    }

    /// The days until the end; negative after it.
    pub fn days_left(&self, now: SystemTime) -> f64 {
        let days = |left: Duration| left.as_secs_f64() / DAY.as_secs_f64();
        match self.end.duration_since(now) {
            Ok(left) => days(left),
            Err(over) => -days(over.duration()),
        }
    }

    /// True if there is a warning this number of days before the end. A list that is replaced every
    /// month, or a certificate that renews itself, always has less than 30 days left, so there are
    /// warnings only in the last third of a lifetime.
    fn warns_at(&self, days: u32) -> bool {
        let lifetime = self.end.duration_since(self.since).unwrap_or_default();
        DAY * days * 3 <= lifetime
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// The days before the end at which a warning is logged: a month, in which a renewal can be planned,
/// a week, a day, and the end itself.
const AHEAD: [u32; 4] = [30, 7, 1, 0];

/// The lifetimes, each with the number of its warnings so far.
#[derive(Debug, Default)]
pub(crate) struct Expiry(Vec<(Lifetime, usize)>);

impl Expiry {
    /// Lifetimes without a warning so far.
    pub(crate) fn of(lifetimes: Vec<Lifetime>) -> Self {
        Self(lifetimes.into_iter().map(|lifetime| (lifetime, 0)).collect())
    }

    /// A warning for each lifetime that has come within 30, 7 or 1 days of its end, or to its end,
    /// since the last call.
    pub(crate) fn warnings(&mut self, now: SystemTime) -> Vec<String> {
        let mut warnings = Vec::new();
        for (lifetime, count) in &mut self.0 {
            let left = lifetime.days_left(now);
            let due = |days: &u32| left <= f64::from(*days) && lifetime.warns_at(*days);
            let reached = AHEAD.iter().filter(|days| due(days)).count();
            // A daemon that starts late has passed several marks at once, and gives one warning for
            // all of them.
            if reached > *count {
                *count = reached;
                let Lifetime { file, what, of, .. } = &*lifetime;
                let when = match left {
                    left if left <= 0.0 => "has expired".to_owned(),
                    // In the last two days, whole days are too coarse. Half an hour would be rounded
                    // to 0 hours, which reads as if the end were over, so the least number is 1.
                    left if left < 2.0 => format!("expires in {:.0} hours", (left * 24.0).max(1.0)),
                    left => format!("expires in {left:.0} days"),
                };
                warnings.push(format!("{file}: the {what} of {of:?} {when}"));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetime(what: &'static str, days: u32) -> Lifetime {
        Lifetime {
            what,
            of: "CN=agent".to_owned(),
            file: "agent.pem".to_owned(),
            since: SystemTime::UNIX_EPOCH,
            end: SystemTime::UNIX_EPOCH + DAY * days,
        }
    }

    #[test]
    fn each_threshold_warns_once_with_the_file() {
        let mut expiry = Expiry::of(vec![lifetime(CERTIFICATE, 365)]);
        let mut warnings = |day: f64| expiry.warnings(SystemTime::UNIX_EPOCH + DAY.mul_f64(day));
        assert!(warnings(0.0).is_empty() && warnings(334.0).is_empty());
        let words = |when: &str| vec![format!("agent.pem: the certificate of \"CN=agent\" {when}")];
        assert_eq!(warnings(335.0), words("expires in 30 days"));
        assert!(warnings(335.1).is_empty() && warnings(357.0).is_empty());
        assert_eq!(warnings(358.0), words("expires in 7 days"));
        assert_eq!(warnings(364.5), words("expires in 12 hours"));
        assert!(warnings(364.9).is_empty());
        assert_eq!(warnings(366.0), words("has expired"));
        assert!(warnings(900.0).is_empty());
    }

    #[test]
    fn a_certificate_that_expires_soon_at_the_start_warns_once() {
        let mut expiry = Expiry::of(vec![lifetime(AUTHORITY, 365)]);
        let start = SystemTime::UNIX_EPOCH + DAY * 360;
        assert_eq!(expiry.warnings(start).len(), 1);
        assert!(expiry.warnings(start).is_empty());
    }

    #[test]
    fn a_revocation_list_for_thirty_days_warns_in_its_last_week() {
        let mut expiry = Expiry::of(vec![lifetime(REVOCATION_LIST, 30)]);
        let mut warnings = |day: u32| expiry.warnings(SystemTime::UNIX_EPOCH + DAY * day).len();
        assert_eq!(
            [
                warnings(0),
                warnings(22),
                warnings(23),
                warnings(29),
                warnings(30)
            ],
            [0, 0, 1, 1, 1]
        );
    }

    #[test]
    fn days_are_negative_after_the_expiry() {
        let lifetime = lifetime(CERTIFICATE, 10);
        assert_eq!(lifetime.days_left(SystemTime::UNIX_EPOCH), 10.0);
        assert_eq!(lifetime.days_left(lifetime.end + DAY / 2), -0.5);
    }
}
