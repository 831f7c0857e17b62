//! The messages of Envoy's services and of the gRPC health check, with only the fields that the gateway reads or
//! writes.
//!
//! The messages are written by hand from their definitions. Other fields of a message are skipped.

use std::collections::BTreeMap;

use prost::Message;

/// The message `envoy.service.ratelimit.v3.RateLimitRequest`, with which Envoy asks for a decision about descriptors.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// The message `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`: one descriptor of a `RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorEntry>,
    /// A limit that the caller sends with the descriptor. The gateway ignores and counts such limits.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<PresenceOnly>,
    /// The cost of this descriptor, a `google.protobuf.UInt64Value`. If `None`, the `hits_addend` of the whole request applies.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct DescriptorEntry {
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value, as bytes, because Envoy passes on what a client has sent, which is not always text.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// A message whose content is ignored. Only its presence matters.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct PresenceOnly {}

/// The message `envoy.service.ratelimit.v3.RateLimitResponse`: the answer to a `RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "bytes", tag = "5")]
    pub raw_body: bytes::Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
pub enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// The message `RateLimitResponse.RateLimit`: a limit, as a number of requests in a unit of time.
#[derive(Clone, PartialEq, Message)]
pub struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// The message `google.protobuf.Duration`: a length of time.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The message `envoy.config.core.v3.HeaderValue`: one header field.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: bytes::Bytes,
}

/// The message `envoy.service.auth.v3.CheckRequest`, with which Envoy asks whether a request may pass.
#[derive(Clone, PartialEq, Message)]
pub struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<AttributeContext>,
}

/// The message `envoy.service.auth.v3.AttributeContext`: the request of a `CheckRequest`, its client and its connection.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub source: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub request: Option<RequestAttributes>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub context_extensions: BTreeMap<String, String>,
    /// The TLS session of the client. Envoy sends it only with the setting `include_tls_session`.
    #[prost(message, optional, tag = "12")]
    pub tls_session: Option<TlsSession>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Peer {
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
    /// The client's certificate as PEM text, percent-escaped. Envoy sends it only with the setting
    /// `include_peer_certificate`.
    #[prost(string, tag = "5")]
    pub certificate: String,
}

/// The message `envoy.service.auth.v3.AttributeContext.TLSSession`: the TLS connection of the client.
#[derive(Clone, PartialEq, Message)]
pub struct TlsSession {
    /// The server name that the client has asked for, as bytes because it is not always text.
    #[prost(bytes = "vec", tag = "1")]
    pub sni: Vec<u8>,
}

/// The message `envoy.config.core.v3.Address`: the network address of a peer.
#[derive(Clone, PartialEq, Message)]
pub struct Address {
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SocketAddress {
    #[prost(string, tag = "2")]
    pub address: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RequestAttributes {
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HttpRequest {
    #[prost(string, tag = "2")]
    pub method: String,
    /// The header fields by name. The values of a repeated field are joined by commas.
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub headers: BTreeMap<String, Vec<u8>>,
    /// The path with the query, as the bytes that the client has sent. They are not always text.
    #[prost(bytes = "vec", tag = "4")]
    pub path: Vec<u8>,
    #[prost(string, tag = "5")]
    pub host: String,
    #[prost(string, tag = "6")]
    pub scheme: String,
    /// The header fields as the client has sent them. Envoy sends this map with `encode_raw_headers`, in place of
    /// `headers`.
    #[prost(message, optional, tag = "13")]
    pub header_map: Option<HeaderMap>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// The message `envoy.service.auth.v3.CheckResponse`: the answer to a `CheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    pub denied_response: Option<DeniedResponse>,
    #[prost(message, optional, tag = "3")]
    pub ok_response: Option<OkResponse>,
}

/// The message `google.rpc.Status`. The code 0 lets the request pass, and any other code refuses it.
#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeniedResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    pub body: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct OkResponse {
    /// The names of the header fields that Envoy removes from the request for the upstream.
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderValueOption>,
    /// The names of the query parameters that Envoy removes from the request for the upstream.
    #[prost(string, repeated, tag = "8")]
    pub query_parameters_to_remove: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// Whether Envoy adds the field to fields of the same name (a `google.protobuf.BoolValue`). `None`: Envoy's
    /// default.
    #[prost(message, optional, tag = "2")]
    pub append: Option<bool>,
}

/// The message `grpc.health.v1.HealthCheckRequest`, which asks whether a service is healthy.
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The message `grpc.health.v1.HealthCheckResponse`: the answer to a `HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
}
