//! Reads foreign JSON lines. A map assigns their fields to attributes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{HOST, HeaderValue};
use http::{Method, Request, Uri};
use serde_json::{Map, Value};

use super::field_map::FieldMap;
use super::foreign_entry::{ForeignEntry, LogFields, LoggedGrpc, MappedValue};
use super::timestamps::LogTimestamp;
use request::attribute::Attribute;
use request::claim_list::ClaimList;
use rules::grpc_status::GrpcStatus;

/// Reads one JSON line. `map` says which fields contain the time and the attributes.
///
/// # Errors
/// If the line is not a JSON object, or a mapped field is invalid. The error says what the line must have.
pub(crate) fn read(map: &Arc<FieldMap>, line: &[u8]) -> Result<(LogTimestamp, ForeignEntry), String> {
    let Ok(line) = serde_json::from_slice::<Map<String, Value>>(line) else {
        return Err("must be a JSON object".to_owned());
    };
    let moment = find(&line, &map.time).and_then(text).and_then(|text| LogTimestamp::parse(&text));
    let moment = moment.ok_or_else(|| format!("time: `{}` must be a moment", map.time))?;
    let (mut head, ()) = Request::new(()).into_parts();
    let mut peer = None;
    let mut values = Vec::with_capacity(map.attributes.len());
    for (attribute, field) in &map.attributes {
        let wrong = |what: &str| format!("{attribute}: `{field}` must be {what}");
        let recorded = find(&line, field);
        let found = recorded.and_then(text);
        let mut value = None;
        match (attribute, found) {
            (Attribute::Address, found) => {
                peer = Some(found.as_deref().and_then(address).ok_or_else(|| wrong("an address"))?);
            }
            (Attribute::Method, found) => {
                let method = found.and_then(|text| Method::from_bytes(text.as_bytes()).ok());
                head.method = method.ok_or_else(|| wrong("a method"))?;
            }
            (Attribute::Path, found) => {
                let uri = found.and_then(|text| Uri::try_from(text).ok());
                head.uri = uri.ok_or_else(|| wrong("a path or a URL"))?;
            }
            (Attribute::Host, Some(found)) => {
                head.headers.insert(HOST, HeaderValue::from_str(&found).map_err(|_| wrong("a host"))?);
            }
            (Attribute::Header(name), Some(found)) => {
                let found = HeaderValue::from_bytes(found.as_bytes()).map_err(|_| wrong("a header's value"))?;
                head.headers.insert(name.clone(), found);
            }
            (Attribute::Host | Attribute::Header(_), None) => {}
            // An empty parameter or cookie counts as missing, but an empty claim is a value.
            (Attribute::Query(_) | Attribute::Cookie(_), Some(found)) if found.is_empty() => {}
            (Attribute::Claim(_), None) => {
                let list = recorded.and_then(ClaimList::members);
                value = list.map(|list| MappedValue::List(list.elements()));
            }
            (_, found) => value = found.map(|text| MappedValue::Single(text.into_bytes().into_boxed_slice())),
        }
        values.push(value);
    }
    let status = match &map.status {
        None => None,
        Some(field) => {
            let status = find(&line, field).and_then(text).and_then(|text| text.parse().ok());
            Some(status.ok_or_else(|| format!("status: `{field}` must be a status"))?)
        }
    };
    let grpc = match &map.grpc_status {
        None => LoggedGrpc::Unknown,
        // nginx and Envoy write `-` or nothing for a response without the field.
        Some(field) => match find(&line, field).and_then(text) {
            None => LoggedGrpc::Absent,
            Some(value) if value.is_empty() || value == "-" => LoggedGrpc::Absent,
            Some(value) => LoggedGrpc::Status(
                GrpcStatus::parse_name(&value).unwrap_or_else(|| GrpcStatus::of_field(value.as_bytes())),
            ),
        },
    };
    Ok((moment, ForeignEntry { head, peer, status, grpc, log: LogFields::Mapped(Arc::clone(map), values) }))
}
/// Finds a field with this name. If it is missing, `a.b` means the field `b` in the object `a`.
fn find<'l>(line: &'l Map<String, Value>, path: &str) -> Option<&'l Value> {
    line.get(path).or_else(|| {
        let (outer, inner) = path.split_once('.')?;
        find(line.get(outer)?.as_object()?, inner)
    })
}

/// Returns the text of a value: a text, a boolean or a number. A number may have decimals, as timestamps do.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Parses an address with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))
}

#[cfg(test)]
mod tests {
    use super::super::field_map::FieldMapping;
    use super::super::foreign_entry::RecordedValue;
    use super::*;

    fn fields(text: &str) -> Result<FieldMap, String> {
        let members: Result<Vec<_>, _> = text.split(',').map(FieldMapping::parse).collect();
        FieldMap::new(&members?)
    }

    /// Checks what a line records about an attribute. `expected` is the value, `-` if the request had none, or `?` if
    /// the line does not say.
    #[track_caller]
    fn check(map: &str, line: &str, attribute: &str, expected: &str) {
        let (_, entry) = read(&Arc::new(fields(map).unwrap()), line.as_bytes()).unwrap();
        let attribute = Attribute::parse(attribute).unwrap();
        let found = match entry.attribute(&attribute, entry.client(&Default::default())) {
            RecordedValue::Value(value) => String::from_utf8(value.into_owned()).unwrap(),
            RecordedValue::List(elements) => {
                let elements: Vec<_> = elements.iter().map(|element| String::from_utf8_lossy(element)).collect();
                format!("[{}]", elements.join(", "))
            }
            RecordedValue::Missing => "-".to_owned(),
            RecordedValue::Unknown => "?".to_owned(),
        };
        assert_eq!(found, expected, "{attribute} of {line}");
    }

    #[test]
    fn a_map_assigns_fields_to_attributes() {
        let line = r#"{"ts":1795272712.5,"client":"203.0.113.7:5432","req":{"method":"POST","uri":"/a/./b?q=1+2"},
            "user":{"id":42,"plan":null,"a.b":true,"roles":["admin",7],"scope":"read write","mixed":["a",true]},"vhost":"API.example.com:8080","agent":" curl "}"#;
        let map = "time=ts,ip:address=client,method=req.method,path=req.uri,jwt:sub=user.id,jwt:plan=user.plan,\
                   jwt:x=user.a.b,jwt:roles=user.roles,jwt:scope=user.scope,jwt:mixed=user.mixed,host=vhost,header:user-agent=agent,cookie:s=session";
        for (attribute, expected) in [
            ("ip:address", "203.0.113.7"),
            ("method", "POST"),
            ("path", "/a/b"),
            ("path_segment:2", "b"),
            ("path_segment:3", "-"),
            ("query:q", "1 2"),
            ("query:r", "-"),
            ("jwt:sub", "42"),
            ("jwt:plan", "-"),
            ("jwt:x", "true"),
            ("jwt:y", "?"),
            ("jwt:roles", "[admin, 7]"),
            ("jwt:mixed", "-"),
            ("jwt:scope", "read write"),
            ("words(jwt:scope)", "[read, write]"),
            ("words(jwt:roles)", "[admin, 7]"),
            ("words(jwt:plan)", "-"),
            ("words(jwt:y)", "?"),
            ("host", "api.example.com"),
            ("header:user-agent", "curl"),
            ("header:accept", "?"),
            ("cookie:s", "-"),
            ("cookie:t", "?"),
            ("key:id", "?"),
            ("route", "?"),
        ] {
            check(map, line, attribute, expected);
        }
    }

    #[test]
    fn an_attribute_that_is_not_mapped_is_unknown() {
        for attribute in ["ip:address", "method", "path", "path_segment:1", "query:q", "host"] {
            check("time=ts", r#"{"ts":1795272712}"#, attribute, "?");
        }
        check("time=ts,path=url", r#"{"ts":1795272712,"url":"https://Example.com/a"}"#, "host", "example.com");
        check("time=ts,query:q=q", r#"{"ts":1795272712,"q":"a b"}"#, "query:q", "a b");
        check("time=ts,query:q=q", r#"{"ts":1795272712,"q":""}"#, "query:q", "-");
    }

    #[test]
    fn an_invalid_map_is_rejected_with_the_reason() {
        for (map, why) in [
            ("ts", "must be ATTRIBUTE=FIELD, like jwt:sub=user.id"),
            ("time=", "must have a field after `=`"),
            ("jwt:sub=a", "must say which field is the time: time=FIELD"),
            ("time=a,time=b", "time is mapped twice"),
            ("time=a,status=b,status=c", "status is mapped twice"),
            ("time=a,grpc_status=b,grpc_status=c", "grpc_status is mapped twice"),
            ("time=a,path=b,path=c", "path is mapped twice"),
            ("time=a,jwt:=c", "`jwt:` needs a name after the colon"),
            ("time=a,words(jwt:scope)=c", "words(jwt:scope) cannot be mapped; map jwt:scope"),
            ("time=a,words(key:id)=c", "`words(key:id)` takes a claim: words(jwt:scope)"),
            ("time=a,header:a b=c", "`header:a b` is not a header name"),
            ("time=a,route=c", "route cannot be mapped"),
            ("time=a,path_segment:1=c", "path_segment:1 cannot be mapped; map path"),
            ("time=a,path_segment:0=c", "`path_segment:0` is not a segment of a path; map path"),
        ] {
            assert_eq!(fields(map).unwrap_err(), why, "{map}");
        }
        assert!(
            fields("time=a,ip=c")
                .unwrap_err()
                .starts_with("must begin with time, status, grpc_status or an attribute (jwt:<claim>, ")
        );
    }

    #[test]
    fn a_map_may_name_the_status_of_a_grpc_call() {
        let map = Arc::new(fields("time=ts,grpc_status=answer.grpc").unwrap());
        let grpc = |value: &str| {
            let line = format!(r#"{{"ts":1795272712,"answer":{{"grpc":{value}}}}}"#);
            read(&map, line.as_bytes()).unwrap().1.grpc
        };
        let unauthenticated = LoggedGrpc::Status(GrpcStatus::parse_name("UNAUTHENTICATED").unwrap());
        for value in ["16", "\"16\"", "\"UNAUTHENTICATED\""] {
            assert_eq!(grpc(value), unauthenticated, "{value}");
        }
        for value in ["null", "\"\"", "\"-\""] {
            assert_eq!(grpc(value), LoggedGrpc::Absent, "{value}");
        }
        let other = Arc::new(fields("time=ts").unwrap());
        assert_eq!(read(&other, br#"{"ts":1795272712}"#).unwrap().1.grpc, LoggedGrpc::Unknown);
    }

    #[test]
    fn a_map_may_name_the_status_of_the_response() {
        let map = Arc::new(fields("time=ts,status=answer.code").unwrap());
        let status = |code: &str| read(&map, format!(r#"{{"ts":1795272712,"answer":{{"code":{code}}}}}"#).as_bytes());
        for code in ["404", "\"404\""] {
            assert_eq!(status(code).unwrap().1.status.map(|status| status.as_u16()), Some(404));
        }
        assert_eq!(status("7").unwrap_err(), "status: `answer.code` must be a status");
    }

    #[test]
    fn a_line_that_does_not_fit_its_map_is_rejected_with_what_it_lacks() {
        let map = Arc::new(fields("time=ts,ip:address=client,path=uri").unwrap());
        for (line, wanted) in [
            ("[]", "must be a JSON object"),
            ("203.0.113.7 - - [", "must be a JSON object"),
            (r#"{"client":"1.2.3.4","uri":"/"}"#, "time: `ts` must be a moment"),
            (r#"{"ts":"today","client":"1.2.3.4","uri":"/"}"#, "time: `ts` must be a moment"),
            (r#"{"ts":1795272712,"uri":"/"}"#, "ip:address: `client` must be an address"),
            (r#"{"ts":1795272712,"client":"here","uri":"/"}"#, "ip:address: `client` must be an address"),
            (r#"{"ts":1795272712,"client":"::1","uri":"a b"}"#, "path: `uri` must be a path or a URL"),
        ] {
            assert_eq!(read(&map, line.as_bytes()).unwrap_err(), wanted, "{line}");
        }
    }
}
