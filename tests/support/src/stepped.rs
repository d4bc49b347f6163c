//! The state machine of the real agent, on its caller's thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use ssntp::Role;
use ssntp::proto::Frame;
use ssntp_agent::Policy;
use ssntp_agent::driver::{Driver, InstanceDir, Launch, News, NewsSink, Running};
use ssntp_agent::simulation::{Action, Control, Done, Input, Job, Settings, StreamOrder};
use ssntp_cluster::machine::Facts;
use ssntp_payload::{StreamEndReason, StreamEnded};
use uuid::Uuid;

/// The directory of an instance. No file of it is ever used.
fn place(instance: Uuid) -> InstanceDir {
    InstanceDir::new(instance, format!("/nowhere/{instance}"))
}

/// The settings of a [`SteppedAgent`].
#[derive(Clone, Debug)]
pub struct SteppedConfig {
    /// The node's UUID, which is the UUID of the agent's session.
    pub node: Uuid,
    /// The role of the agent's session: AGENT, NETAGENT or both.
    pub role: Role,
    /// The facts that the node reports.
    pub facts: Facts,
    /// The maximum number of instances of the node.
    pub max_instances: usize,
    /// The interval between STATS.
    pub interval: Duration,
}

/// An input of a [`SteppedAgent`].
#[derive(Debug)]
pub enum Step {
    /// A session was established; the payload of CONNECTED.
    Connected(Bytes),
    /// The session has ended.
    Disconnected,
    /// A frame was received.
    Frame(Frame),
    /// Frames could not be sent, in this order.
    Unsent(Vec<Frame>),
    /// [`SteppedAgent::deadline`] has passed.
    Tick,
}

/// An agent without threads, sockets or files: the state machine of `Agent`, which
/// the caller steps.
///
/// Jobs are done inside [`step`](Self::step), so the driver must not block. No file is written, and
/// instances have no volumes and no logs.
#[derive(Debug)]
pub struct SteppedAgent {
    control: Control,
    facts: Facts,
    /// The news of runs that the driver has told and that are not handled yet: at most
    /// one for each instance.
    news: (Sender<News>, Receiver<News>),
}

impl SteppedAgent {
    /// An agent whose instances are run by `driver`.
    pub fn new(config: SteppedConfig, driver: Arc<dyn Driver>, now: Instant) -> Self {
        let facts = config.facts;
        let settings = Settings {
            node: config.node,
            role: config.role,
            drivers: vec![driver],
            state: Some("/nowhere".into()),
            // These are set, so that the capacity does not depend on the machine that simulates.
            mem_mb: Some(facts.mem_total_mb),
            disk_mb: Some(facts.disk_total_mb),
            max_instances: config.max_instances,
            interval: config.interval,
            grace: Duration::from_secs(10),
            ..Settings::default()
        };
        Self {
            control: Control::new(settings, facts.clone(), now),
            facts,
            news: unbounded(),
        }
    }

    /// The time at which [`Step::Tick`] is due.
    pub fn deadline(&self) -> Instant {
        self.control.next_deadline()
    }

    /// Handles a step and does the jobs that follow from it. Returns the frames to send.
    pub fn step(&mut self, now: Instant, step: Step) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut inputs = vec![match step {
            Step::Connected(payload) => Input::Connected {
                configuration: Some(payload).filter(|yaml| !yaml.is_empty()),
            },
            Step::Disconnected => Input::Disconnected,
            Step::Frame(frame) => Input::Frame(frame),
            Step::Unsent(frames) => Input::Unsent(frames),
            Step::Tick => Input::Tick,
        }];
        while !inputs.is_empty() {
            for input in std::mem::take(&mut inputs) {
                self.control.handle(now, input);
            }
            for action in self.control.take_actions() {
                match action {
                    Action::Send(frame) => frames.push(frame),
                    Action::Job(job) => inputs.extend(self.work(job).map(Input::Done)),
                    Action::Stream(StreamOrder::Open { open, .. }) => {
                        // The stream is refused, so that the controller does not wait for output.
                        let text = "this node keeps no logs";
                        let ended = StreamEnded::new(open.stream, StreamEndReason::NOT_SUPPORTED, text);
                        frames.push(ended.frame());
                    }
                    // There is no machine to shut down, and no stream was opened.
                    Action::Evacuated(_) | Action::Stream(_) => {}
                }
            }
            inputs.extend(self.news.1.try_iter().map(Input::News));
        }
        frames
    }

    fn work(&self, job: Job) -> Option<Done> {
        match job {
            Job::Launch(job) => {
                let place = place(job.instance);
                let launch = Launch {
                    place: &place,
                    payload: &job.payload,
                    user: None,
                    policy: &Policy::default(),
                    cancel: &job.cancel,
                    network: None,
                };
                let result = job.driver.launch(&launch, &mut |_| Ok(()));
                if let Ok(handle) = &result {
                    let (handle, told) = (handle.clone(), self.news.0.clone());
                    // The agent holds the receiver, so this fails only after its end.
                    let sink: NewsSink = Arc::new(move |news| drop(told.send(news)));
                    job.driver.watch(&Running { place, handle }, &sink);
                }
                Some(Done::Launched {
                    instance: job.instance,
                    result: result.map(|handle| (handle, 0)),
                })
            }
            Job::Terminate(driver, running) | Job::Kill(driver, running) => {
                // If the driver fails, it reports no end, and the state machine kills again.
                let _ = driver.kill(&running);
                let instance = running.place.instance();
                Some(Done::Signalled { instance })
            }
            Job::Remove { instance, driver, .. } => {
                if let Some(driver) = driver {
                    driver.forget(&place(instance));
                }
                let result = Ok(());
                Some(Done::Removed { instance, result })
            }
            Job::Volume { instance, op, .. } => {
                let result = Ok(());
                Some(Done::Volume { instance, op, result })
            }
            Job::Measure(subjects) => Some(Done::Measured {
                usages: subjects
                    .iter()
                    .flat_map(|(driver, subjects)| {
                        let measured = subjects.iter().zip(driver.measure(subjects));
                        measured.map(|(it, usage)| (it.place.instance(), it.handle.clone(), usage))
                    })
                    .collect(),
                facts: self.facts.clone(),
                tunnels: Vec::new(),
            }),
            Job::SaveNode(_, next) => next.map(Done::Evacuated),
            Job::Save { .. } | Job::Watch(..) | Job::Detach(..) => None,
        }
    }
}
