//! An upstream whose paths say what a request costs and how its response ends.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::support::Upstream;

/// Starts an upstream. The words of a path are done in their order: `cost/N` adds the field `X-Cost`, `status/N` sets the status,
/// `hold` waits until the test has sent a message, `cut` closes the connection in the middle of the body, `silent` before
/// the head, and `endless` sends a body without an end.
pub(super) fn start() -> (Upstream, mpsc::Sender<()>) {
    let (finish, told) = mpsc::channel();
    let told = Mutex::new(told);
    let upstream = Upstream::answering(move |request, stream| {
        let path = request.line.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut status, mut cost, mut is_cut, mut is_endless) = (200, String::new(), false, false);
        let mut words = path.split('/').skip(1);
        while let Some(word) = words.next() {
            match word {
                "cost" => cost = format!("X-Cost: {}\r\n", words.next().unwrap_or_default()),
                "status" => status = words.next().unwrap().parse().unwrap(),
                "hold" => _ = told.lock().unwrap().recv_timeout(Duration::from_secs(60)),
                "cut" => is_cut = true,
                "endless" => is_endless = true,
                "silent" => return drop(stream.shutdown(Shutdown::Both)),
                _ => {}
            }
        }
        let head = |framing: &str| format!("HTTP/1.1 {status} Some\r\n{cost}{framing}\r\n\r\n");
        match () {
            () if is_cut => {
                write(stream, &format!("{}part", head("Content-Length: 100")));
                drop(stream.shutdown(Shutdown::Both));
            }
            () if is_endless => {
                write(stream, &head("Transfer-Encoding: chunked"));
                while stream.write_all(b"4\r\npart\r\n").is_ok() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            () if request.line.starts_with("HEAD") => write(stream, &head("Content-Length: 2")),
            () => write(stream, &format!("{}ok", head("Content-Length: 2"))),
        }
    });
    (upstream, finish)
}

fn write(stream: &mut TcpStream, text: &str) {
    // The gateway may have left.
    let _ = stream.write_all(text.as_bytes());
}
