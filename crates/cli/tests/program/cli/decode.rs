//! `ssntp decode`: its input, its output and its exit codes.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;
use ssntp::Role;
use ssntp::proto::{Connect, Connected, Frame, Status, Trace};
use uuid::Uuid;

fn decode(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = crate::program()
        .arg("decode")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it has read all of the input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn conversation() -> Vec<u8> {
    let mut bytes = Connect::new(Role::AGENT, Uuid::from_u128(1), false)
        .encode()
        .to_vec();
    let connected = Connected {
        role: Role::SCHEDULER,
        server: Uuid::from_u128(2),
        client: Uuid::from_u128(1),
        trace: false,
        payload: "configure: {}\n".into(),
    };
    bytes.extend(connected.encode());
    bytes.extend(Frame::new(Status::FULL).encode());
    bytes
}

#[test]
fn raw_bytes_and_hexadecimal_digits_are_decoded_alike() {
    let raw = conversation();
    let digits: Vec<String> = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    let one = decode(&[], &raw);
    assert_eq!(one.status.code(), Some(0));
    assert_eq!(one.stderr, b"");
    assert_eq!(decode(&["-"], digits.join(" ").as_bytes()).stdout, one.stdout);
    assert_eq!(
        decode(&[], format!("0x{}\n", digits.concat()).as_bytes()).stdout,
        one.stdout
    );
    let text = String::from_utf8(one.stdout).unwrap();
    for part in [
        "frame 1: COMMAND CONNECT, 40 bytes at 0x0",
        "frame 2: STATUS CONNECTED, 58 bytes at 0x28",
        "frame 3: STATUS FULL, 8 bytes at 0x62",
        "0x000054  payload              14 bytes of text",
        "00000000-0000-0000-0000-000000000002",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn json_output_has_one_object_and_line_for_each_frame() {
    let output = decode(&["--json"], &conversation());
    let text = String::from_utf8(output.stdout).unwrap();
    let frames: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let operands: Vec<&str> = frames.iter().map(|f| f["operand"].as_str().unwrap()).collect();
    assert_eq!(operands, ["CONNECT", "CONNECTED", "FULL"]);
    assert_eq!(frames[1]["fields"]["payload"]["value"], "configure: {}\n");
    assert_eq!(frames[1]["fields"]["payload_length"]["offset"], 80);
    assert_eq!(frames[2]["offset"], 98);
}

#[test]
fn a_bad_frame_is_reported_in_one_line() {
    let mut input = conversation();
    input.truncate(102);
    let output = decode(&[], &input);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    let expected = "ssntp: standard input: offset 0x66: \
                    the input ends inside payload length, with 0 of its 4 bytes\n";
    assert_eq!(errors, expected);
    assert!(!output.stdout.is_empty());
    for (input, part) in [("", "no frame"), ("0", "odd number"), ("zz", "major version 122")] {
        let output = decode(&["--json"], input.as_bytes());
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(part), "{errors}");
        assert_eq!(errors.lines().count(), 1);
    }
}

#[test]
fn hidden_characters_of_a_payload_are_escaped() {
    let hidden = "a\u{202e}b\u{2066}c\u{200f}d\u{9b}e\u{200b}f\u{7f}g\n";
    let input = Frame::with_payload(Status::READY, hidden).encode().to_vec();
    let text = String::from_utf8(decode(&[], &input).stdout).unwrap();
    let shown = r"a\u{202e}b\u{2066}c\u{200f}d\u{9b}e\u{200b}f\u{7f}g";
    assert!(text.contains(shown), "{text}");
    let json = String::from_utf8(decode(&["--json"], &input).stdout).unwrap();
    assert!(
        json.contains(r"a\u202eb\u2066c\u200fd\u009be\u200bf\u007fg\n"),
        "{json}"
    );
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["fields"]["payload"]["value"], hidden);
}

#[test]
fn decode_stops_reading_a_device_after_a_thousand_faults() {
    let output = decode(&["/dev/zero"], b"");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("ssntp: /dev/zero: offset 0x4: no role is advertised (and 999 more;"));
    assert!(
        errors.ends_with("stopped reading at offset 0x4e20)\n"),
        "{errors}"
    );
}

#[test]
fn a_trace_context_in_a_label_is_shown_by_its_ids() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let trace = Trace::within("job-17", &parent.parse().unwrap());
    let bytes = Frame::new(Status::FULL).traced(trace).encode();
    let output = decode(&["--json"], &bytes);
    let frame: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(frame["problems"], serde_json::json!([]));
    let fields = &frame["fields"];
    assert_eq!(fields["trace_id"]["value"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(fields["span_id"]["value"], "b7ad6b7169203331");
    let text = String::from_utf8(decode(&[], &bytes).stdout).unwrap();
    assert!(text.contains("span id              b7ad6b7169203331"), "{text}");
}
