//! Defines the interface to clients that is the same for all protocols: waiting for a response, and the gateway's own
//! responses.

use std::pin::pin;
use std::task::{Context, Poll};

use http::HeaderValue;
use http::request::Parts;

use super::http1::exchange_io::ClientFault;
use crate::gateway::response::own_response::OwnResponse;

/// Whether another request may follow on the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    Kept,
    Closed,
}

/// Whether the gateway reads the rest of a request that it answers itself, so that another request may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Drained,
    /// The rest is not read, because the end of the request is not known.
    Unread,
}

/// A request that the gateway itself answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredRequest<'r> {
    pub head: &'r Parts,
    pub request_id: &'r HeaderValue,
    /// Whether the gateway keeps the connection after the response. It does not keep connections while it drains.
    pub reuse: Reuse,
}

/// The result of writing a response that the gateway itself has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenResponse {
    pub body_bytes: usize,
    pub reuse: Reuse,
    /// The reason why the response was not sent completely. `None` if it was sent.
    pub fault: Option<ClientFault>,
}

/// A client that has sent a request and waits for the response.
pub(crate) trait RequestClient: Send {
    /// Whether [`RequestClient::poll_given_up`] asks the kernel. If not, [`RequestClient::until_given_up`] calls that function
    /// before the wait, so that the request of a client that has already left goes to no upstream.
    const ASKS_KERNEL: bool;

    /// Becomes ready when the deadline of the request has passed, or the process exits.
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Becomes ready when the client of a waiting request has left, or the process exits.
    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Writes a response of the gateway, and reads the rest of the request as `rest` says.
    fn write_own(
        &mut self,
        request: AnsweredRequest<'_>,
        response: OwnResponse,
        rest: Rest,
    ) -> impl Future<Output = WrittenResponse> + Send;

    /// Waits for something that a request needs, such as a connection to an upstream, until the client leaves.
    ///
    /// # Errors
    /// If the client leaves, or the process exits.
    fn until_given_up<T>(
        &mut self,
        wait: impl Future<Output = T> + Send,
    ) -> impl Future<Output = Result<T, ClientFault>> + Send {
        async {
            let mut wait = pin!(wait);
            std::future::poll_fn(|cx| {
                if !Self::ASKS_KERNEL
                    && let Poll::Ready(fault) = self.poll_given_up(cx)
                {
                    return Poll::Ready(Err(fault));
                }
                match wait.as_mut().poll(cx) {
                    Poll::Ready(found) => Poll::Ready(Ok(found)),
                    Poll::Pending if Self::ASKS_KERNEL => self.poll_given_up(cx).map(Err),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        }
    }

    /// Waits for a decision about the request. Does not check whether the client has left, because a store checks this itself.
    ///
    /// # Errors
    /// If the deadline of the request passes, or the process exits.
    fn until_cut<T>(
        &mut self,
        wait: impl Future<Output = T> + Send,
    ) -> impl Future<Output = Result<T, ClientFault>> + Send {
        async {
            let mut wait = pin!(wait);
            std::future::poll_fn(|cx| match wait.as_mut().poll(cx) {
                Poll::Ready(found) => Poll::Ready(Ok(found)),
                Poll::Pending => self.poll_request_ends(cx).map(Err),
            })
            .await
        }
    }
}
