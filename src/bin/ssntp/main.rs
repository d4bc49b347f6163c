//! The `ssntp` program.

fn main() {}
