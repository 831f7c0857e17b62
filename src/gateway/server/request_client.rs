//! Defines the interface to a client, for all versions of HTTP.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderValue, Version};

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
    /// Becomes ready when the deadline of the request has passed, or the process exits.
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Becomes ready when the client of a waiting request has left, or the process exits.
    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Whether [`RequestClient::until`] checks before a wait whether the client has left. In HTTP/1, this check is a
    /// system call, and is made only if the request has waited before.
    fn asks_before_wait(&self) -> bool;

    /// Notes that the request waits.
    fn note_wait(&mut self);

    /// Writes `100 Continue`.
    ///
    /// # Errors
    /// If the client has left or does not read.
    fn write_continue(&mut self) -> impl Future<Output = Result<(), ClientFault>> + Send;

    /// Writes `100 Continue` if the client waits for it before it sends the body, and can read an interim response.
    ///
    /// # Errors
    /// In the same cases as [`RequestClient::write_continue`].
    fn write_expected_continue(&mut self, head: &Parts) -> impl Future<Output = Result<(), ClientFault>> + Send {
        // HTTP/1.0 has no interim responses.
        let waits = head.version != Version::HTTP_10 && head.headers.contains_key(EXPECT);
        async move { if waits { self.write_continue().await } else { Ok(()) } }
    }

    /// Writes a response of the gateway itself. `rest` says whether the rest of the request may be read afterwards,
    /// with [`RequestClient::read_rest`].
    fn write_own(
        &mut self,
        request: AnsweredRequest<'_>,
        response: OwnResponse,
        rest: Rest,
    ) -> impl Future<Output = WrittenResponse> + Send;

    /// Reads the rest of a request that has been answered. Returns whether another request may follow on the connection.
    fn read_rest(&mut self) -> impl Future<Output = Reuse> + Send;

    /// Waits for something that a request needs, such as a decision or a connection to an upstream. The future stays where its owner
    /// has pinned it: in this one, it would have its place twice, and every request copies the whole.
    ///
    /// # Errors
    /// If an event of `end` ends the wait first.
    fn until<T>(
        &mut self,
        end: WaitEnd,
        mut wait: Pin<&mut (impl Future<Output = T> + Send)>,
    ) -> impl Future<Output = Result<T, ClientFault>> + Send {
        async move {
            // After the first poll, the client is always checked.
            let mut asks = self.asks_before_wait();
            std::future::poll_fn(|cx| {
                if asks && let Poll::Ready(fault) = self.poll_end(end, cx) {
                    return Poll::Ready(Err(fault));
                }
                if let Poll::Ready(found) = wait.as_mut().poll(cx) {
                    return Poll::Ready(Ok(found));
                }
                if !std::mem::replace(&mut asks, true) {
                    self.note_wait();
                    return self.poll_end(end, cx).map(Err);
                }
                Poll::Pending
            })
            .await
        }
    }

    fn poll_end(&mut self, end: WaitEnd, cx: &mut Context<'_>) -> Poll<ClientFault> {
        match end {
            WaitEnd::ClientLeaves => self.poll_given_up(cx),
            WaitEnd::RequestEnds => self.poll_request_ends(cx),
        }
    }
}

/// The events that end a wait early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// The client leaves, or the process exits.
    ClientLeaves,
    /// The deadline of the request passes, or the process exits. The store checks whether the client has left.
    RequestEnds,
}
