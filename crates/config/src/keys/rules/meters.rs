//! Reads `meter`, the name of a counter that rules share, and checks that their limits can share buckets.

use std::collections::HashMap;

use crate::keys::rules::names::checked;
use crate::language::reader::{Field, Section};
use ledger::algorithm::Algorithm;
use rules::rule::{BanStatus, LimitKey, Price};

/// The meters of the limits that have been read from a file. Limits with the same meter share their buckets.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    first: HashMap<String, MeteredLimit>,
    /// The number of policies whose rules have been read or are being read.
    policies: usize,
    rules: usize,
}

/// The first limit of a meter. A setting is `None` if it is invalid, which has been reported.
#[derive(Debug)]
struct MeteredLimit {
    line: usize,
    policy: usize,
    rule: usize,
    settings: BucketSettings,
}

/// The settings that must be the same for all limits of one meter. An invalid setting has been reported and is `None`.
#[derive(Clone, Debug)]
pub(crate) struct BucketSettings {
    /// The limit keys as text, sorted, because their order does not matter.
    pub keys: Option<Vec<String>>,
    pub algorithm: Option<Algorithm>,
    /// The cost of a request. Its source must be the same for all limits of a meter, but the amount may differ.
    pub price: Option<Price>,
    /// The status of a refusal by a ban. `None` without a ban, or if the ban is invalid.
    pub ban_status: Option<BanStatus>,
}

impl BucketSettings {
    pub(crate) fn new(keys: Option<&[LimitKey]>, algorithm: Option<Algorithm>, price: Option<Price>) -> BucketSettings {
        let mut keys: Option<Vec<String>> = keys.map(|keys| keys.iter().map(|key| key.text.clone()).collect());
        keys.iter_mut().for_each(|keys| keys.sort_unstable());
        BucketSettings { keys, algorithm, price, ban_status: None }
    }

    /// Returns the first setting in which the limits differ: its name, and its values in this limit and in the first
    /// limit.
    fn conflict(&self, first: &BucketSettings) -> Option<(&'static str, String, String)> {
        if let Some((here, there)) = self.sources(first)
            && self.is_budget() != first.is_budget()
        {
            return Some(("cost_source", here, there));
        }
        if let (Some(here), Some(there)) = (&self.algorithm, &first.algorithm)
            && let Some(key) = here.conflict(there)
        {
            let shown = |algorithm: &Algorithm| match key {
                "algorithm" => algorithm.name().to_owned(),
                "ban" => algorithm.ban().map_or_else(|| "none".to_owned(), |ban| ban.to_string()),
                "scope" => if algorithm.kind().is_purse() { "global" } else { "regional" }.to_owned(),
                "reset_on" => if algorithm.kind().has_resets() { "some" } else { "none" }.to_owned(),
                _ => algorithm.to_string(),
            };
            return Some((key, shown(here), shown(there)));
        }
        if let (Some(here), Some(there)) = (self.ban_status, first.ban_status)
            && here != there
        {
            return Some(("ban.status", here.code().to_string(), there.code().to_string()));
        }
        if let (Some(here), Some(there)) = (&self.keys, &first.keys)
            && here != there
        {
            let shown = |keys: &[String]| format!("[{}]", keys.join(", "));
            return Some(("limit_keys", shown(here), shown(there)));
        }
        let (here, there) = self.sources(first)?;
        (here != there).then_some(("cost_source", here, there))
    }

    /// Returns the sources of the costs of both limits. `None` if one is invalid.
    fn sources(&self, first: &BucketSettings) -> Option<(String, String)> {
        let source = |price: &Price| match price {
            Price::Fixed(_) => "fixed".to_owned(),
            Price::FromRequest { attribute, .. } => attribute.to_string(),
            Price::Settled(price) => price.source.to_string(),
        };
        Some((source(self.price.as_ref()?), source(first.price.as_ref()?)))
    }

    /// Returns whether the costs are known only when a request has ended.
    fn is_budget(&self) -> bool {
        matches!(self.price, Some(Price::Settled(_)))
    }
}

impl Meters {
    pub(crate) fn begin_policy(&mut self) {
        self.policies += 1;
    }

    pub(crate) fn begin_rule(&mut self) {
        self.rules += 1;
    }

    /// Reads the `meter` of a limit with these settings. `Some(None)`: no meter. `None` after reporting a problem.
    pub(crate) fn meter(&mut self, section: &Section<'_>, settings: BucketSettings) -> Option<Option<String>> {
        section.optional("meter", |field| self.join(&field, settings))
    }

    fn join(&mut self, field: &Field<'_>, settings: BucketSettings) -> Option<String> {
        let name = checked(field, field.written()?)?;
        let (policy, rule) = (self.policies, self.rules);
        let Some(first) = self.first.get(name) else {
            let line = field.position().line;
            self.first.insert(name.to_owned(), MeteredLimit { line, policy, rule, settings });
            return Some(name.to_owned());
        };
        let line = first.line;
        let wrong = if first.policy != policy {
            Some(format!("must be of one policy, that of the meter `{name}` in line {line} is another"))
        } else if first.rule == rule {
            Some(format!("must be once in a rule, `{name}` is also in line {line}"))
        } else {
            settings.conflict(&first.settings).map(|(key, here, there)| {
                format!("limits of the meter `{name}` must have the same {key}: {here} here, {there} in line {line}")
            })
        };
        if let Some(wrong) = wrong {
            field.wrong(wrong, None);
            return None;
        }
        Some(name.to_owned())
    }
}
