//! Frames that are whole, cut off, changed and endless.

use std::io::Read;

use proptest::prelude::*;
use serde_json::json;
use ssntp::Role;
use ssntp::proto::{Command, Connect, Connected, Frame as Wire, Status, Trace};
use ssntp_payload::{OpenStream, Outputs, StreamData, StreamEndReason, StreamEnded, close_stream};
use uuid::Uuid;

use super::digits::Digits;
use super::frame::{Field, Frame};
use super::walk::MAX_PAYLOAD;
use super::*;

fn frames(input: &[u8]) -> impl Iterator<Item = Frame> + use<> {
    let mut frames = Frames::of(Box::new(io::Cursor::new(input.to_vec()))).unwrap();
    // Random bytes may begin as digits do, and end in an error.
    std::iter::from_fn(move || frames.next().ok().flatten())
}

fn problems(input: &[u8]) -> Vec<String> {
    frames(input)
        .flat_map(|frame| frame.problems)
        .map(|problem| problem.to_string())
        .collect()
}

fn field<'a>(frame: &'a Frame, name: &str) -> &'a Field {
    frame.fields.iter().find(|field| field.name == name).unwrap()
}

fn traced() -> Wire {
    let mut trace = Trace::new("start of a\u{7}");
    trace.start = 5;
    trace.stamp_sent(Uuid::from_u128(7), Role::CONTROLLER, 8);
    trace.stamp_received(Uuid::from_u128(9), Role::SCHEDULER, 10);
    Wire::with_payload(Command::START, "start:\n  x: 1\n").traced(trace)
}

#[test]
fn a_conversation_is_read_frame_by_frame() {
    let mut input = Connect::new(Role::AGENT, Uuid::from_u128(1), true)
        .encode()
        .to_vec();
    let connected = Connected {
        role: Role::SCHEDULER,
        server: Uuid::from_u128(2),
        client: Uuid::from_u128(1),
        trace: true,
        payload: "configure: {}\n".into(),
    };
    input.extend(connected.encode());
    input.extend(traced().encode());
    input.extend(Wire::new(Status::FULL).encode());
    let read: Vec<Frame> = frames(&input).collect();
    assert!(problems(&input).is_empty());
    let lens: Vec<usize> = read.iter().map(|frame| frame.len).collect();
    assert_eq!(lens, [40, 44 + 14, traced().encoded_len(), 8]);
    assert_eq!(field(&read[0], "source").at, 8);
    assert_eq!(field(&read[1], "payload").at, 40 + 44);
    assert_eq!(field(&read[1], "role").value, json!("scheduler"));
    let trace = &read[2];
    assert_eq!(field(trace, "label").text.as_deref(), Some("start of a\\u{7}"));
    assert_eq!(field(trace, "node 1 received").value, json!(10));
    assert_eq!(field(trace, "payload").value, json!("start:\n  x: 1\n"));
    assert_eq!(
        field(trace, "payload").text.as_deref(),
        Some("14 bytes of text\nstart:\n  x: 1")
    );
}

#[test]
fn frames_of_streams_are_read_byte_by_byte() {
    let (stream, instance) = (Uuid::from_u128(5), Uuid::from_u128(6));
    let open = OpenStream {
        stream,
        instance,
        outputs: Outputs::BOTH,
        follow: true,
        tail: Some(20),
        credit: 100,
    };
    let data = StreamData {
        stream,
        output: Outputs::STDERR,
        missing: true,
        data: "a\nb\u{1b}".into(),
    };
    let ended = StreamEnded::new(stream, StreamEndReason::NO_INSTANCE, "gone");
    let mut input = [open.frame(), close_stream(stream), data.frame(), ended.frame()]
        .map(|frame| frame.encode())
        .concat();
    let read: Vec<Frame> = frames(&input).collect();
    assert_eq!(problems(&input), [""; 0]);
    let shown = |frame: &Frame, name: &str| {
        let field = field(frame, name);
        (
            field.at - frame.at,
            field.len,
            field.text.clone().unwrap_or(field.value.to_string()),
        )
    };
    assert_eq!(shown(&read[0], "instance"), (24, 16, format!("\"{instance}\"")));
    assert_eq!(shown(&read[0], "outputs"), (40, 1, "0x3 both".to_owned()));
    assert_eq!(shown(&read[0], "follow"), (41, 1, "yes".to_owned()));
    assert_eq!(shown(&read[0], "lines"), (44, 4, "20".to_owned()));
    assert_eq!(shown(&read[0], "credit"), (48, 4, "100".to_owned()));
    assert_eq!(shown(&read[1], "stream"), (8, 16, format!("\"{stream}\"")));
    assert_eq!(shown(&read[2], "output"), (24, 1, "0x2 stderr".to_owned()));
    let text = "4 bytes of text\na\nb\\u{1b}".to_owned();
    assert_eq!(shown(&read[2], "data"), (28, 4, text));
    assert_eq!(shown(&read[3], "reason"), (24, 1, "0x1 no_instance".to_owned()));

    // The announced length cuts the payload.
    input = Wire::with_payload(Command::OPEN_STREAM, open.frame().payload_bytes().slice(..20))
        .encode()
        .to_vec();
    assert_eq!(
        problems(&input),
        ["offset 0x18: the payload ends inside instance, with 4 of its 16 bytes"]
    );
}

#[test]
fn each_fault_is_reported_with_its_offset() {
    let full = Wire::new(Status::FULL).encode();
    for (input, expected) in [
        (
            &full[..5],
            "offset 0x4: the input ends inside payload length, with 1 of its 4 bytes",
        ),
        (&[2, 1, 0, 1, 0, 0, 0, 0], "offset 0x0: major version 2, not 0"),
        (&[0, 1, 2, 1, 0, 0, 0, 0], "offset 0x2: unknown type 0x02"),
        (
            &[0, 1, 0, 0x77, 0, 0, 0, 0],
            "offset 0x3: unknown operand 0x77 of COMMAND",
        ),
        (
            &[0, 1, 0, 1, 0, 0, 1, 0, 65],
            "offset 0x4: a payload of 256 bytes is announced and 1 follow",
        ),
        (
            &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 16, 1],
            "offset 0x8: a trace block of 4097 bytes, more than 4096",
        ),
        (
            &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1],
            "offset 0x8: a trace block of 2 bytes is announced and 1 follow",
        ),
        (
            &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2],
            "offset 0xc: trace block has version 2, not 1",
        ),
        (
            &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3],
            "offset 0xe: the trace block ends inside label, with 0 of its 3 bytes",
        ),
    ] {
        assert_eq!(problems(input), [expected]);
    }
    let mut connect = Connect::new(Role::from_bits(0x44), Uuid::nil(), false).encode();
    connect[39] = 1;
    assert_eq!(
        problems(&connect),
        [
            "offset 0x4: bits 0x40 are not a role",
            "offset 0x8: the source is nil",
            "offset 0x18: the destination is not nil",
        ]
    );
}

#[test]
fn a_bad_trace_block_or_operand_does_not_hide_the_next_frame() {
    let mut input = traced().encode().to_vec();
    input[12] = 9;
    input.extend([0, 1, 7, 7, 0, 0, 0, 2, 65, 66]);
    input.extend(Wire::new(Status::FULL).encode());
    let read: Vec<Frame> = frames(&input).collect();
    assert_eq!(read.len(), 3);
    assert_eq!(problems(&input).len(), 2);
    assert_eq!(field(&read[0], "payload").value, json!("start:\n  x: 1\n"));
}

#[test]
fn hexadecimal_digits_are_distinguished_from_raw_bytes() {
    let bytes = |text: &str| {
        let mut bytes = Vec::new();
        let end = Digits::new(text.as_bytes()).read_to_end(&mut bytes);
        end.map(|_| bytes).map_err(|error| error.to_string())
    };
    assert_eq!(bytes("00 01\n0102 00000000 "), Ok(vec![0, 1, 1, 2, 0, 0, 0, 0]));
    assert_eq!(bytes("0x0001 0XfF 0xA 0xb"), Ok(vec![0, 1, 0xff, 0xab]));
    assert_eq!(bytes("0 0 0 1 1 0"), Ok(vec![0, 1, 0x10]));
    assert_eq!(bytes(""), Ok(vec![]));
    let bad = "offset 0x4 of the digits: 'g' is not a hexadecimal digit";
    assert_eq!(bytes("00 0g"), Err(bad.to_owned()));
    assert!(bytes("0x0x").unwrap_err().contains("0x3 of the digits: 'x'"));
    for odd in ["000", "0", "0xfff", "1 "] {
        assert!(bytes(odd).unwrap_err().contains("an odd number"), "{odd}");
    }
    let full = Wire::new(Status::FULL).encode();
    let text: String = full.iter().map(|byte| format!("{byte:02x} ")).collect();
    for input in [&full[..], text.as_bytes()] {
        assert_eq!(frames(input).count(), 1);
        assert!(problems(input).is_empty());
    }
}

/// Repeats some bytes for ever, and counts how often they were read.
struct Endless(&'static [u8], std::rc::Rc<std::cell::Cell<usize>>);

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let filled = into.len().min(self.0.len());
        into[..filled].copy_from_slice(&self.0[..filled]);
        self.1.set(self.1.get() + filled);
        Ok(filled)
    }
}

#[test]
fn an_endless_input_is_read_frame_by_frame() {
    let read = std::rc::Rc::default();
    let zeros = Endless(&[0; 40], std::rc::Rc::clone(&read));
    let mut frames = Frames::of(Box::new(BufReader::with_capacity(40, zeros))).unwrap();
    for n in 0..100 {
        let frame = frames.next().unwrap().unwrap();
        assert_eq!((frame.at, frame.len), (40 * n, 40));
        assert_eq!(frame.problems.len(), 2, "no role, no source");
        assert!(read.get() <= 40 * (n + 2), "at most one frame is read ahead");
    }
}

#[test]
fn an_announced_length_above_the_limit_is_not_read() {
    let limit = u32::try_from(MAX_PAYLOAD).unwrap();
    let read = std::rc::Rc::default();
    let endless = Endless(&[0; 8192], std::rc::Rc::clone(&read));
    let mut header = vec![0, 1, 0, 1];
    header.extend((limit + 1).to_be_bytes());
    let source = io::Cursor::new(header).chain(endless);
    let mut frames = Frames::of(Box::new(BufReader::new(source))).unwrap();
    let frame = frames.next().unwrap().unwrap();
    let expected = "offset 0x4: a payload of 67108865 bytes, more than 67108864";
    assert_eq!(frame.problems[0].to_string(), expected);
    assert!(frames.next().unwrap().is_none());
    assert!(read.get() <= 8192, "{}", read.get());
}

#[test]
fn endless_blanks_end_in_an_error() {
    let blanks = Endless(&[b' '; 64], std::rc::Rc::default());
    let mut frames = Frames::of(Box::new(BufReader::new(blanks))).unwrap();
    let error = frames.next().err().unwrap().to_string();
    assert_eq!(error, "offset 0x100000 of the digits: nothing but blanks");
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_an_end(
        input in proptest::collection::vec(any::<u8>(), 0..300),
        flags in any::<[bool; 3]>(),
    ) {
        let mut input = input;
        // Most random bytes end at their first one; make some headers good.
        for (at, flag) in [(0, flags[0]), (2, flags[1]), (8, flags[2])] {
            if flag && input.len() > at + 3 {
                input[at] &= 0x80;
                input[at + 1] = u8::from(at == 8);
                input[at + 3] &= 0x0f;
            }
        }
        let mut covered = 0;
        for frame in frames(&input) {
            prop_assert_eq!(frame.at, covered);
            covered += frame.len;
            prop_assert!(frame.len > 0 && covered <= input.len());
            for field in &frame.fields {
                prop_assert!(field.at >= frame.at && field.at + field.len <= covered);
            }
            frame.to_json();
        }
        prop_assert!(covered <= input.len());
    }

    #[test]
    fn changed_frames_are_read_to_an_end(at in 0usize..200, to in any::<u8>(), cut in 0usize..200) {
        let mut input = traced().encode().to_vec();
        if let Some(byte) = input.get_mut(at) {
            *byte = to;
        }
        input.truncate(cut);
        let covered: usize = frames(&input).map(|frame| frame.len).sum();
        prop_assert!(covered <= input.len());
    }
}
