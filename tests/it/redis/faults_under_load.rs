//! Real gateways under load while their Redis is killed, stopped or emptied, or sends wrong replies. Every request is
//! answered, and no window grants more than was lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::exactness::history::windows::{Grant, excess};
use crate::exactness::history::{ClockOffset, Limit, Numbers, Sample, micros, rules, short_samples};
use crate::support::{
    Answers, Gateway, Lateness, Redis, Relay, Upstream, eventually, free_port, now, print_measured, short_or_long,
};

/// The rate of every client's token bucket.
pub const RATE: u64 = 40;
pub const BURST: u64 = 40;

/// The number of clients that always ask each gateway for a token. Each other limit has one client.
pub const CALLERS: usize = 3;

/// One request, as its client recorded it, in microseconds since the start. The beginning is rounded down, the end up.
#[derive(Clone)]
pub struct RequestRecord {
    /// The index of the limit that was charged.
    pub sample: usize,
    pub sent: i64,
    pub answered: i64,
    pub status: u16,
    pub request_id: String,
}

fn text(port: u16, on_store_failure: &str, samples: &[Sample]) -> String {
    let rules = rules(samples);
    format!("store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}}}\non_store_failure: {on_store_failure}\n{rules}")
}

/// The state that all clients of a test share.
pub struct Load {
    pub samples: Vec<Sample>,
    start: Instant,
    /// The number of refusals for each limit, by gateways that do not allow everything.
    refused: Vec<AtomicU64>,
    over: AtomicBool,
}

impl Load {
    pub fn start(samples: &[Sample]) -> Load {
        let refused = samples.iter().map(|_| AtomicU64::new(0)).collect();
        Load { samples: samples.to_vec(), start: now(), refused, over: AtomicBool::new(false) }
    }

    /// Returns the microseconds since the start.
    pub fn micros(&self) -> i64 {
        micros(self.start)
    }

    /// Returns the offset of the clock of the Redis server on this port.
    pub fn clock(&self, port: u16) -> ClockOffset {
        ClockOffset::measure(port, self.start)
    }

    /// Returns the offset for a server on this machine that does not report its time.
    pub fn clock_of_this_machine(&self) -> ClockOffset {
        ClockOffset::of_this_machine(self.start)
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits until all buckets are empty.
    #[track_caller]
    pub fn await_refusals(&self) {
        let counts = || self.refused.iter().map(|refused| refused.load(Ordering::Relaxed));
        let before: Vec<u64> = counts().collect();
        eventually("all is spent", || counts().zip(&before).all(|(now, before)| now > before + 20));
    }

    /// Returns the indexes of the limits in `samples`, each as often as it has clients.
    pub fn callers(&self) -> Vec<usize> {
        let of = |index: usize| if index == 0 { CALLERS } else { 1 };
        (0..self.samples.len()).flat_map(|index| std::iter::repeat_n(index, of(index))).collect()
    }
}

/// Ends the load when it is dropped, also after a panic, because the threads of the callers are waited for.
pub struct Ending<'l>(pub &'l Load);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

const DENIED: &str = "denied";
const ALLOWED: &str = "allowed";

/// Sends requests for one of the limits, each soon after the last answer. Panics if a connection fails.
pub fn ask_on(gateway: &Gateway, sample: usize, user: &str, load: &Load) -> Vec<RequestRecord> {
    let (mut client, mut seen) = (gateway.client(), Vec::new());
    let header = load.samples[sample].header();
    while !load.is_over() {
        let sent = load.micros();
        let response = client.get("/", &[(&header, user)]);
        let (answered, status) = (load.micros() + 1, response.status);
        load.refused[sample].fetch_add(u64::from(user != ALLOWED && status == 429), Ordering::Relaxed);
        let request_id = response.field("X-Request-Id").unwrap();
        seen.push(RequestRecord { sample, sent, answered, status, request_id });
        std::thread::sleep(Duration::from_millis(4));
    }
    seen
}

/// The amount that a fault may add to what every window allows.
#[derive(Clone, Copy)]
pub enum Bound {
    Nothing,
    /// Something was lost: more than nothing, and at most `times` times the capacity of a limit.
    Lost {
        times: u64,
    },
    /// At most `times` times the capacity was lost, perhaps nothing.
    LostAtMost {
        times: u64,
    },
    /// Something was lost: more than nothing, and at most this many tokens of a token bucket.
    Tokens(u64),
}

impl Bound {
    /// Returns the smallest and the largest excess, in units of the limit.
    fn of(self, limit: &Limit) -> (i128, i128) {
        match self {
            Bound::Nothing => (i128::MIN, 0),
            Bound::Lost { times } => (1, i128::from(times) * limit.capacity()),
            Bound::LostAtMost { times } => (i128::MIN, i128::from(times) * limit.capacity()),
            Bound::Tokens(tokens) => (1, limit.price(tokens * 1000)),
        }
    }
}

/// Runs [`survive_with`] with a limit of each algorithm.
#[track_caller]
pub fn survive(fault: &str, bound: Bound, redis: &mut Redis, port: u16, happens: impl FnOnce(&mut Redis)) {
    survive_with(&short_samples(), fault, bound, redis, port, happens);
}

/// Runs three gateways under load while `happens` runs, and for half a second before and after. Two of them refuse while
/// Redis is down, and one lets requests pass. The buckets are empty when `happens` begins. `port` is the port of Redis for
/// the gateways. The third gateway gets requests only for the first limit.
#[track_caller]
fn survive_with(
    samples: &[Sample],
    fault: &str,
    bound: Bound,
    redis: &mut Redis,
    port: u16,
    happens: impl FnOnce(&mut Redis),
) {
    let upstream = Upstream::start();
    let denying = [(); 2].map(|()| Gateway::start(&upstream, &text(port, "deny", samples)));
    let allowing = Gateway::start(&upstream, &text(port, "allow", samples));
    for gateway in denying.iter().chain([&allowing]) {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let (load, late) = (Load::start(samples), Lateness::measure());
    let clock = load.clock(redis.port);
    let (denied, allowed) = std::thread::scope(|scope| {
        let load = &load;
        let ending = Ending(load);
        let callers = |gateway| load.callers().into_iter().map(move |sample| (gateway, sample));
        let denied: Vec<_> = denying
            .iter()
            .flat_map(callers)
            .map(|(gateway, sample)| scope.spawn(move || ask_on(gateway, sample, DENIED, load)))
            .collect();
        let allowed = [(); CALLERS].map(|()| scope.spawn(|| ask_on(&allowing, 0, ALLOWED, load)));
        pause(500);
        load.await_refusals();
        happens(redis);
        pause(500);
        drop(ending);
        let denied: Vec<RequestRecord> = denied.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        (denied, allowed.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<RequestRecord>>())
    });
    assert!(denied.iter().all(|seen| matches!(seen.status, 200 | 429 | 503)), "{fault}");
    assert!(allowed.iter().all(|seen| matches!(seen.status, 200 | 429)), "{fault}");
    let longest = denied.iter().chain(&allowed).map(|seen| seen.answered - seen.sent).max().unwrap();
    let most = 3_000_000 + i64::try_from(late.of_a_request().as_micros()).unwrap();
    assert!(longest < most, "{fault}: {longest} µs");
    for (index, Sample { name, limit }) in samples.iter().enumerate() {
        let asked: Vec<&RequestRecord> = denied.iter().filter(|seen| seen.sample == index).collect();
        let grants = grants(&denied, index);
        let excess = excess(&limit.of_responses(), &grants, &clock);
        let (least, most) = bound.of(limit);
        print_measured(&format!(
            "fault: {fault}, {name}, {} requests, {} granted, {} unavailable, excess {}, bound {}",
            asked.len(),
            grants.len(),
            asked.iter().filter(|seen| seen.status == 503).count(),
            limit.tokens(excess),
            limit.tokens(most),
        ));
        assert!(excess >= least && excess <= most, "{fault}, {name}: {}", limit.tokens(excess));
    }
    // And all is well again by itself.
    let again = |gateway: &Gateway, sample: &Sample, user: &str| {
        let mut client = gateway.client();
        eventually(fault, || {
            let response = client.get("/", &[(&sample.header(), user)]);
            response.status == 200 && response.field("RateLimit").is_some()
        });
    };
    for sample in samples {
        denying.iter().for_each(|gateway| again(gateway, sample, DENIED));
    }
    again(&allowing, &samples[0], ALLOWED);
}

/// Returns the grants of one of the limits.
pub fn grants(seen: &[RequestRecord], sample: usize) -> Vec<Grant> {
    let granted = seen.iter().filter(|seen| seen.sample == sample && seen.status == 200);
    granted.map(|seen| Grant { sent: seen.sent, answered: seen.answered, cost: 1000 }).collect()
}

pub fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Kills Redis this many times, and starts it again a moment later each time.
pub fn kill_and_restart(redis: &mut Redis, times: u64) {
    for _ in 0..times {
        redis.kill();
        pause(100);
        redis.restart();
        pause(700);
    }
}

#[test]
fn limits_hold_while_redis_is_killed_and_restarted() {
    let mut redis = Redis::start();
    let port = redis.port;
    let times = short_or_long(20, 200);
    let fault = format!("kill -9 and restart, {times} times");
    survive(&fault, Bound::Lost { times }, &mut redis, port, |redis| kill_and_restart(redis, times));
}

#[test]
fn limits_hold_while_redis_is_stopped_for_three_seconds() {
    let mut redis = Redis::start();
    let port = redis.port;
    survive("SIGSTOP for 3 s", Bound::Nothing, &mut redis, port, |redis| {
        redis.signal("STOP");
        pause(3_000);
        redis.signal("CONT");
        pause(1_000);
    });
}

#[test]
fn limits_hold_while_redis_is_paused_repeatedly() {
    let mut redis = Redis::start();
    let port = redis.port;
    let times = short_or_long(5, 100);
    survive(&format!("CLIENT PAUSE 200 ms, {times} times"), Bound::Nothing, &mut redis, port, |redis| {
        for _ in 0..times {
            redis.command::<()>(&["CLIENT", "PAUSE", "200", "ALL"]);
            pause(500);
        }
    });
}

#[test]
fn limits_hold_while_scripts_are_flushed_repeatedly() {
    let mut redis = Redis::start();
    let port = redis.port;
    let times = short_or_long(50, 2000);
    survive(&format!("SCRIPT FLUSH, {times} times"), Bound::Nothing, &mut redis, port, |redis| {
        for _ in 0..times {
            redis.command::<()>(&["SCRIPT", "FLUSH"]);
            pause(30);
        }
    });
}

#[test]
fn limits_hold_while_redis_is_flushed_repeatedly() {
    let mut redis = Redis::start();
    let port = redis.port;
    let times = short_or_long(5, 100);
    let fault = format!("FLUSHALL, {times} times");
    survive(&fault, Bound::Lost { times }, &mut redis, port, |redis| {
        for _ in 0..times {
            redis.command::<()>(&["FLUSHALL"]);
            pause(400);
        }
    });
}

#[test]
fn limits_hold_while_redis_is_demoted_and_promoted() {
    let mut redis = Redis::start();
    let port = redis.port;
    let times = short_or_long(2, 20);
    survive(&format!("REPLICAOF and back, {times} times"), Bound::Nothing, &mut redis, port, |redis| {
        for _ in 0..times {
            redis.command::<()>(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
            pause(700);
            redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
            pause(1_200);
        }
    });
}

#[test]
fn limits_hold_while_redis_is_out_of_memory() {
    let mut redis = Redis::start();
    let port = redis.port;
    survive("maxmemory reached, noeviction", Bound::Nothing, &mut redis, port, |redis| {
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        pause(1_000);
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        pause(1_500);
    });
}

#[test]
fn limits_hold_while_a_relay_loses_replies() {
    let mut redis = Redis::start();
    let relay = Relay::start(redis.port);
    let times = short_or_long(2, 20);
    survive(&format!("answers lost on the way, {times} times"), Bound::Nothing, &mut redis, relay.port, |_| {
        for _ in 0..times {
            relay.set(Answers::Lost);
            pause(300);
            relay.set(Answers::Pass);
            pause(2_000);
        }
    });
}

#[test]
fn limits_hold_while_a_relay_delays_replies() {
    let mut redis = Redis::start();
    let relay = Relay::start(redis.port);
    survive("answers 100 ms late, for 1 s", Bound::Nothing, &mut redis, relay.port, |_| {
        relay.set(Answers::Late(Duration::from_millis(100)));
        pause(1_000);
        relay.set(Answers::Pass);
        pause(1_500);
    });
}

/// Changes buckets as a step of the server's clock would: moves their times and their expiry by this many milliseconds, in
/// one step.
fn shift(redis: &Redis, milliseconds: i64) {
    let script = "
for _, key in ipairs(redis.call('KEYS', '*')) do
  local value = redis.call('GET', key)
  if #value == 24 then
    local spent, unit, since = struct.unpack('<I8I8I8', value)
    local left = redis.call('PTTL', key) + ARGV[1]
    if left > 0 then
      redis.call('SET', key, struct.pack('<I8I8I8', spent, unit, since + ARGV[1] * 1000), 'PX', left)
    else
      redis.call('DEL', key)
    end
  end
end";
    redis.command::<()>(&["EVAL", script, "0", &milliseconds.to_string()]);
}

#[track_caller]
fn a_step_of_the_clock(fault: &str, milliseconds: i64, bound: Bound) {
    let mut redis = Redis::start();
    let port = redis.port;
    // Of the others, and of clocks that really show another time: `exactness::clock_steps`.
    let token_bucket = Sample { name: "token_bucket", limit: Numbers::per_second(RATE, BURST).into() };
    survive_with(&[token_bucket], fault, bound, &mut redis, port, |redis| {
        shift(redis, -milliseconds);
        pause(1_000);
    });
}

#[test]
fn limits_hold_while_the_clock_of_redis_steps_ahead() {
    a_step_of_the_clock("clock ahead by 500 ms", 500, Bound::Tokens(RATE / 2));
    a_step_of_the_clock("clock ahead by 1 h", 3_600_000, Bound::Tokens(BURST));
}

#[test]
fn limits_hold_while_the_clock_of_redis_steps_back() {
    a_step_of_the_clock("clock back by 2 s", -2_000, Bound::Nothing);
    // Further than a bucket's moment is believed: the bucket is empty, and refills from then on.
    a_step_of_the_clock("clock back by 2 h", -7_200_000, Bound::Nothing);
}
