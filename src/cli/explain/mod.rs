//! `tollgate explain`: explains rule by rule how a file decides a request, and what the gateway would answer.
//!
//! Nothing is sent and nothing is charged. The store is read only with `--live`.

mod answer;
mod connection;
mod credentials;
mod descriptor;
mod home;
mod logged;
mod own_responses;
mod page;
mod report;
mod routes;
mod sample_request;

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::NonEmptyStringValueParser;
use http::Method;
use http::header::{HOST, HeaderName};

use super::admin_client;
use super::bucket_backend::{Access, Backend};
use super::config_file::{ConfigFile, examine};
use super::failure::Failure;
use super::output;
use super::output::Page;
use crate::gateway::take_call::HoldFor;
use answer::ExplainedRefusal;
use base::time::{Clock, Micros};
use config::Config;
use config::access_log::Destination;
use config::problem::Purpose;
use connection::SampleConnection;
use credentials::{Credentials, KeyFetches};
use decision::model_requests::take_part;
use decision::order_of_answers::{Stage, choose_route};
use decision::refusal::Refusal;
use home::Live;
use identity::jwt;
use ledger::bucket_key::BucketKey;
use ledger::charge::Charge;
use ledger::holds::{Owner, TimedHold};
use logged::Search;
use report::{Report, Subject};
use request::attribute::Attribute;
use request::door::Door;
use request::grpc_timeout;
use request::identity::Claims;
use request::llm_model::format_of;
use request::request::Request;
use request::sent_descriptor::SentDescriptor;
use rules::partial_evaluation::{Knowledge, Observation};
use rules::route::route_set::Route;
use rules::rule_set;
use sample_request::{RequestArguments, SampleRequest};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const EXAMPLE: &str = "\
Example: explain a request with these claims, a request with the levels of its buckets, a descriptor, and a logged request.

  tollgate explain --claims '{\"plan\": \"free\", \"sub\": \"acme\"}' http://localhost:8080/v1/export/7
  tollgate explain --live --ip 203.0.113.7 /v1/export/7
  tollgate explain --domain edge --descriptor tenant=acme --descriptor path=/v1/export
  tollgate explain --id 9e95b229c1d0 --log access.jsonl";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// The method
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A header field; may be given several times. An API key is also given here
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = sample_request::header_argument)]
    headers: Vec<String>,
    /// A token, put in the first place where the file looks for a token; `-` reads it from standard input
    #[arg(long, value_name = "TOKEN", conflicts_with = "claims")]
    jwt: Option<String>,
    /// The claims of a token, as a JSON object; they count as verified
    #[arg(long, value_name = "JSON", value_parser = credentials::claims_argument)]
    claims: Option<String>,
    /// The listener at which the request arrives [default: the first; for an https URL the first with TLS]. If it has
    /// `decide`, its answer to the asking proxy is shown
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// A client's certificate, as a PEM file; it counts as verified
    #[arg(long, value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// The address from which the connection comes; on a listener with `decide`, the address of the client
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_parser = ip_argument)]
    ip: IpAddr,
    /// Show what the buckets hold now (and fetch keys that issuers publish); nothing is charged
    #[arg(long)]
    live: bool,
    /// The admin listener to ask about buckets in memory [default: the one in the file]
    #[arg(long, value_name = "ADDRESS", requires = "live", value_parser = admin_client::address_argument)]
    admin: Option<SocketAddr>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// The request: http://host/path, host/path, or /path
    #[arg(value_name = "URL", required_unless_present_any = ["id", "descriptor"])]
    url: Option<String>,
    /// Without a URL: one entry of a descriptor, as Envoy's rate limit filter sends it. With a URL: one context extension, as
    /// Envoy's external authorization filter sends it with the request. May be given several times
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "id", value_parser = descriptor::entry_argument)]
    descriptor: Vec<String>,
    /// The domain of the descriptor
    #[arg(long, value_name = "NAME", requires = "descriptor", conflicts_with = "url")]
    domain: Option<String>,
    /// How long the service that sends the descriptor holds what it takes, as in `hold_for`
    #[arg(long, value_name = "TIME", requires = "descriptor", conflicts_with = "url", value_parser = descriptor::hold_argument)]
    hold_for: Option<HoldFor>,
    /// Instead of a URL: the X-Request-Id of a logged request, or its beginning, if no other request has the same
    /// beginning
    #[arg(
        long,
        value_name = "REQUEST_ID",
        conflicts_with_all = ["url", "jwt", "claims"],
        value_parser = NonEmptyStringValueParser::new()
    )]
    id: Option<String>,
    /// The access logs to search, compressed or not; `-` is standard input [default: the one in the file]
    #[arg(long = "log", value_name = "FILE", num_args = 1.., requires = "id")]
    logs: Vec<PathBuf>,
}

/// Explains the decision about a request, a descriptor or a request in an access log, and prints the explanation.
///
/// # Errors
/// When the file has problems, an argument is invalid, or a log or the store cannot be read.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let file = &arguments.file.config;
    let purpose = if arguments.live { Purpose::ReachStore } else { Purpose::Examine };
    let config = examine(file, purpose)?;
    if let Some(id) = &arguments.id {
        let file = &*arguments.file.config;
        let backend = arguments
            .live
            .then(|| Backend::of(&config, file, arguments.admin.map(Into::into), Access::Read))
            .transpose()?;
        let logs = logs(arguments, &config)?;
        let search =
            Search { id, logs: &logs, file, backend, json: arguments.json, are_of_file: arguments.logs.is_empty() };
        return output::print(&search.run(&config)?);
    }
    let report = match &arguments.url {
        Some(url) => explain(arguments, url, &config)?,
        None => descriptor::explain(arguments, &config)?,
    };
    let mut page = Page::default();
    match arguments.json {
        true => page.pretty_json(&report)?,
        false => page.lines(page::lines(&report)),
    }
    output::print(&page)
}

fn ip_argument(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "must be an IP address, like 203.0.113.7".to_owned())
}

/// Returns the logs in the arguments. Without an argument, returns the access log of the file.
fn logs(arguments: &Arguments, config: &Config) -> Result<Vec<PathBuf>, Failure> {
    if !arguments.logs.is_empty() {
        return Ok(arguments.logs.clone());
    }
    let file = arguments.file.config.display();
    match config.access_log.as_ref().map(|log| &log.to) {
        Some(Destination::File(path)) => Ok(vec![path.clone()]),
        Some(_) => Err(format!("--log: missing: the access log of {file} goes to a stream").into()),
        None => Err(format!("--log: missing: {file} has no `access_log`").into()),
    }
}

fn explain(arguments: &Arguments, url: &str, config: &Config) -> Result<Report, Failure> {
    let claims = claims(arguments, config)?;
    let mut headers = arguments.headers.clone();
    if let Some(token) = &arguments.jwt {
        headers.push(token_header(&read_token(token)?, config)?);
    }
    let parts = RequestArguments { url, method: &arguments.method, headers, peer: arguments.ip };
    let sample = match SampleRequest::new(&parts, config)? {
        Ok(sample) => sample,
        Err(refusal) => {
            let request = report::Request {
                method: arguments.method.clone(),
                host: parts.host().to_owned(),
                path: None,
                target: parts.target().to_owned(),
                client: arguments.ip.to_canonical().to_string(),
                client_from: "TCP peer".to_owned(),
                door: None,
            };
            return Ok(before_rules(arguments, request, &refusal));
        }
    };
    let shown = arguments.client_cert.as_deref();
    let connection = SampleConnection::new(arguments.listener.as_deref(), shown, &sample, config)?;
    let (settings, headers) = (&config.client_ip, &sample.head.headers);
    let client = match connection.door() {
        Door::Proxy | Door::ExtAuthz | Door::Rls | Door::Json => settings.client(sample.peer, headers),
        // At this door, the peer is the proxy that asks.
        Door::Http => settings.client_of_trusted(sample.peer, headers),
    };
    let bare = Request::new(&sample.head, client).with_scheme(sample.scheme(connection.listener, config));
    let bare = bare.with_listener(&connection.listener.name).with_tls(connection.tls.as_ref());
    let bare = bare.with_door(connection.door());
    let sent = SentDescriptor::of_request(descriptor::entries(arguments)?);
    let bare = match arguments.descriptor.is_empty() {
        true => bare,
        false => bare.with_door(Door::ExtAuthz).with_descriptor(Some(&sent)),
    };
    let described = describe(&sample, &bare, config);
    let mut report = by_stages(arguments, config, described, (&bare, &connection), claims)?;
    own_responses::describe(&mut report.answer, config, &bare);
    report.answer.words.extend(answer::at_door(&report.answer, connection.listener));
    Ok(report)
}

/// Makes the report on a request with a valid head, from the first stage that answers.
fn by_stages(
    arguments: &Arguments,
    config: &Config,
    described: report::Request,
    (bare, connection): (&Request<'_>, &SampleConnection<'_>),
    claims: Option<Arc<Claims>>,
) -> Result<Report, Failure> {
    let (mut credentials, mut routes, mut destination) = (Credentials::default(), Vec::new(), ("", ""));
    let preflight = own_responses::preflight(config, bare);
    for stage in Stage::before_rules(bare.door) {
        match stage {
            Stage::Connection => {
                if let Some(refusal) = &connection.refusal {
                    return Ok(before_rules(arguments, described, refusal));
                }
            }
            Stage::Reading => {
                if let Err(ambiguity) = config.rules.read(bare) {
                    let detail = answer::ambiguity_detail(ambiguity, config.rules.ambiguity(), bare);
                    let refusal = ExplainedRefusal::new(Refusal::ambiguous(ambiguity), detail);
                    return Ok(before_rules(arguments, described, &refusal));
                }
            }
            Stage::Preflight => {
                if let Some(entry) = preflight.filter(|_| bare.door == Door::Proxy) {
                    return Ok(without_rules(arguments, described, own_responses::preflight_answer(entry)));
                }
            }
            // At other doors than `Proxy`, a preflight needs no credentials.
            Stage::Credentials if preflight.is_some() => {}
            Stage::Credentials => {
                let fetching = if arguments.live { KeyFetches::Allowed } else { KeyFetches::Forbidden };
                credentials = match credentials::authenticate(config, bare, claims.clone(), fetching)? {
                    Ok(credentials) => credentials,
                    Err(refusal) => return Ok(before_rules(arguments, described, &refusal)),
                };
            }
            Stage::Usage => {
                if config.usage.as_ref().is_some_and(|usage| usage.is_asked(bare)) {
                    let report = without_rules(arguments, described, own_responses::usage_answer(bare));
                    return Ok(Report { token: credentials.token, key: credentials.api_key, ..report });
                }
            }
            Stage::Route => {
                let request = bare.with_identity(&credentials.identity);
                routes = routes::explain(config, &request);
                destination = match choose_route(&config.routes, &request, |_| 0) {
                    Ok(choice) => config.destination(choice),
                    Err(refusal) => {
                        let refusal = ExplainedRefusal::new(refusal, "none of the routes matches".to_owned());
                        return Ok(Report { routes, ..before_rules(arguments, described, &refusal) });
                    }
                };
            }
        }
    }
    let (route, upstream) = destination;
    let request = bare.with_identity(&credentials.identity).with_destination(route, upstream);
    let report = by_rules(arguments, config, Subject::of_request(described), &credentials, &request)?;
    Ok(Report { routes, ..report })
}

/// Makes the report on a request that reaches the rules.
fn by_rules(
    arguments: &Arguments,
    config: &Config,
    subject: Subject,
    credentials: &Credentials,
    request: &Request<'_>,
) -> Result<Report, Failure> {
    let known = Knowledge {
        client: Some(request.client.address()),
        issuer: request.claims.and_then(Claims::issuer),
        at: Clock::system().wall(),
        names: &config.hash_key,
        is_held: request.is_held,
    };
    let mut see = |attribute: &Attribute| match attribute.needs_body() && request.door == Door::Proxy {
        // The body of the request is not known here, so its values are not known either.
        true => Observation::Unknown,
        false => attribute.resolve_for_match(request).into(),
    };
    let mut explanation = config.rules.explain(&mut see, known);
    let of_route = config.routes.routes().iter().find(|route| route.name == request.route).and_then(Route::llm);
    let llm = of_route.unwrap_or(&config.llm);
    let prices = config.prices.as_ref();
    let unpriced = match take_part(explanation.answer.clone(), &config.rules, request, llm, prices) {
        Ok((answer, _)) => {
            explanation.answer = answer;
            None
        }
        Err(unpriced) => Some(answer::unpriced(&unpriced.refusal)),
    };
    let keys: Vec<BucketKey> = match &explanation.answer {
        rule_set::Answer::Charge(plan) => plan.charges().map(|charge| charge.key).collect(),
        _ => Vec::new(),
    };
    // Levels are needed only for charges.
    let live: Option<Live> = match arguments.live && !keys.is_empty() {
        true => {
            let store = Backend::of(config, &arguments.file.config, arguments.admin.map(Into::into), Access::Read)?;
            let plan = match &explanation.answer {
                rule_set::Answer::Charge(plan) => Some(plan),
                _ => None,
            };
            Some(Live::new(store.read(&keys)?, plan, config))
        }
        false => None,
    };
    let levels = live.as_ref().map(|live| &live.levels);
    let now = levels.map_or(known.at.into(), |levels| levels.at);
    let longest_delay = match request.door {
        Door::Proxy => grpc_timeout::longest_delay(request.head, Micros(0)),
        // At these doors, limits do not delay requests.
        Door::Http | Door::ExtAuthz | Door::Rls | Door::Json => Some(Micros(0)),
    };
    let takes_part = unpriced.is_some() || (request.head.method == Method::POST && format_of(request.head).is_some());
    let cost = |charge: &Charge| {
        let price = config.rules.limit(charge.limit).and_then(|limit| limit.settled_price());
        match &explanation.answer {
            rule_set::Answer::Charge(plan) | rule_set::Answer::TooLarge(plan)
                if !takes_part && price.is_some_and(|price| price.source.is_llm()) =>
            {
                plan.charges().find(|other| other.limit == charge.limit).map(|other| other.cost)
            }
            _ => Some(charge.cost),
        }
    };
    let longest = |time: Micros| match &explanation.answer {
        rule_set::Answer::Charge(plan) | rule_set::Answer::TooLarge(plan) => {
            TimedHold { owner: Owner::NOBODY, life: time }.within(plan).life
        }
        _ => time,
    };
    let hold_for = arguments.hold_for.map(|HoldFor(time)| longest(time));
    let terms = report::Terms { cost: &cost, now, levels, hold_for };
    Ok(Report {
        file: arguments.file.config.display().to_string(),
        subject,
        token: credentials.token.clone(),
        key: credentials.api_key.clone(),
        routes: Vec::new(),
        policies: report::policies(&explanation, config, terms),
        answer: unpriced.unwrap_or_else(|| answer::by_rules(&explanation, config, live.as_ref(), longest_delay)),
        read_from: levels.map(|levels| levels.from.clone()),
    })
}

/// Makes the report on a request that is refused before the rules.
fn before_rules(arguments: &Arguments, request: report::Request, refusal: &ExplainedRefusal) -> Report {
    without_rules(arguments, request, answer::before_rules(refusal))
}

fn without_rules(arguments: &Arguments, request: report::Request, answer: report::Answer) -> Report {
    Report {
        file: arguments.file.config.display().to_string(),
        subject: Subject::of_request(request),
        token: None,
        key: None,
        routes: Vec::new(),
        policies: Vec::new(),
        answer,
        read_from: None,
    }
}

fn describe(sample: &SampleRequest, request: &Request<'_>, config: &Config) -> report::Request {
    let peer = sample.peer.to_canonical();
    let forwarded = sample.head.headers.contains_key(FORWARDED_FOR);
    let client_from = match (config.client_ip.trusts(peer), forwarded) {
        _ if request.door != Door::Proxy => "X-Forwarded-For, from the proxy that asks".to_owned(),
        (true, true) => format!("X-Forwarded-For, from the trusted proxy {peer}"),
        (true, false) => "TCP peer, a trusted proxy that names no client".to_owned(),
        (false, true) => "TCP peer; not a trusted proxy, so its X-Forwarded-For is ignored".to_owned(),
        (false, false) => "TCP peer".to_owned(),
    };
    report::Request {
        method: sample.head.method.to_string(),
        host: sample
            .head
            .headers
            .get(HOST)
            .map_or_else(String::new, |host| String::from_utf8_lossy(host.as_bytes()).into()),
        path: sample.path(),
        target: sample.target.clone(),
        client: request.client.to_string(),
        client_from,
        door: (request.door != Door::Proxy).then(|| request.door.name()),
    }
}

fn claims(arguments: &Arguments, config: &Config) -> Result<Option<Arc<Claims>>, Failure> {
    let option = if arguments.jwt.is_some() { Some("--jwt") } else { arguments.claims.as_ref().map(|_| "--claims") };
    let Some(option) = option else { return Ok(None) };
    let file = arguments.file.config.display();
    let settings: &jwt::Settings =
        config.jwt.as_ref().ok_or_else(|| format!("{option}: {file} has no `jwt`, so tokens are not read"))?;
    arguments.claims.as_deref().map(|json| credentials::claims_of(json, settings)).transpose()
}

fn read_token(token: &str) -> Result<String, Failure> {
    if token != "-" {
        return Ok(token.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().lock().take(1 << 16).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Returns the header line with a token, in the first place where the file looks for it.
fn token_header(token: &str, config: &Config) -> Result<String, Failure> {
    match config.jwt.as_ref().and_then(|settings| settings.token_from.first()) {
        Some(Attribute::Header(name)) => Ok(format!("{name}: Bearer {token}")),
        Some(Attribute::Cookie(name)) => Ok(format!("cookie: {name}={token}")),
        _ => Err("--jwt: give the token with -H, where the file looks for it".into()),
    }
}
