//! Reads `limits`: what clients may send, how long they may take, and how many may be connected.

use crate::language::key::{Key, Mapping, POSITIVE_DURATION, Type, unconstrained};
use crate::language::reader::{Field, all};
use crate::language::shape::{Exception, List, Scalars, Shape, Text};
use crate::language::size;
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use crate::language::value_types::SIZE;
use base::http_method;
use base::time::Micros;

/// The bounds of requests and connections: the largest sizes, times and counts that the gateway accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest size of a request head, with the request line, in bytes.
    pub header_bytes: usize,
    pub headers: usize,
    pub target_bytes: usize,
    /// The longest time from the first to the last byte of a request head.
    pub header_timeout: Micros,
    /// The longest time that the gateway waits for the first byte of a request head.
    pub idle_timeout: Micros,
    /// The longest pause between two parts of a request body that the client sends, or of a response that the client reads.
    pub body_timeout: Micros,
    /// The longest pause of a gRPC call or a WebSocket. Replaces `body_timeout` and the upstream's read timeout.
    pub stream_idle_timeout: Micros,
    /// The largest request body, in bytes. `None`: the size is not bounded.
    pub body_bytes: Option<u64>,
    /// The longest request body that is read for the rules, in bytes. `None`: 32 MiB for a request to a language model, and
    /// 1 MiB for any other request.
    pub inspect_bytes: Option<usize>,
    /// The largest total size of the request bodies that are held at the same time for the rules, in bytes.
    pub inspect_total: usize,
    /// The largest number of open connections, on all listeners together.
    pub connections: usize,
    /// The largest number of open connections from one client address. Connections from trusted proxies do not count.
    /// `None`: only `connections` bounds this number.
    pub connections_per_client: Option<usize>,
    /// The largest total size of responses that the gateway holds because clients do not read them.
    pub response_buffers: ResponseBufferSize,
    /// The largest number of TLS handshakes under way, on all listeners together.
    pub handshakes_at_once: usize,
}

/// The largest total size of responses that the gateway holds for clients that do not read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBufferSize {
    /// The gateway uses a share of the memory that its process may use.
    Auto,
    Bytes(u64),
}

impl Bounds {
    /// The default value of `limits.connections`.
    pub const DEFAULT_CONNECTIONS: usize = 20_000;

    /// Returns how many HTTP/2 streams a client may have open. One stream of each connection is not counted. `None`:
    /// any number.
    pub fn streams_per_client(&self) -> Option<usize> {
        self.connections_per_client.map(|most| most.saturating_mul(STREAMS_FOR_A_CONNECTION))
    }

    /// Returns how many TLS handshakes one client may have under way.
    pub fn handshakes_per_client(&self) -> usize {
        (self.handshakes_at_once / 10).max(FEWEST_HANDSHAKES).min(self.handshakes_at_once)
    }
}

/// The smallest share of `handshakes_at_once` for one client. This number is more than a browser needs at once.
const FEWEST_HANDSHAKES: usize = 8;
const KIB: u64 = 1 << 10;
/// The number of HTTP/2 streams that a client may have for each of its allowed connections.
const STREAMS_FOR_A_CONNECTION: usize = 10;
const MOST_CONNECTIONS: u64 = 10_000_000;
/// The largest value of `inspect_bytes`.
const MOST_INSPECTED: u64 = KIB * KIB * KIB;
/// The largest value of `inspect_total`.
const MOST_INSPECTED_TOTAL: u64 = 1024 * MOST_INSPECTED;

pub(crate) const INSPECT_BYTES: ValueKind<ParseText<u64>> = ValueKind::new("size, 1KiB to 1GiB", SIZE, |text| {
    size::parse(text).filter(|bytes| (KIB..=MOST_INSPECTED).contains(bytes))
});
const UNLIMITED: &str = "unlimited";

const BODY_BYTES: ValueKind<ParseText<Option<u64>>> =
    ValueKind::new("size, or `unlimited`", Shape::either(&[SIZE, Shape::Words(&[UNLIMITED])]), |text| {
        if text == UNLIMITED { Some(None) } else { size::parse(text).map(Some) }
    });

const CONNECTIONS_PER_CLIENT: ValueKind<ParseText<Option<usize>>> = ValueKind::new(
    "1 to 10000000, or `unlimited`",
    Shape::either(&[Shape::whole(1, MOST_CONNECTIONS), Shape::Words(&[UNLIMITED])]),
    |text| if text == UNLIMITED { Some(None) } else { text.parse().ok().map(Some) },
);

/// The smallest accepted value of `response_buffers`, in bytes. This size is more than one response needs.
const FEWEST_RESPONSE_BUFFERS: u64 = KIB * KIB;
const AUTO: &str = "auto";

const RESPONSE_BUFFERS: ValueKind<ParseText<ResponseBufferSize>> = ValueKind::new(
    "size, at least 1MiB, or `auto`",
    Shape::Either { of: &[SIZE, Shape::Words(&[AUTO])], must: Some("be a size of at least 1MiB, or auto") },
    |text| match text {
        AUTO => Some(ResponseBufferSize::Auto),
        size => size::parse(size).filter(|bytes| *bytes >= FEWEST_RESPONSE_BUFFERS).map(ResponseBufferSize::Bytes),
    },
);

const EXTRA_METHOD: ValueKind<ParseText<String>> = ValueKind::new(
    "method",
    Shape::Text(Text {
        except: Some(Exception {
            pattern: "^([Tt][Rr][Aa][Cc][Ee]|[Cc][Oo][Nn][Nn][Ee][Cc][Tt])$",
            must: "be a method other than TRACE and CONNECT, which are never forwarded",
        }),
        ..Text::new(
            Scalars::Text,
            &["^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}$"],
            "be a method: 1 to 32 letters, digits and !#$%&'*+-.^_`|~",
        )
    }),
    |method| (!http_method::is_never_forwarded(method.as_bytes())).then(|| method.to_owned()),
);

const _: () = assert!(http_method::LONGEST == 32, "the shape of a method has the same length");

const EXTRA_METHODS: ValueKind<ReadField<Vec<String>>> =
    ValueKind::new("list of methods", Shape::List(List::of(&EXTRA_METHOD.shape)), |field| {
        all(field.list()?, |member| EXTRA_METHOD.read(member))
    });

// The bounds of `header_bytes`, `headers` and `target_bytes` stay below those of two libraries. Pingora reads heads of
// up to 1 MiB with 256 fields, and the `http` crate accepts targets of up to 64 KiB.
pub(crate) static LIMITS: Mapping = Mapping {
    heading: Some("key in `limits`"),
    definition: None,
    keys: &[
        Key::default(
            "header_bytes",
            Type::Size { least: KIB, most: 512 * KIB },
            "64KiB",
            "Size of a request head, with its request line. Beyond: 431.",
        ),
        Key::default("headers", Type::Whole { least: 1, most: 250 }, "100", "Fields of a request head. Beyond: 431."),
        Key::default(
            "target_bytes",
            Type::Size { least: 64, most: 32 * KIB },
            "8KiB",
            "Size of a request target. Beyond: 414.",
        ),
        Key::default(
            "header_timeout",
            POSITIVE_DURATION,
            "10s",
            "From the first byte of a head to the last. Beyond: 408.",
        ),
        Key::default(
            "idle_timeout",
            POSITIVE_DURATION,
            "60s",
            "How long a connection may be idle before a head. It is closed without a response.",
        ),
        Key::default(
            "body_timeout",
            POSITIVE_DURATION,
            "30s",
            "The longest pause in a request body (408), or in which a client reads nothing of its response (closed).",
        ),
        Key::default(
            "stream_idle_timeout",
            POSITIVE_DURATION,
            "5m",
            "The longest pause of a WebSocket, of an event stream, or of a gRPC call to an HTTP/2 upstream.",
        ),
        Key::default("body_bytes", BODY_BYTES.declared(), UNLIMITED, "Size of a request body. Beyond: 413."),
        Key::depends(
            "inspect_bytes",
            INSPECT_BYTES.declared(),
            "`1MiB`; for requests to language models at limits on them `32MiB`",
            "Size of a request body that rules read (`request_json`, `request_form`). Beyond: 413.",
        ),
        Key::default(
            "inspect_total",
            Type::Size { least: KIB, most: MOST_INSPECTED_TOTAL },
            "256MiB",
            "Size of all request bodies together that are held because rules read them. Beyond: 503.",
        ),
        Key::default(
            "connections",
            Type::Whole { least: 1, most: MOST_CONNECTIONS },
            "20000",
            "Open connections. Beyond: 503, or closed. Those to listeners with `decide` are counted apart.",
        ),
        Key::default(
            "connections_per_client",
            CONNECTIONS_PER_CLIENT.declared(),
            "1000",
            "Open connections of one client; of HTTP/2 streams ten times as many. Beyond: 503, or closed.",
        ),
        Key::default(
            "response_buffers",
            RESPONSE_BUFFERS.declared(),
            AUTO,
            "Bytes held for clients that do not read their responses. Beyond: the client that holds most loses its oldest. `auto`: a \
             quarter of the memory.",
        ),
        Key::default(
            "handshakes_at_once",
            Type::Whole { least: 1, most: MOST_CONNECTIONS },
            "1000",
            "TLS handshakes under way; of one client a tenth, but at least 8. Beyond: closed.",
        ),
        Key::default(
            "extra_methods",
            EXTRA_METHODS.declared(),
            "[]",
            "Methods that are forwarded although IANA has not registered them: `[PURGE]`.",
        ),
    ],
    constraints: unconstrained,
};

/// Reads `limits`. Returns the bounds, and the methods that the gateway forwards although they are not registered.
pub(crate) fn limits(field: Field<'_>) -> Option<(Bounds, Vec<String>)> {
    let section = field.section(&LIMITS)?;
    let header_bytes = section.size("header_bytes");
    let headers = section.count("headers");
    let target_bytes = section.size("target_bytes");
    let header_timeout = section.positive_duration("header_timeout");
    let idle_timeout = section.positive_duration("idle_timeout");
    let body_timeout = section.positive_duration("body_timeout");
    let stream_idle_timeout = section.positive_duration("stream_idle_timeout");
    let body_bytes = section.value("body_bytes", |field| BODY_BYTES.read(field));
    let inspect_bytes = section.optional("inspect_bytes", |field| INSPECT_BYTES.read(field));
    let inspect_total = section.size("inspect_total");
    let connections = section.count("connections");
    let connections_per_client = section.value("connections_per_client", |field| CONNECTIONS_PER_CLIENT.read(field));
    let response_buffers = section.value("response_buffers", |field| RESPONSE_BUFFERS.read(field));
    let handshakes_at_once = section.count("handshakes_at_once");
    let extra_methods = section.value("extra_methods", |field| EXTRA_METHODS.read(field));
    section.close();
    let bounds = Bounds {
        header_bytes: header_bytes?,
        headers: headers?,
        target_bytes: target_bytes?,
        header_timeout: header_timeout?,
        idle_timeout: idle_timeout?,
        body_timeout: body_timeout?,
        stream_idle_timeout: stream_idle_timeout?,
        body_bytes: body_bytes?,
        inspect_bytes: inspect_bytes?.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        inspect_total: inspect_total?,
        connections: connections?,
        connections_per_client: connections_per_client?,
        response_buffers: response_buffers?,
        handshakes_at_once: handshakes_at_once?,
    };
    Some((bounds, extra_methods?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::problem::Report;
    use crate::language::tree;

    #[test]
    fn the_default_number_of_connections_is_the_declared_one() {
        let report = Report::default();
        let tree = tree::read(b"{}", &report).unwrap();
        let (bounds, _) = limits(Field::root(&tree, &report)).unwrap();
        assert_eq!(bounds.connections, Bounds::DEFAULT_CONNECTIONS);
    }
}
