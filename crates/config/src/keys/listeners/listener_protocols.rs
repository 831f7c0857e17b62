//! Reads `protocols` of a listener: the versions of HTTP that it speaks.

use serde_json::{Value, json};

use crate::language::key::{Key, Type, names};
use crate::language::reader::{Field, Section, all};
use crate::language::suggest::listed;
use base::http_protocol::HttpProtocol;

const PROTOCOLS: [(&str, HttpProtocol); 3] = [
    (HttpProtocol::H2.name(), HttpProtocol::H2),
    (HttpProtocol::Http1.name(), HttpProtocol::Http1),
    (HttpProtocol::H2c.name(), HttpProtocol::H2c),
];

/// Names of HTTP/3.
const HTTP3: [&str; 4] = ["h3", "http/3", "http3", "quic"];

pub(crate) const LISTENER_PROTOCOLS: Key = Key::depends(
    "protocols",
    Type::Choices { names: &names(&PROTOCOLS), least: 1 },
    "`[h2, http/1.1]` with `tls`, else `[http/1.1]`, with `h2c` before it where Envoy asks",
    "What is spoken, the preferred one first. `h2c`: HTTP/2 without TLS.",
);

/// Returns the constraint that the schema puts on `protocols` and `tls`. Protocols from the environment are not
/// checked.
pub(crate) fn constraints() -> Value {
    let without = |name: &str| json!({"properties": {"protocols": {"not": {"contains": {"const": name}}}}});
    json!({
        "if": {"required": ["tls"]},
        "then": without(HttpProtocol::H2c.name()),
        "else": without(HttpProtocol::H2.name())
    })
}

/// Reads the `protocols` of a listener. Without the key, the protocols depend on `tls`. `None` after reporting a problem.
pub(crate) fn listener_protocols(section: &Section<'_>) -> Option<Vec<HttpProtocol>> {
    let has_tls = section.has("tls");
    match section.get("protocols") {
        Some(field) => protocols(&field, has_tls),
        None if has_tls => Some(vec![HttpProtocol::H2, HttpProtocol::Http1]),
        None => Some(vec![HttpProtocol::Http1]),
    }
}

/// Returns the listener's protocols for gRPC, which needs HTTP/2. Without the key `protocols`, HTTP/2 is added. `None`
/// after reporting that the `protocols` in the file lack HTTP/2.
pub(crate) fn with_http2(section: &Section<'_>, protocols: Vec<HttpProtocol>) -> Option<Vec<HttpProtocol>> {
    if protocols.iter().any(|protocol| *protocol != HttpProtocol::Http1) {
        return Some(protocols);
    }
    match section.get("protocols") {
        None => Some(vec![HttpProtocol::H2c, HttpProtocol::Http1]),
        Some(field) if field.is_empty() => Some(protocols),
        Some(field) => {
            field.wrong("has no HTTP/2, by which `ext_authz` and `rls` are asked", None);
            None
        }
    }
}

fn protocols(field: &Field<'_>, has_tls: bool) -> Option<Vec<HttpProtocol>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one protocol");
        return None;
    }
    let mut protocols = Vec::new();
    let read = all(members, |member| {
        let stand_in = HttpProtocol::Http1.name();
        if member.text_if_any().is_some_and(|text| HTTP3.contains(&&*text.to_ascii_lowercase())) {
            let hint = "there is no HTTP/3: put a proxy that speaks it in front".to_owned();
            member.must_hinting(format_args!("be {}", listed(&names(&PROTOCOLS))), Some(hint));
            return None;
        }
        let protocol = member.known_or(stand_in, |field| field.choice(&PROTOCOLS))?;
        match protocol {
            HttpProtocol::H2 if !has_tls => {
                member.wrong("`h2` is negotiated by TLS: it needs `tls`, and without it HTTP/2 is `h2c`", None);
                return None;
            }
            HttpProtocol::H2c if has_tls => {
                member.wrong("`h2c` is HTTP/2 without TLS: with `tls` it is `h2`", None);
                return None;
            }
            _ if !member.is_unknown() && protocols.contains(&protocol) => {
                member.wrong(format_args!("`{}` stands in the list already", protocol.name()), None);
                return None;
            }
            _ => {}
        }
        protocols.push(protocol);
        Some(())
    });
    read.map(|_| protocols)
}
