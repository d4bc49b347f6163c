//! Renewal: issuing the same certificate again with a later end.

use std::path::Path;

use rcgen::BasicConstraints;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;

use super::issue::{
    Authority, CERTIFICATE_FILE, CLOCK_SKEW, DAY, Issued, MAX_DAYS, alternatives, issuer_params, key_pair,
    key_pair_of, lifetime, params,
};
use super::issuer::to_pem;
use super::request::{CertificateRequest, KeyKind};
use super::revoke::{PATIENCE, hold};
use crate::error::{BadRequest, Error, Fault};
use crate::inspect::CertificateInfo;
use crate::list::Serial;
use crate::pem::Sections;
use crate::trust::Trust;
use crate::{der, store};
use ssntp_transport::printable;

/// Options of a renewal.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RenewalRequest {
    /// The lifetime of the new certificate in days. It ends with the authority's at the latest.
    /// Default: as long as the old certificate's.
    pub days: Option<u32>,
    /// True to keep the key.
    /// Default: a new key of the same kind.
    pub keep_key: bool,
    /// Other authorities that may have issued the old certificate, for a cluster that
    /// changes to another authority. Certificates in its revocation lists are not renewed.
    /// Default: none.
    pub issued_by: Option<Trust>,
}

/// A certificate that was renewed.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// The facts in the old certificate.
    pub before: CertificateInfo,
    /// The new certificate.
    pub issued: Issued,
}

impl Authority {
    /// Replaces the certificate in a file that [`Issued::save`](crate::Issued::save) wrote with a new
    /// one for the same name, roles, hosts, UUID and kind of key. The file is replaced in one step and
    /// keeps its mode; further certificates in it stay. The revocation list in the authority's
    /// `directory` is checked. Blocks as [`revoke`](Self::revoke) does.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Write`]; [`Error::Content`] if the file holds no certificate with its
    /// key, one of another authority, or one that is revoked; [`Error::Request`] if the certificate
    /// holds a part that this authority does not issue. The file is unchanged then.
    pub fn renew(
        &self,
        directory: impl AsRef<Path>,
        path: impl AsRef<Path>,
        request: &RenewalRequest,
    ) -> Result<Renewed, Error> {
        let (directory, path) = (directory.as_ref(), path.as_ref());
        let origin = store::origin(path);
        let _held = hold(directory, PATIENCE)?;
        let unfit = |fault| Error::content(&origin)(fault);
        let sections = store::load(path)?;
        let chain = sections.certificates().map_err(unfit)?;
        let key = sections.key().map_err(unfit)?;
        let before = CertificateInfo::from_der(&chain[0]).map_err(unfit)?;
        self.check_renewable(&before, chain, request).map_err(unfit)?;
        // What is issued below has no right to issue.
        if before.is_authority {
            let why = "it is an issuer's; another issuer has to take its place";
            return Err(BadRequest::Renewal(why.to_owned()).into());
        }
        if let Some(list) = self.kept_list(directory)?
            && list.revokes(&Serial::from(&before))
        {
            let (subject, serial) = (before.subject, before.serial);
            return Err(unfit(Fault::Revoked { subject, serial }));
        }
        let mut wanted = same_request(&before)?;
        wanted.days = request.days.unwrap_or_else(|| days_of(&before));
        let issued = if request.keep_key {
            self.issue_for(&wanted, || key_pair(&key).map_err(unfit))?
        } else {
            wanted.key = KeyKind::of(&before).ok_or_else(|| {
                BadRequest::Renewal(format!("new keys of the kind {} cannot be made", before.key))
            })?;
            self.issue(&wanted)?
        };
        let text = issued.certificate_pem().to_owned() + &further(&sections) + issued.key_pem();
        store::write(path, &text, None)?;
        Ok(Renewed { before, issued })
    }

    fn check_renewable(
        &self,
        before: &CertificateInfo,
        chain: &[CertificateDer<'static>],
        request: &RenewalRequest,
    ) -> Result<(), Fault> {
        match (self.check_issued(before), &request.issued_by) {
            (Err(Fault::UnknownIssuer { .. } | Fault::BadSignature), Some(trust)) => {
                // At a time when it was valid, because it may have expired.
                trust.verify_at(chain, before.not_before).map(drop)
            }
            (judged, _) => judged,
        }
    }

    /// Signs the authority's own certificate again, with the same key, name and hosts, and replaces the
    /// first certificate in the `ca.pem` of its directory; further ones stay. Certificates that it has
    /// issued are valid under both. Blocks as [`revoke`](Self::revoke) does.
    ///
    /// # Errors
    /// [`Error::Request`] if another authority signed it, or it holds a part that cannot be repeated;
    /// [`Error::Read`], [`Error::Write`]. The file is unchanged then.
    pub fn renew_itself(&self, directory: impl AsRef<Path>, days: Option<u32>) -> Result<Self, Error> {
        let directory = directory.as_ref();
        let _held = hold(directory, PATIENCE)?;
        let path = directory.join(CERTIFICATE_FILE);
        let origin = store::origin(&path);
        let unfit = |fault| Error::content(&origin)(fault);
        let own = der::certificate(&self.info.der).map_err(unfit)?;
        if own.subject().as_raw() != own.issuer().as_raw() {
            return Err(BadRequest::Renewal("another authority signed it: renew it there".to_owned()).into());
        }
        check_names(&self.info)?;
        check_extensions(&own)?;
        let name = issuer_params(&self.info, &origin)?;
        let within = lifetime(None, days.unwrap_or_else(|| days_of(&self.info)))?;
        let mut wanted = params("authority", within)?;
        wanted.distinguished_name = name.distinguished_name;
        wanted.key_identifier_method = name.key_identifier_method;
        wanted.subject_alt_names = alternatives(&self.info.hosts, None)?;
        let constraints = own.basic_constraints().ok().flatten();
        let most = constraints.and_then(|extension| extension.value.path_len_constraint);
        let constraints = match most {
            None => BasicConstraints::Unconstrained,
            // A chain of more than 255 authorities does not occur.
            Some(most) => BasicConstraints::Constrained(u8::try_from(most).unwrap_or(u8::MAX)),
        };
        let key = key_pair_of(self.key_pem().as_bytes()).map_err(unfit)?;
        let mut renewed = Self::self_signed(wanted, constraints, key, &origin)?;
        // Verifiers compare names byte by byte. With another name, peers would not find the issuer of
        // their certificates.
        let signed = der::certificate(&renewed.info.der).map_err(unfit)?;
        if signed.subject().as_raw() != own.subject().as_raw() {
            return Err(BadRequest::AuthorityName.into());
        }
        renewed.certificate_pem += &further(&store::load(&path)?);
        store::write(&path, renewed.certificate_pem(), None)?;
        Ok(renewed)
    }
}

/// The request for a certificate with the same content.
fn same_request(certificate: &CertificateInfo) -> Result<CertificateRequest, Error> {
    check_names(certificate)?;
    let mut request = CertificateRequest::new(certificate.roles);
    let name = CertificateInfo::common_name(&certificate.der);
    // A new one has a common name only.
    let name = name.filter(|name| certificate.subject == printable(&format!("CN={name}")));
    request.name =
        name.ok_or_else(|| BadRequest::Renewal(format!("its holder is {:?}", certificate.subject)))?;
    request.hosts.clone_from(&certificate.hosts);
    request.uuid = certificate.uuid;
    if certificate.server_auth != request.is_server() || !certificate.client_auth {
        return Err(BadRequest::Renewal("its usages are not those of its roles".to_owned()).into());
    }
    Ok(request)
}

fn check_names(certificate: &CertificateInfo) -> Result<(), BadRequest> {
    match certificate.other_names.as_slice() {
        [] => Ok(()),
        names => Err(BadRequest::Renewal(format!("it is for {}", names.join(", ")))),
    }
}

/// Checks that an authority's certificate has no extension that a new one would lack, because that may
/// be a limit.
fn check_extensions(own: &X509Certificate<'_>) -> Result<(), BadRequest> {
    for extension in own.iter_extensions() {
        let oid = extension.oid.to_id_string();
        let name = match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(_)
            | ParsedExtension::KeyUsage(_)
            | ParsedExtension::SubjectAlternativeName(_)
            | ParsedExtension::SubjectKeyIdentifier(_)
            // In a self-signed certificate it is the identifier of the certificate's own key.
            | ParsedExtension::AuthorityKeyIdentifier(_) => continue,
            ParsedExtension::NameConstraints(_) => "nameConstraints",
            ParsedExtension::ExtendedKeyUsage(_) => "extendedKeyUsage",
            ParsedExtension::PolicyConstraints(_) => "policyConstraints",
            _ => &oid,
        };
        return Err(BadRequest::Renewal(format!(
            "its extension {name} cannot be repeated"
        )));
    }
    Ok(())
}

/// The lifetime in days, without the ten minutes for slow clocks.
fn days_of(certificate: &CertificateInfo) -> u32 {
    let lifetime = certificate.not_after.duration_since(certificate.not_before);
    let seconds = lifetime.unwrap_or_default().as_secs();
    let days = seconds.saturating_sub(CLOCK_SKEW).div_ceil(DAY);
    u32::try_from(days).unwrap_or(MAX_DAYS).clamp(1, MAX_DAYS)
}

/// All certificates of a PEM text except for the first, as PEM.
fn further(sections: &Sections) -> String {
    sections.certificates.iter().skip(1).map(to_pem).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use uuid::Uuid;

    use super::*;
    use crate::Role;
    use crate::{AuthorityRequest, Identity, RevocationLists, RevocationReason, Revoked};

    fn authority() -> (tempfile::TempDir, Authority) {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        authority.save(directory.path(), false).unwrap();
        (directory, authority)
    }

    #[test]
    fn a_renewed_certificate_has_the_same_content_under_a_new_key() {
        let (directory, authority) = authority();
        // The file may be in any directory.
        let elsewhere = tempfile::tempdir().unwrap();
        let path = elsewhere.path().join("scheduler.pem");
        let request = CertificateRequest::new(Role::SCHEDULER | Role::AGENT)
            .name("both")
            .host("sched.example")
            .host("::1")
            .uuid(Uuid::from_u128(7))
            .key(KeyKind::Ed25519)
            .days(40);
        authority.issue(&request).unwrap().save(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let renewed = authority
            .renew(&directory, &path, &RenewalRequest::default())
            .unwrap();
        let (before, after) = (&renewed.before, renewed.issued.info());
        assert_ne!(before.serial, after.serial);
        let facts = |info: &CertificateInfo| {
            let length = info.not_after.duration_since(info.not_before).unwrap();
            let (subject, key) = (info.subject.clone(), info.key.clone());
            (subject, key, info.roles, info.hosts.clone(), info.uuid, length)
        };
        assert_eq!(facts(before), facts(after));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let loaded = Identity::load(&path).unwrap();
        assert_eq!(loaded.info(), after);
        let public = |info: &CertificateInfo| der::certificate(&info.der).unwrap().public_key().raw.to_vec();
        assert_ne!(public(before), public(after));
        let keeping = RenewalRequest {
            keep_key: true,
            days: Some(5),
            ..RenewalRequest::default()
        };
        let again = authority.renew(&directory, &path, &keeping).unwrap();
        assert_eq!(public(after), public(again.issued.info()));
        assert_eq!(days_of(again.issued.info()), 5);
        Identity::load(&path).unwrap();
    }

    #[test]
    fn a_revoked_certificate_and_one_of_another_authority_are_not_renewed() {
        let (directory, authority) = authority();
        let elsewhere = tempfile::tempdir().unwrap();
        let path = elsewhere.path().join("agent.pem");
        let other = Authority::new(&AuthorityRequest::default()).unwrap();
        other
            .issue(&CertificateRequest::new(Role::AGENT))
            .unwrap()
            .save(&path)
            .unwrap();
        let renew = |request: &RenewalRequest| authority.renew(&directory, &path, request);
        let refused = renew(&RenewalRequest::default());
        assert!(matches!(
            refused,
            Err(Error::Content {
                fault: Fault::BadSignature,
                ..
            })
        ));
        let coming_from = |trust: Trust| RenewalRequest {
            issued_by: Some(trust),
            ..RenewalRequest::default()
        };
        // The other authority's list counts as well.
        let theirs = Revoked::now(
            Serial::from(Identity::load(&path).unwrap().info()),
            RevocationReason::UNSPECIFIED,
        );
        let list = other.revocation_list(&[theirs], 1, 30).unwrap();
        let lists = RevocationLists::from_pem(list.pem.as_bytes(), "theirs").unwrap();
        let refused = renew(&coming_from(other.trust().with_revocation_lists(&lists).unwrap()));
        assert!(matches!(
            refused,
            Err(Error::Content {
                fault: Fault::Revoked { .. },
                ..
            })
        ));
        let renewed = renew(&coming_from(other.trust())).unwrap();
        authority
            .trust()
            .verify(renewed.issued.identity().chain())
            .unwrap();
        let revoked = Revoked::now(Serial::from(renewed.issued.info()), RevocationReason::UNSPECIFIED);
        authority.revoke(directory.path(), &[revoked], 30).unwrap();
        let before = fs::read(&path).unwrap();
        let refused = renew(&RenewalRequest::default());
        assert!(matches!(
            refused,
            Err(Error::Content {
                fault: Fault::Revoked { .. },
                ..
            })
        ));
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn an_authority_that_renews_itself_remains_the_issuer() {
        let (directory, authority) = authority();
        let issued = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
        let renewed = authority.renew_itself(directory.path(), Some(7000)).unwrap();
        assert_ne!(renewed.info().serial, authority.info().serial);
        assert_eq!(days_of(renewed.info()), 7000);
        let loaded = Authority::load(directory.path()).unwrap();
        assert_eq!(loaded.info(), renewed.info());
        // Each certificate is valid under the other one.
        renewed.trust().verify(issued.identity().chain()).unwrap();
        let later = loaded.issue(&CertificateRequest::new(Role::SERVER)).unwrap();
        authority.trust().verify(later.identity().chain()).unwrap();
        assert_eq!(loaded.check_issued(issued.info()), Ok(()));
        assert_eq!(loaded.check_issued(authority.info()), Err(Fault::AuthorityAsPeer));
    }

    #[test]
    fn further_certificates_in_the_file_of_an_authority_stay() {
        let (directory, authority) = authority();
        let path = directory.path().join("ca.pem");
        let other = Authority::new(&AuthorityRequest::default()).unwrap();
        fs::write(
            &path,
            authority.certificate_pem().to_owned() + other.certificate_pem(),
        )
        .unwrap();
        let renewed = authority.renew_itself(directory.path(), None).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), renewed.certificate_pem());
        let kept = Trust::load(&path).unwrap();
        assert_eq!(kept.authorities(), [renewed.info().clone(), other.info().clone()]);
    }

    #[cfg(feature = "aws-lc-rs")]
    #[test]
    fn an_authority_whose_key_is_not_in_pkcs8_is_renewed_and_saved() {
        use base64::Engine;
        // PKCS#8 has the key in its older form at the end, which begins with these bytes after its length.
        let forms = [
            (KeyKind::P256, "EC", &[2, 1, 1, 4][..], 2),
            (KeyKind::Rsa2048, "RSA", &[2, 1, 0, 2], 4),
        ];
        for (kind, name, begin, head) in forms {
            let directory = tempfile::tempdir().unwrap();
            let authority = Authority::new(&AuthorityRequest::default().key(kind)).unwrap();
            authority.save(directory.path(), false).unwrap();
            let der = authority.issuer.key().serialized_der();
            let at = der.windows(4).position(|part| part == begin).unwrap() - head;
            let key = base64::engine::general_purpose::STANDARD.encode(&der[at..]);
            let key =
                format!("-----BEGIN {name} PRIVATE KEY-----\n{key}\n-----END {name} PRIVATE KEY-----\n");
            fs::write(directory.path().join("ca.key"), key).unwrap();
            let loaded = Authority::load(&directory).unwrap();
            let renewed = loaded.renew_itself(&directory, None).unwrap();
            let elsewhere = tempfile::tempdir().unwrap();
            renewed.save(elsewhere.path(), false).unwrap();
            Authority::load(&elsewhere).unwrap();
        }
    }

    #[test]
    fn an_authority_is_not_renewed_if_it_would_lose_a_limit() {
        use rcgen::{ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, NameConstraints};
        let (directory, authority) = authority();
        let plain = || {
            let mut params = params("made elsewhere", lifetime(None, 30).unwrap()).unwrap();
            params.distinguished_name = issuer_params(authority.info(), "").unwrap().distinguished_name;
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
        };
        let mut named = plain();
        named.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("example".to_owned())],
            excluded_subtrees: Vec::new(),
        });
        let mut used = plain();
        used.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let path = directory.path().join("ca.pem");
        for (params, named) in [(named, "nameConstraints"), (used, "extendedKeyUsage")] {
            let certificate = params.self_signed(authority.issuer.key()).unwrap();
            fs::write(&path, certificate.pem()).unwrap();
            let authority = Authority::load(directory.path()).unwrap();
            let error = authority
                .renew_itself(directory.path(), None)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("cannot be renewed as it is") && error.contains(named),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), certificate.pem());
        }
        let certificate = plain().self_signed(authority.issuer.key()).unwrap();
        fs::write(&path, certificate.pem()).unwrap();
        let unlimited = Authority::load(directory.path()).unwrap();
        unlimited.renew_itself(directory.path(), None).unwrap();
    }

    #[test]
    fn further_certificates_in_a_file_stay() {
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n\
                    -----BEGIN PRIVATE KEY-----\nKKKK\n-----END PRIVATE KEY-----\n\
                    -----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n";
        assert_eq!(
            further(&Sections::read(text.as_bytes()).unwrap()),
            "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n"
        );
    }
}
