//! Restarts gateways one after the other, behind a load balancer that checks their readiness.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Gateway, Load, Upstream, eventually, short_or_long};

/// The health checks of a load balancer: the last known readiness of each gateway.
struct Checks {
    listening: Vec<SocketAddr>,
    ready: Vec<AtomicBool>,
    turn: AtomicUsize,
}

impl Checks {
    fn of(gateways: &[Gateway]) -> Arc<Checks> {
        let checks = Arc::new(Checks {
            listening: gateways.iter().map(|gateway| gateway.http).collect(),
            ready: gateways.iter().map(|_| AtomicBool::new(true)).collect(),
            turn: AtomicUsize::new(0),
        });
        let (admins, kept) =
            (gateways.iter().map(|gateway| gateway.admin).collect::<Vec<_>>(), Arc::downgrade(&checks));
        std::thread::spawn(move || {
            while let Some(checks) = kept.upgrade() {
                for (admin, ready) in admins.iter().zip(&checks.ready) {
                    ready.store(is_ready(*admin).unwrap_or(false), Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        checks
    }

    fn sees(&self, number: usize) -> bool {
        self.ready[number].load(Ordering::Relaxed)
    }

    /// Returns the ready gateways in turn.
    fn next(&self) -> SocketAddr {
        loop {
            let number = self.turn.fetch_add(1, Ordering::Relaxed) % self.listening.len();
            if self.sees(number) {
                return self.listening[number];
            }
        }
    }
}

fn is_ready(admin: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(admin)?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200 "))
}

#[test]
fn a_rolling_restart_under_load_loses_no_request() {
    let upstream = Upstream::start();
    let mut gateways: Vec<_> = (0..2).map(|_| Gateway::start(&upstream, "drain: {delay: 3s}")).collect();
    let checks = Checks::of(&gateways);
    let balancer = Arc::clone(&checks);
    let load = Load::on(move || balancer.next());
    for restart in 0..short_or_long(3, 20) {
        let number = restart % gateways.len();
        load.await_answers();
        gateways[number].signal("TERM");
        let (status, _) = gateways[number].wait();
        assert_eq!(status.code(), Some(0), "{}", gateways[number].errors());
        load.await_answers();
        gateways[number].start_again();
        eventually("it is seen again", || checks.sees(number));
    }
    let answered = load.end();
    assert_eq!(upstream.seen().len(), answered);
}
