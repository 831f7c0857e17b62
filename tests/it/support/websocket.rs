//! The WebSocket handshake in RFC 6455, section 1.3.

/// The fields with which a client opens a WebSocket.
pub(crate) const UPGRADE: [(&str, &str); 4] = [
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// The whole response of an upstream that accepts the upgrade.
pub(crate) const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Returns the head of a request that opens a WebSocket.
pub(crate) fn upgrade(target: &str) -> String {
    let fields: String = UPGRADE.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")
}
