//! Servers resume TLS sessions, unless a flag says otherwise.

use ssntp::Role;
use ssntp::pki::CertificateRequest;
use ssntp_test_support::program::Program;
use ssntp_test_support::{LIMIT, Peer, authority, identity, trust};
use uuid::Uuid;

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use ssntp::transport::TcpOptions;
use ssntp_transport::connect_tcp;

fn start(at: &Path, line: &str) -> (Program, u16) {
    let mut command = crate::program();
    command
        .args(line.split(' '))
        .args(["--listen", "127.0.0.1:0", "--ca", "ca.pem", "--cert", "cert.pem"])
        .current_dir(at)
        .stdout(Stdio::piped());
    let program = Program::of(command);
    let port = program.line("listening at ").rsplit(':').next().unwrap().parse();
    (program, port.unwrap())
}

#[test]
fn servers_resume_tls_sessions_unless_a_flag_says_otherwise() {
    let place = tempfile::tempdir().unwrap();
    authority().save(place.path(), false).unwrap();
    let request = CertificateRequest::new(Role::SERVER | Role::SCHEDULER);
    let issued = authority().issue(&request).unwrap();
    issued.save(place.path().join("cert.pem")).unwrap();
    for program in ["server", "scheduler --allow-unbound"] {
        for (flag, resumes) in [("", true), (" --no-resumption", false)] {
            let (_running, port) = start(place.path(), &format!("{program}{flag}"));
            let agent = trust()
                .connector(&identity(Role::AGENT))
                .unwrap()
                .resumption(true);
            for resumed in [false, resumes] {
                let options = TcpOptions::default();
                let stream = connect_tcp("127.0.0.1", port, &options, LIMIT).unwrap();
                let mut peer = Peer::with(Arc::new(stream), &agent);
                assert_eq!(peer.resumed, resumed, "{program}{flag}");
                peer.handshake(Role::AGENT, Uuid::new_v4(), false);
            }
        }
    }
}
