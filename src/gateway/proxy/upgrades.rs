//! Lets requests switch to a WebSocket, and to nothing else.

use http::StatusCode;
use http::header::{CONNECTION, UPGRADE};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use super::Proxy;
use super::exchange::Exchange;
use crate::gateway::server::session::asks_for_websocket;
use crate::gateway::server::websocket;

/// Removes from a request to the upstream what asks for another upgrade: Pingora leaves whatever begins as a WebSocket's does.
pub fn remove_others(session: &Session, request: &mut RequestHeader) {
    if request.headers.contains_key(UPGRADE) && !asks_for_websocket(session) {
        request.remove_header(&CONNECTION);
        request.remove_header(&UPGRADE);
    }
}

/// Makes a tunnel of the connection if the response switches to a WebSocket.
///
/// # Errors
/// If it switches without accepting a WebSocket for which the client has asked. That would make a tunnel of a connection on which the client
/// sends requests.
pub fn begin_tunnel(
    proxy: &Proxy,
    session: &Session,
    response: &ResponseHeader,
    exchange: &mut Exchange,
) -> Result<()> {
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(());
    }
    if !asks_for_websocket(session) || !websocket::is_accepted(session.req_header(), response) {
        return Err(Error::new_up(ErrorType::InvalidHTTPHeader));
    }
    exchange.begin_tunnel(proxy.gateway.lifecycle.tunnel());
    Ok(())
}
