//! Reads `overrides`: other numbers for some values of a rule's limit keys.

use std::collections::HashSet;

use super::algorithms::OtherNumbers;
use super::limit_keys::fold;
use super::reader::{Field, Section};
use super::suggest::listed;
use crate::limit::attribute::Attribute;
use crate::limit::request::ClientAddress;
use crate::limit::rule::{Fold, KeyPart, LimitKey, Override};

/// What overrides are read with.
#[derive(Clone, Copy, Debug)]
pub struct OverrideReader<'k> {
    /// The rule's limit keys. `None`: they are wrong, which was reported.
    pub keys: Option<&'k [LimitKey]>,
    /// How many bits of an IPv6 address identify one client.
    pub ipv6_prefix: u8,
}

impl<'k> OverrideReader<'k> {
    pub fn overrides(&self, rule: &Section<'_>, numbers: OtherNumbers<'_>) -> Option<Vec<Override>> {
        let Some(field) = rule.get("overrides") else { return Some(Vec::new()) };
        if self.keys.is_some_and(<[LimitKey]>::is_empty) {
            rule.unwanted("overrides", "must be for the values of a limit key, but `limit_keys` is empty");
            return None;
        }
        let mut overrides = Vec::new();
        let mut correct = true;
        // All are read before any that is wrong ends the whole.
        for (text, position, field) in field.pairs()? {
            let target = self.target(&field.clone().at(position), text);
            let numbers = numbers.read(field);
            match (target, numbers) {
                (Some((part, value)), Some(numbers)) => {
                    overrides.push(Override { part, value, numbers: numbers.base });
                }
                _ => correct = false,
            }
        }
        let lone = self.parts().len() == 1;
        let mut seen = HashSet::new();
        for Override { part, value, .. } in &overrides {
            if !seen.insert((part, value)) {
                let twice = if lone { value.clone() } else { format!("{part}={value}") };
                rule.unwanted("overrides", format_args!("`{twice}` is there twice, in two spellings"));
                return None;
            }
        }
        correct.then_some(overrides)
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
