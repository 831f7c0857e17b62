//! Limits over several regions, from outside: each region has a gateway and a store of its own, and there is one home.

mod alone;
mod compared;
mod costs;
mod explained;
mod faults;
mod granted;
mod holds;
mod homes;
mod idle;
mod life;
#[cfg(feature = "test-hooks")]
mod mistakes;
mod other_store;
mod raised;
mod random_faults;
mod recorded;
mod replicas;
mod seen;
mod words;

use crate::support::{Gateway, Redis, Relay, Response, Upstream};

/// The names of the regions.
const REGIONS: [&str; 3] = ["eu", "us", "ap"];

/// Returns `store` for a gateway of a region. `home` is `redis: {…}` or `postgres: {…}`.
fn store(redis: &Redis, region: &str, home: &str) -> String {
    let regions = REGIONS.join(", ");
    format!(
        "store:\n  redis: {{url: \"redis://127.0.0.1:{}\", timeout: 2s}}\n  gateways: 1\n  home:\n    {home}\n    \
         timeout: 2s\n    region: {region}\n    regions: [{regions}]\n",
        redis.port
    )
}

/// Returns the home on the Redis at this port.
fn on_redis(port: u16) -> String {
    format!("redis: {{url: \"redis://127.0.0.1:{port}\"}}")
}

/// Returns rules with a limit of this many requests for each user in a year, over all regions.
fn rules(limit: u64) -> String {
    format!(
        "check: {{allow: [unverified_key]}}\nrules:\n  - name: year\n    scope: global\n    limit_keys: [header:x-user]\n    \
         algorithm: fixed_window\n    algorithm_config: {{limit: {limit}, window: year}}\n"
    )
}

/// A region with a gateway, a store, and a relay to home.
struct Region {
    gateway: Gateway,
    redis: Redis,
    relay: Relay,
}

impl Region {
    fn start(name: &str, home: u16, rules: &str, upstream: &Upstream) -> Region {
        let (redis, relay) = (Redis::start(), Relay::start(home));
        let gateway = Gateway::start(upstream, &(store(&redis, name, &on_redis(relay.port)) + rules));
        gateway.expect_logged("home is up");
        Region { gateway, redis, relay }
    }
}

/// Sends a request of a user.
fn ask(client: &mut crate::support::Client, user: &str) -> Response {
    client.get("/", &[("X-User", user)])
}
