//! Asks sentinels for the master, one after the other, and checks the servers that the sentinels name.
//!
//! A sentinel may be out of date. So an address counts only if the server there reports the role of a master. Two
//! servers may report that role for a while. The right one has the higher [`Rank`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::link::Answer;
use super::sentinels::{CurrentSentinels, Sentinels};
use crate::error::{Fault, StoreError};
use crate::redis::handshake::check_role;
use crate::remote::login::CurrentLogin;
use base::host_port::HostPort;

/// The longest time that a server may take to report its role. An announcement of a sentinel ends the wait.
const SERVER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for a server's role before the other sentinels are asked.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// The interval at which a replica that is being promoted is asked for its role.
pub(crate) const PROMOTION: Duration = Duration::from_millis(25);
/// The number of rounds for which a new master is kept although no sentinel names it.
const UNCONFIRMED_ROUNDS: u32 = 3;

/// The answer to the question whether another server has replaced the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    Stays,
    /// Not known yet: a promotion may be under way.
    Open,
    /// This server has replaced the master.
    By(HostPort),
}

/// The rank of a server among several that report the role of a master. The server with the highest configuration
/// epoch is the master. If epochs are equal, the master is the replica that a sentinel reports as promoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    epoch: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    #[default]
    Master,
    PromotedReplica,
}

/// A server that a sentinel names as the master or promotes.
#[derive(Clone, Debug)]
struct Candidate {
    server: HostPort,
    rank: Rank,
    /// The index of the sentinel that named the server.
    named_by: usize,
}

/// Asks all sentinels of a master, and remembers the master that was found last.
#[derive(Debug)]
pub(crate) struct Survey {
    sentinels: Sentinels,
    /// The login of the master.
    login: Arc<CurrentLogin>,
    /// The master that was found last, with the rank `rank`.
    found: Option<HostPort>,
    rank: Rank,
    /// The number of rounds in which no sentinel has named `found`.
    unconfirmed: u32,
}

impl Survey {
    /// Makes a survey for the master with this name. `login` is its login. `switched` is notified when a sentinel
    /// announces another master.
    pub(super) fn new(
        master: &str,
        current: Arc<CurrentSentinels>,
        login: Arc<CurrentLogin>,
        switched: Arc<Notify>,
    ) -> Survey {
        let sentinels = Sentinels::new(master, current, switched);
        Survey { sentinels, login, found: None, rank: Rank::default(), unconfirmed: 0 }
    }

    /// Asks one sentinel after the other, until one names a server that reports the role of a master. Returns this
    /// server.
    ///
    /// # Errors
    ///
    /// When no sentinel names such a server. The fault has the answers of all sentinels, and the most informative kind
    /// of error.
    pub(super) async fn find(&mut self) -> Result<HostPort, Fault> {
        let (mut faults, mut rejected) = (Vec::new(), Vec::new());
        // `silent`: servers that have not reported a role yet. `outdated`: servers with a lower rank than the last
        // master.
        let (mut silent, mut outdated, mut promoted) = (Vec::<Candidate>::new(), Vec::new(), Vec::new());
        let mut answers = Answers::All;
        for index in self.sentinels.begin_round() {
            let answer = match self.sentinels.ask(index).await {
                Ok(answer) => answer,
                Err(fault) => {
                    answers = Answers::Some;
                    faults.push(fault);
                    continue;
                }
            };
            // The replica that a sentinel promotes may already be a master.
            if let Some(replica) = Candidate::promoted(&answer, index).filter(|replica| replica.rank >= self.rank) {
                if self.try_out(&replica, FIRST_PATIENCE, &mut Vec::new()).await.is_ok() {
                    return Ok(replica.server);
                }
                promoted.push(replica);
            }
            let named = Candidate::named(answer, index);
            if named.rank < self.rank {
                outdated.push(named);
                continue;
            }
            if silent.iter().any(|other| other.server == named.server) {
                continue;
            }
            match self.try_out(&named, FIRST_PATIENCE, &mut rejected).await {
                Ok(()) => return Ok(named.server),
                Err(NotMaster::Silent) => silent.push(named),
                Err(NotMaster::Known) => {}
                Err(NotMaster::Fault(fault)) => faults.push(fault),
            }
        }
        if !outdated.is_empty()
            && self.may_be_unconfirmed(answers)
            && let Some(found) = self.found.clone()
            && let Ok(Ok(())) = timeout(FIRST_PATIENCE, check_role(&found, &self.login)).await
        {
            return Ok(found);
        }
        // Outdated servers are tried too, because epochs begin again when an operator resets the sentinels.
        silent.append(&mut outdated);
        let promotion = await_promotion(promoted, Arc::clone(&self.login));
        tokio::select! {
            biased;
            replica = promotion => {
                self.accept(&replica);
                Ok(replica.server)
            }
            found = self.try_out_all(silent, faults, rejected) => found,
        }
    }

    /// Checks the servers that sentinels named, waiting for each up to [`SERVER_TIMEOUT`].
    async fn try_out_all(
        &mut self,
        candidates: Vec<Candidate>,
        mut faults: Vec<Fault>,
        mut rejected: Vec<HostPort>,
    ) -> Result<HostPort, Fault> {
        for candidate in candidates {
            match self.try_out(&candidate, SERVER_TIMEOUT, &mut rejected).await {
                Ok(()) => return Ok(candidate.server),
                Err(NotMaster::Silent) => {
                    let detail = format!("no answer within {SERVER_TIMEOUT:?}");
                    faults.push(self.fault_of(&candidate, Fault::new(StoreError::Unreachable, detail)));
                    rejected.push(candidate.server);
                }
                Err(NotMaster::Known) => {}
                Err(NotMaster::Fault(fault)) => faults.push(fault),
            }
        }
        Err(summary(faults))
    }

    /// Asks all sentinels whether another server has replaced `master`. Also learns of new sentinels.
    pub(crate) async fn succession(&mut self, master: &HostPort) -> Succession {
        // The highest rank that a sentinel gives to `master`.
        let mut highest: Option<Rank> = None;
        let (mut others_named, mut promoting, mut answers) = (false, false, Answers::All);
        for index in self.sentinels.begin_round() {
            let Ok(answer) = self.sentinels.ask(index).await else {
                answers = Answers::Some;
                continue;
            };
            let promoted = Candidate::promoted(&answer, index);
            let named = Candidate::named(answer, index);
            if let Some(own) = promoted.iter().chain([&named]).find(|candidate| candidate.server == *master) {
                highest = highest.max(Some(own.rank));
                continue;
            }
            others_named = true;
            let known = self.rank;
            for candidate in promoted.into_iter().chain([named]).filter(|candidate| candidate.rank > known) {
                promoting |= candidate.rank.place == Place::PromotedReplica;
                if self.try_out(&candidate, SERVER_TIMEOUT, &mut Vec::new()).await.is_ok() {
                    return Succession::By(candidate.server);
                }
            }
        }
        if let Some(highest) = highest {
            self.unconfirmed = 0;
            // The rank may become lower, because epochs begin again when an operator resets the sentinels.
            self.rank = if others_named { self.rank.max(highest) } else { highest };
        }
        if promoting {
            return Succession::Open;
        }
        if highest.is_none() && others_named {
            if self.may_be_unconfirmed(answers) {
                return Succession::Open;
            }
            self.rank = Rank::default();
            return match self.find().await {
                Ok(found) if found != *master => Succession::By(found),
                _ => Succession::Stays,
            };
        }
        self.sentinels.learn().await;
        Succession::Stays
    }

    /// Whether `found` may be the master although no sentinel has named it in this round. True only for a few rounds,
    /// because the sentinels may restore the old master.
    fn may_be_unconfirmed(&mut self, answers: Answers) -> bool {
        self.unconfirmed += 1;
        answers == Answers::Some && self.unconfirmed <= UNCONFIRMED_ROUNDS
    }

    /// Checks the server that a sentinel names, if it was not yet rejected in this round.
    async fn try_out(
        &mut self,
        candidate: &Candidate,
        patience: Duration,
        rejected: &mut Vec<HostPort>,
    ) -> Result<(), NotMaster> {
        if rejected.contains(&candidate.server) {
            return Err(NotMaster::Known);
        }
        let checked = timeout(patience, check_role(&candidate.server, &self.login)).await;
        if let Err(fault) = checked.map_err(|_| NotMaster::Silent)? {
            rejected.push(candidate.server.clone());
            return Err(NotMaster::Fault(self.fault_of(candidate, fault)));
        }
        self.accept(candidate);
        Ok(())
    }

    /// Adds the sentinel that named the server to the server's fault.
    fn fault_of(&self, candidate: &Candidate, Fault { error, detail, .. }: Fault) -> Fault {
        let sentinel = self.sentinels.named(candidate.named_by);
        Fault::new(error, format!("{}, named by sentinel {sentinel}: {detail}", candidate.server))
    }

    /// Accepts the server, and makes the sentinel that named it the first to be asked.
    fn accept(&mut self, candidate: &Candidate) {
        self.rank = candidate.rank;
        self.found = Some(candidate.server.clone());
        self.unconfirmed = 0;
        self.sentinels.prefer(candidate.named_by);
    }
}

/// Whether all sentinels have answered in a round, or only some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    All,
    Some,
}

/// The reason why a server that a sentinel names is not the master.
enum NotMaster {
    /// The server has not reported its role in time.
    Silent,
    /// The server was rejected earlier in this round.
    Known,
    Fault(Fault),
}

/// Waits until one of these replicas has become a master, and returns it.
async fn await_promotion(replicas: Vec<Candidate>, login: Arc<CurrentLogin>) -> Candidate {
    if replicas.is_empty() {
        return std::future::pending().await;
    }
    loop {
        for replica in &replicas {
            if let Ok(Ok(())) = timeout(SERVER_TIMEOUT, check_role(&replica.server, &login)).await {
                return replica.clone();
            }
        }
        tokio::time::sleep(PROMOTION).await;
    }
}

impl Candidate {
    fn named(answer: Answer, named_by: usize) -> Candidate {
        let rank = Rank { epoch: answer.epoch, place: Place::Master };
        Candidate { server: answer.master, rank, named_by }
    }

    /// Returns the replica that the sentinel promotes.
    fn promoted(answer: &Answer, named_by: usize) -> Option<Candidate> {
        let server = answer.promoted.clone()?;
        // The sentinel may already name the promoted replica as the master.
        let place = if server == answer.master { Place::Master } else { Place::PromotedReplica };
        Some(Candidate { server, rank: Rank { epoch: answer.epoch, place }, named_by })
    }
}

/// Combines many faults into one, with the most informative error.
fn summary(faults: Vec<Fault>) -> Fault {
    // Rates how informative an error is.
    let telling = |error: StoreError| match error {
        StoreError::Unreachable | StoreError::Closed | StoreError::Timeout => 0,
        StoreError::Replica => 1,
        _ => 2,
    };
    let error = faults.iter().map(|fault| fault.error).max_by_key(|error| telling(*error));
    let details: Vec<String> = faults.into_iter().map(|fault| fault.detail).collect();
    Fault::new(error.unwrap_or(StoreError::Unreachable), details.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_every_detail_and_the_kind_that_tells_most() {
        let fault = |error, detail: &str| Fault::new(error, detail);
        let away = || fault(StoreError::Unreachable, "a: away");
        for (other, kind) in [
            (fault(StoreError::Unauthorized, "b: no"), StoreError::Unauthorized),
            (fault(StoreError::Replica, "b: no"), StoreError::Replica),
            (fault(StoreError::Closed, "b: no"), StoreError::Closed),
        ] {
            let both = summary(vec![away(), other.clone()]);
            assert_eq!((both.error, &*both.detail), (kind, "a: away; b: no"));
        }
        assert_eq!(summary(vec![fault(StoreError::Forbidden, "b"), away()]).error, StoreError::Forbidden);
        assert_eq!(summary(Vec::new()).error, StoreError::Unreachable);
    }
}
