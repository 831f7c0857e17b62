//! An issuer that accepts connections and then hangs. Requests that need its keys wait for three seconds; no others wait.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::key_sets::cooldown;
use crate::support::mint::{SigningKey, epoch};
use crate::support::{Client, Gateway, Lateness, Response, Upstream, eventually, mint, now};

/// The deadline of a fetch, with a margin for a busy machine.
const HANGING: std::ops::Range<Duration> = Duration::from_millis(2900)..Duration::from_secs(8);

/// Much shorter than the deadline, with a margin for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(1500);

#[derive(Clone)]
enum Reply {
    Set(String),
    /// The issuer never answers.
    Silence,
    /// The issuer sends a head, and then single bytes of the key set with pauses.
    Drips,
}

struct Issuer {
    server: Upstream,
    reply: Arc<Mutex<Reply>>,
}

impl Issuer {
    fn start(first: Reply) -> Issuer {
        let reply = Arc::new(Mutex::new(first));
        let chosen = Arc::clone(&reply);
        let server = Upstream::answering(move |_, stream| {
            let reply = chosen.lock().unwrap().clone();
            match reply {
                Reply::Set(set) => {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", set.len());
                    let _ = stream.write_all((head + &set).as_bytes());
                }
                Reply::Silence => std::thread::sleep(Duration::from_secs(20)),
                Reply::Drips => {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{");
                    while stream.write_all(b" ").is_ok() {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        });
        Issuer { server, reply }
    }

    fn set(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    fn gateway(&self, upstream: &Upstream) -> Gateway {
        let keys = format!("keys: {{jwks_url: \"http://{}/keys\"}}", self.server.address);
        Gateway::before(upstream)
            .with(&format!("jwt:\n  algorithms: [ES256]\n  {keys}\n"))
            .short_interval("jwks_cooldown", cooldown())
            .start()
    }
}

fn set(key: &SigningKey, id: &str) -> Reply {
    Reply::Set(json!({"keys": [key.jwk_as(id)]}).to_string())
}

fn get(client: &mut Client, key: &SigningKey, id: &str, sub: &str) -> Response {
    let claims = json!({"sub": sub, "exp": epoch() + 600});
    let token = key.signer.token(&json!({"alg": "ES256", "kid": id}), &claims);
    client.get("/", &[("Authorization", &format!("Bearer {token}"))])
}

#[test]
fn a_start_waits_three_seconds_for_keys_that_hang_and_then_goes_on_without() {
    let (upstream, key) = (Upstream::start(), mint::es256());
    let start_with = |reply: Reply| {
        let issuer = Issuer::start(reply);
        let begun = now();
        let gateway = issuer.gateway(&upstream);
        let took = begun.elapsed();
        assert!(HANGING.contains(&took), "{took:?}");
        eventually("it is logged", || gateway.has_logged("keys not fetched"));
        let mut client = gateway.client();
        let refused = get(&mut client, &key, "k", "a");
        assert_eq!((refused.status, &*refused.field("X-Tollgate-Reason").unwrap()), (503, "keys_unavailable"));
        assert_eq!(client.get("/", &[]).status, 200);
        assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 503);
        issuer.set(set(&key, "k"));
        eventually("the keys are there", || get(&mut client, &key, "k", "a").status == 200);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| start_with(Reply::Silence));
        start_with(Reply::Drips);
    });
}

#[test]
fn a_fetch_that_hangs_delays_tokens_with_an_unknown_key_for_three_seconds_and_no_other_request() {
    let (upstream, [old, new]) = (Upstream::start(), [(); 2].map(|()| mint::es256()));
    let hang = |reply: Reply| {
        let issuer = Issuer::start(set(&old, "old"));
        let gateway = issuer.gateway(&upstream);
        let mut client = gateway.client();
        assert_eq!(get(&mut client, &old, "old", "a").status, 200);
        issuer.set(reply);
        std::thread::sleep(cooldown());
        let unknown = |id: &str| {
            let begun = now();
            let status = get(&mut gateway.client(), &new, id, "a").status;
            (status, begun.elapsed())
        };
        std::thread::scope(|scope| {
            let waiting = [scope.spawn(|| unknown("new")), scope.spawn(|| unknown("another"))];
            eventually("the set is fetched", || issuer.server.count() == 2);
            // Until the wait is over.
            let (mut others, late) = (0, Lateness::measure());
            while !waiting.iter().any(|thread| thread.is_finished()) {
                let begun = now();
                assert_eq!(client.get("/", &[]).status, 200);
                // A token that was never verified before, by a key that is there.
                assert_eq!(get(&mut client, &old, "old", &others.to_string()).status, 200);
                assert!(begun.elapsed() < AT_ONCE + late.of_a_request(), "{:?}", begun.elapsed());
                others += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(others >= 3, "{others} pairs of requests meanwhile");
            for thread in waiting {
                let (status, took) = thread.join().unwrap();
                assert!(status == 401 && HANGING.contains(&took), "{status} after {took:?}");
            }
        });
        issuer.set(set(&new, "new"));
        eventually("the new set is there", || unknown("new").0 == 200);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| hang(Reply::Silence));
        hang(Reply::Drips);
    });
}
