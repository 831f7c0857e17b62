//! Reads `scope` and `lease`: whether a limit holds in this region alone, or over all regions of `store.home`.

use crate::language::key::{Key, Mapping, Type, names, unconstrained};
use crate::language::other_spellings;
use crate::language::reader::{Field, Section};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::AMOUNT;
use base::time::{Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::lease::{LeaseSize, Purse};
use ledger::cost::Cost;
use rules::claimed_numbers::ClaimedNumbers;
use rules::rule::{Limit, OverrideNumbers, Price};

/// Whether a limit holds in one region or over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Regional,
    Global,
}

const SCOPES: [(&str, Scope); 2] = [("regional", Scope::Regional), ("global", Scope::Global)];
const SCOPE_TYPE: Type = Type::Choice(&names(&SCOPES));

/// The keys of this file, which only a token bucket or a fixed window may have.
pub(crate) const SCOPE_KEYS: [&str; 2] = ["scope", "lease"];

/// The share of the limit in a lease of a fixed window, in percent. `benches/regions` compares shares.
const WINDOW_SHARE: u64 = 5;
/// The largest share of the burst in a lease of a token bucket, in percent.
const BUCKET_SHARE: u64 = 25;
/// The shortest time after which a region gives back what it does not use, unless the file has one.
const LEAST_RETURN_AFTER: Micros = Micros(10_000_000);
/// That time as a share of the window, in percent.
const RETURN_AFTER_SHARE: u64 = 3;
const PERCENT_IN_MILLIONTHS: u64 = 10_000;

/// A share of a limit, in millionths.
const SHARE: ValueKind<ParseText<u64>> = ValueKind::reporting(
    "`0%` to `100%`, with up to 4 decimals",
    Shape::Text(Text::new(
        Scalars::Spelling,
        &["^0*([0-9]{1,2}([.][0-9]{1,4})?|100([.]0{1,4})?)%$"],
        "be a share from 0% to 100%, with at most 4 decimals, like 5% or 0.5%",
    )),
    |text| {
        let (whole, decimals) = text.strip_suffix('%')?.split_once('.').unwrap_or((text.strip_suffix('%')?, "0"));
        let whole: u64 = whole.parse().ok()?;
        let decimals: u64 = format!("{decimals:0<4}").parse().ok()?;
        Some(whole * PERCENT_IN_MILLIONTHS + decimals).filter(|share| *share <= 100 * PERCENT_IN_MILLIONTHS)
    },
    |field, must| {
        let text = field.text_if_any().unwrap_or_default();
        let hint = other_spellings::percent(text).map(|written| match text.split_once('.') {
            Some((_, decimals)) if decimals.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("write `{written}`, or `{text}%`")
            }
            _ => format!("write `{written}`"),
        });
        field.must_hinting(must, hint);
    },
);

/// The declaration of the key `scope` of a rule.
pub(crate) const SCOPE: Key = Key::default(
    "scope",
    SCOPE_TYPE,
    "regional",
    "With a `token_bucket` or `fixed_window`: `global` holds over all regions of `store.home`.",
);

/// The declaration of the key `scope` of one of several limits.
pub(crate) const SCOPE_OF_LIMIT: Key =
    Key::depends("scope", SCOPE_TYPE, "`regional`", "Of one of several `limits`: `global` holds over all regions.");

/// The declaration of the key `lease` of a rule.
pub(crate) const LEASE: Key =
    Key::optional("lease", Type::Mapping(&LEASE_KEYS), "With `scope: global`: how much a region may hold at once.");

/// The declaration of the key `lease` of one of several limits.
pub(crate) const LEASE_OF_LIMIT: Key = Key::optional(
    "lease",
    Type::Mapping(&LEASE_KEYS),
    "Of one of several `limits`, with `scope: global`: how much a region may hold at once.",
);

static LEASE_KEYS: Mapping = Mapping {
    heading: Some("key in `lease`"),
    definition: Some("lease"),
    keys: &[
        Key::depends(
            "share",
            SHARE.declared(),
            "5 % of a window; 25 % of a burst, less with more than 3 regions",
            "The largest lease, as a share of the limit or burst.",
        ),
        Key::depends(
            "min",
            Type::Own { text: "above 0", shape: AMOUNT },
            "1",
            "The largest lease is at least this amount, and at least the largest cost of a request.",
        ),
    ],
    constraints: unconstrained,
};

/// What limits over several regions need to know of `store.home`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HomeTerms {
    pub regions: u64,
    pub timeout: Micros,
    /// `None`: it depends on the window of the limit.
    pub return_after: Option<Micros>,
    pub on_failure: HomeFailure,
}

/// What happens to a request that a purse cannot pay while home gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeFailure {
    /// It is refused.
    Deny,
    /// Its region decides by its share of the limit.
    Local,
}

impl HomeTerms {
    /// The terms of a `home` that is invalid, which has been reported.
    pub(crate) const OF_INVALID: HomeTerms =
        HomeTerms { regions: 1, timeout: Micros(500_000), return_after: None, on_failure: HomeFailure::Deny };
}

/// The settings of a limit over several regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalTerms {
    home: HomeTerms,
    /// The share of the limit in the largest lease, in millionths. `None`: it depends on the algorithm.
    share: Option<u64>,
    /// What the largest lease must be at least.
    least: Cost,
}

/// Reads `scope` and `lease` beside the numbers of a limit. `Some(None)`: the limit holds in this region alone. `None` after
/// reporting a problem.
pub(crate) fn scope(section: &Section<'_>, home: Option<HomeTerms>) -> Option<Option<GlobalTerms>> {
    let scope = section.optional("scope", |field| field.choice(&SCOPES)).map(|scope| scope.unwrap_or(Scope::Regional));
    let lease = section.optional("lease", lease);
    if scope == Some(Scope::Regional) {
        section.unwanted("lease", "must stand beside `scope: global`");
        return (!section.has("lease")).then_some(None);
    }
    let ((share, least), Scope::Global) = (lease?.unwrap_or((None, Cost::ONE)), scope?) else { return None };
    if section.has("ban") {
        section.unwanted("ban", "must not stand on a limit with `scope: global`, but on a regional limit beside it");
        return None;
    }
    let Some(home) = home else {
        section.unwanted("scope", "`global` needs `home` in `store`: where the limit lives");
        return None;
    };
    Some(Some(GlobalTerms { home, share, least }))
}

fn lease(field: Field<'_>) -> Option<(Option<u64>, Cost)> {
    if let Some(text) = field.text_if_any().filter(|text| text.ends_with('%')) {
        field.must_hinting("be a mapping", Some(format!("write `{{share: {text}}}`")));
        return None;
    }
    let section = field.section(&LEASE_KEYS)?;
    let share = section.optional("share", |field| SHARE.read(field));
    let min = section.optional("min", |field| field.cost());
    section.close();
    Some((share?, min?.unwrap_or(Cost::ONE)))
}

/// Reports costs that a limit over several regions cannot count. `None` after a report.
pub(crate) fn check_global(section: &Section<'_>, price: Option<&Price>) -> Option<()> {
    match price {
        Some(Price::Settled(_)) => {
            let key = if section.has("count_on") { "count_on" } else { "cost_source" };
            section.unwanted(key, "must not stand on a limit with `scope: global`: its costs must be known beforehand");
            None
        }
        Some(Price::FromRequest { max: None, .. }) => {
            section.wrong("max_cost", "missing; a limit with `scope: global` needs it where requests name their cost");
            None
        }
        _ => Some(()),
    }
}

impl GlobalTerms {
    /// Returns the limit over all regions with the numbers of this limit of one region. `largest_cost` is that of a request.
    /// Any other limit is returned as it is.
    pub(crate) fn apply(&self, numbers: Algorithm, largest_cost: Cost) -> Algorithm {
        let limit = match numbers {
            Algorithm::TokenBucket(bucket) => SpentLimit::TokenBucket(bucket),
            Algorithm::FixedWindow(window) => SpentLimit::FixedWindow(window),
            other => return other,
        };
        let default = match limit {
            SpentLimit::FixedWindow(_) => WINDOW_SHARE,
            SpentLimit::TokenBucket(_) => BUCKET_SHARE.min(100 / self.home.regions.saturating_add(1)),
        };
        let share = self.share.unwrap_or(default * PERCENT_IN_MILLIONTHS);
        let size = LeaseSize::new(share, self.least.max(largest_cost));
        // The length of a calendar's periods varies, but by little.
        let window = numbers.quota(Timestamp(0)).window;
        let after = || Micros(window.0 / 100 * RETURN_AFTER_SHARE).max(LEAST_RETURN_AFTER);
        let return_after = self.home.return_after.unwrap_or_else(after);
        let purse = Purse::sized(limit, size, self.home.timeout, return_after);
        let purse = purse.map(|purse| match self.home.on_failure {
            HomeFailure::Deny => purse.with_unspent_shares(self.home.regions),
            HomeFailure::Local => purse.with_shares(self.home.regions),
        });
        purse.map_or(numbers, Algorithm::Purse)
    }

    /// Makes a limit hold over all regions, with its overrides and its shadow. `None` after reporting at `field` that leases would
    /// leave nothing of a token bucket.
    pub(crate) fn limit(&self, limit: Limit, field: &Field<'_>) -> Option<Limit> {
        let most = match &limit.price {
            Price::Fixed(cost) => *cost,
            Price::FromRequest { default, min, max, .. } => max.unwrap_or_default().max(*min).max(*default),
            Price::Settled(_) => Cost::default(),
        };
        let claimed = |claimed: ClaimedNumbers| ClaimedNumbers { base: self.apply(claimed.base, most), ..claimed };
        let mut limit = Limit {
            algorithm: self.apply(limit.algorithm, most),
            claimed: limit.claimed.map(claimed),
            candidate: limit.candidate.map(|numbers| self.apply(numbers, most)),
            candidate_claimed: limit.candidate_claimed.map(claimed),
            ..limit
        };
        for one in &mut limit.overrides {
            if let OverrideNumbers::Limited(numbers) = &mut one.numbers {
                *numbers = self.apply(*numbers, most);
            }
        }
        let overridden = limit.overrides.iter().filter_map(|one| match &one.numbers {
            OverrideNumbers::Limited(numbers) => Some(numbers),
            OverrideNumbers::Unlimited => None,
        });
        let claimed = limit.claimed.iter().chain(&limit.candidate_claimed).map(|claimed| &claimed.base);
        let mut all = std::iter::once(&limit.algorithm).chain(&limit.candidate).chain(overridden).chain(claimed);
        let is_regional =
            |numbers: &Algorithm| !matches!(numbers, Algorithm::Purse(_)) && numbers.ceiling() > Cost::default();
        if all.clone().any(is_regional) {
            // With the times that `home` may have, this cannot happen. A limit that is not leased would be one of this region alone.
            field.wrong("this limit cannot be counted in leases", None);
            return None;
        }
        match all.find_map(|numbers| self.exhausted(numbers)) {
            Some((burst, largest)) => {
                let regions = self.home.regions;
                let what = format_args!(
                    "leases would leave less than 1 of a burst of {burst}: {regions} regions lease up to {largest} each; \
                     raise `burst`, or lower `lease`"
                );
                field.wrong(what, None);
                None
            }
            None => Some(limit),
        }
    }

    /// Returns the burst and the largest lease of a token bucket of which the leases of all regions leave less than one token.
    fn exhausted(&self, numbers: &Algorithm) -> Option<(Cost, Cost)> {
        let Algorithm::Purse(purse) = numbers else { return None };
        let (burst, largest) = (purse.limit().token_bucket()?.burst(), purse.largest());
        let left = burst.less(largest.times(self.home.regions));
        (left < Cost::ONE).then_some((burst, largest))
    }
}
