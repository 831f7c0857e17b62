//! Reads from the environment to which collector a signal is sent, and how.
//!
//! The SDK ignores invalid values. So every variable is checked here first, and the gateway does not start if one is
//! invalid.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

use super::env::{Variable, Variables};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The durations that a variable may have.
pub(crate) const TIMES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// The names of the variables of one signal. Each of the pairs has the variable of this signal, and the one of all signals.
#[derive(Debug)]
pub(crate) struct Signal {
    /// The path that is added to the address for all signals.
    path: &'static str,
    exporter: &'static str,
    endpoint: [&'static str; 2],
    protocol: [&'static str; 2],
    compression: [&'static str; 2],
    headers: [&'static str; 2],
    certificate: [&'static str; 2],
    timeout: [&'static str; 2],
}

pub(crate) const TRACES: Signal = Signal {
    path: "v1/traces",
    exporter: "OTEL_TRACES_EXPORTER",
    endpoint: ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
    protocol: ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"],
    compression: ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"],
    headers: ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"],
    certificate: ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"],
    timeout: ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
};

pub(crate) const METRICS: Signal = Signal {
    path: "v1/metrics",
    exporter: "OTEL_METRICS_EXPORTER",
    endpoint: ["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
    protocol: ["OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"],
    compression: ["OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"],
    headers: ["OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"],
    certificate: ["OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"],
    timeout: ["OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
};

/// The collector to which a signal is sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CollectorSettings {
    /// The whole URL. Its query may contain a token.
    pub endpoint: String,
    pub timeout: Duration,
    /// The file with the certificate authorities for the collector. If `None`, the authorities of the operating system apply.
    pub authorities: Option<PathBuf>,
    /// Fields for each request to the collector. They may contain passwords.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The name of the service. `None` if an environment variable sets the name, because the SDK reads that
    /// variable itself.
    pub service: Option<&'static str>,
    /// Whether the environment has an attribute `service.instance.id`.
    pub has_instance: bool,
}

impl CollectorSettings {
    /// The URL of the collector without its query, for log lines.
    pub(crate) fn shown_endpoint(&self) -> &str {
        self.endpoint.split('?').next().unwrap_or_default()
    }

    /// Reads the settings of a signal. Returns `None` if the environment names no collector for it, or switches it off.
    pub(crate) fn read(signal: &Signal, variables: &mut Variables<'_>) -> Option<CollectorSettings> {
        // Without a collector, the other variables are not checked.
        let endpoint = variables.first(&signal.endpoint)?;
        let disabled = variables.read(&["OTEL_SDK_DISABLED"], "must be true or false", boolean);
        let exporter = variables.read(&[signal.exporter], "must be otlp or none", |text| match text {
            "otlp" => Some(true),
            "none" => Some(false),
            _ => None,
        });
        if disabled.is_some_and(|(_, disabled)| disabled) || exporter.is_some_and(|(_, exported)| !exported) {
            return None;
        }
        let must = "must be a URL with http or https and a host, and no user in it";
        match is_collector(&endpoint.text) {
            true => {}
            // The part before `@` may contain a password, so the value is not shown.
            false if endpoint.text.contains('@') => variables.add_secret(&endpoint, must),
            false => variables.add(&endpoint, must),
        }
        variables.read(&signal.protocol, "must be http/protobuf", |text| (text == "http/protobuf").then_some(()));
        variables.read(&signal.compression, "must be none", |text| (text == "none").then_some(()));
        let mut headers = Vec::new();
        if let Some(found) = variables.first(&signal.headers) {
            match pairs(&found.text).map(header).collect() {
                Some(read) => headers = read,
                None => variables.add_secret(&found, "must be a list of name=value, with commas between them"),
            }
        }
        let resource = variables.read(&["OTEL_RESOURCE_ATTRIBUTES"], "must be a list of name=value", |text| {
            let named = |pair: Option<(&str, &str)>| pair.is_some_and(|(name, _)| !name.is_empty());
            let has = |attribute: &str| pairs(text).flatten().any(|(name, _)| name == attribute);
            pairs(text).all(named).then(|| (has("service.name"), has("service.instance.id")))
        });
        let (has_name, has_instance) = resource.map_or((false, false), |(_, has)| has);
        let named = has_name || variables.first(&["OTEL_SERVICE_NAME"]).is_some();
        let authorities = variables.first(&signal.certificate).map(|found| PathBuf::from(found.text));
        let timeout = variables.duration(&signal.timeout, TIMES, TIMEOUT);
        let endpoint = signal.with_path(&endpoint);
        Some(CollectorSettings {
            endpoint,
            timeout,
            authorities,
            headers,
            service: (!named).then_some("tollgate"),
            has_instance,
        })
    }
}

impl Signal {
    /// Returns the collector's URL. `OTEL_EXPORTER_OTLP_ENDPOINT` is for all signals, so the path of this one is appended to
    /// its value.
    fn with_path(&self, endpoint: &Variable) -> String {
        match endpoint.name == self.endpoint[0] {
            true => endpoint.text.clone(),
            false => format!("{}/{}", endpoint.text.trim_end_matches('/'), self.path),
        }
    }
}

fn boolean(text: &str) -> Option<bool> {
    text.to_ascii_lowercase().parse().ok()
}

fn is_collector(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let schemed = matches!(uri.scheme_str(), Some("http" | "https"));
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    schemed && plain && uri.host().is_some_and(|host| !host.is_empty())
}

/// Returns the pairs of a list. An entry without `=` is `None`. A trailing comma is allowed.
fn pairs(text: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    text.split_terminator(',').map(|entry| entry.split_once('=').map(|(name, value)| (name.trim(), value.trim())))
}

/// Reads a field whose value is percent-encoded.
fn header(pair: Option<(&str, &str)>) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = pair?;
    let value = percent_encoding::percent_decode_str(value).decode_utf8().ok()?;
    let is_plain = value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
    is_plain.then_some(())?;
    Some((name.parse().ok()?, HeaderValue::from_str(&value).ok()?))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn endpoint(signal: &Signal, name: &str, value: &str) -> String {
        let variable = |asked: &str| (asked == name).then(|| OsString::from(value));
        CollectorSettings::read(signal, &mut Variables::new(&variable)).unwrap().endpoint
    }

    #[test]
    fn only_the_endpoint_of_all_signals_gets_a_path_added() {
        for (value, whole) in [
            ("http://collector:4318", "http://collector:4318/v1/"),
            ("http://collector:4318/", "http://collector:4318/v1/"),
            ("https://collector/otlp", "https://collector/otlp/v1/"),
        ] {
            for (signal, last) in [(&TRACES, "traces"), (&METRICS, "metrics")] {
                assert_eq!(endpoint(signal, "OTEL_EXPORTER_OTLP_ENDPOINT", value), format!("{whole}{last}"));
            }
        }
        assert_eq!(endpoint(&TRACES, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/"), "http://other/");
        assert_eq!(endpoint(&METRICS, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://other/x"), "http://other/x");
    }

    #[test]
    fn headers_are_decoded_or_refused() {
        let read = |value| pairs(value).map(header).collect::<Option<Vec<_>>>();
        let value = |value: &str| HeaderValue::from_str(value).unwrap();
        let both = vec![("x-tenant".parse().unwrap(), value("blue one")), ("b".parse().unwrap(), value("Basic Zm9v="))];
        assert_eq!(read("x-tenant=blue%20one, b=Basic Zm9v=,"), Some(both));
        for wrong in ["a", "a b=c", "a=%0a", "a=%ff"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
