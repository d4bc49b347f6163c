//! `ssntp opflex element`: a policy element.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::select;
use ssntp::transport::Address;
use ssntp_daemon::{
    ConfigFile, Daemon, Failure, FilesRead, Output, Problems, Seconds, Settings, Stop, on, print_apart,
    printable, to_dial,
};
use ssntp_opflex::PolicyElement;
use ssntp_opflex::message::Proxies;
use ssntp_opflex::model::{Ident, ManagedObject, Name, Target, Uri, is_mac};
use ssntp_opflex::policy_element::{ElementEvent, ElementSettings, Health, ObjectChange, Store};
use ssntp_opflex::run::{CallError, ElementConfig, ElementHandle, Reference};

use super::flags::{InspectorArgs, ServeArgs, TimerArgs};
use super::tls::ClientTls;
use super::{load_objects, print_properties, print_with_note};

/// Resolve policy, declare endpoints and report state
///
/// Without --watch it waits until servers have answered every request, prints the resolved
/// objects, and ends. With --watch it keeps running and prints changes. While it keeps
/// running, it reads the files of its certificates, of --declare and of --report again when
/// they change, and at SIGHUP; what a file no longer has is undeclared, or reported no more.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// The servers to connect to first: HOST:PORT, [IPV6]:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", value_parser = to_dial, required = true, num_args = 1..)]
    connect: Vec<Address>,
    /// The policy domain
    #[arg(long, value_name = "NAME", default_value = "default")]
    domain: String,
    /// The element's name, unique within the domain
    #[arg(long, value_name = "NAME", default_value = "element")]
    name: String,
    /// Policies to resolve: URIs, each with its class before it; without a class, the
    /// segment before the last of the URI is the class
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
    /// Also resolve the policies that resolved policies refer to
    #[arg(long)]
    follow: bool,
    /// The location of the element, if it is known
    #[arg(long, value_name = "TEXT")]
    location: Option<String>,
    /// The MAC address of the element's tunnel end point, which identifies it to a fabric
    #[arg(long, value_name = "MAC", value_parser = mac)]
    mac: Option<String>,
    /// Skip servers that name no proxies, as libopflex does in transport mode
    #[arg(long)]
    require_proxies: bool,
    /// The policy to use until a server answers: an array of managed objects
    #[arg(long, value_name = "FILE")]
    start_policy: Option<PathBuf>,
    #[command(flatten)]
    sent: SentArgs,
    /// Keep running and print changes; with --serve alone it keeps running without
    /// printing
    #[arg(long)]
    watch: bool,
    /// The time for which servers report changes; requests are repeated within half of it
    #[arg(long, value_name = "SECONDS", default_value = "7200")]
    prr: Seconds,
    /// The pause before a request without an answer is repeated; it doubles each time
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    retry: Seconds,
    #[command(flatten)]
    timers: TimerArgs,
    /// The time to wait for all servers and answers, without --watch
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    timeout: Seconds,
    /// Answer updates as the draft requires; a libopflex server then ends the connection
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

/// The files of objects that an element sends.
#[derive(Debug, clap::Args)]
struct SentArgs {
    /// The endpoints to declare: an array of managed objects
    #[arg(long, value_name = "FILE")]
    declare: Option<PathBuf>,
    /// The state to report: an array of managed objects
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// A policy or an endpoint to resolve.
#[derive(Debug)]
struct Wanted {
    store: Store,
    subject: Name,
    target: Target,
}

impl Args {
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.of("tls", Some(self.tls.read()));
        problems.of("resolve", Some(self.wanted()));
        for (key, file) in [
            ("start-policy", &self.start_policy),
            ("declare", &self.sent.declare),
            ("report", &self.sent.report),
        ] {
            problems.of(key, file.as_deref().map(checked_objects));
        }
        problems
    }

    /// True if the program keeps running once every request is answered.
    pub(super) fn stays(&self) -> bool {
        self.watch || self.serve.is_given()
    }

    fn wanted(&self) -> Result<Vec<Wanted>, Failure> {
        let mut wanted = policies(&self.resolve)?;
        for (flag, store, values) in [
            ("--resolve-ident", Store::Policy, self.resolve_ident.chunks(3)),
            (
                "--resolve-endpoint",
                Store::Endpoints,
                self.resolve_endpoint.chunks(2),
            ),
            (
                "--resolve-endpoint-ident",
                Store::Endpoints,
                self.resolve_endpoint_ident.chunks(3),
            ),
        ] {
            for values in values {
                wanted.push(wanted_by(flag, store, values)?);
            }
        }
        Ok(wanted)
    }
}

fn mac(text: &str) -> Result<String, String> {
    if is_mac(text) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("expected six bytes like 00:11:22:33:44:55".to_owned())
    }
}

fn uri(flag: &str, text: &str) -> Result<Uri, Failure> {
    if !text.starts_with('/') {
        return Err(Failure::usage(format!(
            "{flag}: {text:?} is not a URI: it does not begin with a slash"
        )));
    }
    text.parse()
        .map_err(|e| Failure::usage(format!("{flag}: {text:?}: {e}")))
}

/// A class and a URI, or a class, a context and a name.
fn wanted_by(flag: &str, store: Store, values: &[String]) -> Result<Wanted, Failure> {
    let (subject, target) = match values {
        [subject, text] => (subject, uri(flag, text)?.into()),
        [subject, context, name] => {
            let (context, name) = (uri(flag, context)?, name.as_str().into());
            (subject, Ident { context, name }.into())
        }
        // clap has checked the number of values.
        _ => return Err(Failure::usage(format!("{flag}: wrong number of values"))),
    };
    let subject = subject.as_str().into();
    Ok(Wanted {
        store,
        subject,
        target,
    })
}

/// The policies of `--resolve`: an argument that does not begin with a slash is the class of the
/// URI that follows.
fn policies(arguments: &[String]) -> Result<Vec<Wanted>, Failure> {
    let mut wanted = Vec::new();
    let mut subject: Option<Name> = None;
    for argument in arguments {
        if !argument.starts_with('/') && subject.is_none() {
            subject = Some(argument.as_str().into());
            continue;
        }
        let uri = uri("--resolve", argument)?;
        wanted.push(Wanted {
            store: Store::Policy,
            subject: subject.take().unwrap_or_else(|| ElementHandle::class_of(&uri)),
            target: uri.into(),
        });
    }
    match subject {
        Some(subject) => Err(Failure::usage(format!(
            "--resolve: no URI after {:?}",
            subject.as_str()
        ))),
        None => Ok(wanted),
    }
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let stays = args.stays();
    let mut daemon = if stays {
        // No settings: a reload reads only the TLS files, since no other flag of an element can
        // change while it runs.
        Daemon::install(Settings::default())?
    } else {
        Daemon::install_for_trying()?
    };
    let wanted = args.wanted()?;
    let peers = args.connect.iter().map(Address::to_string);
    let mut settings = ElementSettings::new(args.name, args.domain, peers);
    settings.prr = args.prr.into();
    settings.retry = args.retry.into();
    settings.keepalive = args.timers.keepalive();
    settings.identity_timeout = args.timers.identity();
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
    config.start_policy = load(args.start_policy.as_deref())?.unwrap_or_default();
    let (objects, watched) = args.sent.read(|_| true)?;
    let read = read.with(watched);
    let element = PolicyElement::start(config).map_err(Failure::new)?;
    let mut sent = Sent::default();
    sent.update(&element, objects).map_err(Failure::new)?;
    let references = wanted.iter().map(|wanted| {
        let (subject, target) = (wanted.subject.clone(), wanted.target.clone());
        match wanted.store {
            Store::Policy => element.resolve_policy(subject, target, args.follow),
            Store::Endpoints => element.resolve_endpoint(subject, target),
        }
    });
    let references: Result<Vec<Reference>, _> = references.collect();
    let references = references.map_err(Failure::new)?;
    let result = if stays {
        let (watch, as_json) = (args.watch, args.json);
        let printing = print_apart(element.events().clone(), move |event: ElementEvent| {
            if watch {
                print_event(&event, as_json)
            } else {
                Ok(())
            }
        });
        let events = on(printing?, |why| {
            Err(why.unwrap_or_else(|| Failure::new("the element has ended")))
        });
        let reload = |_: Option<Args>| {
            let (connector, read) = args.tls.read()?;
            // Standard input is at its end.
            let (objects, watched) = args.sent.read(|path| path.as_os_str() != "-")?;
            if let Some(connector) = connector {
                element.renew(connector)?;
            }
            sent.update(&element, objects)?;
            Ok(read.with(watched))
        };
        daemon.serve(read, reload, vec![events])
    } else {
        resolve_once(&element, daemon.stop(), args.timeout.into())
            .and_then(|()| show(&element, &wanted, args.follow, args.json))
    };
    // Dropping a reference sends a message to the element, so the references go first.
    drop(references);
    element.stop();
    result
}

/// Prints an event, and flushes it, because a reader at the other end of a pipe waits for it.
fn print_event(event: &ElementEvent, as_json: bool) -> Result<(), Failure> {
    let mut output = Output::lock();
    match event {
        _ if as_json => output.json(serde_json::to_value(event)?)?,
        ElementEvent::Changed { what, objects } => {
            let mut changes = objects.iter();
            changes.try_for_each(|change| print_change(&mut output, *what, change))?;
        }
        event => text(event).map_or(Ok(()), |text| output.line(printable(&text)))?,
    }
    output.flush()
}

/// Waits until every request is answered, and every server is connected or the time limit has
/// passed.
fn resolve_once(element: &PolicyElement, stop: &Stop, limit: Duration) -> Result<(), Failure> {
    let end = crossbeam_channel::after(limit);
    // An answer to a declaration makes no event, so the count of unanswered requests is polled.
    let look = crossbeam_channel::tick(Duration::from_millis(20));
    let mut last = None;
    loop {
        let unanswered = element.unanswered().map_err(Failure::new)?;
        let health = element.health().map_err(Failure::new)?;
        if unanswered == 0 && health == Health::Healthy {
            return Ok(());
        }
        let event = select! {
            recv(element.events()) -> event => event.map_err(Failure::new)?,
            recv(stop.channel()) -> _ => return Err(stop.interrupted()),
            recv(look) -> _ => continue,
            recv(end) -> _ => {
                // Some servers cannot be reached, but the others have answered every request. More
                // time would only bring the missing servers, so this is a success.
                if unanswered == 0 && health != Health::Down {
                    return Ok(());
                }
                let what = last.unwrap_or_else(|| "no answer".to_owned());
                return Err(Failure::new(format!("not every request was answered in time: {what}")));
            }
        };
        match event {
            ElementEvent::Peer {
                address,
                reason: Some(reason),
                ..
            } => last = Some(format!("{address}: {reason}")),
            refused @ ElementEvent::Refused { .. } => {
                return Err(Failure::new(text(&refused).unwrap_or_default()));
            }
            _ => {}
        }
    }
}

/// Prints the requested objects; with `follow`, also the policies that they refer to.
fn show(element: &PolicyElement, wanted: &[Wanted], follow: bool, as_json: bool) -> Result<(), Failure> {
    let (mut objects, mut missing) = (Vec::new(), Vec::new());
    for one in wanted {
        let found = element.found(one.store, one.subject.clone(), &one.target);
        let found = found.map_err(Failure::new)?;
        if found.is_empty() {
            missing.push(one.target.to_string());
        }
        objects.extend(found);
    }
    if follow {
        let all = element.with(|core, _| core.policy().to_objects());
        objects.extend(all.map_err(Failure::new)?);
    }
    let (mut output, mut shown) = (Output::lock(), HashSet::new());
    for object in objects {
        if !shown.insert(object.uri.clone()) {
            continue;
        }
        if as_json {
            output.json(serde_json::to_string(&object)?)?;
        } else {
            print_with_note(&mut output, &object, "")?;
        }
    }
    output.flush()?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("there is no {}", missing.join(", "))))
}

/// Reads objects of a file, and checks them, so that an error names the file.
fn checked_objects(path: &Path) -> Result<Vec<ManagedObject>, Failure> {
    let objects = load_objects(path)?;
    let checked = objects.iter().try_for_each(ManagedObject::check);
    checked.map_err(|e| Failure::at(path, e)).map(|()| objects)
}

fn load(path: Option<&Path>) -> Result<Option<Vec<ManagedObject>>, Failure> {
    path.map(checked_objects).transpose()
}

/// The endpoints and the reports of the files; `None` if there is no file.
type SentObjects = [Option<Vec<ManagedObject>>; 2];

impl SentArgs {
    /// Reads those files that `takes` allows, and notes their state to watch them.
    fn read(&self, takes: impl Fn(&Path) -> bool) -> Result<(SentObjects, FilesRead), Failure> {
        let files = [&self.declare, &self.report].map(|path| path.as_ref().filter(|path| takes(path)));
        let read = FilesRead::of(files.into_iter().flatten());
        let [endpoints, reports] = files.map(|path| load(path.map(PathBuf::as_path)));
        Ok(([endpoints?, reports?], read))
    }
}

/// The endpoints and reports of an element, from its files as they were last read.
#[derive(Debug, Default)]
struct Sent {
    declared: HashSet<Uri>,
    reported: HashSet<Uri>,
}

impl Sent {
    /// Sends the objects that have changed, and takes those back that are gone.
    fn update(
        &mut self,
        element: &ElementHandle,
        [endpoints, reports]: SentObjects,
    ) -> Result<(), CallError> {
        if let Some(endpoints) = endpoints {
            let trees = subtrees(endpoints);
            let tops = trees.iter().filter_map(|tree| tree.first());
            let new = tops.map(|top| top.uri.clone()).collect();
            let former = std::mem::replace(&mut self.declared, new);
            for uri in former.difference(&self.declared) {
                element.undeclare(uri)?;
            }
            for tree in trees {
                element.declare(tree)?;
            }
        }
        if let Some(reports) = reports {
            let new = reports.iter().map(|object| object.uri.clone()).collect();
            let former = std::mem::replace(&mut self.reported, new);
            for uri in former.difference(&self.reported) {
                element.withdraw(uri)?;
            }
            for object in reports {
                element.report(object)?;
            }
        }
        Ok(())
    }
}

/// Groups the objects of a file: each list begins with an object that is below none of the
/// objects before it, and continues with the objects below it. A declaration is one such list.
fn subtrees(mut objects: Vec<ManagedObject>) -> Vec<Vec<ManagedObject>> {
    // The file may have an object before the object that it is below.
    objects.sort_by(|one, other| one.uri.cmp(&other.uri));
    let mut trees: Vec<Vec<ManagedObject>> = Vec::new();
    for object in objects {
        let is_below =
            |tree: &&mut Vec<ManagedObject>| tree.first().is_some_and(|top| top.uri.covers(&object.uri));
        match trees.iter_mut().find(is_below) {
            Some(tree) => tree.push(object),
            None => trees.push(vec![object]),
        }
    }
    trees
}

/// An event in one line; `None` for an event that is only for programs.
fn text(event: &ElementEvent) -> Option<String> {
    Some(match event {
        ElementEvent::Health { health } => format!("health: {health:?}").to_lowercase(),
        ElementEvent::Peer {
            address,
            state,
            reason,
        } => {
            let state = state.map_or("dropped".to_owned(), |state| format!("{state:?}").to_lowercase());
            let why = reason.as_ref().map_or(String::new(), |why| format!(": {why}"));
            format!("peer {address} {state}{why}")
        }
        ElementEvent::Location { location } => format!("location {location}"),
        ElementEvent::Proxies(Proxies { v4, v6, mac }) => format!("proxies {v4} {v6} {mac}"),
        ElementEvent::Resolved {
            subject,
            target,
            found,
            ..
        } => {
            let found = if *found { "resolved" } else { "not there yet" };
            format!("{subject} {target} {found}")
        }
        ElementEvent::Refused {
            address,
            method,
            about,
            error,
        } => {
            format!("{address} refused {method} {about}: {error}")
        }
        ElementEvent::NotTaken { about, limit } => format!("{about} not taken: more than {limit} objects"),
        ElementEvent::Unanswered {
            method,
            about,
            attempts,
        } => {
            format!("alarm: {method} {about}: no answer after {attempts} attempts")
        }
        ElementEvent::Missed { count } => format!("{count} events are lost"),
        _ => return None,
    })
}

fn print_change(output: &mut Output, what: Store, change: &ObjectChange) -> Result<(), Failure> {
    let kind = format!("{:?}", change.kind).to_lowercase();
    let text = format!("{} {kind} {} {}", what.name(), change.subject, change.uri);
    output.line(printable(&text))?;
    let object = change.object.as_ref();
    object.map_or(Ok(()), |object| print_properties(output, object))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_declared_with_all_objects_below_it_in_any_order_of_the_file() {
        let uris = ["/a/b/", "/c/", "/a.b/", "/a/", "/c/d/"];
        let object = |uri| serde_json::from_value(json!({"subject": "A", "uri": uri, "properties": []}));
        let objects = uris.map(|uri| object(uri).unwrap());
        let trees = subtrees(objects.into());
        let trees: Vec<Vec<_>> = trees
            .iter()
            .map(|tree| tree.iter().map(|object| object.uri.as_str()).collect())
            .collect();
        assert_eq!(trees, [vec!["/a.b/"], vec!["/a/", "/a/b/"], vec!["/c/", "/c/d/"]]);
    }
}
