//! Finds what a logged request has cost a budget. The cost at a budget is known only when the request has ended.

use super::own_entry::{LoggedCharge, OwnEntry};
use decision::access_log_line::Kind;
use ledger::cost::Cost;
use request::door::Door;
use rules::rule_set::CompiledLimit;
use rules::settled_price::{Reserve, SettledPrice, SettledSource};

/// What a request costs a budget in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedCost {
    /// The request holds `reserved` while it runs, and costs `settled` when it ends.
    Known { reserved: Cost, settled: Cost },
    /// The budget does not count the request, because of its door or its method.
    Uncounted,
    /// The line does not tell the cost.
    Missing,
}

impl LoggedCost {
    /// Returns what a request costs this limit. `planned` is the reservation that the rules compute. `logged` is `None`
    /// for a log of another program.
    ///
    /// The costs are those of the limit with the same name in the log. If the log has the tokens of a language model,
    /// the settled cost is their sum with the weights of this file. A request that the gateway refused and the
    /// simulation admits costs its reservation.
    pub(crate) fn of(
        limit: &CompiledLimit,
        price: &SettledPrice,
        planned: Cost,
        logged: Option<&OwnEntry>,
    ) -> LoggedCost {
        let Some(logged) = logged else { return LoggedCost::Missing };
        let is_model_request = logged.method.as_deref() == Some("POST");
        if logged.door != Some(Door::Proxy) || (price.source.is_llm() && !is_model_request) {
            return LoggedCost::Uncounted;
        }
        let is_same = |charged: &&LoggedCharge| *charged.policy == *limit.policy && *charged.limit == *limit.name;
        let same = logged.limits.iter().find(is_same);
        let reserved = match (&price.reserve, same) {
            (Reserve::Fixed(_), _) | (_, None) => planned,
            // With the other forms of `reserve`, the amount depends on the request, which is not in the log.
            (_, Some(same)) => same.cost,
        };
        let settled = match (same.and_then(|same| same.settled), &logged.usage, &price.source) {
            // A settled cost of 0 stays 0: the upstream has done nothing, or its result costs nothing.
            (Some(settled), ..) if settled == Cost::default() => settled,
            (settled, Some(used), SettledSource::LlmTokens(weights)) if settled.is_none() || !used.is_estimated => {
                weights.cost(&used.usage)
            }
            (Some(settled), ..) => settled,
            (None, ..) if logged.kind == Kind::Refused => reserved,
            (None, ..) => return LoggedCost::Missing,
        };
        LoggedCost::Known { reserved, settled }
    }
}
