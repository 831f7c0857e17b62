//! Lists the protocols that the checker explores: the released one, and those with a deliberate mistake.

/// The protocol to explore: the released one, or one with a deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Released,
    /// A slot is given back when the response of its request begins, not when the response ends.
    EarlyRelease,
    /// The store accepts every report in the order of arrival, even an older one.
    SequenceIgnored,
    /// Reports contain differences in place of absolute numbers.
    PlusMinus,
    /// Reports count by the owner's own time, and the clock of one owner is ahead.
    ClientClock,
    /// The owner accepts an answer even if a later report has been answered.
    LateAnswerCounts,
    /// The owner's reports leave out the slots that lost calls asked for.
    AsksNotSaid,
    /// The store does not store the reports of a call whose plan was refused.
    RefusedPlanWritesNothing,
    /// The store drops the entry of an owner when the owner's holds end.
    SequenceForgotten,
    /// The holds of an owner that sends no more reports never end.
    HoldsForever,
    /// For each report, the store charges `SettledSums::to` less `SettledSums::from`. So it charges some costs again.
    SumsAddedAgain,
    /// A store that lacks the owner's entry charges the whole sum.
    FromIgnored,
    /// The owner gives back what a request held one report before it settles the cost.
    SettledLater,
    /// The owner forgets its sum when the store has accepted it.
    SumForgotten,
}
