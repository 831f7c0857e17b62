//! Reads `overrides` and `overrides_file`: other numbers for some values of a rule's limit keys.

use std::collections::{HashMap, HashSet};

use super::algorithms::OtherNumbers;
use super::environment::Environment;
use super::limit_keys::fold;
use super::list_files::{NamedList, named_list};
use super::overrides_file;
use super::problem::Report;
use super::reader::{Field, Section};
use super::suggest::{listed, nearest};
use super::tree::Entry;
use crate::base::position::Position;
use crate::limit::attribute::Attribute;
use crate::limit::request::ClientAddress;
use crate::limit::rule::{Fold, KeyPart, LimitKey, Override};

/// The most problems of a file that are reported.
const MOST_FAULTS: usize = 20;

/// What overrides are read with.
#[derive(Clone, Copy, Debug)]
pub struct OverrideReader<'k> {
    /// The rule's limit keys. `None`: they are wrong, which was reported.
    pub keys: Option<&'k [LimitKey]>,
    /// How many bits of an IPv6 address identify one client.
    pub ipv6_prefix: u8,
    /// Where the file of overrides is read.
    pub environment: Environment<'k>,
}

/// A limit whose numbers are overridden.
#[derive(Clone, Copy, Debug)]
pub struct OverriddenLimit<'t, 'n> {
    /// Empty for the only limit of a rule.
    pub name: &'t str,
    pub numbers: OtherNumbers<'n>,
    /// The entries of its mapping.
    pub written: &'t [Entry],
}

/// What an override is for: an attribute, and its value.
type Target = (KeyPart, String);

/// Reads the numbers of one override, with its index and what it is for; that is `None` if it was reported.
type ReadEntry<'r> = &'r mut dyn for<'f> FnMut(Field<'f>, usize, Option<Target>) -> Option<()>;

impl<'k> OverrideReader<'k> {
    /// Those of a rule with one limit.
    pub fn overrides(&self, rule: &Section<'_>, limit: OverriddenLimit<'_, '_>) -> Option<Vec<Override>> {
        let mut overrides = Vec::new();
        let correct = self.each(rule, &[limit], &mut |field, index, target| {
            let numbers = limit.numbers.read_override(field)?;
            let (part, value) = target?;
            overrides.push(Override { part, value, numbers, index });
            Some(())
        });
        correct.map(|()| overrides)
    }

    /// Those of a rule with these limits, which an override names: for each limit, in their order.
    pub fn of_several(&self, rule: &Section<'_>, limits: &[OverriddenLimit<'_, '_>]) -> Option<Vec<Vec<Override>>> {
        let mut overrides = vec![Vec::new(); limits.len()];
        let names: Vec<&str> = limits.iter().map(|limit| limit.name).collect();
        let correct = self.each(rule, limits, &mut |field, index, target| {
            let pairs = field.pairs()?;
            if pairs.is_empty() {
                field.must(format_args!("name one of the rule's limits ({})", listed(&names)));
                return None;
            }
            let mut correct = Some(());
            for (name, position, field) in pairs {
                let Some(limit) = names.iter().position(|known| *known == name) else {
                    let hint = nearest(name, &names).unwrap_or_else(|| format!("its limits are {}", names.join(", ")));
                    field.at(position).wrong("not one of the rule's limits", Some(hint));
                    correct = None;
                    continue;
                };
                let numbers = limits.get(limit).and_then(|limit| limit.numbers.read_override(field));
                match (numbers, &target, overrides.get_mut(limit)) {
                    (Some(numbers), Some((part, value)), Some(of_limit)) => {
                        of_limit.push(Override { part: part.clone(), value: value.clone(), numbers, index });
                    }
                    _ => correct = None,
                }
            }
            correct
        });
        correct.map(|()| overrides)
    }

    /// Reads every entry of the rule, then of its file, also after a wrong one.
    fn each(&self, rule: &Section<'_>, limits: &[OverriddenLimit<'_, '_>], read: ReadEntry<'_>) -> Option<()> {
        for key in ["overrides", "overrides_file"] {
            if self.keys.is_some_and(<[LimitKey]>::is_empty) && rule.has(key) {
                rule.unwanted(key, "must be for the values of a limit key, but `limit_keys` is empty");
                return None;
            }
        }
        let of_rule = rule.get("overrides").map_or(Some(()), |field| self.each_of_rule(rule, &field, read));
        let in_file = rule.get("overrides_file").map_or(Some(()), |field| self.each_in_file(&field, limits, read));
        of_rule.and(in_file)
    }

    fn each_of_rule(&self, rule: &Section<'_>, overrides: &Field<'_>, read: ReadEntry<'_>) -> Option<()> {
        let mut correct = Some(());
        let mut seen = HashSet::new();
        let mut twice = None;
        for (index, (text, position, field)) in overrides.pairs()?.into_iter().enumerate() {
            let target = self.target(&field.clone().at(position), text);
            if let Some(target) = &target
                && !seen.insert(target.clone())
                && twice.is_none()
            {
                twice = Some(target.clone());
            }
            correct = correct.and(target.is_some().then_some(())).and(read(field, index, target));
        }
        if let Some((part, value)) = twice {
            let twice = if self.parts().len() == 1 { value } else { format!("{part}={value}") };
            rule.unwanted("overrides", format_args!("`{twice}` is there twice, in two spellings"));
            return None;
        }
        correct
    }

    /// Reports what is wrong in the file with its lines.
    fn each_in_file(
        &self,
        overrides: &Field<'_>,
        limits: &[OverriddenLimit<'_, '_>],
        read: ReadEntry<'_>,
    ) -> Option<()> {
        let NamedList { name, max_shrink } = named_list(overrides)?;
        let (file, content) = (name.written()?, self.environment.file(&name)?);
        let report = Report::default();
        let count = overrides_file::parse(file, &content, limits, &report).and_then(|tree| {
            let mut seen: HashMap<Target, Position> = HashMap::new();
            let mut correct = Some(());
            let entries = Field::root(&tree, &report).pairs()?;
            let count = entries.len();
            for (text, position, field) in entries {
                if report.count() >= MOST_FAULTS {
                    break;
                }
                let whole = field.clone().at(position);
                let target = self.target(&whole, text);
                if let Some(first) = target.clone().and_then(|target| seen.insert(target, position)) {
                    whole.wrong(format_args!("is there twice, first in line {}", first.line), None);
                }
                correct = correct.and(target.is_some().then_some(())).and(read(field, Override::IN_FILE, target));
            }
            (report.count() == 0).then_some(count).filter(|_| correct.is_some())
        });
        name.adopt(file, MOST_FAULTS, report);
        name.note_list(file, count?, max_shrink?);
        Some(())
    }

    /// What an override is for. With a single attribute among the limit keys its name may be left out. `None` after
    /// reporting at `field`.
    fn target(&self, field: &Field<'_>, text: &str) -> Option<(KeyPart, String)> {
        self.keys?;
        let parts = self.parts();
        let named = text.split_once('=').map(|(name, value)| (name.trim(), value));
        let is_named = |part: &&&KeyPart| {
            let Some((name, _)) = named else { return false };
            let (name, fold) = fold(name);
            part.fold == fold && Attribute::parse(name).as_ref() == Ok(&part.attribute)
        };
        let (part, value) = match (parts.iter().find(is_named), named, &parts[..]) {
            (Some(part), Some((_, value)), _) => (*part, value),
            (_, _, [only]) => (*only, text),
            _ => {
                let (what, value) = match named {
                    Some((name, value)) => {
                        (format!("`{}` is not one of the rule's limit keys", name.escape_debug()), value)
                    }
                    None => ("must name the limit key that it is a value of, since there are several".to_owned(), text),
                };
                let forms: Vec<_> = parts.iter().map(|part| format!("\"{part}={}\"", value.escape_debug())).collect();
                let forms: Vec<_> = forms.iter().map(String::as_str).collect();
                field.wrong(what, Some(format!("write {}", listed(&forms))));
                return None;
            }
        };
        if value.is_empty() && !matches!(part.attribute, Attribute::Claim(_)) {
            field.wrong("must have a value: what is empty counts as missing", None);
            return None;
        }
        Some((part.clone(), self.normalise(part, value)))
    }

    /// All attributes among the limit keys.
    fn parts(&self) -> Vec<&'k KeyPart> {
        self.keys.unwrap_or_default().iter().flat_map(|key| &key.alternatives).collect()
    }

    /// A value in the form that the values of its limit key have.
    fn normalise(&self, part: &KeyPart, value: &str) -> String {
        match part {
            KeyPart { attribute: Attribute::Address, .. } => match value.parse() {
                Ok(address) => ClientAddress::new(address, self.ipv6_prefix).text(),
                Err(_) => value.to_owned(),
            },
            KeyPart { attribute: Attribute::Host, .. } | KeyPart { fold: Fold::Lower, .. } => {
                value.to_ascii_lowercase()
            }
            _ => value.to_owned(),
        }
    }
}
