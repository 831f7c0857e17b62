//! Finds what a logged request has cost a budget. The cost at a budget is known only when the request has ended.

use super::own_entry::{LoggedCharge, OwnEntry, UsedTokens};
use decision::access_log_line::Kind;
use http::StatusCode;
use ledger::cost::Cost;
use llm::prices::{ModelPrices, NanoDollars, Prices};
use request::door::Door;
use rules::rule_set::CompiledLimit;
use rules::settled_price::{Reserve, SettledPrice, SettledSource, Unit, UpstreamResult};

/// What a log records about the response to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoggedResponse<'l> {
    /// The line of the gateway's own log.
    Own(&'l OwnEntry),
    /// The status in the log of another program. `None` if that log does not record it.
    Foreign(Option<StatusCode>),
}

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
    /// Returns what a request costs this limit. `planned` is the reservation that the rules compute.
    ///
    /// The costs are those of the limit with the same name in the log. If the log has the tokens of a language model,
    /// the settled cost is their sum with the weights of this file, or their price by its `prices`. A request that the
    /// gateway refused and the simulation admits costs its reservation.
    pub(crate) fn of(
        limit: &CompiledLimit,
        price: &SettledPrice,
        planned: Cost,
        response: LoggedResponse<'_>,
        prices: Option<&Prices>,
    ) -> LoggedCost {
        let logged = match response {
            LoggedResponse::Own(logged) => logged,
            LoggedResponse::Foreign(status) => return LoggedCost::by_status(price, planned, status),
        };
        let used = logged.usage.as_ref();
        let priced = used.zip(prices.and_then(|prices| prices.model(logged.model.as_deref().unwrap_or_default())));
        let is_model_request = logged.method.as_deref() == Some("POST");
        if logged.door != Some(Door::Proxy) || (price.source.is_llm() && !is_model_request) {
            return LoggedCost::Uncounted;
        }
        // A limit may have counted tokens before, and count money in this file.
        let is_money = price.unit() == Unit::Dollars;
        let is_named = |charged: &&LoggedCharge| *charged.policy == *limit.policy && *charged.limit == *limit.name;
        let named = logged.limits.iter().find(is_named);
        let same = named.filter(|charged| charged.is_money == is_money);
        let reserved = match (&price.reserve, same) {
            // The rules know no prices. The tokens of the prompt are in the log, and the maximum of output is not.
            (Reserve::Worst { default_output }, None) if is_money => {
                let most = |(used, prices): (&UsedTokens, &ModelPrices)| {
                    prices.most(used.usage.prompt(), used.usage.output.max(*default_output))
                };
                priced.map_or(planned, |priced| Unit::cost_of(most(priced)))
            }
            (Reserve::Fixed(_), _) | (_, None) => planned,
            // With the other forms of `reserve`, the amount depends on the request, which is not in the log.
            (_, Some(same)) => same.cost,
        };
        // A settled cost of 0 stays 0: the upstream has done nothing, or its result costs nothing.
        if let Some(settled) = named.and_then(|named| named.settled).filter(|settled| *settled == Cost::default()) {
            return LoggedCost::Known { reserved, settled };
        }
        let settled = match (same.and_then(|same| same.settled), used, &price.source) {
            (settled, Some(used), SettledSource::LlmTokens(weights)) if settled.is_none() || !used.is_estimated => {
                weights.cost(&used.usage)
            }
            (settled, Some(used), SettledSource::LlmCost) if settled.is_none() || !used.is_estimated => {
                match (priced, settled) {
                    (Some((_, prices)), _) => Unit::cost_of(prices.cost(&used.usage).max(NanoDollars(1))),
                    (None, Some(settled)) => settled,
                    (None, None) => return LoggedCost::Missing,
                }
            }
            (Some(settled), ..) => settled,
            (None, ..) if logged.kind == Kind::Refused => reserved,
            (None, _, SettledSource::CountOn(_)) => return LoggedCost::by_status(price, planned, logged.status),
            (None, ..) => return LoggedCost::Missing,
        };
        LoggedCost::Known { reserved, settled }
    }

    /// Returns what a request costs a limit, by the status of the response alone. Only a limit with `count_on` counts by the
    /// status.
    fn by_status(price: &SettledPrice, planned: Cost, status: Option<StatusCode>) -> LoggedCost {
        match (&price.source, status) {
            (SettledSource::CountOn(results), Some(status)) => {
                let is_counted = results.contains(UpstreamResult::Status(status));
                let settled = if is_counted { planned } else { Cost::default() };
                LoggedCost::Known { reserved: planned, settled }
            }
            _ => LoggedCost::Missing,
        }
    }
}
