//! For tests: every file of credentials that flags name is watched, and its end is known.

use clap::FromArgMatches;
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use ssntp_daemon::FilesRead;

/// Gives each flag of `A` that takes a file such a file, and changes one file after the other. `rest` are
/// further arguments that these flags need.
pub(crate) fn each_file_is_watched<A: clap::Args + FromArgMatches>(
    rest: &[&str],
    read: impl Fn(&A) -> FilesRead,
) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let issued = authority.issue(&CertificateRequest::new(Role::ALL)).unwrap();
    let list = authority.revocation_list(&[], 1, 7).unwrap();
    let command = A::augment_args(clap::Command::new("test"));
    let names = |arg: &clap::Arg| {
        let takes = arg.get_value_names().unwrap_or_default();
        takes
            .iter()
            .any(|name| name.contains("FILE"))
            .then(|| arg.get_long().unwrap().to_owned())
    };
    let flags: Vec<_> = command.get_arguments().filter_map(names).collect();
    let (mut arguments, mut paths, mut ends) = (vec!["test".to_owned()], Vec::new(), 0);
    arguments.extend(rest.iter().map(|one| (*one).to_owned()));
    for flag in &flags {
        let (text, has_end) = match flag.rsplit('-').next().unwrap() {
            "ca" => (authority.certificate_pem(), true),
            "cert" => (issued.certificate_pem(), true),
            "key" => (issued.key_pem(), false),
            "crl" => (list.pem.as_str(), true),
            "file" => ("name:secret\n", false),
            _ => panic!("is --{flag} a file of credentials?"),
        };
        let path = dir.path().join(flag);
        std::fs::write(&path, text).unwrap();
        arguments.extend([format!("--{flag}"), path.to_str().unwrap().to_owned()]);
        paths.push((path, text.to_owned()));
        ends += usize::from(has_end);
    }
    let args = A::from_arg_matches(&command.get_matches_from(arguments)).unwrap();
    for (path, text) in &paths {
        let FilesRead {
            mut watched,
            lifetimes,
            ..
        } = read(&args);
        assert_eq!(lifetimes.len(), ends, "{lifetimes:?}");
        std::fs::write(path, format!("{text}\n")).unwrap();
        assert!(
            !watched.have_changed() && watched.have_changed(),
            "{} is watched",
            path.display()
        );
    }
}
