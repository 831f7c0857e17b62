//! Finds what a logged request has cost a budget. The cost at a budget is known only when the request has ended.

use super::foreign_entry::{ForeignEntry, LoggedGrpc};
use super::own_entry::{LoggedCharge, OwnEntry, UsedTokens};
use decision::access_log_line::Kind;
use http::StatusCode;
use ledger::cost::Cost;
use llm::prices::{ModelPrices, NanoDollars, Prices};
use request::door::Door;
use rules::rule_set::CompiledLimit;
use rules::settled_price::{Reserve, SettledPrice, SettledSource, Unit, UpstreamResult};

/// The status that nginx logs if the client leaves before the response.
const CLIENT_LEFT: u16 = 499;

/// What a log records about the response to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoggedResponse<'l> {
    /// The line of the gateway's own log.
    Own(&'l OwnEntry),
    /// The line of another program's log.
    Foreign(&'l ForeignEntry),
}

/// What a request costs a budget in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedCost {
    /// The request holds `reserved` while it runs, and ends with `settled`.
    Known { reserved: Cost, settled: LoggedEnd },
    /// The budget does not count the request, because of its door or its method.
    Uncounted,
    /// The line does not tell the cost.
    Missing,
}

/// What a request does to a budget when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedEnd {
    /// The request has spent this cost.
    Spent(Cost),
    /// What was spent before is forgotten, by `reset_on`.
    Reset,
}

impl LoggedCost {
    /// Returns what a request costs this limit. `planned` is the reservation that the rules compute.
    ///
    /// The costs are those of the limit with the same name in the log. If the log has the tokens of a language model,
    /// the settled cost is the weighted sum of the tokens, or their price, by the file that is simulated. A request
    /// that the gateway refused and the simulation admits costs its reservation.
    pub(crate) fn of(
        limit: &CompiledLimit,
        price: &SettledPrice,
        planned: Cost,
        response: LoggedResponse<'_>,
        prices: Option<&Prices>,
    ) -> LoggedCost {
        let logged = match response {
            LoggedResponse::Own(logged) => logged,
            LoggedResponse::Foreign(entry) => return LoggedCost::of_foreign(price, planned, entry),
        };
        let used = logged.usage.as_ref();
        let priced = used.zip(prices.and_then(|prices| prices.model(logged.model.as_deref().unwrap_or_default())));
        let is_post = logged.method.as_deref() == Some("POST");
        if logged.door != Some(Door::Proxy) || (price.source.is_llm() && !is_post) {
            return LoggedCost::Uncounted;
        }
        // The limit may have counted tokens in the log, and count money in this file.
        let is_money = price.unit() == Unit::Dollars;
        let is_named = |charged: &&LoggedCharge| *charged.policy == *limit.policy && *charged.limit == *limit.name;
        let named = logged.limits.iter().find(is_named);
        let same = named.filter(|charged| charged.is_money == is_money);
        let reserved = match (&price.reserve, same) {
            // `planned` knows no prices. The log lacks only the request's maximum of output tokens.
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
            let is_reset = logged.kind != Kind::Refused && resets(price, logged.status);
            let settled = if is_reset { LoggedEnd::Reset } else { LoggedEnd::Spent(settled) };
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
            (None, _, SettledSource::CountOn { .. }) => {
                let Some(status) = logged.status else { return LoggedCost::Missing };
                return LoggedCost::by_status(price, planned, status, LoggedGrpc::Unknown, is_post);
            }
            (None, ..) => return LoggedCost::Missing,
        };
        LoggedCost::Known { reserved, settled: LoggedEnd::Spent(settled) }
    }

    /// Returns what a request costs a limit, by another program's log. Only a limit with `count_on` counts by what such a log
    /// has.
    fn of_foreign(price: &SettledPrice, planned: Cost, entry: &ForeignEntry) -> LoggedCost {
        match (&price.source, entry.status) {
            // The client has left before the response. The gateway counts such a request, because it knows no result.
            (SettledSource::CountOn { .. }, Some(status)) if status.as_u16() == CLIENT_LEFT => {
                LoggedCost::Known { reserved: planned, settled: LoggedEnd::Spent(planned) }
            }
            (SettledSource::CountOn { .. }, Some(status)) => {
                LoggedCost::by_status(price, planned, status, entry.grpc, entry.may_be_grpc())
            }
            _ => LoggedCost::Missing,
        }
    }

    /// Returns what a request costs a limit with `count_on`. Without a logged status of gRPC, a request that `may_be_grpc` is not
    /// decided by a limit that names such a status.
    fn by_status(
        price: &SettledPrice,
        planned: Cost,
        status: StatusCode,
        grpc: LoggedGrpc,
        may_be_grpc: bool,
    ) -> LoggedCost {
        let SettledSource::CountOn { counted, resets } = &price.source else { return LoggedCost::Missing };
        let is_unknown = grpc == LoggedGrpc::Unknown && may_be_grpc;
        let result = match grpc {
            LoggedGrpc::Status(grpc) => UpstreamResult::Grpc { status, grpc: Some(grpc) },
            LoggedGrpc::Unknown | LoggedGrpc::Absent => UpstreamResult::Status(status),
        };
        let settled = if counted.contains(result) {
            LoggedEnd::Spent(planned)
        } else if is_unknown && (counted.has_grpc() || resets.has_grpc()) {
            return LoggedCost::Missing;
        } else if resets.certainly_contains(result) {
            LoggedEnd::Reset
        } else {
            LoggedEnd::Spent(Cost::default())
        };
        LoggedCost::Known { reserved: planned, settled }
    }
}

/// Returns whether a response with this status forgets what was spent.
fn resets(price: &SettledPrice, status: Option<StatusCode>) -> bool {
    match (&price.source, status) {
        (SettledSource::CountOn { resets, .. }, Some(status)) => {
            resets.certainly_contains(UpstreamResult::Status(status))
        }
        _ => false,
    }
}
