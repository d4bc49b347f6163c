//! What a supervisor is told to run: `key=value` texts, each ended by a zero,
//! behind their length in four bytes.
//!
//! A supervisor is of the agent's own version, the program being the same
//! file, so this form may change with each version.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::agent::driver::User;

/// The longest order. The system takes 2 MiB of arguments and environment
/// (a quarter of the usual stack limit), so nothing longer could be run.
const MAX_ORDER: usize = 4 << 20;

/// What to run, and within what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// The instance's directory, where its logs are.
    pub(super) place: PathBuf,
    /// The most that each of its logs may take, in bytes.
    pub(super) log_bytes: u64,
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) env: BTreeMap<OsString, OsString>,
    /// Where it runs.
    pub(super) dir: PathBuf,
    /// Who runs it, where not the agent's own user.
    pub(super) user: Option<User>,
    /// A group that it is in besides its user's.
    pub(super) group: Option<u32>,
    /// What the directory has to be in, or to be; `None` for any.
    pub(super) within: Option<Vec<PathBuf>>,
    /// The control groups that it joins.
    pub(super) cgroups: Vec<PathBuf>,
    /// The file that counts how often a process of it was killed for memory.
    pub(super) oom: Option<PathBuf>,
    /// The most data that one of its processes may have, where it is in no
    /// control group.
    pub(super) data: Option<u64>,
    /// The most processes that its user may have.
    pub(super) processes: Option<u64>,
    /// The soft limit of open files, which the agent raised for itself.
    pub(super) files: Option<u64>,
}

impl Order {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |key: &str, value: &OsStr| {
            bytes.extend(key.as_bytes());
            bytes.push(b'=');
            bytes.extend(value.as_bytes());
            bytes.push(0);
        };
        add("place", self.place.as_os_str());
        add("program", &self.program);
        add("dir", self.dir.as_os_str());
        self.arguments
            .iter()
            .for_each(|argument| add("argument", argument));
        for (name, value) in &self.env {
            let mut entry = name.clone();
            entry.push("=");
            entry.push(value);
            add("env", &entry);
        }
        self.cgroups
            .iter()
            .for_each(|cgroup| add("cgroup", cgroup.as_os_str()));
        if let Some(within) = &self.within {
            add("confined", OsStr::new(""));
            within.iter().for_each(|dir| add("within", dir.as_os_str()));
        }
        self.oom.iter().for_each(|oom| add("oom", oom.as_os_str()));
        let numbers = [
            ("log", Some(self.log_bytes)),
            ("uid", self.user.map(|user| user.uid.into())),
            ("gid", self.user.map(|user| user.gid.into())),
            ("alone", self.user.map(|user| user.alone.into())),
            ("group", self.group.map(Into::into)),
            ("data", self.data),
            ("processes", self.processes),
            ("files", self.files),
        ];
        for (key, number) in numbers {
            number
                .iter()
                .for_each(|number| add(key, number.to_string().as_ref()));
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut order, mut uid, mut gid, mut alone) = (Self::default(), None, None, false);
        for text in bytes.strip_suffix(&[0])?.split(|byte| *byte == 0) {
            let at = text.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (std::str::from_utf8(&text[..at]).ok()?, &text[at + 1..]);
            let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
            let value = OsString::from_vec(value.to_vec());
            match key {
                "place" => order.place = value.into(),
                "program" => order.program = value,
                "dir" => order.dir = value.into(),
                "argument" => order.arguments.push(value),
                "env" => {
                    let at = value.as_bytes().iter().position(|byte| *byte == b'=')?;
                    let (name, value) = value.as_bytes().split_at(at);
                    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                    order.env.insert(text(name), text(&value[1..]));
                }
                "cgroup" => order.cgroups.push(value.into()),
                "confined" => order.within = Some(Vec::new()),
                "within" => order.within.as_mut()?.push(value.into()),
                "oom" => order.oom = Some(value.into()),
                "log" => order.log_bytes = number()?,
                "uid" => uid = Some(u32::try_from(number()?).ok()?),
                "gid" => gid = Some(u32::try_from(number()?).ok()?),
                "alone" => alone = number()? == 1,
                "group" => order.group = Some(u32::try_from(number()?).ok()?),
                "processes" => order.processes = Some(number()?),
                "data" => order.data = Some(number()?),
                "files" => order.files = Some(number()?),
                _ => return None,
            }
        }
        order.user = match (uid, gid) {
            (Some(uid), Some(gid)) => Some(User { uid, gid, alone }),
            (None, None) => None,
            _ => return None,
        };
        (!order.program.is_empty()).then_some(order)
    }

    /// Whether it can be sent.
    pub(super) fn fits(&self) -> bool {
        self.encode().len() <= MAX_ORDER
    }

    pub(super) fn write(&self, mut to: impl Write) -> io::Result<()> {
        let order = self.encode();
        let length = u32::try_from(order.len()).map_err(io::Error::other)?;
        to.write_all(&length.to_be_bytes())?;
        to.write_all(&order)
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "that is no order");
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_ORDER {
            return Err(invalid());
        }
        let mut order = vec![0; length];
        from.read_exact(&mut order)?;
        Self::decode(&order).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let full = Order {
            place: "/state/a b".into(),
            log_bytes: 1 << 20,
            program: "sh".into(),
            arguments: vec![
                "-c".into(),
                OsString::new(),
                OsString::from_vec(vec![0xff, b'=', b'\n']),
            ],
            env: BTreeMap::from([("A".into(), "b=c\n".into()), ("B".into(), OsString::new())]),
            dir: "/".into(),
            user: Some(User {
                uid: 1,
                gid: 2,
                alone: true,
            }),
            group: Some(3),
            within: Some(vec!["/srv".into(), "/a b".into()]),
            cgroups: vec!["/cg/a".into(), "/cg/b".into()],
            oom: Some("/cg/a/memory.events".into()),
            data: Some(7),
            processes: Some(8),
            files: Some(1024),
        };
        let least = Order {
            program: "true".into(),
            ..Order::default()
        };
        for order in [full, least] {
            let mut bytes = Vec::new();
            order.write(&mut bytes).unwrap();
            assert_eq!(Order::read(&*bytes).unwrap(), order);
            for length in 0..bytes.len() {
                assert!(Order::read(&bytes[..length]).is_err());
            }
        }
        for junk in [
            "",
            "program\0",
            "program=\0",
            "program=a\0uid=1\0",
            "program=a\0x=1\0",
        ] {
            assert_eq!(Order::decode(junk.as_bytes()), None, "{junk:?}");
        }
        assert!(Order::read(&[0xff; 64][..]).is_err());
    }
}
