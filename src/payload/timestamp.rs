//! Points in time as TraceReport writes them: RFC 3339 in UTC with up to nine
//! digits of a second, empty where unset.

const NANOS: u64 = 1_000_000_000;
const DAY: u64 = 24 * 60 * 60;

/// Writes nanoseconds since the Unix epoch, without zeros at the end of the
/// fraction; 0 is unset and gives empty text.
///
/// ```
/// use ssntp::payload::timestamp;
///
/// assert_eq!(timestamp::format(1_500_000_000_250_000_000), "2017-07-14T02:40:00.25Z");
/// assert_eq!(timestamp::format(0), "");
/// ```
pub fn format(nanos: u64) -> String {
    if nanos == 0 {
        return String::new();
    }
    let (seconds, fraction) = (nanos / NANOS, nanos % NANOS);
    let (year, month, day) = civil(seconds / DAY);
    let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if fraction != 0 {
        let digits = format!("{fraction:09}");
        text.push('.');
        text.push_str(digits.trim_end_matches('0'));
    }
    text.push('Z');
    text
}

/// Reads an RFC 3339 timestamp, with any offset, as nanoseconds since the Unix
/// epoch; empty text is 0, unset. Digits past the nanosecond are dropped.
/// `None` when it is no timestamp, or outside 1970 to 2554.
///
/// ```
/// use ssntp::payload::timestamp;
///
/// assert_eq!(timestamp::parse("2017-07-14T04:40:00+02:00"), Some(1_500_000_000_000_000_000));
/// assert_eq!(timestamp::parse(""), Some(0));
/// assert_eq!(timestamp::parse("yesterday"), None);
/// ```
pub fn parse(text: &str) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let mut reader = Reader(text.as_bytes());
    let year = reader.number(4)?;
    reader.one_of(b"-")?;
    let month = reader.number(2)?;
    reader.one_of(b"-")?;
    let day = reader.number(2)?;
    reader.one_of(b"Tt ")?;
    let hour = reader.number(2)?;
    reader.one_of(b":")?;
    let minute = reader.number(2)?;
    reader.one_of(b":")?;
    let second = reader.number(2)?;
    let fraction = reader.fraction()?;
    let offset = reader.offset()?;
    let in_month = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    // 60: a leap second counts as the second after it, as in Unix time.
    if !reader.0.is_empty() || !in_month || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let of_day = i64::try_from(hour * 3600 + minute * 60 + second).ok()?;
    let days = i64::try_from(days_since_epoch(year, month, day)?).ok()?;
    let seconds = u64::try_from(days * i64::try_from(DAY).ok()? + of_day - offset).ok()?;
    seconds.checked_mul(NANOS)?.checked_add(fraction)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self, digits: usize) -> Option<u64> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        number.iter().try_fold(0, |sum, digit| match digit {
            b'0'..=b'9' => Some(sum * 10 + u64::from(digit - b'0')),
            _ => None,
        })
    }

    fn one_of(&mut self, allowed: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        allowed.contains(first).then_some(*first)
    }

    /// Nanoseconds; 0 where there is no fraction.
    fn fraction(&mut self) -> Option<u64> {
        if self.0.first() != Some(&b'.') {
            return Some(0);
        }
        self.0 = &self.0[1..];
        let digits = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, rest) = self.0.split_at(digits);
        self.0 = rest;
        let padded = number.iter().chain(std::iter::repeat(&b'0')).take(9);
        let nanos = padded.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        (digits > 0).then_some(nanos)
    }

    /// Seconds east of UTC.
    fn offset(&mut self) -> Option<i64> {
        let sign = match self.one_of(b"Zz+-")? {
            b'+' => 1,
            b'-' => -1,
            _ => return Some(0),
        };
        let hours = self.number(2)?;
        self.one_of(b":")?;
        let minutes = self.number(2)?;
        if hours > 23 || minutes > 59 {
            return None;
        }
        Some(sign * i64::try_from(hours * 3600 + minutes * 60).ok()?)
    }
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

const fn days_in_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

/// Year, month and day of a day since the epoch. A count over the years is
/// enough: there are fewer than 600.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    while days >= days_in_year(year) {
        days -= days_in_year(year);
        year += 1;
    }
    let mut month = 1;
    while days >= days_in_month(year, month) {
        days -= days_in_month(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=2600).contains(&year) {
        return None;
    }
    let years: u64 = (1970..year).map(days_in_year).sum();
    let months: u64 = (1..month).map(|month| days_in_month(year, month)).sum();
    Some(years + months + day - 1)
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
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2017-01-01T00:00:00Z"));
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
