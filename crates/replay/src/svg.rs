//! Draws allowed and refused requests over time, as a self-contained SVG.

use std::fmt::Write;

use super::timeline::{Stretch, Timeline};
use base::rfc3339::date_time;
use base::time::Timestamp;

/// The sizes of the drawing, in user units of SVG.
const WIDTH: u64 = 960;
const LEFT: u64 = 70;
const PANEL: u64 = 200;
const HEAD: u64 = 56;
const FOOT: u64 = 34;
/// The largest number of bars in a panel.
const BARS: u64 = 110;

/// The colours depend on whether the reader has a light or dark colour scheme.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.axis{stroke:#8c959f;stroke-width:1}\
.allowed{fill:#9ecbff}.refused{fill:#cf222e}.undecided{fill:#b8bec5}.ground{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.axis{stroke:#6e7681}.allowed{fill:#1f4e86}.refused{fill:#ff7b72}\
.undecided{fill:#484f58}.ground{fill:#0d1117}}";

/// Draws the timeline as an SVG, with one panel for each file. All panels have the same scale.
pub fn draw(timeline: &Timeline, files: &[String]) -> String {
    let stretches = timeline.stretches(BARS);
    let most = stretches.iter().map(|stretch| stretch.part.requests).max().unwrap_or(0).max(1);
    let panels = files.len() as u64;
    let height = panels * (HEAD + PANEL) + FOOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>requests allowed and refused over time</title>\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n"
    );
    for (number, name) in files.iter().enumerate() {
        panel(&mut svg, number, name, &stretches, most);
    }
    foot(&mut svg, &stretches, height);
    svg += "</svg>\n";
    svg
}

fn panel(svg: &mut String, number: usize, name: &str, stretches: &[Stretch], most: u64) {
    let ground = (number as u64 + 1) * (HEAD + PANEL);
    let top = ground - PANEL;
    let _ = writeln!(svg, "<text class=\"title\" x=\"{LEFT}\" y=\"{}\">{}</text>", top - 30, escaped(name));
    for (index, word) in (0..).zip(["refused", "undecided", "allowed"]) {
        let x = WIDTH - 300 + index * 100;
        let _ = writeln!(
            svg,
            "<rect class=\"{word}\" x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\"/>\
             <text x=\"{}\" y=\"{}\">{word}</text>",
            top - 40,
            x + 15,
            top - 30
        );
    }
    let length = stretches.first().map_or(1, |stretch| stretch.length);
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">{most} in {}</text>", top - 8, span(length));
    let count = (stretches.len() as u64).max(1);
    let edge = |index: u64| LEFT * 100 + index * (WIDTH - LEFT - 20) * 100 / count;
    for (index, stretch) in (0u64..).zip(stretches).filter(|(_, stretch)| stretch.part.requests > 0) {
        let (refused, undecided) = (stretch.part.refused_by(number), stretch.part.undecided_by(number));
        let allowed = stretch.part.requests - refused - undecided;
        let (from, to) = (edge(index), edge(index + 1));
        let mut below = 0;
        let moment = exactly(stretch.start, length);
        let _ = write!(svg, "<g><title>{moment}: {allowed} allowed, {refused} refused, {undecided} undecided</title>");
        for (class, part) in [("refused", refused), ("undecided", undecided), ("allowed", allowed)] {
            // In hundredths of a unit. The minimum makes every count above 0 visible.
            let scaled = u128::from(part) * u128::from(PANEL) * 100 / u128::from(most);
            let height = u64::try_from(scaled).unwrap_or(0).max(if part > 0 { 60 } else { 0 });
            below += height;
            if height > 0 {
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                    hundredths(from),
                    hundredths((ground * 100).saturating_sub(below)),
                    hundredths((to - from).saturating_sub(60).max(40)),
                    hundredths(height)
                );
            }
        }
        *svg += "</g>\n";
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{ground}\" x2=\"{}\" y2=\"{ground}\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{most}</text><text x=\"{}\" y=\"{ground}\" text-anchor=\"end\">0</text>",
        WIDTH - 20,
        LEFT - 8,
        top + 10,
        LEFT - 8,
    );
}

fn foot(svg: &mut String, stretches: &[Stretch], height: u64) {
    let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { return };
    let (y, length) = (height - FOOT + 20, first.length);
    let end = last.start + last.length;
    let middle = first.start + (end - first.start) / 2;
    for (x, anchor, at) in [(LEFT, "start", first.start), ((LEFT + WIDTH - 20) / 2, "middle", middle)] {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>", exactly(at, length));
    }
    let _ =
        writeln!(svg, "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{} UTC</text>", WIDTH - 20, exactly(end, length));
}

/// Formats a time, given in seconds since the Unix epoch, as in `Tue 17 Nov 09:00`.
pub fn moment(seconds: u64) -> String {
    written(seconds, "%a %-d %b %H:%M")
}

/// Formats a moment, with the seconds if `length` is below a minute.
fn exactly(seconds: u64, length: u64) -> String {
    written(seconds, if length < 60 { "%a %-d %b %H:%M:%S" } else { "%a %-d %b %H:%M" })
}

fn written(seconds: u64, format: &str) -> String {
    date_time(Timestamp(seconds.saturating_mul(1_000_000))).strftime(format).to_string()
}

fn span(seconds: u64) -> String {
    match seconds {
        3600.. if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        60.. if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            // XML cannot contain these control characters, not even as escapes.
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::result::SimulatedResult;
    use super::*;
    use base::time::Timestamp;

    /// Checks that elements are nested correctly, and that texts and values are escaped.
    #[track_caller]
    fn check(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        for part in svg.split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect(part);
            assert!(!text.contains('>'), "{text}");
            for entity in text.split('&').skip(1) {
                assert!(["lt;", "gt;", "amp;", "quot;"].iter().any(|known| entity.starts_with(known)), "{text}");
            }
            assert!(tag.matches('"').count() % 2 == 0, "{tag}");
            let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{part}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert_eq!(open, [""; 0]);
        assert!(!svg.contains("http") || svg.matches("http").count() == 1, "only the namespace is a name elsewhere");
    }

    #[test]
    fn a_picture_is_well_formed_whatever_a_file_is_called() {
        let mut timeline = Timeline::default();
        for second in 0..100_000u64 {
            let result = [SimulatedResult::Allowed, SimulatedResult::Refused, SimulatedResult::Undecided]
                [usize::try_from(second % 3).unwrap()];
            timeline
                .add(Timestamp((1_795_269_600 + second) * 1_000_000), [Some(result), Some(SimulatedResult::Allowed)]);
        }
        let names = ["</text><script>alert(\"1\")</script>&amp;\u{1b}".to_owned(), "two.yaml".to_owned()];
        for files in [&names[..1], &names[..]] {
            let svg = draw(&timeline, files);
            check(&svg);
            assert!(svg.len() < 100_000, "{} bytes", svg.len());
            assert!(svg.contains("&lt;/text&gt;&lt;script&gt;") && !svg.contains('\u{1b}'), "{svg}");
        }
        check(&draw(&Timeline::default(), &names));
    }
}
