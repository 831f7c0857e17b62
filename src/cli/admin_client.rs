//! A small HTTP client for the admin listener of a gateway.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::failure::{Failure, with_hint};
use crate::gateway::bucket_query::{BucketQuery, QUERY_FIELD};
use crate::gateway::buckets::OPERATOR_FIELD;
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

/// The HTTP method of a request to the admin listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    /// The method DELETE, to reset buckets.
    Delete,
    /// The method PATCH, to give back spent amounts of buckets.
    Patch,
}

/// Requests a path from the admin listener, and returns the status code of the answer.
///
/// # Errors
///
/// When the listener cannot be reached, or the answer is not HTTP.
pub(super) fn status(address: SocketAddr, path: &str) -> std::io::Result<u16> {
    let mut stream = send(address, &format!("GET {path}"), "", TIMEOUT)?;
    let mut start = [0; 12];
    stream.read_exact(&mut start)?;
    code(&start).ok_or_else(|| std::io::Error::other("must answer with HTTP, does not"))
}

/// Sends a request to the admin listener, and returns the JSON document in the answer.
///
/// # Errors
/// When the listener cannot be reached, or answers with a text.
pub(super) fn ask(address: SocketAddr, method: Method, path: &str) -> Result<Value, Failure> {
    ask_with(address, method, path, "")
}

/// Sends a query about buckets to the admin listener, and returns the JSON document in the answer.
///
/// # Errors
/// As for [`ask`], and when the query identifies no bucket.
pub(super) fn query(address: SocketAddr, method: Method, query: &BucketQuery) -> Result<Value, Failure> {
    ask_with(address, method, "/buckets", &format!("{QUERY_FIELD}: {}\r\n", query.encode()))
}

fn ask_with(address: SocketAddr, method: Method, path: &str, fields: &str) -> Result<Value, Failure> {
    let (line, permit) = match method {
        Method::Get => (format!("GET {path}"), String::new()),
        Method::Delete => (format!("DELETE {path}"), format!("{OPERATOR_FIELD}: reset\r\n")),
        Method::Patch => (format!("PATCH {path}"), format!("{OPERATOR_FIELD}: grant\r\n")),
    };
    let nobody = |error: std::io::Error| {
        with_hint(
            format!("{address}: no gateway answers there: {error}"),
            "--admin, or `admin` in the file, names the admin listener of the running gateway",
        )
    };
    let stream = send(address, &line, &(permit + fields), SEARCH_TIMEOUT).map_err(nobody)?;
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
            Err(format!("{address}: answered {code}: {first}").into())
        }
        _ => Err(format!("{address}: must answer with HTTP, does not").into()),
    }
}

/// Sends a request. `fields` are further header fields, each with its line end. `read_timeout` is the longest time
/// between two bytes.
fn send(address: SocketAddr, line: &str, fields: &str, read_timeout: Duration) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(read_timeout))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "{line} HTTP/1.1\r\nHost: {address}\r\n{fields}Connection: close\r\n\r\n")?;
    Ok(stream)
}

fn code(answer: &[u8]) -> Option<u16> {
    let code = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(code).ok()?.parse().ok()
}
