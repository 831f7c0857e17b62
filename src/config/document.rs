//! Makes a `Config` of a file's tree: one function for each section, all of them run whatever the others found.

use super::reader::{Field, Section, all};
use super::rules::RuleDefaults;
use super::warning::Warnings;
use super::{
    Config, Drain, Environment, HeaderFormat, Log, LogFormat, Threads, Upstream, UpstreamTimeouts, access_log,
    api_keys, check, hash_key, jwt, limits, listeners, rules, store,
};
use crate::auth::client_ip;
use crate::base::time::Micros;
use crate::decision::retry_after::Jitter;
use crate::limit::rule::OnStoreFailure;
use crate::limit::rule_set::RuleSet;

/// A file without a problem.
#[derive(Debug)]
pub struct Checked {
    pub config: Config,
    /// The names of warnings that are meant.
    pub allowed: Vec<&'static str>,
}

/// None when a problem has been reported.
pub fn config(root: Field<'_>, surroundings: Environment<'_>) -> Option<Checked> {
    let file = root.section()?;
    let listeners = listeners::listeners(&file);
    let admin = optional(file.get("admin"), |field| field.socket_address());
    let threads = or_default(file.get("threads"), Threads::Auto, threads);
    let upstream = file.need("upstream").and_then(|field| upstream(&field));
    let store = store::store(file.get("store"), surroundings);
    let on_store_failure = store::on_store_failure(&file);
    let client_ip = or_default(file.get("client_ip"), client_ip::Settings::default(), client_ip);
    let jwt = optional(file.get("jwt"), |field| jwt::tokens(field, surroundings));
    let api_keys = optional(file.get("api_keys"), |field| api_keys::api_keys(field, surroundings));
    let given = RuleDefaults {
        // A wrong prefix is reported once, above.
        ipv6_prefix: client_ip.as_ref().map_or(64, |client_ip| client_ip.ipv6_prefix),
        on_store_failure: on_store_failure.unwrap_or(OnStoreFailure::Local),
        jwt: file.has("jwt"),
        api_keys: file.has("api_keys"),
    };
    let source = rules::source(&file, given);
    let headers = or_default(file.get("headers"), vec![HeaderFormat::RateLimit, HeaderFormat::Legacy], headers);
    let retry_after_jitter = jitter(file.get("retry_after_jitter"));
    let bounds = limits::bounds(file.get("limits"));
    let upstream_timeouts = upstream_timeouts(file.get("upstream_timeouts"));
    let drain = drain(file.get("drain"));
    let log = log(file.get("log"));
    let access_log = optional(file.get("access_log"), |field| access_log::access_log(field, given, surroundings));
    let hash_key = hash_key::hash_key(&file, surroundings);
    let allowed = or_default(file.get("check"), Vec::new(), check::allowed);
    file.close();
    on_store_failure?;
    let (jwt, api_keys, source) = (jwt?, api_keys?, source?);
    let tokens = jwt.iter().flat_map(|jwt| &jwt.token_from).cloned();
    let credentials: Vec<_> = tokens.chain(api_keys.iter().map(|api_keys| api_keys.from.clone())).collect();
    let config = Config {
        listeners: listeners?,
        admin: admin?,
        threads: threads?,
        upstream: upstream?,
        store: store?,
        client_ip: client_ip?,
        rules: RuleSet::compile(source).beside_credentials(credentials),
        jwt,
        api_keys,
        headers: headers?,
        retry_after_jitter: retry_after_jitter?,
        bounds: bounds?,
        upstream_timeouts: upstream_timeouts?,
        drain: drain?,
        log: log?,
        access_log: access_log?,
        hash_key: hash_key?,
        warnings: Warnings::default(),
        hash: String::new(),
    };
    Some(Checked { config, allowed: allowed? })
}

/// A key that may be missing: then there is nothing, and nothing is wrong.
pub fn optional<'t, T>(field: Option<Field<'t>>, read: impl FnOnce(Field<'t>) -> Option<T>) -> Option<Option<T>> {
    match field {
        Some(field) => read(field).map(Some),
        None => Some(None),
    }
}

/// A key that may be missing: then its default holds.
pub fn or_default<'t, T>(field: Option<Field<'t>>, default: T, read: impl FnOnce(Field<'t>) -> Option<T>) -> Option<T> {
    match field {
        Some(field) => read(field),
        None => Some(default),
    }
}

fn threads(field: Field<'_>) -> Option<Threads> {
    const MOST: usize = 256;
    if field.written()? == "auto" {
        return Some(Threads::Auto);
    }
    match field.written()?.parse() {
        Ok(threads @ 1..=MOST) => Some(Threads::Exactly(threads)),
        _ => {
            field.must(format_args!("be auto or a whole number from 1 to {MOST}"));
            None
        }
    }
}

fn upstream(field: &Field<'_>) -> Option<Upstream> {
    let text = field.text()?;
    let upstream = parse_upstream(text);
    if upstream.is_none() {
        let shown = if text.contains('@') { field.clone().hidden() } else { field.clone() };
        shown.must("be a URL like http://127.0.0.1:9000 or http://api.internal, without a path");
    }
    upstream
}

fn parse_upstream(text: &str) -> Option<Upstream> {
    let authority = text.strip_prefix("http://")?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (address, rest) = bracketed.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            let port = if rest.is_empty() { "80" } else { rest.strip_prefix(':')? };
            (address, port)
        }
        None => authority.split_once(':').unwrap_or((authority, "80")),
    };
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    let port = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    let port = port.filter(|port| *port > 0)?;
    (!host.is_empty() && host.bytes().all(named)).then(|| Upstream { host: host.to_owned(), port })
}

fn client_ip(field: Field<'_>) -> Option<client_ip::Settings> {
    let section = field.section()?;
    let default = client_ip::Settings::default();
    let trusted_proxies = or_default(section.get("trusted_proxies"), default.trusted_proxies, |field| {
        all(field.list()?, |member| member.network())
    });
    let ipv6_prefix =
        or_default(section.get("ipv6_prefix"), u64::from(default.ipv6_prefix), |field| field.whole(1..=128));
    section.close();
    Some(client_ip::Settings { trusted_proxies: trusted_proxies?, ipv6_prefix: u8::try_from(ipv6_prefix?).ok()? })
}

fn headers(field: Field<'_>) -> Option<Vec<HeaderFormat>> {
    let choices = [
        ("ratelimit", HeaderFormat::RateLimit),
        ("legacy", HeaderFormat::Legacy),
        ("x-ratelimit", HeaderFormat::XRateLimit),
        ("ratelimit-11", HeaderFormat::RateLimit),
    ];
    let mut formats = Vec::new();
    for format in all(field.list()?, |member| member.choice(&choices))? {
        // `ratelimit` and its alias are one format.
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    Some(formats)
}

fn jitter(field: Option<Field<'_>>) -> Option<Jitter> {
    let default = Jitter { share: 500_000, max: Micros(30_000_000) };
    or_default(field, default, |field| {
        let section = field.section()?;
        let share = or_default(section.get("share"), default.share, |field| field.share());
        let max = or_default(section.get("max"), default.max, |field| field.duration());
        section.close();
        Some(Jitter { share: share?, max: max? })
    })
}

fn upstream_timeouts(field: Option<Field<'_>>) -> Option<UpstreamTimeouts> {
    let second = 1_000_000;
    let default = UpstreamTimeouts {
        connect: Micros(second),
        read: Micros(30 * second),
        write: Micros(30 * second),
        idle: Micros(4 * second),
    };
    or_default(field, default, |field| {
        let section = field.section()?;
        let timeout = |section: &Section<'_>, key, default| {
            or_default(section.get(key), default, |field| field.positive_duration())
        };
        let connect = timeout(&section, "connect", default.connect);
        let read = timeout(&section, "read", default.read);
        let write = timeout(&section, "write", default.write);
        let idle = timeout(&section, "idle", default.idle);
        section.close();
        Some(UpstreamTimeouts { connect: connect?, read: read?, write: write?, idle: idle? })
    })
}

fn drain(field: Option<Field<'_>>) -> Option<Drain> {
    let default = Drain { delay: Micros(0), timeout: Micros(25_000_000) };
    or_default(field, default, |field| {
        let section = field.section()?;
        let delay = or_default(section.get("delay"), default.delay, |field| field.duration());
        let timeout = or_default(section.get("timeout"), default.timeout, |field| field.duration());
        section.close();
        Some(Drain { delay: delay?, timeout: timeout? })
    })
}

fn log(field: Option<Field<'_>>) -> Option<Log> {
    use log::LevelFilter;
    let levels = [
        ("error", LevelFilter::Error),
        ("warn", LevelFilter::Warn),
        ("info", LevelFilter::Info),
        ("debug", LevelFilter::Debug),
        ("trace", LevelFilter::Trace),
    ];
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let default = Log { level: LevelFilter::Info, format: LogFormat::Text };
    or_default(field, default, |field| {
        let section = field.section()?;
        let level = or_default(section.get("level"), default.level, |field| field.choice(&levels));
        let format = or_default(section.get("format"), default.format, |field| field.choice(&formats));
        section.close();
        Some(Log { level: level?, format: format? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_plain_http_url_without_a_path() {
        for (text, host, port) in [
            ("http://127.0.0.1:9000", "127.0.0.1", 9000),
            ("http://api.internal", "api.internal", 80),
            ("http://api.internal:81/", "api.internal", 81),
            ("http://[::1]:9000", "::1", 9000),
            ("http://[::1]", "::1", 80),
        ] {
            assert_eq!(parse_upstream(text), Some(Upstream { host: host.to_owned(), port }), "{text}");
        }
        for text in [
            "https://a",
            "127.0.0.1:9000",
            "http://",
            "http://a/b",
            "http://a:b",
            "http://a:0",
            "http://a:99999",
            "http://u@a",
            "http://[::1",
            "http://[a]:1",
            "http://a?b",
            "http://::1",
            "http://a:+1",
        ] {
            assert_eq!(parse_upstream(text), None, "{text}");
        }
    }
}
