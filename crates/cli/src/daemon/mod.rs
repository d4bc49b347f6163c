//! The main loop of daemons, and what those share that are servers.
//!
//! | file | holds |
//! |---|---|
//! | `server` | flags and texts of the daemons that are servers |

pub(crate) mod server;

pub(crate) use ssntp_daemon::daemon::*;
