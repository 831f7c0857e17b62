//! Reads single values: text, numbers, durations, addresses, and choices among words.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::Field;
use crate::language::disclosure::Disclosure;
use crate::language::duration;
use crate::language::network;
use crate::language::other_spellings;
use crate::language::shape::Shape;
use crate::language::suggest::{listed, nearest, nearest_name, word_of_others};
use crate::language::tree::{Kind, Scalar, Style, Value};
use crate::language::value_types::{
    AMOUNT, AMOUNT_FROM_ZERO, AMOUNT_OR_MONEY, AMOUNT_OR_MONEY_FROM_ZERO, DURATION, NETWORK, SOCKET_ADDRESS,
};
use base::time::Micros;
use ledger::cost::{Cost, ExtraDecimals};
use ledger::money::{self, AmountFormat};

impl<'t> Field<'t> {
    /// Returns the text of a single value except null, as written in the file. `None` after reporting another value.
    pub(crate) fn written(&self) -> Option<&'t str> {
        match self.scalar() {
            Some(scalar) if scalar.kind() != Kind::Null => Some(&scalar.text),
            _ => {
                self.must("be a single value");
                None
            }
        }
    }

    /// Returns the value as text. Numbers and booleans are rejected, because the intended text of `1.10` is not clear.
    /// `None` after reporting another value.
    pub(crate) fn text(&self) -> Option<&'t str> {
        match self.scalar() {
            Some(scalar) if matches!(scalar.kind(), Kind::Text | Kind::Reference) => Some(&scalar.text),
            _ => {
                self.must("be text");
                None
            }
        }
    }

    /// Whether the value is text or a reference to an environment variable. Numbers, booleans and null are not text.
    pub(crate) fn is_text(&self) -> bool {
        self.scalar().is_some_and(|scalar| matches!(scalar.kind(), Kind::Text | Kind::Reference))
    }

    /// Whether the value is a number without quotes.
    pub(crate) fn is_number(&self) -> bool {
        self.scalar().is_some_and(|scalar| scalar.kind() == Kind::Number)
    }

    /// Whether the value is a single value of any type except null.
    pub(crate) fn is_single(&self) -> bool {
        self.scalar().is_some_and(|scalar| scalar.kind() != Kind::Null)
    }

    /// Returns the text of a single value. `None`, without a report, if the value is a list, a mapping or unknown.
    pub(crate) fn text_if_any(&self) -> Option<&'t str> {
        self.scalar().map(|scalar| &*scalar.text)
    }

    /// Returns a hint for a value that should be a number but is a number in quotes, or a rate. `None` for other values.
    pub(crate) fn hint_for_number(&self) -> Option<String> {
        let scalar = self.scalar().filter(|scalar| {
            matches!(scalar.kind(), Kind::Text | Kind::Number) && self.disclosure() == Disclosure::Shown
        })?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match scalar.text.split_once('/') {
            None if scalar.style == Style::Quoted && digits(&scalar.text) => {
                Some(format!("without quotes it is a number: {}", scalar.text))
            }
            None if !digits(&scalar.text) => {
                let number = other_spellings::number(&scalar.text)?;
                (number.thousandths().is_multiple_of(1000)).then(|| format!("write `{}`", number.whole()))
            }
            Some((amount, period)) if digits(amount) && period.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                let rate = || format!("a rate in another unit is written `rate: {}`", scalar.text);
                Some(duration::calendar_hint(&scalar.text).unwrap_or_else(rate))
            }
            _ => None,
        }
    }

    /// Returns a hint for a duration in the spelling of other programs, such as `5 minutes`. `None` for other values.
    pub(crate) fn hint_for_duration(&self) -> Option<String> {
        other_spellings::duration(self.text_if_any()?).map(|written| format!("write `{written}`"))
    }

    /// Whether the value is a single value with this text.
    pub(crate) fn is_written(&self, text: &str) -> bool {
        self.scalar().is_some_and(|scalar| scalar.text == text)
    }

    /// Returns the value as a scalar. `None` if the value is a list, a mapping or unknown.
    pub(crate) fn scalar(&self) -> Option<&'t Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => (scalar.style != Style::Unknown).then_some(scalar),
            _ => None,
        }
    }

    pub(super) fn style(&self) -> Option<Style> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar.style),
            _ => None,
        }
    }

    /// Reads the value as `true` or `false`. `None` after reporting another value.
    pub(crate) fn boolean(&self) -> Option<bool> {
        let truth = self.truth();
        if truth.is_none() {
            let scalar = self.scalar().filter(|scalar| scalar.style == Style::Quoted);
            let quoted = scalar.map(|scalar| &*scalar.text).filter(|text| matches!(*text, "true" | "false"));
            self.must_hinting("be true or false", quoted.map(|text| format!("without quotes it is: {text}")));
        }
        truth
    }

    /// Reads the value as `true` or `false`, for a key that may also be a mapping. `None` after reporting another value.
    pub(crate) fn switch(&self) -> Option<bool> {
        let truth = self.truth();
        if truth.is_none() {
            self.must("be true, false or a mapping");
        }
        truth
    }

    /// Reads the value as `true` or `false`. `None`, without a report, for any other value.
    pub(crate) fn truth(&self) -> Option<bool> {
        let scalar = self.scalar().filter(|scalar| matches!(scalar.kind(), Kind::Boolean | Kind::Reference));
        match scalar.map(|scalar| &*scalar.text) {
            Some("true" | "True" | "TRUE") => Some(true),
            Some("false" | "False" | "FALSE") => Some(false),
            _ => None,
        }
    }

    /// Reads the value as a whole number within `bounds`. `None` after reporting another value.
    pub(crate) fn whole(&self, bounds: RangeInclusive<u64>) -> Option<u64> {
        let number = self.whole_if_within(&bounds);
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if number.is_none() {
            match *bounds.end() {
                // Only a number of more than 64 bits is too large.
                u64::MAX if self.text_if_any().is_none_or(|text| text.parse::<u64>().is_ok() || !is_digits(text)) => {
                    self.must_hinting(
                        format_args!("be a whole number of at least {}", bounds.start()),
                        self.hint_for_number(),
                    );
                }
                end => self.must_hinting(
                    format_args!("be a whole number from {} to {end}", bounds.start()),
                    self.hint_for_number(),
                ),
            }
        }
        number
    }

    /// Reads the value as a whole number within `bounds`. `None`, without a report, for any other value.
    pub(crate) fn whole_if_within(&self, bounds: &RangeInclusive<u64>) -> Option<u64> {
        let digits = self.number().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|text| text.parse().ok()).filter(|number| bounds.contains(number))
    }

    /// Reads the value as a number above zero with at most three decimals, without rounding. `None` after reporting
    /// another value.
    pub(crate) fn cost(&self) -> Option<Cost> {
        self.amount(&AMOUNT, exact)
    }

    /// Reads the value as a number of zero or more with at most three decimals, without rounding. `None` after
    /// reporting another value.
    pub(crate) fn cost_from_zero(&self) -> Option<Cost> {
        self.amount(&AMOUNT_FROM_ZERO, exact)
    }

    /// Reads the value as an amount of zero or more in this format, without rounding. `None` after reporting another value.
    pub(crate) fn amount_from_zero(&self, format: AmountFormat) -> Option<Cost> {
        match format {
            AmountFormat::Number => self.cost_from_zero(),
            AmountFormat::Dollars => self.amount(&AMOUNT_OR_MONEY_FROM_ZERO, money::parse),
        }
    }

    /// Reads the value as an amount of money above zero, in USD, without rounding. `None` after reporting another value.
    pub(crate) fn money(&self) -> Option<Cost> {
        self.amount(&AMOUNT_OR_MONEY, money::parse)
    }

    fn amount(&self, shape: &Shape, parse: fn(&str) -> Option<Cost>) -> Option<Cost> {
        self.check(shape)?;
        let number = self.number().and_then(parse);
        let number = number.filter(|number| *number < Cost::from_tokens(u64::MAX));
        if number.is_none() {
            self.must(shape.must());
        }
        number
    }

    /// Returns the text of a value that is a number. `None`, without a report, for any other value.
    pub(crate) fn number(&self) -> Option<&'t str> {
        let scalar = self.scalar()?;
        matches!(scalar.kind(), Kind::Number | Kind::Reference).then_some(&*scalar.text)
    }

    /// Reads the value as a duration, such as `250ms`, `20s`, `5m`, `1h` or `1d`. `None` after reporting another value.
    pub(crate) fn duration(&self) -> Option<Micros> {
        let duration = self.text_of(&DURATION).and_then(duration::parse);
        if duration.is_none() {
            self.must_hinting(DURATION.must(), self.hint_for_duration());
        }
        duration
    }

    /// Reads the value as a duration above zero. `None` after reporting another value.
    pub(crate) fn positive_duration(&self) -> Option<Micros> {
        let duration = self.duration()?;
        if duration == Micros(0) {
            self.must("be longer than 0");
            return None;
        }
        Some(duration)
    }

    /// Reads the value as an IP address with a port. `None` after reporting another value.
    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        let address = self.text_of(&SOCKET_ADDRESS).and_then(|text| text.parse().ok());
        if address.is_none() {
            self.must(SOCKET_ADDRESS.must());
        }
        address
    }

    /// Reads the value as a network, such as `10.0.0.0/8`, or as an IP address. `None` after reporting another value.
    pub(crate) fn network(&self) -> Option<IpNet> {
        let network = self.text_of(&NETWORK).and_then(network::parse);
        match network {
            None => self.must(NETWORK.must()),
            Some(network) if network.addr() != network.network() => {
                let what =
                    format!("{network} is the whole network {}: the address in it says nothing", network.trunc());
                self.report.note_host_bits(self.position, &self.path, what);
            }
            Some(_) => {}
        }
        network
    }

    /// Returns the choice whose name is the value. `None` after reporting that no choice has this name.
    pub(crate) fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        choices.get(self.word(&names)?).map(|(_, choice)| *choice)
    }

    /// Returns the choice whose name is the value, as [`Self::choice`] does. `must` is the message, without a list of the names.
    pub(crate) fn choice_of<T: Copy>(&self, choices: &[(&'static str, T)], must: &str) -> Option<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        choices.get(self.word_or(&names, must)?).map(|(_, choice)| *choice)
    }

    /// Returns the index of the value among these words. `None` after reporting another value.
    pub(crate) fn word(&self, words: &[&str]) -> Option<usize> {
        self.word_or(words, format_args!("be {}", listed(words)))
    }

    fn word_or(&self, words: &[&str], must: impl fmt::Display) -> Option<usize> {
        let text = self.text_if_any();
        let found = words.iter().position(|word| Some(*word) == text);
        if found.is_none() {
            let hint = text.and_then(|text| nearest(text, words).or_else(|| word_of_others(text, words)));
            self.must_hinting(must, hint);
        }
        found
    }

    /// Returns the text of a single value that has this shape. `None` for any other value.
    fn text_of(&self, shape: &Shape) -> Option<&'t str> {
        self.text_if_any().filter(|_| self.has_shape(shape))
    }

    /// Returns the choice whose name is the most similar to the value. `None`, without a report, if no name is similar enough.
    pub(crate) fn similar_choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let similar = nearest_name(&self.scalar()?.text, &names)?;
        choices.iter().find(|(name, _)| *name == similar).map(|(_, choice)| *choice)
    }
}

/// Parses an amount with at most three decimals.
fn exact(text: &str) -> Option<Cost> {
    Cost::parse(text.as_bytes(), ExtraDecimals::Refuse)
}
