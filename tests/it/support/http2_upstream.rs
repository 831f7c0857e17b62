//! An HTTP/2 upstream without TLS that sends long responses, as far as flow control permits.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use http::{Request, Response};

/// A gRPC message, with the prefix that contains its length.
pub(crate) const MESSAGE: &[u8] = &[0, 0, 0, 0, 1, b'm'];

const PART: &[u8] = &[b'x'; 16 << 10];

/// Answers by the path: `/large/N` with N bytes, `/messages/N` with N messages in a frame each. It never answers `/stuck`,
/// and reads nothing of it. For `/slow`, it reads a part of the body each millisecond. It answers everything else with the
/// length of the body.
pub(crate) struct Http2Upstream {
    pub address: SocketAddr,
    counts: Counts,
}

#[derive(Clone, Default)]
struct Counts {
    connections: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
    /// The number of sent bytes of long responses.
    sent: Arc<AtomicUsize>,
}

/// Serves HTTP/2 without TLS on a free port, on a thread of its own, and returns its address. `connected` is called for each
/// connection. What `answer` returns for a request is run beside all others; an error of it is that the stream was reset.
pub(crate) fn serve<A>(
    options: h2::server::Builder,
    connected: impl Fn() + Send + 'static,
    answer: impl Fn(Request<h2::RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
) -> SocketAddr
where
    A: Future<Output = Result<(), h2::Error>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connected();
                let (options, answer) = (options.clone(), Arc::clone(&answer));
                tokio::spawn(async move {
                    let Ok(mut server) = options.handshake::<_, Bytes>(stream).await else { return };
                    while let Some(Ok((request, respond))) = server.accept().await {
                        let answered = answer(request, respond);
                        tokio::spawn(async move { drop(answered.await) });
                    }
                });
            }
        });
    });
    address
}

impl Http2Upstream {
    pub(crate) fn start() -> Http2Upstream {
        Http2Upstream::with_streams(None)
    }

    /// Starts the upstream with at most this many streams on each connection.
    pub(crate) fn with_streams(most: Option<u32>) -> Http2Upstream {
        let mut options = h2::server::Builder::new();
        if let Some(most) = most {
            options.max_concurrent_streams(most);
        }
        // A server that reads slowly, and not one that counts unread frames.
        options.data_frame_budget(usize::MAX);
        let upstream = Counts::default();
        let (connected, answering) = (upstream.clone(), upstream.clone());
        let address = serve(
            options,
            move || {
                connected.connections.fetch_add(1, Ordering::Relaxed);
            },
            move |request, respond| {
                let counts = answering.clone();
                async move { counts.answer(request, respond).await }
            },
        );
        Http2Upstream { address, counts: upstream }
    }

    /// Returns how many connections were opened.
    pub(crate) fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// Returns how many requests have begun.
    pub(crate) fn begun(&self) -> usize {
        self.counts.begun.load(Ordering::Relaxed)
    }

    /// Returns how many bytes of long responses were sent, as far as flow control permitted.
    pub(crate) fn sent(&self) -> usize {
        self.counts.sent.load(Ordering::Relaxed)
    }
}

impl Counts {
    async fn answer(
        &self,
        request: Request<h2::RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let (head, mut body) = request.into_parts();
        self.begun.fetch_add(1, Ordering::Relaxed);
        if head.uri.path() == "/stuck" {
            return std::future::pending().await;
        }
        let (kind, number) = head.uri.path().trim_start_matches('/').split_once('/').unwrap_or_default();
        let number: usize = number.parse().unwrap_or_default();
        let part = match kind {
            "large" => Bytes::from_static(PART),
            "messages" => Bytes::from_static(MESSAGE),
            _ => {
                let mut length = 0;
                while let Some(part) = body.data().await {
                    let part = part?;
                    if head.uri.path() == "/slow" {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    length += part.len();
                    body.flow_control().release_capacity(part.len())?;
                }
                let mut stream = respond.send_response(Response::new(()), false)?;
                return stream.send_data(length.to_string().into(), true);
            }
        };
        let mut stream = respond.send_response(Response::new(()), false)?;
        let mut left = if kind == "large" { number } else { number * part.len() };
        while left > 0 {
            let length = left.min(part.len());
            self.send(&mut stream, part.slice(..length)).await?;
            left -= length;
        }
        stream.send_data(Bytes::new(), true)
    }

    async fn send(&self, stream: &mut SendStream<Bytes>, mut part: Bytes) -> Result<(), h2::Error> {
        while !part.is_empty() {
            stream.reserve_capacity(part.len());
            while stream.capacity() == 0 {
                let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                capacity.unwrap_or(Err(h2::Reason::CANCEL.into()))?;
            }
            let sent = part.split_to(stream.capacity().min(part.len()));
            self.sent.fetch_add(sent.len(), Ordering::Relaxed);
            stream.send_data(sent, false)?;
        }
        Ok(())
    }
}
