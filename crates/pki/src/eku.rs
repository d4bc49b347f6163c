//! Roles as extended key usages: 1.3.6.1.4.1.343.8.N, where N is the last column of the role table
//! (docs/protocol.md, "Roles").

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ExtendedKeyUsage;

use crate::der;
use crate::error::Fault;
use crate::role::Role;

/// 1.3.6.1.4.1.343.8 in DER. The encoded bytes are compared instead of decoded numbers, because
/// decoders have been wrong about the two-byte arc 343.
const BRANCH: [u8; 8] = [0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x57, 0x08];

/// The extended key usage of a certificate, if it has one.
pub(crate) fn usages<'a>(
    certificate: &'a X509Certificate<'_>,
) -> Result<Option<&'a ExtendedKeyUsage<'a>>, Fault> {
    let extension = certificate.extended_key_usage();
    let extension = extension.map_err(der::broken("extended key usage"))?;
    Ok(extension.map(|extension| extension.value))
}

/// The roles among the usages.
pub(crate) fn roles(usages: &ExtendedKeyUsage<'_>) -> Role {
    let mut roles = Role::NONE;
    for (role, _, arc) in Role::TABLE {
        let is_it = |oid: &[u8]| oid.split_last() == Some((&arc, &BRANCH[..]));
        if usages.other.iter().any(|oid| is_it(oid.as_bytes())) {
            roles |= role;
        }
    }
    roles
}

/// The object identifiers of the roles in the set, as numbers.
#[cfg(feature = "issue")]
pub(crate) fn identifiers(roles: Role) -> impl Iterator<Item = Vec<u64>> {
    Role::TABLE
        .into_iter()
        .filter(move |(role, _, _)| roles.contains(*role))
        .map(|(_, _, arc)| vec![1, 3, 6, 1, 4, 1, 343, 8, u64::from(arc)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer;

    /// An ExtKeyUsageSyntax of these identifiers in DER.
    fn der(identifiers: &[&[u8]]) -> Vec<u8> {
        let mut body = Vec::new();
        for oid in identifiers {
            body.extend([0x06, u8::try_from(oid.len()).unwrap()]);
            body.extend(*oid);
        }
        let mut der = vec![0x30, u8::try_from(body.len()).unwrap()];
        der.extend(body);
        der
    }

    fn read(identifiers: &[&[u8]]) -> Role {
        let der = der(identifiers);
        let (rest, usages) = ExtendedKeyUsage::from_der(&der).unwrap();
        assert!(rest.is_empty());
        roles(&usages)
    }

    #[test]
    fn each_role_has_the_bytes_of_the_table() {
        for (last, role) in [
            (1, Role::AGENT),
            (2, Role::SCHEDULER),
            (3, Role::CONTROLLER),
            (4, Role::NETAGENT),
            (5, Role::SERVER),
            (6, Role::CNCIAGENT),
        ] {
            let oid = [0x2b, 6, 1, 4, 1, 0x82, 0x57, 8, last];
            assert_eq!(read(&[&oid]), role);
        }
    }

    #[test]
    fn similar_identifiers_give_no_role() {
        let any = [0x55, 0x1d, 0x25, 0x00];
        let client_auth = [0x2b, 6, 1, 5, 5, 7, 3, 2];
        let arc_599 = [0x2b, 6, 1, 4, 1, 0x84, 0x57, 8, 1];
        let arc_7 = [0x2b, 6, 1, 4, 1, 0x82, 0x57, 8, 7];
        let deeper = [0x2b, 6, 1, 4, 1, 0x82, 0x57, 8, 1, 1];
        let branch = BRANCH;
        let none: [&[u8]; 6] = [&any, &client_auth, &arc_599, &arc_7, &deeper, &branch];
        assert_eq!(read(&none), Role::NONE);
        let agent = [0x2b, 6, 1, 4, 1, 0x82, 0x57, 8, 1];
        assert_eq!(read(&[&any, &agent, &agent]), Role::AGENT);
    }
}
