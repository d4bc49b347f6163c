//! Streams of the logs of instances.

use super::*;
use ssntp::payload::InvalidFrameType;
use ssntp_payload::{OpenStream, Outputs, StreamCredit, StreamEndReason, StreamEnded, close_stream};

fn open(instance: Uuid, follow: bool) -> OpenStream {
    OpenStream {
        stream: Uuid::from_u128(0x5),
        instance,
        outputs: Outputs::BOTH,
        follow,
        tail: None,
        credit: 100,
    }
}

/// An order as a short text.
fn ask(stage: &mut Stage, frame: Frame) -> Vec<StreamOrder> {
    stage.feed(Input::Frame(frame));
    std::mem::take(&mut stage.streams)
}

#[test]
fn a_stream_is_opened_only_for_an_instance_of_this_node() {
    let mut stage = Stage::new();
    stage.run(&start(ONE));
    stage.sent.clear();
    let asked = open(ONE, true);
    let [
        StreamOrder::Open {
            open: order,
            place,
            runs: true,
        },
    ] = &ask(&mut stage, asked.frame())[..]
    else {
        panic!("the stream is opened");
    };
    assert_eq!((order, place.instance()), (&asked, ONE));
    let credit = StreamCredit {
        stream: asked.stream,
        bytes: 7,
    };
    assert_eq!(ask(&mut stage, credit.frame()), [StreamOrder::Credit(credit)]);
    assert_eq!(
        ask(&mut stage, close_stream(asked.stream)),
        [StreamOrder::Close(asked.stream)]
    );
    assert!(stage.sent.is_empty());

    assert_eq!(ask(&mut stage, open(TWO, true).frame()), []);
    let refused = stage.sent.pop_front().unwrap();
    let refused = StreamEnded::decode(refused.payload_bytes()).unwrap();
    assert_eq!(refused.reason, StreamEndReason::NO_INSTANCE);
    for command in [
        Command::OPEN_STREAM,
        Command::STREAM_CREDIT,
        Command::CLOSE_STREAM,
    ] {
        assert_eq!(ask(&mut stage, Frame::with_payload(command, "short")), []);
        assert_eq!(stage.next::<InvalidFrameType>().refused(), command);
    }
}

#[test]
fn the_end_of_an_instance_is_reported_once() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.run(&start(TWO));
    ask(&mut stage, open(ONE, true).frame());
    ask(&mut stage, open(TWO, false).frame());
    stage.send(&stop(ONE));
    assert_eq!(stage.streams, [], "the instance still runs");
    for id in [ONE, TWO] {
        stage.end(id, 0);
    }
    let ends = [StreamOrder::Ended(ONE), StreamOrder::Ended(TWO)];
    assert_eq!(std::mem::take(&mut stage.streams), ends);
    // Logs can be read as long as the instance is kept.
    let orders = ask(&mut stage, open(ONE, true).frame());
    assert!(matches!(orders[..], [StreamOrder::Open { runs: false, .. }]));
    stage.pass(SETTLE);
    assert_eq!(stage.streams, []);
    stage.feed(Input::Disconnected);
    assert_eq!(stage.streams, [StreamOrder::CloseAll]);
}
