//! Says what was found of each sum, and what a difference may come from.

use super::comparison::{Comparison, Difference, Finding, Spent};
use super::global_bucket::PursesOfRegions;
use super::sums::{Sum, SumKey};
use base::time::Timestamp;
use decision::record_line::Moment;
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use rules::settled_price::Unit;

/// Why more can be spent than was recorded.
const MORE_SPENT: &str = "more spent than recorded: an interval that has not ended, or that a killed gateway has lost; lines \
                          that were lost, or are not in these files; a call to the store that got no answer; a cost that \
                          was settled as the period began; holds that a gateway has left when it ended (FILE.holds), until the \
                          next one writes the same FILE";
/// Why more can be spent at home than was recorded in all regions and lies in purses.
const MORE_AT_HOME: &str = "with `scope: global` also: a lease that was lost on its way (rate_limiter_stranded_total), `bucket reset` of \
                            a purse, or a region whose store has lost its purses; both are lost until the period ends";
/// Why less can be spent than was recorded.
const LESS_SPENT: &str = "less spent than recorded: `bucket reset` or `bucket grant`, `reset_on`, requests that were decided \
                          without the store, a store that has lost buckets, or costs of responses that a killed gateway had not \
                          reported to the store";
/// Why less can be spent in one region than was recorded in several.
const LESS_IN_REGION: &str = "a limit of each region is compared with the stores of the regions whose files -c names: give the files of \
                              all regions whose records these are";
/// What a difference that is explained means, and how to find out.
const EXPLAINED: &str = "explained: what regions hold whose gateway.yaml is not given. For a comparison to the unit name the files of \
                         all regions, each with -c; or compare again `return_after` after the last request, when gateways have \
                         returned what is unspent";
/// Why a threshold can be without a line.
const NOT_TOLD: &str = "a threshold without a line: a killed gateway, a call to the store that got no answer, or lines that are not in \
                        these files";

impl Comparison {
    /// Whether no bucket differs from its records without an explanation, and each threshold that a bucket has told has a line.
    pub(super) fn passes(&self) -> bool {
        self.untold.is_empty() && !self.entries.iter().any(|(.., found)| matches!(found, Finding::Different(_)))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.entries.iter().map(line).collect();
        let differs = |is: fn(&Spent, Difference) -> bool| {
            self.entries.iter().any(|(_, sum, found)| match found {
                Finding::Different(spent) => is(spent, spent.difference(sum.quantity)),
                _ => false,
            })
        };
        let count = |is: fn(&Finding) -> bool| self.entries.iter().filter(|(.., found)| is(found)).count();
        let equal = count(|found| matches!(found, Finding::Equal(_)));
        let explained = count(|found| matches!(found, Finding::Explained(_)));
        let different = count(|found| matches!(found, Finding::Different(_)));
        let reasons = [
            (differs(|_, difference| matches!(difference, Difference::More(_))), MORE_SPENT),
            (
                differs(|spent, difference| spent.purses.is_some() && matches!(difference, Difference::More(_))),
                MORE_AT_HOME,
            ),
            (differs(|_, difference| matches!(difference, Difference::Less(_))), LESS_SPENT),
            (
                self.unread_regions > 0
                    && differs(|spent, difference| spent.purses.is_none() && matches!(difference, Difference::Less(_))),
                LESS_IN_REGION,
            ),
            (explained > 0, EXPLAINED),
        ];
        lines.extend(reasons.into_iter().filter(|(is, _)| *is).map(|(_, reason)| reason.to_owned()));
        lines.extend(self.untold.iter().map(|(key, told)| {
            let amount = format_of(key).of(*told);
            format!("{} {}: the threshold at {amount} has no line", key.meter, subject_of(key))
        }));
        if !self.untold.is_empty() {
            lines.push(NOT_TOLD.to_owned());
        }
        let rest = self.entries.len() - equal - explained - different;
        let explained = if explained > 0 { format!(" {explained} explained,") } else { String::new() };
        lines.push(format!("{equal} equal,{explained} {different} different, {rest} not compared"));
        lines
    }
}

fn subject_of(key: &SumKey) -> String {
    key.subject.as_ref().map_or_else(|| "all".to_owned(), |(attribute, value)| format!("{attribute}={value}"))
}

fn format_of(key: &SumKey) -> AmountFormat {
    if key.unit == Unit::Dollars.name() { AmountFormat::Dollars } else { AmountFormat::Number }
}

fn holds(count: usize) -> String {
    if count == 1 { "a hold".to_owned() } else { format!("{count} holds") }
}

fn line((key, sum, found): &(SumKey, Sum, Finding)) -> String {
    let subject = subject_of(key);
    let period = key.period().map_or_else(String::new, |period| {
        let text = |moment: Timestamp| Moment(moment).text();
        format!(", {} to {}", text(period.begin), text(period.end))
    });
    let format = format_of(key);
    let noun = if format == AmountFormat::Dollars { String::new() } else { format!(" {}", key.unit) };
    let recorded = format!("{}{noun} recorded", format.of(sum.quantity));
    let result = match found {
        Finding::Equal(spent) => format!("{}: equal", spent_text(spent, format)),
        Finding::Explained(spent) => {
            format!("{}: explained: {}", spent_text(spent, format), explanation(spent, sum, format))
        }
        Finding::Different(spent) => format!("{}: {}", spent_text(spent, format), difference(spent, sum, format)),
        Finding::NotCompared(why) => format!("not compared: {why}"),
    };
    let counts = format!("{} requests, {} refused", sum.requests, sum.refused);
    format!("{} {subject}{period}: {recorded} ({counts}), {result}", key.meter)
}

/// Says what is spent; of a limit over several regions at home, and what of it purses hold.
fn spent_text(spent: &Spent, format: AmountFormat) -> String {
    let Some(PursesOfRegions { unspent, debt, .. }) = spent.purses else {
        return format!("{} spent", format.of(spent.amount));
    };
    let debt = match debt > Cost::default() {
        true => format!(", {} passed without home", format.of(debt)),
        false => String::new(),
    };
    format!("{} spent at home, {} of it unspent in purses{debt}", format.of(spent.amount), format.of(unspent))
}

fn difference(spent: &Spent, sum: &Sum, format: AmountFormat) -> String {
    let (more, which) = match spent.difference(sum.quantity) {
        Difference::None => return "equal".to_owned(),
        Difference::Less(less) => return format!("{} less spent", format.of(less)),
        Difference::More(more) => (more, "more spent"),
    };
    let left = sum.left.iter().fold(Cost::default(), |all, (_, reserved)| all.plus(*reserved)).min(more);
    let left = match left > Cost::default() {
        true => format!(", of it {} by {} that a gateway has left", format.of(left), holds(sum.left.len())),
        false => String::new(),
    };
    format!("{} {which}{left}", format.of(more))
}

/// Says what the difference can be.
fn explanation(spent: &Spent, sum: &Sum, format: AmountFormat) -> String {
    let PursesOfRegions { unread, most_unread, most_unread_debt, .. } = spent.purses.unwrap_or_default();
    let difference = difference(spent, sum, format);
    match spent.difference(sum.quantity) {
        Difference::More(_) => {
            let purses = if unread == 1 { "a purse that was".to_owned() } else { format!("{unread} purses that were") };
            format!("{difference}, of up to {} in {purses} not read", format.of(most_unread))
        }
        _ => format!(
            "{difference}, of up to {} that other regions can have passed without home",
            format.of(most_unread_debt)
        ),
    }
}
