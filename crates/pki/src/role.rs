//! Roles of peers: a bitmask on the wire, and extended key usages in certificates
//! (docs/protocol.md, "Roles").

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};
use std::str::FromStr;

/// A set of roles. One entity may hold several.
///
/// On the wire it is the 32-bit mask of CONNECT and CONNECTED; in a certificate each role is one extended
/// key usage. Bits without a name are kept, so that a mask can be shown and refused.
///
/// ```
/// use ssntp_pki::Role;
///
/// let both: Role = "agent,netagent".parse()?;
/// assert_eq!(both, Role::AGENT | Role::NETAGENT);
/// assert_eq!(both.to_string(), "agent,netagent");
/// # Ok::<(), ssntp_pki::ParseRoleError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "issue", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "issue", serde(into = "String", try_from = "String"))]
pub struct Role(u32);

impl Role {
    /// No role; never valid in a handshake.
    pub const NONE: Self = Self(0);
    /// A generic SSNTP server.
    pub const SERVER: Self = Self(0x01);
    /// The command and status reporting client.
    pub const CONTROLLER: Self = Self(0x02);
    /// The agent of a compute node.
    pub const AGENT: Self = Self(0x04);
    /// The workload scheduler, which is also a server.
    pub const SCHEDULER: Self = Self(0x08);
    /// The agent of a network node.
    pub const NETAGENT: Self = Self(0x10);
    /// The agent inside a compute node concentrator instance.
    pub const CNCIAGENT: Self = Self(0x20);
    /// The roles that an issuer of nodes may give.
    pub const OF_NODES: Self = Self(0x04 | 0x10 | 0x20);
    /// Every role that has a name.
    pub const ALL: Self = Self(0x3f);

    /// Each single role with its name and the last arc of its object
    /// identifier below 1.3.6.1.4.1.343.8, in the order of the mask's bits.
    pub const TABLE: [(Self, &'static str, u8); 6] = [
        (Self::SERVER, "server", 5),
        (Self::CONTROLLER, "controller", 3),
        (Self::AGENT, "agent", 1),
        (Self::SCHEDULER, "scheduler", 2),
        (Self::NETAGENT, "netagent", 4),
        (Self::CNCIAGENT, "cnciagent", 6),
    ];

    /// The role set of a wire mask. Unknown bits are kept.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The wire mask.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// True if no bit is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if every bit of `other` is set here.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if at least one bit is set in both.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits that have no name.
    pub const fn unknown_bits(self) -> u32 {
        self.0 & !Self::ALL.0
    }

    /// True if a client or server whose certificate holds `certified` may advertise these roles: there is
    /// one, no bit is unknown, and each role is certified.
    pub const fn may_be_advertised_with(self, certified: Self) -> bool {
        !self.is_empty() && self.unknown_bits() == 0 && certified.contains(self)
    }

    /// The single roles of the set that have a name, lowest bit first.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Self::TABLE
            .into_iter()
            .map(|(role, _, _)| role)
            .filter(move |role| self.contains(*role))
    }

    /// The name of each of its roles, and unknown bits in hexadecimal.
    pub fn names(self) -> Vec<String> {
        let known = Self::TABLE.iter().filter(|(role, ..)| self.contains(*role));
        let known = known.map(|(_, name, _)| (*name).to_owned());
        let unknown = Some(self.unknown_bits()).filter(|bits| *bits != 0);
        known.chain(unknown.map(|bits| format!("{bits:#x}"))).collect()
    }
}

impl BitOr for Role {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for Role {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

impl BitAnd for Role {
    type Output = Self;
    fn bitand(self, rhs: Self) -> Self {
        Self(self.0 & rhs.0)
    }
}

impl fmt::Display for Role {
    /// Names joined with commas, unknown bits in hexadecimal, `none` when empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&self.names().join(","))
    }
}

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Role({self})")
    }
}

impl FromStr for Role {
    type Err = ParseRoleError;

    /// Reads names joined with commas, in any case, with blanks around them. An empty list and a name that
    /// is not a role are errors.
    fn from_str(text: &str) -> Result<Self, ParseRoleError> {
        let mut roles = Self::NONE;
        for name in text.split(',').map(str::trim) {
            let known = Self::TABLE
                .iter()
                .find(|(_, known, _)| known.eq_ignore_ascii_case(name));
            match known {
                Some((role, _, _)) => roles |= *role,
                None => return Err(ParseRoleError(name.to_owned())),
            }
        }
        Ok(roles)
    }
}

impl From<Role> for String {
    fn from(role: Role) -> Self {
        role.to_string()
    }
}

impl TryFrom<String> for Role {
    type Error = ParseRoleError;

    fn try_from(text: String) -> Result<Self, ParseRoleError> {
        text.parse()
    }
}

/// The text is not a list of roles.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a role (server, controller, agent, scheduler, netagent, cnciagent)")]
pub struct ParseRoleError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subset_prints_and_parses_back() {
        for bits in 1..=Role::ALL.bits() {
            let role = Role::from_bits(bits);
            assert_eq!(role.to_string().parse(), Ok(role));
        }
    }

    #[test]
    fn sets_of_roles_join_meet_and_fall_into_single_roles() {
        for (a, b) in (0..64).flat_map(|a| (0..64).map(move |b| (a, b))) {
            let (one, other) = (Role::from_bits(a), Role::from_bits(b));
            let mut joined = one;
            joined |= other;
            assert_eq!(
                (one | other, joined),
                (Role::from_bits(a | b), Role::from_bits(a | b))
            );
            assert_eq!(one & other, Role::from_bits(a & b));
            assert_eq!(one.intersects(other), a & b != 0);
            let singles: Vec<_> = one.iter().map(Role::bits).collect();
            assert!(singles.is_sorted() && singles.iter().all(|bit| bit.count_ones() == 1));
            assert_eq!(singles.iter().sum::<u32>(), a);
        }
        assert_eq!(format!("{:?}", Role::AGENT | Role::SERVER), "Role(server,agent)");
    }

    #[test]
    fn bad_names_are_refused_by_name() {
        for (text, bad) in [
            ("", ""),
            ("agent,", ""),
            ("agent;server", "agent;server"),
            ("root", "root"),
        ] {
            let error = ParseRoleError(bad.to_owned());
            assert!(error.to_string().starts_with(&format!("{bad:?} is not a role")));
            assert_eq!(text.parse::<Role>(), Err(error));
        }
        assert_eq!(" Agent , NETAGENT".parse(), Ok(Role::AGENT | Role::NETAGENT));
    }

    #[test]
    fn advertising_needs_a_known_certified_subset() {
        let certified = Role::AGENT | Role::NETAGENT;
        assert!(Role::AGENT.may_be_advertised_with(certified));
        assert!(certified.may_be_advertised_with(certified));
        assert!(!Role::NONE.may_be_advertised_with(certified));
        assert!(!(Role::AGENT | Role::SERVER).may_be_advertised_with(certified));
        assert!(!Role::from_bits(0x44).may_be_advertised_with(Role::from_bits(0x7f)));
        assert_eq!(Role::from_bits(0x44).to_string(), "agent,0x40");
    }
}
