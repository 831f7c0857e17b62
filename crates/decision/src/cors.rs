//! Decides which pages of other origins may read a response (CORS), and answers the preflight of a browser.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, ORIGIN};
use http::{HeaderValue, Method};

use request::request::Request;
use rules::rule::{Condition, hold};

/// The settings under the key `cors`.
#[derive(Clone, Debug)]
pub struct Cors {
    /// The entries of `cors`. The first entry that matches a request decides.
    pub entries: Vec<CorsEntry>,
    /// The value of `Access-Control-Expose-Headers`: the names of the gateway's own fields that pages may read.
    pub exposed: HeaderValue,
}

#[derive(Clone, Debug)]
pub struct CorsEntry {
    pub conditions: Vec<Condition>,
    pub origins: Origins,
    /// Whether pages may send cookies and other credentials.
    pub credentials: bool,
    pub preflight: PreflightFields,
}

/// The origins whose pages may read responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    Any,
    /// Only these origins, written as browsers send them.
    Listed(Vec<Box<str>>),
}

/// The values of the header fields that only the answer to a preflight has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightFields {
    pub methods: HeaderValue,
    /// The value of `Access-Control-Allow-Headers`. `None` means that pages may send only the fields that need no permission.
    pub headers: Option<HeaderValue>,
    /// The value of `Access-Control-Max-Age`, in seconds.
    pub max_age: HeaderValue,
}

/// The decision of `cors` about one request, and the values of the response's header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsAnswer {
    /// The index of the entry that matched the request.
    pub entry: usize,
    /// The value of `Access-Control-Allow-Origin`. `None` if the request has no origin, or an origin that is not listed.
    pub origin: Option<HeaderValue>,
    pub credentials: bool,
    pub exposed: HeaderValue,
    /// The fields of the answer to a preflight. `None` if the request is not a preflight, or if its origin is not listed.
    pub preflight: Option<PreflightFields>,
}

impl Cors {
    /// Decides which pages may read the response to a request. `None` if no entry of `cors` matches the request.
    pub fn answer(&self, request: &Request<'_>) -> Option<CorsAnswer> {
        let matches = |(_, one): &(usize, &CorsEntry)| hold(&one.conditions, request);
        let (entry, found) = self.entries.iter().enumerate().find(matches)?;
        let headers = &request.head.headers;
        let origin = only(headers, &ORIGIN).and_then(|origin| found.origins.allow(origin));
        let asks = request.head.method == Method::OPTIONS && only(headers, &ACCESS_CONTROL_REQUEST_METHOD).is_some();
        Some(CorsAnswer {
            entry,
            preflight: (asks && origin.is_some()).then(|| found.preflight.clone()),
            origin,
            credentials: found.credentials,
            exposed: self.exposed.clone(),
        })
    }
}

impl Cors {
    /// Decides which pages may read the response to a request whose head could not be read. Only the request's origin
    /// is known. `None` if the first entry has conditions.
    pub fn answer_unread(&self, origin: Option<&HeaderValue>) -> Option<CorsAnswer> {
        let first = self.entries.first().filter(|first| first.conditions.is_empty())?;
        Some(CorsAnswer {
            entry: 0,
            preflight: None,
            origin: origin.and_then(|origin| first.origins.allow(origin)),
            credentials: first.credentials,
            exposed: self.exposed.clone(),
        })
    }
}

impl Origins {
    /// Returns the value of `Access-Control-Allow-Origin` for this origin. `None` if its pages may not read the
    /// response.
    fn allow(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match self {
            Origins::Any => Some(HeaderValue::from_static("*")),
            Origins::Listed(listed) => listed.iter().any(|one| *origin == **one).then(|| origin.clone()),
        }
    }
}

/// Returns the value of a field. `None` if the field is missing or occurs twice, because no browser sends these fields
/// twice.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::super::test_rules::{has_header, head, request};
    use super::*;

    fn entry(origins: Origins, conditions: Vec<Condition>) -> CorsEntry {
        let value = HeaderValue::from_static;
        let preflight = PreflightFields { methods: value("GET"), headers: None, max_age: value("600") };
        CorsEntry { conditions, origins, credentials: false, preflight }
    }

    fn cors(entries: Vec<CorsEntry>) -> Cors {
        Cors { entries, exposed: HeaderValue::from_static("RateLimit") }
    }

    const ORIGIN: (&str, &str) = ("origin", "https://app.example");
    const ASKED: (&str, &str) = ("access-control-request-method", "PUT");

    #[test]
    fn only_a_listed_origin_is_allowed_and_no_part_of_it() {
        let cors = cors(vec![entry(Origins::Listed(vec!["https://app.example".into()]), Vec::new())]);
        for (origins, allowed) in [
            (&["https://app.example"][..], Some("https://app.example")),
            (&["https://app.example.evil"], None),
            (&["https://app"], None),
            (&["http://app.example"], None),
            (&["null"], None),
            (&["https://app.example", "https://app.example"], None),
            (&[], None),
        ] {
            let fields: Vec<_> = origins.iter().map(|origin| ("origin", *origin)).collect();
            let answer = cors.answer(&request(&head(&fields))).unwrap();
            assert_eq!(answer.origin.as_ref().map(|origin| origin.to_str().unwrap()), allowed, "{origins:?}");
        }
    }

    #[test]
    fn an_unread_request_has_an_answer_only_where_no_condition_decides() {
        let listed = || Origins::Listed(vec!["https://app.example".into()]);
        let origin = HeaderValue::from_static("https://app.example");
        let any = cors(vec![entry(listed(), Vec::new()), entry(Origins::Any, Vec::new())]);
        assert_eq!(any.answer_unread(Some(&origin)).unwrap().origin, Some(origin.clone()));
        assert_eq!(any.answer_unread(Some(&HeaderValue::from_static("https://evil.example"))).unwrap().origin, None);
        assert_eq!(any.answer_unread(None).unwrap().origin, None);
        let some = cors(vec![entry(listed(), vec![has_header("x-a")]), entry(Origins::Any, Vec::new())]);
        assert_eq!(some.answer_unread(Some(&origin)), None);
    }

    #[test]
    fn a_preflight_is_an_options_request_of_a_listed_origin_that_names_a_method() {
        let cors = cors(vec![entry(Origins::Any, Vec::new())]);
        for (method, fields, expected) in [
            (Method::OPTIONS, &[ORIGIN, ASKED][..], true),
            (Method::POST, &[ORIGIN, ASKED], false),
            (Method::OPTIONS, &[ORIGIN], false),
            (Method::OPTIONS, &[ASKED], false),
            (Method::OPTIONS, &[ORIGIN, ASKED, ASKED], false),
        ] {
            let mut head = head(fields);
            head.method = method;
            let answer = cors.answer(&request(&head)).unwrap();
            assert_eq!(answer.preflight.is_some(), expected, "{head:?}");
        }
    }

    #[test]
    fn the_first_entry_that_matches_decides() {
        let cors =
            cors(vec![entry(Origins::Listed(Vec::new()), vec![has_header("x-a")]), entry(Origins::Any, Vec::new())]);
        let answer = |fields: &[(&str, &str)]| cors.answer(&request(&head(fields))).unwrap();
        assert_eq!((answer(&[ORIGIN, ("x-a", "1")]).entry, answer(&[ORIGIN, ("x-a", "1")]).origin), (0, None));
        let other = answer(&[ORIGIN]);
        assert_eq!((other.entry, other.origin), (1, Some(HeaderValue::from_static("*"))));
        assert_eq!(Cors { entries: Vec::new(), ..cors.clone() }.answer(&request(&head(&[ORIGIN]))), None);
    }
}
