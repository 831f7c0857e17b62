//! Determines the master's address, for all connections of a gateway, and detects when the master moves.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::sentinels::CurrentSentinels;
use super::settings::Settings;
use super::survey::{PROMOTION, Succession, Survey};
use crate::error::{Fault, StoreError};
use crate::remote::login::CurrentLogin;
use base::host_port::HostPort;
use base::interval::fixed_interval;

/// How long the sentinels' answers are used, if no announcement comes.
const REFRESH: Duration = Duration::from_secs(10);
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two rounds. Until the master is found, requests are decided without the store.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Finds the master that the sentinels name, and notices when it changes. All connections of a gateway share this
/// watch.
#[derive(Debug)]
pub(crate) struct MasterWatch {
    found: watch::Sender<RoundResult>,
    /// Notified by a connection that doubts the found address.
    doubted: Notify,
    /// Notified when a sentinel announces another master.
    switched: Arc<Notify>,
    current: Arc<CurrentSentinels>,
    /// The survey, until [`MasterWatch::run`] takes it.
    survey: Mutex<Option<Survey>>,
}

/// The result of the last round of questions.
#[derive(Clone, Debug)]
struct RoundResult {
    /// The number of rounds that have ended.
    round: u64,
    master: Result<HostPort, Fault>,
}

impl MasterWatch {
    /// Makes the watch for the master of these settings. `login` is the login for the master.
    pub(crate) fn new(settings: &Settings, login: Arc<CurrentLogin>) -> MasterWatch {
        let switched = Arc::new(Notify::new());
        let current = Arc::new(CurrentSentinels::new(settings));
        let survey = Survey::new(&settings.master, Arc::clone(&current), login, Arc::clone(&switched));
        let nothing = Fault::new(StoreError::Unreachable, "no sentinel was asked");
        MasterWatch {
            found: watch::Sender::new(RoundResult { round: 0, master: Err(nothing) }),
            doubted: Notify::new(),
            switched,
            current,
            survey: Mutex::new(Some(survey)),
        }
    }

    /// Asks the sentinels for the master, and receives their announcements. Never returns.
    pub(crate) async fn run(&self) {
        // If `run` was called before, this call has nothing to do.
        let Some(mut survey) = self.survey.lock().take() else { return };
        let mut pause = SHORTEST_PAUSE;
        loop {
            let found = tokio::select! {
                biased;
                // The asked sentinel may not know the new master yet, so the round begins again.
                () = self.switched.notified() => continue,
                found = survey.find() => found,
            };
            let master = found.as_ref().ok().cloned();
            self.publish(found);
            match master {
                Some(master) => {
                    pause = SHORTEST_PAUSE;
                    self.follow(&mut survey, master).await;
                }
                None => {
                    tokio::select! {
                        () = self.switched.notified() => {}
                        () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Follows the master from server to server, until a connection doubts its address.
    async fn follow(&self, survey: &mut Survey, mut master: HostPort) {
        loop {
            let succession = tokio::select! {
                biased;
                () = self.doubted.notified() => return,
                succession = survey.succession(&master) => succession,
            };
            let pause = match succession {
                Succession::Stays => fixed_interval("sentinel_refresh", REFRESH),
                Succession::Open => PROMOTION,
                Succession::By(successor) => {
                    master = successor;
                    self.publish(Ok(master.clone()));
                    continue;
                }
            };
            tokio::select! {
                biased;
                () = self.doubted.notified() => return,
                () = self.switched.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn publish(&self, master: Result<HostPort, Fault>) {
        self.found.send_modify(|found| *found = RoundResult { round: found.round + 1, master });
    }

    /// Returns the address of the master, after a round of questions to the sentinels.
    ///
    /// # Errors
    ///
    /// When no sentinel names a server that reports the role of a master.
    pub(crate) async fn master(&self) -> Result<HostPort, Fault> {
        let mut rounds = self.found.subscribe();
        let last = rounds.borrow_and_update().round;
        self.doubted.notify_one();
        // Fails only if the sender is dropped, which never happens while `self` exists.
        let found = rounds.wait_for(|found| found.round > last).await;
        found.map_or_else(|_| Err(Fault::new(StoreError::Closed, "the watch has ended")), |found| found.master.clone())
    }

    /// Waits until the master's address differs from `from`, and returns the new address.
    pub(crate) async fn moved(&self, from: &HostPort) -> HostPort {
        let mut rounds = self.found.subscribe();
        loop {
            if let Ok(master) = &rounds.borrow_and_update().master
                && master != from
            {
                return master.clone();
            }
            if rounds.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the sentinels are asked again and a master is found. An earlier answer does not count.
    pub(crate) async fn found_again(&self) {
        let mut rounds = self.found.subscribe();
        let last = rounds.borrow_and_update().round;
        if rounds.wait_for(|found| found.round > last && found.master.is_ok()).await.is_err() {
            std::future::pending().await
        }
    }

    /// Replaces the sentinels and their login, from the next question on.
    pub(crate) fn replace(&self, settings: &Settings) {
        self.current.replace(settings);
    }
}

/// Asks the sentinels once for the address of their master, without watching it.
///
/// # Errors
///
/// When no sentinel names a server that reports the role of a master.
pub(crate) async fn find_master(settings: &Settings, login: Arc<CurrentLogin>) -> Result<HostPort, Fault> {
    let current = Arc::new(CurrentSentinels::new(settings));
    Survey::new(&settings.master, current, login, Arc::default()).find().await
}
