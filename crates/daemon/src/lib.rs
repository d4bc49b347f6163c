//! What the programs of SSNTP share: the flags of connections, credentials, settings, the log, and the main
//! loop of a daemon.
//!
//! | file | holds |
//! |---|---|
//! | `choice` | flags with a value from a short list of words |
//! | `connection` | the flags of subcommands that connect to a server |
//! | `context` | the user's contexts, with values for flags that are not given |
//! | `credentials` | the files of certificates, and their lifetimes |
//! | `daemon` | the main loop of daemons: signals, reloads, notices |
//! | `failure` | the failure of a subcommand: message and exit code |
//! | `input` | files and the standard input |
//! | `logging` | the log on the standard error, which never blocks a thread that logs |
//! | `output` | the standard output, which may be closed at any time |
//! | `seconds` | times on the command line |
//! | `service_manager` | notices to systemd about a daemon |
//! | `settings` | the settings of daemons: flags, environment and file |
//! | `signals` | SIGINT and SIGTERM |
//! | `watched` | files that are read again when they change |

mod choice;
pub mod connection;
pub mod context;
mod credentials;
mod daemon;
mod failure;
pub mod input;
pub mod logging;
mod output;
mod seconds;
pub mod service_manager;
pub mod settings;
mod signals;
pub mod watched;

pub use self::choice::{Choices, Given, one_of};
pub use self::connection::{
    Complaint, Connection, Reached, Renewal, ServerArgs, TokenArgs, Watch, absolute, closed, ended, remedy,
    to_dial, unanswered,
};
pub use self::context::{Context, Contexts, address};
pub use self::credentials::{CredentialFiles, CrlArgs, FilesRead, Lifetime};
pub use self::daemon::{Arm, Arms, Daemon, Next, Pages, Presence, StartPages, on, server_stopped};
pub use self::failure::Failure;
pub use self::logging::{LogArgs, Logging};
pub use self::output::{
    Output, even_unread, for_shell, help_width, note, print_apart, print_either, print_json,
    print_json_lines, print_line, print_text, printable, printable_json, reader_is_gone, send_notes_to,
    terminal_size,
};
pub use self::seconds::{Seconds, age};
pub use self::settings::{
    ConfigFile, Flags, Invalid, Origin, Problem, Problems, Read, Setting, Settings, choices, is_repeated,
    is_switch, with_environment,
};
pub use self::signals::Stop;
pub use self::watched::Watched;
