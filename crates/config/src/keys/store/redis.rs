//! Reads `redis` in `store`: the Redis that has the buckets, found by its address, by sentinels, or as a cluster.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::keys::client_tls::{CLIENT_TLS, ClientTls, client_tls};
use crate::keys::store::cluster::{CLUSTER, cluster};
use crate::keys::store::sentinel::{SENTINEL, sentinel};
use crate::keys::store::store_login::{PASSWORD, PASSWORD_FILE, one_password, password, tls_of_any_host, wrong_url};
use crate::keys::store::store_role::StoreRole;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, POSITIVE_DURATION, TEXT, Type, and_key};
use crate::language::reader::{Field, Section};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::host_port::HostPort;
use base::tls::client::Client;
use stores::breaker;
use stores::redis::{LONGEST_PREFIX, Login, Settings, Target, Url};

const URL: ValueKind<ParseText<Url>> = ValueKind::reporting(
    "URL",
    Shape::Text(Text::new(
        Scalars::Text,
        &["^rediss?://[^?#]+$"],
        "be a URL like redis://127.0.0.1:6379 or rediss://user@redis.internal:6380/0",
    )),
    Url::parse,
    wrong_url,
);

const PREFIX: ValueKind<ParseText<String>> = ValueKind::new(
    "1 to 11 of letters, digits, `_`, `.`, `-` and `:`",
    Shape::Text(Text::new(
        Scalars::Written,
        &["^[A-Za-z0-9_.:-]{1,11}$"],
        "be 1 to 11 of letters, digits, `_`, `.`, `-` and `:`",
    )),
    |prefix| Some(prefix.to_owned()),
);

const _: () = assert!(LONGEST_PREFIX == 11, "the shape of a prefix has the same length");

/// The keys of a Redis, without `timeout`.
const KEYS: [Key; 8] = [
    Key::optional(
        "url",
        URL.declared(),
        "`redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `rediss://` for TLS; all but the host may be missing.",
    ),
    Key::optional(
        "sentinel",
        Type::Mapping(&SENTINEL),
        "In place of `url`: the sentinels that say where the server is.",
    ),
    Key::optional("cluster", Type::Mapping(&CLUSTER), "In place of `url`: a Redis Cluster."),
    Key::optional("username", TEXT, "The user who logs in."),
    PASSWORD,
    PASSWORD_FILE,
    Key::depends("tls", Type::Switch(&CLIENT_TLS), "`true` with `rediss://`, else `false`", "Encrypts the connection."),
    Key::default("prefix", PREFIX.declared(), "tollgate", "The beginning of every key in Redis."),
];
const TIMEOUT: Key = Key::default("timeout", POSITIVE_DURATION, "50ms", "How long a decision waits for Redis.");
static KEYS_WITH_TIMEOUT: [Key; 9] = and_key(KEYS, TIMEOUT);

pub(crate) static REDIS: Mapping =
    Mapping { heading: Some("key in `redis`"), definition: Some("redis"), keys: &KEYS_WITH_TIMEOUT, constraints };

/// The Redis of `home`, beside which the `timeout` stands.
pub(crate) static HOME_REDIS: Mapping =
    Mapping { heading: None, definition: Some("home_redis"), keys: &KEYS, constraints };

fn constraints() -> Value {
    json!({
        "dependencies": one_password(),
        "oneOf": [{"required": ["url"]}, {"required": ["sentinel"]}, {"required": ["cluster"]}]
    })
}

pub(crate) fn redis(field: Field<'_>, environment: Environment<'_>, role: StoreRole) -> Option<Settings> {
    if !field.is_map() {
        let hint = "write `redis: {url: \"redis://HOST:6379\"}`".to_owned();
        field.must_hinting("be a mapping", Some(hint));
        return None;
    }
    let section = field.section(role.of(&REDIS, &HOME_REDIS))?;
    let sentinel = section.optional("sentinel", |field| sentinel(field, environment));
    let cluster = section.optional("cluster", cluster);
    // An unknown host becomes `localhost`, to avoid a warning that a password is sent without TLS.
    let read = |field: Field<'_>| field.known_or("redis://localhost", |field| URL.read(field));
    let url = match section.get("url") {
        Some(field) => read(field).map(Some),
        None if section.has("sentinel") || section.has("cluster") => Some(None),
        None => section.need("url").and_then(read).map(Some),
    };
    let present: Vec<&str> = ["url", "sentinel", "cluster"].into_iter().filter(|key| section.has(key)).collect();
    if let [first, others @ ..] = &present[..] {
        for key in others {
            let why = if *key == "cluster" {
                "a cluster says itself which nodes it has"
            } else {
                "they say where the server is"
            };
            section.unwanted(key, format_args!("must not stand beside `{first}`: {why}"));
        }
    }
    let username = section.optional("username", |field| Some(field.written()?.to_owned()));
    let password = password(&section, environment, url.iter().flatten().find_map(|url| url.password.clone()));
    if url.iter().flatten().any(|url| url.username.is_some()) {
        section.unwanted("username", "must not stand beside the one in `url`");
    }
    let tls = match &url {
        Some(Some(url)) => tls(&section, url, environment),
        // Without a valid `url`, the hosts are not known here. Problems in `tls` are still reported.
        None | Some(None) => tls_of_any_host(&section, environment),
    };
    let timeout = role.timeout(&section);
    let prefix = section.value("prefix", |field| PREFIX.read(field));
    role.close(section, "redis");
    let (url, sentinel, cluster, username, password) = (url?, sentinel?, cluster?, username?, password?);
    let (in_url, target) = match (url, sentinel, cluster) {
        _ if present.len() > 1 => return None,
        (Some(Url { host, port, database, username, .. }), ..) => {
            (username, Target::Address { address: HostPort { host, port }, database })
        }
        (None, Some(sentinel), _) => (None, Target::Sentinel(Box::new(sentinel))),
        (None, None, Some(cluster)) => (None, Target::Cluster(Box::new(cluster))),
        (None, None, None) => return None,
    };
    let username = username.or(in_url).filter(|name| !name.is_empty());
    Some(Settings {
        target,
        login: Login { username, password, tls: tls? },
        timeout: timeout?,
        prefix: prefix?,
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

/// Reads TLS from `tls`, or from the scheme of the URL. `Some(None)`: no TLS. `None` after reporting a problem.
fn tls(section: &Section<'_>, url: &Url, environment: Environment<'_>) -> Option<Option<Arc<Client>>> {
    let tls = section.optional("tls", |field| {
        let tls = client_tls(field.clone(), environment)?;
        if tls.is_none() && url.tls {
            field.wrong("must not be false with a `url` that begins with rediss://", None);
            return None;
        }
        Some(tls)
    });
    match tls?.flatten().or_else(|| url.tls.then(ClientTls::default)) {
        Some(tls) => tls.client(&url.host, section).map(|client| Some(Arc::new(client))),
        None => Some(None),
    }
}
