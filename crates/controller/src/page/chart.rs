//! Charts of figures over time, and waterfalls of the hops of a frame, as SVG. Each has a sentence
//! for screen readers, and a table with the same numbers follows it.

use std::fmt::Write;

use super::html::{Html, html};

/// The size of a chart in its own units. The style sheet stretches it.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 100.0;

/// Shows a figure over time, or a note if none is known. `points` are milliseconds since 1970 and the
/// figure, the oldest first. `most` is the top of the scale; `None` for the largest figure. `words`
/// formats a figure.
#[expect(clippy::cast_precision_loss, reason = "a chart has a few hundred steps")]
pub(crate) fn series(
    out: &mut Html,
    title: &str,
    points: &[(i64, i64)],
    most: Option<i64>,
    words: fn(i64) -> String,
) {
    html!(out; "<figure class='chart'>");
    let mut known = points.iter().filter(|(_, figure)| *figure >= 0).peekable();
    let (Some((from, _)), Some((to, last))) = (known.peek(), points.iter().rfind(|p| p.1 >= 0)) else {
        return html!(out; "<figcaption><b>" {title} "</b> no figures yet</figcaption></figure>");
    };
    let (from, span) = (*from, (to - from).max(1) as f64);
    let figures = known.clone().map(|(_, figure)| *figure);
    let (least, largest) = (figures.clone().min().unwrap_or(0), figures.max().unwrap_or(0));
    let top = most.unwrap_or(largest).max(largest).max(1) as f64;
    let mut line = String::new();
    for (at, figure) in known {
        let x = (at - from) as f64 / span * WIDTH;
        let y = HEIGHT - *figure as f64 / top * HEIGHT;
        // Writing to a String cannot fail.
        let _ = write!(line, "{x:.1},{y:.1} ");
    }
    let (now, least, largest) = (words(*last), words(least), words(largest));
    html!(out; "<svg role='img' aria-label='" {title} ": " {now} " now, between " {least} " and " {largest}
        "' viewBox='0 -2 600 104' preserveAspectRatio='none'>"
        "<path class='grid' d='M0 0H600M0 50H600M0 100H600'/>"
        "<polygon class='area' points='0,100 " {line} "600,100'/>"
        "<polyline class='line' points='" {line} "'/></svg>"
        "<figcaption><b>" {title} "</b> <span>" {now} "</span> <small>"
        {least} " – " {largest} "</small></figcaption></figure>");
}

/// A bar of a waterfall. `from` and `to` are nanoseconds since the beginning.
pub(crate) struct Bar {
    pub(crate) title: String,
    pub(crate) class: &'static str,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) words: String,
}

/// Shows bars below each other, on one scale of time.
#[expect(clippy::cast_precision_loss, reason = "a picture has a few hundred steps")]
pub(crate) fn waterfall(out: &mut Html, sentence: &str, bars: &[Bar]) {
    let end = bars.iter().map(|bar| bar.to).max().unwrap_or(0).max(1) as f64;
    html!(out; "<div class='waterfall' role='img' aria-label='" {sentence} "'>");
    for bar in bars {
        let x = bar.from as f64 / end * WIDTH;
        // A bar without length has a least width, so that it is visible.
        let width = (bar.to.saturating_sub(bar.from) as f64 / end * WIDTH).max(2.0);
        html!(out; "<p class='" {bar.class} "'><b>" {bar.title} "</b><svg viewBox='0 0 600 16' preserveAspectRatio='none' "
            "aria-hidden='true'><path class='grid' d='M0 8H600'/><rect x='" {format!("{:.1}", x.min(WIDTH - 2.0))}
            "' y='2' height='12' width='" {format!("{width:.1}")} "'/></svg><span>" {bar.words} "</span></p>");
    }
    html!(out; "</div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_sentence_with_its_numbers() {
        let mut out = Html::default();
        let points = [(0, 2), (1000, -1), (2000, 8), (3000, 4)];
        series(&mut out, "Load", &points, None, |n| n.to_string());
        let picture = out.into_string();
        assert!(
            picture.contains("aria-label='Load: 4 now, between 2 and 8'"),
            "{picture}"
        );
        // An unknown figure has no point.
        assert!(
            picture.contains("points='0.0,75.0 400.0,0.0 600.0,50.0 '"),
            "{picture}"
        );
        let mut out = Html::default();
        series(&mut out, "Load", &[(5, -1)], None, |n| n.to_string());
        assert!(out.into_string().contains("no figures yet"));
    }

    #[test]
    fn a_bar_without_length_is_visible() {
        let bar = |from, to| Bar {
            title: "a hop".into(),
            class: "",
            from,
            to,
            words: String::new(),
        };
        let mut out = Html::default();
        waterfall(
            &mut out,
            "Two hops",
            &[bar(0, 0), bar(500, 1000), bar(1000, 1000)],
        );
        let picture = out.into_string();
        assert!(
            picture.contains("x='0.0' y='2' height='12' width='2.0'"),
            "{picture}"
        );
        assert!(
            picture.contains("x='300.0' y='2' height='12' width='300.0'"),
            "{picture}"
        );
        assert!(
            picture.contains("x='598.0' y='2' height='12' width='2.0'"),
            "{picture}"
        );
    }
}
