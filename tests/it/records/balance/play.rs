//! Plays clients of several gateways whose use is recorded, with faults at random moments.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::books::{Books, Call, Finding, METERS, SHORT, Seen, UNITS};
use super::lines::{CheckResult, Checked, Lines, Told, checked, of_files, thousandths};
use super::site::{Fault, Site, StoreKind, wall};
use crate::support::slots::EndOfLoad;
use crate::support::{CommandOutput, Upstream, eventually};

/// The limit of a period of the meter `short`, in thousandths. A threshold is half of it.
const SHORT_LIMIT: u64 = 24_000;
/// What a response costs that names nothing, in thousandths.
const DEFAULT_COST: u64 = 3_000;

const USERS: u64 = 3;
const CLIENTS: u64 = 6;

#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub store: StoreKind,
    /// In this order.
    pub faults: Vec<Fault>,
}

pub struct Run {
    pub setup: Setup,
    pub books: Books,
    /// When the faults happened, in microseconds of the machine's clock.
    pub faults: Vec<(Fault, [u64; 2])>,
    pub lines: Lines,
    pub check: CommandOutput,
    /// What `tollgate bucket show` says is spent, by meter and subject, without the meter of short periods.
    pub spent: BTreeMap<(String, String), u64>,
    pub logs: String,
}

/// Returns gateway.yaml without its store. A site whose limit is small refuses on many of its calls.
fn config(setup: &Setup) -> String {
    let units = if setup.seed.is_multiple_of(2) { 600 } else { 100_000 };
    let every = 1 + setup.seed / 2 % 2;
    format!(
        "
llm: {{refund_on: [5xx]}}
rules:
  - name: all
    match: {{path: /all}}
    limit_keys: [header:x-user]
    limits:
      calls: {{algorithm: fixed_window, limit: 100000, window: 366d, meter: calls}}
      units: {{algorithm: fixed_window, limit: {units}, window: 366d, cost_source: header:x-cost, min_cost: 0.001, meter: units}}
      work: {{algorithm: fixed_window, limit: 100000, window: 366d, cost_source: response_header:x-work, reserve: 10, default_cost: 3, meter: work}}
  - {{name: short, match: {{path: /short}}, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {{limit: 24, window: 2700ms}}, meter: short}}
records: {{to: disk/records.jsonl, every: {every}s, meters: [calls, units, work, short], subject: [header:x-user], thresholds: [50%, 100%]}}
"
    )
}

/// Starts an upstream that answers as the request wants, and calls what it has done `x-work`.
fn upstream() -> Upstream {
    Upstream::answering(|request, stream| {
        let field = |name: &str| request.field(name).unwrap_or_default().to_owned();
        std::thread::sleep(Duration::from_millis(field("x-wait").parse().unwrap_or_default()));
        let status = if field("x-fails") == "yes" { "500 Failed" } else { "200 OK" };
        let work = request.field("x-works").map(|work| format!("X-Work: {work}\r\n")).unwrap_or_default();
        let _ = write!(stream, "HTTP/1.1 {status}\r\n{work}Content-Length: 2\r\n\r\nok");
    })
}

/// Plays a run to its end. `flaw` is a deliberate mistake of all gateways.
pub fn play(setup: &Setup, flaw: Option<&str>) -> (Run, Site) {
    let upstream = upstream();
    let mut site = Site::start(setup.store, &upstream, &config(setup), flaw);
    let mut random = fastrand::Rng::with_seed(setup.seed ^ 0x7265_636f);
    let addresses: Vec<SocketAddr> = site.members.iter().map(|member| member.gateway.http).collect();
    let clients = Clients { seed: setup.seed, addresses, ..Clients::default() };
    let mut books = Books::default();
    let mut faults = Vec::new();
    std::thread::scope(|scope| {
        let _end = EndOfLoad(Arc::clone(&clients.done));
        for client in 0..CLIENTS {
            let clients = &clients;
            scope.spawn(move || clients.run(client));
        }
        eventually("some calls are granted", || clients.granted.load(Ordering::Relaxed) > 30);
        for fault in &setup.faults {
            std::thread::sleep(Duration::from_millis(random.u64(300..1500)));
            let member = random.usize(..site.members.len());
            let begun = wall();
            books.losses.extend(site.happen(*fault, member, random.u64(200..1500)));
            faults.push((*fault, [begun, wall()]));
        }
        std::thread::sleep(Duration::from_millis(random.u64(300..1500)));
    });
    books.calls = clients.calls.into_inner().unwrap();
    site.end();
    let logs = site.members.iter().map(|member| format!("--- {}\n{}", member.gateway.http, member.gateway.errors()));
    let logs = logs.collect();
    let run = Run::of(setup.clone(), books, faults, &site, logs);
    (run, site)
}

impl Run {
    /// Reads what the records and the store say.
    pub fn of(setup: Setup, books: Books, faults: Vec<(Fault, [u64; 2])>, site: &Site, logs: String) -> Run {
        let files = site.files();
        let (lines, check) = (Lines::of(&of_files(&files)), site.check(&files));
        let spent = books.accounts().into_keys().filter(|(meter, _)| *meter != SHORT).map(|(meter, user)| {
            let shown = site.command(&["bucket", "show", "--json", METERS[meter], &format!("header:x-user={user}")]);
            let spent = &shown.json()["buckets"][0]["spent"];
            // A bucket of which the store knows nothing has spent nothing.
            let spent = if spent.is_null() { 0 } else { thousandths(spent) };
            ((METERS[meter].to_owned(), user), spent)
        });
        let spent = spent.collect();
        Run { setup, books, faults, lines, check, spent, logs }
    }

    /// Compares everything with everything. Returns what is wrong, with where.
    pub fn findings(&self) -> Vec<(Finding, String)> {
        let mut findings = Vec::new();
        for ((meter, user), account) in self.books.accounts() {
            let name = METERS[meter];
            let recorded = self.lines.of_subject(name, &user).quantity;
            let Some(spent) = self.spent.get(&(name.to_owned(), user.clone())) else { continue };
            let wrong = account.findings(recorded, *spent).into_iter();
            findings.extend(
                wrong.map(|what| (what, format!("{name} {user}: {recorded} recorded, {spent} spent, {account:?}"))),
            );
        }
        findings.extend(self.wrong_counts());
        findings.extend(self.wrong_periods());
        findings.extend(self.wrong_thresholds());
        findings.extend(self.wrong_check());
        findings
    }

    /// Compares the requests that the lines count with the calls, if nothing was lost.
    fn wrong_counts(&self) -> Vec<(Finding, String)> {
        let accounts = self.books.accounts().into_keys().filter(|_| self.books.is_exact());
        let wrong = accounts.filter_map(|(meter, user)| {
            let (charged, refused) = self.books.counts(meter, &user);
            let sum = self.lines.of_subject(METERS[meter], &user);
            // Of the limits of one rule, only that of units is reached.
            let is_wrong = !(charged.least..=charged.most).contains(&sum.requests)
                || meter == SHORT && sum.refused != refused
                || meter == UNITS && sum.refused != refused;
            is_wrong
                .then(|| (Finding::WrongCount, format!("{} {user}: {sum:?}, {charged:?}, {refused}", METERS[meter])))
        });
        wrong.collect()
    }

    /// Compares the periods of the short limit with the calls in them.
    fn wrong_periods(&self) -> Vec<(Finding, String)> {
        let mut findings = Vec::new();
        for ((meter, user, period), sum) in &self.lines.sums {
            if meter != METERS[SHORT] {
                continue;
            }
            let (bounds, is_refused) = self.books.period(user, *period);
            let quantity = sum.quantity;
            let what = [
                (quantity > bounds.most, Finding::RecordedTooMuch),
                (quantity < bounds.least, Finding::RecordedTooLittle),
                (self.books.is_exact() && quantity > SHORT_LIMIT, Finding::BeyondLimit),
                (self.books.is_exact() && is_refused && quantity != SHORT_LIMIT, Finding::PeriodNotFull),
            ];
            let place =
                || format!("short {user}: {quantity} recorded in {period:?}, {bounds:?}, refused: {is_refused}");
            findings.extend(what.into_iter().filter(|(is_found, _)| *is_found).map(|(_, what)| (what, place())));
        }
        findings
    }

    /// Looks for thresholds that were reported twice, and for periods that have passed one that was not reported.
    fn wrong_thresholds(&self) -> Vec<(Finding, String)> {
        if !self.books.is_exact() {
            return Vec::new();
        }
        let twice = self.lines.told.iter().filter(|(_, times)| **times > 1);
        let mut findings: Vec<_> = twice.map(|(told, _)| (Finding::ThresholdTwice, format!("{told:?}"))).collect();
        // Until a gateway knows all others, it tells nothing, and after an upgrade or a start it does not know them yet.
        let is_quiet = |period: &[u64; 2]| {
            let begin = period[0].saturating_sub(5_000_000);
            self.faults.iter().all(|(_, [from, to])| *to < begin || *from > period[1])
        };
        let is_first =
            |period: &[u64; 2]| self.books.calls.first().is_none_or(|call| call.time[0] + 5_000_000 > period[0]);
        for ((meter, user, period), sum) in &self.lines.sums {
            for amount in [SHORT_LIMIT / 2, SHORT_LIMIT] {
                let told = Told { meter: meter.clone(), subject: user.clone(), period: *period, amount };
                let must = meter == METERS[SHORT] && sum.quantity >= amount && is_quiet(period) && !is_first(period);
                if must && !self.lines.told.contains_key(&told) {
                    findings.push((Finding::ThresholdMissing, format!("{told:?}")));
                }
            }
        }
        findings
    }

    /// Returns the calls whose ends no fault explains, each with its answer.
    pub fn unexplained(&self) -> Vec<(&Call, &str)> {
        let interruptions = self.faults.iter().filter(|(fault, _)| fault.interrupts()).map(|(_, time)| *time);
        let unexplained = self.books.unexplained(&interruptions.collect::<Vec<_>>());
        unexplained.into_iter().map(|call| (call, &*call.answer)).collect()
    }

    /// Compares the output of `tollgate records check` with what the lines and the buckets say.
    fn wrong_check(&self) -> Vec<(Finding, String)> {
        let entries = checked(&self.check.out);
        let mut wrong: Vec<String> = entries.iter().filter_map(|entry| self.wrong_entry(entry)).collect();
        let told = self.lines.told.keys().map(|told| told.key()).filter(|key| !self.lines.sums.contains_key(key));
        let sums = self.lines.sums.len() + told.collect::<BTreeSet<_>>().len();
        if entries.len() != sums {
            wrong.push(format!("{} of {sums} sums are checked", entries.len()));
        }
        let of = |is: fn(&CheckResult) -> bool| entries.iter().any(|entry| is(&entry.result));
        let is_more = of(|result| matches!(result, CheckResult::More { .. }));
        let is_less = of(|result| matches!(result, CheckResult::Less { .. }));
        let says = |part: &str| self.check.out.lines().any(|line| line.starts_with(part));
        let is_untold = says("a threshold without a line: ");
        let found = (self.check.code, says("more spent than recorded: "), says("less spent than recorded: "));
        let expected = (Some(i32::from(is_more || is_less || is_untold)), is_more, is_less);
        if found != expected {
            wrong.push(format!("{found:?} in place of {expected:?}"));
        }
        if self.books.is_exact() && is_untold {
            wrong.push("a threshold without a line".to_owned());
        }
        wrong.into_iter().map(|what| (Finding::WrongCheck, what)).collect()
    }

    fn wrong_entry(&self, entry: &Checked) -> Option<String> {
        let Checked { meter, subject, period, sum, result } = entry;
        let own = self.lines.sums.get(&(meter.clone(), subject.clone(), *period)).copied().unwrap_or_default();
        let spent = self.spent.get(&(meter.clone(), subject.clone()));
        let is_right = match (result, spent) {
            (CheckResult::NotCompared(why), None) => why.contains("period"),
            (CheckResult::NotCompared(_), Some(_)) => false,
            // The present period of the short limit.
            (CheckResult::Equal(shown), None) => *shown == sum.quantity,
            (_, None) => !self.books.is_exact(),
            (CheckResult::Equal(shown), Some(spent)) => shown == spent && *spent == sum.quantity,
            (CheckResult::More { spent: shown, by }, Some(spent)) => shown == spent && sum.quantity + by == *spent,
            (CheckResult::Less { spent: shown, by }, Some(spent)) => shown == spent && spent + by == sum.quantity,
        };
        (own != *sum || !is_right).then(|| format!("{entry:?}, {own:?}, {spent:?}"))
    }

    /// Returns how much more and how much less the buckets have than the records, in thousandths.
    pub fn differences(&self) -> [u64; 2] {
        let of = |((meter, user), spent): (&(String, String), &u64)| {
            let recorded = self.lines.of_subject(meter, user).quantity;
            [spent.saturating_sub(recorded), recorded.saturating_sub(*spent)]
        };
        self.spent.iter().map(of).fold([0, 0], |[more, less], [m, l]| [more + m, less + l])
    }

    /// Returns what was recorded, in thousandths.
    pub fn recorded(&self) -> u64 {
        self.lines.sums.values().map(|sum| sum.quantity).sum()
    }
}

#[derive(Default)]
struct Clients {
    seed: u64,
    addresses: Vec<SocketAddr>,
    done: Arc<AtomicBool>,
    granted: AtomicU64,
    calls: Mutex<Vec<Call>>,
}

impl Clients {
    /// Makes calls one after the other.
    fn run(&self, client: u64) {
        let mut random = fastrand::Rng::with_seed(self.seed << 8 | client);
        while !self.done.load(Ordering::Relaxed) {
            let call = self.call(&mut random);
            self.granted.fetch_add(u64::from(call.seen == Seen::Granted), Ordering::Relaxed);
            let pause = if call.seen == Seen::Granted { random.u64(0..12) } else { random.u64(5..40) };
            self.calls.lock().unwrap().push(call);
            std::thread::sleep(Duration::from_millis(pause));
        }
    }

    fn call(&self, random: &mut fastrand::Rng) -> Call {
        let user = format!("u{}-{}", self.seed, random.u64(..USERS));
        let gateway = random.usize(..self.addresses.len());
        let is_short = random.u8(..3) == 0;
        let (path, mut fields, costs) = if is_short {
            ("/short", String::new(), [0, 0, 0, 1_000])
        } else {
            let unit = [500, 1_000, 1_000, 2_000, 3_250, 7_000][random.usize(..6)];
            let work = [None, Some(0), Some(1_000), Some(2_500), Some(12_000)][random.usize(..5)];
            let fails = random.u8(..4) == 0;
            let decimal = |amount: u64| format!("{}.{:03}", amount / 1000, amount % 1000);
            let works = work.map(|work| format!("X-Works: {}\r\n", decimal(work))).unwrap_or_default();
            let fields = format!("X-Cost: {}\r\n{works}{}", decimal(unit), if fails { "X-Fails: yes\r\n" } else { "" });
            ("/all", fields, [1_000, unit, work.unwrap_or(if fails { 0 } else { DEFAULT_COST }), 0])
        };
        if random.u8(..8) == 0 {
            fields += &format!("X-Wait: {}\r\n", random.u64(5..300));
        }
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n{fields}Connection: close\r\n\r\n");
        let sent = wall();
        let (seen, answer) = ask(self.addresses[gateway], &head);
        let answer = if seen == Seen::Unknown { answer } else { String::new() };
        Call { user, gateway, costs, time: [sent, wall()], seen, answer }
    }
}

/// Sends a request on a connection of its own. Returns the answer too, or the error in its place.
fn ask(gateway: SocketAddr, head: &str) -> (Seen, String) {
    let Ok(mut stream) = TcpStream::connect(gateway) else { return (Seen::Nothing, String::new()) };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    let asked = stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_end(&mut answer));
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if let Err(error) = asked {
        return (Seen::Unknown, format!("{error}, after {answer:?}"));
    }
    let seen = match answer.split(' ').nth(1) {
        // The upstream answers with 500, and the gateway never.
        Some("200" | "500") => Seen::Granted,
        Some("429") => Seen::Refused,
        _ => Seen::Unknown,
    };
    (seen, answer)
}
