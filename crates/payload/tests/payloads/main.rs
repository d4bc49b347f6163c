//! The payload schemas against documents written by the peer library
//! (`fixtures/payloads`), documents of our own, bad input and random input.
//!
//! | file | proves |
//! |---|---|
//! | `commands`, `events`, `failures`, `status` | each schema reads, writes and reads back |
//! | `start` | the documents of START and its older forms |
//! | `refused` | bad input is refused, with path and line |
//! | `reading`, `limits` | the reading rules; attacks are refused in a short time |
//! | `properties` | any text is read back equal, no bytes cause a panic |

#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's own functions fail by panicking, and limits have a clock"
)]

mod commands;
mod events;
mod failures;
mod limits;
mod properties;
mod reading;
mod refused;
mod start;
mod status;

use std::fmt::Debug;
use std::path::Path;

use ssntp::payload::Payload;

const NODE: &str = "5be1c0de-7d1a-4b52-8a55-90d2c3b4a501";
const INSTANCE: &str = "0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001";
const SECOND_INSTANCE: &str = "0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1002";
const TENANT: &str = "93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50";
const CNCI: &str = "c2a1f0e9-8d7c-4b6a-9584-736251403f2e";
const VOLUME: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

/// The directory of the peer library's documents, and, as `ours_…`, of documents for frames that the
/// peer library does not have.
fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/payloads")
}

/// A document of the peer library.
fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(name).with_extension("yaml")).unwrap()
}

/// Checks that a value is written so that it is read back equal.
fn survives<T: Payload + PartialEq + Debug>(value: &T) {
    let written = value.encode();
    let again = T::decode(&written).unwrap_or_else(|e| panic!("{e}\n{}", text(&written)));
    assert_eq!(&again, value);
}

/// Reads a document in the current form, writes it, and checks that an independent parser reads the
/// same values from both.
fn current<T: Payload + PartialEq + Debug>(document: &[u8]) -> T {
    let value = T::decode(document).unwrap();
    survives(&value);
    assert_eq!(yaml_value(&value.encode()), yaml_value(document));
    value
}

/// Reads a document in an older form, and checks that it is written in the current form.
fn older<T: Payload + PartialEq + Debug>(document: &[u8]) -> T {
    let value = T::decode(document).unwrap();
    survives(&value);
    value
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn yaml_value(bytes: &[u8]) -> serde_yaml::Value {
    serde_yaml::from_slice(bytes).unwrap_or_else(|e| panic!("{e}\n{}", text(bytes)))
}
