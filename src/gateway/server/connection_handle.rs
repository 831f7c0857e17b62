//! The handle to a connection that a server gives the application with every request.
//!
//! Pingora carries it as the connection's user context, which it does for HTTP/1 only. A server of HTTP/2 will hand its
//! own on in another way, without text for fields and without an offer to enforce the read timeout. A session without any
//! handle is served too: nothing is lost then, only done in the general way.

use std::sync::Arc;

use crate::base::tls::server::Session;
use crate::gateway::response::pending_fields::PendingFields;
use crate::gateway::upstream::read_timeout::DelegatedReadTimeout;
use crate::gateway::upstream::request_deadline::RequestDeadline;
use crate::limit::scheme::Scheme;

/// A handle to one connection, for the server and the application.
#[derive(Clone, Debug)]
pub struct ConnectionHandle(Arc<HandleState>);

#[derive(Debug)]
struct HandleState {
    listener: usize,
    scheme: Scheme,
    tls: Option<Arc<Session>>,
    pending_fields: PendingFields,
    read_timeout: DelegatedReadTimeout,
    deadline: RequestDeadline,
}

impl ConnectionHandle {
    /// `listener` is the index of its listener in the configuration, and `tls` what was negotiated on an encrypted connection.
    pub fn new(listener: usize, scheme: Scheme, tls: Option<Arc<Session>>) -> ConnectionHandle {
        let (pending_fields, read_timeout) = (PendingFields::default(), DelegatedReadTimeout::default());
        let deadline = RequestDeadline::default();
        ConnectionHandle(Arc::new(HandleState { listener, scheme, tls, pending_fields, read_timeout, deadline }))
    }

    /// The index of its listener in the configuration, which a reload does not change.
    pub fn listener(&self) -> usize {
        self.0.listener
    }

    pub fn scheme(&self) -> Scheme {
        self.0.scheme
    }

    /// What was negotiated; `None` for a connection that is not encrypted.
    pub fn tls(&self) -> Option<&Arc<Session>> {
        self.0.tls.as_ref()
    }

    /// The fields for the head of the next response.
    pub fn pending_fields(&self) -> &PendingFields {
        &self.0.pending_fields
    }

    /// The upstream read timeout of the current request, as far as this connection enforces it.
    pub fn read_timeout(&self) -> &DelegatedReadTimeout {
        &self.0.read_timeout
    }

    /// When the current request has to have ended.
    pub fn deadline(&self) -> &RequestDeadline {
        &self.0.deadline
    }
}
