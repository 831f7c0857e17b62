//! Gateways of three regions under load, while words between regions and home are late, lost or doubled, regions are flushed, gateways
//! are killed, and home stands still, closes its connections or crashes: no window over all regions has more than the limit.

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use super::{REGIONS, on_redis};
use crate::exactness::history::windows::{Grant, excess};
use crate::exactness::history::{GrantLifetime, Limit, Numbers, Sample};
use crate::redis::faults_under_load::{Ending, Load, pause};
use crate::support::{Answers, Client, Gateway, Postgres, Redis, Relay, Upstream, print_measured, short_or_long};

/// The number of gateways of each region.
const GATEWAYS: usize = 2;

/// The most that a request waits between its faults, in milliseconds.
const PAUSE: u64 = 400;

/// Each is used up by the load, and is soon full again.
fn samples() -> [Sample; 2] {
    [
        Sample { name: "token_bucket", limit: Limit::TokenBucket(Numbers::per_second(60, 120)) },
        Sample { name: "fixed_window", limit: Limit::window(200, GrantLifetime::Epoch(4_000_000)) },
    ]
}

enum Home {
    Redis(Redis),
    /// With `durability: sync`, so a crash loses nothing.
    Postgres(Postgres),
}

impl Home {
    fn port(&self) -> u16 {
        match self {
            Home::Redis(redis) => redis.port,
            Home::Postgres(postgres) => postgres.port,
        }
    }

    /// Returns the settings of this home behind a relay.
    fn section(&self, port: u16) -> String {
        match self {
            Home::Redis(_) => on_redis(port),
            Home::Postgres(_) => {
                format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{port}/limits\", durability: sync}}")
            }
        }
    }

    /// Closes all connections of the gateways.
    fn close_connections(&self) {
        match self {
            Home::Redis(redis) => redis.command(&["CLIENT", "KILL", "TYPE", "normal"]),
            Home::Postgres(postgres) => {
                postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tollgate'");
            }
        }
    }

    fn stand_still(&self, milliseconds: u64) {
        let signal = |name| match self {
            Home::Redis(redis) => redis.signal(name),
            Home::Postgres(postgres) => postgres.signal(name),
        };
        signal("STOP");
        pause(milliseconds);
        signal("CONT");
    }

    /// Crashes home, if it loses nothing then.
    fn crash(&mut self) {
        if let Home::Postgres(postgres) = self {
            postgres.stop("immediate");
            pause(200);
            postgres.launch();
        }
    }
}

struct Region {
    redis: Redis,
    relay: Relay,
    gateways: Vec<Gateway>,
}

impl Region {
    /// Starts a region. Its words are doubled, if this is to be. `mistake` is one of the keeper of leases.
    fn start(name: &str, home: &Home, is_doubled: bool, mistake: Option<&str>, upstream: &Upstream) -> Region {
        let redis = Redis::start();
        let relay = match is_doubled {
            true => Relay::doubling(home.port(), Duration::from_millis(70)),
            false => Relay::start(home.port()),
        };
        let rules: String = samples()
            .iter()
            .map(|sample| format!("  - {{scope: global, lease: {{share: 15%}}, {}\n", &sample.rule()[1..]))
            .collect();
        let text = format!(
            "store:\n  redis: {{url: \"redis://127.0.0.1:{}\", timeout: 1s}}\n  gateways: {GATEWAYS}\n  home:\n    {}\n    \
             timeout: 400ms\n    return_after: 1s\n    region: {name}\n    regions: [{}]\ncheck: {{allow: \
             [unverified_key]}}\nrules:\n{rules}",
            redis.port,
            home.section(relay.port),
            REGIONS.join(", ")
        );
        let start = |_| {
            let gateway = Gateway::before(upstream).with(&text).short_heartbeats();
            let gateway =
                mistake.iter().fold(gateway, |gateway, name| gateway.variable("TOLLGATE_TEST_FLAW", name)).start();
            gateway.expect_logged("home is up");
            gateway
        };
        let gateways = (0..GATEWAYS).map(start).collect();
        Region { redis, relay, gateways }
    }

    /// Ends a gateway by a signal, and starts it again.
    fn restart(&mut self, signal: &str) {
        let gateway = &mut self.gateways[fastrand::usize(0..GATEWAYS)];
        gateway.signal(signal);
        gateway.wait();
        gateway.start_again();
    }
}

/// Sends requests for one limit, and connects again when a connection breaks. Returns what was granted for sure.
fn ask_on(address: SocketAddr, sample: usize, load: &Load) -> Vec<Grant> {
    let head = format!("GET / HTTP/1.1\r\nHost: test\r\n{}: one\r\n\r\n", load.samples[sample].header());
    let (mut client, mut granted) = (None, Vec::new());
    while !load.is_over() {
        let Some(connected) = client.take().or_else(|| TcpStream::connect(address).ok().map(Client::over)) else {
            pause(10);
            continue;
        };
        let mut connected: Client = connected;
        let sent = load.micros();
        let response = connected.write_bytes(head.as_bytes()).and_then(|()| connected.response("GET"));
        let Ok(response) = response else { continue };
        assert!(matches!(response.status, 200 | 429 | 503), "{response:?}");
        if response.status == 200 {
            granted.push(Grant { sent, answered: load.micros() + 1, cost: 1000 });
        }
        client = Some(connected);
        pause(4);
    }
    granted
}

/// Plays random faults. Returns for each limit how much was granted beyond it, in thousandths, and how much was granted.
fn play(mut home: Home, faults: usize, mistake: Option<&str>) -> [(i128, usize); 2] {
    let (upstream, samples) = (Upstream::start(), samples());
    if let Home::Postgres(postgres) = &home {
        postgres.sql(&stores::postgres::schema::statements(&stores::postgres::Settings {
            durability: stores::postgres::Durability::Sync,
            ..postgres.settings()
        }));
    }
    let regions = REGIONS.iter().zip([true, false, false]);
    let regions = regions.map(|(name, is_doubled)| {
        let is_doubled = is_doubled && matches!(home, Home::Redis(_));
        Mutex::new(Region::start(name, &home, is_doubled, mistake, &upstream))
    });
    let regions: Vec<Mutex<Region>> = regions.collect();
    let load = Load::start(&samples);
    let clock = load.clock_of_this_machine();
    let mut counts = [0; 9];
    let granted: Vec<(usize, Vec<Grant>)> = std::thread::scope(|scope| {
        let ending = Ending(&load);
        let mut asking = Vec::new();
        for region in &regions {
            for gateway in &region.lock().unwrap().gateways {
                let (address, load) = (gateway.http, &load);
                asking.extend(
                    (0..samples.len()).map(|sample| scope.spawn(move || (sample, ask_on(address, sample, load)))),
                );
            }
        }
        pause(500);
        for _ in 0..faults {
            let fault = fastrand::usize(0..counts.len());
            counts[fault] += 1;
            let region = &regions[fastrand::usize(0..regions.len())];
            let mut region = region.lock().unwrap();
            match fault {
                0 => region.relay.set(Answers::Late(Duration::from_millis(fastrand::u64(0..300)))),
                1 => region.relay.set(Answers::Lost),
                2 => region.relay.set(Answers::Cut),
                3 => region.relay.set(Answers::Pass),
                4 => region.redis.command(&["FLUSHALL"]),
                5 => region.restart(["KILL", "TERM"][fastrand::usize(0..2)]),
                6 => home.close_connections(),
                7 => home.stand_still(fastrand::u64(50..700)),
                _ => home.crash(),
            }
            drop(region);
            pause(fastrand::u64(0..PAUSE));
            // A region that is cut off comes back after a while.
            if fastrand::u8(0..3) == 0 {
                regions.iter().for_each(|region| region.lock().unwrap().relay.set(Answers::Pass));
            }
        }
        drop(ending);
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    print_measured(&format!("regions, mistake {mistake:?}: faults by kind {counts:?}"));
    [0, 1].map(|index| {
        let Sample { name, limit } = &samples[index];
        let grants: Vec<Grant> =
            granted.iter().filter(|(sample, _)| *sample == index).flat_map(|(_, granted)| granted).copied().collect();
        let excess = excess(limit, &grants, &clock);
        print_measured(&format!("regions: {name}, {} granted, excess {}", grants.len(), limit.tokens(excess)));
        (excess, grants.len())
    })
}

#[test]
fn no_window_over_all_regions_has_more_than_the_limit_whatever_fails() {
    let faults = short_or_long(24, 600);
    let played = std::thread::scope(|scope| {
        let redis = scope.spawn(|| play(Home::Redis(Redis::start()), faults, None));
        let postgres = scope.spawn(|| play(Home::Postgres(Postgres::start()), faults, None));
        [redis.join().unwrap(), postgres.join().unwrap()]
    });
    for (excess, granted) in played.into_iter().flatten() {
        assert!(excess <= 0, "{played:?}");
        assert!(granted > 200, "{played:?}");
    }
}

#[cfg(feature = "test-hooks")]
#[test]
fn the_judge_of_windows_finds_a_purse_that_is_credited_before_home_debits() {
    let played = play(Home::Redis(Redis::start()), 8, Some("credit_first"));
    assert!(played.iter().any(|(excess, _)| *excess > 0), "{played:?}");
}
