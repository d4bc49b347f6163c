//! Servers resume TLS sessions, unless a flag says otherwise.

use ssntp::Role;
use ssntp::pki::CertificateRequest;
use ssntp_test_support::{LIMIT, Peer, authority, identity, trust};
use uuid::Uuid;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use ssntp::transport::TcpOptions;
use ssntp_transport::connect_tcp;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(at: &Path, line: &str) -> (Running, u16) {
    let child = crate::program()
        .args(line.split(' '))
        .args(["--listen", "127.0.0.1:0", "--ca", "ca.pem", "--cert", "cert.pem"])
        .current_dir(at)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let mut line = String::new();
    let stdout = running.0.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let port = line.trim().rsplit(':').next().unwrap().parse().unwrap();
    (running, port)
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
