//! `ssntp ctl servers`: shows the servers that act as one, and drains a server.

use std::time::Duration;

use serde_json::json;
use ssntp::payload::{DrainServer, ListServers, ServerEntry, ServerState, Servers};
use ssntp_daemon::{Failure, age, note, print_json, print_line, printable};
use ssntp_transport::wall_clock;
use ssntp_view::all_pages;

use super::session::check;
use super::sessions::new_id;
use super::{Invocation, Session, json as shapes, tables};
use crate::cmd::table::list;

/// Show the servers that act as one, or drain a server
///
/// The list has the servers that the answering server knows. Works with `ssntp server` as
/// well.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<OfServers>,
}

#[derive(Debug, clap::Subcommand)]
enum OfServers {
    Drain(DrainArgs),
}

/// Ask the clients of a server to leave, and stop the server
///
/// The server admits no further clients, and asks its clients to connect to another server.
/// It stops once they have left, and at the latest 6 seconds after the time of --within. If
/// the server leads, it first gives its lease back, so that another server leads at once.
#[derive(Debug, clap::Args)]
struct DrainArgs {
    /// The server's UUID, the beginning of it, or its address, as `ssntp ctl servers` shows
    /// them
    #[arg(value_name = "NAME")]
    name: String,
    /// The time for the clients to leave, as 90s, 30m or 12h; each client leaves at a random
    /// moment within it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = age)]
    within: Duration,
}

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let session = Session::open_any(cx)?;
    let servers = all(&session)?;
    match &args.verb {
        Some(OfServers::Drain(drain)) => drained(&session, &servers.entries, drain),
        None if cx.options.json => print_json(shapes::servers(&servers, wall_clock())),
        None => {
            let table = list(tables::SERVERS, &servers.leader, servers.entries.iter());
            match tables::cluster(&servers) {
                Some(line) => print_line(format_args!("{line}\n{table}")),
                None => print_line(table),
            }
        }
    }
}

/// The list of servers, from all pages of the answer. A server without --advertise does not know at which address others
/// reach it, so the one that answers has the address at which this program has reached it.
fn all(session: &Session<'_>) -> Result<Servers, Failure> {
    let (id, mut head) = (new_id(), Servers::default());
    let mut entries = all_pages(|&after| {
        let question = ListServers {
            id: id.clone(),
            after,
        };
        let mut page: Servers = session.ask(&question, |page: &Servers| page.id == question.id, false)?;
        let found = (std::mem::take(&mut page.entries), page.next);
        head = page;
        Ok::<_, Failure>(found)
    })?;
    let is_own = |entry: &ServerEntry| matches!(entry.state, ServerState::Own | ServerState::Draining);
    let own = entries.iter_mut().find(|entry| is_own(entry));
    if let Some(own) = own.filter(|own| own.address.is_empty())
        && let Some(reached) = session.controller.client().server()
    {
        own.address = reached.address.to_string();
    }
    Ok(Servers { entries, ..head })
}

fn drained(session: &Session<'_>, servers: &[ServerEntry], args: &DrainArgs) -> Result<(), Failure> {
    let server = find(servers, &args.name)?;
    let question = DrainServer {
        id: new_id(),
        uuid: server.uuid.clone(),
        within_s: args.within.as_secs(),
    };
    let answer: Servers = session.ask(&question, |answer: &Servers| answer.id == question.id, true)?;
    check(&answer.reason, &answer.detail)?;
    let within = question.within_s;
    // The user may have given the beginning of a UUID, which does not name the server clearly.
    let name = match server.address.as_str() {
        "" => server.uuid.as_str(),
        address => address,
    };
    let name = printable(name);
    if !servers
        .iter()
        .any(|other| other.uuid != server.uuid && takes_clients(other))
    {
        note(format_args!(
            "{name}: no other server is known that could take its clients"
        ));
    }
    if session.json {
        print_json(json!({"uuid": question.uuid.as_str(), "within_s": within}))
    } else {
        print_line(format_args!(
            "{name}: its clients leave within {}, then it stops",
            tables::exact(within)
        ))
    }
}

fn takes_clients(server: &ServerEntry) -> bool {
    !matches!(server.state, ServerState::Away | ServerState::Draining)
}

/// The server with this address, or with a UUID that begins so.
fn find<'a>(servers: &'a [ServerEntry], name: &str) -> Result<&'a ServerEntry, Failure> {
    let beginning = name.trim().to_ascii_lowercase();
    let is_meant = |entry: &&ServerEntry| {
        let has_uuid = !beginning.is_empty() && entry.uuid.as_str().starts_with(&beginning);
        let has_address = !name.is_empty() && entry.address == name;
        has_address || has_uuid
    };
    let meant: Vec<_> = servers.iter().filter(is_meant).collect();
    let name = printable(name);
    match meant.as_slice() {
        [one] if one.uuid.is_empty() => Err(Failure::new(format!(
            "{name}: there is no link to the server: {}",
            printable(&one.detail)
        ))),
        [one] => Ok(one),
        [] => {
            let known = servers
                .iter()
                .map(|entry| match (entry.uuid.as_str(), &*entry.address) {
                    (uuid, "") => format!("{uuid} (no --advertise)"),
                    ("", address) => address.to_owned(),
                    (uuid, address) => format!("{uuid} ({address})"),
                });
            let known = printable(&known.collect::<Vec<_>>().join(", "));
            Err(Failure::new(format!(
                "no server has the address {name} or a UUID that begins with that; known are {known}"
            )))
        }
        several => Err(Failure::new(format!(
            "{} servers have that address or a UUID that begins with {name}",
            several.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_by_uuid_beginning_and_address() {
        let entry = |uuid: &str, address: &str| ServerEntry {
            uuid: uuid.into(),
            address: address.into(),
            detail: "refused".into(),
            ..ServerEntry::default()
        };
        let one = "0d9d0c5e-6f3a-4b7e-9c55-1a2b3c4d5e6f";
        let two = "0d9d0c5e-6f3a-4b7e-9c55-1a2b3c4d5e70";
        let find = |servers: &[ServerEntry], name: &str| super::find(servers, name).cloned();
        let mut servers = [entry(one, "a:1"), entry(two, "b:1"), entry("", "c:1")];
        for name in [one, "a:1", "0D9D0C5E-6F3A-4B7E-9C55-1A2B3C4D5E6"] {
            assert_eq!(find(&servers, name).unwrap().uuid.as_str(), one, "{name}");
        }
        for (name, reason) in [
            (
                "0d9d",
                "2 servers have that address or a UUID that begins with 0d9d",
            ),
            ("", "no server has the address"),
            ("d:1", "no server has the address d:1"),
            ("c:1", "c:1: there is no link to the server: refused"),
        ] {
            let error = find(&servers, name).unwrap_err();
            assert!(error.plain().unwrap().starts_with(reason), "{name}: {error:?}");
        }
        // Two servers without --advertise: the error names both.
        servers[0].address.clear();
        servers[1].address.clear();
        let error = find(&servers, "here:1").unwrap_err();
        let names = format!("known are {one} (no --advertise), {two} (no --advertise), c:1");
        assert!(error.plain().unwrap().ends_with(&names), "{error:?}");
        assert!(find(&servers, "").is_err(), "no name is the name of no server");
    }
}
