//! The channels that a daemon adds to the main loop, which all daemons share: an *arm* is one of
//! them, with the code that handles its messages.

use crossbeam_channel::{Receiver, Select, SelectedOperation};

use crate::failure::Failure;

/// What the main loop does after a message.
pub(crate) enum Next {
    Continue,
    /// The daemon ends.
    End,
    /// The daemon has read its files again; the error says which file it could not use.
    Reloaded(Result<(), String>),
    /// The channel is closed, and is not waited for again.
    Closed,
}

/// A channel, and the code of a service that handles its messages.
pub(crate) trait Arm<S> {
    fn register<'a>(&'a self, select: &mut Select<'a>);

    /// Completes the operation of a channel that is ready.
    fn receive(&self, ready: SelectedOperation<'_>, service: &mut S) -> Result<Next, Failure>;
}

pub(crate) type Arms<'a, S> = Vec<Box<dyn Arm<S> + 'a>>;

/// An arm that calls `act` with each message, and once with `None` when the channel is
/// closed.
pub(crate) fn on<'a, T: 'a, S: 'a>(
    channel: Receiver<T>,
    act: impl Fn(&mut S, Option<T>) -> Result<Next, Failure> + 'a,
) -> Box<dyn Arm<S> + 'a> {
    Box::new(On { channel, act })
}

struct On<T, F> {
    channel: Receiver<T>,
    act: F,
}

impl<T, S, F: Fn(&mut S, Option<T>) -> Result<Next, Failure>> Arm<S> for On<T, F> {
    fn register<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.channel);
    }

    fn receive(&self, ready: SelectedOperation<'_>, service: &mut S) -> Result<Next, Failure> {
        let message = ready.recv(&self.channel).ok();
        let is_closed = message.is_none();
        match (self.act)(service, message)? {
            // A closed channel is always ready: the loop would never sleep again.
            Next::Continue if is_closed => Ok(Next::Closed),
            next => Ok(next),
        }
    }
}
