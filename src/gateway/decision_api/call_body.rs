//! Reads the body of a call into memory, over HTTP/1.x and HTTP/2.

use std::time::Duration;

use bytes::Bytes;

use super::call::Call;
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::client::Client;
use crate::gateway::server::http1::exchange_io::{BodyRead, ClientFault};
use crate::gateway::server::http2::client::Http2Client;
use crate::gateway::server::request_client::RequestClient;
use base::time::timeout;

/// A client whose call may have a body.
pub(super) trait BodyClient: RequestClient {
    /// Appends the next part of the body to `data`. Returns whether the body ends after it.
    fn read_part(&mut self, data: &mut Vec<u8>) -> impl Future<Output = Result<BodyRead, ClientFault>> + Send;
}

impl BodyClient for Client {
    async fn read_part(&mut self, data: &mut Vec<u8>) -> Result<BodyRead, ClientFault> {
        let mut trailers = Vec::new();
        self.read_body(data, &mut trailers).await
    }
}

impl BodyClient for Http2Client {
    async fn read_part(&mut self, data: &mut Vec<u8>) -> Result<BodyRead, ClientFault> {
        let part = std::future::poll_fn(|cx| self.poll_body(cx)).await?;
        data.extend_from_slice(&part.data);
        Ok(if part.end.is_some() { BodyRead::End } else { BodyRead::Data })
    }
}

/// Reads the body of a call. The body may have `most` bytes, and must arrive within the time `within`. The inner error
/// says why the body cannot be read.
///
/// # Errors
/// If the client has disconnected.
pub(super) async fn read<C: BodyClient>(
    client: &mut C,
    call: &mut Call<'_>,
    most: usize,
    within: Duration,
) -> Result<Result<Bytes, BodyError>, ClientFault> {
    client.write_expected_continue(&call.head).await?;
    let read = async {
        let mut body = Vec::new();
        loop {
            let before = body.len();
            let part = match client.read_part(&mut body).await {
                Ok(part) => part,
                Err(ClientFault::Body(error)) => return Ok(Err(error)),
                Err(fault) => return Err(fault),
            };
            call.request_bytes += body.len() - before;
            if body.len() > most {
                return Ok(Err(BodyError::TooLong));
            }
            if part == BodyRead::End {
                return Ok(Ok(body.into()));
            }
        }
    };
    timeout(within, read).await.unwrap_or(Ok(Err(BodyError::Stalled)))
}
