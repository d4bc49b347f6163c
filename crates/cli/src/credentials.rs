//! The files of certificates, authorities and revocation lists, and how long each of
//! them is valid.
//!
//! ```text
//!  --cert, --ca, --crl ─▶ CredentialFiles ─ read ─▶ FilesRead ─▶ (Identity, Trust)
//!                                                      └ lifetimes ─▶ Expiry ─▶ warnings in the log
//! ```

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ssntp::Role;
use ssntp::pki::{self, Identity, RevocationLists, Trust};

use crate::failure::Failure;
use crate::input;
use crate::watched::Watched;

/// Revocation lists.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CrlArgs {
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
    pub(crate) crl: Vec<PathBuf>,
    /// Refuse all certificates while a revocation list is out of date, instead of
    /// logging a warning
    #[arg(long, global = true, env = "SSNTP_CRL_STRICT")]
    pub(crate) crl_strict: bool,
}

/// The files of a server or client, and the flags of a scheduler that name them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CredentialFiles {
    /// The authority that must have issued the clients' certificates
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: PathBuf,
    /// The scheduler's certificate and key
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: PathBuf,
    /// The key of --cert, if it is not in the same file
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) crl: CrlArgs,
}

impl CredentialFiles {
    /// Reads all files.
    pub(crate) fn load(&self) -> Result<(Identity, Trust), Failure> {
        Ok((self.identity()?, self.crl.trust(&self.ca)?))
    }

    /// Reads the certificate and its key.
    pub(crate) fn identity(&self) -> Result<Identity, Failure> {
        Ok(identity(&self.cert, self.key.as_deref())?)
    }

    /// Reads all files, to watch them from now on.
    pub(crate) fn read(&self) -> Result<(Identity, Trust, FilesRead), Failure> {
        let files = [&self.cert, &self.ca].into_iter();
        let files = files.chain(&self.key).chain(&self.crl.crl);
        // The state of the files is noted before they are read. A file that is replaced in between
        // then counts as changed, and is read again two looks later.
        let watched = Watched::of(files.cloned().collect());
        let (identity, trust) = self.load()?;
        let mut lifetimes = vec![Lifetime::of_identity(&identity, &self.cert)];
        lifetimes.extend(self.crl.lifetimes(&trust, &self.ca));
        let credentials = Some((identity.clone(), trust.clone()));
        let read = FilesRead {
            watched,
            lifetimes,
            credentials,
        };
        Ok((identity, trust, read))
    }

    /// As [`read`](Self::read), if the certificate has one of the roles.
    pub(crate) fn read_as(&self, roles: Role) -> Result<(Identity, Trust, FilesRead), Failure> {
        let read = self.read()?;
        match read.0.roles() {
            held if held.intersects(roles) => Ok(read),
            held => Err(wrong_role(&self.cert, held, roles)),
        }
    }

    /// Reads all files again, and calls `renew` with what they hold.
    pub(crate) fn renew<E: Display>(
        &self,
        renew: impl FnOnce(&Identity, &Trust) -> Result<(), E>,
    ) -> Result<FilesRead, Failure> {
        let (identity, trust, read) = self.read()?;
        renew(&identity, &trust).map_err(Failure::new)?;
        Ok(read)
    }
}

/// A certificate without one of the roles that are needed.
pub(crate) fn wrong_role(cert: &Path, found: Role, needed: Role) -> Failure {
    let (cert, any) = (cert.display(), needed.to_string().replace(',', " or "));
    Failure::new(format!("{cert}: the role is {found}, it must be {any}"))
}

/// A certificate with its key, which is in a file of its own if one is given.
pub(crate) fn identity(cert: &Path, key: Option<&Path>) -> Result<Identity, pki::Error> {
    match key {
        Some(key) => Identity::load_parts(cert, key),
        None => Identity::load(cert),
    }
}

/// The results of reading a daemon's files.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilesRead {
    /// The files, as they were before they were read.
    pub(crate) watched: Watched,
    /// How long each certificate and list in them is valid.
    pub(crate) lifetimes: Vec<Lifetime>,
    /// The certificate and the authorities for the pages of `--admin`.
    pub(crate) credentials: Option<(Identity, Trust)>,
}

impl CrlArgs {
    /// Reads the authorities and the lists.
    pub(crate) fn trust(&self, ca: &Path) -> Result<Trust, Failure> {
        let trust = Trust::load(ca)?;
        if self.crl.is_empty() {
            return Ok(trust);
        }
        let (mut all, mut alone) = (Vec::new(), None);
        for path in &self.crl {
            let pem = input::file(path, MOST)?;
            // Each file is also read alone, so that an error names it.
            alone = Some(RevocationLists::from_pem(&pem, &path.display().to_string())?);
            all.push(pem);
        }
        let lists = match (alone, all.as_slice()) {
            // A list of 200,000 certificates takes 50 MB while it is read, so this is not
            // done twice.
            (Some(lists), [_]) => lists,
            _ => RevocationLists::from_pem(&all.join(&b'\n'), &names(&self.crl))?,
        };
        // The files have up to 16 MiB each and are parsed by now, so they are freed before the next
        // step takes more.
        drop(all);
        Ok(trust.with_revocation_lists(&lists.enforce_expiry(self.crl_strict))?)
    }

    /// How long the authorities and the lists are valid.
    pub(crate) fn lifetimes(&self, trust: &Trust, ca: &Path) -> Vec<Lifetime> {
        let authorities = trust.authorities().iter().map(|authority| Lifetime {
            what: Subject::Authority,
            of: authority.subject.clone(),
            file: ca.display().to_string(),
            since: authority.not_before,
            end: authority.not_after,
        });
        let lists = trust.revocation_lists().iter().filter_map(|list| {
            Some(Lifetime {
                what: Subject::RevocationList,
                of: list.issuer.clone(),
                file: names(&self.crl),
                since: list.this_update,
                // A list that names no next update does not go out of date, so there is nothing to
                // warn of.
                end: list.next_update?,
            })
        });
        authorities.chain(lists).collect()
    }
}

/// The longest file with lists, in bytes: a list of some 250,000 certificates.
const MOST: u64 = 16 << 20;

fn names(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// The kind of a [`Lifetime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Certificate,
    Authority,
    RevocationList,
}

impl Subject {
    /// Its name in log lines and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Authority => "authority",
            Self::RevocationList => "revocation list",
        }
    }
}

/// How long a certificate, an authority or a list in a file is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) what: Subject,
    /// Its subject, or the issuer of a list.
    pub(crate) of: String,
    pub(crate) file: String,
    pub(crate) since: SystemTime,
    pub(crate) end: SystemTime,
}

impl Lifetime {
    /// The lifetime of the own certificate.
    pub(crate) fn of_identity(identity: &Identity, file: &Path) -> Self {
        let info = identity.info();
        Self {
            what: Subject::Certificate,
            of: info.subject.clone(),
            file: file.display().to_string(),
            since: info.not_before,
            end: info.not_after,
        }
    }

    /// The days until its end; negative after it.
    pub(crate) fn days_left(&self, now: SystemTime) -> f64 {
        days_left(self.end, now)
    }

    /// Whether there is a warning this many days ahead. A list that is replaced every
    /// month always has less than 30 days left, so there are warnings only in the last
    /// third of a list's lifetime.
    fn warns_at(&self, days: u32) -> bool {
        let ahead = DAY * days;
        let lifetime = self.end.duration_since(self.since).unwrap_or_default();
        self.what != Subject::RevocationList || ahead * 3 <= lifetime
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// The days until the end; negative after it.
pub(crate) fn days_left(end: SystemTime, now: SystemTime) -> f64 {
    let days = |left: Duration| left.as_secs_f64() / DAY.as_secs_f64();
    match end.duration_since(now) {
        Ok(left) => days(left),
        Err(over) => -days(over.duration()),
    }
}

/// The days before the end at which a warning is logged: a month to plan the renewal, a week, a
/// day, and the end itself.
const AHEAD: [u32; 4] = [30, 7, 1, 0];

/// The lifetimes, each with the number of warnings that were logged.
#[derive(Debug, Default)]
pub(crate) struct Expiry(Vec<(Lifetime, usize)>);

impl Expiry {
    /// Lifetimes without a warning so far.
    pub(crate) fn of(lifetimes: Vec<Lifetime>) -> Self {
        Self(lifetimes.into_iter().map(|lifetime| (lifetime, 0)).collect())
    }

    /// A warning for each that has come within 30, 7 or 1 days of its end, or to its
    /// end, since the last call.
    pub(crate) fn warnings(&mut self, now: SystemTime) -> Vec<String> {
        let mut warnings = Vec::new();
        for (lifetime, told) in &mut self.0 {
            let left = lifetime.days_left(now);
            let due = |days: &u32| left <= f64::from(*days) && lifetime.warns_at(*days);
            let reached = AHEAD.iter().filter(|days| due(days)).count();
            // A daemon that was started late has passed several marks at once. One warning stands
            // for all.
            if reached > *told {
                *told = reached;
                let Lifetime { file, what, of, .. } = &*lifetime;
                let when = match left {
                    left if left <= 0.0 => "has expired".to_owned(),
                    // In the last two days, whole days are too coarse. Less than half an hour would
                    // be rounded to 0 hours, which reads as if it had expired, so 1 is the least.
                    left if left < 2.0 => format!("expires in {:.0} hours", (left * 24.0).max(1.0)),
                    left => format!("expires in {left:.0} days"),
                };
                warnings.push(format!("{file}: the {} of {of:?} {when}", what.name()));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetime(what: Subject, days: u32) -> Lifetime {
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
        let mut expiry = Expiry::of(vec![lifetime(Subject::Certificate, 365)]);
        let mut told = |day: f64| expiry.warnings(SystemTime::UNIX_EPOCH + DAY.mul_f64(day));
        assert!(told(0.0).is_empty() && told(334.0).is_empty());
        let words = |when: &str| vec![format!("agent.pem: the certificate of \"CN=agent\" {when}")];
        assert_eq!(told(335.0), words("expires in 30 days"));
        assert!(told(335.1).is_empty() && told(357.0).is_empty());
        assert_eq!(told(358.0), words("expires in 7 days"));
        assert_eq!(told(364.5), words("expires in 12 hours"));
        assert!(told(364.9).is_empty());
        assert_eq!(told(366.0), words("has expired"));
        assert!(told(900.0).is_empty());
    }

    #[test]
    fn a_certificate_that_is_late_at_the_start_warns_once() {
        let mut expiry = Expiry::of(vec![lifetime(Subject::Authority, 6)]);
        assert_eq!(expiry.warnings(SystemTime::UNIX_EPOCH).len(), 1);
        assert!(expiry.warnings(SystemTime::UNIX_EPOCH).is_empty());
    }

    #[test]
    fn a_list_for_thirty_days_warns_in_its_last_week() {
        let mut expiry = Expiry::of(vec![lifetime(Subject::RevocationList, 30)]);
        let mut told = |day: u32| expiry.warnings(SystemTime::UNIX_EPOCH + DAY * day).len();
        assert_eq!([told(0), told(22), told(23), told(29), told(30)], [0, 0, 1, 1, 1]);
    }

    #[test]
    fn days_are_negative_after_the_end() {
        let end = SystemTime::UNIX_EPOCH + DAY * 10;
        assert_eq!(days_left(end, SystemTime::UNIX_EPOCH), 10.0);
        assert_eq!(days_left(end, end + DAY / 2), -0.5);
    }
}
