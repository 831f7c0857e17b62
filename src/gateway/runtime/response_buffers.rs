//! Limits the bytes of responses that are held for clients which do not read them (`limits.response_buffers`).
//!
//! Only responses whose clients read too slowly are counted. Above the limit, responses are aborted until the rest
//! fits. The oldest response of the client that holds most is aborted first.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::log_throttle::LogThrottle;
use base::time::Clock;

/// Counts the bytes of unread responses, and aborts responses when there are too many bytes. All connections and threads of the
/// process share this count.
#[derive(Debug)]
pub(crate) struct ResponseBuffers {
    limit: AtomicUsize,
    /// The number of held bytes. The number is changed only while `unread` is locked.
    held: AtomicUsize,
    unread: Mutex<UnreadResponses>,
    metrics: BufferMetrics,
    log: LogThrottle,
    clock: Clock,
}

/// The metrics of unread responses: the bytes that are held, their limit, and the number of responses that were aborted.
pub(crate) struct BufferMetrics {
    pub bytes: Gauge,
    pub limit: Gauge,
    pub closed: Counter,
}

#[derive(Debug, Default)]
struct UnreadResponses {
    next: u64,
    /// The responses, in the order in which their clients stopped reading.
    responses: BTreeMap<u64, UnreadResponse>,
}

#[derive(Debug)]
struct UnreadResponse {
    bytes: usize,
    client: HeldForClient,
    /// The sender is dropped to abort the response.
    _give_up: oneshot::Sender<()>,
}

/// The number of bytes of unread responses that are held for one client.
#[derive(Clone, Debug, Default)]
pub struct HeldForClient(Arc<AtomicUsize>);

/// A response that its client does not read. Its bytes are counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct HeldResponse {
    buffers: Arc<ResponseBuffers>,
    number: u64,
    /// Receives the abort of the response; `None` after the abort.
    given_up: Option<oneshot::Receiver<()>>,
}

impl ResponseBuffers {
    /// Makes an empty count without a limit. Use [`ResponseBuffers::set_limit`] to set the limit.
    pub(crate) fn new(metrics: BufferMetrics, clock: Clock) -> ResponseBuffers {
        ResponseBuffers {
            limit: AtomicUsize::new(usize::MAX),
            held: AtomicUsize::new(0),
            unread: Mutex::default(),
            metrics,
            log: LogThrottle::default(),
            clock,
        }
    }

    /// Sets the maximum number of bytes that are held. If more bytes are held already, responses are aborted.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
        self.metrics.limit.set(as_gauge(bytes));
        self.give_up_beyond(&mut self.unread.lock());
    }

    /// Returns whether more than half of the allowed bytes are held. Responses should then be read through a small receive
    /// window.
    pub(crate) fn is_half_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed) / 2
    }

    /// Counts `bytes` of a response that its client does not read. The bytes are counted until the returned value is dropped.
    pub(crate) fn hold(self: &Arc<ResponseBuffers>, client: &HeldForClient, bytes: usize) -> HeldResponse {
        let (give_up, given_up) = oneshot::channel();
        let mut unread = self.unread.lock();
        let number = unread.next;
        unread.next += 1;
        client.0.fetch_add(bytes, Ordering::Relaxed);
        self.held.fetch_add(bytes, Ordering::Relaxed);
        unread.responses.insert(number, UnreadResponse { bytes, client: client.clone(), _give_up: give_up });
        self.give_up_beyond(&mut unread);
        HeldResponse { buffers: Arc::clone(self), number, given_up: Some(given_up) }
    }

    fn give_up_beyond(&self, unread: &mut UnreadResponses) {
        let limit = self.limit.load(Ordering::Relaxed);
        while self.held.load(Ordering::Relaxed) > limit {
            // Among clients that hold equally many bytes, the response that has waited longest is chosen.
            let most = unread.responses.iter().rev().max_by_key(|(_, response)| response.client.bytes());
            let Some(number) = most.map(|(number, _)| *number) else { return };
            self.remove(unread, number);
            self.metrics.closed.increment(1);
            if let Some(responses) = self.log.admit(self.clock.now()) {
                let hint = "clients that do not read have filled limits.response_buffers";
                log::warn!(responses, limit, hint; "unread responses given up");
            }
        }
        self.metrics.bytes.set(as_gauge(self.held.load(Ordering::Relaxed)));
    }

    fn remove(&self, unread: &mut UnreadResponses, number: u64) {
        let Some(response) = unread.responses.remove(&number) else { return };
        response.client.0.fetch_sub(response.bytes, Ordering::Relaxed);
        self.held.fetch_sub(response.bytes, Ordering::Relaxed);
    }
}

impl HeldForClient {
    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl HeldResponse {
    /// Becomes ready when the response must be aborted because too many bytes are held.
    pub(crate) fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(given_up) = &mut self.given_up {
            // The sender sends nothing, because its drop is the signal.
            let _ = ready!(Pin::new(given_up).poll(cx));
            self.given_up = None;
        }
        Poll::Ready(())
    }
}

impl Drop for HeldResponse {
    fn drop(&mut self) {
        let buffers = &self.buffers;
        buffers.remove(&mut buffers.unread.lock(), self.number);
        buffers.metrics.bytes.set(as_gauge(buffers.held.load(Ordering::Relaxed)));
    }
}

impl Default for BufferMetrics {
    /// Makes metrics that are not exported.
    fn default() -> BufferMetrics {
        BufferMetrics { bytes: Gauge::noop(), limit: Gauge::noop(), closed: Counter::noop() }
    }
}

impl fmt::Debug for BufferMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BufferMetrics")
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge, of less than 2^53 bytes")]
fn as_gauge(bytes: usize) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn buffers(limit: usize) -> Arc<ResponseBuffers> {
        let buffers = ResponseBuffers::new(BufferMetrics::default(), Clock::system());
        buffers.set_limit(limit);
        Arc::new(buffers)
    }

    fn is_given_up(response: &mut HeldResponse) -> bool {
        response.poll_given_up(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn beyond_the_limit_the_client_that_holds_most_loses_its_oldest_response() {
        let buffers = buffers(100);
        let [slow, greedy] = [(); 2].map(|()| HeldForClient::default());
        let mut oldest = buffers.hold(&slow, 30);
        let mut many: Vec<_> = (0..7).map(|_| buffers.hold(&greedy, 10)).collect();
        assert!(buffers.is_half_full() && !many.iter_mut().any(is_given_up));
        many.push(buffers.hold(&greedy, 10));
        let mut newest = buffers.hold(&slow, 10);
        let given_up: Vec<_> = many.iter_mut().map(is_given_up).collect();
        assert_eq!(given_up, [true, true, false, false, false, false, false, false]);
        assert!(!is_given_up(&mut oldest) && !is_given_up(&mut newest));
        buffers.set_limit(35);
        // If clients hold equally many bytes, the response that has waited longest is aborted.
        assert_eq!(
            many.iter_mut().map(is_given_up).collect::<Vec<_>>(),
            [true, true, true, true, true, true, false, false]
        );
        assert!(is_given_up(&mut oldest) && !is_given_up(&mut newest));
    }

    #[test]
    fn what_is_read_or_given_up_is_not_held() {
        let buffers = buffers(100);
        let client = HeldForClient::default();
        let (read, given_up) = (buffers.hold(&client, 50), buffers.hold(&HeldForClient::default(), 60));
        drop((read, given_up));
        assert_eq!((buffers.held.load(Ordering::Relaxed), client.bytes()), (0, 0));
        assert!(buffers.unread.lock().responses.is_empty() && !buffers.is_half_full());
    }
}
