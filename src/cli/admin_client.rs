//! A small HTTP client for the admin listener of a gateway.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::bucket_log;
use super::failure::{Failure, with_hint};
use crate::gateway::bucket_query::{BucketQuery, QUERY_FIELD, USER_FIELD};
use crate::gateway::buckets::OPERATOR_FIELD;
use base::endpoint_address::EndpointAddress;
use base::reachable::reachable;
use base::secret::Secret;
use base::split::split_once_at;

const TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout for a search. A search takes longer than other requests.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// Parses the address of an admin listener on the command line.
///
/// # Errors
/// If the text is a host name, or has no port.
pub(super) fn address_argument(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "must be an IP address with a port, like 127.0.0.1:9901".to_owned())
}

/// Parses the address of an admin listener, or the path of its socket, on the command line.
///
/// # Errors
/// If the text is neither.
pub(super) fn listener_argument(text: &str) -> Result<EndpointAddress, String> {
    match text.strip_prefix("unix:") {
        Some(path) if path.starts_with('/') => Ok(EndpointAddress::Unix(Path::new(path).into())),
        Some(_) => Err("must have an absolute path after unix:".to_owned()),
        None => address_argument(text).map(EndpointAddress::Inet),
    }
}

/// The variable with a token for changes, and for lists of clients.
const TOKEN_VARIABLE: &str = "TOLLGATE_ADMIN_TOKEN";

/// An admin listener, and the token for changes and lists of clients there.
#[derive(Clone, Debug)]
pub(super) struct AdminAddress {
    address: EndpointAddress,
    token: Option<Secret>,
}

impl AdminAddress {
    /// Returns the listener as it is reached from this machine. The token is that of the environment, or else `token`.
    pub(super) fn new(address: EndpointAddress, token: Option<Secret>) -> AdminAddress {
        let address = match address {
            EndpointAddress::Inet(address) => EndpointAddress::Inet(reachable(address)),
            path => path,
        };
        let variable = std::env::var(TOKEN_VARIABLE).ok().map(|token| Secret::new(token.trim()));
        AdminAddress { address, token: variable.or(token) }
    }

    /// Returns the field that shows the token.
    ///
    /// # Errors
    /// If the token cannot be a part of a field.
    fn authorization(&self) -> Result<String, Failure> {
        let Some(token) = &self.token else { return Ok(String::new()) };
        match token.reveal().bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(format!("Authorization: Bearer {}\r\n", token.reveal())),
            false => Err(format!("{TOKEN_VARIABLE}: must be visible ASCII characters").into()),
        }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// The HTTP method of a request to the admin listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    /// The method DELETE, to reset buckets.
    Delete,
    /// The method PATCH, to change buckets. The value of [`OPERATOR_FIELD`] says which change.
    Patch(&'static str),
}

/// Requests a path from the admin listener, and returns the status code of the answer.
///
/// # Errors
///
/// When the listener cannot be reached, or the answer is not HTTP.
pub(super) fn status(address: SocketAddr, path: &str) -> std::io::Result<u16> {
    let mut stream = send(&address.into(), &format!("GET {path}"), "", TIMEOUT)?;
    let mut start = [0; 12];
    stream.read_exact(&mut start)?;
    code(&start).ok_or_else(|| std::io::Error::other("must answer with HTTP, does not"))
}

/// Sends a request to the admin listener, and returns the JSON document in the answer.
///
/// # Errors
/// When the listener cannot be reached, or answers with a text.
pub(super) fn ask(address: &AdminAddress, method: Method, path: &str) -> Result<Value, Failure> {
    ask_with(address, method, path, "")
}

/// Sends a query about buckets to the admin listener, and returns the JSON document in the answer.
///
/// # Errors
/// As for [`ask`], and when the query identifies no bucket.
pub(super) fn query(address: &AdminAddress, method: Method, query: &BucketQuery) -> Result<Value, Failure> {
    ask_with(address, method, "/buckets", &format!("{QUERY_FIELD}: {}\r\n", query.encode()))
}

/// Returns the field with the user who runs the command, for the log line about a change. Empty without a change, and for a name
/// that is no value of a field.
fn user_field(method: Method) -> String {
    let user = bucket_log::user();
    let is_value = user.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if method == Method::Get || !is_value { String::new() } else { format!("{USER_FIELD}: {user}\r\n") }
}

fn ask_with(address: &AdminAddress, method: Method, path: &str, fields: &str) -> Result<Value, Failure> {
    let (line, permit) = match method {
        Method::Get => (format!("GET {path}"), String::new()),
        Method::Delete => (format!("DELETE {path}"), format!("{OPERATOR_FIELD}: reset\r\n")),
        Method::Patch(permit) => (format!("PATCH {path}"), format!("{OPERATOR_FIELD}: {permit}\r\n")),
    };
    let nobody = |error: std::io::Error| {
        with_hint(
            format!("{address}: no gateway answers there: {error}"),
            "--admin, or `admin` in the file, names the admin listener of the running gateway",
        )
    };
    let authorization = address.authorization()?;
    let fields = permit + &authorization + &user_field(method) + fields;
    let stream = send(&address.address, &line, &fields, SEARCH_TIMEOUT).map_err(nobody)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).map_err(nobody)?;
    match (code(&answer), split_once_at(&answer, b"\r\n\r\n").map(|(_, body)| body)) {
        (Some(200), Some(body)) => Ok(serde_json::from_slice(body)
            .map_err(|_| format!("{address}: must answer with JSON, does not: is it an admin listener?"))?),
        (Some(422), Some(body)) => {
            let answer: Value = serde_json::from_slice(body).unwrap_or_default();
            let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
            let what = text("error").unwrap_or_else(|| "the query was refused".to_owned());
            Err(match text("hint") {
                Some(hint) => with_hint(what, hint),
                None => what.into(),
            })
        }
        (Some(code), Some(body)) => {
            let text = String::from_utf8_lossy(body);
            let first = text.lines().next().unwrap_or_default();
            let what = format!("{address}: answered {code}: {first}");
            match code {
                401 => {
                    Err(with_hint(what, format!("{TOKEN_VARIABLE}, or the file of the configuration, has the token")))
                }
                _ => Err(what.into()),
            }
        }
        _ => Err(format!("{address}: must answer with HTTP, does not").into()),
    }
}

/// Sends a request, and returns the connection to read the answer from. `fields` are further header fields, each with its line end.
/// `read_timeout` is the longest time between two bytes.
fn send(address: &EndpointAddress, line: &str, fields: &str, read_timeout: Duration) -> std::io::Result<Box<dyn Read>> {
    let head = |host: &str| format!("{line} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n");
    match address {
        EndpointAddress::Inet(address) => {
            let mut stream = TcpStream::connect_timeout(address, TIMEOUT)?;
            stream.set_read_timeout(Some(read_timeout))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            stream.write_all(head(&address.to_string()).as_bytes())?;
            Ok(Box::new(stream))
        }
        EndpointAddress::Unix(path) => {
            let mut stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(read_timeout))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            stream.write_all(head("localhost").as_bytes())?;
            Ok(Box::new(stream))
        }
    }
}

fn code(answer: &[u8]) -> Option<u16> {
    let code = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(code).ok()?.parse().ok()
}
