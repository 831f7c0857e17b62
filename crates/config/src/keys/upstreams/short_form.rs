//! Reads where requests go: `upstream`, which is short for one upstream and one route to it, or `upstreams` beside `routes`.

use std::sync::Arc;

use crate::keys::client_tls::ClientTls;
use crate::keys::rules::attribute::AttributeReader;
use crate::keys::upstreams::upstream::{Scheme, UPSTREAM, Upstream};
use crate::keys::upstreams::upstream_timeouts::UpstreamTimeouts;
use crate::keys::upstreams::upstreams;
use crate::language::environment::Environment;
use crate::language::reader::{Field, Section};
use rules::route::DEFAULT;

/// Reads the upstream of `upstream`, or the upstreams of `upstreams`. Empty if the gateway proxies nothing.
pub(crate) fn upstreams_of(
    file: &Section<'_>,
    timeouts: Option<UpstreamTimeouts>,
    environment: Environment<'_>,
    attributes: AttributeReader<'_>,
) -> Option<Vec<Upstream>> {
    let Some(short) = file.get("upstream") else {
        if !file.has("upstreams") && !file.has("routes") {
            if file.get("listeners").is_some_and(|listeners| listeners.is_list_with("decide")) {
                return Some(Vec::new());
            }
            file.wrong("upstream", "missing");
            return None;
        }
        let answer_themselves = |routes: Field<'_>| routes.is_list_without("upstream");
        if !file.has("upstreams") && file.get("routes").is_some_and(answer_themselves) {
            return Some(Vec::new());
        }
        let upstreams = file.need("upstreams").and_then(|field| upstreams(&field, timeouts?, environment, attributes));
        return file.need("routes").and(upstreams);
    };
    for long in ["upstreams", "routes"] {
        file.unwanted(long, "must not stand beside `upstream`, which is short for one upstream and one route to it");
    }
    // `upstreams` is checked too, although it must not stand beside `upstream`.
    file.get("upstreams").and_then(|field| upstreams(&field, timeouts?, environment, attributes));
    if short.is_list() {
        let hint = "write `upstreams: {NAME: {endpoints: [URL, URL]}}` and `routes: [{name: NAME, upstream: NAME}]`";
        short.must_hinting("be text", Some(hint.to_owned()));
        return None;
    }
    let endpoint = short.known_or("http://unknown.invalid", |field| UPSTREAM.read(field))?;
    let tls = match endpoint.scheme {
        Scheme::Http => None,
        Scheme::Https => Some(Arc::new(ClientTls::default().client_of_any_host(file)?)),
    };
    Some(vec![Upstream::of_one_name(DEFAULT, endpoint, tls, timeouts?)])
}
