//! Setters of options, for configurations with many of them.

/// Chained setters that only replace a field. Each is one documented line: `field: type of the
/// argument`.
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $from:ty;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $from) -> Self {
            self.$field = $field.into();
            self
        }
    )*};
}
