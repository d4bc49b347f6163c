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

pub mod choice;
pub mod connection;
pub mod context;
pub mod credentials;
pub mod daemon;
pub mod failure;
pub mod input;
pub mod logging;
pub mod output;
pub mod seconds;
pub mod service_manager;
pub mod settings;
pub mod signals;
pub mod watched;
