//! The order for a supervisor: JSON after its length in four bytes.
//!
//! Agent and supervisor are the same program file and so have the same version. This form may
//! change with each version.

use std::ffi::OsString;
use std::io::{self, Read};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::driver::{InstanceDir, User};
use crate::network::Wire;
use ssntp_payload::HealthCheck;

/// The longest order. The system accepts 2 MiB of arguments and environment (a quarter of the usual
/// stack limit), and JSON needs up to four bytes for each of these bytes. A program with a longer
/// order could not be executed.
const MAX_ORDER: usize = 16 << 20;

/// A program to run as an instance.
#[derive(Debug)]
pub struct Program<'a> {
    /// The directory of the instance.
    pub place: &'a InstanceDir,
    /// The program with its arguments, environment, directory and user.
    pub exec: Exec,
    /// The maximum memory, in MB; 0 for no limit.
    pub mem_mb: i64,
    /// The maximum number of CPUs; 0 for no limit.
    pub vcpus: i64,
    /// The maximum number of processes and threads.
    pub pids: u32,
    /// The network of the program; `None` for the host's.
    pub network: Option<&'a dyn Wire>,
    /// Its health check, which its supervisor makes.
    pub check: Option<HealthCheck>,
    /// The address to which checks connect; `None` for 127.0.0.1.
    pub address: Option<IpAddr>,
}

/// What to execute, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The name of the program, which is looked for in the `PATH` of `env`, or the path of the
    /// program's file.
    pub program: OsString,
    /// The arguments, without the name of the program.
    pub arguments: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// The program's working directory.
    pub dir: OsString,
    /// The user that runs the program; `None` for the agent's own user.
    pub user: Option<User>,
    /// A group of the program besides that of its user.
    pub group: Option<u32>,
    /// The working directory has to be one of these directories or below one; `None` for any.
    pub within: Option<Vec<OsString>>,
}

impl Exec {
    /// The user that runs nothing but this program.
    pub(super) fn own_uid(&self) -> Option<u32> {
        Some(self.user.filter(|user| user.alone)?.uid)
    }
}

/// The limits of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// The control groups that the program joins.
    pub(super) cgroups: Vec<OsString>,
    /// The file that counts the processes of the control group that were killed for memory.
    pub(super) oom: Option<OsString>,
    /// The maximum data of each process, in bytes. It applies only if the program is in no control
    /// group.
    pub(super) data: Option<u64>,
    /// The maximum number of processes of the user.
    pub(super) processes: Option<u64>,
    /// The soft limit of open files with which the agent was started; the agent has raised its own.
    pub(super) files: Option<u64>,
}

/// The program to run, and its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LaunchOrder {
    /// The instance's directory, which holds the logs.
    pub(super) place: OsString,
    /// The maximum that each log may take, in bytes.
    pub(super) log_bytes: u64,
    pub(super) exec: Exec,
    pub(super) limits: Limits,
    /// The program has a network namespace of its own.
    pub(super) has_network: bool,
    /// The program has a mount namespace of its own; see `mounts`. The agent's user must be root.
    pub(super) is_isolated: bool,
    /// The program may change the network of its namespace.
    pub(super) administers_network: bool,
    pub(super) check: Option<HealthCheck>,
    /// The address to which checks connect; `None` for 127.0.0.1.
    pub(super) address: Option<IpAddr>,
}

impl LaunchOrder {
    /// The order as it is sent, with its length.
    ///
    /// # Errors
    /// The order is longer than [`MAX_ORDER`].
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut order = vec![0; 4];
        serde_json::to_writer(&mut order, self)?;
        match u32::try_from(order.len() - 4) {
            Ok(length) if length as usize <= MAX_ORDER => {
                order[..4].copy_from_slice(&length.to_be_bytes());
                Ok(order)
            }
            _ => Err(io::Error::other("its arguments and environment are too long")),
        }
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "this is not a valid order");
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_ORDER {
            return Err(invalid());
        }
        // The length was checked before memory is reserved.
        let mut order = vec![0; length];
        from.read_exact(&mut order)?;
        let order: Self = serde_json::from_slice(&order)?;
        if order.exec.program.is_empty() {
            Err(invalid())
        } else {
            Ok(order)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let full = LaunchOrder {
            place: "/state/a b".into(),
            log_bytes: 1 << 20,
            exec: Exec {
                program: "sh".into(),
                arguments: vec![
                    "-c".into(),
                    OsString::new(),
                    OsString::from_vec(vec![0xff, b'=', b'\n']),
                ],
                env: vec![("A".into(), "b=c\n".into()), ("B".into(), OsString::new())],
                dir: "/".into(),
                user: Some(User {
                    uid: 1,
                    gid: 2,
                    alone: true,
                }),
                group: Some(3),
                within: Some(vec!["/srv".into(), "/a b".into()]),
            },
            limits: Limits {
                cgroups: vec!["/cg/a".into(), "/cg/b".into()],
                oom: Some("/cg/a/memory.events".into()),
                data: Some(7),
                processes: Some(8),
                files: Some(1024),
            },
            has_network: true,
            is_isolated: true,
            administers_network: true,
            check: Some(HealthCheck {
                command: vec!["true".into()],
                ..HealthCheck::default()
            }),
            address: Some(IpAddr::from([10, 0, 0, 7])),
        };
        let mut least = LaunchOrder::default();
        least.exec.program = "true".into();
        for order in [full, least] {
            let bytes = order.encode().unwrap();
            assert_eq!(LaunchOrder::read(&*bytes).unwrap(), order);
            for length in 0..bytes.len() {
                assert!(LaunchOrder::read(&bytes[..length]).is_err());
            }
        }
        let nothing = LaunchOrder::default().encode().unwrap();
        assert!(
            LaunchOrder::read(&*nothing).is_err(),
            "the order names no program"
        );
        assert!(LaunchOrder::read(&[0xff; 64][..]).is_err());
    }
}
