//! Points in time in TraceReport and STATS: RFC 3339 in UTC with up to nine digits of a second, or an
//! empty text if unset.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Writes nanoseconds since the Unix epoch, without zeros at the end of the fraction. 0 is unset and
/// gives an empty text.
///
/// ```
/// use ssntp_payload::timestamp;
///
/// assert_eq!(timestamp::format(1_500_000_000_250_000_000), "2017-07-14T02:40:00.25Z");
/// assert_eq!(timestamp::format(0), "");
/// ```
pub fn format(nanos: u64) -> String {
    if nanos == 0 {
        return String::new();
    }
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos.into()).ok();
    // 64 bits of nanoseconds end in the year 2554, which both functions support.
    time.and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// Reads an RFC 3339 timestamp, with any offset, as nanoseconds since the Unix epoch. An empty text
/// is 0, unset. Digits after the nanosecond are dropped, and a leap second is read as the last
/// nanosecond before it. `None` if the text is not a timestamp, or is outside 1970 to 2554.
///
/// ```
/// use ssntp_payload::timestamp;
///
/// assert_eq!(timestamp::parse("2017-07-14T04:40:00+02:00"), Some(1_500_000_000_000_000_000));
/// assert_eq!(timestamp::parse(""), Some(0));
/// assert_eq!(timestamp::parse("yesterday"), None);
/// ```
pub fn parse(text: &str) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    // RFC 3339 allows other characters between date and time; only these are accepted.
    let is_separated = text.get(10..11).is_some_and(|between| "Tt ".contains(between));
    let time = OffsetDateTime::parse(text, &Rfc3339)
        .ok()
        .filter(|_| is_separated)?;
    u64::try_from(time.unix_timestamp_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_print_and_parse() {
        for (nanos, text) in [
            (1, "1970-01-01T00:00:00.000000001Z"),
            (1_500_000_000_000_000_005, "2017-07-14T02:40:00.000000005Z"),
            (951_782_400_000_000_000, "2000-02-29T00:00:00Z"),
            (4_107_542_399_999_999_999, "2100-02-28T23:59:59.999999999Z"),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            assert_eq!(format(nanos), text);
            assert_eq!(parse(text), Some(nanos), "{text}");
        }
        assert_eq!(
            parse("2016-12-31T23:59:60Z"),
            parse("2016-12-31T23:59:59.999999999Z")
        );
        assert_eq!(parse("1970-01-01t01:00:00.1234567891+01:00"), Some(123_456_789));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "1969-12-31T23:59:59Z",
            "2555-01-01T00:00:00Z",
            "2017-02-29T00:00:00Z",
            "2017-13-01T00:00:00Z",
            "2017-00-01T00:00:00Z",
            "2017-01-00T00:00:00Z",
            "2017-01-01T24:00:00Z",
            "2017-01-01T00:60:00Z",
            "2017-01-01T00:00:60Z",
            "2017-01-01_00:00:00Z",
            "2017-01-01T00:00:00",
            "2017-01-01T00:00:00.Z",
            "2017-01-01T00:00:00Zx",
            "2017-01-01T00:00:00+24:00",
            "2017-01-01",
            "+017-01-01T00:00:00Z",
            "é017-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
