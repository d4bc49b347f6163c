//! The YAML payloads.
