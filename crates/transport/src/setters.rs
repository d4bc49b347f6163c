//! Setters of options, for configurations with many of them.

/// Chained setters that do nothing but replace a field: one documented line
/// each, `field: what it is set from`.
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
