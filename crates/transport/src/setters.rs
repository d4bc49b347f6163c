//! Setters of options, for configurations with many of them.

/// Chained setters that only replace a field. Each is one documented line: `field: type of the
/// argument`; `field in part: type` for a field of the field `part`; `field as Some: type` for an optional field.
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident $(in $part:ident)? $(as $wrap:ident)?: $from:ty;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $from) -> Self {
            self.$($part.)?$field = $($wrap)?($field.into());
            self
        }
    )*};
}
