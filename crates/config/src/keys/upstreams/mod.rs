//! Reads `upstreams`: the servers to which requests are sent, and what happens when one of them fails.

pub(crate) mod balance;
pub(crate) mod health;
pub(crate) mod retries;
pub(crate) mod short_form;
pub(crate) mod upstream;
pub(crate) mod upstream_timeouts;

use std::collections::HashSet;
use std::sync::Arc;

use crate::keys::client_tls::{CLIENT_TLS, ClientTls, client_tls};
use crate::keys::rules::attribute::AttributeReader;
use crate::keys::rules::names::checked;
use crate::keys::upstreams::balance::{BALANCE, balance};
use crate::keys::upstreams::health::{HEALTH, Health, HealthCheck, health};
use crate::keys::upstreams::retries::{RETRIES, retries};
use crate::keys::upstreams::upstream::{Endpoint, Protocol, Scheme, UPSTREAM, Upstream};
use crate::keys::upstreams::upstream_timeouts::{
    CONNECT_DOC, FIRST_BYTE_DOC, IDLE_DOC, READ_DOC, TOTAL, TOTAL_DOC, UpstreamTimeouts, WRITE_DOC,
};
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, POSITIVE_DURATION, Type, names, unconstrained};
use crate::language::other_spellings;
use crate::language::reader::{Field, Section, all};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::time::Micros;
use base::tls::client::Client;

const PROTOCOLS: [(&str, Protocol); 3] = [("http/1.1", Protocol::Http1), ("h2", Protocol::H2), ("h2c", Protocol::H2c)];

/// The settings for ejection: after failures, an endpoint gets no requests for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The number of failures in a row that eject an endpoint.
    pub consecutive: u32,
    pub duration: Micros,
    /// The largest share of an upstream's endpoints that may be ejected at the same time, in per cent.
    pub max_share: u8,
}

impl Ejection {
    pub const DEFAULT: Ejection = Ejection { consecutive: 5, duration: Micros(30_000_000), max_share: 50 };
}

pub(crate) const PERCENT: ValueKind<ParseText<u8>> = ValueKind::reporting(
    "`0%` to `100%`",
    Shape::Text(Text::new(Scalars::Spelling, &["^0*([0-9]{1,2}|100)%$"], "be a share from 0% to 100%")),
    |text| text.strip_suffix('%')?.parse().ok(),
    |field, must| {
        let written = field.text_if_any().and_then(other_spellings::percent);
        field.must_hinting(must, written.map(|written| format!("write `{written}`")));
    },
);

const MAX_CONNECTIONS: ValueKind<ParseText<Option<u32>>> = ValueKind::new(
    "`unlimited` or 1 to 1000000",
    Shape::either(&[Shape::Words(&["unlimited"]), Shape::whole(1, 1_000_000)]),
    |text| if text == "unlimited" { Some(None) } else { text.parse().ok().map(Some) },
);

pub(crate) static ENDPOINT: Mapping = Mapping {
    heading: Some("key of an endpoint"),
    definition: None,
    keys: &[
        Key::required("url", UPSTREAM.declared(), "Where it is, as in `upstream`."),
        Key::default(
            "weight",
            Type::Whole { least: 1, most: 1000 },
            "1",
            "Its share of the requests, with all addresses of its name.",
        ),
    ],
    constraints: unconstrained,
};

pub(crate) static TIMEOUTS: Mapping = Mapping {
    heading: None,
    definition: None,
    keys: &[
        Key::depends("connect", POSITIVE_DURATION, "as in `upstream_timeouts`", CONNECT_DOC),
        Key::depends("first_byte", POSITIVE_DURATION, "as in `upstream_timeouts`", FIRST_BYTE_DOC),
        Key::depends("read", POSITIVE_DURATION, "as in `upstream_timeouts`", READ_DOC),
        Key::depends("write", POSITIVE_DURATION, "as in `upstream_timeouts`", WRITE_DOC),
        Key::depends("idle", POSITIVE_DURATION, "as in `upstream_timeouts`", IDLE_DOC),
        Key::depends("total", TOTAL.declared(), "as in `upstream_timeouts`", TOTAL_DOC),
    ],
    constraints: unconstrained,
};

pub(crate) static EJECTION: Mapping = Mapping {
    heading: Some("key in `ejection`"),
    definition: None,
    keys: &[
        Key::default(
            "consecutive",
            Type::Whole { least: 1, most: 1_000_000 },
            "5",
            "Failures in a row after which an endpoint is ejected.",
        ),
        Key::default(
            "for",
            POSITIVE_DURATION,
            "30s",
            "For how long. Then one failure ejects it again, until a request succeeds.",
        ),
        Key::default("max_share", PERCENT.declared(), "50%", "Endpoints that may be ejected at once, rounded down."),
    ],
    constraints: unconstrained,
};

pub(crate) static UPSTREAM_ENTRY: Mapping = Mapping {
    heading: Some("key of an upstream"),
    definition: None,
    keys: &[
        Key::required(
            "endpoints",
            Type::ListOfOwnOr { text: "list of URLs or mappings", shape: UPSTREAM.shape, mapping: &ENDPOINT, least: 1 },
            "Its servers. Each address of a name is one; names are looked up every 30 seconds.",
        ),
        Key::default(
            "balance",
            BALANCE,
            "round_robin",
            "How an endpoint is chosen. `round_robin`: in turn. `least_requests`: of two at random, that with fewer \
             requests. A mapping: by a value.",
        ),
        Key::default(
            "protocol",
            Type::Choice(&names(&PROTOCOLS)),
            "http/1.1",
            "`h2`: HTTP/2 to `https` endpoints. `h2c`: HTTP/2 to `http` ones, without an upgrade.",
        ),
        Key::depends(
            "tls",
            Type::Mapping(&CLIENT_TLS),
            "`{}` if an endpoint is `https`",
            "How `https` endpoints are verified, and what is presented to them.",
        ),
        Key::default("timeouts", Type::Mapping(&TIMEOUTS), "{}", "As `upstream_timeouts`, which has the defaults."),
        Key::default("retries", Type::Mapping(&RETRIES), "{}", "How often a request is tried again."),
        Key::default(
            "ejection",
            Type::Switch(&EJECTION),
            "true",
            "Whether an endpoint that fails gets no requests for a while.",
        ),
        Key::optional("health", Type::Mapping(&HEALTH), "How the endpoints are checked."),
        Key::default("panic_below", PERCENT.declared(), "0%", "Below this share of available endpoints, all are used."),
        Key::default(
            "max_connections",
            MAX_CONNECTIONS.declared(),
            "unlimited",
            "Requests under way at one endpoint. If none has room: 503.",
        ),
    ],
    constraints: unconstrained,
};

/// Reads `upstreams`. `defaults` are the timeouts of an upstream without its own. `None` after reporting a problem.
pub(crate) fn upstreams(
    field: &Field<'_>,
    defaults: UpstreamTimeouts,
    environment: Environment<'_>,
    attributes: AttributeReader<'_>,
) -> Option<Vec<Upstream>> {
    let pairs = field.pairs()?;
    if pairs.is_empty() {
        field.must("have at least one upstream");
        return None;
    }
    let read = |(name, position, field): (&str, _, Field<'_>)| {
        let name = checked(&field.clone().at(position), name).map(str::to_owned);
        let upstream = upstream(field, defaults, environment, attributes);
        Some(Upstream { name: name?, ..upstream? })
    };
    let read: Vec<_> = pairs.into_iter().map(read).collect();
    read.into_iter().collect()
}

fn upstream(
    field: Field<'_>,
    defaults: UpstreamTimeouts,
    environment: Environment<'_>,
    attributes: AttributeReader<'_>,
) -> Option<Upstream> {
    let section = field.section(&UPSTREAM_ENTRY)?;
    let endpoints = section.need("endpoints").and_then(|field| endpoints(&field));
    let protocol = section.choice("protocol", &PROTOCOLS);
    let tls = tls(&section, endpoints.as_deref(), protocol, environment);
    let balance = section.value("balance", |field| balance(field, attributes));
    let timeouts = section.value("timeouts", |field| timeouts(field, defaults));
    let retries = section.value("retries", retries);
    let ejection = section.value("ejection", ejection);
    let health = section.optional("health", health);
    let asks_grpc = matches!(&health, Some(Some(Health { check: HealthCheck::Grpc { .. }, .. })));
    let lacks_h2 = asks_grpc && protocol == Some(Protocol::Http1);
    if lacks_h2 {
        section.unwanted("health", "`grpc` needs `protocol: h2` or `h2c`");
    }
    let has_socket = endpoints.iter().flatten().any(|endpoint| endpoint.socket.is_some());
    if has_socket && matches!(&health, Some(Some(Health { port: Some(_), .. }))) {
        section.unwanted("health", "`port` is for endpoints with an address, and one is a socket");
    }
    let panic_below = section.value("panic_below", |field| PERCENT.read(field));
    let max_connections = section.value("max_connections", |field| MAX_CONNECTIONS.read(field));
    section.close();
    let health = health.filter(|_| !lacks_h2);
    Some(Upstream {
        name: String::new(),
        endpoints: endpoints?,
        protocol: protocol?,
        tls: tls?,
        balance: balance?,
        timeouts: timeouts?,
        retries: retries?,
        ejection: ejection?,
        health: health?,
        panic_below: panic_below?,
        max_connections: max_connections?,
    })
}

/// Makes the TLS client of an upstream. `Some(None)` if no endpoint uses TLS.
fn tls(
    section: &Section<'_>,
    endpoints: Option<&[Endpoint]>,
    protocol: Option<Protocol>,
    environment: Environment<'_>,
) -> Option<Option<Arc<Client>>> {
    let settings = section.get("tls").map(|field| {
        if field.is_map() {
            return client_tls(field, environment).flatten();
        }
        field.must("be a mapping");
        None
    });
    let endpoints = endpoints?;
    let has = |scheme| endpoints.iter().any(|endpoint| endpoint.scheme == scheme);
    match protocol? {
        Protocol::H2 if has(Scheme::Http) => {
            section.unwanted("protocol", "`h2` needs TLS, and an endpoint is http://; without TLS it is `h2c`");
            return None;
        }
        Protocol::H2c if has(Scheme::Https) => {
            section.unwanted("protocol", "`h2c` is without TLS, and an endpoint is https://; with TLS it is `h2`");
            return None;
        }
        _ => {}
    }
    match settings {
        None if !has(Scheme::Https) => Some(None),
        None => ClientTls::default().client_of_any_host(section).map(|client| Some(Arc::new(client))),
        Some(_) if !has(Scheme::Https) => {
            section.unwanted("tls", "needs an https:// endpoint");
            None
        }
        Some(settings) => settings?.client_of_any_host(section).map(|client| Some(Arc::new(client))),
    }
}

fn endpoints(field: &Field<'_>) -> Option<Vec<Endpoint>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one endpoint");
        return None;
    }
    let mut taken = HashSet::new();
    all(members, |member| {
        let position = member.clone();
        let endpoint = if member.is_map() { weighted(member)? } else { url(&member)? };
        let address = (endpoint.host.clone(), endpoint.port, endpoint.socket.clone());
        // Unknown hosts are not compared, because they may be different.
        if endpoint.host != UNKNOWN_HOST && !taken.insert(address) {
            position.wrong("is there twice: set its `weight`", None);
            return None;
        }
        Some(endpoint)
    })
}

fn weighted(field: Field<'_>) -> Option<Endpoint> {
    let section = field.section(&ENDPOINT)?;
    let (url, weight) = (section.need("url").and_then(|field| url(&field)), section.whole("weight"));
    section.close();
    Some(Endpoint { weight: u32::try_from(weight?).ok()?, ..url? })
}

/// The placeholder for a host that is unknown.
const UNKNOWN_HOST: &str = "unknown.invalid";

fn url(field: &Field<'_>) -> Option<Endpoint> {
    field.known_or(&format!("http://{UNKNOWN_HOST}"), |field| UPSTREAM.read(field))
}

fn timeouts(field: Field<'_>, defaults: UpstreamTimeouts) -> Option<UpstreamTimeouts> {
    let section = field.section(&TIMEOUTS)?;
    let own = |name: &str, default: Micros| {
        section.optional(name, |field| field.positive_duration()).map(|own| own.unwrap_or(default))
    };
    let connect = own("connect", defaults.connect);
    let first_byte =
        section.optional("first_byte", |field| field.positive_duration()).map(|own| own.or(defaults.first_byte));
    let (read, write) = (own("read", defaults.read), own("write", defaults.write));
    let idle = own("idle", defaults.idle);
    let total = section.optional("total", |field| TOTAL.read(field)).map(|own| own.unwrap_or(defaults.total));
    section.close();
    Some(UpstreamTimeouts {
        connect: connect?,
        first_byte: first_byte?,
        read: read?,
        write: write?,
        idle: idle?,
        total: total?,
    })
}

/// Reads `ejection`. `Some(None)` for `false`.
fn ejection(field: Field<'_>) -> Option<Option<Ejection>> {
    if !field.is_map() {
        return Some(field.switch()?.then_some(Ejection::DEFAULT));
    }
    let section: Section<'_> = field.section(&EJECTION)?;
    let consecutive = section.whole("consecutive");
    let duration = section.positive_duration("for");
    let max_share = section.value("max_share", |field| PERCENT.read(field));
    section.close();
    let consecutive = u32::try_from(consecutive?).ok()?;
    Some(Some(Ejection { consecutive, duration: duration?, max_share: max_share? }))
}
