//! The client of a request about which nothing has been decided yet, or which gets the gateway's own response.

use std::pin::pin;
use std::task::{Context, Poll};

use super::exchange::Exchange;
use super::own_response::{OwnResponse, Rest};
use super::response_head::Reuse;
use crate::gateway::server::http1::exchange_io::ClientFault;

/// A client that waits for its response, whatever protocol it speaks.
pub trait RequestClient: Send {
    /// Ready once the request has taken longer than it may, or the process waits for it no longer.
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Ready once a request that waits has no client, or the process waits for it no longer.
    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Writes a response, and reads the rest of the request. Returns whether another request may follow.
    fn write_own(
        &mut self,
        exchange: &mut Exchange<'_>,
        response: OwnResponse,
        rest: Rest,
    ) -> impl Future<Output = Reuse> + Send;

    /// Waits for something that a request needs, as long as its client is there and the process waits for the request.
    ///
    /// # Errors
    /// If one of them is no longer so.
    fn until_given_up<T>(
        &mut self,
        wait: impl Future<Output = T> + Send,
    ) -> impl Future<Output = Result<T, ClientFault>> + Send {
        async {
            let mut wait = pin!(wait);
            std::future::poll_fn(|cx| match wait.as_mut().poll(cx) {
                Poll::Ready(found) => Poll::Ready(Ok(found)),
                Poll::Pending => self.poll_given_up(cx).map(Err),
            })
            .await
        }
    }

    /// Waits for a decision, as long as the process waits for the request. What decides looks after the client itself.
    ///
    /// # Errors
    /// If the process does no longer.
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
