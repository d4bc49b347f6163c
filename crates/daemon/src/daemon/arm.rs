//! The channels that a daemon adds to the main loop, which all daemons share: an *arm* is one
//! channel, with the code that handles its messages.

use crossbeam_channel::{Receiver, Select, TryRecvError};

use crate::failure::Failure;

/// The action of the main loop after a message.
#[derive(Debug)]
pub enum Next {
    Continue,
    /// The loop returns, and the daemon ends.
    End,
    /// The daemon has read its files again; the error names the file that it could not use.
    Reloaded(Result<(), String>),
    /// The channel is disconnected, so the loop removes the arm.
    Closed,
}

/// A channel of any message type, and the code that handles its messages.
pub trait Arm {
    fn register<'a>(&'a self, select: &mut Select<'a>);

    /// Handles one message of a channel that is ready.
    fn receive(&mut self) -> Result<Next, Failure>;
}

pub type Arms<'a> = Vec<Box<dyn Arm + 'a>>;

/// An arm that calls `act` with each message, and once with `None` when the channel is
/// disconnected.
pub fn on<'a, T: 'a>(
    channel: Receiver<T>,
    act: impl FnMut(Option<T>) -> Result<Next, Failure> + 'a,
) -> Box<dyn Arm + 'a> {
    Box::new(On { channel, act })
}

struct On<T, F> {
    channel: Receiver<T>,
    act: F,
}

impl<T, F: FnMut(Option<T>) -> Result<Next, Failure>> Arm for On<T, F> {
    fn register<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.channel);
    }

    fn receive(&mut self) -> Result<Next, Failure> {
        let message = match self.channel.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Disconnected) => None,
            // crossbeam may report a channel as ready although it is empty.
            Err(TryRecvError::Empty) => return Ok(Next::Continue),
        };
        let is_closed = message.is_none();
        match (self.act)(message)? {
            // A disconnected channel is always ready, so the loop would never sleep again.
            Next::Continue if is_closed => Ok(Next::Closed),
            next => Ok(next),
        }
    }
}
