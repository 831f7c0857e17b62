//! Detects by the first bytes which protocol a client speaks, on a listener without TLS that has both HTTP/1.1 and
//! HTTP/2.

use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;
use tokio::io::AsyncReadExt;

use super::frame_counts::PREFACE;
use crate::gateway::server::server_state::ServerState;
use base::http_protocol::HttpProtocol;
use base::time;

/// How long a connection without any bytes is kept when the process shuts down, because bytes may be on their way.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Detects the protocol that the client speaks, and returns it with the bytes that were read. `None` if the connection must be
/// closed, because nothing arrives in time or the client has disconnected.
pub(crate) async fn find_protocol(
    stream: &mut Stream,
    state: &ServerState,
    shutdown: &ShutdownWatch,
) -> Option<(HttpProtocol, BytesMut)> {
    let bounds = state.snapshot.load().config.bounds;
    let mut read = BytesMut::new();
    let mut watch = shutdown.clone();
    let leave = async { drop(watch.wait_for(|leave| *leave).await) };
    {
        let mut first = pin!(time::timeout(bounds.idle_timeout.into(), stream.read_buf(&mut read)));
        let arrived = tokio::select! {
            biased;
            arrived = &mut first => arrived,
            () = leave => time::timeout(LAST_WAIT, first).await.ok()?,
        };
        arrived.ok()?.ok().filter(|length| *length > 0)?;
    }
    let rest = async {
        while read.len() < PREFACE.len() && PREFACE.starts_with(&read) {
            match stream.read_buf(&mut read).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            }
        }
        Some(())
    };
    // A timeout is no error here, because the HTTP/1.1 server answers an incomplete head.
    if let Ok(ended) = time::timeout(bounds.header_timeout.into(), rest).await {
        ended?;
    }
    let protocol = if read.starts_with(PREFACE) { HttpProtocol::H2c } else { HttpProtocol::Http1 };
    Some((protocol, read))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::sync::watch;

    use super::*;
    use crate::gateway::server::server_state::tests::state;

    async fn found(parts: &[&[u8]]) -> Option<(HttpProtocol, usize)> {
        let (mut client, server) = tokio::io::duplex(64);
        let (_leave, shutdown) = watch::channel(false);
        let mut stream: Stream = Box::new(server);
        let (state, _) = state("limits: {idle_timeout: 100ms, header_timeout: 100ms}");
        let find = tokio::spawn(async move { (find_protocol(&mut stream, &state, &shutdown).await, stream) });
        for part in parts {
            client.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
        let (found, _stream) = find.await.unwrap();
        found.map(|(protocol, read)| (protocol, read.len()))
    }

    #[tokio::test]
    async fn a_client_that_begins_with_the_whole_preface_speaks_http2() {
        assert_eq!(found(&[PREFACE, b"more"]).await, Some((HttpProtocol::H2c, 24)));
        assert_eq!(found(&[&PREFACE[..1], &PREFACE[1..20], &PREFACE[20..]]).await, Some((HttpProtocol::H2c, 24)));
        assert_eq!(found(&[b"P", b"OST / HTTP/1.1"]).await, Some((HttpProtocol::Http1, 15)));
        assert_eq!(found(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r."]).await, Some((HttpProtocol::Http1, 24)));
        assert_eq!(found(&[b"GET"]).await, Some((HttpProtocol::Http1, 3)));
    }

    #[tokio::test]
    async fn a_client_is_waited_for_no_longer_than_its_limits_allow() {
        assert_eq!(found(&[]).await, None);
        // The byte may also be the beginning of `PUT`.
        assert_eq!(found(&[b"P"]).await, Some((HttpProtocol::Http1, 1)));
    }
}
