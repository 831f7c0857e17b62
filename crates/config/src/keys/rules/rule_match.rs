//! Reads `match`: the conditions of a policy, a rule or an exemption.

use std::net::IpAddr;

use serde_json::json;

use crate::keys::rules::attribute::AttributeReader;
use crate::keys::rules::list_files::{LIST, cidr_file, in_file};
use crate::language::environment::Environment;
use crate::language::key::{BOOLEAN, Key, Mapping, TEXT, Type};
use crate::language::reader::{Field, Section, all};
use crate::language::shape::{Definition, List, Shape};
use crate::language::value_kind::ValueKind;
use crate::language::value_types::{NETWORK, SCALAR};
use base::position::Position;
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use request::matcher::{Expectation, Text};
use rules::rule::Condition;

pub(crate) const CONDITIONS: Type =
    Type::Own { text: "mapping", shape: Shape::Conditions { definition: "conditions", least: 0, empty: "" } };

/// Reads an operator. The result depends on the attribute, which is `None` if it is invalid.
type ReadOperator = fn(Field<'_>, Option<&Attribute>) -> Option<Expectation>;

const CIDR: ValueKind<ReadOperator> = ValueKind::new(
    "network or list of networks",
    Shape::OneOrList(List::non_empty(&NETWORK, "have at least one network")),
    |field, attribute| {
        if attribute.is_some_and(|attribute| *attribute != Attribute::Address) {
            field.wrong("`cidr` is for ip:address only", None);
            return None;
        }
        all(field.one_or_list()?, |member| member.network()).map(Expectation::Cidr)
    },
);

/// The values of a condition: a list, or a single value without brackets.
const TEXTS: Shape = Shape::Defined(&Definition {
    name: "texts",
    shape: Shape::OneOrList(List::non_empty(&SCALAR, "have at least one value")),
});

const IN: Type = Type::Own { text: "list", shape: Shape::List(List::non_empty(&SCALAR, "have at least one value")) };

pub(crate) static OPERATORS: Mapping = Mapping {
    heading: Some("operator"),
    definition: Some("operators"),
    keys: &[
        Key::optional("in", IN, "The value is equal to one of these."),
        Key::optional(
            "not",
            Type::Own { text: "text or list", shape: TEXTS },
            "The value is equal to none of these, or missing.",
        ),
        Key::optional("prefix", TEXT, "The value begins with this."),
        Key::optional("suffix", TEXT, "The value ends with this."),
        Key::optional(
            "regex",
            Type::Own { text: "pattern", shape: SCALAR },
            "The pattern is found in the value; `^` and `$` anchor it. No look-around, no back-references.",
        ),
        Key::optional("present", BOOLEAN, "`true`: the attribute has a value. `false`: it has none."),
        Key::optional("cidr", CIDR.declared(), "The whole address is in one of these networks."),
        Key::optional("in_file", LIST, "The value is equal to an entry of this file; not for `ip:address`."),
        Key::optional("cidr_file", LIST, "The whole address is in a network of this file."),
    ],
    constraints: || json!({"minProperties": 1}),
};

/// Reads conditions. Values in the file are normalised like values of requests, so that equal values have equal bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConditionReader<'k> {
    pub attributes: AttributeReader<'k>,
    /// The number of bits at the start of an IPv6 address that identify one client.
    pub ipv6_prefix: u8,
    /// Gives access to the files that gateway.yaml names, such as the files of lists.
    pub environment: Environment<'k>,
}

impl ConditionReader<'_> {
    /// Reads the `match` of a policy or rule. Returns no conditions if the key is missing. `None` after reporting a problem.
    pub(crate) fn matches(&self, section: &Section<'_>) -> Option<Vec<Condition>> {
        section.get("match").map_or(Some(Vec::new()), |field| self.conditions(&field))
    }

    /// Reads a mapping in which each key is an attribute, and its value the expectation. `None` after reporting a problem.
    pub(crate) fn conditions(&self, field: &Field<'_>) -> Option<Vec<Condition>> {
        let read = |(name, position, field): (&str, Position, Field<'_>)| {
            let attribute = self.attributes.attribute_of_rule(&field.clone().at(position), name);
            let expectation = self.expectation(&field, attribute.as_ref());
            Some(Condition { attribute: attribute?, expectation: expectation? })
        };
        let conditions: Vec<_> = field.pairs()?.into_iter().map(read).collect();
        conditions.into_iter().collect()
    }

    fn expectation(&self, field: &Field<'_>, attribute: Option<&Attribute>) -> Option<Expectation> {
        if !field.is_map() {
            return self.texts(field, attribute).map(Expectation::AnyOf);
        }
        let section = field.clone().section(&OPERATORS)?;
        let source = attribute.map(Attribute::source);
        let is_lower = source == Some(&Attribute::Host) || attribute.is_some_and(|one| one.folding().is_lower());
        let bytes = |field: Field<'_>| {
            let written = field.written()?;
            Some(if is_lower { written.to_ascii_lowercase() } else { written.to_owned() }.into_bytes())
        };
        let operators = [
            section
                .get("in")
                .map(|field| field.list().and_then(|_| self.texts(&field, attribute)).map(Expectation::AnyOf)),
            section.get("not").map(|field| self.texts(&field, attribute).map(Expectation::Not)),
            section.get("prefix").map(|field| bytes(field).map(Expectation::Prefix)),
            section.get("suffix").map(|field| bytes(field).map(Expectation::Suffix)),
            section.get("regex").map(|field| regex(&field)),
            section.get("present").map(|field| field.boolean().map(Expectation::Present)),
            section.get("cidr").map(|field| (CIDR.checked(&field)?)(field, attribute)),
            section.get("in_file").map(|field| in_file(&field, attribute, self.environment)),
            section.get("cidr_file").map(|field| cidr_file(&field, attribute, self.environment)),
        ];
        section.close();
        let mut operators: Vec<_> = operators.into_iter().flatten().collect::<Option<_>>()?;
        match operators.len() {
            // A mapping that is not empty has an unknown operator, which has already been reported.
            0 if field.is_empty() => {
                field.must("name at least one of in, not, prefix, suffix, regex, present, cidr, in_file and cidr_file");
                None
            }
            0 | 1 => operators.pop(),
            _ => Some(Expectation::All(operators)),
        }
    }

    fn texts(&self, field: &Field<'_>, attribute: Option<&Attribute>) -> Option<Vec<Text>> {
        field.check(&TEXTS)?;
        all(field.one_or_list()?, |member| self.text(&member, attribute))
    }

    /// Reads a text of a condition, and changes it like the values of this attribute in requests.
    fn text(&self, field: &Field<'_>, attribute: Option<&Attribute>) -> Option<Text> {
        let written = &*attribute.map(Attribute::folding).unwrap_or_default().of_text(field.written()?);
        match attribute.map(Attribute::source) {
            Some(Attribute::Path) => Some(Text::for_path(written)),
            Some(Attribute::Host) => Some(Text::for_host(written)),
            Some(Attribute::Address) => match written.parse::<IpAddr>() {
                Ok(address) => Some(Text::exact(&ClientAddress::new(address, self.ipv6_prefix).to_string())),
                Err(_) => {
                    field.must_hinting("be an IP address", Some("for a network write {cidr: [10.0.0.0/8]}".to_owned()));
                    None
                }
            },
            _ => Some(Text::exact(written)),
        }
    }
}

fn regex(field: &Field<'_>) -> Option<Expectation> {
    match regex::bytes::Regex::new(field.written()?) {
        Ok(regex) => Some(Expectation::Regex(regex)),
        Err(error) => {
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
            field.must(format_args!("be a regular expression ({why})"));
            None
        }
    }
}
