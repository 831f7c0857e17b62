//! The recipe for logins, with two gateways on one Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Gateway, Postgres, Redis, Response, Upstream, eventually, tollgate};

/// The three rules of docs/recipes.md, with short bans.
const RULES: &str = "
client_ip: {trusted_proxies: [127.0.0.1]}
policies:
  - name: guesses-of-a-pair
    rules:
      - name: pair
        limit_keys: [\"lower(request_form:user)\", ip:address]
        algorithm: fixed_window
        algorithm_config: {limit: 5, window: 366d, count_on: [401]}
        ban: {for: [15m, 1h, 24h], forget_after: 7d}
  - name: guesses-from-an-address
    rules:
      - name: address
        limit_keys: [ip:address]
        algorithm: fixed_window
        algorithm_config: {limit: 20, window: 366d, count_on: [401]}
  - name: guesses-at-a-user
    rules:
      - name: user
        limit_keys: [\"lower(request_form:user)\"]
        algorithm: fixed_window
        algorithm_config: {limit: 12, window: 366d, count_on: [401]}
";

/// Starts an application: the password of each user is `right`. It answers 401 to any other, and counts both.
fn application() -> (Upstream, &'static [AtomicUsize; 2]) {
    let counts: &'static [AtomicUsize; 2] = Box::leak(Box::default());
    let upstream = Upstream::answering(move |request, stream| {
        let is_right = request.body.ends_with(b"password=right");
        counts[usize::from(is_right)].fetch_add(1, Ordering::Relaxed);
        let status = if is_right { "200 OK" } else { "401 Unauthorized" };
        // The gateway may have left.
        let _ =
            std::io::Write::write_all(stream, format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").as_bytes());
    });
    (upstream, counts)
}

fn log_in(gateway: &Gateway, address: &str, user: &str, password: &str) -> Response {
    let fields = [("X-Forwarded-For", address), ("Content-Type", "application/x-www-form-urlencoded")];
    gateway.client().send("POST", "/login", &fields, &format!("user={user}&password={password}"))
}

fn by(response: &Response) -> String {
    let Some(reason) = response.field("x-tollgate-reason") else { return response.status.to_string() };
    format!("{} {reason} {}", response.status, response.json()["violated-policies"])
}

fn play(store: &str) {
    let (upstream, counts) = application();
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{store}{RULES}")));
    let gateways = &gateways;
    let [one, two] = gateways;
    // Right passwords cost nothing.
    for _ in 0..10 {
        assert_eq!(log_in(one, "203.0.113.7", "ann", "right").status, 200);
    }
    // 64 guesses at once on both gateways: not more than five reach the application.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let guess = |index: usize| move || log_in(&gateways[index % 2], "203.0.113.7", "bob", "wrong").status;
        let threads: Vec<_> = (0..64).map(|index| scope.spawn(guess(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut found: HashMap<u16, usize> = HashMap::new();
    statuses.iter().for_each(|status| *found.entry(*status).or_default() += 1);
    let wrong = counts[0].load(Ordering::Relaxed);
    assert!(wrong <= 5 && found[&401] == wrong && found[&429] == 64 - wrong, "{wrong}: {found:?}");
    // Who goes on is banned, on both gateways.
    eventually("the rest is spent", || by(&log_in(one, "203.0.113.7", "bob", "wrong")).contains("banned"));
    assert_eq!(counts[0].load(Ordering::Relaxed), 5);
    let banned = log_in(two, "203.0.113.7", "Bob", "right");
    assert_eq!(by(&banned), "429 banned [\"pair\"]");
    let wait = banned.number("retry-after");
    assert!((880..=900).contains(&wait), "{wait}");
    // Others at this address, and Bob at another one, log in.
    assert_eq!(log_in(two, "203.0.113.7", "ann", "right").status, 200);
    assert_eq!(log_in(two, "203.0.113.8", "bob", "right").status, 200);
    let bans = |gateway: &Gateway| gateway.metric("rate_limiter_bans_total", &["rule=\"pair\"", "step=\"1\""]);
    assert!(bans(one) + bans(two) == 1.0, "{} {}", bans(one), bans(two));
}

#[test]
fn of_many_logins_at_once_only_wrong_ones_count() {
    const LOGINS: usize = 264;
    let ((upstream, counts), redis) = (application(), Redis::start());
    let store = redis.patient_store();
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{store}{RULES}")));
    let gateways = &gateways;
    let seed = fastrand::u64(..);
    let mut is_right: Vec<bool> = (0..LOGINS).map(|index| index < 200).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut is_right);
    let statuses: Vec<(bool, u16)> = std::thread::scope(|scope| {
        let log_in = |(index, is_right): (usize, &bool)| {
            let (gateway, is_right) = (&gateways[index % 2], *is_right);
            let password = if is_right { "right" } else { "wrong" };
            scope.spawn(move || (is_right, log_in(gateway, "203.0.113.7", "bob", password).status))
        };
        let threads: Vec<_> = is_right.iter().enumerate().map(log_in).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let of = |right: bool, status: u16| statuses.iter().filter(|login| **login == (right, status)).count();
    let wrong = counts[0].load(Ordering::Relaxed);
    assert!(wrong <= 5 && of(false, 401) == wrong && of(false, 429) == 64 - wrong, "seed {seed}: {wrong} {statuses:?}");
    assert_eq!((of(true, 200) + of(true, 429), counts[1].load(Ordering::Relaxed)), (200, of(true, 200)));
    // What is spent in the end is what was wrong.
    let file = gateways[0].file("gateway.yaml").display().to_string();
    let bucket = ["lower(request_form:user)=bob", "ip:address=203.0.113.7"];
    let shown = || {
        let show = [&["bucket", "show", "-c", &file, "--json", "pair"], &bucket[..]].concat();
        tollgate(&show).json()["buckets"][0].clone()
    };
    eventually("all is settled", || shown()["held"] == 0);
    assert_eq!(shown()["spent"], wrong, "{}", shown());
}

#[test]
fn guesses_are_banned_by_two_gateways_on_one_redis() {
    let redis = Redis::start();
    play(&redis.patient_store());
}

#[test]
fn guesses_are_banned_by_two_gateways_on_one_postgresql() {
    let postgres = Postgres::start();
    postgres.settings();
    play(&postgres.store_with(", timeout: 10s", "deny"));
}
