//! Running code of the application, which may panic.

/// Runs code of the application. Returns the message of a panic.
pub(super) fn guard(call: impl FnOnce()) -> Option<String> {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).err()?;
    let why = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Some(why.unwrap_or("no message").to_owned())
}
