//! `ssntp token`, `ssntp ctl certificates` and `ssntp ctl revoke`: the nodes that join with tokens.

use std::time::Duration;

use clap::{Subcommand, value_parser};
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::pki::{JoinToken, StoredToken};
use ssntp::transport::Address;
use ssntp_daemon::{Failure, Stop, address, age, note, print_either, print_json, print_line};
use ssntp_payload::{
    EnrolmentAction, EnrolmentList, ManageEnrolment, NodeCertificate, TokenEntry, timestamp,
};
use ssntp_transport::wall_clock;
use ssntp_view::all_pages;
use uuid::Uuid;

use super::kick::{NamedClient, only};
use super::session::check;
use super::sessions::new_id;
use super::{Invocation, Options, Session};
use crate::cmd::roles;
use crate::cmd::table::{Columns, print};

/// Give nodes tokens to join the cluster with
///
/// A token lets nodes get a certificate from the scheduler. It shows the scheduler's
/// authority to the node, and admits as many nodes as it says, until it ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: TokenVerb,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum TokenVerb {
    Add(AddToken),
    /// Show the tokens that have not ended
    List,
    /// Remove a token: nobody joins with it any more
    Remove {
        /// The token's id, or the beginning of it
        id: String,
    },
}

/// Add a token, and print the command that joins a node with it
///
/// The token's secret is printed only here; the scheduler does not have it.
#[derive(Debug, clap::Args)]
struct AddToken {
    /// The roles that the node gets: agent, netagent or cnciagent, joined with commas
    #[arg(long, value_name = "ROLE[,ROLE…]")]
    role: Role,
    /// The UUID of the node [default: a new one for each node]
    #[arg(long)]
    uuid: Option<Uuid>,
    /// The number of nodes that may join with the token
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..), conflicts_with = "uuid")]
    uses: u32,
    /// The time until the token ends, for example 10m, 1h or 7d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = age)]
    ttl: Duration,
    /// The address at which the node reaches the scheduler [default: the address of the
    /// context or of --connect]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    at: Option<Address>,
    /// Print the token alone, for scripts
    #[arg(long)]
    bare: bool,
}

/// Runs `ssntp token`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let (options, stop) = (args.options, Stop::install_for_commands()?);
    let cx = &Invocation { options, stop };
    match args.verb {
        TokenVerb::Add(args) => add(cx, &args),
        TokenVerb::List => list(cx),
        TokenVerb::Remove { id } => remove(cx, &id),
    }
}

fn add(cx: &Invocation, args: &AddToken) -> Result<(), Failure> {
    if args.ttl.is_zero() {
        return Err(Failure::usage("--ttl must be longer than 0 seconds"));
    }
    let reached = cx.options.server.reach(&cx.stop)?;
    let (_, trust) = reached.files.load()?;
    let [authority] = trust.authorities() else {
        return Err(Failure::usage(
            "the file of --ca has several authorities, and a token shows one: give --ca the scheduler's alone",
        ));
    };
    let at = args.at.clone().or_else(|| reached.connect.first().cloned());
    let Some(at @ Address::Tcp { .. }) = at else {
        return Err(Failure::usage(
            "--at is needed: the address at which the node reaches the scheduler",
        ));
    };
    let token = JoinToken::new(at.clone(), authority)?;
    let ends = wall_clock() + args.ttl;
    let stored = StoredToken::new(&token, args.role, args.uuid, args.uses, ends, "");
    let entry = TokenEntry {
        id: stored.id,
        secret_sha256: stored.secret_sha256,
        roles: args.role.to_string(),
        uuid: args.uuid.map(Id::from).unwrap_or_default(),
        uses_left: stored.uses_left,
        ends: stored.ends,
        made_by: String::new(),
    };
    let session = Session::open(cx)?;
    let added = enrolment(&session, EnrolmentAction::AddToken, |asked| asked.token = entry)?;
    let entry = added.tokens.into_iter().next().unwrap_or_default();
    let name = at.server_name();
    if let Some(server) = session.controller.client().server()
        && !server.certificate.is_for(name)
    {
        note(format_args!(
            "ssntp: the certificate of {} is for {}, and not for {name}: nodes refuse it at that address",
            server.name,
            server.certificate.hosts_text()
        ));
    }
    if cx.options.json {
        let mut value = token_json(&entry);
        value["token"] = json!(token.to_string());
        return print_json(value);
    }
    if args.bare {
        return print_line(&token);
    }
    print_line(join_command(args.role, &token))?;
    let nodes = match entry.uses_left {
        1 => "one node".to_owned(),
        nodes => format!("{nodes} nodes"),
    };
    note(format_args!(
        "ssntp: for {nodes}, until {}; the secret is not shown again",
        utc(entry.ends)
    ));
    if at.is_local() {
        note("ssntp: only this machine reaches the scheduler at this address: --at names another");
    }
    Ok(())
}

/// The command that joins a node.
fn join_command(role: Role, token: &JoinToken) -> String {
    let (daemon, state) = match role {
        Role::AGENT => ("agent".to_owned(), "agent"),
        Role::NETAGENT => ("netagent".to_owned(), "agent"),
        Role::CNCIAGENT => ("cnci --tenant UUID --ip IP".to_owned(), "cnci"),
        several => (format!("agent --role {several}"), "agent"),
    };
    // The directory of the packaged unit, which takes over what the command has begun.
    format!("ssntp {daemon} --join '{token}' --state /var/lib/ssntp/{state}")
}

fn list(cx: &Invocation) -> Result<(), Failure> {
    let tokens = all_tokens(&Session::open(cx)?)?;
    print(cx.options.json, TOKENS, &(), &tokens, token_json)
}

fn all_tokens(session: &Session<'_>) -> Result<Vec<TokenEntry>, Failure> {
    all_pages(|&after| {
        let page = enrolment(session, EnrolmentAction::ListTokens, |asked| asked.after = after)?;
        Ok((page.tokens, page.next))
    })
}

fn remove(cx: &Invocation, id: &str) -> Result<(), Failure> {
    let session = Session::open(cx)?;
    let known = all_tokens(&session)?.into_iter().map(|token| token.id).collect();
    let id = only("token", "an id", id, known)?;
    enrolment(&session, EnrolmentAction::RemoveToken, |asked| {
        asked.token.id.clone_from(&id);
    })?;
    let text = format_args!("token {id}: removed");
    print_either(cx.options.json, json!({"id": id}), text)
}

/// Show the certificates that were issued to nodes, and until when they are valid
#[derive(Debug, clap::Args)]
pub(super) struct CertificatesArgs {
    /// Only those of the nodes whose UUIDs begin so
    node: Option<String>,
}

pub(super) fn certificates(cx: &Invocation, args: &CertificatesArgs) -> Result<(), Failure> {
    let node = args.node.as_deref().unwrap_or_default().to_ascii_lowercase();
    let mut certificates = issued(&Session::open(cx)?)?;
    certificates.retain(|certificate| certificate.uuid.as_str().starts_with(&node));
    print(
        cx.options.json,
        CERTIFICATES,
        &(),
        &certificates,
        certificate_json,
    )
}

fn issued(session: &Session<'_>) -> Result<Vec<NodeCertificate>, Failure> {
    all_pages(|&after| {
        let page = enrolment(session, EnrolmentAction::ListCertificates, |asked| {
            asked.after = after;
        })?;
        Ok((page.certificates, page.next))
    })
}

pub(super) fn revoke(cx: &Invocation, named: &NamedClient) -> Result<(), Failure> {
    let session = Session::open(cx)?;
    let known = || {
        Ok(issued(&session)?
            .into_iter()
            .map(|certificate| certificate.uuid)
            .collect())
    };
    let uuid = named.find("certificate", known)?;
    let revoked = enrolment(&session, EnrolmentAction::Revoke, |asked| {
        asked.uuid = uuid.clone();
    })?;
    let revoked = revoked.certificates;
    let serials: Vec<_> = revoked.iter().map(|certificate| &certificate.serial).collect();
    let value = json!({"uuid": uuid.as_str(), "serials": serials});
    let text = format_args!("{uuid}: {} certificate(s) revoked", revoked.len());
    print_either(cx.options.json, value, text)
}

/// Sends a command about tokens and certificates with what `complete` adds to its action. Waits for the answer, which
/// must not be a refusal.
fn enrolment(
    session: &Session<'_>,
    action: EnrolmentAction,
    complete: impl FnOnce(&mut ManageEnrolment),
) -> Result<EnrolmentList, Failure> {
    let mut asked = ManageEnrolment {
        id: new_id(),
        action,
        ..ManageEnrolment::default()
    };
    complete(&mut asked);
    let changes = !matches!(
        asked.action,
        EnrolmentAction::ListTokens | EnrolmentAction::ListCertificates
    );
    let is_answer = |answer: &EnrolmentList| answer.id == asked.id;
    let answer = session.ask(&asked, is_answer, changes)?;
    check(&answer.reason, &answer.detail)?;
    Ok(answer)
}

#[rustfmt::skip] // A table: one row a column.
const TOKENS: Columns<(), TokenEntry> = &[
    ("id", |(), token| token.id.clone()),
    ("roles", |(), token| token.roles.clone()),
    ("uuid", |(), token| token.uuid.to_string()),
    ("nodes left", |(), token| token.uses_left.to_string()),
    ("ends", |(), token| utc(token.ends)),
    ("added by", |(), token| token.made_by.clone()),
];

#[rustfmt::skip] // A table: one row a column.
const CERTIFICATES: Columns<(), NodeCertificate> = &[
    ("uuid", |(), certificate| certificate.uuid.to_string()),
    ("roles", |(), certificate| certificate.roles.clone()),
    ("valid until", |(), certificate| utc(certificate.ends)),
    ("state", |(), certificate| if certificate.is_revoked { "revoked" } else { "valid" }.into()),
    ("token", |(), certificate| certificate.token.clone()),
    ("serial", |(), certificate| certificate.serial.clone()),
];

fn token_json(token: &TokenEntry) -> Value {
    json!({
        "id": token.id, "roles": roles(&token.roles), "uuid": token.uuid.as_str(), "nodes_left": token.uses_left,
        "ends": utc(token.ends), "added_by": token.made_by,
    })
}

fn certificate_json(certificate: &NodeCertificate) -> Value {
    json!({
        "uuid": certificate.uuid.as_str(), "roles": roles(&certificate.roles), "serial": certificate.serial,
        "valid_until": utc(certificate.ends), "revoked": certificate.is_revoked, "token": certificate.token,
    })
}

/// The date and time in UTC of a second since 1970.
fn utc(seconds: u64) -> String {
    timestamp::format(seconds.saturating_mul(1_000_000_000))
}
