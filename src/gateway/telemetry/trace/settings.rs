//! Reads the settings of traces from the environment: OpenTelemetry's variables, and one of Tollgate.
//!
//! The SDK ignores invalid values. So every variable is checked here first, and the gateway does not start if one is
//! invalid.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};

use super::endpoint::ENDPOINTS;
use super::env::{Variable, Variables};
use super::sampling::{Basis, MAX_FROM_CLIENTS, SamplingSettings};

/// The default share of traced requests among those without a trace context.
const RATIO: f64 = 0.01;
const FROM_CLIENTS: u32 = 100;
const TIMEOUT: Duration = Duration::from_secs(10);
const DELAY: Duration = Duration::from_secs(5);
const TIMES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// The settings for traces and for the collector to which spans are sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub endpoint: String,
    pub timeout: Duration,
    /// The file with the certificate authorities for the collector. If `None`, the authorities of the operating system apply.
    pub authorities: Option<PathBuf>,
    pub sampling: SamplingSettings,
    pub queue: usize,
    pub batch: usize,
    pub delay: Duration,
    /// The name of the service in spans. `None` if an environment variable sets the name, because the SDK reads that
    /// variable itself.
    pub service: Option<&'static str>,
}

/// The settings for traces. Contains `None` if requests are not traced.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TraceSettings(pub Option<Settings>);

impl TraceSettings {
    /// Reads the settings for traces from environment variables.
    ///
    /// # Errors
    /// Returns one line for each invalid variable.
    pub(crate) fn read() -> Result<TraceSettings, Vec<String>> {
        read(&|name| std::env::var_os(name)).map(TraceSettings)
    }
}

fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Settings>, Vec<String>> {
    let mut variables = Variables::new(variable);
    // Without a collector, the other variables are not checked.
    let Some(endpoint) = variables.first(&ENDPOINTS) else { return variables.done(None) };
    let disabled = variables.read(&["OTEL_SDK_DISABLED"], "must be true or false", boolean);
    let exporter = variables.read(&["OTEL_TRACES_EXPORTER"], "must be otlp or none", |text| match text {
        "otlp" => Some(true),
        "none" => Some(false),
        _ => None,
    });
    let off = disabled.is_some_and(|(_, disabled)| disabled) || exporter.is_some_and(|(_, exported)| !exported);
    if off {
        return variables.done(None);
    }
    let must = "must be a URL with http or https and a host, and no user in it";
    match is_collector(&endpoint.text) {
        true => {}
        // The part before `@` may contain a password, so the value is not shown.
        false if endpoint.text.contains('@') => variables.add_secret(&endpoint, must),
        false => variables.add(&endpoint, must),
    }
    let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
    variables.read(&protocols, "must be http/protobuf", |text| (text == "http/protobuf").then_some(()));
    let compressions = ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"];
    variables.read(&compressions, "must be none", |text| (text == "none").then_some(()));
    let headers = variables.first(&["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"]);
    if let Some(headers) = headers.filter(|headers| !pairs(&headers.text).all(is_header)) {
        variables.add_secret(&headers, "must be a list of name=value, with commas between them");
    }
    let resource = variables.read(&["OTEL_RESOURCE_ATTRIBUTES"], "must be a list of name=value", |text| {
        let named = |pair: Option<(&str, &str)>| pair.is_some_and(|(name, _)| !name.is_empty());
        let names_us = |pair: Option<(&str, &str)>| pair.is_some_and(|(name, _)| name == "service.name");
        pairs(text).all(named).then(|| pairs(text).any(names_us))
    });
    let named = resource.is_some_and(|(_, named)| named) || variables.first(&["OTEL_SERVICE_NAME"]).is_some();
    let certificates = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
    let authorities = variables.first(&certificates).map(|found| PathBuf::from(found.text));
    let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
    let timeout = variables.duration(&timeouts, TIMES, TIMEOUT);
    let delay = variables.duration(&["OTEL_BSP_SCHEDULE_DELAY"], TIMES, DELAY);
    // This variable is checked but not used, because `OTEL_EXPORTER_OTLP_TIMEOUT` already limits each call.
    variables.duration(&["OTEL_BSP_EXPORT_TIMEOUT"], TIMES, TIMEOUT);
    let queue = variables.number(&["OTEL_BSP_MAX_QUEUE_SIZE"], 1..=1_000_000, 2_048);
    let batch = variables.number(&["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"], 1..=queue, queue.min(512));
    let sampling = sampling(&mut variables);
    variables.done(Some(Settings {
        endpoint: with_path(&endpoint),
        timeout,
        authorities,
        sampling,
        queue,
        batch,
        delay,
        service: (!named).then_some("tollgate"),
    }))
}

fn sampling(variables: &mut Variables<'_>) -> SamplingSettings {
    let must = "must be always_on, always_off, traceidratio, or one of these after parentbased_";
    let chosen = variables.read(&["OTEL_TRACES_SAMPLER"], must, |text| {
        let (basis, own) = match text.strip_prefix("parentbased_") {
            Some(own) => (Basis::Caller, own),
            None => (Basis::Own, text),
        };
        let own = match own {
            "always_on" => Some(1.0),
            "always_off" => Some(0.0),
            "traceidratio" => None,
            _ => return None,
        };
        Some((basis, own))
    });
    let (basis, fixed, otherwise) = match chosen {
        Some((_, (basis, fixed))) => (basis, fixed, 1.0),
        None => (Basis::Caller, None, RATIO),
    };
    let ratio = match fixed {
        Some(ratio) => ratio,
        None => variables.number(&["OTEL_TRACES_SAMPLER_ARG"], 0.0..=1.0, otherwise),
    };
    let from_clients = variables.number(&["TOLLGATE_TRACES_FROM_CLIENTS"], 0..=MAX_FROM_CLIENTS, FROM_CLIENTS);
    SamplingSettings { basis, ratio, from_clients }
}

fn boolean(text: &str) -> Option<bool> {
    text.to_ascii_lowercase().parse().ok()
}

/// Returns the collector's URL. `OTEL_EXPORTER_OTLP_ENDPOINT` is for all signals, so the path of traces is appended to
/// its value.
fn with_path(endpoint: &Variable) -> String {
    match endpoint.name == ENDPOINTS[0] {
        true => endpoint.text.clone(),
        false => format!("{}/v1/traces", endpoint.text.trim_end_matches('/')),
    }
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

fn is_header(pair: Option<(&str, &str)>) -> bool {
    let Some((name, value)) = pair else { return false };
    name.parse::<HeaderName>().is_ok() && value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        read(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value)))
            .map_err(|lines| lines.join("\n"))
    }

    #[track_caller]
    fn named(variables: &[(&str, &str)]) -> Settings {
        let endpoint = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")];
        settings(&[&endpoint, variables].concat()).unwrap().unwrap()
    }

    #[test]
    fn without_a_collector_there_are_no_settings() {
        assert_eq!(settings(&[]), Ok(None));
        assert_eq!(settings(&[("OTEL_TRACES_SAMPLER", "xray"), ("OTEL_TRACES_EXPORTER", "zipkin")]), Ok(None));
    }

    #[test]
    fn by_default_a_hundredth_is_sampled_and_clients_are_bounded() {
        let plain = named(&[]);
        let sampling = SamplingSettings { basis: Basis::Caller, ratio: 0.01, from_clients: 100 };
        assert_eq!(plain.sampling, sampling);
        assert_eq!((plain.timeout, plain.delay), (Duration::from_secs(10), Duration::from_secs(5)));
        assert_eq!((plain.queue, plain.batch, plain.service), (2048, 512, Some("tollgate")));
        // With a small queue, batches are smaller too.
        assert_eq!(named(&[("OTEL_BSP_MAX_QUEUE_SIZE", "100")]).batch, 100);
    }

    #[test]
    fn samplers_are_those_of_the_specification() {
        for (sampler, argument, basis, ratio) in [
            ("always_on", None, Basis::Own, 1.0),
            ("always_off", None, Basis::Own, 0.0),
            ("traceidratio", Some("0.25"), Basis::Own, 0.25),
            ("traceidratio", None, Basis::Own, 1.0),
            ("parentbased_always_on", Some("not looked at"), Basis::Caller, 1.0),
            ("parentbased_always_off", None, Basis::Caller, 0.0),
            ("parentbased_traceidratio", Some("1e-3"), Basis::Caller, 0.001),
        ] {
            let argument = argument.map(|argument| ("OTEL_TRACES_SAMPLER_ARG", argument));
            let variables: Vec<_> = [("OTEL_TRACES_SAMPLER", sampler)].into_iter().chain(argument).collect();
            let sampling = named(&variables).sampling;
            assert_eq!((sampling.basis, sampling.ratio), (basis, ratio), "{sampler}");
        }
        assert_eq!(named(&[("OTEL_TRACES_SAMPLER_ARG", "0.5")]).sampling.ratio, 0.5);
    }

    #[test]
    fn only_the_endpoint_of_all_signals_gets_a_path_added() {
        for (endpoint, whole) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            ("https://collector/otlp", "https://collector/otlp/v1/traces"),
        ] {
            assert_eq!(settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]).unwrap().unwrap().endpoint, whole);
        }
        let own = named(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/")]);
        assert_eq!(own.endpoint, "http://other/");
    }
}
