//! Makes the request that is asked about: the bytes that a client would send, judged and read as the gateway does.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Uri};

use crate::cli::Failure;
use crate::config::{Bounds, Config};
use crate::gateway::request_head::{Body, HeadParser, Size};
use crate::limit::path;

/// A request that nobody has sent.
#[derive(Debug)]
pub struct Asked {
    pub head: Parts,
    /// As it would be sent.
    pub target: String,
    pub peer: IpAddr,
}

/// What is wrong with it before anything of the file is asked.
#[derive(Debug)]
pub struct Misformed {
    pub code: u16,
    pub detail: &'static str,
}

/// What a command line says of a request.
#[derive(Debug)]
pub struct Wanted<'w> {
    pub url: &'w str,
    pub method: &'w str,
    /// `name: value`.
    pub headers: Vec<String>,
    pub peer: IpAddr,
}

impl Asked {
    /// The inner error is the gateway's own answer.
    pub fn new(wanted: &Wanted<'_>, config: &Config) -> Result<Result<Asked, Misformed>, Failure> {
        let (authority, target) = split(wanted.url)?;
        let fields = wanted.headers.iter().map(|line| field(line)).collect::<Result<Vec<_>, _>>()?;
        let names_host = fields.iter().any(|(name, _)| name == "host");
        let mut text = format!("{} {target} HTTP/1.1\r\n", wanted.method);
        if !names_host {
            text += &format!("Host: {authority}\r\n");
        }
        for (name, value) in &fields {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        if let Err(misformed) = judge(text.as_bytes(), &config.bounds) {
            return Ok(Err(misformed));
        }
        let mut head = http::Request::new(()).into_parts().0;
        head.method = Method::from_bytes(wanted.method.as_bytes())?;
        head.uri = target.parse::<Uri>().map_err(|error| format!("URL: {error}"))?;
        if !names_host {
            head.headers.append(http::header::HOST, HeaderValue::from_str(authority)?);
        }
        for (name, value) in fields {
            head.headers.append(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_bytes(value.as_bytes())?);
        }
        Ok(Ok(Asked { head, target: target.to_owned(), peer: wanted.peer }))
    }

    /// The path as rules see it; none when it has no single reading.
    pub fn path(&self) -> Option<String> {
        let path = path::normalise(self.head.uri.path().as_bytes()).ok()?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }
}

fn judge(bytes: &[u8], bounds: &Bounds) -> Result<(), Misformed> {
    let size = Size { bytes: bounds.header_bytes, fields: bounds.headers, target: bounds.target_bytes };
    match HeadParser::default().scan(bytes, &size) {
        Ok(Some(head)) => match (head.body, bounds.body_bytes) {
            (Body::Length(length), Some(most)) if length > most => {
                Err(Misformed { code: 413, detail: "body too long" })
            }
            _ => Ok(()),
        },
        Ok(None) => Err(Misformed { code: 400, detail: "head not whole" }),
        Err(flaw) => Err(Misformed { code: flaw.status(), detail: flaw.detail() }),
    }
}

/// The authority and the target: what is sent of a URL, as it was typed.
fn split(url: &str) -> Result<(&str, &str), Failure> {
    if url == "*" {
        return Ok(("localhost", url));
    }
    // What stands behind `#` is never sent.
    let url = url.split('#').next().unwrap_or_default();
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let (begin, rest) = url.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let rest = match rest {
        None if url.contains("://") => {
            return Err(format!("URL: must begin with http://, https://, a host or a path, is {url:?}").into());
        }
        rest => rest.unwrap_or(url),
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err("URL: must have no user in it; send one with -H 'Authorization: Basic …'".into());
    }
    match (authority, target) {
        ("", "") => Err("URL: must not be empty".into()),
        ("", target) => Ok(("localhost", target)),
        (authority, "") => Ok((authority, "/")),
        (authority, target) => Ok((authority, target)),
    }
}

/// `name: value`, as curl takes it.
fn field(line: &str) -> Result<(String, &str), Failure> {
    let wrong = || format!("-H: must be 'name: value', is {line:?}");
    let (name, value) = line.split_once(':').ok_or_else(wrong)?;
    if HeaderName::try_from(name).is_err() || value.contains(['\r', '\n', '\0']) {
        return Err(wrong().into());
    }
    Ok((name.to_ascii_lowercase(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Result<(&str, &str), &str>) {
        let found = split(url).map_err(|error| error.to_string());
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{url}"),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{url}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_url_is_taken_as_it_is_typed() {
        check("https://api.example.com/v1/./x?a=b%20c#d", Ok(("api.example.com", "/v1/./x?a=b%20c")));
        check("HTTP://api.example.com", Ok(("api.example.com", "/")));
        check("localhost:8080/", Ok(("localhost:8080", "/")));
        check("localhost:8080", Ok(("localhost:8080", "/")));
        check("[::1]:80/a", Ok(("[::1]:80", "/a")));
        check("/a//b", Ok(("localhost", "/a//b")));
        check("*", Ok(("localhost", "*")));
        check("", Err("empty"));
        check("#a", Err("empty"));
        check("ftp://a/", Err("must begin with http://"));
        check("http://ann:secret@a/", Err("no user"));
    }

    #[test]
    fn a_header_is_a_name_and_a_value() {
        assert_eq!(field("X-Key:  a: b ").unwrap(), ("x-key".to_owned(), "a: b"));
        assert_eq!(field("X-Key:").unwrap(), ("x-key".to_owned(), ""));
        for line in ["X-Key", "x key: a", ": a", "a: b\r\nc: d"] {
            assert!(field(line).is_err(), "{line:?}");
        }
    }
}
