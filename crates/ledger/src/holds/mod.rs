//! Holds, the protocol by which gateways say how much of a bucket is in use: absolute numbers under a sequence that grows.
//!
//! A bucket remembers for each owner, a thread of a gateway, how much it holds, and until when that counts
//! ([`concurrency`](crate::algorithm::concurrency)). [`Holdings`] is the owner's side: what has to be said in the next call, and what an
//! answer means. A [`Reservation`] ends what a request has taken, on every way out.
//!
//! - A word is newer than the owner's last one in that bucket, or it changes nothing and acknowledges nothing. What was asked in
//!   the same call then fails as if the store had not answered, also if a copy of the call was answered otherwise.
//! - What was asked in a call without an answer is said as held, until a later word about that bucket is answered. From then on the
//!   earlier call can change nothing, and **its own answer, if it still comes, counts as a store failure**: what it granted is no
//!   longer said.
//! - So a word or an answer that is lost, late or doubled can refuse wrongly, until the next word, and never admit wrongly. What a
//!   store has forgotten is admitted beyond the limit until it is said again, at most 2 s later.
//!
//! Two calls that ask for one bucket at the same time are safe, but the second says as held all that the first asked for, even what
//! the store will refuse. If such calls overlap all the time, a bucket admits nothing although it has free slots. A store's
//! connection therefore keeps an ask back while [`Holdings::unanswered`] is above zero.
//!
//! `model_check` proves it in every order of events of a small world.

mod holdings;
#[cfg(test)]
mod model_check;
mod reservation;
pub(crate) mod word;

pub use holdings::{Call, CallWord, Holdings, MOST_WORDS, SlotId, SlotTerms, WordAnswer};
pub use reservation::{Ending, Reservation, ReservationOwner};
pub use word::{LIFE, MOST_HELD, Owner, SAY_EVERY, Word};
