//! Applies what a route says in place of the settings of its upstream, and of the whole file.

use bytes::Bytes;
use pingora::upstreams::peer::PeerOptions;
use pingora::{Error, ErrorType, Result};

use crate::gateway::upstream::Alternatives;
use base::time::Micros;
use rules::route::overrides::{Overrides, Timeouts};

/// Applies them to one attempt. Returns whether there are alternatives if it fails; `alternatives` says what the upstream allows.
pub fn apply(overrides: &Overrides, options: &mut PeerOptions, alternatives: Alternatives) -> Alternatives {
    let Overrides { timeouts: Timeouts { connect, read, write, .. }, retries, .. } = *overrides;
    let set = |timeout: &mut Option<std::time::Duration>, own: Option<Micros>| {
        if let Some(own) = own {
            *timeout = Some(own.into());
        }
    };
    set(&mut options.connection_timeout, connect);
    set(&mut options.total_connection_timeout, connect);
    set(&mut options.read_timeout, read);
    set(&mut options.write_timeout, write);
    match retries {
        Some(0) => Alternatives::None,
        Some(_) => Alternatives::Some,
        None => alternatives,
    }
}

/// Counts a part of a request body, of which so many bytes are left.
///
/// # Errors
/// If it is longer than that.
pub fn count(left: &mut u64, part: Option<&Bytes>) -> Result<()> {
    let length = part.map_or(0, |part| u64::try_from(part.len()).unwrap_or(u64::MAX));
    match left.checked_sub(length) {
        Some(rest) => {
            *left = rest;
            Ok(())
        }
        None => Err(Error::explain(ErrorType::HTTPStatus(413), "body too long")),
    }
}
