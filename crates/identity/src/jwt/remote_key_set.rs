//! Fetches the JWK set of an issuer from a URL, and fetches it again at intervals.
//!
//! Fetches run in the background, with limits on time and size. A set is kept until a valid set replaces it. Tokens
//! with unknown keys cause at most one fetch in ten seconds, whatever the result of the fetch is.

use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::Algorithm;
use tokio::sync::{Notify, watch};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

use super::algorithm::algorithm_name;
use super::keys::{KeyError, KeySet, Origin};
use base::interval::fixed_interval;
use base::time::{Clock, Timestamp};
use base::tls::{certificate_error, system_roots};

/// The longest time of a fetch, from the first byte to the last.
const DEADLINE: Duration = Duration::from_secs(3);
/// The largest set, in bytes.
const LARGEST: u64 = 1 << 20;
const REFRESH: Duration = Duration::from_secs(300);
/// The shortest time between two fetches that are caused by unknown keys.
const COOLDOWN: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of the issuer, for logs and metrics.
    pub issuer: String,
    pub url: String,
    /// The accepted algorithms. A set without a key for any of them is not used.
    pub algorithms: Vec<Algorithm>,
}

impl Settings {
    /// Whether the set has a key for one of the accepted algorithms.
    fn accepts(&self, set: &KeySet) -> bool {
        self.algorithms.iter().any(|algorithm| set.fits(*algorithm))
    }
}

/// Whether keys may be fetched from this URL: https, or http on the loopback interface.
pub fn is_acceptable(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    let Some(host) = uri.host().filter(|host| !host.is_empty()) else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let here = bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    match uri.scheme_str() {
        Some("https") => plain,
        Some("http") => plain && here,
        _ => false,
    }
}

/// The reason why a JWK set could not be fetched.
#[derive(Debug)]
pub enum FetchError {
    Fetch(String),
    Status(u16),
    TooLarge,
    Key(KeyError),
    /// The set has no key for any of these algorithms, so no token could be verified with it.
    OtherAlgorithms(Vec<Algorithm>),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Fetch(error) => f.write_str(error),
            FetchError::Status(status) => write!(f, "answered {status}"),
            FetchError::TooLarge => write!(f, "larger than {LARGEST} bytes"),
            FetchError::Key(unfit) => unfit.fmt(f),
            FetchError::OtherAlgorithms(wanted) => {
                let names: Vec<_> = wanted.iter().map(|algorithm| algorithm_name(*algorithm)).collect();
                write!(f, "has no key for {}, which `algorithms` lists", names.join(" or "))
            }
        }
    }
}

/// The keys of one issuer, as they were last fetched.
#[derive(Debug)]
pub struct RemoteKeySet {
    settings: Settings,
    clock: Clock,
    cooldown: Duration,
    set: ArcSwapOption<KeySet>,
    /// The time at which the last fetch began.
    began: AtomicU64,
    /// Whether a fetch is requested or under way.
    pending: AtomicBool,
    wanted: Notify,
    /// The number of fetches that have ended.
    ended: watch::Sender<u64>,
}

impl RemoteKeySet {
    /// Makes the set that replaces `before`, or a set that has never been fetched. The keys of `before` are kept until the
    /// next fetch if they come from the same URL and one of them fits the new settings.
    pub fn after(before: Option<&RemoteKeySet>, settings: Settings, clock: Clock) -> RemoteKeySet {
        let same = before.filter(|before| before.settings.url == settings.url);
        let kept = same.and_then(RemoteKeySet::current).filter(|set| settings.accepts(set));
        RemoteKeySet {
            settings,
            clock,
            cooldown: fixed_interval("jwks_cooldown", COOLDOWN),
            set: ArcSwapOption::new(kept),
            began: AtomicU64::new(0),
            pending: AtomicBool::new(false),
            wanted: Notify::new(),
            ended: watch::Sender::new(0),
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn issuer(&self) -> &str {
        &self.settings.issuer
    }

    /// Returns the keys that were last fetched. `None` until a valid set has been fetched for the first time.
    pub fn current(&self) -> Option<Arc<KeySet>> {
        self.set.load_full()
    }

    /// Waits until the first fetch has ended, successfully or not.
    pub async fn first_attempt(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended > 0).await;
    }

    /// Fetches the keys regularly. Never returns. After every fetch, calls `report` with the name of the issuer, and
    /// with the number of keys or the error.
    pub async fn keep_fresh(self: &Arc<RemoteKeySet>, report: impl Fn(&str, Result<usize, FetchError>)) {
        let mut pause = FIRST_PAUSE;
        loop {
            let outcome = self.fetch().await;
            let good = outcome.is_ok();
            report(self.issuer(), outcome);
            let wait = if good { REFRESH } else { pause };
            pause = if good { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            // Jitter keeps gateways from fetching all at the same time.
            let waited = tokio::time::sleep(wait.mul_f64(0.8 + fastrand::f64() / 5.0));
            tokio::select! {
                () = waited => {}
                () = self.fetch_requested() => {}
            }
        }
    }

    /// Waits until a fetch is requested. Ignores a late notification whose fetch has already been made.
    async fn fetch_requested(&self) {
        loop {
            self.wanted.notified().await;
            if self.pending.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Starts a fetch now, without waiting for the end of the interval.
    pub fn fetch_now(&self) {
        self.pending.store(true, Ordering::Release);
        self.wanted.notify_one();
    }

    /// Fetches the keys again, because a token's key is unknown. Returns whether a fetch has ended. `false` if the last
    /// fetch began recently, or the fetch took too long.
    pub(crate) async fn refetch(&self) -> bool {
        let mut ended = self.ended.subscribe();
        if !self.pending.load(Ordering::Acquire) {
            let (now, began) = (self.clock.now(), self.began.load(Ordering::Acquire));
            if Duration::from(now.since(Timestamp(began))) < self.cooldown {
                return false;
            }
            // If several callers arrive together, only one of them starts the fetch.
            if self.began.compare_exchange(began, now.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.fetch_now();
            }
        }
        tokio::time::timeout(DEADLINE + Duration::from_millis(500), ended.changed())
            .await
            .is_ok_and(|seen| seen.is_ok())
    }

    async fn fetch(&self) -> Result<usize, FetchError> {
        self.began.store(self.clock.now().0, Ordering::Release);
        self.pending.store(true, Ordering::Release);
        let (settings, old) = (self.settings.clone(), self.current().unwrap_or_default());
        // The HTTP client blocks, and parsing a large set takes time. So both run on a separate thread.
        let fetched = tokio::task::spawn_blocking(move || {
            let set = KeySet::jwks(&get(&settings.url)?, Origin::Fetched).map_err(FetchError::Key)?;
            if settings.accepts(&set) {
                Ok(set.replacing(&old))
            } else {
                Err(FetchError::OtherAlgorithms(settings.algorithms))
            }
        });
        let outcome = match fetched.await {
            Ok(fetched) => fetched,
            Err(error) => Err(FetchError::Fetch(error.to_string())),
        };
        let outcome = outcome.map(|set| {
            let keys = set.len();
            self.set.store(Some(Arc::new(set)));
            keys
        });
        self.pending.store(false, Ordering::Release);
        self.ended.send_modify(|ended| *ended += 1);
        outcome
    }
}

fn get(url: &str) -> Result<Vec<u8>, FetchError> {
    let fault =
        |error: &dyn fmt::Display| FetchError::Fetch(certificate_error::of_site(&error.to_string()).into_owned());
    let system = system_roots();
    let roots = system.iter().map(|certificate| ureq::tls::Certificate::from_der(certificate).to_owned());
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::new_with_certs(&roots.collect::<Vec<_>>()))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(DEADLINE))
            // A redirect could lead to keys that the configuration does not name.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .proxy(None)
            .user_agent("tollgate")
            .build(),
    );
    let mut answer = agent.get(url).header("Accept", "application/json").call().map_err(|error| fault(&error))?;
    if answer.status() != 200 {
        return Err(FetchError::Status(answer.status().as_u16()));
    }
    let mut body = Vec::new();
    answer.body_mut().as_reader().take(LARGEST + 1).read_to_end(&mut body).map_err(|error| fault(&error))?;
    if body.len() as u64 > LARGEST { Err(FetchError::TooLarge) } else { Ok(body) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_over_https_or_from_this_machine() {
        for url in [
            "https://auth.example.com/.well-known/jwks.json",
            "https://auth.example.com:8443/jwks",
            "http://127.0.0.1:9000/jwks",
            "http://localhost/jwks",
            "http://[::1]:80/jwks",
        ] {
            assert!(is_acceptable(url), "{url}");
        }
        for url in [
            "http://auth.example.com/jwks",
            "http://127.0.0.1.example.com/jwks",
            "http://localhost.example.com/jwks",
            "https://",
            "ftp://auth.example.com/",
            "auth.example.com/jwks",
            "file:///etc/passwd",
            "https://user@auth.example.com/",
            "http://127.0.0.1@evil.example/",
            "",
        ] {
            assert!(!is_acceptable(url), "{url}");
        }
    }
}
