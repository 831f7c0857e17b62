//! The host name of a Redis server is moved to another server, as hosting providers do.

use std::time::Duration;

use super::discovery::{RULES, is_decided};
use crate::exactness::failover::{Failover, token_bucket};
use crate::exactness::history::rules;
use crate::support::{Gateway, GatewayBuilder, MovableName, Redis, Relay, Upstream, eventually, short_or_long};

const NAME: &str = "redis.tollgate.test";

/// Two servers with the same port on two addresses.
struct Servers {
    first: Redis,
    second: Redis,
    _relay: Relay,
}

impl Servers {
    fn start() -> Servers {
        Servers::of(Redis::start(), Redis::start())
    }

    /// Starts a server, and a second one as its replica.
    fn replicated() -> Servers {
        let first = Redis::start();
        let port = first.port.to_string();
        let second = Redis::start_with(&["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port]);
        eventually("a replica is in step", || second.role() == "slave connected");
        Servers::of(first, second)
    }

    fn of(first: Redis, second: Redis) -> Servers {
        let relay = Relay::start_at(("127.0.0.2", first.port), second.port);
        Servers { first, second, _relay: relay }
    }

    /// Starts a gateway with one thread, because the wrapper for host names crashes if its file changes while two threads
    /// read it.
    fn gateway(&self, upstream: &Upstream, name: &MovableName, timeout: &str) -> Gateway {
        let rules = format!("threads: 1\n{RULES}");
        self.builder(upstream, name, timeout, &rules).interval("redis_name", Duration::from_millis(100)).start()
    }

    /// Returns a gateway that does not look up the name every tenth of a second.
    fn builder(&self, upstream: &Upstream, name: &MovableName, timeout: &str, rules: &str) -> GatewayBuilder {
        let url = format!("redis://{NAME}:{}", self.first.port);
        let text = format!("store: {{redis: {{url: \"{url}\", timeout: {timeout}}}}}\non_store_failure: deny\n{rules}");
        Gateway::before(upstream)
            .with(&text)
            .variables(&name.variables().each_ref().map(|(key, value)| (*key, &**value)))
    }
}

#[test]
fn a_server_whose_name_has_moved_is_left_although_it_answers() {
    let (servers, upstream) = (Servers::start(), Upstream::start());
    let name = MovableName::new(NAME);
    let gateway = servers.gateway(&upstream, &name, "1s");
    is_decided(&gateway);
    assert_eq!((servers.first.keys().len(), servers.second.keys().len()), (1, 0));
    // A name that cannot be looked up for a while says nothing.
    name.remove();
    let connected = || servers.first.command::<String>(&["CLIENT", "LIST"]).lines().count();
    let before = connected();
    crate::support::wait_for_nothing(Duration::from_millis(300));
    assert_eq!(connected(), before);
    name.point("127.0.0.2");
    eventually("the new server decides", || {
        gateway.client().get("/", &[("X-User", "a")]);
        servers.second.keys().len() == 1
    });
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert!(gateway.metric("rate_limiter_store_errors_total", &["kind=\"moved\""]) > 0.0, "{}", gateway.errors());
    gateway.expect_logged("is now 127.0.0.2, not 127.0.0.1");
}

#[test]
fn a_demoted_server_is_left_for_the_one_that_its_name_leads_to_now() {
    let (servers, upstream) = (Servers::start(), Upstream::start());
    let name = MovableName::new(NAME);
    let gateway = servers.gateway(&upstream, &name, "5s");
    is_decided(&gateway);
    let mut client = gateway.client();
    name.point("127.0.0.2");
    servers.first.command::<()>(&["REPLICAOF", "127.0.0.1", &servers.second.port.to_string()]);
    // By then a look-up may have been first; either way Redis decides.
    eventually("the new server decides", || {
        client.get("/", &[("X-User", "b")]).field("RateLimit").is_some() && !servers.second.keys().is_empty()
    });
    gateway.expect("rate_limiter_store_up", &[], 1.0);
}

/// Redis' own command, as a provider may use it: the master waits until its replica has all data, and then they exchange
/// their roles. Afterwards the host name is moved.
#[test]
fn a_master_that_changes_places_with_its_replica_under_load_is_followed_by_its_name() {
    for _ in 0..short_or_long(1, 5) {
        let (servers, upstream) = (Servers::replicated(), Upstream::start());
        let name = MovableName::new(NAME);
        // Without look-ups by the clock: see `Servers::gateway`.
        let (samples, text) = (token_bucket(), format!("threads: 1\n{}", rules(&token_bucket())));
        let gateways = [(); 2].map(|()| servers.builder(&upstream, &name, "50ms", &text).start());
        let failover = Failover::of_one_server("FAILOVER, the name follows", &gateways, &samples);
        let excess = failover.survive(|load| {
            servers.first.command::<()>(&["FAILOVER"]);
            eventually("the replica is the master", || servers.second.role() == "master");
            let promoted = load.micros();
            name.point("127.0.0.2");
            Some(promoted)
        });
        // Nothing was granted that the successor did not have.
        assert!(excess <= 0, "{excess}");
    }
}
