//! Reads the state of a Pingora session: its request, its response so far, and whether its client is still connected.

use std::sync::Arc;

use http::StatusCode;
use pingora::proxy::Session;

use crate::gateway::server::client_socket::ClientSocket;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::scheme;
use request::scheme::Scheme;
use stores::Caller;

/// The client's socket. It is made once for a connection that has a handle.
pub fn client_socket(session: &Session, connection: Option<&ConnectionHandle>) -> Option<Arc<ClientSocket>> {
    let make = || session.digest()?.socket_digest.clone().map(|socket| Arc::new(ClientSocket(socket)));
    match connection {
        Some(connection) => connection.client_socket(make),
        None => make(),
    }
}

/// The client, as a store can ask about it.
pub fn caller(session: &Session, connection: Option<&ConnectionHandle>) -> Option<Arc<dyn Caller>> {
    client_socket(session, connection).map(|socket| socket as Arc<dyn Caller>)
}

/// The handle that the HTTP/2 server passes with every request, in the digest of its connection.
pub fn connection(session: &Session) -> Option<ConnectionHandle> {
    session.digest()?.proxy_digest.as_ref()?.user_data.as_ref()?.downcast_ref().cloned()
}

/// The scheme of the client's connection.
pub fn scheme(session: &Session) -> Scheme {
    scheme::of_digest(session.digest().and_then(|digest| digest.ssl_digest.as_ref()))
}

/// The status code of the response that has been sent; an interim response (1xx) does not count.
pub fn response_code(session: &Session) -> Option<u16> {
    let status = session.response_written()?.status;
    (!status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS).then_some(status.as_u16())
}
