//! Times on the command line.

use std::str::FromStr;
use std::time::Duration;

/// A positive number of seconds, with decimals: from a millisecond to a year.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds(Duration);

impl FromStr for Seconds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.parse::<f64>() {
            Ok(seconds) if (0.001..=31_536_000.0).contains(&seconds) => {
                Ok(Self(Duration::from_secs_f64(seconds)))
            }
            _ => Err("it is not a number of seconds from 0.001 to a year"),
        }
    }
}

impl From<Seconds> for Duration {
    fn from(seconds: Seconds) -> Self {
        seconds.0
    }
}
