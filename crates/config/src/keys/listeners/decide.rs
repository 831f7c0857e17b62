//! Reads `decide` of a listener, and the keys that belong to it. The listener decides for other proxies and for services,
//! and proxies no requests itself.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::keys::listeners::HeaderSenders;
use crate::keys::network_list::SOME_NETWORKS;
use crate::language::key::{Key, POSITIVE_DURATION, Type, names};
use crate::language::reader::{Field, Section, all};
use crate::language::shape::Shape;
use crate::language::value_kind::{ReadField, ValueKind};
use base::time::Micros;
use base::tls::server::{ClientAuth, Server};
use request::door::Door;

/// The settings of a listener that decides for other proxies and for services, and proxies nothing itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decide {
    /// The kinds of calls by which others may ask for decisions. There is at least one.
    pub doors: Vec<Door>,
    /// The networks of the peers that may ask for decisions. `None`: every peer with a verified certificate may ask.
    pub clients: Option<Vec<IpNet>>,
    pub original_request: OriginalRequest,
    pub refuse_with: RefuseWith,
    /// The longest time that a decision waits for the store, if the file has it: see [`Decide::answer_within_at`].
    pub answer_within: Option<Micros>,
}

/// The longest time for an answer to Envoy, which waits 20 ms and then decides by itself.
const FOR_ENVOY: Micros = Micros(15_000);

/// Where a call of `/decide` has the method, URL and client of the original request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalRequest {
    /// In the fields `X-Forwarded-Method`, `X-Forwarded-Proto`, `X-Forwarded-Host`, `X-Forwarded-Uri` and `X-Forwarded-For`.
    XForwarded,
    /// In the fields `X-Original-Method`, `X-Original-URL` and `X-Forwarded-For`.
    XOriginal,
    /// In the call itself: the path of the call after `/decide` is the original path. `X-Forwarded-For` has the client.
    Path,
}

/// The status with which `/decide` answers if the original request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseWith {
    /// The status that the decision has, such as 429.
    Decided,
    /// 401 if the decision has the status 401, otherwise 403. The field `X-Tollgate-Status` has the status of the decision.
    Forbidden,
}

impl Decide {
    /// Whether other proxies ask this listener by gRPC, which needs HTTP/2.
    pub fn needs_http2(&self) -> bool {
        self.doors.iter().any(|door| matches!(door, Door::ExtAuthz | Door::Rls))
    }

    /// Returns the longest time that a decision at this door waits for the store. `None`: the timeout of the store applies.
    pub fn answer_within_at(&self, door: Door) -> Option<Micros> {
        let is_envoys = matches!(door, Door::ExtAuthz | Door::Rls);
        self.answer_within.or(is_envoys.then_some(FOR_ENVOY))
    }

    /// Whether a peer with this address may connect. Without `clients`, every peer may connect, and
    /// [`Decide::admits_call`] requires a verified certificate.
    pub fn admits(&self, peer: IpAddr) -> bool {
        self.clients.is_none() || self.names(peer)
    }

    /// Whether `clients` contains this address.
    pub fn names(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.clients.iter().flatten().any(|network| network.contains(&peer))
    }

    /// Whether a peer with this address may ask for a decision. A listener without `clients` admits only peers with a
    /// verified certificate. This is checked for each call, because a reload may change the settings.
    pub fn admits_call(&self, peer: IpAddr, has_verified_certificate: bool) -> bool {
        self.admits(peer) && (self.clients.is_some() || has_verified_certificate)
    }
}

const DOORS: [(&str, Door); 4] = [
    (Door::Http.name(), Door::Http),
    (Door::ExtAuthz.name(), Door::ExtAuthz),
    (Door::Rls.name(), Door::Rls),
    (Door::Json.name(), Door::Json),
];

const ORIGINAL_REQUEST: [(&str, OriginalRequest); 3] = [
    ("x-forwarded", OriginalRequest::XForwarded),
    ("x-original", OriginalRequest::XOriginal),
    ("path", OriginalRequest::Path),
];

const REFUSALS: [(&str, RefuseWith); 1] = [("403", RefuseWith::Forbidden)];

const REFUSE_WITH: ValueKind<ReadField<RefuseWith>> =
    ValueKind::new("`403`", Shape::Numerals(&names(&REFUSALS)), |field| field.choice(&REFUSALS));

pub(crate) const DECIDE: Key = Key::optional(
    "decide",
    Type::Choices { names: &names(&DOORS), least: 1 },
    "Decides for other proxies, and proxies nothing. `http`: they send requests to `/decide`. `ext_authz`, `rls`: \
     Envoy asks by gRPC. `json`: services ask at `/take`.",
);

pub(crate) const CLIENTS: Key = Key::depends(
    "clients",
    SOME_NETWORKS.declared(),
    "those with a certificate, if `client_auth` is `required`",
    "With `decide`: the proxies and services that may ask. They are believed; other connections are closed.",
);

pub(crate) const ORIGINAL_REQUEST_KEY: Key = Key::depends(
    "original_request",
    Type::Choice(&names(&ORIGINAL_REQUEST)),
    "required with `decide: [http]`",
    "Where a call of `/decide` has the request that it asks about.",
);

pub(crate) const REFUSE_WITH_KEY: Key = Key::depends(
    "refuse_with",
    REFUSE_WITH.declared(),
    "the status of the decision",
    "With `decide: [http]`: all refusals but 401 become 403.",
);

pub(crate) const ANSWER_WITHIN: Key = Key::depends(
    "answer_within",
    POSITIVE_DURATION,
    "15ms for `ext_authz` and `rls`, else the `timeout` of the store",
    "With `decide`: how long a decision may wait for the store.",
);

/// The keys that are only allowed beside `decide`.
const COMPANIONS: [&str; 4] = ["clients", "original_request", "refuse_with", "answer_within"];

/// Returns the constraints that the schema puts on the keys of a listener with `decide`, each with the name of its key.
pub(crate) fn constraints() -> impl Iterator<Item = (&'static str, Value)> {
    let required = Shape::Words(&["required"]).schema();
    let shows = json!({"required": ["client_auth"], "properties": {"client_auth": required}});
    let mutual =
        json!({"properties": {"tls": {"properties": {"certificates": {"items": shows}}}}, "required": ["tls"]});
    // With `proxy_protocol: true`, peers may claim any address, so `clients` would have no effect. The schema rejects a
    // listener with both.
    let named = json!({"required": ["clients"], "properties": {"proxy_protocol": {"not": {"const": true}}}});
    let by_http = json!({"properties": {"decide": {"contains": {"const": Door::Http.name()}}}});
    let decide = json!({
        "anyOf": [named, mutual],
        "if": by_http,
        "then": {"required": ["original_request"]}
    });
    let companions = COMPANIONS.into_iter().map(|name| (name, json!(["decide"])));
    companions.chain([("decide", decide)])
}

/// Reads the keys of a listener that belong to `decide`, and rejects a listener that any peer could ask. `tls` and
/// `header_senders` are settings of this listener. `Some(None)`: the listener proxies. `None` after reporting a
/// problem.
pub(crate) fn decide(
    section: &Section<'_>,
    tls: Option<Option<&Server>>,
    header_senders: Option<&HeaderSenders>,
) -> Option<Option<Decide>> {
    let Some(field) = section.get("decide") else {
        for name in COMPANIONS {
            section.unwanted(name, "belongs to `decide`, which is missing");
        }
        return (!COMPANIONS.iter().any(|name| section.has(name))).then_some(None);
    };
    let doors = doors(&field);
    let clients = section.optional("clients", |field| SOME_NETWORKS.read(field));
    let original_request = section.optional("original_request", |field| field.choice(&ORIGINAL_REQUEST));
    let refuse_with = section.optional("refuse_with", |field| REFUSE_WITH.read(field));
    let answer_within = section.optional("answer_within", |field| field.positive_duration());
    // An invalid `tls` has been reported already. No second problem is reported for it.
    let lacks_certificates = tls.is_some_and(|tls| !tls.is_some_and(requires_certificates));
    let anyone_may_ask = lacks_certificates && !section.has("clients");
    if anyone_may_ask {
        let what = "missing: a peer that may ask can claim to be any client, so name those that may, or set `client_auth: required` \
                    of every certificate in `tls`";
        section.wrong("clients", what);
    }
    let anyone_may_pose = lacks_certificates && header_senders == Some(&HeaderSenders::Anyone);
    if anyone_may_pose && let Some(field) = section.get("proxy_protocol") {
        let what = "`true` lets any host claim an address in `clients`: name the load balancers, \
                    `{from: [10.0.0.0/8]}`, or set `client_auth: required` of every certificate in `tls`";
        field.wrong(what, None);
    }
    let doors = doors?;
    let lacks_request = doors.contains(&Door::Http) && !section.has("original_request");
    if lacks_request {
        let what = "missing: it says where a call of `/decide` has the request that it asks about";
        section.wrong("original_request", what);
    }
    if anyone_may_ask || anyone_may_pose || lacks_request {
        return None;
    }
    Some(Some(Decide {
        doors,
        clients: clients?,
        // Without the door `http`, no call uses this value.
        original_request: original_request?.unwrap_or(OriginalRequest::XForwarded),
        refuse_with: refuse_with?.unwrap_or(RefuseWith::Decided),
        answer_within: answer_within?,
    }))
}

fn doors(field: &Field<'_>) -> Option<Vec<Door>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one of `http`, `ext_authz`, `rls` and `json`");
        return None;
    }
    let mut doors = Vec::new();
    all(members, |member| {
        let door = member.known_or(Door::Http.name(), |field| field.choice(&DOORS))?;
        if !member.is_unknown() && doors.contains(&door) {
            member.wrong(format_args!("`{}` stands in the list already", door.name()), None);
            return None;
        }
        doors.push(door);
        Some(())
    })?;
    Some(doors)
}

/// Whether every client needs a certificate.
fn requires_certificates(server: &Server) -> bool {
    server.settings().certificates.iter().all(|one| one.client_auth == ClientAuth::Required)
}
