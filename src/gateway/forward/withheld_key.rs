//! Takes API keys off a request, where the configuration says that the upstream does not get them.

use http::header::COOKIE;

use super::exchange::ForwardedRequest;
use super::head_edit::HeadEdit;
use request::attribute::Attribute;
use request::request::Request;
use request::{cookie, query};

/// Returns the attributes that contain an API key which the upstream must not get.
fn carriers(request: &ForwardedRequest<'_, '_>) -> Vec<Attribute> {
    let Some(keys) = &request.upstream.withheld_keys else { return Vec::new() };
    let described = Request::new(&request.received.head, request.received.client);
    keys.from.keys(&described).map(|(place, _)| place.attribute().into_owned()).collect()
}

/// Removes the key from the header fields.
pub(super) fn remove_from_fields(request: &ForwardedRequest<'_, '_>, edit: &mut HeadEdit<'_>) {
    for carrier in carriers(request) {
        match carrier {
            Attribute::Header(name) => edit.remove(name.as_str()),
            Attribute::Cookie(name) => {
                let cookie = |field| cookie::without(field, name.as_bytes());
                let kept: Vec<Vec<u8>> = edit.values(COOKIE.as_str()).map(cookie).collect();
                edit.remove(COOKIE.as_str());
                for field in kept.iter().filter(|field| !field.is_empty()) {
                    edit.add("Cookie", field);
                }
            }
            _ => {}
        }
    }
}

/// Writes the query, which begins with its question mark, without the key.
pub(super) fn write_query(query: &[u8], request: &ForwardedRequest<'_, '_>, out: &mut Vec<u8>) {
    let carriers = carriers(request);
    let carries =
        |name: &[u8]| carriers.iter().any(|one| matches!(one, Attribute::Query(own) if own.as_bytes() == name));
    match query.strip_prefix(b"?").filter(|_| !carriers.is_empty()) {
        None => out.extend_from_slice(query),
        Some(pairs) => {
            let kept = query::without(pairs, carries);
            if !kept.is_empty() {
                out.push(b'?');
                out.extend_from_slice(&kept);
            }
        }
    }
}
