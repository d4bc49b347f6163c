//! The commands of the program: their output, exit codes, files and signals.

mod admin;
mod agent;
mod bridge;
mod cert;
mod cnci;
mod credentials;
mod decode;
mod exchange;
mod joined;
mod linked;
mod logs;
mod machine;
mod memory;
mod metrics;
mod opflex;
mod place;
mod readme;
mod scheduler;
mod service_manager;
mod session;
mod settings;
mod shell;
mod signals;
mod token;
