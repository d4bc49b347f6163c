//! `ssntp opflex element`: a policy element.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use crossbeam_channel::select;
use ssntp::transport::Address;
use ssntp_opflex::PolicyElement;
use ssntp_opflex::model::{Ident, ManagedObject, Name, Target, Uri};
use ssntp_opflex::policy_element::{ElementEvent, Health, ObjectChange, Settings, Store};
use ssntp_opflex::run::{ElementConfig, ElementHandle, Reference};

use super::load_objects;
use super::local::{InspectorArgs, ServeArgs};
use super::printing::{print_object, print_properties};
use super::tls::ClientTls;
use crate::credentials::FilesRead;
use crate::daemon::{Daemon, Next, Service, on};
use crate::failure::Failure;
use crate::output::{Output, printable};
use crate::seconds::Seconds;
use crate::settings::{ConfigFile, Problems};
use crate::signals::Stop;

/// Resolve policy, declare endpoints and report state
///
/// Without --watch it ends once servers have answered everything, and prints
/// what was resolved; with it, it stays and prints what changes. Then, SIGHUP makes it
/// read the files of its certificates again, and so does a change of them.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// The servers to begin with: HOST:PORT, [IPV6]:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", required = true, num_args = 1..)]
    connect: Vec<Address>,
    /// The policy domain
    #[arg(long, value_name = "NAME", default_value = "default")]
    domain: String,
    /// The element's name, its own within the domain
    #[arg(long, value_name = "NAME", default_value = "element")]
    name: String,
    /// A policy to resolve; its class is the last segment of the URI but one
    /// where none is given
    #[arg(long, value_names = ["SUBJECT", "URI"], num_args = 1..=2)]
    resolve: Vec<String>,
    /// Policies to resolve by a name within a context, which is a URI
    #[arg(long, value_names = ["SUBJECT", "CONTEXT", "NAME"], num_args = 3)]
    resolve_ident: Vec<String>,
    /// An endpoint to resolve
    #[arg(long, value_names = ["SUBJECT", "URI"], num_args = 2)]
    resolve_endpoint: Vec<String>,
    /// Endpoints to resolve by an identifier within a context: an address, a
    /// MAC, a UUID
    #[arg(long, value_names = ["SUBJECT", "CONTEXT", "IDENTIFIER"], num_args = 3)]
    resolve_endpoint_ident: Vec<String>,
    /// Resolve what resolved policies refer to, too
    #[arg(long)]
    follow: bool,
    /// Where the element is, if it knows
    #[arg(long, value_name = "TEXT")]
    location: Option<String>,
    /// The MAC address of its tunnel end point, by which a fabric knows it
    #[arg(long, value_name = "MAC", value_parser = mac)]
    mac: Option<String>,
    /// Use no server that names no proxies, as libopflex in transport mode
    #[arg(long)]
    require_proxies: bool,
    /// The policy to begin with, as long as no server has answered: an array of
    /// managed objects
    #[arg(long, value_name = "FILE")]
    start_policy: Option<PathBuf>,
    /// The endpoints to declare: an array of managed objects
    #[arg(long, value_name = "FILE")]
    declare: Option<PathBuf>,
    /// The state to report: an array of managed objects
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Stay, and print what changes; so does --serve, without a line
    #[arg(long)]
    watch: bool,
    /// How long servers tell changes, and how often they are asked again
    #[arg(long, value_name = "SECONDS", default_value = "7200")]
    prr: Seconds,
    /// How long to wait for all servers and answers, without --watch
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    timeout: Seconds,
    /// Answer updates, as the draft asks and a libopflex server does not bear
    #[arg(long)]
    acknowledge: bool,
    #[command(flatten)]
    inspector: InspectorArgs,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    tls: ClientTls,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Something to be resolved.
#[derive(Debug)]
struct Wanted {
    what: Store,
    subject: Name,
    target: Target,
}

impl Args {
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.of("tls", Some(self.tls.connector()));
        problems.of("resolve", Some(self.wanted()));
        for (key, file) in [
            ("start-policy", &self.start_policy),
            ("declare", &self.declare),
            ("report", &self.report),
        ] {
            problems.of(key, file.as_deref().map(load_objects));
        }
        problems
    }

    /// Whether it goes on once everything is answered.
    pub(super) fn stays(&self) -> bool {
        self.watch || self.serve.is_given()
    }

    fn wanted(&self) -> Result<Vec<Wanted>, Failure> {
        let mut wanted = policies(&self.resolve)?;
        for three in self.resolve_ident.chunks(3) {
            wanted.push(by_ident("--resolve-ident", Store::Policy, three)?);
        }
        for two in self.resolve_endpoint.chunks(2) {
            let [subject, text] = two else {
                continue;
            };
            wanted.push(Wanted {
                what: Store::Endpoints,
                subject: subject.as_str().into(),
                target: uri("--resolve-endpoint", text)?.into(),
            });
        }
        for three in self.resolve_endpoint_ident.chunks(3) {
            wanted.push(by_ident("--resolve-endpoint-ident", Store::Endpoints, three)?);
        }
        Ok(wanted)
    }
}

fn mac(text: &str) -> Result<String, String> {
    let is_byte = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.split(':').count() == 6 && text.split(':').all(is_byte) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("it is not six bytes as 00:11:22:33:44:55".to_owned()),
    }
}

fn uri(flag: &str, text: &str) -> Result<Uri, Failure> {
    if !text.starts_with('/') {
        return Err(Failure::usage(format!("{flag}: {text:?} is no URI")));
    }
    text.parse()
        .map_err(|e| Failure::usage(format!("{flag}: {text:?}: {e}")))
}

/// What clap has counted.
fn by_ident(flag: &str, what: Store, three: &[String]) -> Result<Wanted, Failure> {
    let [subject, context, name] = three else {
        return Err(Failure::usage(format!("{flag} takes three values")));
    };
    let ident = Ident {
        context: uri(flag, context)?,
        name: name.as_str().into(),
    };
    Ok(Wanted {
        what,
        subject: subject.as_str().into(),
        target: ident.into(),
    })
}

/// The policies of `--resolve`: an argument that is no URI is the class of the
/// one that follows.
fn policies(arguments: &[String]) -> Result<Vec<Wanted>, Failure> {
    let mut wanted = Vec::new();
    let mut subject: Option<&String> = None;
    for argument in arguments {
        if !argument.starts_with('/') && subject.is_none() {
            subject = Some(argument);
            continue;
        }
        let uri = uri("--resolve", argument)?;
        wanted.push(Wanted {
            what: Store::Policy,
            subject: subject.take().map_or_else(
                || ElementHandle::class_of(&uri),
                |subject| subject.as_str().into(),
            ),
            target: uri.into(),
        });
    }
    match subject {
        Some(subject) => Err(Failure::usage(format!("--resolve: no URI after {subject:?}"))),
        None => Ok(wanted),
    }
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let stays = args.stays();
    let mut daemon = match stays {
        true => Daemon::install(crate::settings::Settings::default())?,
        false => Daemon::install_for_trying()?,
    };
    let wanted = args.wanted()?;
    let peers = args.connect.iter().map(Address::to_string);
    let mut settings = Settings::new(args.name, args.domain, peers);
    settings.prr = args.prr.into();
    settings.acknowledge_updates = args.acknowledge;
    settings.location = args.location;
    settings.require_proxies = args.require_proxies;
    if let Some((data, mac)) = settings.data.as_mut().zip(args.mac) {
        data["mac"] = mac.into();
    }
    let mut config = ElementConfig::new(settings);
    let (connector, read) = args.tls.read()?;
    config.tls = connector;
    config.inspector = args.inspector.socket();
    config.serve = args.serve.socket();
    let load = |path: &Option<PathBuf>| path.as_deref().map(load_objects).transpose();
    config.start_policy = load(&args.start_policy)?.unwrap_or_default();
    let (endpoints, reports) = (load(&args.declare)?, load(&args.report)?);
    let element = PolicyElement::start(config).map_err(Failure::new)?;
    for endpoint in endpoints.into_iter().flat_map(subtrees) {
        element.declare(endpoint).map_err(Failure::new)?;
    }
    for object in reports.into_iter().flatten() {
        element.report(object).map_err(Failure::new)?;
    }
    let references = wanted
        .iter()
        .map(|wanted| {
            let (subject, target) = (wanted.subject.clone(), wanted.target.clone());
            match wanted.what {
                Store::Policy => element.resolve_policy(subject, target, args.follow),
                Store::Endpoints => element.resolve_endpoint(subject, target),
            }
        })
        .collect::<Result<Vec<Reference>, _>>()
        .map_err(Failure::new)?;
    let result = if stays {
        let mut running = Running {
            element: &element,
            tls: args.tls,
        };
        let events = on(element.events().clone(), |_, event: Option<ElementEvent>| {
            let event = event.ok_or_else(|| Failure::new("the element has ended"))?;
            if args.watch {
                print_event(&event, args.json)?;
            }
            Ok(Next::Continue)
        });
        daemon.serve(read, &mut running, vec![events])
    } else {
        resolve_once(&element, daemon.stop(), args.timeout.into()).and_then(|done| {
            if done {
                show(&element, &wanted, args.follow, args.json)
            } else {
                Ok(())
            }
        })
    };
    drop(references);
    element.stop();
    result
}

/// Prints an event, and flushes it: a reader at the other end of a pipe waits for it.
fn print_event(event: &ElementEvent, as_json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    match as_json {
        true => output.json(event.to_json())?,
        false => print(&mut output, event)?,
    }
    output.flush()
}

/// What is read again.
struct Running<'a> {
    element: &'a PolicyElement,
    tls: ClientTls,
}

impl Service for Running<'_> {
    type Args = Args;

    fn reload(&mut self, _: Option<Args>) -> Result<FilesRead, Failure> {
        let (connector, read) = self.tls.read()?;
        if let Some(connector) = connector {
            self.element.renew(connector)?;
        }
        Ok(read)
    }
}

/// Waits until everything is answered, and all servers are there or the time
/// is over. False when a signal came.
fn resolve_once(element: &PolicyElement, stop: &Stop, limit: Duration) -> Result<bool, Failure> {
    let end = crossbeam_channel::after(limit);
    // An answer to a declaration is no event.
    let look = crossbeam_channel::tick(Duration::from_millis(20));
    let mut last = None;
    loop {
        let unanswered = element.unanswered().map_err(Failure::new)?;
        let health = element.health().map_err(Failure::new)?;
        if unanswered == 0 && health == Health::Healthy {
            return Ok(true);
        }
        let event = select! {
            recv(element.events()) -> event => event.map_err(Failure::new)?,
            recv(stop.channel()) -> _ => return Ok(false),
            recv(look) -> _ => continue,
            recv(end) -> _ => {
                if unanswered == 0 && health != Health::Down {
                    return Ok(true);
                }
                let what = last.unwrap_or_else(|| "no answer".to_owned());
                return Err(Failure::new(format!("not done in time: {what}")));
            }
        };
        match event {
            ElementEvent::Peer {
                address,
                reason: Some(reason),
                ..
            } => last = Some(format!("{address}: {reason}")),
            ElementEvent::Refused {
                address,
                method,
                about,
                error,
            } => {
                return Err(Failure::new(format!(
                    "{address} refused {method} {about}: {error}"
                )));
            }
            _ => {}
        }
    }
}

/// Prints what came; with `follow`, the other policies behind it.
fn show(element: &PolicyElement, wanted: &[Wanted], follow: bool, as_json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    let (mut missing, mut shown) = (Vec::new(), HashSet::new());
    for Wanted {
        what,
        subject,
        target,
    } in wanted
    {
        let objects = element
            .found(*what, subject.clone(), target)
            .map_err(Failure::new)?;
        if objects.is_empty() {
            missing.push(target.to_string());
        }
        for object in objects {
            print_once(&mut output, object, &mut shown, as_json)?;
        }
    }
    if follow {
        let all = element.with(|cx| cx.core().policy().to_objects());
        for object in all.map_err(Failure::new)? {
            print_once(&mut output, object, &mut shown, as_json)?;
        }
    }
    output.flush()?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("there is no {}", missing.join(", "))))
}

fn print_once(
    output: &mut Output,
    object: ManagedObject,
    shown: &mut HashSet<Uri>,
    as_json: bool,
) -> Result<(), Failure> {
    if !shown.insert(object.uri.clone()) {
        return Ok(());
    }
    if as_json {
        output.json(serde_json::to_string(&object).map_err(Failure::new)?)
    } else {
        print_object(output, &object)
    }
}

/// The objects of a file as one list for each topmost one.
fn subtrees(objects: Vec<ManagedObject>) -> Vec<Vec<ManagedObject>> {
    let mut trees: Vec<Vec<ManagedObject>> = Vec::new();
    for object in objects {
        match trees
            .iter_mut()
            .find(|tree| tree.first().is_some_and(|top| top.uri.covers(&object.uri)))
        {
            Some(tree) => tree.push(object),
            None => trees.push(vec![object]),
        }
    }
    trees
}

fn print(output: &mut Output, event: &ElementEvent) -> Result<(), Failure> {
    match event {
        ElementEvent::Health(health) => output.line(format!("health: {health:?}").to_lowercase()),
        ElementEvent::Peer {
            address,
            state,
            reason,
        } => {
            let state = state.map_or("dropped".to_owned(), |state| format!("{state:?}").to_lowercase());
            let why = reason.as_ref().map_or(String::new(), |why| format!(": {why}"));
            output.line(printable(&format!("peer {address} {state}{why}")))
        }
        ElementEvent::Location(location) => output.line(printable(&format!("location {location}"))),
        ElementEvent::Proxies(proxies) => output.line(printable(&format!(
            "proxies {} {} {}",
            proxies.v4, proxies.v6, proxies.mac
        ))),
        ElementEvent::Resolved {
            subject,
            target,
            found,
            ..
        } => {
            let found = if *found { "resolved" } else { "not there yet" };
            output.line(printable(&format!("{subject} {target} {found}")))
        }
        ElementEvent::Changed { what, objects } | ElementEvent::Forgotten { what, objects } => objects
            .iter()
            .try_for_each(|change| print_change(output, *what, change)),
        ElementEvent::Refused {
            address,
            method,
            about,
            error,
        } => output.line(printable(&format!("{address} refused {method} {about}: {error}"))),
        ElementEvent::NotTaken { about, limit } => output.line(printable(&format!(
            "{about} not taken: more than {limit} objects"
        ))),
        ElementEvent::Unanswered {
            method,
            about,
            attempts,
        } => output.line(printable(&format!(
            "alarm: {method} {about}: no answer after {attempts} attempts"
        ))),
        ElementEvent::Missed(count) => output.line(format!("{count} events are lost")),
        _ => Ok(()),
    }
}

fn print_change(output: &mut Output, what: Store, change: &ObjectChange) -> Result<(), Failure> {
    let (kind, what) = (change.kind.name(), what.name());
    output.line(printable(&format!(
        "{what} {kind} {} {}",
        change.subject, change.uri
    )))?;
    change
        .object
        .as_ref()
        .map_or(Ok(()), |object| print_properties(output, object))
}
