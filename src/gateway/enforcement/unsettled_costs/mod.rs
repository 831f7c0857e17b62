//! Settles the costs of a request that are known only when the request has ended.
//!
//! A request has one [`UnsettledCost`] for each [budget](ledger::algorithm::budget) that has admitted it. An observer
//! of the response reads what the request has cost, and notes it with [`UnsettledCosts::end`]. The drop of
//! [`HeldSlots`](super::HeldSlots) settles the costs, so they are settled exactly once. If nothing was noted, the
//! request was not sent, and costs nothing.

use std::sync::{Arc, OnceLock};

use http::StatusCode;
use smallvec::SmallVec;

use super::recording::{UnsettledRecord, UnsettledRecords};
use crate::gateway::state::learned_costs::CostLearner;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::metrics::{BudgetMetrics, Metrics, ModelTokens};
use decision::model_requests::ModelContext;
use decision::request_prices::{PricedUsage, RequestPrices};
use ledger::bucket_key::BucketKey;
use ledger::charge::{ChargePurpose, LimitId, Plan, Settlement};
use ledger::cost::Cost;
use llm::request::UsageQuestion;
use llm::usage::Usage;
use request::model_request::{ModelBody, ModelRequest};
use rules::grpc_status::GrpcStatus;
use rules::route::llm_settings::LlmSettings;
use rules::rule::Mode;
use rules::settled_price::{SettledPrice, SettledSource, Unit, UpstreamResult, UpstreamResults};
use stores::Reservation;

/// The smallest estimate of tokens. With 0, a client could read the beginning of responses for free.
const LEAST_TOKENS: Cost = Cost::ONE;
/// The smallest estimate of money.
const LEAST_MONEY: Cost = Cost::from_thousandths(1);

/// The costs of one request at budgets, and what is known of them.
#[derive(Debug)]
pub(crate) struct UnsettledCosts {
    costs: SmallVec<[UnsettledCost; 1]>,
    /// The settings for language models that apply to this request.
    pub llm: Arc<LlmSettings>,
    model_tokens: Arc<ModelTokens>,
    /// The prices for this request. `None` if no limit on money charges the request.
    prices: Option<RequestPrices>,
    /// What the request asks of a language model. `None` for another request.
    pub model: Option<Box<ModelRequest>>,
    end: OnceLock<RequestEnd>,
}

/// The cost of a request at one budget.
#[derive(Debug)]
pub(crate) struct UnsettledCost {
    bucket: BucketKey,
    pub limit: LimitId,
    pub price: Arc<SettledPrice>,
    reserved: Cost,
    /// `false` in shadow mode, in which the limit changes neither the request nor its response.
    is_enforced: bool,
    metrics: BudgetMetrics,
    /// Learns from the cost how much later requests reserve. `None` at a limit that does not learn.
    learner: Option<CostLearner>,
    /// The record for billing. `None` if the limit is not recorded.
    record: Option<UnsettledRecord>,
}

/// How a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestEnd {
    pub result: RequestResult,
    /// What is known of each cost, in the order of the costs.
    pub read: SmallVec<[ReadCost; 1]>,
    /// The tokens that a language model has used. `None` for another response.
    pub tokens: Option<UsedTokens>,
    /// What these tokens cost, if limits on money charge the request.
    pub priced: Option<PricedUsage>,
}

/// The result of a request at its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestResult {
    /// Nothing was sent to an upstream, for example because the gateway itself answers, or the client has left.
    NotSent,
    /// No connection to an upstream could be made, or the upstream has said that it did not process the request.
    NotConnected,
    /// The request was sent, and no response came in time.
    TimedOut,
    /// The request was sent, and its exchange ended for another reason before a response.
    Unanswered,
    /// The upstream has responded with this status.
    Answered(u16),
    /// The upstream has responded with this status, and the response was cut.
    Cut(u16),
    /// The upstream has responded to a gRPC call with this HTTP status. `grpc` is `None` if the
    /// response, whole or cut, has no gRPC status.
    AnsweredCall { status: u16, grpc: Option<GrpcStatus> },
}

/// What is known of a cost when the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadCost {
    /// The response names the cost.
    Named(Cost),
    /// The configuration names the cost. If the result is in `refund_on`, the request costs nothing.
    Configured(Cost),
    /// The response names no cost, or a cost that cannot be read.
    Missing,
    /// The response names no cost. This estimate comes from the bytes that have passed.
    Estimated(Cost),
}

/// The tokens that a request to a language model has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsedTokens {
    pub usage: Usage,
    /// The model that has answered, if the response names it.
    pub model: Option<String>,
    pub is_estimated: bool,
}

/// A cost that is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledCost {
    pub cost: Cost,
    /// Whether the response should have named the cost, and did not.
    pub is_missing: bool,
    /// Whether the result forgets what was spent of the bucket.
    pub resets: bool,
}

impl UnsettledCosts {
    /// Returns the unsettled costs of a request that was admitted with this plan and settlement. `None` if all costs are
    /// known already, as for almost all requests. `model` is what is known of a request to a language model.
    pub(super) fn of(
        metrics: &Metrics,
        snapshot: &Snapshot,
        plan: &Plan,
        settlement: &Settlement,
        model: ModelContext<'_>,
        mut records: UnsettledRecords,
    ) -> Option<UnsettledCosts> {
        let outcomes = settlement.enforced.iter().chain(&settlement.shadow);
        // A limit in shadow mode that would have refused the request holds nothing of it.
        let held = plan.charges().zip(outcomes).filter(|(_, outcome)| !outcome.verdict.is_refusal());
        let budgets = held.filter(|(charge, _)| charge.purpose == ChargePurpose::Spend);
        let costs: SmallVec<_> = budgets
            .filter_map(|(charge, _)| {
                let (limit, metrics) = snapshot.limit(charge.limit)?;
                let record = records.iter().position(|(limit, _)| *limit == charge.limit);
                Some(UnsettledCost {
                    bucket: charge.key,
                    limit: charge.limit,
                    price: Arc::clone(limit.shared_price()?),
                    reserved: charge.cost,
                    is_enforced: limit.mode == Mode::Enforce,
                    metrics: metrics.budget.clone()?,
                    learner: model.request.and_then(|request| snapshot.learned_costs.learner(charge.limit, request)),
                    record: record.map(|index| records.swap_remove(index).1),
                })
            })
            .collect();
        let ModelContext { llm, body, prices, .. } = model;
        (!costs.is_empty()).then(|| UnsettledCosts {
            costs,
            llm: Arc::clone(llm),
            model_tokens: Arc::clone(&metrics.model_tokens),
            prices,
            model: if let ModelBody::Read(model) = body { Some(model.clone()) } else { None },
            end: OnceLock::new(),
        })
    }

    /// Returns whether enforced limits read their costs from the body of the response, so that an upstream must not compress it.
    pub(crate) fn read_body(&self) -> bool {
        self.costs.iter().filter(|cost| cost.is_enforced).any(|cost| match cost.price.source {
            SettledSource::ResponseJson(_) | SettledSource::LlmTokens(_) | SettledSource::LlmCost => true,
            SettledSource::ResponseHeader(_) | SettledSource::CountOn { .. } => false,
        })
    }

    /// Returns how the gateway asks for the usage of a stream in the client's place. `None` if it does not ask.
    pub(crate) fn usage_question(&self) -> Option<&UsageQuestion> {
        let is_counted = || self.costs.iter().any(|cost| cost.is_enforced && cost.price.source.is_llm());
        self.model.as_ref().filter(|_| self.llm.ask_for_usage && is_counted())?.usage_question()
    }

    /// Returns the tokens that a language model has used. `None` before the request ends, and for other requests.
    pub(crate) fn tokens(&self) -> Option<&UsedTokens> {
        self.end.get()?.tokens.as_ref()
    }

    /// Returns what the tokens of the request have cost. `None` before the request ends, and if no limit on money
    /// charges it.
    pub(crate) fn priced(&self) -> Option<&PricedUsage> {
        self.end.get()?.priced.as_ref()
    }

    /// Returns what these tokens cost by the table of prices. `None` if no limit on money charges the request.
    /// `answered` is the model that the response names.
    pub(crate) fn price(&self, usage: &Usage, answered: Option<&str>) -> Option<PricedUsage> {
        self.prices.as_ref()?.price(usage, answered)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &UnsettledCost> {
        self.costs.iter()
    }

    /// Notes how the request has ended. Does nothing if this was noted before.
    pub(crate) fn end(&self, end: RequestEnd) {
        _ = self.end.set(end);
    }

    /// Returns the cost at each limit, by what is known now.
    pub(crate) fn settled(&self) -> impl Iterator<Item = (&UnsettledCost, SettledCost)> {
        let end = self.end.get();
        self.costs.iter().enumerate().map(move |(index, cost)| {
            let result = end.map_or(RequestResult::NotSent, |end| end.result);
            let read = end.and_then(|end| end.read.get(index)).copied().unwrap_or(ReadCost::Missing);
            (cost, cost.settled(result, read, &self.llm.refund_on))
        })
    }

    /// Settles the costs, and counts them. Several costs at one bucket are settled together.
    pub(super) fn settle(&self, reservation: &mut Reservation) {
        let mut settled: SmallVec<[(BucketKey, Cost, bool); 1]> = SmallVec::new();
        let mut is_estimate_used = false;
        for (one, SettledCost { cost, is_missing, resets }) in self.settled() {
            one.metrics.settled.increment(1);
            one.metrics.settled_cost.add(cost);
            if resets {
                one.metrics.resets.increment(1);
            }
            if cost > one.reserved {
                one.metrics.overrun.increment(1);
            }
            if is_missing {
                one.metrics.usage_missing.increment(1);
                is_estimate_used |= one.price.source.is_llm();
            }
            if one.price.unit() == Unit::Dollars && self.priced().is_some_and(|priced| priced.is_of_asked) {
                one.metrics.model_unpriced.increment(1);
            }
            if let Some(record) = &one.record {
                record.settle(cost, self.recorded_tokens(one, is_missing));
            }
            match settled.iter_mut().find(|(bucket, ..)| *bucket == one.bucket) {
                Some((_, sum, is_reset)) => (*sum, *is_reset) = (sum.plus(cost), *is_reset || resets),
                None => settled.push((one.bucket, cost, resets)),
            }
        }
        if let Some(UsedTokens { usage, model, is_estimated }) = self.tokens()
            && (!is_estimated || is_estimate_used)
        {
            self.model_tokens.count(model.as_deref(), usage);
        }
        for (bucket, cost, is_reset) in settled {
            if is_reset { reservation.reset(&bucket, cost) } else { reservation.settle(&bucket, cost) }
        }
        self.learn();
    }

    /// Returns the tokens that a record shows beside this cost, with the name of the model that has answered, or else was asked.
    fn recorded_tokens(&self, cost: &UnsettledCost, is_missing: bool) -> Option<(Option<&str>, &Usage)> {
        let UsedTokens { usage, model, is_estimated } = self.tokens().filter(|_| cost.price.source.is_llm())?;
        let asked = || self.model.as_ref().and_then(|asked| asked.body.model.as_deref());
        (!is_estimated || is_missing).then(|| (model.as_deref().or_else(asked), usage))
    }

    /// Learns the costs that the response has named.
    fn learn(&self) {
        let Some(end) = self.end.get() else { return };
        for (one, read) in self.costs.iter().zip(&end.read) {
            if let (Some(learner), ReadCost::Named(cost)) = (&one.learner, read) {
                learner.learn(*cost);
            }
        }
    }
}

impl UnsettledCost {
    /// Returns the cost of a request with this result. If `result` is in `refund_on` and the response names no cost,
    /// the request costs nothing.
    fn settled(&self, result: RequestResult, read: ReadCost, refund_on: &UpstreamResults) -> SettledCost {
        let named = |cost| SettledCost { cost, is_missing: false, resets: false };
        let missing = |cost| SettledCost { is_missing: true, ..named(cost) };
        let is_in = |results: &UpstreamResults| result.of_upstream().map(|result| results.contains(result));
        match (&self.price.source, read) {
            _ if result == RequestResult::NotSent => named(Cost::default()),
            // A request counts if its result is in `count_on`, or if the upstream gave no result.
            (SettledSource::CountOn { counted, .. }, _) if is_in(counted) != Some(false) => named(self.reserved),
            (SettledSource::CountOn { resets, .. }, _) => {
                let resets = result.of_upstream().is_some_and(|result| resets.certainly_contains(result));
                SettledCost { resets, ..named(Cost::default()) }
            }
            (_, ReadCost::Named(cost)) => named(cost),
            _ if is_in(refund_on) == Some(true) => named(Cost::default()),
            (_, ReadCost::Configured(cost)) => named(cost),
            (_, ReadCost::Estimated(cost)) => {
                let least = if self.price.unit() == Unit::Dollars { LEAST_MONEY } else { LEAST_TOKENS };
                let cost = cost.max(least);
                missing(self.price.default_cost.filter(|_| !result.is_cut()).unwrap_or(cost))
            }
            (_, ReadCost::Missing) => missing(self.price.default_cost.unwrap_or(self.reserved)),
        }
    }
}

impl RequestResult {
    /// Returns whether it is certain that the upstream did not do the work: it was not reached, or its status says so.
    pub(crate) fn has_failed(self) -> bool {
        match self {
            RequestResult::Answered(status) | RequestResult::AnsweredCall { status, .. } => {
                !(200..300).contains(&status)
            }
            RequestResult::NotSent | RequestResult::NotConnected => true,
            RequestResult::Cut(_) | RequestResult::Unanswered | RequestResult::TimedOut => false,
        }
    }

    /// Returns whether the request was sent, and its response is missing or not whole.
    pub(crate) fn is_cut(self) -> bool {
        matches!(self, RequestResult::Cut(_) | RequestResult::Unanswered | RequestResult::TimedOut)
    }

    /// Returns the result as `refund_on`, `count_on` and `reset_on` name it. `None` if the exchange ended before the upstream gave
    /// a result.
    fn of_upstream(self) -> Option<UpstreamResult> {
        match self {
            RequestResult::NotSent | RequestResult::Unanswered => None,
            RequestResult::NotConnected => Some(UpstreamResult::Connect),
            RequestResult::TimedOut => Some(UpstreamResult::Timeout),
            RequestResult::Answered(status) | RequestResult::Cut(status) => {
                StatusCode::from_u16(status).ok().map(UpstreamResult::Status)
            }
            RequestResult::AnsweredCall { status, grpc } => {
                StatusCode::from_u16(status).ok().map(|status| UpstreamResult::Grpc { status, grpc })
            }
        }
    }
}

#[cfg(test)]
mod tests;
