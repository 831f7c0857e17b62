//! Defines holds, the protocol by which gateways report how much of a bucket is in use. Each report has an absolute
//! amount, and a sequence number that grows.
//!
//! A bucket stores for each owner, a thread of a gateway, how much the owner holds, and until when this amount counts
//! ([`concurrency`](crate::algorithm::concurrency)). [`Holdings`] is the owner's side. A [`Reservation`] ends the
//! slots of a request.
//!
//! - A report that is not newer than the owner's last report about the bucket changes nothing and acknowledges nothing. The
//!   asks of its call then fail as if the store had not answered, even if a copy of the call has another answer.
//! - Slots that were asked for in a call without an answer are reported as held, until a later report about the bucket is
//!   answered. From then on the earlier call cannot change anything. **If its own answer still comes, this answer
//!   counts as a store failure**, because the slots that it granted are no longer reported.
//! - So a report or an answer that is lost, late or doubled may cause a wrong refusal, until the next report, but never a
//!   wrong admission. If a store has lost reports, requests may be admitted beyond the limit until the reports are
//!   repeated, at most 2 s later.
//! - A report about a [`budget`](crate::algorithm::budget) also says the sum of all costs that the owner has settled. The
//!   store charges what is new in this sum, so a cost is charged once, however often it is reported. In the same way it counts
//!   the owner's resets, each of which forgets once what was spent.
//!
//! A [`TimedHold`] is an owner of its own, for a service that takes at one gateway and settles at any other. It sends one report
//! to take, which counts for as long as it says, and one to settle. If it does not settle in time, the bucket counts what was
//! reserved as spent, and slots as free.
//!
//! The next report includes what an unanswered call asked for, so the next call may be refused wrongly. Therefore a
//! store's connection delays an ask while [`Holdings::unanswered`] is above zero.
//!
//! `model_check` proves these statements for every order of events in a small world.

mod holdings;
#[cfg(test)]
mod model_check;
pub(crate) mod report;
mod reservation;
#[cfg(test)]
mod reset_tests;
mod slots;
mod timed_hold;
#[cfg(test)]
mod timed_hold_tests;

pub use holdings::{BucketReport, Call, Holdings, MOST_REPORTS, MOST_SUMS, ReportAnswer, SettledCost};
pub use report::{
    EARLY, LIFE, LONGEST_HOLD, MOST_HELD, MOST_TIMED_HOLDS, Owner, REPORT_EVERY, Report, Resets, SettledSums,
    TimedHoldStatus,
};
pub use reservation::{Ending, Reservation, ReservationOwner};
pub use slots::{SlotId, SlotTerms, Slots};
pub use timed_hold::{TimedHold, TimedHoldCost};
