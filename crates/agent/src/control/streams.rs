//! Streams of the logs of instances: opening them, and the end of streams that follow an instance.
//! `agent::streams` reads the files.

use uuid::Uuid;

use super::{Action, Control};
use crate::driver::InstanceDir;
use ssntp::proto::{Command, Frame, OpenStream, StreamCredit, StreamEndReason, StreamEnded, stream_of};
use ssntp_cluster::refusal::Refused;

/// An order to the thread that reads logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamOrder {
    /// Begin a stream of the instance in the directory `place`.
    Open {
        open: OpenStream,
        place: InstanceDir,
        runs: bool,
    },
    Credit(StreamCredit),
    Close(Uuid),
    /// Close all streams, because the session has ended.
    CloseAll,
    /// An instance has ended, and all of its output is on disk.
    Ended(Uuid),
}

impl Control {
    /// Handles a command for a stream. Commands for a stream that has ended have no effect.
    pub(super) fn stream(&mut self, frame: &Frame) -> Result<(), Refused> {
        let payload = frame.payload_bytes();
        let order = match Command(frame.kind().operand) {
            Command::OPEN_STREAM => OpenStream::decode(payload).map(|open| self.open_stream(open)),
            Command::STREAM_CREDIT => {
                StreamCredit::decode(payload).map(|credit| Action::Stream(StreamOrder::Credit(credit)))
            }
            _ => stream_of(payload).map(|stream| Action::Stream(StreamOrder::Close(stream))),
        };
        self.actions.push(order.ok_or("invalid_data")?);
        Ok(())
    }

    fn open_stream(&mut self, open: OpenStream) -> Action {
        let Some(instance) = self.instances.get(&open.instance) else {
            let text = format!("node {} does not have it", self.settings.node);
            let ended = StreamEnded::new(open.stream, StreamEndReason::NO_INSTANCE, text);
            return Action::Send(ended.frame());
        };
        let runs = instance.is_running();
        // The reader has to learn of the end of an instance only if the stream follows it and the
        // instance runs. All other streams end with the output that is there.
        if runs && open.follow {
            self.followed.insert(open.instance);
        }
        Action::Stream(StreamOrder::Open {
            open,
            place: instance.place.clone(),
            runs,
        })
    }

    /// Reports the end of followed instances to the reader. An instance whose streams were closed
    /// stays in `followed` until its end, so `followed` is never longer than the list of instances.
    pub(super) fn sync_streams(&mut self) {
        self.followed.retain(|id| {
            let runs = self.instances.get(id).is_some_and(super::Instance::is_running);
            if !runs {
                self.actions.push(Action::Stream(StreamOrder::Ended(*id)));
            }
            runs
        });
    }
}
