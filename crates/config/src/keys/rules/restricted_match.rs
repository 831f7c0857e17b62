//! Reads a `match` in which only some attributes may be used, such as the `match` of a route.

use crate::keys::rules::attribute::{AttributeReader, TlsAttributes};
use crate::keys::rules::rule_match::ConditionReader;
use crate::language::environment::Environment;
use crate::language::reader::Field;
use request::attribute::Attribute;
use rules::rule::Condition;

/// Reads conditions in a place where only some attributes may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restriction<'e> {
    /// The number of bits at the start of an IPv6 address that identify one client.
    pub ipv6_prefix: u8,
    pub tls: TlsAttributes,
    pub environment: Environment<'e>,
}

impl Restriction<'_> {
    /// Reads conditions. `why_not` returns the reason why an attribute may not be used here, or `None`. The result is
    /// `None` after reporting a problem.
    pub(crate) fn conditions(
        self,
        field: &Field<'_>,
        why_not: impl Fn(&Attribute) -> Option<&'static str>,
    ) -> Option<Vec<Condition>> {
        // Credentials may not be used here, so a missing configuration of credentials is not reported.
        let attributes = AttributeReader { jwt: true, api_keys: true, tls: TlsAttributes::All, columns: None };
        let conditions = ConditionReader { attributes, ipv6_prefix: self.ipv6_prefix, environment: self.environment };
        let conditions = conditions.conditions(field);
        let mut valid = true;
        for (name, position, member) in field.pairs()? {
            let Ok(attribute) = Attribute::parse(name) else { continue };
            let attribute = attribute.source();
            let without_tls = *attribute == Attribute::TlsServerName && self.tls == TlsAttributes::Missing;
            let missing = without_tls.then_some("a `tls:` attribute needs a listener with `tls`");
            let Some(why) = why_not(attribute).or(missing) else { continue };
            member.at(position).wrong(format_args!("`{}`: {why}", name.escape_debug()), None);
            valid = false;
        }
        conditions.filter(|_| valid)
    }
}

/// Whether the attribute comes from credentials: a token, an API key or a certificate.
pub(crate) fn is_of_credentials(attribute: &Attribute) -> bool {
    matches!(
        attribute,
        Attribute::Claim(_)
            | Attribute::Words(_)
            | Attribute::ClaimedAmount(_)
            | Attribute::KeyId
            | Attribute::KeyPlan
            | Attribute::KeyColumn(_)
            | Attribute::TlsClient(_)
    )
}
