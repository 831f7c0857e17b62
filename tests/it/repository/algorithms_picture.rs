//! Draws docs/algorithms.svg: the same requests under each algorithm, decided by its own step. The picture in the
//! documentation must be equal to this one. `scripts/picture-algorithms` writes it.

use std::fmt::Write;
use std::path::Path;

use base::time::{Micros, Timestamp};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::leaky_bucket::{LeakyBucket, Settings};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, ChargeResult, State};
use ledger::cost::Cost;

const FILE: &str = "docs/algorithms.svg";
/// The duration of the picture, in milliseconds. All times here are in milliseconds.
const SPAN: u64 = 60_000;
/// The number of requests that every limit allows in a window.
const LIMIT: u64 = 10;
const WINDOW: u64 = 10_000;
/// The start of the picture, which is the beginning of a window.
const START: u64 = 1_795_272_720_000;

const WIDTH: u64 = 960;
const LEFT: u64 = 24;
const PLOT: u64 = WIDTH - 2 * LEFT;
const TOP: u64 = 64;
/// The height of one algorithm's part: title, curve and requests.
const ROW: u64 = 148;
const CURVE: u64 = 72;

/// Returns a limit of ten in ten seconds for each algorithm, with its numbers as text.
fn limits() -> Vec<(Algorithm, &'static str)> {
    let window = Micros(WINDOW * 1000);
    let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    let fixed = FixedWindow::new(LIMIT, Window::Epoch(window)).unwrap();
    let queue = Settings { rate, queue: 5, max_wait: Micros(5_000_000), delay_after: 4 };
    vec![
        (Algorithm::TokenBucket(TokenBucket::new(rate, LIMIT).unwrap()), "rps: 1, burst: 10"),
        (Algorithm::FixedWindow(fixed), "limit: 10, window: 10s"),
        (Algorithm::SlidingWindow(SlidingWindow::new(LIMIT, window, 10).unwrap()), "limit: 10, window: 10s, steps: 10"),
        (Algorithm::SlidingLog(SlidingLog::new(LIMIT, window).unwrap()), "limit: 10, window: 10s"),
        (Algorithm::LeakyBucket(LeakyBucket::new(queue).unwrap()), "rps: 1, queue: 5, max_wait: 5s, delay_after: 4"),
    ]
}

/// Returns the times of the requests: a crowd on each side of the end of a window, a steady client, and a client without
/// pauses.
fn requests() -> Vec<u64> {
    let crowd = (0..14).map(|number| 8_200 + number * 120).chain((0..14).map(|number| 10_100 + number * 120));
    let steady = (0..16).map(|number| 22_000 + number * 1_100);
    let hasty = (0..48).map(|number| 42_000 + number * 350);
    crowd.chain(steady).chain(hasty).collect()
}

/// A decided request: its arrival, and the time at which it is forwarded; `None` if it is refused.
struct DecidedRequest {
    came: u64,
    goes_on: Option<u64>,
}

fn decide(algorithm: &Algorithm) -> Vec<DecidedRequest> {
    let mut state = None::<State>;
    let one = |came: u64| {
        let now = Timestamp((START + came) * 1000);
        let goes_on = match algorithm.step(state.as_deref(), Cost::ONE, now).charge {
            ChargeResult::Fits { entry, delay, .. } => {
                state = Some(entry.state);
                Some(came + delay.0 / 1000)
            }
            ChargeResult::Short { .. } | ChargeResult::Held | ChargeResult::Never | ChargeResult::Banned { .. } => None,
        };
        DecidedRequest { came, goes_on }
    };
    requests().into_iter().map(one).collect()
}

/// Returns how many requests were forwarded in the window that ends at each time, where the number changes.
fn in_last_window(decided: &[DecidedRequest]) -> Vec<(u64, usize)> {
    let mut gone: Vec<u64> = decided.iter().filter_map(|one| one.goes_on).collect();
    gone.sort_unstable();
    let mut moments: Vec<u64> = gone.iter().flat_map(|gone| [*gone, gone + WINDOW]).filter(|at| *at <= SPAN).collect();
    moments.sort_unstable();
    moments.dedup();
    let count = |at: u64| gone.iter().filter(|gone| **gone <= at && at < **gone + WINDOW).count();
    moments.into_iter().map(|at| (at, count(at))).collect()
}

fn x(moment: u64) -> String {
    let tenths = LEFT * 10 + moment * PLOT * 10 / SPAN;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Returns the height of a number of requests above the foot of the curve. The limit is in the middle.
fn y(foot: u64, count: u64) -> u64 {
    foot - (count * CURVE / (2 * LIMIT)).min(CURVE)
}

fn style() -> String {
    // Class, light, dark.
    let colours = [
        ("paper", "#ffffff", "#0d1117"),
        ("ink", "#1f2328", "#e6edf3"),
        ("soft", "#59636e", "#9198a1"),
        ("grid", "#d8dee4", "#2d333b"),
        ("granted", "#0b62d6", "#58a6ff"),
        ("refused", "#b35900", "#f0a04b"),
    ];
    let lines = |pick: fn(&(&str, &'static str, &'static str)) -> &'static str| -> String {
        let line = |colour: &(&str, &'static str, &'static str)| {
            let (name, shade) = (colour.0, pick(colour));
            format!(".{name} {{ fill: {shade}; }} .{name}-line {{ stroke: {shade}; }}\n")
        };
        colours.iter().map(line).collect()
    };
    format!(
        "<style>\ntext {{ font: 12px system-ui, -apple-system, \"Segoe UI\", \"DejaVu Sans\", sans-serif; }}\n\
         .title {{ font-size: 15px; font-weight: 600; }} .strong {{ font-weight: 600; }}\n\
         path {{ fill: none; stroke-width: 1.5; }} .area {{ opacity: 0.15; }} .dashed {{ stroke-dasharray: 4 4; }}\n\
         {}@media (prefers-color-scheme: dark) {{\n{}}}\n</style>\n",
        lines(|colour| colour.1),
        lines(|colour| colour.2)
    )
}

fn row(svg: &mut String, top: u64, algorithm: &Algorithm, numbers: &str) -> std::fmt::Result {
    let decided = decide(algorithm);
    let curve = in_last_window(&decided);
    let most = curve.iter().map(|(_, count)| *count).max().unwrap_or_default();
    let granted = decided.iter().filter(|one| one.goes_on.is_some()).count();
    let (foot, right) = (top + 24 + CURVE, WIDTH - LEFT);
    writeln!(
        svg,
        "<text class=\"ink\" x=\"{LEFT}\" y=\"{}\"><tspan class=\"strong\">{}</tspan> {numbers}</text>\n\
         <text class=\"soft\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{granted} of {} granted, at most {most} in 10 s</text>",
        top + 12,
        algorithm.name(),
        top + 12,
        decided.len()
    )?;
    let limit = y(foot, LIMIT);
    writeln!(svg, "<path class=\"grid-line\" d=\"M{LEFT} {foot}H{right}\"/>")?;
    writeln!(svg, "<path class=\"soft-line dashed\" d=\"M{LEFT} {limit}H{right}\"/>")?;
    let mut steps = String::new();
    for (at, count) in &curve {
        write!(steps, "H{}V{}", x(*at), y(foot, u64::try_from(*count).unwrap_or_default()))?;
    }
    writeln!(svg, "<path class=\"granted area\" d=\"M{LEFT} {foot}{steps}H{right}V{foot}Z\"/>")?;
    writeln!(svg, "<path class=\"granted-line\" d=\"M{LEFT} {foot}{steps}H{right}\"/>")?;
    let (mut passed, mut refused, mut waited) = (String::new(), String::new(), String::new());
    for DecidedRequest { came, goes_on } in &decided {
        match goes_on {
            Some(goes_on) => {
                if *goes_on <= SPAN {
                    write!(passed, "M{} {}v12", x(*goes_on), foot + 8)?;
                }
                if goes_on > came {
                    write!(waited, "M{} {}H{}", x(*came), foot + 14, x(*goes_on.min(&SPAN)))?;
                }
            }
            None => write!(refused, "M{} {}v12", x(*came), foot + 24)?,
        }
    }
    writeln!(svg, "<path class=\"granted-line\" d=\"{passed}\"/>")?;
    if !waited.is_empty() {
        writeln!(svg, "<path class=\"soft-line\" d=\"{waited}\"/>")?;
    }
    writeln!(svg, "<path class=\"refused-line\" d=\"{refused}\"/>")
}

fn picture() -> Result<String, std::fmt::Error> {
    let limits = limits();
    let rows = u64::try_from(limits.len()).unwrap_or_default();
    let height = TOP + rows * ROW + 8;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"The same requests under each algorithm\">\n{}<rect class=\"paper\" width=\"{WIDTH}\" \
         height=\"{height}\"/>\n",
        style()
    );
    writeln!(
        svg,
        "<text class=\"ink title\" x=\"{LEFT}\" y=\"28\">The same requests in one minute, with ten allowed in ten seconds</text>\n\
         <text class=\"soft\" x=\"{LEFT}\" y=\"48\">curve: granted in the last ten seconds, dashed the limit; below it \
         <tspan class=\"granted\">requests that go on</tspan>, after a line if they waited, and <tspan class=\"refused\">refused \
         ones</tspan></text>"
    )?;
    for (top, (algorithm, numbers)) in (0..).map(|row| TOP + row * ROW).zip(&limits) {
        row(&mut svg, top, algorithm, numbers)?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

#[test]
fn the_picture_of_the_algorithms_shows_what_they_decide() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let drawn = picture().unwrap();
    if std::env::var_os("TOLLGATE_WRITE_PICTURE").is_some() {
        std::fs::write(&file, &drawn).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == drawn, "{FILE} is not what the algorithms decide: run scripts/picture-algorithms");
}
