//! Reads `routes`: the target of a request, and the changes to the request and the response.

pub(crate) mod header_changes;
pub(crate) mod header_names;
pub(crate) mod path_rewrite;
pub(crate) mod rewrite;
pub(crate) mod route_answers;
pub(crate) mod route_overrides;
pub(crate) mod route_upstream;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::json;

use crate::keys::llm::LLM_OF_ROUTE;
use crate::keys::routes::header_changes::{HEADER_CHANGES, header_changes};
use crate::keys::routes::header_names::Message;
use crate::keys::routes::rewrite::{REWRITE, rewrite};
use crate::keys::routes::route_answers::{REDIRECT, RESPOND, redirect, respond};
use crate::keys::routes::route_overrides::{
    BODY_BYTES_OF_ROUTE, INSPECT_BYTES_OF_ROUTE, RETRIES_OF_ROUTE, TIMEOUTS_OF_ROUTE, overrides,
};
use crate::keys::routes::route_upstream::{SPLIT_BY, UPSTREAM_OF_ROUTE, upstreams_of_route};
use crate::keys::rules::attribute::AttributeReader;
use crate::keys::rules::names::unique;
use crate::keys::rules::restricted_match::{Restriction, is_of_credentials};
use crate::keys::rules::rule_match::CONDITIONS;
use crate::language::environment::Environment;
use crate::language::key::{BOOLEAN, Key, Mapping, NAME, Type};
use crate::language::reader::{Field, Section, all};
use request::attribute::Attribute;
use rules::route::forwarding::{ForwardedCertificate, Forwarding};
use rules::route::llm_settings::LlmSettings;
use rules::route::route_set::Route;
use rules::route::target::{RouteAnswer, Target};
use rules::rule::Condition;

/// The keys that are only allowed in a route to an upstream.
const OF_UPSTREAMS: [&str; 9] = [
    "split_by",
    "rewrite",
    "request_headers",
    "timeouts",
    "retries",
    "body_bytes",
    "inspect_bytes",
    "llm",
    "forward_client_cert",
];

pub(crate) static ROUTE: Mapping = Mapping {
    heading: Some("key of a route"),
    definition: None,
    keys: &[
        Key::required("name", NAME, "Like the name of a rule. It is the attribute `route`."),
        Key::optional("match", CONDITIONS, "Conditions, which may not read credentials."),
        UPSTREAM_OF_ROUTE,
        SPLIT_BY,
        Key::optional("redirect", Type::Mapping(&REDIRECT), "Redirects the client."),
        Key::optional("respond", Type::Mapping(&RESPOND), "A fixed answer."),
        Key::optional("rewrite", Type::Mapping(&REWRITE), "Another path or host for the upstream."),
        Key::optional(
            "request_headers",
            Type::Mapping(&HEADER_CHANGES),
            "Header fields that the upstream gets, or does not get.",
        ),
        Key::optional(
            "response_headers",
            Type::Mapping(&HEADER_CHANGES),
            "Header fields that clients get, or do not get, with the response.",
        ),
        TIMEOUTS_OF_ROUTE,
        RETRIES_OF_ROUTE,
        BODY_BYTES_OF_ROUTE,
        INSPECT_BYTES_OF_ROUTE,
        LLM_OF_ROUTE,
        Key::optional(
            "forward_client_cert",
            BOOLEAN,
            "Sends the client's verified certificate to the upstream, as `X-Forwarded-Client-Cert`.",
        ),
    ],
    constraints: || {
        let without_upstream =
            json!({"properties": OF_UPSTREAMS.map(|name| (name, false)).into_iter().collect::<BTreeMap<_, _>>()});
        json!({
            "oneOf": [{"required": ["upstream"]}, {"required": ["redirect"]}, {"required": ["respond"]}],
            "dependencies": {
                "redirect": without_upstream,
                "respond": without_upstream,
                "split_by": {"properties": {"upstream": {"not": {"$ref": "#/definitions/scalar"}}}}
            }
        })
    },
};

/// Reads the routes of a file. The fields of this reader are settings of other keys, to which routes refer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteReader<'f> {
    pub ipv6_prefix: u8,
    /// The names of the upstreams, in the order of the file. `None`: routes of this file cannot name upstreams.
    pub upstreams: Option<&'f [&'f str]>,
    pub attributes: AttributeReader<'f>,
    pub environment: Environment<'f>,
    /// The settings of the file for requests to language models.
    pub llm: &'f LlmSettings,
}

impl RouteReader<'_> {
    /// Reads the list of routes. `None` after reporting a problem.
    pub(crate) fn routes(&self, field: &Field<'_>) -> Option<Vec<Route>> {
        let members = field.list_of_mappings()?;
        if members.is_empty() {
            field.must("have at least one route");
            return None;
        }
        let mut names = HashSet::new();
        all(members, |member| self.route(member, &mut names))
    }

    fn route(&self, field: Field<'_>, names: &mut HashSet<String>) -> Option<Route> {
        let position = field.position();
        let section = field.section(&ROUTE)?;
        let name = unique(&section, names);
        let conditions = section.get("match").map_or(Some(Vec::new()), |field| self.conditions(&field));
        let target = self.target(&section, conditions.as_deref());
        let forwarding = self.forwarding(&section, conditions.as_deref());
        section.close();
        Some(Route { name: name?, conditions: conditions?, target: target?, forwarding: forwarding?, position })
    }

    /// Reads the target of a route. A route must have exactly one of the keys that name a target.
    fn target(&self, section: &Section<'_>, conditions: Option<&[Condition]>) -> Option<Target> {
        let upstream = section.get("upstream");
        let upstream = upstream.map(|field| upstreams_of_route(section, &field, self.upstreams, self.attributes));
        let redirect = section.get("redirect").map(|field| redirect(field, conditions).map(RouteAnswer::Redirect));
        let respond = section.get("respond").map(|field| respond(field, self.environment).map(RouteAnswer::Respond));
        let answers = [("redirect", redirect), ("respond", respond)];
        let answers = answers.map(|(name, answer)| (name, answer.map(|answer| answer.map(Target::Answer))));
        let mut targets =
            [("upstream", upstream)].into_iter().chain(answers).filter_map(|(name, target)| Some((name, target?)));
        let Some((first, target)) = targets.next() else {
            section.wrong("upstream", "missing, and so are `redirect` and `respond`: a route has one of them");
            return None;
        };
        let mut alone = true;
        for (name, _) in targets {
            section.unwanted(name, format_args!("must not stand beside `{first}`: a route has one of them"));
            alone = false;
        }
        target.filter(|_| alone)
    }

    /// Reads the changes that a route makes. Returns `Some(None)` if the route changes nothing.
    fn forwarding(&self, section: &Section<'_>, conditions: Option<&[Condition]>) -> Option<Option<Arc<Forwarding>>> {
        let rewrite = section.optional("rewrite", |field| rewrite(field, conditions));
        let changes = |name: &str, message: Message| {
            section.optional(name, |field| header_changes(field, message, self.attributes))
        };
        let request_headers = changes("request_headers", Message::Request);
        let response_headers = changes("response_headers", Message::Response);
        let overrides = overrides(section, self.llm);
        let certificate = section.optional("forward_client_cert", |field| field.boolean());
        if !section.has("upstream") {
            for name in OF_UPSTREAMS {
                section.unwanted(name, "is for a route to an upstream");
            }
        }
        let forwarding = Forwarding {
            rewrite: rewrite?.unwrap_or_default(),
            request_headers: request_headers?.unwrap_or_default(),
            response_headers: response_headers?.unwrap_or_default(),
            overrides: overrides?,
            client_certificate: match certificate? {
                Some(true) => ForwardedCertificate::Yes,
                Some(false) | None => ForwardedCertificate::No,
            },
        };
        Some((forwarding != Forwarding::default()).then(|| Arc::new(forwarding)))
    }

    /// Reads the conditions of a route. They cannot depend on credentials, which are read later, or on the route
    /// itself.
    fn conditions(&self, field: &Field<'_>) -> Option<Vec<Condition>> {
        let restriction =
            Restriction { ipv6_prefix: self.ipv6_prefix, tls: self.attributes.tls, environment: self.environment };
        restriction.conditions(field, |attribute| match attribute {
            attribute if is_of_credentials(attribute) => Some("a route must not depend on credentials"),
            attribute if attribute.needs_body() => Some("the body is read only after the route has been chosen"),
            Attribute::Route | Attribute::Upstream => Some("it is known only after the route has been chosen"),
            Attribute::Descriptor(_) => Some("a decision for another proxy takes no route"),
            _ => None,
        })
    }
}
