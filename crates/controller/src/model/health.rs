//! The health check of a workload: it is read strictly, and goes to the nodes with each START.

use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};
use ssntp_payload::{HealthCheck, HttpCheck};
use ssntp_transport::excerpt;

/// The longest time of a setting, in seconds: a week.
pub(super) const MAX_SECONDS: u32 = 7 * 86_400;
/// The longest check, in seconds.
const MAX_CHECK_SECONDS: u32 = 60;

/// Reads a check that may have no key which this version does not know.
pub(super) fn read_health<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<HealthCheck>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let check = HealthCheck::deserialize(&value).map_err(de::Error::custom)?;
    // With other values than the defaults, so that every key is written.
    let every = HealthCheck {
        tcp: 1,
        http: HttpCheck {
            port: 1,
            status: 1,
            ..HttpCheck::default()
        },
        command: vec![String::new()],
        start_s: 0,
        ..HealthCheck::default()
    };
    match unknown(&value, &json!(every)) {
        Some(key) => Err(de::Error::custom(format!("unknown field `{key}`"))),
        None => Ok(Some(check)),
    }
}

/// Between the end of an instance and what it wrote last.
const WROTE: &str = "; it wrote: ";

/// The end of an instance, and what it wrote last if it failed.
pub(crate) fn ending_text(ending: &ssntp_view::Ending) -> String {
    let wrote = if ending.last_lines.is_empty() { "" } else { WROTE };
    format!("{ending}{wrote}{}", excerpt(&ending.last_lines))
}

/// A text without what programs have written, which may be a secret: an instance, or the program of a health
/// check.
pub(crate) fn without_output(text: &str) -> &str {
    let text = text.split(WROTE).next().unwrap_or(text);
    without_output_of_check(text)
}

/// A text without what the program of a health check has written: all that follows its exit code or
/// signal.
pub(crate) fn without_output_of_check(text: &str) -> &str {
    let is_how = |before: &&str| {
        let how = before.trim_end_matches(|c: char| c.is_ascii_digit());
        how.len() < before.len() && (how.ends_with("exit code ") || how.ends_with("signal "))
    };
    let mut before = text.match_indices(": ").map(|(at, _)| &text[..at]);
    before.find(is_how).unwrap_or(text)
}

fn unknown<'v>(value: &'v Value, known: &Value) -> Option<&'v str> {
    value
        .as_object()?
        .iter()
        .find_map(|(key, value)| match known.get(key) {
            Some(known) => unknown(value, known),
            None => Some(key.as_str()),
        })
}

/// Checks every value.
///
/// # Errors
/// The key, and the reason.
pub(super) fn check_health(health: &HealthCheck, is_process: bool) -> Result<(), (&'static str, String)> {
    let HealthCheck { http, command, .. } = health;
    let kinds = [health.tcp > 0, *http != HttpCheck::default(), !command.is_empty()];
    let is_path = http.path.starts_with('/') && http.path.bytes().all(|byte| byte.is_ascii_graphic());
    let wrong = if !is_process {
        (
            "health",
            "a virtual machine has no checks: its node does not reach it",
        )
    } else if kinds.into_iter().filter(|is_set| *is_set).count() != 1 {
        ("health", "it needs one of tcp (a port), http and command")
    } else if kinds[1] && (http.port == 0 || !is_path) {
        ("health.http", "it needs a port, and a path that begins with /")
    } else if !matches!(http.status, 0 | 100..600) {
        ("health.http.status", "it is not a status of HTTP")
    } else if command.first().is_some_and(String::is_empty) || command.iter().any(|word| word.contains('\0'))
    {
        (
            "health.command",
            "it names no program, or contains a NUL character",
        )
    } else {
        let numbers = [
            ("health.interval_s", health.interval_s, 1, MAX_SECONDS),
            ("health.timeout_s", health.timeout_s, 1, MAX_CHECK_SECONDS),
            ("health.failures", health.failures, 1, u32::MAX),
            ("health.start_s", health.start_s, 0, MAX_SECONDS),
        ];
        return check_numbers(numbers);
    };
    Err((wrong.0, wrong.1.into()))
}

/// Checks numbers: the key, the value, the least, and the most, which is in seconds.
pub(super) fn check_numbers<const N: usize>(
    numbers: [(&'static str, u32, u32, u32); N],
) -> Result<(), (&'static str, String)> {
    for (at, value, least, most) in numbers {
        if value < least {
            return Err((at, format!("it is {value}, but must be at least {least}")));
        } else if value > most {
            return Err((at, format!("it is more than {most} s")));
        }
    }
    Ok(())
}
