//! A server that greets as a Redis does, and then lies: no real one would.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

/// Answers every call of the script that takes with `lie`.
pub fn play_redis(stream: TcpStream, lie: &[u8]) {
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
            // The first script is the one that tries what the user may do.
            "EVALSHA" if words[1] == format!("{:040}", 1) => b"*0\r\n".to_vec(),
            "EVALSHA" => lie.to_vec(),
            _ => b"-ERR unknown command\r\n".to_vec(),
        };
        if writer.write_all(&answer).is_err() {
            return;
        }
    }
}

/// One command; none when the connection has ended.
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
