//! Reads to which OpenTelemetry collector traces and metrics are sent, and sends them there by OTLP over HTTP.

pub(super) mod collector;
mod env;
pub(super) mod http_client;

pub(super) use collector::{CollectorSettings, METRICS, TRACES};
pub(super) use env::Variables;

use std::sync::OnceLock;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

/// Describes this process to the collector: the attributes from the environment, the name of the service, its version, and what
/// tells the gateways of one service apart.
pub(super) fn resource(settings: &CollectorSettings) -> Resource {
    let named = Resource::builder();
    let named = match settings.service {
        Some(name) => named.with_service_name(name),
        None => named,
    };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let named = named.with_attribute(version);
    match settings.has_instance {
        true => named.build(),
        false => named.with_attribute(KeyValue::new("service.instance.id", instance())).build(),
    }
}

/// Returns a random UUID, which is that of this process.
fn instance() -> &'static str {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let random = fastrand::u128(..);
        let of_version_4 = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
        let text = format!("{of_version_4:032x}");
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|place| text.get(place).unwrap_or_default());
        parts.join("-")
    })
}
