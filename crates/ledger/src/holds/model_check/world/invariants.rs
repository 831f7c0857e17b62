//! Checks the invariants in every state of the small world.

use super::{BEGIN, Client, Settled, Variant, World, has, key, micros};
use crate::cost::Cost;
use crate::holds::Owner;

impl World {
    /// Returns how many requests of an owner use a bucket, if all answers under way arrive now.
    pub(super) fn promised(&self, owner: usize, bucket: usize) -> u64 {
        let client = &self.shared.clients[owner];
        if !client.is_alive {
            return 0;
        }
        let running = client.requests.iter().filter(|(mask, _)| has(*mask, bucket)).count();
        let mut granted: Vec<u64> = self
            .shared
            .answers
            .iter()
            .filter(|sent| sent.owner == owner && sent.is_granted)
            .filter(|sent| {
                sent.call.reports.iter().any(|about| about.bucket == key(bucket) && about.asked > Cost::default())
            })
            .map(|sent| sent.call.sequence)
            .filter(|sequence| {
                self.variant == Variant::LateAnswerCounts || client.holdings.waits_for(&key(bucket), *sequence)
            })
            .collect();
        granted.dedup();
        (running + granted.len()) as u64
    }

    /// Checks, at the moment of a grant, that no more slots of a bucket are in use than the limit has.
    ///
    /// # Errors
    ///
    /// Says how many slots are in use beyond the limit.
    pub(super) fn check_admission(&self, owner: usize, bucket: usize) -> Result<(), String> {
        let clients = &self.shared.clients;
        if clients.iter().any(|client| client.is_alive && client.heard[bucket].unsaid.is_some()) {
            return Ok(());
        }
        let promised: u64 = (0..clients.len()).map(|owner| self.promised(owner, bucket)).sum();
        let spent: u64 = clients.iter().map(|client| client.least_spent(bucket)).sum();
        match promised + spent <= self.limits[owner].size() {
            true => Ok(()),
            false => Err(format!("more runs of {bucket} than the limit: {promised} beside {spent}")),
        }
    }

    /// Checks that no settled cost is spent twice.
    ///
    /// # Errors
    ///
    /// Says how much is spent and how much was settled.
    fn check_spent(&self, bucket: usize) -> Result<(), String> {
        let spent = self.spent(bucket);
        let settled = self.shared.clients.iter().map(|client| client.settled[bucket]);
        let most: u64 = settled.map(|settled| settled.sum - settled.flushed).sum();
        if spent > most { Err(format!("{spent} of {bucket} is spent, {most} was settled")) } else { Ok(()) }
    }

    fn spent(&self, bucket: usize) -> u64 {
        self.limits[0].spent(self.shared.stored[bucket].as_deref(), micros(self.shared.clock))
    }

    /// Checks that the invariants hold in this state.
    ///
    /// # Errors
    ///
    /// Returns a message that names the invariant that is broken.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (owner, client) in self.shared.clients.iter().enumerate().filter(|(_, client)| client.is_alive) {
            for bucket in 0..self.shared.stored.len() {
                if client.heard[bucket].unsaid.is_some() {
                    continue;
                }
                let (promised, counted) = (self.promised(owner, bucket), self.counted(owner, bucket).whole());
                if promised > counted {
                    return Err(format!("more runs of {bucket} than is counted for {owner}: {promised} of {counted}"));
                }
            }
        }
        (0..self.shared.stored.len()).try_for_each(|bucket| self.check_spent(bucket))?;
        self.clone().check_leaks()
    }

    /// Checks that the store counts what the owners hold, and nothing else, after all reports and late calls have
    /// arrived.
    ///
    /// # Errors
    ///
    /// Says what the store still counts, or what a late call has changed.
    pub(super) fn check_leaks(mut self) -> Result<(), String> {
        let (late, answers) = (std::mem::take(&mut self.shared.calls), std::mem::take(&mut self.shared.answers));
        let rounds = if self.shared.clock < BEGIN + self.shared.time { 10 } else { 3 };
        for round in 0..rounds {
            for owner in 0..self.shared.clients.len() {
                if self.shared.clients[owner].is_alive {
                    self.shared.clients[owner].holdings.reconnected();
                    self.send(owner, &[]);
                    let sent = self.shared.calls.remove(0);
                    self.arrive(&sent)?;
                    let sent = self.shared.answers.remove(0);
                    self.answer(&sent);
                }
            }
            if round == 0 {
                for sent in &late {
                    self.arrive(sent)?;
                }
                self.shared.answers.clear();
                answers.iter().for_each(|sent| self.answer(sent));
            }
            self.pass_time(4);
        }
        for bucket in 0..self.shared.stored.len() {
            let held: Vec<_> = self
                .shared
                .clients
                .iter()
                .zip(1..)
                .filter(|(client, _)| client.is_alive)
                .map(|(client, owner)| (Owner(owner), client.holdings.held(&key(bucket))))
                .filter(|(_, held)| *held > Cost::default())
                .collect();
            let counted = self.holders(bucket);
            let sum = self.limits[0].held(self.shared.stored[bucket].as_deref(), micros(self.shared.clock));
            if counted != held || sum != held.iter().fold(Cost::default(), |sum, (_, held)| sum.plus(*held)) {
                return Err(format!("{bucket} leaks: {counted:?} is counted, {held:?} is held"));
            }
            let (spent, least) =
                (self.spent(bucket), self.shared.clients.iter().map(|client| client.least_spent(bucket)));
            let least: u64 = least.sum();
            if spent < least {
                return Err(format!("{spent} of {bucket} is spent, at least {least} was settled"));
            }
            self.check_spent(bucket)?;
        }
        Ok(())
    }
}

impl Client {
    /// Returns how much a bucket must count as spent by this owner, once all reports have arrived. What a killed owner
    /// had not reported may be lost.
    fn least_spent(&self, bucket: usize) -> u64 {
        let Settled { sum, accepted, lost, .. } = self.settled[bucket];
        let said = if self.is_alive { sum } else { accepted };
        said.saturating_sub(lost)
    }
}
