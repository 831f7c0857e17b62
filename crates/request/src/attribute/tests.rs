//! Tests the values of attributes, and which requests have more than one reading.

use super::*;
use crate::client_address::ClientAddress;
use crate::door::Door;
use crate::sent_descriptor::SentDescriptor;

/// Checks the value of `attribute` in a request with this target and these fields. `expected` is `AMBIGUOUS` for a
/// value with more than one reading.
#[track_caller]
fn check(attribute: &str, target: &str, fields: &[(&str, &str)], expected: Option<&str>) {
    let mut head = http::Request::builder().uri(target);
    for (name, value) in fields {
        head = head.header(*name, *value);
    }
    let (head, ()) = head.body(()).unwrap().into_parts();
    let client = ClientAddress::new("2001:db8::7".parse().unwrap(), 64);
    let request = Request::new(&head, client).with_destination("default", "default");
    let attribute = Attribute::parse(attribute).unwrap();
    let found = if attribute.is_ambiguous(&request) {
        Some("AMBIGUOUS".to_owned())
    } else {
        attribute.resolve(&request).map(|value| String::from_utf8(value.into_owned()).unwrap())
    };
    assert_eq!(found.as_deref(), expected, "{attribute} of {target} {fields:?}");
}

#[test]
fn a_header_is_trimmed_and_missing_when_empty() {
    check("header:X-Key", "/", &[("x-key", "  a b ")], Some("a b"));
    check("header:x-key", "/", &[("x-key", " ")], None);
    check("header:x-key", "/", &[], None);
}

#[test]
fn a_query_parameter_is_decoded_and_case_sensitive() {
    check("query:user", "/?user=a%20b+c", &[], Some("a b c"));
    check("query:user", "/?%75ser=a", &[], Some("a"));
    check("query:user", "/?User=a", &[], None);
    check("query:user", "/?user=", &[], None);
    check("query:user", "/?user", &[], None);
    check("query:user", "/?user=%zz%4", &[], Some("%zz%4"));
}

#[test]
fn repeated_and_connection_specific_values_are_ambiguous() {
    check("header:x-key", "/", &[("x-key", "a"), ("x-key", "a")], Some("AMBIGUOUS"));
    check("header:x-key", "/", &[("x-key", "a"), ("connection", "close, X-Key")], Some("AMBIGUOUS"));
    check("header:x-key", "/", &[("connection", "x-key")], Some("AMBIGUOUS"));
    check("query:user", "/?user=a&%75ser=b", &[], Some("AMBIGUOUS"));
    check("query:user", "/?user=a&users=b", &[], Some("a"));
    check("cookie:s", "/", &[("cookie", "s=1; s=2")], Some("AMBIGUOUS"));
    check("cookie:s", "/", &[("cookie", "s=1"), ("cookie", "s=1")], Some("AMBIGUOUS"));
    check("cookie:s", "/", &[("cookie", "s=1"), ("connection", "Cookie")], Some("AMBIGUOUS"));
    check("cookie:s", "/", &[("cookie", "t=1"), ("connection", "cookie")], Some("AMBIGUOUS"));
}

#[test]
fn other_attributes_are_never_missing() {
    check("ip:address", "/", &[], Some("2001:db8::/64"));
    check("method", "/", &[], Some("GET"));
    check("host", "/", &[("host", "API.Example.com:8080")], Some("api.example.com"));
    check("host", "http://Api.example.com/x", &[], Some("api.example.com"));
    check("host", "/", &[], Some(""));
    check("scheme", "/", &[("x-forwarded-proto", "https")], Some("http"));
    check("listener", "/", &[], Some("http"));
    check("door", "/", &[], Some("proxy"));
    check("tls:sni", "/", &[("host", "a.test")], None);
    check("tls:client_dns", "/", &[], None);
    check("path", "/a/../%62//c?d=e", &[], Some("/b/c"));
    check("route", "/", &[], Some("default"));
    check("upstream", "/", &[], Some("default"));
}

#[test]
fn a_path_segment_is_that_of_the_normalised_path() {
    check("path_segment:1", "/acme/users", &[], Some("acme"));
    check("path_segment:2", "/acme/users?x=/y", &[], Some("users"));
    check("path_segment:3", "/acme/users", &[], None);
    check("path_segment:2", "/acme/", &[], None);
    check("path_segment:1", "/", &[], None);
    check("path_segment:1", "*", &[], None);
    // All these spellings give the same segment.
    for target in ["/x/../acme/users", "/%61cme//users", "/./acme;v=1/users", "http://a/acme"] {
        check("path_segment:1", target, &[], Some("acme"));
    }
    check("path_segment:1", "/caf\u{e9}", &[], Some("caf%C3%A9"));
    check("path_segment:255", &"/a".repeat(255), &[], Some("a"));
    check("path_segment:255", &"/a".repeat(254), &[], None);
}

#[test]
fn an_attribute_prints_as_it_is_parsed() {
    for text in [
        "jwt:sub",
        "words(jwt:scope)",
        "key:id",
        "key:plan",
        "header:x-key",
        "query:User",
        "cookie:S",
        "ip:address",
        "method",
        "host",
        "scheme",
        "listener",
        "door",
        "tls:sni",
        "tls:client_fingerprint",
        "tls:client_subject",
        "tls:client_dns",
        "tls:client_uri",
        "path",
        "path_segment:1",
        "path_segment:255",
        "route",
        "upstream",
        "descriptor:tenant",
        "descriptor:entries",
    ] {
        assert_eq!(Attribute::parse(text).unwrap().to_string(), text);
    }
    for (text, why) in [
        ("ip:addres", AttributeError::Unknown),
        ("header:", AttributeError::NameMissing),
        ("header:a b", AttributeError::BadHeaderName),
        ("jwt:", AttributeError::NameMissing),
        ("words(jwt:)", AttributeError::NameMissing),
        ("words(header:a)", AttributeError::WordsOfOther),
        ("words(lower(jwt:a))", AttributeError::WordsOfOther),
        ("words(jwt:a", AttributeError::Unknown),
        ("key:", AttributeError::NameMissing),
        ("path_segments:1", AttributeError::Unknown),
        ("path_segment", AttributeError::BadSegment),
        ("path_segment:", AttributeError::BadSegment),
        ("path_segment:0", AttributeError::BadSegment),
        ("path_segment:01", AttributeError::BadSegment),
        ("path_segment:+1", AttributeError::BadSegment),
        ("path_segment:-1", AttributeError::BadSegment),
        ("path_segment:1.0", AttributeError::BadSegment),
        ("path_segment:last", AttributeError::BadSegment),
        ("path_segment:256", AttributeError::BadSegment),
        ("path_segment:99999999999999999999", AttributeError::BadSegment),
    ] {
        assert_eq!(Attribute::parse(text).unwrap_err(), why, "{text}");
    }
}

#[test]
fn a_descriptor_has_no_attribute_of_a_request() {
    let head = http::Request::get("/a/b?c=d").header("host", "a.test").header("cookie", "c=d").body(()).unwrap();
    let (head, ()) = head.into_parts();
    let sent = SentDescriptor::new("edge", vec![("tenant", "acme"), ("path", "")]);
    let client = ClientAddress::new("203.0.113.7".parse().unwrap(), 64);
    let request = Request::new(&head, client).with_destination("r", "u").with_descriptor(Some(&sent));
    for door in [Door::Rls, Door::Json] {
        let asked = request.with_door(door);
        let (mut supplied, mut missing) = (Vec::new(), Vec::new());
        for text in
            ["header:host", "query:c", "cookie:c", "ip:address", "method", "host", "scheme", "path", "path_segment:1"]
                .into_iter()
                .chain([
                    "route",
                    "upstream",
                    "listener",
                    "door",
                    "descriptor:tenant",
                    "descriptor:path",
                    "descriptor:user",
                ])
                .chain(["descriptor:domain", "descriptor:entries"])
        {
            let attribute = Attribute::parse(text).unwrap();
            let value = attribute.resolve(&asked).map(|value| String::from_utf8(value.into_owned()).unwrap());
            assert!(value.is_none() || attribute.is_supplied_at(door), "{text}");
            match value {
                Some(value) => supplied.push(format!("{text}={value}")),
                None => missing.push(text),
            }
        }
        let own_door = format!("door={}", door.name());
        let expected = [
            "listener=http",
            &*own_door,
            "descriptor:tenant=acme",
            "descriptor:path=",
            "descriptor:domain=edge",
            "descriptor:entries=tenant/path",
        ];
        assert_eq!(supplied, expected);
        assert_eq!(missing.len(), 12, "{missing:?}");
        // If a request comes with the descriptor, the attributes of both have values.
        let value = |text: &str| Attribute::parse(text).unwrap().resolve(&request.with_door(Door::ExtAuthz)).is_some();
        assert!(value("path") && value("descriptor:tenant"));
    }
}

#[test]
fn an_attribute_of_a_body_is_printed_as_it_is_written() {
    for name in ["request_json:/model", "request_json:/a~1b/0", "request_form:user name", "llm:model"] {
        let attribute = Attribute::parse(name).unwrap();
        assert_eq!((attribute.to_string(), attribute.needs_body()), (name.to_owned(), true));
    }
    assert_eq!(Attribute::parse("request_json:model"), Err(AttributeError::BadPointer(InvalidPointer::Start)));
    assert_eq!(Attribute::parse("request_json:"), Err(AttributeError::NameMissing));
    assert!(!Attribute::Path.needs_body());
}

#[test]
fn a_changed_value_is_printed_in_one_form() {
    for (text, printed) in [
        ("lower(header:X-Key)", "lower(header:x-key)"),
        (" trim( lower(query:a b) ) ", "lower(trim(query:a b))"),
        ("lower(trim(lower(host)))", "lower(trim(host))"),
        ("trim(words(jwt:scope))", "trim(words(jwt:scope))"),
        ("lower(request_json:/a)", "lower(request_json:/a)"),
    ] {
        let attribute = Attribute::parse(text).unwrap();
        assert_eq!(attribute.to_string(), printed);
        assert_eq!(Attribute::parse(printed), Ok(attribute));
    }
    assert_eq!(Attribute::parse("lower(hots)"), Err(AttributeError::Unknown));
    assert_eq!(Attribute::parse("trim()"), Err(AttributeError::Unknown));
    check("lower(header:x-key)", "/", &[("x-key", " A b ")], Some("a b"));
    check("trim(query:user)", "/?user=%20%C2%A0a%20B%0A", &[], Some("a B"));
    check("trim(query:user)", "/?user=%20", &[], None);
    check("lower(trim(cookie:s))", "/", &[("cookie", "s=%20A%20")], Some("a"));
    check("lower(query:user)", "/?user=a&user=b", &[], Some("AMBIGUOUS"));
}

#[test]
fn each_element_of_a_list_is_changed() {
    let claims = crate::identity::Claims::new(
        [("r".to_owned(), serde_json::json!([" Dev", "OPS ", " ", 7]))].into_iter().collect(),
        None,
    );
    let head = http::Request::get("/").body(()).unwrap().into_parts().0;
    let client = ClientAddress::new("203.0.113.7".parse().unwrap(), 64);
    let request = Request { claims: Some(&claims), ..Request::new(&head, client) };
    let elements = |text: &str| match Attribute::parse(text).unwrap().resolve_for_match(&request) {
        AttributeValue::List(list) => list.elements(),
        other => panic!("{other:?}"),
    };
    assert_eq!(elements("lower(trim(jwt:r))"), [b"dev".to_vec(), b"ops".to_vec(), b"7".to_vec()]);
    assert_eq!(elements("lower(words(jwt:r))"), [b"dev".to_vec(), b"ops".to_vec(), b"7".to_vec()]);
}
