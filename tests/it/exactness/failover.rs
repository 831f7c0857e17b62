//! Two gateways under load while the server of their buckets fails and another one replaces it. Every request is answered in
//! time, no window grants more than the data that the successor lacked, and the successor soon decides.

use super::history::windows::excess;
use super::history::{Numbers, Sample};
use crate::redis::faults_under_load::{BURST, Ending, Load, RATE, RequestRecord, ask_on, grants, pause};
use crate::support::{Gateway, Lateness, eventually, print_measured, short_or_long};

/// The time within which each client gets an answer from the successor, in milliseconds. It begins when the successor accepts
/// writes and is announced. The short form of the test allows twice as long, because the machine may be busy.
const SOON: i64 = 1_000;

/// The amount that a fault may grant beyond every window, for each bucket.
#[derive(Clone, Copy)]
pub enum Bound {
    Nothing,
    /// This many tokens of a token bucket.
    Tokens(u64),
    /// The whole capacity of the limit.
    All,
}

/// The answer that shows that the successor decides.
#[derive(Clone, Copy)]
pub enum Back {
    /// Only a grant: the old server may still refuse.
    Granted,
    /// A grant or a refusal.
    Decided,
}

/// A client of one gateway.
#[derive(Clone)]
pub struct LoadClient {
    /// The index of the limit for which the client sends requests.
    pub sample: usize,
    pub user: String,
}

/// A fault and the gateways that go through it.
pub struct Failover<'f> {
    /// The name of the fault in the output.
    pub fault: &'f str,
    /// The gateways. They refuse when the store is down.
    pub gateways: &'f [Gateway; 2],
    pub samples: &'f [Sample],
    pub clients: Vec<LoadClient>,
    pub bound: Bound,
    pub back: Back,
    /// The sum of a gateway's series of `rate_limiter_store_up` when everything works.
    pub up: f64,
}

/// Returns the limit of most failovers.
pub fn token_bucket() -> [Sample; 1] {
    [Sample { name: "token_bucket", limit: Numbers::per_second(RATE, BURST).into() }]
}

impl<'f> Failover<'f> {
    /// Makes a failover of a store on one server, with clients as [`Load::callers`] says. The fault may lose all granted
    /// amounts.
    pub fn of_one_server(fault: &'f str, gateways: &'f [Gateway; 2], samples: &'f [Sample]) -> Failover<'f> {
        let callers = Load::start(samples).callers();
        let clients = callers.into_iter().map(|sample| LoadClient { sample, user: "one".to_owned() }).collect();
        let (bound, back) = (Bound::All, Back::Granted);
        Failover { fault, gateways, samples, clients, bound, back, up: 1.0 }
    }

    /// Runs the fault. `happens` returns the time at which the successor accepted writes and was announced, if there is one.
    /// Returns the largest amount that was granted beyond a window, in units of its limit.
    #[track_caller]
    pub fn survive(&self, happens: impl FnOnce(&Load) -> Option<i64>) -> i128 {
        let Failover { fault, samples, .. } = self;
        self.await_store();
        let (load, lateness) = (Load::start(samples), Lateness::measure());
        let (promoted, seen) = self.play(&load, happens);
        // Each was answered: a connection that fails is a panic.
        let all = || seen.iter().flat_map(|(_, seen)| seen);
        assert!(all().all(|request| matches!(request.status, 200 | 429 | 503)), "{fault}");
        let longest = all().map(|request| request.answered - request.sent).max().unwrap() / 1000;
        let longest = u128::try_from(longest).unwrap();
        let back = promoted.map(|promoted| self.back(promoted, &seen));
        let count = |status: u16| all().filter(|request| request.status == status).count();
        print_measured(&format!(
            "failover: {fault}, {} requests, {} granted, {} unavailable, longest {longest} ms, back {back:?} ms after the \
             successor was ready",
            all().count(),
            count(200),
            count(503),
        ));
        let most = samples.iter().enumerate().map(|(index, Sample { name, limit })| {
            let of_user = |user: &str| {
                let own = seen.iter().filter(|(client, _)| client.user == user);
                let granted: Vec<_> = own.flat_map(|(_, seen)| grants(seen, index)).collect();
                excess(&limit.of_responses(), &granted, &load.clock_of_this_machine())
            };
            let beyond = self.clients.iter().map(|client| of_user(&client.user)).max().unwrap();
            let bound = match self.bound {
                Bound::Nothing => 0,
                Bound::Tokens(tokens) => limit.price(tokens * 1000),
                Bound::All => limit.capacity(),
            };
            print_measured(&format!("{name}: excess {}, bound {}", limit.tokens(beyond), limit.tokens(bound)));
            assert!(beyond <= bound, "{fault}, {name}: {}", limit.tokens(beyond));
            beyond
        });
        let most = most.max().unwrap();
        let busy = lateness.of_a_request();
        assert!(
            longest < 1_000 + busy.as_millis(),
            "{fault}: {longest} ms on a machine that delays a request by {busy:?}"
        );
        let within = SOON * short_or_long(2, 1) + i64::try_from(busy.as_millis()).unwrap();
        assert!(back.is_none_or(|back| back < within), "{fault}: {back:?} ms");
        self.await_store();
        most
    }

    /// Keeps all clients busy during the fault, until both gateways grant again. Returns the result of the fault's function,
    /// and the records of each client.
    #[track_caller]
    fn play(
        &self,
        load: &Load,
        happens: impl FnOnce(&Load) -> Option<i64>,
    ) -> (Option<i64>, Vec<(&LoadClient, Vec<RequestRecord>)>) {
        let allowed = |gateway: &Gateway| gateway.metric("rate_limiter_allowed_total", &[]);
        let under_way = f64::from(u32::try_from(self.clients.len()).unwrap());
        std::thread::scope(|scope| {
            let ending = Ending(load);
            let clients =
                self.gateways.iter().flat_map(|gateway| self.clients.iter().map(move |client| (gateway, client)));
            let asking: Vec<_> = clients
                .map(|(gateway, client)| (client, scope.spawn(|| ask_on(gateway, client.sample, &client.user, load))))
                .collect();
            pause(300);
            load.await_refusals();
            let promoted = happens(load);
            pause(1_000);
            // More than what its clients had under way: the store has decided again for each of the gateways.
            for gateway in self.gateways {
                let before = allowed(gateway);
                eventually("it is granted again", || allowed(gateway) > before + under_way);
            }
            load.await_refusals();
            drop(ending);
            (promoted, asking.into_iter().map(|(client, asking)| (client, asking.join().unwrap())).collect())
        })
    }

    /// Returns how long after the promotion the last client got its first answer from the successor, in milliseconds. Only
    /// the first limit is used, because others may grant nothing for a whole window.
    fn back(&self, promoted: i64, seen: &[(&LoadClient, Vec<RequestRecord>)]) -> i64 {
        let shows = |request: &&RequestRecord| match self.back {
            Back::Granted => request.status == 200,
            Back::Decided => request.status != 503,
        };
        // Several clients may share a bucket of which little comes back: the first of a gateway's counts.
        let of_gateway = |seen: &[(&LoadClient, Vec<RequestRecord>)]| {
            let users = seen.iter().filter(|(client, _)| client.sample == 0);
            let first = |user: &str| {
                let own = seen.iter().filter(|(client, _)| client.sample == 0 && client.user == user);
                let answers = own.flat_map(|(_, seen)| seen).filter(|request| request.sent > promoted).filter(shows);
                answers.map(|request| request.answered).min().expect("it is decided again")
            };
            users.map(|(client, _)| first(&client.user)).max().unwrap()
        };
        let last = seen.chunks(self.clients.len()).map(of_gateway).max().unwrap();
        (last - promoted) / 1000
    }

    #[track_caller]
    fn await_store(&self) {
        for gateway in self.gateways {
            eventually("it is connected", || gateway.metric("rate_limiter_store_up", &[]) >= self.up);
        }
    }
}
