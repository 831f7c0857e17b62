//! Reads a whole gateway.yaml: parses the text and makes a [`Config`] of it, or reports every problem at once.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::keys::access_log::{ACCESS_LOG, LoggedAttributeReader, access_log};
use crate::keys::admin::{ADMIN_TYPE, admin};
use crate::keys::check::{CHECK, allowed};
use crate::keys::cors::{CORS, CorsReader};
use crate::keys::drain::{DRAIN, drain};
use crate::keys::error_pages::{ERROR_PAGE, error_pages};
use crate::keys::for_running::is_for_running;
use crate::keys::hash_key::hash_key;
use crate::keys::headers::{HEADERS, headers};
use crate::keys::identity::api_keys::{API_KEYS, api_keys};
use crate::keys::identity::client_ip::{CLIENT_IP, client_ip};
use crate::keys::identity::jwt::{JWT, jwt};
use crate::keys::limits::{LIMITS, limits};
use crate::keys::listeners::listen_address::LISTEN_ADDRESS;
use crate::keys::listeners::taken_addresses::TakenAddresses;
use crate::keys::listeners::{LISTENER, listeners};
use crate::keys::llm::{ErrorFormats, LLM, llm};
use crate::keys::log::{LOG, log};
use crate::keys::other_names::other_name;
use crate::keys::prices::{PRICES, prices};
use crate::keys::records::{RECORDS, RecordsReader, records};
use crate::keys::retry_after_jitter::{RETRY_AFTER_JITTER, retry_after_jitter};
use crate::keys::routes::{ROUTE, RouteReader};
use crate::keys::rules::attribute::{AttributeReader, TlsAttributes};
use crate::keys::rules::exempt::EXEMPT;
use crate::keys::rules::on_store_failure::{ON_STORE_FAILURE, on_store_failure};
use crate::keys::rules::policies::{POLICY, policies};
use crate::keys::rules::restricted_match::Restriction;
use crate::keys::rules::rule_match::ConditionReader;
use crate::keys::rules::scope::HomeTerms;
use crate::keys::rules::{RULE, RuleDefaults};
use crate::keys::store::home::Home;
use crate::keys::store::{STORE, store};
use crate::keys::threads::THREADS;
use crate::keys::upstreams::UPSTREAM_ENTRY;
use crate::keys::upstreams::short_form::upstreams_of;
use crate::keys::upstreams::upstream::UPSTREAM;
use crate::keys::upstreams::upstream_timeouts::{UPSTREAM_TIMEOUTS, upstream_timeouts};
use crate::keys::usage::{USAGE, usage};
use crate::language::environment::Environment;
use crate::language::key::{FileKeys, Key, Mapping, PATH, TEXT, Type};
use crate::language::problem::{Problem, Problems, Purpose, Report};
use crate::language::reader::Field;
use crate::language::remarks::Remarks;
use crate::language::substitution;
use crate::language::tree;
use crate::language::tree::Node;
use crate::language::warning::{Warning, Warnings};
use crate::lints;
use crate::lints::bans::divided_bans;
use crate::lints::location::Finding;
use crate::lints::valid_rest::ValidRest;
use request::key_places::KeyPlaces;
use rules::route::llm_settings::LlmSettings;
use rules::route::route_set::RouteSet;
use rules::rule::{OnStoreFailure, RuleSource};
use rules::rule_set::RuleSet;

pub(crate) const FILE_KEYS: FileKeys = FileKeys { root: &FILE, other_name, is_for_running, store: "store" };

pub(crate) static FILE: Mapping = Mapping {
    heading: Some("key"),
    definition: None,
    keys: &[
        Key::default(
            "listen",
            LISTEN_ADDRESS.declared(),
            "0.0.0.0:8080",
            "Where requests arrive. Port 0 picks a free port, which is printed at the start.",
        ),
        Key::optional(
            "listeners",
            Type::List { of: &LISTENER, least: 1 },
            "Several such addresses, instead of `listen`.",
        ),
        Key::optional(
            "admin",
            ADMIN_TYPE,
            "Serves `/metrics`, `/livez`, `/readyz` and the status page, without a password.",
        ),
        Key::default("threads", THREADS.declared(), "auto", "Threads that proxy. `auto`: one for each core."),
        Key::depends(
            "upstream",
            UPSTREAM.declared(),
            "`upstreams` and `routes` instead; none where every listener has `decide`",
            "The one upstream: `http://HOST:PORT` or `https://…`, without a path, or `unix:PATH`.",
        ),
        Key::optional(
            "upstreams",
            Type::Named(&UPSTREAM_ENTRY),
            "Several upstreams, by name. A name is made like that of a rule.",
        ),
        Key::optional(
            "routes",
            Type::List { of: &ROUTE, least: 1 },
            "Which upstream a request goes to: the first route that matches decides.",
        ),
        Key::default("upstream_timeouts", Type::Mapping(&UPSTREAM_TIMEOUTS), "{}", "How long the upstream may take."),
        Key::default(
            "store",
            Type::Mapping(&STORE),
            "{memory: {}}",
            "Where buckets live: one of `memory`, `redis` and `postgres`.",
        ),
        Key::default(
            "on_store_failure",
            ON_STORE_FAILURE,
            "local",
            "When the store does not answer. `local`: this gateway's share is charged in memory. `allow`: the request \
             passes. `deny`: 503.",
        ),
        Key::default(
            "client_ip",
            Type::Mapping(&CLIENT_IP),
            "{}",
            "The address of a client: the attribute `ip:address`.",
        ),
        Key::optional("jwt", Type::Mapping(&JWT), "JSON Web Tokens. Their claims are the attributes `jwt:<claim>`."),
        Key::optional("api_keys", Type::Mapping(&API_KEYS), "API keys, for the attributes `key:…`."),
        Key::optional("usage", Type::Mapping(&USAGE), "Where clients ask what they have left, without a charge."),
        Key::optional(
            "cors",
            Type::List { of: &CORS, least: 1 },
            "Web pages of other origins that may send requests. The first entry that matches decides.",
        ),
        Key::optional(
            "error_pages",
            Type::List { of: &ERROR_PAGE, least: 1 },
            "Own bodies for the gateway's responses. The first entry that matches is used.",
        ),
        Key::optional("llm", Type::Mapping(&LLM), "For requests to models; also on a route."),
        Key::optional("prices", Type::Mapping(&PRICES), "What tokens of models cost, for `cost_source: llm_cost`."),
        Key::default("exempt", EXEMPT.declared(), "[]", "Requests that pay nothing."),
        Key::optional(
            "rules",
            Type::List { of: &RULE, least: 0 },
            "The rules of one policy, `default`. The first that applies decides.",
        ),
        Key::optional("policies", Type::List { of: &POLICY, least: 0 }, "Named lists of rules. Every policy counts."),
        Key::default(
            "headers",
            HEADERS,
            "[ratelimit, legacy]",
            "Which rate-limit fields responses have; `[]` for none.",
        ),
        Key::default(
            "retry_after_jitter",
            Type::Mapping(&RETRY_AFTER_JITTER),
            "{}",
            "How far `Retry-After` is spread.",
        ),
        Key::default("limits", Type::Mapping(&LIMITS), "{}", "Bounds of requests and connections."),
        Key::default("drain", Type::Mapping(&DRAIN), "{}", "How the process shuts down."),
        Key::default("log", Type::Mapping(&LOG), "{}", "Diagnostics on standard error."),
        Key::optional("access_log", Type::Mapping(&ACCESS_LOG), "One line of JSON for each request."),
        Key::optional("records", Type::Mapping(&RECORDS), "Lines of JSON for billing: what customers have used."),
        Key::default("check", Type::Mapping(&CHECK), "{}", "What `tollgate check` reports about this file."),
        Key::optional("hash_key", TEXT, "The key of pseudonyms in logs and reports: a secret of at least 16 bytes."),
        Key::optional("hash_key_file", PATH, "A file that holds the secret."),
    ],
    constraints: || {
        json!({"anyOf": [{"required": ["upstream"]}, {"required": ["upstreams", "routes"]}, {
            "required": ["routes"],
            "properties": {"routes": {"items": {"properties": {"upstream": false}}}}
        }, {
            "required": ["listeners"],
            "properties": {"listeners": {"items": {"required": ["decide"]}}}
        }], "dependencies": {
            "upstream": {"properties": {"upstreams": false, "routes": false}},
            "listen": {"properties": {"listeners": false}},
            "rules": {"properties": {"policies": false}},
            "hash_key": {"properties": {"hash_key_file": false}}
        }})
    },
};

/// A checked file without problems.
struct CheckedFile {
    config: Config,
    /// The names of warnings that are silenced.
    allowed: Vec<&'static str>,
}

impl Config {
    /// Reads the text of a gateway.yaml that the gateway is going to run. `file` is the name of the file in reports.
    ///
    /// # Errors
    /// All problems of the text, and of the files that it names.
    pub fn parse(file: &str, bytes: &[u8], environment: Environment<'_>) -> Result<Config, Problems> {
        Config::parse_for(Purpose::Run, file, bytes, environment)
    }

    /// Reads the text of a gateway.yaml for this purpose. If the file is only examined, each unknown secret or address
    /// is a warning.
    ///
    /// # Errors
    /// All problems of the text, and of the files that it names.
    pub fn parse_for(
        purpose: Purpose,
        file: &str,
        bytes: &[u8],
        environment: Environment<'_>,
    ) -> Result<Config, Problems> {
        let report = Report::new(purpose).of_keys(FILE_KEYS);
        match tree::read(bytes, &report) {
            Ok(tree) => Config::of_tree(tree, &report, purpose, file, bytes, environment),
            Err(problem) => {
                let mut problems = report.into_problems();
                problems.push(problem);
                Err(Problems { file: file.to_owned(), problems, warnings: Vec::new() })
            }
        }
    }

    /// Reads the tree of a gateway.yaml with these bytes, as [`Config::parse_for`] does.
    ///
    /// # Errors
    /// All problems of the tree, and of the files that it names.
    pub(crate) fn of_tree(
        mut tree: Node,
        report: &Report,
        purpose: Purpose,
        file: &str,
        bytes: &[u8],
        environment: Environment<'_>,
    ) -> Result<Config, Problems> {
        substitution::expand(&mut tree, environment.variable, report);
        let checked = checked(Field::root(&tree, report), environment);
        let remarks = report.remarks();
        match (report.problems(), checked) {
            (problems, Some(CheckedFile { config, allowed })) if problems.is_empty() => {
                let config = Config { remarks, ..config };
                let divided = divided_bans(&config, &tree);
                if !divided.is_empty() {
                    let problems = divided.into_iter().map(Finding::into_problem).collect();
                    return Err(Problems { file: file.to_owned(), problems, warnings: Vec::new() });
                }
                let mut warnings = lints::warnings(&config, &allowed, &tree);
                report.conceal_in(&mut warnings);
                let warnings = Warnings { file: file.to_owned(), warnings };
                Ok(Config { warnings, hash: short_hash(bytes), ..config })
            }
            (problems, _) => {
                // To run the gateway, the file is read once, because it may be a pipe. Warnings would need a second
                // reading.
                let mut warnings = match purpose {
                    Purpose::Run => Vec::new(),
                    Purpose::CheckToRun | Purpose::Examine | Purpose::ReachStore => {
                        warnings_beside(&problems, &tree, remarks, environment)
                    }
                };
                report.conceal_in(&mut warnings);
                Err(Problems { file: file.to_owned(), problems, warnings })
            }
        }
    }
}

/// Returns the warnings about the valid keys of a file that has these problems.
fn warnings_beside(
    problems_of_file: &[Problem],
    tree: &Node,
    remarks: Remarks,
    environment: Environment<'_>,
) -> Vec<Warning> {
    let Some(rest) = ValidRest::of(problems_of_file, tree, &FILE.names()) else { return Vec::new() };
    let report = Report::new(Purpose::Examine);
    let checked = checked(Field::root(&rest.tree, &report), environment);
    match (report.into_problems(), checked) {
        (problems, Some(CheckedFile { config, allowed })) if problems.is_empty() => {
            let mut warnings = lints::warnings(&Config { remarks, ..config }, &allowed, &rest.tree);
            // A value with a problem gets no warning.
            let is_problem = |warning: &Warning| {
                problems_of_file.iter().any(|one| one.position == Some(warning.position) && one.path == warning.path)
            };
            warnings.retain(|warning| rest.decides(warning.name) && !is_problem(warning));
            warnings
        }
        _ => Vec::new(),
    }
}

/// Reads every key, also after a problem. `None` if a problem has been reported.
fn checked(root: Field<'_>, environment: Environment<'_>) -> Option<CheckedFile> {
    let file = root.section(&FILE)?;
    let mut addresses = TakenAddresses::default();
    let listeners = listeners(&file, environment, &mut addresses);
    let admin = file.optional("admin", |field| admin(&field, environment, &mut addresses));
    let threads = file.value("threads", |field| THREADS.read(field));
    let upstream_timeouts = file.value("upstream_timeouts", upstream_timeouts);
    let (store, home) = file.value("store", |field| store(field, environment)).unzip();
    let on_store_failure = file.value("on_store_failure", on_store_failure);
    let client_ip = file.value("client_ip", client_ip);
    let mut jwt = file.optional("jwt", |field| jwt(field, environment));
    let token_from = jwt.iter().flatten().flat_map(|jwt| jwt.token_from.clone()).collect::<Vec<_>>();
    let api_keys = file.optional("api_keys", |field| api_keys(field, &token_from, environment));
    let key_places = api_keys.iter().flatten().next().map(|api_keys| api_keys.from.clone());
    if let (Some(Some(jwt)), Some(places)) = (&mut jwt, &key_places) {
        jwt.shared_with_keys = places.attributes_with_tokens().map(Cow::into_owned).collect();
    }
    let columns = api_keys.as_ref().and_then(Option::as_ref).map(|api_keys| api_keys.keys().columns());
    // If `listeners` is invalid, every TLS attribute is allowed, to avoid false problems.
    let tls = listeners.as_deref().map_or(TlsAttributes::All, TlsAttributes::of);
    let attributes =
        AttributeReader { jwt: file.has("jwt"), api_keys: file.has("api_keys"), tls, columns: columns.as_deref() };
    let upstreams = upstreams_of(&file, upstream_timeouts, environment, attributes);
    // If `client_ip` is invalid, the prefix is 64, to avoid false problems.
    let ipv6_prefix = client_ip.as_ref().map_or(64, |client_ip| client_ip.ipv6_prefix);
    let conditions = ConditionReader { attributes, ipv6_prefix, environment };
    let prices = file.optional("prices", |field| prices(field, environment));
    let defaults = RuleDefaults {
        conditions,
        on_store_failure: on_store_failure.unwrap_or(OnStoreFailure::Local),
        has_prices: file.has("prices"),
        home: match &home {
            Some(home) => home.as_ref().map(Home::terms),
            // Limits of an invalid store are read as if it had a home, to avoid false problems.
            None => Some(HomeTerms::OF_INVALID),
        },
    };
    let llm = file.optional("llm", llm).map(Option::unwrap_or_default);
    let llm_settings = LlmSettings::default().with(&llm.clone().unwrap_or_default().settings);
    let routes = match file.get("routes") {
        Some(field) => {
            // Invalid upstreams have been reported, but routes may still use their names.
            let named = file.get("upstreams").filter(|field| field.is_map() && !file.has("upstream"));
            let names: Option<Vec<&str>> =
                named.map(|field| field.entries().iter().map(|upstream| &*upstream.key).collect());
            RouteReader { ipv6_prefix, upstreams: names.as_deref(), attributes, environment, llm: &llm_settings }
                .routes(&field)
                .map(RouteSet::compile)
        }
        None if upstreams.as_ref().is_some_and(Vec::is_empty) => Some(RouteSet::compile(Vec::new())),
        None => Some(RouteSet::single()),
    };
    let exempt = file.value("exempt", |field| (EXEMPT.checked(&field)?)(field, conditions));
    let policies = policies(&file, defaults);
    let headers = file.value("headers", headers);
    let retry_after_jitter = file.value("retry_after_jitter", retry_after_jitter);
    let limits = file.value("limits", limits);
    let extra_methods = limits.as_ref().map_or(&[][..], |(_, extra_methods)| extra_methods);
    let restriction = Restriction { ipv6_prefix, tls, environment };
    let error_format = llm.as_ref().and_then(|llm| llm.error_format);
    let error_formats = routes.as_ref().map(|routes| ErrorFormats::new(error_format, routes));
    let cors = file.optional("cors", |field| {
        let formats = headers.as_deref().unwrap_or_default();
        let error_formats = error_formats.unwrap_or_default();
        CorsReader { restriction, extra_methods, formats, error_formats }.cors(&field)
    });
    let usage = file.optional("usage", usage);
    let error_pages = file.optional("error_pages", |field| error_pages(&field, restriction, environment));
    let drain = file.value("drain", drain);
    let log = file.value("log", log);
    let with_keys = key_places.iter().flat_map(KeyPlaces::attributes).map(Cow::into_owned);
    let credentials: Vec<_> = token_from.iter().cloned().chain(with_keys).collect();
    let logged = LoggedAttributeReader { attributes, credentials: &credentials };
    let access_log = file.optional("access_log", |field| access_log(field, logged, environment));
    let written = access_log.as_ref().and_then(|log| Some(&log.as_ref()?.to));
    let reader = RecordsReader { logged, policies: policies.as_deref(), access_log: written, environment };
    let records = file.optional("records", |field| records(field, reader));
    let allowed = file.value("check", allowed);
    let hash_key = hash_key(&file, environment);
    file.close();
    on_store_failure?;
    let (bounds, extra_methods) = limits?;
    let routes = routes?;
    let (jwt, api_keys, source) = (jwt?, api_keys?, RuleSource { policies: policies?, exempt: exempt? });
    let admin = admin?;
    let config = Config {
        listeners: listeners?,
        admin: admin.as_ref().map(|admin| admin.address),
        admin_write: admin.and_then(|admin| admin.write),
        threads: threads?,
        upstreams: upstreams?,
        store: store?,
        home: home?,
        client_ip: client_ip?,
        rules: {
            let rules = RuleSet::compile(source)
                .with_unambiguous(credentials.into_iter().chain(routes.read_attributes().cloned()));
            key_places.into_iter().fold(rules, RuleSet::with_key_places)
        },
        routes,
        usage: usage?,
        cors: cors?,
        error_pages: error_pages?.map(Arc::new),
        error_formats: llm.and(error_formats)?,
        llm: Arc::new(llm_settings),
        prices: prices?,
        jwt,
        api_keys,
        headers: headers?,
        retry_after_jitter: retry_after_jitter?,
        bounds,
        extra_methods,
        drain: drain?,
        log: log?,
        access_log: access_log?,
        records: records?,
        hash_key: hash_key?,
        remarks: Remarks::default(),
        warnings: Warnings::default(),
        hash: String::new(),
    };
    Some(CheckedFile { config, allowed: allowed? })
}

/// Returns the first eight hexadecimal digits of the SHA-256 hash.
fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
