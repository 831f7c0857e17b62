//! A relay between a gateway and its Redis: it passes requests on at once, and delays or drops answers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::now;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Pass,
    /// Each answer is delayed by this time. The order is kept.
    Late(Duration),
    /// All answers are dropped. The connection stays open.
    Lost,
    /// Every second answer is replaced by this error. For calls that are made one after the other, without heartbeats.
    EverySecond(&'static str),
}

pub(crate) struct Relay {
    pub port: u16,
    answers: Arc<Mutex<Answers>>,
}

impl Relay {
    /// Starts a relay to this port.
    pub(crate) fn start(redis: u16) -> Relay {
        Relay::start_at(("127.0.0.1", 0), redis)
    }

    /// Starts a relay to this port that listens at an address of this machine.
    pub(crate) fn start_at(address: (&str, u16), redis: u16) -> Relay {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = Arc::new(Mutex::new(Answers::Pass));
        let chosen = Arc::clone(&answers);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If the server is down, the connection is closed at once.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", redis)) {
                    pass(client, server, Arc::clone(&chosen));
                }
            }
        });
        Relay { port, answers }
    }

    pub(crate) fn set(&self, answers: Answers) {
        *self.answers.lock().unwrap() = answers;
    }
}

fn pass(client: TcpStream, server: TcpStream, answers: Arc<Mutex<Answers>>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (mut from_server, mut to_client) = (server, client);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (later, due) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut bytes, mut number) = ([0; 64 << 10], 0_u64);
        while let Ok(length @ 1..) = from_server.read(&mut bytes) {
            let (mut delay, mut answer) = (Duration::ZERO, bytes[..length].to_vec());
            number += 1;
            match *answers.lock().unwrap() {
                Answers::Pass => {}
                Answers::Late(by) => delay = by,
                Answers::Lost => continue,
                Answers::EverySecond(error) if number.is_multiple_of(2) => answer = format!("-{error}\r\n").into(),
                Answers::EverySecond(_) => {}
            }
            let _ = later.send((now() + delay, answer));
        }
    });
    std::thread::spawn(move || {
        for (at, bytes) in due {
            std::thread::sleep(at.saturating_duration_since(now()));
            if to_client.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
}
