//! The failure of a subcommand: its message, and the exit code of the program.

use std::any::Any;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use ssntp::pki::{self, BadRequest};
use ssntp_transport::{printable, printable_json};

/// The reason why a subcommand ends before its work is done.
///
/// It does not implement [`Error`], because `?` converts every type that implements [`Error`] into
/// a `Failure`, and the compiler would not allow that conversion for `Failure` itself.
#[derive(Debug)]
pub enum Failure {
    /// The command could not do its work: exit code 1.
    Failed(String),
    /// Every server refuses this client with its certificate or token: exit code 1.
    NotAdmitted(String),
    /// The command line, or a file that it names, is wrong: exit code 2.
    Usage(String),
    /// An exit code without a message: a signal ended the program, or the message was printed
    /// already.
    Silent(u8),
}

impl Failure {
    /// The command could not do its work: exit code 1.
    pub fn new(message: impl Display) -> Self {
        Self::Failed(message.to_string())
    }

    /// The command line, or a file that it names, is wrong: exit code 2.
    pub fn usage(message: impl Display) -> Self {
        Self::Usage(message.to_string())
    }

    /// The command could not use this file: `FILE: why`, exit code 1.
    pub fn at(path: &Path, why: impl Display) -> Self {
        Self::new(format_args!("{}: {why}", path.display()))
    }

    /// The system refused to start a thread.
    pub fn thread(error: io::Error) -> Self {
        Self::new(format!("cannot start a thread: {error}"))
    }

    /// This failure with further advice in its message. An exit code without a message stays as it is.
    pub fn with_advice(self, advice: impl Display) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(format!("{message}; {advice}")),
            other => other,
        }
    }

    /// An error of the standard output. If its reader has closed it, as `head -1` does, the exit
    /// code is 0.
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Silent(0);
        }
        Self::new(format!("standard output: {error}"))
    }

    /// True unless the exit code is 0.
    pub fn is_failure(&self) -> bool {
        self.code() != 0
    }

    /// The message for people, if there is one.
    pub fn plain(&self) -> Option<&str> {
        match self {
            Self::Failed(message) | Self::NotAdmitted(message) | Self::Usage(message) => Some(message),
            Self::Silent(_) => None,
        }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::NotAdmitted(_) => 1,
            Self::Usage(_) => 2,
            Self::Silent(code) => *code,
        }
    }

    /// The line that the user reads, if there is one; in JSON for a program: `{"error": "…", "exit_code": 1}`.
    fn line(&self, json: bool) -> Option<String> {
        let message = self.plain()?;
        let error = serde_json::json!({"error": message, "exit_code": self.code()});
        Some(if json {
            printable_json(&error.to_string())
        } else {
            format!("ssntp: {}", printable(message))
        })
    }

    /// Prints one line for the user, or for a program that reads JSON.
    pub fn report(self, json: bool) -> ExitCode {
        if let Some(line) = self.line(json) {
            // If the standard error is closed, there is no other way to inform the user.
            let _ = writeln!(io::stderr(), "{line}");
        }
        self.code().into()
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.plain().unwrap_or_default())
    }
}

impl<E: Error + Any> From<E> for Failure {
    fn from(error: E) -> Self {
        use BadRequest as Bad;
        match (&error as &dyn Any).downcast_ref::<pki::Error>() {
            // These three faults are in the files of the authority. Every other fault of a request
            // for a certificate is on the command line.
            Some(pki::Error::Request(Bad::AuthorityExpires { .. } | Bad::AuthorityName | Bad::Key(_))) => {
                Self::new(error)
            }
            Some(pki::Error::Request(_)) => Self::usage(error),
            _ => Self::new(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_one_line() {
        let failure = Failure::new("a\nb\u{1b}[31m \u{fc}");
        assert_eq!(
            failure.line(false).as_deref(),
            Some("ssntp: a\\nb\\u{1b}[31m \u{fc}")
        );
        let line = failure.line(true).unwrap();
        assert!(
            line.starts_with(r#"{"error":"a\nb"#) && line.ends_with(r#""exit_code":1}"#),
            "{line}"
        );
        assert_eq!(Failure::Silent(3).line(false), None);
    }
}
