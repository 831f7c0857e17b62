//! A relay between a gateway and its Redis: it passes requests on at once, and delays or drops answers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::now;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Pass,
    /// Each answer is delayed by this time. The order is kept.
    Late(Duration),
    /// All answers are dropped. The connection stays open.
    Lost,
    /// All answers and all further requests are dropped. The connection stays open.
    Cut,
    /// Every second answer is replaced by this error. For calls that are made one after the other, without heartbeats.
    EverySecond(&'static str),
}

pub(crate) struct Relay {
    pub port: u16,
    answers: Arc<Mutex<Answers>>,
    server: Arc<AtomicU16>,
}

impl Relay {
    /// Starts a relay to this port.
    pub(crate) fn start(redis: u16) -> Relay {
        Relay::start_at(("127.0.0.1", 0), redis)
    }

    /// Starts a relay that also sends everything a second time, this much later, on a connection of its own, whose answers it drops.
    pub(crate) fn doubling(redis: u16, late: Duration) -> Relay {
        Relay::start_with(("127.0.0.1", 0), redis, Some(late))
    }

    /// Starts a relay to this port that listens at an address of this machine.
    pub(crate) fn start_at(address: (&str, u16), redis: u16) -> Relay {
        Relay::start_with(address, redis, None)
    }

    fn start_with(address: (&str, u16), redis: u16, doubled: Option<Duration>) -> Relay {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = Arc::new(Mutex::new(Answers::Pass));
        let server = Arc::new(AtomicU16::new(redis));
        let (chosen, redis) = (Arc::clone(&answers), Arc::clone(&server));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let connect = || TcpStream::connect(("127.0.0.1", redis.load(Ordering::SeqCst))).ok();
                let double = doubled.and_then(|late| Some((connect()?, late)));
                // If the server is down, the connection is closed at once.
                if let Some(server) = connect() {
                    pass(client, server, Arc::clone(&chosen), double);
                }
            }
        });
        Relay { port, answers, server }
    }

    /// Passes new connections on to the server at another port.
    pub(crate) fn lead_to(&self, port: u16) {
        self.server.store(port, Ordering::SeqCst);
    }

    pub(crate) fn set(&self, answers: Answers) {
        *self.answers.lock().unwrap() = answers;
    }
}

fn pass(client: TcpStream, server: TcpStream, answers: Arc<Mutex<Answers>>, double: Option<(TcpStream, Duration)>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (mut from_server, mut to_client) = (server, client);
    let (again, to_be_doubled) = mpsc::channel::<(Instant, Vec<u8>)>();
    let late = double.as_ref().map(|(_, late)| *late);
    let chosen = Arc::clone(&answers);
    std::thread::spawn(move || {
        let mut bytes = [0; 64 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut bytes) {
            if *chosen.lock().unwrap() == Answers::Cut {
                continue;
            }
            if let Some(late) = late {
                let _ = again.send((now() + late, bytes[..length].to_vec()));
            }
            if to_server.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Both);
    });
    if let Some((mut second, _)) = double {
        let mut answers = second.try_clone().unwrap();
        std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
        std::thread::spawn(move || {
            for (at, bytes) in to_be_doubled {
                std::thread::sleep(at.saturating_duration_since(now()));
                if second.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = second.shutdown(Shutdown::Both);
        });
    }
    let (later, due) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut bytes, mut number) = ([0; 64 << 10], 0_u64);
        while let Ok(length @ 1..) = from_server.read(&mut bytes) {
            let (mut delay, mut answer) = (Duration::ZERO, bytes[..length].to_vec());
            number += 1;
            match *answers.lock().unwrap() {
                Answers::Pass => {}
                Answers::Late(by) => delay = by,
                Answers::Lost | Answers::Cut => continue,
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
