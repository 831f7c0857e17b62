//! What can be seen of a session: how far its request and its answer have come, and whether its client is still there.

use http::StatusCode;
use http::header::{EXPECT, UPGRADE};
use pingora::protocols::SocketDigest;
use pingora::proxy::Session;

use crate::store::Caller;

impl Caller for SocketDigest {
    fn has_left(&self) -> bool {
        // Of the kernel's states of a TCP connection, the one in which both sides may still speak.
        const ESTABLISHED: u8 = 1;
        self.tcp_info().is_some_and(|tcp| tcp.tcpi_state != ESTABLISHED)
    }
}

/// Whether a request ends with its head, and is no tunnel.
pub fn is_all_there(session: &mut Session) -> bool {
    session.as_downstream_mut().is_body_empty() && !session.req_header().headers.contains_key(UPGRADE)
}

/// Whether more of the body was to come. Who asks to be told to go on may wait for that.
pub fn is_waiting_for_client(session: &mut Session) -> bool {
    !session.is_body_done() && !session.req_header().headers.contains_key(EXPECT)
}

/// The code of the answer that has gone out; a 1xx before it is none.
pub fn answered(session: &Session) -> Option<u16> {
    let status = session.response_written()?.status;
    (!status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS).then_some(status.as_u16())
}
