//! Reads `overrides` and `overrides_file`: other numbers for certain values of a rule's limit keys.

use std::collections::hash_map::{Entry as MapEntry, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::keys::rules::algorithms::OtherNumbers;
use crate::keys::rules::list_files::{NamedList, named_list};
use crate::keys::rules::overrides_file;
use crate::language::environment::Environment;
use crate::language::problem::Report;
use crate::language::reader::{Field, Section};
use crate::language::suggest::{listed, nearest};
use crate::language::tree::Entry;
use base::position::Position;
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use rules::rule::{LimitKey, Override, OverrideNumbers};

/// The largest number of reported problems in one file.
const MOST_FAULTS: usize = 20;

/// Reads the overrides of a rule: other rates and sizes for some values of its limit keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverrideReader<'k> {
    /// The limit keys of the rule. `None` if they are invalid, which has been reported.
    pub keys: Option<&'k [LimitKey]>,
    /// The number of bits at the start of an IPv6 address that identify one client.
    pub ipv6_prefix: u8,
    /// Gives access to the files that gateway.yaml names, such as the file of overrides.
    pub environment: Environment<'k>,
}

/// A limit whose rule has overrides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverriddenLimit<'t, 'n> {
    /// The name of the limit. Empty if the rule has only one limit.
    pub name: &'t str,
    pub numbers: OtherNumbers<'n>,
    /// The entries of the limit's mapping, as the file has them.
    pub written: &'t [Entry],
}

/// The rates and sizes that one override sets. Each is paired with the index of its limit.
pub(crate) type NumbersByLimit = SmallVec<[(usize, OverrideNumbers); 1]>;

/// Reads the rates and sizes of one override. `None` after reporting a problem.
pub(crate) type ReadNumbers<'r> = &'r dyn Fn(Field<'_>) -> Option<NumbersByLimit>;

/// The value to which an override applies. `part` is the index of the value's attribute among the limit keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target {
    part: usize,
    value: Arc<str>,
}

/// Why an override cannot apply to a text.
struct TargetFault {
    what: String,
    hint: Option<String>,
}

/// The overrides that were read, as one list for each limit of the rule.
struct Overrides {
    parts: Vec<Arc<Attribute>>,
    of_limits: Vec<Vec<Override>>,
}

impl Overrides {
    fn add(&mut self, target: &Target, numbers: NumbersByLimit, index: usize) {
        let Some(part) = self.parts.get(target.part) else { return };
        for (limit, numbers) in numbers {
            if let Some(of_limit) = self.of_limits.get_mut(limit) {
                of_limit.push(Override { part: Arc::clone(part), value: Arc::clone(&target.value), numbers, index });
            }
        }
    }
}

impl OverrideReader<'_> {
    /// Reads the overrides of a rule that has one limit. `None` after reporting a problem.
    pub(crate) fn overrides(&self, rule: &Section<'_>, limit: OverriddenLimit<'_, '_>) -> Option<Vec<Override>> {
        let read = |field: Field<'_>| Some(smallvec![(0, limit.numbers.read_override(field)?)]);
        self.all(rule, &[limit], &read)?.pop()
    }

    /// Reads the overrides of a rule that has several limits. Returns one list for each limit, in the order of
    /// `limits`.
    pub(crate) fn of_several(
        &self,
        rule: &Section<'_>,
        limits: &[OverriddenLimit<'_, '_>],
    ) -> Option<Vec<Vec<Override>>> {
        self.all(rule, limits, &|field| numbers_by_name(&field, limits))
    }

    /// Reads every override in the rule, and then in the rule's file, also after an invalid override.
    fn all(
        &self,
        rule: &Section<'_>,
        limits: &[OverriddenLimit<'_, '_>],
        read: ReadNumbers<'_>,
    ) -> Option<Vec<Vec<Override>>> {
        for key in ["overrides", "overrides_file"] {
            if self.keys.is_some_and(<[LimitKey]>::is_empty) && rule.has(key) {
                rule.unwanted(key, "must be for the values of a limit key, but `limit_keys` is empty");
                return None;
            }
        }
        let parts = self.keys.unwrap_or_default().iter().flat_map(|key| &key.alternatives);
        let parts = parts.map(|part| Arc::new(part.clone())).collect();
        let mut found = Overrides { parts, of_limits: vec![Vec::new(); limits.len()] };
        let of_rule = rule.get("overrides").map_or(Some(()), |field| self.each_of_rule(&field, read, &mut found));
        let in_file =
            rule.get("overrides_file").map_or(Some(()), |field| self.each_in_file(&field, limits, read, &mut found));
        of_rule.and(in_file).map(|()| found.of_limits)
    }

    fn each_of_rule(&self, overrides: &Field<'_>, read: ReadNumbers<'_>, found: &mut Overrides) -> Option<()> {
        let mut correct = Some(());
        let mut seen: HashMap<Target, (&str, Position)> = HashMap::new();
        for (index, (text, position, field)) in overrides.pairs()?.into_iter().enumerate() {
            let whole = field.clone().at(position);
            let target = match self.target(&found.parts, text) {
                None => None,
                Some(Ok(target)) => Some(target),
                Some(Err(TargetFault { what, hint })) => {
                    whole.wrong(what, hint);
                    None
                }
            };
            if let Some((first, at)) = target.as_ref().and_then(|target| seen.get(target)) {
                let first = first.escape_debug();
                whole.wrong(format_args!("is there twice, in line {} as `{first}`", at.line), None);
                correct = None;
            } else if let Some(target) = &target {
                seen.insert(target.clone(), (text, position));
            }
            match (target, read(field)) {
                (Some(target), Some(numbers)) => found.add(&target, numbers, index),
                _ => correct = None,
            }
        }
        correct
    }

    /// Reads the overrides in the file of the rule. Reports each problem with its line.
    fn each_in_file(
        &self,
        overrides: &Field<'_>,
        limits: &[OverriddenLimit<'_, '_>],
        read: ReadNumbers<'_>,
        found: &mut Overrides,
    ) -> Option<()> {
        let NamedList { name, max_shrink } = named_list(overrides)?;
        let (file, content) = (name.written()?, self.environment.file(&name)?);
        let report = Report::default();
        let mut seen: HashMap<Target, Position> = HashMap::new();
        let mut correct = Some(());
        let source = overrides_file::Source { file, content: &content, limits, read, report: &report };
        let count = source.each(&mut |text, position, numbers| {
            match self.target(&found.parts, text) {
                None => correct = None,
                Some(Err(TargetFault { what, hint })) => report.add_with_hint(position, text, what, hint),
                Some(Ok(target)) => match (seen.entry(target), numbers) {
                    (MapEntry::Occupied(first), _) => {
                        let what = format!("is there twice, first in line {}", first.get().line);
                        report.add(position, text, what);
                    }
                    (MapEntry::Vacant(entry), Some(numbers)) => {
                        found.add(entry.key(), numbers, Override::IN_FILE);
                        entry.insert(position);
                    }
                    (MapEntry::Vacant(entry), None) => {
                        entry.insert(position);
                        correct = None;
                    }
                },
            }
            if report.count() < MOST_FAULTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let count = count.filter(|_| report.count() == 0 && correct.is_some());
        name.adopt(file, MOST_FAULTS, report);
        name.note_list(file, count?, max_shrink?);
        Some(())
    }

    /// Reads the value to which an override applies. The name of a single attribute may be left out. `None` if the
    /// limit keys are invalid.
    fn target(&self, parts: &[Arc<Attribute>], text: &str) -> Option<Result<Target, TargetFault>> {
        self.keys?;
        let named = text.split_once('=').map(|(name, value)| (name.trim(), value));
        let is_named =
            |part: &Arc<Attribute>| named.is_some_and(|(name, _)| Attribute::parse(name).as_ref() == Ok(&**part));
        let (index, value) = match (parts.iter().position(is_named), named, parts.len()) {
            (Some(index), Some((_, value)), _) => (index, value),
            (_, _, 1) => (0, text),
            _ => {
                let (what, value) = match named {
                    Some((name, value)) => {
                        (format!("`{}` is not one of the rule's limit keys", name.escape_debug()), value)
                    }
                    None => ("must name the limit key that it is a value of, since there are several".to_owned(), text),
                };
                let forms: Vec<_> = parts.iter().map(|part| format!("\"{part}={}\"", value.escape_debug())).collect();
                let forms: Vec<_> = forms.iter().map(String::as_str).collect();
                return Some(Err(TargetFault { what, hint: Some(format!("write {}", listed(&forms))) }));
            }
        };
        let part = parts.get(index)?;
        if value.is_empty() && !matches!(part.source(), Attribute::Claim(_)) {
            let what = "must have a value: what is empty counts as missing".to_owned();
            return Some(Err(TargetFault { what, hint: None }));
        }
        Some(Ok(Target { part: index, value: self.normalise(part, value) }))
    }

    /// Converts a value to the form that this value has in requests.
    fn normalise(&self, part: &Attribute, value: &str) -> Arc<str> {
        match (part.source(), value.parse()) {
            (Attribute::Address, Ok(address)) => ClientAddress::new(address, self.ipv6_prefix).text().into(),
            (Attribute::Host, _) => value.to_ascii_lowercase().into(),
            _ => part.folding().of_text(value).as_ref().into(),
        }
    }
}

/// Reads the numbers of an override, each under the name of its limit.
fn numbers_by_name(field: &Field<'_>, limits: &[OverriddenLimit<'_, '_>]) -> Option<NumbersByLimit> {
    let pairs = field.pairs()?;
    let names = || limits.iter().map(|limit| limit.name).collect::<Vec<_>>();
    if pairs.is_empty() {
        field.must(format_args!("name one of the rule's limits ({})", listed(&names())));
        return None;
    }
    let (mut found, mut correct) = (NumbersByLimit::new(), Some(()));
    for (name, position, field) in pairs {
        let Some((index, limit)) = limits.iter().enumerate().find(|(_, limit)| limit.name == name) else {
            let names = names();
            let hint = nearest(name, &names).unwrap_or_else(|| format!("its limits are {}", names.join(", ")));
            field.at(position).wrong("not one of the rule's limits", Some(hint));
            correct = None;
            continue;
        };
        match limit.numbers.read_override(field) {
            Some(numbers) => found.push((index, numbers)),
            None => correct = None,
        }
    }
    correct.map(|()| found)
}
