//! Times on the command line.

use std::str::FromStr;
use std::time::Duration;

use ssntp_transport::NEVER;

/// A number of seconds with decimals, from a millisecond to a year.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(Duration);

impl FromStr for Seconds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.parse::<f64>() {
            // `from_secs_f64` panics for negative and very large numbers and for NaN, which are
            // outside this range.
            Ok(seconds) if (0.001..=31_536_000.0).contains(&seconds) => {
                Ok(Self(Duration::from_secs_f64(seconds)))
            }
            _ => Err("expected a number of seconds from 0.001 to a year"),
        }
    }
}

impl From<Seconds> for Duration {
    fn from(seconds: Seconds) -> Self {
        seconds.0
    }
}

/// Reads a time as a whole number with the unit `s`, `m`, `h` or `d`; seconds without a unit.
pub fn age(text: &str) -> Result<Duration, &'static str> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("" | "s") => Some(1),
        Some("m") => Some(60),
        Some("h") => Some(60 * 60),
        Some("d") => Some(24 * 60 * 60),
        _ => None,
    };
    let seconds = unit.and_then(|unit: u64| unit.checked_mul(digits.parse().ok()?));
    // A time before the first one of the clock would count as none, and `prune` delete everything.
    let age = seconds.map(Duration::from_secs).filter(|age| *age <= NEVER);
    age.ok_or("expected a time such as 90s, 30m, 12h or 7d")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_a_unit_or_is_in_seconds() {
        let seconds = |text: &str| age(text).map(|age| age.as_secs());
        for (text, of) in [
            ("90", 90),
            ("90s", 90),
            ("30m", 1800),
            ("12h", 43_200),
            ("7d", 604_800),
            ("0", 0),
        ] {
            assert_eq!(seconds(text), Ok(of), "{text}");
        }
        for text in [
            "",
            "h",
            "1.5h",
            "-1s",
            "1w",
            "1h30m",
            "99999999999999999999",
            "9999999999999999999d",
            "200000000000000d",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
