//! Defines the settings of a whole gateway.yaml after it was checked, with one field for each key.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::keys::access_log::AccessLog;
use crate::keys::admin::AdminWrite;
use crate::keys::drain::Drain;
use crate::keys::headers::HeaderFormat;
use crate::keys::limits::Bounds;
use crate::keys::listeners::Listener;
use crate::keys::listeners::decide::Decide;
use crate::keys::llm::ErrorFormats;
use crate::keys::log::Log;
use crate::keys::records::Records;
use crate::keys::store::home::Home;
use crate::keys::threads::Threads;
use crate::keys::upstreams::upstream::Upstream;
use crate::keys::usage::Usage;
use crate::language::remarks::Remarks;
use crate::language::warning::Warnings;
use base::pseudonym::PseudonymKey;
use decision::cors::Cors;
use decision::error_pages::ErrorPages;
use decision::retry_after::Jitter;
use identity::api_keys::ApiKeys;
use identity::{client_ip, jwt};
use llm::prices::Prices;
use request::request::ONLY_LISTENER;
use rules::route::UpstreamId;
use rules::route::llm_settings::LlmSettings;
use rules::route::route_set::{RouteChoice, RouteSet};
use rules::rule_set::RuleSet;

/// A valid configuration: all settings of a gateway.yaml. Only this crate makes values of this type.
#[derive(Clone, Debug)]
pub struct Config {
    /// The listeners, in the order of the file. There is at least one.
    pub listeners: Vec<Listener>,
    pub admin: Option<SocketAddr>,
    /// Who may change buckets through the admin listener. `None`: every client that reaches a loopback address.
    pub admin_write: Option<AdminWrite>,
    pub threads: Threads,
    /// The upstreams, in the order of the file. A [`rules::route::UpstreamId`] is an index into this list. Empty if the
    /// gateway proxies nothing.
    pub upstreams: Vec<Upstream>,
    pub routes: RouteSet,
    pub store: stores::Settings,
    /// Where limits live that hold over several regions. `None`: no limit does.
    pub home: Option<Home>,
    pub client_ip: client_ip::Settings,
    /// The settings for verifying JWTs. `None`: the gateway verifies no tokens.
    pub jwt: Option<jwt::Settings>,
    /// The API keys, if the file has `api_keys`. The gateway reads their file again when it changes.
    pub api_keys: Option<Arc<ApiKeys>>,
    pub rules: RuleSet,
    /// The settings of `usage`. `None`: clients cannot ask what they have left.
    pub usage: Option<Usage>,
    /// The settings of `cors`. `None`: the gateway adds no CORS fields to responses.
    pub cors: Option<Cors>,
    /// The settings of `error_pages`. `None`: responses that the gateway itself makes are problem documents.
    pub error_pages: Option<Arc<ErrorPages>>,
    /// The formats of the responses that the gateway itself makes, in place of problem documents and error pages.
    pub error_formats: ErrorFormats,
    /// The settings for requests to language models. A route may have its own settings.
    pub llm: Arc<LlmSettings>,
    /// The prices of models. `None` if the file has no `prices`, so that no limit counts money.
    pub prices: Option<Arc<Prices>>,
    pub headers: Vec<HeaderFormat>,
    pub retry_after_jitter: Jitter,
    /// The bounds of requests and connections, from the key `limits`.
    pub bounds: Bounds,
    /// The methods in `limits.extra_methods`: the gateway forwards them although they are not registered.
    pub extra_methods: Vec<String>,
    pub drain: Drain,
    pub log: Log,
    /// The settings of the access log. `None`: no access log is written.
    pub access_log: Option<AccessLog>,
    /// The settings of the records for billing. `None`: no records are written.
    pub records: Option<Records>,
    /// The key that makes pseudonyms of buckets and clients, such as for logs.
    pub hash_key: PseudonymKey,
    /// Facts about values in the file, for the lints and the gateway.
    pub remarks: Remarks,
    /// Warnings about settings that are valid but unwise.
    pub warnings: Warnings,
    /// A hash of the file's text. Two files with different texts have different hashes.
    pub hash: String,
}

impl Config {
    /// Returns the path of the socket through which buckets are changed. `None` without `admin.write.unix`.
    pub fn admin_socket(&self) -> Option<&Arc<Path>> {
        match self.admin_write.as_ref()? {
            AdminWrite::Unix(path) => Some(path),
            AdminWrite::Tokens(_) => None,
        }
    }

    pub fn upstream(&self, id: UpstreamId) -> Option<&Upstream> {
        self.upstreams.get(usize::try_from(id.0).ok()?)
    }

    /// Returns the name of the chosen route, and the name of the chosen upstream. The second name is empty if no
    /// upstream has been chosen.
    pub fn destination(&self, choice: RouteChoice) -> (&str, &str) {
        let route = self.routes.route(choice.route).map_or("", |route| &*route.name);
        (route, choice.upstream.and_then(|upstream| self.upstream(upstream)).map_or("", |upstream| &*upstream.name))
    }

    /// Returns the name of the listener with this index.
    pub fn listener_name(&self, index: usize) -> &str {
        self.listeners.get(index).map_or(ONLY_LISTENER, |listener| &listener.name)
    }

    /// Returns the `decide` settings of the listener with this index. `None` for a listener that proxies.
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
