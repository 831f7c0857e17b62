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

/// A whole gateway.yaml, all of whose values are valid. Only this crate makes one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The listeners, in the order of the file; at least one.
    pub listeners: Vec<Listener>,
    pub admin: Option<SocketAddr>,
    pub threads: Threads,
    /// The upstreams, in the order of the file; a [`rules::route::UpstreamId`] is an index into them. Empty if every route
    /// answers by itself, or every listener decides for other proxies.
    pub upstreams: Vec<Upstream>,
    pub routes: RouteSet,
    pub store: stores::Settings,
    pub client_ip: client_ip::Settings,
    /// `None`: no tokens are verified.
    pub jwt: Option<jwt::Settings>,
    /// The API keys. They follow changes of their file; everything else stays as it was loaded.
    pub api_keys: Option<Arc<ApiKeys>>,
    pub rules: RuleSet,
    /// `None`: the gateway adds no CORS fields.
    pub cors: Option<Cors>,
    /// `None`: responses of the gateway itself are problem documents.
    pub error_pages: Option<Arc<ErrorPages>>,
    pub headers: Vec<HeaderFormat>,
    pub retry_after_jitter: Jitter,
    /// The values of `limits`.
    pub bounds: Bounds,
    /// `limits.extra_methods`: methods that are forwarded although they are not registered.
    pub extra_methods: Vec<String>,
    pub drain: Drain,
    pub log: Log,
    /// `None`: no access log is written.
    pub access_log: Option<AccessLog>,
    /// The key for the pseudonyms of buckets and clients, which stand in place of values that must not be shown.
    pub hash_key: PseudonymKey,
    /// Facts about values that the reader noted for the lints.
    pub remarks: Remarks,
    /// Warnings about settings that are valid but unwise.
    pub warnings: Warnings,
    /// A hash of the text, to tell two files apart.
    pub hash: String,
}

impl Config {
    pub fn upstream(&self, id: UpstreamId) -> Option<&Upstream> {
        self.upstreams.get(usize::try_from(id.0).ok()?)
    }

    /// The name of the chosen route, and the name of its upstream. The second is empty if there is no upstream, or none has
    /// been chosen yet.
    pub fn destination(&self, choice: RouteChoice) -> (&str, &str) {
        let route = self.routes.route(choice.route).map_or("", |route| &*route.name);
        (route, choice.upstream.and_then(|upstream| self.upstream(upstream)).map_or("", |upstream| &*upstream.name))
    }

    /// The name of the listener with this index.
    pub fn listener_name(&self, index: usize) -> &str {
        self.listeners.get(index).map_or(ONLY_LISTENER, |listener| &listener.name)
    }

    /// The settings for deciding for other proxies, of the listener with this index. `None` for a listener that proxies.
    pub fn decide(&self, listener: usize) -> Option<&Decide> {
        self.listeners.get(listener)?.decide.as_ref()
    }

    /// Whether any listener decides for other proxies.
    pub fn decides(&self) -> bool {
        self.listeners.iter().any(|listener| listener.decide.is_some())
    }

    /// Whether a method is among `limits.extra_methods`.
    pub fn has_extra_method(&self, method: &[u8]) -> bool {
        self.extra_methods.iter().any(|extra| extra.as_bytes() == method)
    }
}
