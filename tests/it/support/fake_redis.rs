//! A fake Redis, which accepts the commands of a gateway's login and answers every take with a given reply. Also a fake
//! sentinel, which names a given server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

/// Serves a connection: answers every call of the take script with `reply`.
pub(crate) fn serve_fake_redis(stream: TcpStream, reply: &[u8]) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    let mut loaded = 0;
    while let Some(words) = read(&mut reader) {
        let answer = match &*words[0] {
            "ROLE" => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
            "SCRIPT" => {
                loaded += 1;
                format!("$40\r\n{loaded:040}\r\n").into_bytes()
            }
            // The first script is the probe of what the user may do.
            "EVALSHA" if words[1] == format!("{:040}", 1) => b"*0\r\n".to_vec(),
            "EVALSHA" => reply.to_vec(),
            _ => b"-ERR unknown command\r\n".to_vec(),
        };
        if writer.write_all(&answer).is_err() {
            return;
        }
    }
}

/// Serves a connection of a sentinel: names the server on this port as the master.
pub(crate) fn serve_fake_sentinel(stream: TcpStream, port: u16) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(words) = read(&mut reader) {
        let answer = match (&*words[0], words.get(1).map(String::as_str)) {
            ("HELLO", _) => "%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n".to_owned(),
            ("SUBSCRIBE", _) => ">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n".to_owned(),
            ("SENTINEL", Some("GET-MASTER-ADDR-BY-NAME")) => {
                let port = port.to_string();
                format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
            }
            _ => "-ERR unknown command\r\n".to_owned(),
        };
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads one command; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let count = number(reader, '*')?;
    (0..count)
        .map(|_| {
            let length = number(reader, '$')?;
            let mut word = vec![0; length + 2];
            reader.read_exact(&mut word).ok()?;
            word.truncate(length);
            Some(String::from_utf8_lossy(&word).into_owned())
        })
        .collect()
}

fn number(reader: &mut impl BufRead, mark: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}
