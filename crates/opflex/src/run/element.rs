//! A policy element on threads: its owner, its handles and its references.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Receiver;

use super::config::{CallError, ElementConfig, StartError};
use super::dial::Dialer;
use super::element_side::{ElementEvents, ElementSide, EventQueue, Released};
use super::feed::Feed;
use super::machine::{self, Machine};
use super::{feed_server, inspector};
use crate::model::{ManagedObject, Name, Target, Uri};
use crate::policy_element::{self as core, ElementCore, Health, ResolveReference, Store};
use ssntp_transport::dispatch::{self, DispatchEvent, EVENTS, Settings};
use ssntp_transport::threads::Joined;
use ssntp_transport::tls::Connector;
use ssntp_transport::{Acceptance, Budget, PATIENCE, locked, now};

/// A running policy element: connects to its servers, keeps resolved objects up to date, declares
/// endpoints and reports state.
///
/// # Threads
/// It owns every thread of the element, and is `Send`. It dereferences to its [`ElementHandle`],
/// which has the calls. [`stop`](Self::stop), or dropping it, joins all threads, which takes little
/// longer than the configured grace at most.
///
/// Events are received by [`iter`](Self::iter), or from the [channel](Self::events). If the application
/// receives no events, further events are dropped, without other effects.
#[derive(Debug)]
pub struct PolicyElement {
    handle: ElementHandle,
    /// The threads of the inspector and of the feed, which end before the dispatcher.
    local: Vec<Acceptance>,
    _dispatcher: Joined,
    events: Receiver<core::ElementEvent>,
}

impl PolicyElement {
    /// Starts the element; it dials at once.
    ///
    /// # Errors
    /// [`StartError`]; no thread is left running.
    pub fn start(mut config: ElementConfig) -> Result<Self, StartError> {
        // The core keeps the start policy, and the configuration must not keep a copy.
        let start_policy = std::mem::take(&mut config.start_policy);
        let config = Arc::new(config);
        let (sender, queue) = dispatch::events::channel(EVENTS);
        let (channel, events) = crossbeam_channel::unbounded();
        // Before any thread starts, because it refuses addresses that cannot be dialled.
        let dialer = Dialer::new(&config)?;
        let released = Released::default();
        // The standard library offers random numbers only as the keys of its hash maps.
        let seed = RandomState::new().hash_one(0);
        let settings = Settings {
            queue: config.queue,
            // Servers are few and trusted.
            budget: Budget::unlimited(),
            received: Budget::unlimited(),
            patience: PATIENCE,
            parting: config.write_timeout,
            grace: config.grace,
        };
        let feed = Feed::new(&config);
        let mut core = ElementCore::new(config.settings.clone(), seed, now());
        core.start_with(start_policy).map_err(StartError::Policy)?;
        let event_queue = EventQueue::new(channel, config.events);
        let side = ElementSide {
            core,
            feed,
            dialer,
            events: sender.clone(),
            dials: HashMap::new(),
            released: Released::clone(&released),
            event_queue,
        };
        let dispatcher = Machine::new(side).spawn("opflex-element", settings, queue)?;
        let mut element = Self {
            handle: ElementHandle {
                events: sender.clone(),
                released,
            },
            local: Vec::new(),
            _dispatcher: dispatcher,
            events,
        };
        // From here on, dropping `element` joins the threads.
        if let Some(socket) = &config.inspector {
            element.local.push(inspector::start(socket, sender.clone())?);
        }
        if let Some(socket) = &config.serve {
            element.local.push(feed_server::start(socket, sender)?);
        }
        Ok(element)
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ElementHandle {
        self.handle.clone()
    }

    /// The events as a channel, for `select!` and for time limits.
    pub fn events(&self) -> &Receiver<core::ElementEvent> {
        &self.events
    }

    /// All events from now on. The iterator ends when the element has stopped.
    pub fn iter(&self) -> impl Iterator<Item = core::ElementEvent> {
        self.events.iter()
    }

    /// Closes every connection and joins every thread. Endpoints stay declared
    /// for as long as the servers keep them.
    pub fn stop(self) {
        drop(self);
    }
}

impl Deref for PolicyElement {
    type Target = ElementHandle;

    fn deref(&self) -> &ElementHandle {
        &self.handle
    }
}

impl Drop for PolicyElement {
    fn drop(&mut self) {
        let events = &self.handle.events;
        let _ = events.send(DispatchEvent::Stop);
        self.local.drain(..).for_each(Acceptance::stop);
        // `Stop` has cancelled the attempts at servers. Their threads may still call the dispatcher,
        // so it runs until all of them have ended.
        let dials = machine::call(events, |machine, _, _| machine.side.take_dials());
        for dial in dials.unwrap_or_default() {
            let _ = dial.join();
        }
        let _ = events.send(DispatchEvent::Exit);
    }
}

/// A handle by which other threads use a policy element.
///
/// # Threads
/// Cheap to clone, and `Send`. Every call blocks until the dispatcher has carried it out, usually
/// for some microseconds, and never waits for a server.
#[derive(Clone, Debug)]
pub struct ElementHandle {
    events: ElementEvents,
    released: Released,
}

impl ElementHandle {
    /// Runs `call` on the dispatcher with the state of the element and the time, and returns its result.
    /// The actions that the core adds during the call are carried out after it.
    ///
    /// # Errors
    /// [`CallError::Stopped`], also if `call` panicked; [`CallError::OnDispatcher`].
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut ElementCore, Instant) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        machine::call(&self.events, |machine, now, _| call(&mut machine.side.core, now))
    }

    /// Resolves a policy, and keeps it up to date until the reference is dropped. With `follow`, all
    /// policies to which it refers, directly or indirectly, are resolved as well.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn resolve_policy(
        &self,
        subject: impl Into<Name>,
        target: impl Into<Target>,
        follow: bool,
    ) -> Result<Reference, CallError> {
        let (subject, target) = (subject.into(), target.into());
        self.refer(move |core, now| core.resolve_policy(subject, target, follow, now))
    }

    /// As [`resolve_policy`](Self::resolve_policy), for a URI that names its class: see
    /// [`class_of`](Self::class_of). The policies to which it refers are not resolved.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn resolve(&self, uri: &Uri) -> Result<Reference, CallError> {
        self.resolve_policy(Self::class_of(uri), uri.clone(), false)
    }

    /// Resolves an endpoint, and keeps it up to date until the reference is dropped.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn resolve_endpoint(
        &self,
        subject: impl Into<Name>,
        target: impl Into<Target>,
    ) -> Result<Reference, CallError> {
        let (subject, target) = (subject.into(), target.into());
        self.refer(move |core, now| core.resolve_endpoint(subject, target, now))
    }

    /// Declares an endpoint; see [`ElementCore::declare`].
    ///
    /// # Errors
    /// [`CallError`].
    pub fn declare(&self, endpoint: Vec<ManagedObject>) -> Result<(), CallError> {
        Ok(self.with(move |core, now| core.declare(endpoint, now))??)
    }

    /// Ends a declaration. Returns false if there is none.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn undeclare(&self, uri: &Uri) -> Result<bool, CallError> {
        let uri = uri.clone();
        self.with(move |core, _| core.undeclare(&uri))
    }

    /// Reports an object; see [`ElementCore::report`].
    ///
    /// # Errors
    /// [`CallError`].
    pub fn report(&self, object: ManagedObject) -> Result<(), CallError> {
        Ok(self.with(move |core, now| core.report(object, now))??)
    }

    /// Stops reporting an object. Returns false if it was not reported.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn withdraw(&self, uri: &Uri) -> Result<bool, CallError> {
        let uri = uri.clone();
        self.with(move |core, _| core.withdraw(&uri))
    }

    /// Replaces TLS: the certificate and the trusted authorities. Servers are dialled with
    /// `connector` from now on. The certificates of connected servers are checked again, and servers
    /// with a certificate that is not accepted any more are disconnected. Returns their number.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn renew(&self, connector: Connector) -> Result<usize, CallError> {
        machine::call(&self.events, |machine, now, actions| {
            if let Some(former) = &machine.side.dialer.connector {
                connector.check_follows(former)?;
            }
            machine.side.dialer.connector = Some(connector);
            let untrusted = machine.side.untrusted(&machine.peers);
            Ok(machine.end_untrusted(untrusted, now, actions))
        })?
    }

    /// The health of the element.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn health(&self) -> Result<Health, CallError> {
        self.with(|core, _| core.health())
    }

    /// The received policy objects or endpoints at and below a URI, parents first.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn objects(&self, what: Store, uri: &Uri) -> Result<Vec<ManagedObject>, CallError> {
        let uri = uri.clone();
        self.with(move |core, _| {
            let objects = core.tree(what).subtree(&uri);
            objects.map(|object| object.to_object()).collect()
        })
    }

    /// The objects of a resolve in force, each with everything below it.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn found(
        &self,
        what: Store,
        subject: impl Into<Name>,
        target: &Target,
    ) -> Result<Vec<ManagedObject>, CallError> {
        let (subject, target) = (subject.into(), target.clone());
        self.with(move |core, _| {
            let tree = core.tree(what);
            let roots = core.found(what, subject, &target);
            let objects = roots.iter().flat_map(|root| tree.subtree(root));
            objects.map(|object| object.to_object()).collect()
        })
    }

    /// The number of resolves, declarations and reports whose latest request has no answer.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn unanswered(&self) -> Result<usize, CallError> {
        self.with(|core, _| core.unanswered())
    }

    /// The class in a URI: the last segment but one, as in URIs of libopflex for objects with one
    /// name.
    pub fn class_of(uri: &Uri) -> Name {
        let class = uri.elements().rev().nth(1).or_else(|| uri.elements().next());
        class.unwrap_or_default().as_ref().into()
    }

    fn refer(
        &self,
        resolve: impl FnOnce(&mut ElementCore, Instant) -> ResolveReference + Send + 'static,
    ) -> Result<Reference, CallError> {
        Ok(Reference {
            resolved: Some(self.with(resolve)?),
            events: self.events.clone(),
            released: Released::clone(&self.released),
        })
    }
}

/// A reference to a policy or an endpoint, which stays resolved while a reference exists. After the
/// last reference is dropped and [`linger`](core::ElementSettings::linger) has passed, the servers get an
/// unresolve.
///
/// # Threads
/// `Send`. Dropping it does not block.
#[derive(Debug)]
#[must_use = "the policy or endpoint is released when the reference is dropped"]
pub struct Reference {
    /// `None` once it is dropped.
    resolved: Option<ResolveReference>,
    events: ElementEvents,
    released: Released,
}

impl Drop for Reference {
    fn drop(&mut self) {
        locked(&self.released).extend(self.resolved.take());
        // An empty call wakes the dispatcher, which releases the reference. If the channel is full,
        // the events in it do the same.
        let _ = self.events.try_send(DispatchEvent::Call(Box::new(|_, _, _| ())));
    }
}
