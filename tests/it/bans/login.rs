//! The recipe for logins, with two gateways on one Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Gateway, Postgres, Redis, Response, Upstream, eventually};

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
