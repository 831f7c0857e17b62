//! A collector of traces and metrics: it accepts OTLP over HTTP, and decodes it by the field numbers of the protocol's
//! definition.

mod metrics;

use std::io::Write;
use std::net::TcpListener;

use prost::Message;

pub use metrics::ExportedMetrics;

use crate::support::{Upstream, eventually};

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<Resources>,
}

#[derive(Clone, PartialEq, Message)]
struct Resources {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<Scope>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    /// The kind: 1 is internal, 2 server, 3 client.
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start: u64,
    #[prost(fixed64, tag = "8")]
    pub end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(uint32, tag = "14")]
    pub dropped_links: u32,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Float(f64),
    #[prost(message, tag = "5")]
    List(List),
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Float(number)) => number.to_string(),
        Some(Value::List(list)) => list.values.iter().map(|value| text(Some(value))).collect::<Vec<_>>().join(", "),
        None => String::new(),
    }
}

fn find(attributes: &[KeyValue], key: &str) -> Option<String> {
    attributes.iter().find(|attribute| attribute.key == key).map(|attribute| text(attribute.value.as_ref()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Span {
    pub fn trace(&self) -> String {
        hexadecimal(&self.trace)
    }

    pub fn id(&self) -> String {
        hexadecimal(&self.id)
    }

    /// Returns the id of the parent span; empty if there is no parent.
    pub fn parent(&self) -> String {
        hexadecimal(&self.parent)
    }

    /// Returns the value of an attribute as text.
    pub fn get(&self, key: &str) -> Option<String> {
        find(&self.attributes, key)
    }

    /// Returns the trace id and the span id of each link.
    pub fn links(&self) -> Vec<(String, String)> {
        self.links.iter().map(|link| (hexadecimal(&link.trace), hexadecimal(&link.span))).collect()
    }

    pub fn is_faulty(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.code == 2)
    }

    /// Returns the role of the span, by its name or its kind.
    pub fn role(&self) -> &'static str {
        match (self.kind, &*self.name) {
            (1, "decide") => "decision",
            (1, "wait") => "wait",
            (2, _) => "request",
            (3, "EVALSHA") => "store",
            (3, _) => "upstream",
            _ => panic!("{self:?}"),
        }
    }
}

fn is_of_metrics(post: &crate::support::upstream::ReceivedRequest) -> bool {
    post.line.starts_with("POST /v1/metrics ")
}

pub struct Collector {
    posts: Upstream,
}

impl Collector {
    /// Starts a collector that accepts everything.
    pub fn start() -> Collector {
        Collector::on(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Starts such a collector on a listener of the test.
    pub fn on(listener: TcpListener) -> Collector {
        Collector::over(Upstream::listening(listener, |_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }))
    }

    /// Makes a collector that answers like `posts`.
    pub fn over(posts: Upstream) -> Collector {
        Collector { posts }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.posts.address)
    }

    pub fn posts(&self) -> Vec<crate::support::upstream::ReceivedRequest> {
        self.posts.seen()
    }

    fn resources(&self) -> Vec<Resources> {
        let read = |body: &[u8]| ExportRequest::decode(body).expect("a request of OTLP").resources;
        let posts = self.posts().into_iter().filter(|post| !is_of_metrics(post));
        posts.flat_map(|post| read(&post.body)).collect()
    }

    pub fn spans(&self) -> Vec<Span> {
        self.resources().into_iter().flat_map(|resources| resources.scopes).flat_map(|scope| scope.spans).collect()
    }

    /// Returns the last export of metrics. `None` before the first export.
    pub fn metrics(&self) -> Option<ExportedMetrics> {
        self.posts().iter().rfind(|post| is_of_metrics(post)).map(|post| ExportedMetrics::read(&post.body))
    }

    /// Returns the number of exports of metrics.
    pub fn metric_exports(&self) -> usize {
        self.posts().iter().filter(|post| is_of_metrics(post)).count()
    }

    /// Returns an attribute of the resource that sent the first spans.
    pub fn resource(&self, key: &str) -> Option<String> {
        find(&self.resources().first()?.resource.as_ref()?.attributes, key)
    }

    /// Waits until a span of each of these roles has been received, and no others.
    #[track_caller]
    pub fn await_spans(&self, roles: &[&str]) -> Vec<Span> {
        eventually("spans come", || self.spans().len() >= roles.len());
        let spans = self.spans();
        let sorted = |mut roles: Vec<&'static str>| {
            roles.sort_unstable();
            roles.join(" ")
        };
        let mut wanted: Vec<_> = roles.to_vec();
        wanted.sort_unstable();
        assert_eq!(sorted(spans.iter().map(Span::role).collect()), wanted.join(" "), "{spans:#?}");
        spans
    }
}
