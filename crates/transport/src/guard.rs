//! Running code that may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may panic, such as an application's.
///
/// # Errors
/// The message of the panic.
#[expect(
    clippy::disallowed_methods,
    reason = "the value of the panic is dropped with care here"
)]
pub fn guard<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let panic = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => return Ok(result),
        Err(panic) => panic,
    };
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let why = text.unwrap_or("no message").to_owned();
    // An application may panic with a value of its own, whose drop may panic as well. The value of that second
    // panic is leaked, because its drop may panic again.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Panics again whenever it is dropped.
    struct Again;

    impl Drop for Again {
        fn drop(&mut self) {
            panic_any(Self);
        }
    }

    #[test]
    fn a_panic_ends_here_whatever_its_value_does_when_it_is_dropped() {
        assert_eq!(guard(|| 7), Ok(7));
        assert_eq!(guard(|| panic!("a text")), Err::<(), _>("a text".to_owned()));
        assert_eq!(guard(|| panic!("text {}", 1)), Err::<(), _>("text 1".to_owned()));
        assert_eq!(guard(|| panic_any(Again)), Err::<(), _>("no message".to_owned()));
    }
}
