//! Classifies names of fields that only the gateway or a trusted peer may write.

/// Whether an upstream may mistake a client's field for a field that only the gateway or a trusted peer writes. Decides whether
/// the client's field is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgery {
    /// The field is never forwarded.
    Always,
    /// The field is forwarded only if the peer is trusted.
    OfUntrusted,
    No,
}

/// Fields whose names a client must not imitate in another spelling, such as `X_Real_IP`.
const OURS: [&[u8]; 8] = [
    b"x-real-ip",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-prefix",
    b"x-forwarded-client-cert",
    b"x-request-id",
];

/// Classifies the name of a field. Some upstreams turn names into variables, so that `X_Real_IP` is the same as
/// `X-Real-IP`. A field whose name imitates another name in this way is removed, even if a trusted peer sent the field.
pub(super) fn forgery(name: &[u8]) -> Forgery {
    let begins = |prefix: &[u8]| begins_with(name, prefix);
    if name.iter().any(|byte| matches!(byte, b'_' | b'.')) {
        let fold = |byte: &u8| if matches!(byte, b'_' | b'.') { b'-' } else { byte.to_ascii_lowercase() };
        let folded: Vec<u8> = name.iter().map(fold).collect();
        let ours = folded.starts_with(b"x-tollgate-") || folded.starts_with(b"ratelimit") || OURS.contains(&&*folded);
        return if ours { Forgery::Always } else { Forgery::No };
    }
    let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
    match name.first() {
        Some(b'x' | b'X') => {
            // Only the gateway may state properties of a client certificate, because it has not verified what others
            // state.
            if begins(b"x-tollgate-") || is(b"x-forwarded-client-cert") {
                Forgery::Always
            } else if is(b"x-real-ip") || is(b"x-forwarded-port") || is(b"x-forwarded-prefix") {
                Forgery::OfUntrusted
            } else {
                Forgery::No
            }
        }
        Some(b'r' | b'R') if begins(b"ratelimit") => Forgery::Always,
        Some(b'f' | b'F') if is(b"forwarded") => Forgery::OfUntrusted,
        _ => Forgery::No,
    }
}

/// Whether a name begins with `prefix`. The case of letters does not matter.
pub(super) fn begins_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
}
