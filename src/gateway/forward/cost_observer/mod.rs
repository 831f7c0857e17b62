//! Reads from an upstream's response what a request has cost, while the response passes.

mod llm_answer;

use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;
use smallvec::SmallVec;

use super::fault::{Fault, Stage, UpstreamFault};
use super::head_edit::HeadEdit;
use super::response_observer::{ResponseEnd, ResponseObserver};
use crate::gateway::enforcement::unsettled_costs::{ReadCost, RequestEnd, RequestResult, UnsettledCosts, UsedTokens};
use crate::gateway::telemetry::labels::UpstreamError;
use decision::model_requests::other_requests;
use ledger::cost::{Cost, ExtraDecimals};
use llm::answer::AnswerReader;
use llm::json::{JsonScanner, Lookup, PointerSet};
use llm_answer::{AnsweredTokens, LlmAnswer};
use request::grpc_timeout::is_grpc;
use rules::grpc_status::GrpcStatus;
use rules::route::llm_settings::OtherRequests;
use rules::settled_price::{JsonPlace, SettledPrice, SettledSource, Unit, Weights};

/// An observer that reads from a response what the request has cost.
#[derive(Debug)]
pub(super) struct CostObserver {
    costs: Arc<UnsettledCosts>,
    /// The status of the response. `None` before its head.
    status: Option<u16>,
    /// The response to a gRPC call; `None` for another request.
    call: Option<GrpcCall>,
    /// The reader of a language model's response. `None` if no cost depends on this response.
    answer: Option<Box<LlmAnswer>>,
    /// A reader for each of `costs`, in the same order.
    readers: SmallVec<[CostReader; 1]>,
}

/// What is known of the response to a gRPC call.
#[derive(Debug, Default)]
struct GrpcCall {
    /// The status in the trailers, or in the head of a response without a body.
    status: Option<GrpcStatus>,
}

#[derive(Debug)]
enum CostReader {
    /// The cost is a number in this field of the head.
    Header { name: HeaderName, read: ReadCost },
    /// The cost is a number in the JSON body.
    Json(Box<JsonScanner<Arc<PointerSet>>>),
    /// The cost is the number of tokens that a language model has used, with these weights. `default_output` replaces
    /// the tokens that cannot be estimated.
    Tokens { weights: Weights, default_output: u64 },
    /// The cost is the price of the language model's tokens, by the table of prices.
    Money { default_output: u64 },
    /// The cost does not depend on the response.
    Known(ReadCost),
}

impl CostObserver {
    /// Makes the observer for a request with this head. `costs` are the costs to be read.
    pub(super) fn new(costs: Arc<UnsettledCosts>, head: &Parts) -> CostObserver {
        let has_llm = costs.iter().any(|cost| cost.price.source.is_llm());
        let answer = costs.model.as_ref().filter(|_| has_llm).and_then(|model| LlmAnswer::of(head, model));
        // The cost if the request has no known format of a language model.
        let other = match other_requests(head, &costs.llm) {
            OtherRequests::Refuse | OtherRequests::Free => Cost::default(),
            OtherRequests::Cost(cost) => cost,
        };
        let reader = |price: &SettledPrice| match &price.source {
            SettledSource::ResponseHeader(name) => CostReader::Header { name: name.clone(), read: ReadCost::Missing },
            SettledSource::ResponseJson(place) => CostReader::json(place),
            SettledSource::LlmTokens(_) | SettledSource::LlmCost if answer.is_none() => {
                CostReader::Known(ReadCost::Configured(price.unit().times(other)))
            }
            SettledSource::LlmTokens(weights) => {
                CostReader::Tokens { weights: *weights, default_output: price.default_output() }
            }
            SettledSource::LlmCost => CostReader::Money { default_output: price.default_output() },
            SettledSource::CountOn { .. } => CostReader::Known(ReadCost::Missing),
        };
        let readers = costs.iter().map(|cost| reader(&cost.price)).collect();
        // A request to a language model is no gRPC call, whatever content type the client states.
        let call = (answer.is_none() && is_grpc(head)).then(GrpcCall::default);
        CostObserver { costs, status: None, call, answer, readers }
    }
}

impl GrpcCall {
    fn read(&mut self, fields: &HeadEdit<'_>) {
        let mut values = fields.values("grpc-status");
        self.status = match (values.next(), values.next()) {
            (None, _) => self.status,
            (Some(value), None) => Some(GrpcStatus::of_field(value)),
            (Some(_), Some(_)) => Some(GrpcStatus::UNKNOWN),
        };
    }
}

impl CostReader {
    fn json(place: &JsonPlace) -> CostReader {
        CostReader::Json(Box::new(JsonScanner::new(place.set(), AnswerReader::MAX_WHOLE)))
    }

    fn head(&mut self, fields: &HeadEdit<'_>) {
        if let CostReader::Header { name, read } = self {
            *read = in_header(fields, name);
        }
    }

    fn data(&mut self, data: &[u8]) {
        if let CostReader::Json(scanner) = self {
            scanner.push(data);
        }
    }

    /// Returns `default_output`, or 0 if the cost does not depend on tokens.
    fn default_output(&self) -> u64 {
        match self {
            CostReader::Tokens { default_output, .. } | CostReader::Money { default_output } => *default_output,
            CostReader::Header { .. } | CostReader::Json(_) | CostReader::Known(_) => 0,
        }
    }

    /// Ends the response. `tokens` is what a language model has used. `costs` has the prices.
    fn finish(self, is_whole: bool, tokens: Option<&AnsweredTokens>, costs: &UnsettledCosts) -> ReadCost {
        let read = |cost| match tokens {
            Some(AnsweredTokens { is_estimated: false, .. }) => ReadCost::Named(cost),
            Some(AnsweredTokens { is_estimated: true, .. }) => ReadCost::Estimated(cost),
            None => ReadCost::Missing,
        };
        match self {
            CostReader::Header { read, .. } | CostReader::Known(read) => read,
            CostReader::Json(mut scanner) => {
                // If the body was cut, a number that was read before the cut is used.
                let is_valid = !is_whole || scanner.finish().is_ok();
                let number = match scanner.value(0) {
                    Lookup::Value(value) if is_valid => value.as_number().and_then(|number| number.ceil(3)),
                    Lookup::Value(_) | Lookup::Missing | Lookup::Twice => None,
                };
                number.map_or(ReadCost::Missing, |number| ReadCost::Named(Cost::from_thousandths(number)))
            }
            CostReader::Tokens { weights, default_output } => {
                tokens.map_or(ReadCost::Missing, |tokens| read(weights.cost(&tokens.usage(default_output))))
            }
            CostReader::Money { default_output } => {
                let priced =
                    tokens.and_then(|tokens| costs.price(&tokens.usage(default_output), tokens.model.as_deref()));
                priced.map_or(ReadCost::Missing, |priced| read(Unit::cost_of(priced.cost)))
            }
        }
    }
}

impl ResponseObserver for CostObserver {
    fn head(&mut self, status: u16, fields: &HeadEdit<'_>) {
        self.status = Some(status);
        if let Some(call) = &mut self.call {
            call.read(fields);
        }
        if let Some(answer) = &mut self.answer {
            answer.head(fields);
        }
        for reader in &mut self.readers {
            reader.head(fields);
        }
    }

    fn data(&mut self, data: &[u8]) {
        if let Some(answer) = &mut self.answer {
            answer.data(data);
        }
        for reader in &mut self.readers {
            reader.data(data);
        }
    }

    fn trailers(&mut self, fields: &HeadEdit<'_>) {
        if let Some(call) = &mut self.call {
            call.read(fields);
        }
    }

    fn end(self: Box<Self>, end: ResponseEnd<'_>) {
        let CostObserver { costs, status, call, answer, readers } = *self;
        let result = match (status, call) {
            (Some(status), Some(call)) => {
                RequestResult::AnsweredCall { status, grpc: call.status.or_else(|| GrpcStatus::of_http(status)) }
            }
            (status, _) => result(status, end),
        };
        let tokens = answer.map(|answer| answer.finish(result));
        // The log has one estimate for all limits: the largest.
        let default_output = readers.iter().map(CostReader::default_output).max().unwrap_or_default();
        let finish = |reader: CostReader| reader.finish(end == ResponseEnd::Whole, tokens.as_ref(), &costs);
        let read = readers.into_iter().map(finish).collect();
        let tokens = tokens.map(|tokens| UsedTokens {
            usage: tokens.usage(default_output),
            model: tokens.model,
            is_estimated: tokens.is_estimated,
        });
        let priced = tokens.as_ref().and_then(|tokens| costs.price(&tokens.usage, tokens.model.as_deref()));
        costs.end(RequestEnd { result, read, tokens, priced });
    }
}

/// Returns the cost in a field of the head. A field with several values, or with a value that is not a number, names no
/// cost.
fn in_header(fields: &HeadEdit<'_>, name: &HeaderName) -> ReadCost {
    let mut values = fields.values(name.as_str());
    match (values.next(), values.next()) {
        (Some(value), None) => Cost::parse(value, ExtraDecimals::RoundUp).map_or(ReadCost::Missing, ReadCost::Named),
        _ => ReadCost::Missing,
    }
}

/// Returns the result of a request whose response has ended in this way. `status` is `None` without a response.
fn result(status: Option<u16>, end: ResponseEnd<'_>) -> RequestResult {
    match (status, end) {
        (Some(status), ResponseEnd::Whole) | (None, ResponseEnd::Discarded(status)) => RequestResult::Answered(status),
        (Some(status), _) => RequestResult::Cut(status),
        (None, ResponseEnd::NotSent(Some(Fault::Upstream(fault)))) if fault.error != UpstreamError::Busy => {
            RequestResult::NotConnected
        }
        (None, ResponseEnd::NotSent(_)) => RequestResult::NotSent,
        (None, ResponseEnd::Unanswered(Some(Fault::Upstream(fault)))) => unanswered(fault),
        (None, ResponseEnd::Unanswered(_) | ResponseEnd::Cut(_) | ResponseEnd::Whole) => RequestResult::Unanswered,
    }
}

/// Returns the result of a request that may have been sent, and that has failed with this fault.
fn unanswered(fault: &UpstreamFault) -> RequestResult {
    match fault.stage {
        Stage::Refused => RequestResult::NotConnected,
        Stage::Connecting | Stage::Sent | Stage::Answering if fault.is_timeout() => RequestResult::TimedOut,
        Stage::Connecting | Stage::Sent | Stage::Answering => RequestResult::Unanswered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::server::http1::exchange_io::ClientFault;

    #[test]
    fn a_cost_is_one_number_in_one_field() {
        let read = |lines: &str| {
            let head = format!("HTTP/1.1 200 OK\r\nDate: x\r\n{lines}\r\n");
            in_header(&HeadEdit::new(head.as_bytes()), &HeaderName::from_static("x-cost"))
        };
        let named = |thousandths| ReadCost::Named(Cost::from_thousandths(thousandths));
        assert_eq!(read("X-Cost: 12\r\n"), named(12_000));
        assert_eq!(read("x-cost:0.0001\r\n"), named(1));
        assert_eq!(read("X-COST: 0\r\n"), named(0));
        for lines in
            ["", "X-Cost:\r\n", "X-Cost: -1\r\n", "X-Cost: 1, 2\r\n", "X-Cost: 1\r\nX-Cost: 2\r\n", "X-Cost: a\r\n"]
        {
            assert_eq!(read(lines), ReadCost::Missing, "{lines}");
        }
    }

    #[test]
    fn an_end_says_what_the_upstream_has_made_of_the_request() {
        use RequestResult::{Answered, Cut, NotConnected, NotSent, TimedOut, Unanswered};
        let upstream = |error, stage| Fault::Upstream(UpstreamFault::new(error, "", stage));
        let connecting = Fault::unconnected(UpstreamError::ConnectTimeout);
        let busy = Fault::unconnected(UpstreamError::Busy);
        let refused = upstream(UpstreamError::Closed, Stage::Refused);
        let late = upstream(UpstreamError::FirstByteTimeout, Stage::Sent);
        let closed = upstream(UpstreamError::Closed, Stage::Sent);
        let gone = Fault::from(ClientFault::Gone);
        let ends = [
            (ResponseEnd::NotSent(None), NotSent),
            (ResponseEnd::NotSent(Some(&connecting)), NotConnected),
            (ResponseEnd::NotSent(Some(&busy)), NotSent),
            (ResponseEnd::NotSent(Some(&gone)), NotSent),
            (ResponseEnd::Discarded(503), Answered(503)),
            (ResponseEnd::Unanswered(None), Unanswered),
            (ResponseEnd::Unanswered(Some(&gone)), Unanswered),
            (ResponseEnd::Unanswered(Some(&refused)), NotConnected),
            (ResponseEnd::Unanswered(Some(&late)), TimedOut),
            (ResponseEnd::Unanswered(Some(&closed)), Unanswered),
        ];
        for (end, expected) in ends {
            assert_eq!(result(None, end), expected, "{end:?}");
        }
        assert_eq!(result(Some(200), ResponseEnd::Whole), Answered(200));
        for end in [ResponseEnd::Cut(None), ResponseEnd::Cut(Some(&gone))] {
            assert_eq!(result(Some(200), end), Cut(200));
        }
    }
}
