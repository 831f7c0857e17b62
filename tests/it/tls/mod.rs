//! Listeners with TLS: handshakes, server and client certificates, and HTTP/1.1 over TLS.

mod certificates;
mod client_certificates;
mod handshakes;
mod requests;

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use crate::support::authority::{Authority, IssuedCertificate};
use crate::support::{Gateway, GatewayBuilder, Upstream};

pub const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// Returns a gateway whose only listener has these certificates: `NAME.pem` and `NAME.key`, with additional keys for each.
/// The last parameter has further keys of `tls`, each after a comma.
fn before(
    upstream: &Upstream,
    authority: &Authority,
    certificates: &[(&str, &IssuedCertificate, &str)],
    more: &str,
) -> GatewayBuilder {
    let entries: Vec<String> = certificates
        .iter()
        .map(|(name, _, keys)| format!("{{cert_file: {name}.pem, key_file: {name}.key{keys}}}"))
        .collect();
    let tls = format!("tls: {{certificates: [{}]{more}}}", entries.join(", "));
    let builder = Gateway::before(upstream).with(&format!("listeners: [{{address: 127.0.0.1:0, {tls}}}]"));
    let builder = builder.file("ca.pem", &authority.pem());
    certificates.iter().fold(builder, |builder, (name, issued, _)| {
        builder.file(&format!("{name}.pem"), &issued.certificate).file(&format!("{name}.key"), &issued.key)
    })
}
