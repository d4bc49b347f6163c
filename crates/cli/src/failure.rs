//! How a subcommand fails.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::process::ExitCode;

use ssntp::pki::{BadRequest, Error};

use crate::output::printable;

/// What the user is told, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: Option<String>,
    code: u8,
    /// It is told to a program.
    json: bool,
}

impl Failure {
    /// It did not work: exit code 1.
    pub(crate) fn new(message: impl Display) -> Self {
        Self {
            message: Some(message.to_string()),
            code: 1,
            json: false,
        }
    }

    /// It was asked for wrongly: exit code 2.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self {
            message: Some(message.to_string()),
            code: 2,
            json: false,
        }
    }

    /// The exit code says it all: a signal has ended it before it was done, which is
    /// no news to whoever sent the signal; or what there is to say was printed.
    pub(crate) fn silent(code: u8) -> Self {
        Self {
            message: None,
            code,
            json: false,
        }
    }

    /// The same, told as an object of JSON where `json` says so:
    /// `{"error": "…", "exit_code": 1}`.
    pub(crate) fn in_json(self, json: bool) -> Self {
        Self { json, ..self }
    }

    /// The standard output did not take what was written. Whoever closed it
    /// has seen enough, which is no failure.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::silent(0);
        }
        Self::new(format!("standard output: {error}"))
    }

    /// Whether it is one: a reader that has seen enough is none.
    pub(crate) fn is_failure(&self) -> bool {
        self.code != 0
    }

    /// What it says to people, if it says something.
    pub(crate) fn plain(&self) -> Option<&str> {
        self.message.as_deref().filter(|_| !self.json)
    }

    /// The exit code.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// Tells the user in one line.
    pub(crate) fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            let line = match self.json {
                true => in_json(&message, self.code),
                false => format!("ssntp: {}", one_line(&message)),
            };
            // Nobody can be told that nobody can be told.
            let _ = writeln!(io::stderr(), "{line}");
        }
        ExitCode::from(self.code)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or_default())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        use BadRequest as Bad;
        match &error {
            // The authority is what it is; the rest was asked for wrongly.
            Error::Request(Bad::AuthorityExpires { .. } | Bad::AuthorityName | Bad::Key(_)) => {
                Self::new(error)
            }
            Error::Request(_) => Self::usage(error),
            _ => Self::new(error),
        }
    }
}

#[cfg(feature = "full")]
fn in_json(message: &str, code: u8) -> String {
    let error = serde_json::json!({"error": message, "exit_code": code});
    crate::output::printable_json(&error.to_string())
}

/// Nothing in this build prints JSON.
#[cfg(not(feature = "full"))]
fn in_json(message: &str, _: u8) -> String {
    one_line(message)
}

/// File names and peers' texts may hold anything.
fn one_line(message: &str) -> String {
    printable(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(one_line("a\nb\u{1b}[31m \u{fc}"), "a\\nb\\u{1b}[31m \u{fc}");
    }
}
