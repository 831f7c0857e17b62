//! Holds a whole gateway.yaml, checked: one field for each of its keys.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::keys::access_log::AccessLog;
use crate::keys::drain::Drain;
use crate::keys::headers::HeaderFormat;
use crate::keys::limits::Bounds;
use crate::keys::listeners::Listener;
use crate::keys::listeners::decide::Decide;
use crate::keys::log::Log;
use crate::keys::threads::Threads;
use crate::keys::upstreams::upstream::Upstream;
use crate::language::remarks::Remarks;
use crate::language::warning::Warnings;
use base::pseudonym::PseudonymKey;
use decision::cors::Cors;
use decision::error_pages::ErrorPages;
use decision::retry_after::Jitter;
use identity::api_keys::ApiKeys;
use identity::{client_ip, jwt};
use request::request::ONLY_LISTENER;
use rules::route::UpstreamId;
use rules::route::route_set::{RouteChoice, RouteSet};
use rules::rule_set::RuleSet;

/// A whole gateway.yaml whose values are all valid. Only this crate makes one.
#[derive(Clone, Debug)]
pub struct Config {
    /// At least one, in the order of the file.
    pub listeners: Vec<Listener>,
    pub admin: Option<SocketAddr>,
    pub threads: Threads,
    /// In the order of the file; none if every route answers by itself, or every listener decides for other proxies. A [`rules::route::UpstreamId`] is an index into it.
    pub upstreams: Vec<Upstream>,
    pub routes: RouteSet,
    pub store: stores::Settings,
    pub client_ip: client_ip::Settings,
    /// `None`: no tokens are verified.
    pub jwt: Option<jwt::Settings>,
    /// The keys in it follow changes of their file; everything else is as it was loaded.
    pub api_keys: Option<Arc<ApiKeys>>,
    pub rules: RuleSet,
    /// `None`: the gateway adds no CORS fields.
    pub cors: Option<Cors>,
    /// `None`: its own responses are problem documents.
    pub error_pages: Option<Arc<ErrorPages>>,
    pub headers: Vec<HeaderFormat>,
    pub retry_after_jitter: Jitter,
    /// `limits`.
    pub bounds: Bounds,
    /// `limits.extra_methods`: those that are forwarded although they are not registered.
    pub extra_methods: Vec<String>,
    pub drain: Drain,
    pub log: Log,
    /// `None`: no access log is written.
    pub access_log: Option<AccessLog>,
    /// Makes the pseudonyms of buckets and clients, where their values must not be shown.
    pub hash_key: PseudonymKey,
    /// Facts about values that the reader noted for the lints.
    pub remarks: Remarks,
    /// Settings that are valid and unwise.
    pub warnings: Warnings,
    /// Tells files apart: a hash of the text.
    pub hash: String,
}

impl Config {
    pub fn upstream(&self, id: UpstreamId) -> Option<&Upstream> {
        self.upstreams.get(usize::try_from(id.0).ok()?)
    }

    /// The names of a route and its upstream. The name is empty without an upstream, and before one is chosen.
    pub fn destination(&self, choice: RouteChoice) -> (&str, &str) {
        let route = self.routes.route(choice.route).map_or("", |route| &*route.name);
        (route, choice.upstream.and_then(|upstream| self.upstream(upstream)).map_or("", |upstream| &*upstream.name))
    }

    /// The name of a listener, by its index.
    pub fn listener_name(&self, index: usize) -> &str {
        self.listeners.get(index).map_or(ONLY_LISTENER, |listener| &listener.name)
    }

    /// The settings of a listener that decides for other proxies, by its index. `None` for one that proxies.
    pub fn decide(&self, listener: usize) -> Option<&Decide> {
        self.listeners.get(listener)?.decide.as_ref()
    }

    /// Whether a listener decides for other proxies.
    pub fn decides(&self) -> bool {
        self.listeners.iter().any(|listener| listener.decide.is_some())
    }

    /// Whether a method that is not registered is forwarded.
    pub fn has_extra_method(&self, method: &[u8]) -> bool {
        self.extra_methods.iter().any(|extra| extra.as_bytes() == method)
    }
}
