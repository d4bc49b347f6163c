//! The subcommands. Each file has `Args`, what the command line says, and
//! `run`, which does it. A build with the feature `cli-agent` alone has
//! `agent` only.
//!
//! | file | subcommand |
//! |---|---|
//! | `agent` | run the agent of a node |
//! | `cert` | make, show and check certificates |
//! | `completions` | for shells; `manual`: pages for packages |
//! | `config` | check and show the settings of daemons |
//! | `context` | name servers and how to reach them |
//! | `ctl/` | command a cluster, and show it |
//! | `decode` | name the fields of frames |
//! | `demo` | everything at once |
//! | `listen` | print what arrives |
//! | `operands` | every kind of frame |
//! | `opflex/` | policy over OpFlex |
//! | `scheduler` | the server of a cluster |
//! | `send` | send frames |
//! | `server` | filter and route; `dev`: with throw-away certificates |
//! | `session/` | a session for programs in any language |

pub(crate) mod agent;
#[cfg(feature = "full")]
pub(crate) mod cert;
#[cfg(feature = "full")]
pub(crate) mod cnci;
#[cfg(feature = "full")]
pub(crate) mod completions;
#[cfg(feature = "full")]
pub(crate) mod config;
#[cfg(feature = "full")]
pub(crate) mod context;
#[cfg(feature = "full")]
pub(crate) mod ctl;
#[cfg(feature = "full")]
pub(crate) mod decode;
#[cfg(feature = "full")]
pub(crate) mod demo;
#[cfg(feature = "full")]
mod dev;
#[cfg(feature = "full")]
pub(crate) mod listen;
#[cfg(feature = "full")]
pub(crate) mod operands;
#[cfg(feature = "full")]
pub(crate) mod opflex;
#[cfg(feature = "full")]
pub(crate) mod scheduler;
#[cfg(feature = "full")]
pub(crate) mod send;
#[cfg(feature = "full")]
pub(crate) mod server;
#[cfg(feature = "full")]
pub(crate) mod session;
