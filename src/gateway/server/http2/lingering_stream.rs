//! Discards the rest of a request that was answered before it was complete.
//!
//! If a stream ends while its client is still sending, the stream is reset. Clients such as curl then discard the
//! response.

use std::future::poll_fn;
use std::time::Duration;

use super::received_body::ReceivedBody;
use super::streams::StreamGuard;
use base::time;

const LONGEST: Duration = Duration::from_secs(2);
/// The maximum number of bytes that are discarded.
const MAX_BYTES: usize = 64 << 20;

/// Reads and discards the rest of a body for a while, so that the client sees the response. Holds `guard` for that time.
pub(super) fn linger(body: ReceivedBody, guard: Option<StreamGuard>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let discarding = async {
            let mut left = MAX_BYTES;
            while let Some(Ok(part)) = poll_fn(|cx| body.poll_part(cx)).await {
                left = left.saturating_sub(part.len());
                if left == 0 {
                    return;
                }
            }
        };
        // If the time runs out, the rest of the body stays unread.
        let _ = time::timeout(LONGEST, discarding).await;
        drop(guard);
    });
}
