//! Reads which request a client asks about: the parameters `method`, `path` and `host` of a query. All other parts are those of
//! the request that asks.

use http::header::HOST;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Uri};

use super::percent_encoding::decode_form;
use super::query::name_and_value;

/// The error for a parameter that is repeated or invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidQuestion;

/// Returns the head of the request that the query of `head` describes. Without a parameter, it is a GET of the same path and
/// host. The query is what follows `?` in the parameter `path`. Unknown parameters are ignored.
///
/// # Errors
/// If a known parameter is repeated, or is no method, path or host.
pub fn asked_request(head: &Parts) -> Result<Parts, InvalidQuestion> {
    let (mut method, mut path, mut host) = (None, None, None);
    for pair in head.uri.query().unwrap_or_default().as_bytes().split(|byte| *byte == b'&') {
        let (name, value) = name_and_value(pair);
        let parameter = match &*decode_form(name) {
            b"method" => &mut method,
            b"path" => &mut path,
            b"host" => &mut host,
            _ => continue,
        };
        if parameter.replace(decode_form(value)).is_some() {
            return Err(InvalidQuestion);
        }
    }
    let invalid = |_| InvalidQuestion;
    let mut asked = head.clone();
    asked.method = method.map_or(Ok(Method::GET), |method| Method::from_bytes(&method).map_err(|_| InvalidQuestion))?;
    let mut uri = head.uri.clone().into_parts();
    let target = path.as_deref().unwrap_or(head.uri.path().as_bytes());
    let is_target = target.first() == Some(&b'/') && target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#');
    let target =
        if is_target { PathAndQuery::try_from(target).map_err(invalid)? } else { return Err(InvalidQuestion) };
    uri.path_and_query = Some(target);
    if let Some(host) = host {
        let authority = Authority::try_from(&*host).map_err(invalid)?;
        if authority.as_str().contains('@') {
            return Err(InvalidQuestion);
        }
        asked.headers.insert(HOST, HeaderValue::from_bytes(&host).map_err(|_| InvalidQuestion)?);
        if uri.authority.is_some() {
            uri.authority = Some(authority);
        }
    }
    asked.uri = Uri::from_parts(uri).map_err(|_| InvalidQuestion)?;
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: &str = "/.well-known/ratelimit";

    /// Returns the method, the target and the host of the asked request.
    fn asked(target: &str) -> Option<(String, String, String)> {
        let (head, ()) = http::Request::get(target).header(HOST, "a.example").body(()).unwrap().into_parts();
        let asked = asked_request(&head).ok()?;
        let host = String::from_utf8(crate::request::host(&asked).to_vec()).unwrap();
        Some((asked.method.to_string(), asked.uri.path_and_query()?.to_string(), host))
    }

    #[track_caller]
    fn check(query: &str, expected: Option<(&str, &str, &str)>) {
        let expected = expected.map(|(method, target, host)| (method.to_owned(), target.to_owned(), host.to_owned()));
        assert_eq!(asked(&format!("{HERE}{query}")), expected, "{query}");
    }

    #[test]
    fn the_query_describes_the_request() {
        check("", Some(("GET", HERE, "a.example")));
        check("?_=1", Some(("GET", HERE, "a.example")));
        check("?method=POST&path=/v1/x", Some(("POST", "/v1/x", "a.example")));
        check("?path=%2Fv1%2Fx%3Fa%3D1%26b%3D%2525", Some(("GET", "/v1/x?a=1&b=%25", "a.example")));
        check("?host=b.example:8080&path=/", Some(("GET", "/", "b.example")));
        check("?host=%5B::1%5D", Some(("GET", HERE, "[::1]")));
        let absolute = asked(&format!("http://c.example{HERE}?host=b.example"));
        assert_eq!(absolute.map(|(_, target, host)| (target, host)), Some((HERE.to_owned(), "b.example".to_owned())));
    }

    #[test]
    fn a_repeated_or_invalid_parameter_is_an_error() {
        for query in [
            "?path=/a&path=/a",
            "?m%65thod=GET&method=GET",
            "?method=G%20T",
            "?method=",
            "?path=",
            "?path=v1",
            "?path=*",
            "?path=/a+b",
            "?path=/a%23b",
            "?path=/%C3%A9",
            "?path=/%0d%0aHost:",
            "?host=",
            "?host=a@b",
            "?host=a/b",
            "?host=%0d",
        ] {
            check(query, None);
        }
    }

    proptest! {
        #[test]
        fn what_is_asked_has_a_plain_target(values in prop::collection::vec(("method|path|host|x", any::<Vec<u8>>()), 0..4)) {
            let escaped = |value: &[u8]| value.iter().map(|byte| format!("%{byte:02x}")).collect::<String>();
            let pairs: Vec<String> = values.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
            let (head, ()) = http::Request::get(format!("{HERE}?{}", pairs.join("&"))).body(()).unwrap().into_parts();
            if let Ok(asked) = asked_request(&head) {
                let target = asked.uri.path_and_query().unwrap().as_str();
                prop_assert!(target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic()), "{target}");
            }
        }
    }
}
