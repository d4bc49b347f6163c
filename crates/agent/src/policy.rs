//! The limits that a node sets for its instances. Controllers can't change them.
//!
//! ```yaml
//! users: [1879048192-1879113727, nobody]   # each instance has a UID of its own, or CONFIGURE names nobody
//! drivers: [process]
//! directories: [/srv/jobs]
//! images: [debian-12]
//! mem_mb: 4096
//! pids: 1024
//! disk_mb: 10240
//! emulation: false
//! retention_s: 86400
//! retention_count: 256
//! ```
//!
//! CONFIGURE and START choose within the policy; a START that exceeds it is refused. The text of a
//! refusal ends with the key of the policy, for example `(policy: users)`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::place::User;
use ssntp::payload::yaml;
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::Start;

/// The default UIDs of instances: 65,536 UIDs that neither systemd's list of assignments nor
/// distributions use.
const OWN: RangeInclusive<u32> = 1_879_048_192..=1_879_113_727;
/// `(uid_t) -1` stands for no user in system calls.
const NO_UID: u32 = u32::MAX;
/// The default of `pids`. It stops a fork bomb at once, and QEMU with its threads for disks needs
/// about a hundred.
const PIDS: u32 = 1024;
/// The default of `disk_mb`.
const DISK_MB: u32 = 10 * 1024;

/// The limits that a node sets for its instances. A policy is read from a file, or made from the
/// default by setting fields.
///
/// ```
/// use ssntp_agent::Policy;
///
/// let mut policy = Policy::default();
/// policy.users = vec!["nobody".parse()?];
/// policy.pids = 64;
/// # Ok::<_, String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// The users as which instances may run. They run as the first one, unless CONFIGURE's
    /// `child_user` names another one of the list. Default: if the agent is root, a UID of its own
    /// for each instance, out of 1879048192-1879113727; otherwise the agent's own user, because only
    /// root can become another user.
    pub users: Vec<RunAs>,
    /// The drivers that STARTs may use. Default: all drivers of the agent.
    pub drivers: Option<Vec<String>>,
    /// The directories in which, or below which, processes may be started, besides their own
    /// directories. Default: any directory that the user may enter.
    pub directories: Option<Vec<PathBuf>>,
    /// The directory of the files that STARTs may name in `env_file` and `secrets`, for processes. Default: none, so
    /// such a START is refused.
    pub secrets: Option<PathBuf>,
    /// The names of the images from which machines may boot. Default: all images of the agent.
    pub images: Option<Vec<String>>,
    /// The maximum memory of an instance, in MB, and the memory of an instance whose START names no
    /// amount. Default: no limit.
    pub mem_mb: Option<u32>,
    /// The maximum number of processes and threads of an instance. The limit is enforced by control groups,
    /// and without them only for an instance with a UID of its own. Default: 1024.
    pub pids: u32,
    /// The maximum that an instance may keep in its own directory, in MB; also the most for all disks
    /// of a START together. The directory is measured at each interval, and an instance with more is
    /// killed. `None`, which is 0 in a file, stands for no limit. Default: 10240.
    #[serde(deserialize_with = "limit")]
    pub disk_mb: Option<u32>,
    /// True if a machine may be emulated without KVM, which is many times slower. Default: false.
    pub emulation: bool,
    /// The time in seconds for which an ended instance that is not persistent is kept. Default:
    /// 86400, a day.
    pub retention_s: u32,
    /// The maximum number of such instances, of which the latest are kept. They do not count for the limit of
    /// instances. Default: 256.
    pub retention_count: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            drivers: None,
            directories: None,
            secrets: None,
            images: None,
            mem_mb: None,
            pids: PIDS,
            disk_mb: Some(DISK_MB),
            emulation: false,
            retention_s: 24 * 60 * 60,
            retention_count: 256,
        }
    }
}

fn limit<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    Ok(Some(u32::deserialize(value)?).filter(|limit| *limit > 0))
}

/// A user as which instances may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunAs {
    /// Each instance has a UID of its own, and the group of the same number.
    Own(RangeInclusive<u32>),
    /// The agent's own user, which may be root.
    Agent,
    /// A user of the system, by name or number.
    User(String),
}

impl FromStr for RunAs {
    type Err = String;

    /// `LOW-HIGH`, `agent`, or a user.
    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once('-').and_then(|(low, high)| {
            let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
            Some(low..=high)
        });
        match (range, text) {
            // Root can't be in a range, so that instances run as root only if root is named.
            (Some(range), _) if range.is_empty() || range.contains(&0) || range.contains(&NO_UID) => {
                Err(format!("{text:?} is not a range of UIDs"))
            }
            (Some(range), _) => Ok(Self::Own(range)),
            (None, "agent") => Ok(Self::Agent),
            (None, "") => Err("the name of a user is missing".into()),
            (None, _) if text.contains('\0') => Err(format!("{text:?} is not a user")),
            (None, name) => Ok(Self::User(name.into())),
        }
    }
}

impl<'de> Deserialize<'de> for RunAs {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        String::deserialize(value)?.parse().map_err(de::Error::custom)
    }
}

/// A policy could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file can't be read.
    #[error("{}: {_1}", _0.display())]
    Io(PathBuf, #[source] io::Error),
    /// The file is not a policy; the error has the position and the reason.
    #[error("{}: {_1}", _0.display())]
    Document(PathBuf, #[source] yaml::Error),
}

impl Policy {
    /// Reads a policy from a YAML file. A missing key has its default. An unknown key is an error,
    /// because its author may have intended a limit.
    ///
    /// # Errors
    /// [`PolicyError`], with line and column if the document is invalid.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let io = |e| PolicyError::Io(path.to_owned(), e);
        let mut bytes = Vec::new();
        // One byte more is read, so that a longer document is refused instead of cut.
        let most = yaml::MAX_DOCUMENT_LEN as u64 + 1;
        let file = File::open(path).map_err(io)?;
        file.take(most).read_to_end(&mut bytes).map_err(io)?;
        if yaml::without_mark(&bytes).trim_ascii().is_empty() {
            // A full disk must not lift all limits.
            return Err(io(io::Error::other("it is empty; {} allows everything")));
        }
        yaml::decode(&bytes).map_err(|e| PolicyError::Document(path.to_owned(), e))
    }

    /// Checks a START against the policy, as far as that needs no system calls.
    pub(crate) fn check(&self, driver: &str, start: &Start) -> Result<(), Refused> {
        let refuse = |fault, why: String| Err(Refused::new(fault, why));
        let is_listed = |list: &Option<Vec<String>>, name: &str| {
            list.as_ref()
                .is_none_or(|list| list.iter().any(|known| known == name))
        };
        if !is_listed(&self.drivers, driver) {
            let why = format!("the driver {driver} is not allowed on this node (policy: drivers)");
            return refuse(Reason::LaunchFailure, why);
        }
        let names_files = !start.env_file.is_empty() || !start.secrets.is_empty();
        if names_files && driver != "process" {
            return refuse(
                Reason::InvalidData,
                "env_file and secrets are for processes".into(),
            );
        }
        if names_files && self.secrets.is_none() {
            let why = "this node has no directory of secrets (policy: secrets)";
            return refuse(Reason::LaunchFailure, why.into());
        }
        let dir = Path::new(&start.dir);
        if let Some(directories) = &self.directories
            // The driver checks that a relative directory is below the instance's own directory, which
            // is always allowed.
            && dir.is_absolute()
        {
            // `starts_with` compares names only, so `..` could leave the allowed directory.
            let leaves = dir.components().any(|part| part == Component::ParentDir);
            if leaves || !directories.iter().any(|allowed| dir.starts_with(allowed)) {
                let why = format!("the directory {dir:?} is not allowed on this node (policy: directories)");
                return refuse(Reason::LaunchFailure, why);
            }
        }
        let mut boots = start.storage.iter().filter(|storage| storage.boot);
        if let Some(storage) = boots.find(|storage| !is_listed(&self.images, storage.id.as_str())) {
            let image = storage.id.as_str();
            return refuse(
                Reason::ImageFailure,
                format!("the image {image:?} is not allowed on this node (policy: images)"),
            );
        }
        let asked = start.requirements.mem_mb;
        if let Some(most) = self.mem_mb.filter(|most| asked > i64::from(*most)) {
            let why = format!("requirements.mem_mb is {asked}, but this node allows {most} (policy: mem_mb)");
            return refuse(Reason::FullCn, why);
        }
        // Volumes that exist already need no new space. A local volume without a size gets 1 GiB.
        let disks = start
            .storage
            .iter()
            .filter(|storage| storage.boot || storage.local);
        let asked = disks.fold(0i64, |sum, disk| {
            let gib = disk.size.max(disk.local.into());
            sum.saturating_add(gib.saturating_mul(1024))
        });
        if let Some(most) = self.disk_mb.filter(|most| asked > i64::from(*most)) {
            let why = format!(
                "the disks of the instance have {asked} MB, but this node allows {most} (policy: disk_mb)"
            );
            return refuse(Reason::FullCn, why);
        }
        Ok(())
    }

    /// The memory of an instance whose START asks for this amount, in MB; 0 stands for no limit.
    pub fn mem_mb(&self, asked: i64) -> i64 {
        match self.mem_mb.map(i64::from) {
            // 0 asks for no limit, which the policy does not allow.
            Some(most) if asked == 0 => most,
            Some(most) => asked.min(most),
            None => asked,
        }
    }

    /// The user of an instance; `None` for the agent's own user. `own` finds a UID that no other
    /// instance has. This looks up users in the system's database, which can block.
    pub(crate) fn user(
        &self,
        child_user: &str,
        own: impl FnOnce(&RangeInclusive<u32>) -> io::Result<u32>,
    ) -> Result<Option<User>, Refused> {
        let agent = rustix::process::geteuid();
        let only_root = |who: &dyn fmt::Display| {
            Refused::launch(format!("only root can run instances as {who} (policy: users)"))
        };
        let user = match self.users().first() {
            // A user that CONFIGURE names wins over the first user of the list, and has to be in the
            // list.
            _ if !child_user.is_empty() => {
                let user = find_user(child_user)?;
                if !self.allows(user, agent.as_raw()) {
                    let why = format!("the user {child_user:?} is not allowed on this node (policy: users)");
                    return Err(Refused::launch(why));
                }
                user
            }
            Some(RunAs::Agent) | None => return Ok(None),
            Some(RunAs::Own(range)) if agent.is_root() => {
                let uid = own(range).map_err(|e| Refused::io("a user of its own (policy: users)", &e))?;
                return Ok(Some(User {
                    uid,
                    gid: uid,
                    alone: true,
                }));
            }
            Some(RunAs::Own(_)) => return Err(only_root(&"users of their own")),
            Some(RunAs::User(name)) => find_user(name)?,
        };
        match agent.as_raw() {
            own if own == user.uid => Ok(None),
            // Only root can become another user.
            0 => Ok(Some(user)),
            _ => Err(only_root(&user.uid)),
        }
    }

    /// Looks up the users of the list in the system's database, which can block.
    ///
    /// # Errors
    /// A user does not exist, or the database can't be read.
    pub fn find_users(&self) -> Result<(), String> {
        self.users.iter().try_for_each(|user| match user {
            RunAs::User(name) => find_user(name).map(drop).map_err(|e| e.why),
            RunAs::Own(_) | RunAs::Agent => Ok(()),
        })
    }

    /// The first directory on the way to `root` that users of instances can't pass. `None` if there
    /// is none, or if instances run as the agent's user by default.
    pub(crate) fn closed<'a>(&self, root: &'a Path) -> Option<&'a Path> {
        let others = rustix::process::geteuid().is_root() && self.users.first() != Some(&RunAs::Agent);
        let is_closed = |dir: &&Path| dir.metadata().is_ok_and(|found| found.mode() & 0o1 == 0);
        root.ancestors().filter(|_| others).find(is_closed)
    }

    /// True if CONFIGURE may choose this user.
    fn allows(&self, user: User, agent: u32) -> bool {
        let is_it = |run_as: &RunAs| match run_as {
            // A UID of the range may belong to another instance.
            RunAs::Own(_) => false,
            RunAs::Agent => user.uid == agent,
            RunAs::User(name) => find_user(name).is_ok_and(|named| named.uid == user.uid),
        };
        self.users().iter().any(is_it)
    }

    /// The users as which instances may run, or the default if the list is empty. Instances of an
    /// agent that is root never run as root by default.
    fn users(&self) -> &[RunAs] {
        const OF_ROOT: &[RunAs] = &[RunAs::Own(OWN)];
        if !self.users.is_empty() {
            &self.users
        } else if rustix::process::geteuid().is_root() {
            OF_ROOT
        } else {
            &[RunAs::Agent]
        }
    }
}

/// A user of the system's database, by name or number.
fn find_user(name: &str) -> Result<User, Refused> {
    use nix::unistd;

    // A name wins over a number, because a user may have the name `1000`.
    let by_name = unistd::User::from_name(name);
    let found = match name.parse() {
        Ok(uid) if matches!(by_name, Ok(None)) => unistd::User::from_uid(unistd::Uid::from_raw(uid)),
        _ => by_name,
    };
    let found = found.map_err(|e| Refused::io(format_args!("user {name:?}"), &e.into()))?;
    let missing = || Refused::launch(format!("there is no user {name:?} (policy: users)"));
    let found = found.ok_or_else(missing)?;
    Ok(User {
        uid: found.uid.as_raw(),
        gid: found.gid.as_raw(),
        alone: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_payload::{Storage, VmType};

    fn policy(text: &str) -> Policy {
        yaml::decode(text.as_bytes()).unwrap()
    }

    fn user(policy: &Policy, child_user: &str) -> Result<Option<User>, Refused> {
        policy.user(child_user, |range| Ok(*range.start()))
    }

    #[test]
    fn a_policy_is_read_from_a_file_and_unknown_keys_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Policy::read(&path).map_err(|e| e.to_string())
        };
        assert_eq!(read("{}"), Ok(Policy::default()));
        for emptied in ["", "\u{feff}", "\n\n"] {
            assert!(read(emptied).unwrap_err().contains("it is empty"));
        }
        let full = "users: [70000-70009, agent, nobody, 7]\ndrivers: [process]\ndirectories: [/srv]\n\
                    secrets: /etc/s\nimages: [a]\nmem_mb: 5\npids: 6\ndisk_mb: 0\nemulation: yes\nretention_s: 8\nretention_count: 9\n";
        let expected = Policy {
            users: vec![
                RunAs::Own(70000..=70009),
                RunAs::Agent,
                RunAs::User("nobody".into()),
                RunAs::User("7".into()),
            ],
            drivers: Some(vec!["process".into()]),
            directories: Some(vec!["/srv".into()]),
            secrets: Some("/etc/s".into()),
            images: Some(vec!["a".into()]),
            mem_mb: Some(5),
            pids: 6,
            disk_mb: None,
            emulation: true,
            retention_s: 8,
            retention_count: 9,
        };
        assert_eq!(read(full), Ok(expected));
        for (text, where_it_is, key) in [
            ("pids: 1\n  \nuser: [nobody]\n", "(line 3, column 1)", "user"),
            ("users: [nobody, 9-7]\n", "(line 1, column 17)", "not a range"),
            ("users: [0-7]\n", "line 1", "not a range"),
            ("pids: -1\n", "(line 1, column 7)", "pids"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(where_it_is) && error.contains(key), "{error}");
            assert!(error.contains("policy.yaml"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Policy::read(&path), Err(PolicyError::Io(..))));
    }

    #[test]
    fn files_of_secrets_are_for_processes_on_nodes_with_a_directory_of_them() {
        let of_files = Start {
            env_file: vec!["web.env".into()],
            ..Start::default()
        };
        let of_secrets = Start {
            secrets: [("PASSWORD".to_owned(), "db".to_owned())].into(),
            ..Start::default()
        };
        for start in [of_files, of_secrets] {
            let refused = Policy::default().check("process", &start).unwrap_err();
            assert!(refused.why.contains("(policy: secrets)"), "{}", refused.why);
            let with = policy("secrets: /etc/secrets\n");
            assert_eq!(with.check("process", &start), Ok(()));
            assert_eq!(
                with.check("qemu", &start).unwrap_err().reason,
                Reason::InvalidData
            );
        }
    }

    #[test]
    fn a_start_beyond_the_policy_is_refused_and_the_key_is_named() {
        let narrow = policy(
            "drivers: [process]\ndirectories: [/srv/jobs]\nimages: [good]\nmem_mb: 100\ndisk_mb: 2048\n",
        );
        let start = Start {
            vm_type: VmType::Process,
            ..Start::default()
        };
        let boot = |id: &str, size| Storage {
            id: id.into(),
            boot: true,
            size,
            ..Storage::default()
        };
        let local = |size| Storage {
            local: true,
            size,
            ..Storage::default()
        };
        let check = |driver: &str, change: &dyn Fn(&mut Start)| {
            let mut start = start.clone();
            change(&mut start);
            assert_eq!(Policy::default().check(driver, &start), Ok(()));
            narrow.check(driver, &start)
        };
        let within: [&dyn Fn(&mut Start); 4] = [
            &|_| {},
            &|s| s.dir = "/srv/jobs/a".into(),
            &|s| s.dir = "relative".into(),
            &|s| s.storage.push(boot("good", 2)),
        ];
        for change in within {
            assert_eq!(check("process", change), Ok(()));
        }
        type Row<'a> = (&'a dyn Fn(&mut Start), Reason, &'a str);
        let beyond: [Row<'_>; 8] = [
            (
                &|s| s.dir = "/srv/jobsx".into(),
                Reason::LaunchFailure,
                "(policy: directories)",
            ),
            (
                &|s| s.dir = "/srv/jobs/../x".into(),
                Reason::LaunchFailure,
                "(policy: directories)",
            ),
            (
                &|s| s.dir = "/".into(),
                Reason::LaunchFailure,
                "(policy: directories)",
            ),
            (
                &|s| s.storage.push(boot("bad", 0)),
                Reason::ImageFailure,
                "(policy: images)",
            ),
            (
                &|s| s.requirements.mem_mb = 101,
                Reason::FullCn,
                "(policy: mem_mb)",
            ),
            (
                &|s| s.storage.push(boot("good", 3)),
                Reason::FullCn,
                "(policy: disk_mb)",
            ),
            (
                &|s| s.storage.extend([boot("good", -9), local(3)]),
                Reason::FullCn,
                "(policy: disk_mb)",
            ),
            (
                &|s| s.storage.extend([local(0), local(0), local(0)]),
                Reason::FullCn,
                "(policy: disk_mb)",
            ),
        ];
        for (change, fault, rule) in beyond {
            let error = check("process", change).unwrap_err();
            assert_eq!(error.reason, fault, "{error}");
            assert!(error.why.ends_with(rule), "{error}");
        }
        let error = check("qemu", &|_| {}).unwrap_err();
        assert!(error.why.ends_with("(policy: drivers)"), "{error}");
        let limits = [0, 50, 200].map(|asked| narrow.mem_mb(asked));
        assert_eq!(limits, [100, 50, 100]);
        assert_eq!(Policy::default().mem_mb(200), 200);
    }

    /// These users exist on every system.
    #[test]
    fn no_instance_runs_as_root_unless_the_policy_allows_it() {
        let own = rustix::process::geteuid().as_raw();
        let open = policy("users: [agent]");
        assert_eq!(user(&open, ""), Ok(None));
        assert_eq!(user(&open, &own.to_string()), Ok(None));
        for refused in ["root", "0", "no such user", "a\0b", "nobody"] {
            let error = user(&policy("users: [daemon]"), refused).unwrap_err();
            assert!(error.why.ends_with("(policy: users)"), "{error}");
        }
        if own != 0 {
            assert_eq!(user(&Policy::default(), ""), Ok(None));
            for (policy, child_user) in [(policy("users: [7-8]"), ""), (policy("users: [root]"), "root")] {
                let error = user(&policy, child_user).unwrap_err();
                assert!(error.why.contains("only root"), "{error}");
            }
            return;
        }
        let first = *OWN.start();
        let alone = |uid| {
            Some(User {
                uid,
                gid: uid,
                alone: true,
            })
        };
        assert_eq!(user(&Policy::default(), ""), Ok(alone(first)));
        for refused in ["root", "0", "nobody"] {
            assert!(user(&Policy::default(), refused).is_err(), "{refused}");
        }
        let named = policy("users: [7000-7001, nobody, root]");
        assert_eq!(user(&named, ""), Ok(alone(7000)));
        assert_eq!(user(&named, "0"), Ok(None));
        let nobody = user(&named, "nobody").unwrap().unwrap();
        assert_eq!(user(&named, &nobody.uid.to_string()), Ok(Some(nobody)));
        assert!(!nobody.alone && nobody.uid != 0);
        assert!(user(&named, "daemon").is_err());
        assert!(user(&policy("users: [nobody]"), "7000").is_err());
    }
}
