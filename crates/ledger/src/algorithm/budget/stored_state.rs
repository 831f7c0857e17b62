//! Reads and changes stored states of budgets, for callers that know only the key or the kind of a bucket.

use super::{NOTHING_SPENT, SPENT_WORDS};
use crate::algorithm::ban::{self, BanState};
use crate::algorithm::owner_entries::{EntryKind, Holder, OwnerEntries};
use crate::algorithm::step::{EXACT, State};
use crate::algorithm::{AlgorithmKind, fixed_window, raise, token_bucket};
use crate::cost::Cost;
use base::time::Timestamp;

/// Gives back up to `amount` of what was spent. `spent` gives back to the words of the token bucket or window. The
/// amount [`EVERYTHING`] also ends a ban, and forgets its step. Returns the new state, or `None` for an invalid state.
pub fn give_back(
    kind: AlgorithmKind,
    state: &[u64],
    amount: Cost,
    spent: fn(&[u64], Cost) -> Option<State>,
) -> Option<State> {
    let (words, rest) = state.split_at_checked(SPENT_WORDS)?;
    let (ban, entries) = rest.split_at_checked(if kind.has_ban() { ban::WORDS } else { 0 })?;
    let mut state = spent(words, amount)?;
    if kind.has_ban() {
        let ban = BanState::parse(ban)?;
        if amount < EVERYTHING { ban.pack_into(&mut state) } else { BanState::default().pack_into(&mut state) }
    }
    state.extend_from_slice(entries);
    let form = if kind.has_resets() { EntryKind::BudgetWithResets } else { EntryKind::Budget };
    let is_whole = |entries| OwnerEntries::parse(form, entries).is_some_and(|entries| entries.is_whole());
    (entries.is_empty() || kind.is_held() && is_whole(entries)).then_some(state)
}

/// Returns a state without the timed holds that have ended by `now` and are not spent yet. `None` if the state is invalid or has no
/// such hold.
pub(in crate::algorithm) fn without_ended(kind: AlgorithmKind, state: &[u64], now: Timestamp) -> Option<State> {
    let words = SPENT_WORDS + if kind.has_ban() { ban::WORDS } else { 0 };
    let (spent, entries) = state.split_at_checked(words)?;
    let form = if kind.has_resets() { EntryKind::BudgetWithResets } else { EntryKind::Budget };
    let entries = OwnerEntries::parse(form, entries).filter(OwnerEntries::is_whole)?.without_ended(now)?;
    let mut state = State::from_slice(spent);
    if !entries.is_empty() {
        entries.pack_into(&mut state);
    }
    Some(state)
}

/// The amount with which [`give_back`] resets a bucket to its state before the first request, except for held amounts.
pub const EVERYTHING: Cost = Cost::from_thousandths(EXACT);

/// Returns a kind of budget that can have this state, for a caller that knows only the key of the bucket. `None` for
/// the state of another algorithm, or of a budget without owners.
pub fn kind_of(state: &[u64]) -> Option<AlgorithmKind> {
    let state = raise::plain(state)?;
    let (spent, rest) = state.split_at_checked(SPENT_WORDS)?;
    let is_of = |kind: &AlgorithmKind| {
        let words = rest.split_at_checked(if kind.has_ban() { ban::WORDS } else { 0 });
        let form = if kind.has_resets() { EntryKind::BudgetWithResets } else { EntryKind::Budget };
        words.is_some_and(|(ban, entries)| {
            (ban.is_empty() || BanState::parse(ban).is_some()) && OwnerEntries::is_stored(form, entries)
        })
    };
    let kinds = match (fixed_window::is_valid(spent), token_bucket::valid(spent).is_some()) {
        (true, _) => [
            AlgorithmKind::WindowBudget,
            AlgorithmKind::WindowBudgetWithResets,
            AlgorithmKind::WindowBudgetWithBan,
            AlgorithmKind::WindowBudgetWithResetsAndBan,
        ],
        (_, true) => [
            AlgorithmKind::TokenBudget,
            AlgorithmKind::TokenBudgetWithResets,
            AlgorithmKind::TokenBudgetWithBan,
            AlgorithmKind::TokenBudgetWithResetsAndBan,
        ],
        _ => return None,
    };
    kinds.into_iter().find(is_of)
}

/// Returns a state as [`super::Budget::state`] does, for a caller that knows only the key of the bucket.
pub fn state_of_any(kept: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> State {
    let prefix = kept.map_or(&[][..], raise::prefix);
    let mut state = State::from_slice(kept.and_then(raise::plain).unwrap_or(&NOTHING_SPENT));
    OwnerEntries::of_holders(EntryKind::Budget, holders, now).pack_into(&mut state);
    raise::with_prefix(prefix, state)
}
