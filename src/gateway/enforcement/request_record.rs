//! Keeps the values that the access log and the trace report about a request, until the request ends.
//!
//! A record holds the snapshot with which the request began, because the snapshot has the names of limits. A request that is
//! neither logged nor traced has no record. Only reported values are pseudonymised.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;

use super::unsettled_costs::{UnsettledCosts, UsedTokens};
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use base::pseudonym::Pseudonym;
use base::time::{Clock, Micros, Timestamp};
use base::tls::identity::TlsIdentity;
use base::tls::server::Session;
use config::access_log::LoggedAttribute;
use decision::access_log_line::{
    Kind, Line, LoggedLimit, LoggedPrice, LoggedText, LoggedUsage, LoggedValue, MoneyUnit, Source,
};
use decision::payment::{LimitAnswer, Payment};
use decision::reason::Reason;
use decision::refusal::Refusal;
use identity::jwt::Invalid;
use ledger::cost::Cost;
use ledger::money;
use llm::usage::Usage;
use request::attribute::Attribute;
use request::attribute_value::AttributeValue;
use request::client_address::ClientAddress;
use request::door::Door;
use request::identity::Identity;
use request::request::Request;
use request::scheme::SchemeSource;
use request::sent_descriptor::SentDescriptor;
use rules::denier::DenierId;
use rules::settled_price::Unit;

/// The values of one request that are logged and traced.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    pub snapshot: Arc<Snapshot>,
    pub destination: Arc<Destination>,
    pub client: ClientAddress,
    pub scheme: SchemeSource,
    /// The index, in the configuration, of the listener on which the request arrived.
    pub listener: usize,
    pub door: Door,
    /// The client's TLS connection; `None` without encryption.
    pub tls: Option<RecordedTls>,
    /// The descriptors of a call of the rate limit service, or the one descriptor of a request about which Envoy asks.
    /// Empty if the access log contains no values of descriptors.
    pub descriptors: Vec<SentDescriptor<'static>>,
    pub identity: Identity,
    /// The plan of charges and its result. `None` if no limit was checked.
    pub payment: Option<Box<Payment>>,
    /// The costs at budgets, which are known when the request has ended. `None` without budgets.
    pub costs: Option<Arc<UnsettledCosts>>,
    /// The time from receiving the head to the decision. `None` if nothing was decided, as for a preflight.
    pub decision: Option<Micros>,
    /// How long a limit delayed the request after the decision. `None` if no limit delayed the request.
    pub waited: Option<Micros>,
    /// The reason why the gateway refused the request, and the value of `Retry-After` in seconds. `None` if the request was not
    /// refused.
    pub refusal: Option<(Reason, Option<u64>)>,
    /// The fault of the client's token. `None` if the request was not refused because of its token.
    pub invalid_token: Option<Invalid>,
    /// The rule or policy whose `deny` refused the request. `None` if no `deny` refused it.
    pub denied_by: Option<DenierId>,
}

/// The TLS connection of a client.
#[derive(Debug)]
pub(crate) enum RecordedTls {
    /// A connection between the client and this gateway.
    Own(Arc<Session>),
    /// A connection between the client and another proxy, as that proxy describes it.
    Edge(Box<TlsIdentity>),
}

impl RecordedTls {
    fn identity(&self) -> &TlsIdentity {
        match self {
            RecordedTls::Own(session) => session.identity(),
            RecordedTls::Edge(identity) => identity,
        }
    }
}

impl RequestRecord {
    /// Makes the record of a request about which nothing has been decided yet, without its TLS connection and descriptors.
    pub(crate) fn undecided(
        snapshot: &Arc<Snapshot>,
        destination: &Arc<Destination>,
        client: ClientAddress,
        scheme: SchemeSource,
        listener: usize,
        door: Door,
    ) -> RequestRecord {
        RequestRecord {
            snapshot: Arc::clone(snapshot),
            destination: Arc::clone(destination),
            client,
            scheme,
            listener,
            door,
            tls: None,
            descriptors: Vec::new(),
            identity: Identity::default(),
            payment: None,
            costs: None,
            decision: None,
            waited: None,
            refusal: None,
            invalid_token: None,
            denied_by: None,
        }
    }

    /// Returns the kind of the request for the access log: `Refused` if the gateway refused the request, and `unrefused`
    /// otherwise.
    pub(crate) fn kind(&self, unrefused: Kind) -> Kind {
        if self.refusal.is_some() { Kind::Refused } else { unrefused }
    }

    /// Records that the gateway refused the request. `denied_by` is the rule or policy whose `deny` refused it, if any.
    pub(crate) fn refuse(&mut self, refusal: &Refusal, denied_by: Option<DenierId>) {
        self.refusal = Some((refusal.reason, refusal.retry_after));
        self.invalid_token = refusal.invalid_token;
        self.denied_by = denied_by;
    }

    /// Writes the request's line to the access log, if the log contains requests of this kind.
    pub(crate) fn write(&self, end: &RequestEnd<'_>, head: &Parts, clock: &Clock) {
        let Some(writer) = self.snapshot.access_log_of(end.kind) else { return };
        writer.write(&self.line(end, head, end.began(clock)));
    }

    /// Returns the request's line for the access log. `began` is the time of the request's arrival by the wall clock.
    pub(crate) fn line<'a>(&'a self, end: &RequestEnd<'a>, head: &Parts, began: Timestamp) -> Line<'a> {
        let line = Line { decision_us: self.decision, waited_us: self.waited, ..end.line(began) };
        let (reason, retry_after) = self.refusal.unzip();
        let line = Line { reason: reason.map(|reason| reason.name().into()), ..line };
        let mut line = Line { retry_after: retry_after.flatten(), ..line };
        line.door = (self.door != Door::Proxy).then(|| self.door.name().into());
        line.upstream = line.endpoint.as_ref().map(|_| self.destination.upstream_name().into());
        self.add_limits(&mut line);
        self.add_tokens(&mut line);
        self.add_denier(&mut line);
        line.attributes = self.attributes(head);
        line.values = self.values(head);
        line.detail = self.detail(head).or(line.detail);
        line
    }

    /// Returns the detail of the refusal: the fault of the token, or the ambiguous attribute.
    fn detail(&self, head: &Parts) -> Option<Cow<'_, str>> {
        match self.refusal? {
            (Reason::AmbiguousRequest, _) => {
                let (check, request) = (self.snapshot.config.rules.ambiguity(), self.request(head));
                Some(match (check.ambiguous(&request), check.different_keys(&request)) {
                    (Some(attribute), _) => attribute.to_string().into(),
                    (None, Some((one, other))) => format!("{one}, {other}").into(),
                    (None, None) => Cow::Borrowed("connection"),
                })
            }
            _ => self.invalid_token.map(|invalid| invalid.name().into()),
        }
    }

    /// Returns the request in the form that the rules read.
    fn request<'a>(&'a self, head: &'a Parts) -> Request<'a> {
        let request = Request::new(head, self.client).with_scheme(self.scheme).with_door(self.door);
        let request = match self.door {
            Door::Proxy => request.with_destination(self.destination.route.route(), self.destination.upstream_name()),
            Door::Http | Door::ExtAuthz | Door::Rls | Door::Json => request,
        };
        let request = request.with_listener(self.snapshot.config.listener_name(self.listener));
        let request = request.with_identity(&self.identity).with_tls(self.tls.as_ref().map(RecordedTls::identity));
        request.with_descriptor(self.descriptors.first())
    }

    fn add_limits<'a>(&'a self, line: &mut Line<'a>) {
        let Some(payment) = &self.payment else { return };
        let answers = payment.answers(&self.snapshot.config.rules);
        let index = payment.deciding(&answers);
        if answers.len() > 1 || index.is_none() {
            line.limits = answers.iter().map(|answer| self.limit_line(answer)).collect();
        }
        let Some((index, deciding)) = index.and_then(|index| Some((index, answers.get(index)?))) else { return };
        line.policy = Some(Cow::Borrowed(&*deciding.limit.policy));
        line.rule = Some(Cow::Borrowed(&*deciding.limit.name));
        line.cost = Some(deciding.charge.cost);
        line.settled = self.settled(deciding);
        line.remaining = deciding.outcome.map(|outcome| outcome.remaining);
        line.unit = unit(deciding);
        line.bucket = Some(line.limits.get(index).map_or_else(|| self.bucket(deciding), |limit| limit.bucket));
        line.source = source(payment);
    }

    /// Adds the policy and the rule that denied. If a policy's `otherwise` denied, there is no rule.
    fn add_denier<'a>(&'a self, line: &mut Line<'a>) {
        let Some(denier) = self.denied_by.and_then(|id| self.snapshot.config.rules.denier(id)) else { return };
        line.policy = Some(Cow::Borrowed(&*denier.policy));
        line.rule = denier.rule.as_deref().map(Cow::Borrowed);
    }

    /// Adds the tokens that a language model has used.
    fn add_tokens<'a>(&'a self, line: &mut Line<'a>) {
        let Some(UsedTokens { usage, model, is_estimated }) = self.costs.as_ref().and_then(|costs| costs.tokens())
        else {
            return;
        };
        let Usage { input, output, cached, cache_write } = *usage;
        line.usage = Some(LoggedUsage { input, output, cached, cache_write, estimated: *is_estimated });
        line.model = model.as_deref().map(Cow::Borrowed);
        line.price = self.costs.as_ref().and_then(|costs| costs.priced()).map(|priced| LoggedPrice {
            model: Cow::Borrowed(&*priced.model),
            line: priced.line,
            usd: money::dollars(Unit::cost_of(priced.cost)),
            of_asked: priced.is_of_asked,
        });
    }

    /// Returns what the request has cost at a budget. `None` for other limits, and if the request was refused.
    fn settled(&self, answer: &LimitAnswer<'_>) -> Option<Cost> {
        let mut settled = self.costs.as_ref()?.settled();
        settled.find(|(cost, _)| cost.limit == answer.charge.limit).map(|(_, settled)| settled.cost)
    }

    fn limit_line<'a>(&self, answer: &LimitAnswer<'a>) -> LoggedLimit<'a> {
        LoggedLimit {
            policy: Cow::Borrowed(&*answer.limit.policy),
            rule: Cow::Borrowed(&*answer.limit.name),
            mode: answer.limit.mode,
            verdict: answer.verdict,
            cost: answer.charge.cost,
            settled: self.settled(answer),
            remaining: answer.outcome.map(|outcome| outcome.remaining),
            unit: unit(answer),
            bucket: self.bucket(answer),
        }
    }

    fn bucket(&self, answer: &LimitAnswer<'_>) -> Pseudonym {
        self.snapshot.config.hash_key.bucket(&answer.charge.key.0)
    }

    /// Returns the logged attributes of the request, with pseudonyms of their values.
    fn attributes(&self, head: &Parts) -> Vec<(Cow<'_, str>, LoggedValue)> {
        let Some(settings) = &self.snapshot.config.access_log else { return Vec::new() };
        let request = self.request(head);
        let attributes = settings.attributes.iter().filter_map(|listed| {
            let name = |value: &[u8]| self.snapshot.config.hash_key.value(&listed.text, value);
            Some((Cow::Borrowed(&*listed.text), self.logged(listed, &request, name)?))
        });
        attributes.collect()
    }

    /// Returns the attributes of the request that are logged with their values.
    fn values(&self, head: &Parts) -> Vec<(Cow<'_, str>, LoggedValue<LoggedText>)> {
        let Some(settings) = self.snapshot.config.access_log.as_ref().filter(|log| !log.values.is_empty()) else {
            return Vec::new();
        };
        let request = self.request(head);
        let value = |listed| self.logged(listed, &request, LoggedText::of);
        settings.values.iter().filter_map(|listed| Some((Cow::Borrowed(&*listed.text), value(listed)?))).collect()
    }

    /// Returns the values of an attribute of the request, each formatted by `write`.
    fn logged<T>(
        &self,
        listed: &LoggedAttribute,
        request: &Request<'_>,
        write: impl Fn(&[u8]) -> T,
    ) -> Option<LoggedValue<T>> {
        if let (Attribute::Descriptor(name), [_, _, ..]) = (&listed.attribute, &*self.descriptors) {
            let mut values: Vec<Cow<'_, str>> = Vec::new();
            for value in self.descriptors.iter().filter_map(|sent| sent.value(name)) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            let written = || values.iter().map(|value| write(value.as_bytes())).collect();
            return (!values.is_empty()).then(|| LoggedValue::List(written()));
        }
        match listed.attribute.resolve_for_match(request) {
            AttributeValue::Missing => None,
            AttributeValue::Single(value) => Some(LoggedValue::Single(write(&value))),
            AttributeValue::List(list) => {
                Some(LoggedValue::List(list.elements().iter().map(|element| write(element)).collect()))
            }
        }
    }
}

/// Returns the unit of a limit's amounts if the limit counts money.
fn unit(answer: &LimitAnswer<'_>) -> Option<MoneyUnit> {
    (answer.limit.unit() == Unit::Dollars).then_some(MoneyUnit::UsdMillionths)
}

/// Returns where the level of the deciding limit comes from.
fn source(payment: &Payment) -> Option<Source> {
    match payment {
        Payment::Settled { source: stores::Source::Store, .. } => Some(Source::Store),
        Payment::Settled { source: stores::Source::Cached, .. } => Some(Source::Cached),
        Payment::Settled { source: stores::Source::Fallback, .. } | Payment::StoreUnavailable(_) => {
            Some(Source::Fallback)
        }
        Payment::TooLarge(_) => None,
    }
}
