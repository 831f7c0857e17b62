//! Reads the settings of traces from the environment: OpenTelemetry's variables, and one of Tollgate.

use std::time::Duration;

use super::sampling::{Basis, MAX_FROM_CLIENTS, SamplingSettings};
use crate::gateway::telemetry::otlp::collector::TIMES;
use crate::gateway::telemetry::otlp::{CollectorSettings, TRACES, Variables};

/// The default share of traced requests among those without a trace context.
const RATIO: f64 = 0.01;
const FROM_CLIENTS: u32 = 100;
const DELAY: Duration = Duration::from_secs(5);

/// The settings for traces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TraceSettings {
    pub collector: CollectorSettings,
    pub sampling: SamplingSettings,
    pub queue: usize,
    pub batch: usize,
    pub delay: Duration,
}

impl TraceSettings {
    /// Reads the settings for traces. Returns `None` if requests are not traced.
    pub(in crate::gateway::telemetry) fn read(variables: &mut Variables<'_>) -> Option<TraceSettings> {
        let collector = CollectorSettings::read(&TRACES, variables)?;
        let delay = variables.duration(&["OTEL_BSP_SCHEDULE_DELAY"], TIMES, DELAY);
        // This variable is checked but not used, because `OTEL_EXPORTER_OTLP_TIMEOUT` already limits each call.
        variables.duration(&["OTEL_BSP_EXPORT_TIMEOUT"], TIMES, DELAY);
        let queue = variables.number(&["OTEL_BSP_MAX_QUEUE_SIZE"], 1..=1_000_000, 2_048);
        let batch = variables.number(&["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"], 1..=queue, queue.min(512));
        Some(TraceSettings { collector, sampling: sampling(variables), queue, batch, delay })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(known: &[(&str, &str)]) -> Result<Option<TraceSettings>, String> {
        let variable = |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let mut variables = Variables::new(&variable);
        let settings = TraceSettings::read(&mut variables);
        variables.done(settings).map_err(|lines| lines.join("\n"))
    }

    #[track_caller]
    fn named(variables: &[(&str, &str)]) -> TraceSettings {
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
        assert_eq!((plain.collector.timeout, plain.delay), (Duration::from_secs(10), Duration::from_secs(5)));
        assert_eq!((plain.queue, plain.batch, plain.collector.service), (2048, 512, Some("tollgate")));
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
}
