//! A service that admits clients by the DNS names in their certificates, answers their requests, and
//! stops on SIGTERM.
//!
//! ```text
//! cargo run --example authorising_service -- certs/ca.pem certs/server.pem '*.example' :8888
//! ```

use std::collections::BTreeMap;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use ssntp::pki::{Identity, Trust};
use ssntp::proto::{FrameKind, FrameType, Operands, Refusal};
use ssntp::server::{Context, Filter, Handler, Newcomer, SessionInfo};
use ssntp::{Request, Role, Server, ServerConfig};

/// Reads the value of a key, or sets it: `key` or `key=value`.
const LOOKUP: FrameKind = FrameKind::new(FrameType::COMMAND, 0x80);

/// A value for each key. Only controllers may set values.
struct Values {
    domain: String,
    values: BTreeMap<String, String>,
}

impl Handler for Values {
    fn admit(&mut self, _: &mut Context<'_>, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        let mut names = newcomer.certificate.dns_names();
        if names.any(|name| name.ends_with(&self.domain)) {
            Ok(())
        } else {
            Err(Refusal::forbid(format!("no name in {}", self.domain)))
        }
    }

    fn request(&mut self, cx: &mut Context<'_>, from: &SessionInfo, request: Request) {
        let asked = String::from_utf8_lossy(request.payload()).into_owned();
        let answered = match asked.split_once('=') {
            Some(_) if !from.role().intersects(Role::CONTROLLER) => cx.refuse(&request, "for controllers"),
            // Only controllers can add keys, so other clients cannot use up memory.
            Some((key, value)) => {
                self.values.insert(key.into(), value.into());
                cx.reply(&request, value.to_owned())
            }
            None => match self.values.get(&asked) {
                Some(value) => cx.reply(&request, value.clone()),
                None => cx.refuse(&request, "no such key"),
            },
        };
        if let Err(e) = answered {
            println!("{from}: not answered: {e}");
        }
    }
}

fn main() -> Result<(), ssntp::MainError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [ca, cert, domain, address] = &args[..] else {
        return Err("usage: authorising_service CA CERT DOMAIN ADDRESS".into());
    };
    let filter = Filter::deny_all().allow(LOOKUP, Role::CONTROLLER | Role::AGENT);
    let config = ServerConfig::new(Identity::load(cert)?, Trust::load(ca)?)
        .listen(address.parse()?)
        .operands(Operands::new().request(LOOKUP, "LOOKUP")?)
        .filter(filter);
    let domain = domain.trim_start_matches('*').to_owned();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let server = Server::start(
        config,
        Values {
            domain,
            values: BTreeMap::new(),
        },
    )?;
    println!("listening at {}", server.addresses()[0]);
    let _ = signals.forever().next();
    server.stop();
    Ok(())
}
