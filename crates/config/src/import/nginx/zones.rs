//! Reads the zones of nginx: by which values they count, and at which rate.

use super::empty_keys::Variables;
use super::syntax::Directive;

/// What a zone limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneKind {
    /// `limit_req_zone`: requests per time.
    Requests(Rate),
    /// `limit_conn_zone`: requests in flight.
    InFlight,
}

/// A number of requests per second or minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub requests: u64,
    /// 1 or 60.
    pub seconds: u64,
}

impl Rate {
    fn parse(text: &str) -> Option<Rate> {
        let (number, seconds) = match text.strip_suffix("r/s") {
            Some(number) => (number, 1),
            None => (text.strip_suffix("r/m")?, 60),
        };
        let requests = number.parse().ok().filter(|requests| (1..=1_000_000).contains(requests))?;
        Some(Rate { requests, seconds })
    }

    /// Returns the keys of a limit with this rate.
    pub(super) fn written(self) -> String {
        match self.seconds {
            1 => format!("rps: {}", self.requests),
            _ => format!("rate: {}/min", self.requests),
        }
    }

    /// Returns how long `requests` take at this rate, in seconds, rounded up.
    pub(super) fn seconds_of(self, requests: u64) -> u64 {
        requests.saturating_mul(self.seconds).div_ceil(self.requests)
    }

    /// Returns how many requests leave in so many seconds.
    pub(super) fn requests_in(self, seconds: u64) -> u64 {
        seconds.saturating_mul(self.requests) / self.seconds
    }
}

/// A zone, which several limits may use.
#[derive(Debug)]
pub(super) struct Zone {
    pub name: String,
    pub kind: ZoneKind,
    /// The attributes by which it counts.
    pub keys: Vec<String>,
    /// The entries of `match` that have the requests with an empty key, which are not counted.
    pub exempt: Vec<String>,
    /// The file and the line of the zone, for comments.
    pub place: String,
    /// How the count differs from that of nginx.
    pub differences: Vec<String>,
}

/// Reads a `limit_req_zone` or `limit_conn_zone`.
///
/// # Errors
/// Why the zone cannot be imported.
pub(super) fn zone(directive: &Directive, variables: &Variables) -> Result<Zone, String> {
    let rest = directive.arguments().get(1..).unwrap_or_default();
    let value = |name: &str| rest.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let name = value("zone").map(|zone| zone.split_once(':').map_or(zone, |(name, _)| name));
    let name = name.ok_or("must have a `zone=NAME:SIZE`")?.to_owned();
    let kind = match directive.name() {
        "limit_req_zone" => {
            let rate = value("rate").unwrap_or("1r/s");
            ZoneKind::Requests(Rate::parse(rate).ok_or(format!("must have a rate like 10r/s or 30r/m, is `{rate}`"))?)
        }
        _ => ZoneKind::InFlight,
    };
    let written = directive.argument();
    let mapped = variables.mapped(written);
    let key = mapped.as_ref().map_or(written, |mapped| mapped.key.as_str());
    let keys = keys(key)
        .map_err(|variable| format!("counts by `${variable}`, which is no attribute here: zone {name} is left out"))?;
    let mut differences = Vec::new();
    if key.contains("$server_name") || key.contains("${server_name}") {
        differences
            .push("counts by `$server_name`: here by the host of the request, which a client can vary".to_owned());
    }
    // nginx leaves out a request whose whole key is empty, and this gateway one of whose values is missing.
    if let Some(optional) = keys.iter().find(|key| is_optional(key))
        && only_variable(key).is_none()
    {
        let what = format!("counts a request without {optional} by the rest of its key: here it is not limited");
        differences.push(what);
    }
    let place = format!("{}:{}", directive.file, directive.position.line);
    let exempt = mapped.map(|mapped| mapped.exempt).unwrap_or_default();
    Ok(Zone { name, kind, keys, exempt, place, differences })
}

/// Whether a request may lack an attribute.
fn is_optional(attribute: &str) -> bool {
    ["header:", "query:", "cookie:", "tls:"].iter().any(|kind| attribute.starts_with(kind))
}

/// Returns the name of the variable if a text of nginx consists of one variable alone.
pub(super) fn only_variable(key: &str) -> Option<&str> {
    let name = key.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).or(key.strip_prefix('$'));
    name.filter(|name| name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_'))
}

/// Returns the attributes that a key of nginx consists of. The characters between its variables are the same in every
/// key, and make no difference.
///
/// # Errors
/// The name of a variable that is no attribute.
fn keys(key: &str) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for part in key.split('$').skip(1) {
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let name = match part.strip_prefix('{') {
            Some(braced) => braced.split_once('}').map_or(braced, |(name, _)| name),
            None => part.split_once(|char| !is_name(char)).map_or(part, |(name, _)| name),
        };
        let attribute = attribute(name).ok_or_else(|| name.to_owned())?;
        if !keys.contains(&attribute) {
            keys.push(attribute);
        }
    }
    Ok(keys)
}

/// Returns the attribute that has the value of a variable of nginx.
pub(super) fn attribute(variable: &str) -> Option<String> {
    let own = match variable {
        "binary_remote_addr" | "remote_addr" => "ip:address",
        "host" | "http_host" | "server_name" => "host",
        "uri" | "document_uri" => "path",
        "request_method" => "method",
        "scheme" => "scheme",
        "ssl_client_s_dn" => "tls:client_subject",
        "ssl_server_name" => "tls:sni",
        _ => "",
    };
    if !own.is_empty() {
        return Some(own.to_owned());
    }
    let kinds = [("http_", "header"), ("arg_", "query"), ("cookie_", "cookie")];
    kinds.into_iter().find_map(|(prefix, kind)| {
        let name = variable.strip_prefix(prefix).filter(|name| !name.is_empty())?;
        Some(format!("{kind}:{}", if kind == "header" { name.replace('_', "-") } else { name.to_owned() }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_of_a_key_are_attributes() {
        let is = |key: &str, expected: &[&str]| assert_eq!(keys(key).unwrap(), expected, "{key}");
        is("$binary_remote_addr", &["ip:address"]);
        is("$binary_remote_addr$server_name", &["ip:address", "host"]);
        is("${http_x_api_key}:$arg_tenant/$cookie_sid", &["header:x-api-key", "query:tenant", "cookie:sid"]);
        is("everybody", &[]);
        assert_eq!(keys("$binary_remote_addr$limited").unwrap_err(), "limited");
        assert_eq!(keys("$http_").unwrap_err(), "http_");
    }

    #[test]
    fn rates_are_of_seconds_or_minutes() {
        assert_eq!(Rate::parse("10r/s"), Some(Rate { requests: 10, seconds: 1 }));
        assert_eq!(Rate::parse("30r/m").unwrap().written(), "rate: 30/min");
        assert_eq!(["0r/s", "10", "r/s", "1r/h", "-1r/s", "1000001r/s"].map(Rate::parse), [None; 6]);
        assert_eq!(Rate::parse("30r/m").unwrap().seconds_of(16), 32);
    }
}
