//! Defines what clients of every protocol have in common: they wait for a response, and get those of the gateway itself.

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

/// Whether the rest of the request is read, so that another may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Drained,
    /// Its end is not known.
    Unread,
}

/// A request that gets a response of the gateway itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredRequest<'r> {
    pub head: &'r Parts,
    pub request_id: &'r HeaderValue,
    /// Whether the gateway keeps the connection; it does not while it drains.
    pub reuse: Reuse,
}

/// The result of writing a response of the gateway itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenResponse {
    pub body_bytes: usize,
    pub reuse: Reuse,
    /// The reason why it was not sent completely.
    pub fault: Option<ClientFault>,
}

/// A client that waits for its response.
pub(crate) trait RequestClient: Send {
    /// Whether [`RequestClient::poll_given_up`] asks the kernel. If not, it is asked first, so that no request goes to an upstream
    /// whose client has left already.
    const ASKS_KERNEL: bool;

    /// Ready once the deadline of the request has passed, or the process exits.
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Ready once the client of a waiting request has left, or the process exits.
    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Writes a response, and reads the rest of the request.
    fn write_own(
        &mut self,
        request: AnsweredRequest<'_>,
        response: OwnResponse,
        rest: Rest,
    ) -> impl Future<Output = WrittenResponse> + Send;

    /// Waits for something that a request needs.
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

    /// Waits for a decision. A store notices by itself that the client leaves.
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
