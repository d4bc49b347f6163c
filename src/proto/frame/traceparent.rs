//! W3C Trace Context in the label of a trace
//! (docs/protocol.md, "Trace context").

use std::fmt;
use std::str::FromStr;

use ssntp_transport::cut;

/// The prefix of the word in a label that is a [`TraceParent`].
const WORD: &str = "traceparent=";
/// The length of `00-<32>-<16>-<2>`, with which later versions begin as well.
const LEN: usize = 55;
/// The only flag that every version has.
const SAMPLED: u128 = 1;

/// The span of a distributed trace that a frame belongs to, as the header
/// `traceparent` of W3C Trace Context names it.
///
/// ```
/// use ssntp::proto::{Trace, TraceParent};
///
/// let parent: TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse()?;
/// assert!(parent.is_sampled());
/// assert_eq!(parent.trace_id(), "0af7651916cd43dd8448eb211c80319c");
///
/// let trace = Trace::within("job-17", &parent);
/// assert_eq!(trace.traceparent(), Some(parent));
/// # Ok::<(), ssntp::proto::BadTraceParent>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace: u128,
    /// 64 bits.
    span: u128,
    /// 8 bits.
    flags: u128,
}

impl TraceParent {
    /// The trace, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The span that the frame was sent in, in 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span)
    }

    /// True if the program that began the trace records it.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The value of the first valid word `traceparent=…` of a label. Blanks separate words.
    pub fn in_label(label: &str) -> Option<Self> {
        let words = label.split_whitespace();
        words
            .filter_map(|word| word.strip_prefix(WORD))
            .find_map(|value| value.parse().ok())
    }

    /// `label` and then this trace, in at most `most` bytes. `label` is cut if it is too long.
    pub(super) fn label(&self, label: &str, most: usize) -> String {
        let own = format!("{WORD}{self}");
        // The text before the trace is cut, because a trace that lacks digits is not valid.
        match cut(label, most.saturating_sub(own.len() + 1)) {
            "" => own,
            label => format!("{label} {own}"),
        }
    }
}

/// Always in version 00, also if it was read in a later version.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = BadTraceParent;

    fn from_str(text: &str) -> Result<Self, BadTraceParent> {
        let begin = text.get(..LEN).ok_or(BadTraceParent::Length)?;
        let rest = &text[LEN..];
        let mut fields = begin.split('-');
        let mut field = |digits| number(fields.next().unwrap_or_default(), digits);
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        match version {
            0xff => return Err(BadTraceParent::Version),
            0 if !rest.is_empty() => return Err(BadTraceParent::Length),
            _ if !(rest.is_empty() || rest.starts_with('-')) => return Err(BadTraceParent::Length),
            _ => {}
        }
        if trace == 0 || span == 0 {
            return Err(BadTraceParent::Zero);
        }
        // The other flags of a later version are not known.
        let flags = if version == 0 { flags } else { flags & SAMPLED };
        Ok(Self { trace, span, flags })
    }
}

/// Reads exactly `digits` lower case hexadecimal digits, at most 32.
fn number(text: &str, digits: usize) -> Result<u128, BadTraceParent> {
    if text.len() != digits {
        return Err(BadTraceParent::Field);
    }
    // `from_str_radix` also accepts a sign and upper case.
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let number = u128::from_str_radix(text, 16).ok();
    number
        .filter(|_| text.bytes().all(is_digit))
        .ok_or(BadTraceParent::Digit)
}

/// The reason why a text is not a [`TraceParent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadTraceParent {
    /// The text does not have the 55 characters of `00-<32>-<16>-<2>`. Only a later version may have
    /// more, after another dash.
    #[error("the length is not that of the form 00-<32 digits>-<16 digits>-<2 digits>")]
    Length,
    /// The fields do not have 2, 32, 16 and 2 characters.
    #[error("the fields do not have 2, 32, 16 and 2 digits")]
    Field,
    /// A field has a character other than the digits 0 to 9 and a to f.
    #[error("a field has a character other than 0 to 9 and a to f")]
    Digit,
    /// The version is ff, which W3C Trace Context does not allow.
    #[error("the version ff is not allowed")]
    Version,
    /// The trace or the span is all zeros, which W3C Trace Context does not allow.
    #[error("the trace and the span must not be all zeros")]
    Zero,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Trace;
    use proptest::prelude::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn texts_that_the_recommendation_calls_invalid_are_refused() {
        use BadTraceParent as Bad;
        for (text, reason) in [
            ("", Bad::Length),
            (&GOOD[..54], Bad::Length),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
                Bad::Length,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
                Bad::Length,
            ),
            (
                "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
                Bad::Length,
            ),
            (
                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                Bad::Version,
            ),
            (
                "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                Bad::Digit,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
                Bad::Digit,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
                Bad::Field,
            ),
            (
                "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
                Bad::Field,
            ),
            (
                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                Bad::Zero,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                Bad::Zero,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{fc}",
                Bad::Length,
            ),
        ] {
            assert_eq!(text.parse::<TraceParent>(), Err(reason), "{text}");
        }
    }

    #[test]
    fn a_later_version_may_be_longer_and_is_passed_on_as_version_00() {
        let good: TraceParent = GOOD.parse().unwrap();
        for text in [
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff-what-comes",
        ] {
            let parent: TraceParent = text.parse().unwrap();
            assert_eq!(parent, good);
            assert_eq!(parent.to_string(), GOOD);
        }
    }

    #[test]
    fn a_trace_context_is_found_among_other_words_of_a_label() {
        let good: TraceParent = GOOD.parse().unwrap();
        for label in [
            format!("traceparent={GOOD}"),
            format!("job-17 traceparent={GOOD} more"),
            format!("traceparent=bad traceparent={GOOD}"),
        ] {
            assert_eq!(TraceParent::in_label(&label), Some(good), "{label}");
        }
        for label in [
            "",
            "job-17",
            GOOD,
            &format!("a-traceparent={GOOD}"),
            &format!("traceparent={GOOD}x"),
        ] {
            assert_eq!(TraceParent::in_label(label), None, "{label}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_trace_context_is_read_back_equal(trace in 1u128.., span in 1u64.., flags: u8) {
            let parent = TraceParent { trace, span: span.into(), flags: flags.into() };
            prop_assert_eq!(parent.to_string().parse(), Ok(parent));
        }

        #[test]
        fn a_label_of_any_length_keeps_the_trace_context_whole(label in ".{0,300}", trace in 1u128.., span in 1u64..) {
            // The first trace context of a label counts.
            prop_assume!(TraceParent::in_label(&label).is_none());
            let parent = TraceParent { trace, span: span.into(), flags: 1 };
            let made = Trace::within(&label, &parent);
            prop_assert!(made.label().len() <= 255);
            prop_assert_eq!(made.traceparent(), Some(parent));
        }

        #[test]
        fn reading_any_text_does_not_panic(text in "[0-9a-f\\-]{50,60}|.{0,80}") {
            let _ = text.parse::<TraceParent>();
            let _ = TraceParent::in_label(&text);
        }
    }
}
