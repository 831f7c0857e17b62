//! Lists the hop-by-hop fields of a request or a response, which are not forwarded.

/// Whether a field concerns only the connection (RFC 9110, section 7.6.1) or an upgrade of its protocol. Such a field is not
/// forwarded.
pub(super) fn is_hop_by_hop(name: &[u8]) -> bool {
    let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
    match name.len() {
        2 => is(b"te"),
        7 => is(b"upgrade") || is(b"trailer"),
        10 => is(b"connection") || is(b"keep-alive"),
        14 => is(b"http2-settings"),
        16 => is(b"proxy-connection"),
        17 => is(b"transfer-encoding"),
        18 => is(b"proxy-authenticate"),
        19 => is(b"proxy-authorization"),
        _ => false,
    }
}

/// Returns the options in a value of `Connection`. Leaves out `keep-alive` and `close`, which are common and name no field to
/// be removed.
pub(super) fn options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    options.filter(|option| {
        !option.is_empty() && !option.eq_ignore_ascii_case(b"keep-alive") && !option.eq_ignore_ascii_case(b"close")
    })
}
