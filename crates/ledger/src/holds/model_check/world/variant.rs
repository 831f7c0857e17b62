//! Lists the protocols that the checker explores: the released one, and those with a deliberate mistake.

/// The protocol that is explored: the released protocol, or a protocol with a deliberate mistake that the checker must
/// find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Released,
    /// A slot is given back when the response of its request begins, not when the response ends.
    EarlyRelease,
    /// The store accepts every report in the order of arrival, even if a report is older than the last report.
    SequenceIgnored,
    /// Reports contain differences in place of absolute numbers.
    PlusMinus,
    /// Reports count until seven seconds after the owner's own time, and the clock of one owner is ahead.
    ClientClock,
    /// The owner accepts an answer even if a later report has been answered.
    LateAnswerCounts,
    /// The owner does not report as held what it has asked for in calls without an answer.
    AsksNotSaid,
    /// The store does not store the reports of a call whose plan was refused.
    RefusedPlanWritesNothing,
    /// The store drops the entry of an owner as soon as the owner's holds end.
    SequenceForgotten,
    /// The holds of an owner that sends no more reports never end.
    HoldsForever,
    /// The store charges all that the owner did not know to be accepted, even if the store has accepted it before.
    SumsAddedAgain,
    /// A store that lacks the owner's entry charges the whole sum, even what was accepted before.
    FromIgnored,
    /// The owner first gives back what a request held, and settles its cost with the report after that.
    SettledLater,
    /// The owner forgets its sum as soon as the store has accepted the sum, and begins again at 0.
    SumForgotten,
}
