//! Defines the value of an attribute in one request: no value, a single value, or the elements of a list.

use std::borrow::Cow;
use std::net::IpAddr;

use super::attribute::Folding;
use super::claim_list::ClaimList;
use super::matcher::Expectation;

/// The value of an attribute in one request.
#[derive(Clone, Debug)]
pub enum AttributeValue<'r> {
    Missing,
    Single(Cow<'r, [u8]>),
    /// The elements of a claim. A limit key counts a list as missing.
    List(ClaimList<'r>),
}

impl<'r> From<Option<Cow<'r, [u8]>>> for AttributeValue<'r> {
    fn from(value: Option<Cow<'r, [u8]>>) -> AttributeValue<'r> {
        value.map_or(AttributeValue::Missing, AttributeValue::Single)
    }
}

impl<'r> AttributeValue<'r> {
    /// Returns the value with each of its elements changed.
    pub(crate) fn folded(self, folding: Folding) -> AttributeValue<'r> {
        match self {
            AttributeValue::Missing => AttributeValue::Missing,
            AttributeValue::Single(value) => folding.of_value(value).into(),
            AttributeValue::List(list) => {
                let list = list.folded(folding);
                if list.any(|_| true) { AttributeValue::List(list) } else { AttributeValue::Missing }
            }
        }
    }

    /// Returns the single value, which a limit key can count by. `None` if the value is missing or a list.
    pub fn single(&self) -> Option<&[u8]> {
        match self {
            AttributeValue::Single(value) => Some(value),
            AttributeValue::Missing | AttributeValue::List(_) => None,
        }
    }
}

impl Expectation {
    /// Whether the value meets the expectation. `client` is the address of the client, for comparison with networks.
    pub fn holds_for(&self, value: &AttributeValue<'_>, client: IpAddr) -> bool {
        match value {
            AttributeValue::List(list) => self.holds_for_list(list, client),
            single => self.holds(single.single(), client),
        }
    }

    /// Checks each operator separately, because different elements of the list may meet different operators.
    fn holds_for_list(&self, list: &ClaimList<'_>, client: IpAddr) -> bool {
        match self {
            Expectation::All(each) => each.iter().all(|one| one.holds_for_list(list, client)),
            Expectation::Not(texts) => !list.any(|element| texts.iter().any(|text| text.equals(element))),
            Expectation::Present(present) => *present,
            Expectation::AnyOf(_)
            | Expectation::Prefix(_)
            | Expectation::Suffix(_)
            | Expectation::Regex(_)
            | Expectation::Cidr(_)
            | Expectation::InFile(_)
            | Expectation::CidrFile(_) => list.any(|element| self.holds(Some(element), client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use regex::bytes::Regex;
    use serde_json::{Value, json};

    use super::super::identity::Claims;
    use super::super::matcher::Text;
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn claims(claim: Value) -> Claims {
        Claims::new([("c".to_owned(), claim)].into_iter().collect(), None)
    }

    fn texts(texts: &[&str]) -> Vec<Text> {
        texts.iter().map(|text| Text::exact(text)).collect()
    }

    #[track_caller]
    fn check(expectation: &Expectation, claim: &Value, holds: bool) {
        assert_eq!(expectation.holds_for(&claims(claim.clone()).value("c"), CLIENT), holds, "{expectation} of {claim}");
    }

    #[test]
    fn an_expectation_holds_for_a_list_when_it_does_for_one_element() {
        let prefix = || Expectation::Prefix(b"team-".to_vec());
        let suffix = || Expectation::Suffix(b"-lead".to_vec());
        let regex = Expectation::Regex(Regex::new("^[0-9]+$").unwrap());
        for (expectation, claim, holds) in [
            (Expectation::AnyOf(texts(&["admin"])), json!(["dev", "admin"]), true),
            (Expectation::AnyOf(texts(&["admin"])), json!(["dev", "admins"]), false),
            (Expectation::AnyOf(texts(&["7", "x"])), json!(["dev", 7]), true),
            (Expectation::Not(texts(&["banned"])), json!(["dev", "banned"]), false),
            (Expectation::Not(texts(&["banned", "dev"])), json!(["ops", "qa"]), true),
            (prefix(), json!(["dev", "team-a"]), true),
            (suffix(), json!(["dev", "team-a"]), false),
            (regex.clone(), json!(["a", 42]), true),
            (regex, json!(["4 2"]), false),
            // Each operator may be met by a different element.
            (Expectation::All(vec![prefix(), suffix()]), json!(["team-a", "qa-lead"]), true),
            (Expectation::All(vec![prefix(), Expectation::Not(texts(&["x"]))]), json!(["team-a", "x"]), false),
            (Expectation::Present(true), json!(["a"]), true),
            (Expectation::Present(false), json!(["a"]), false),
            // A list that is empty, or that contains other types, counts as missing.
            (Expectation::Present(true), json!([]), false),
            (Expectation::Present(false), json!([]), true),
            (Expectation::Present(false), json!(["a", true]), true),
            (Expectation::AnyOf(texts(&["a"])), json!(["a", true]), false),
            (Expectation::AnyOf(texts(&["a"])), json!(["a", ["b"]]), false),
            (Expectation::Not(texts(&["a"])), json!(["a", null]), true),
            (Expectation::Not(texts(&["a"])), json!([]), true),
        ] {
            check(&expectation, &claim, holds);
        }
    }

    #[test]
    fn a_list_is_no_value_to_count_by() {
        assert_eq!(claims(json!(["a"])).value("c").single(), None);
        assert_eq!(claims(json!("a")).value("c").single(), Some(&b"a"[..]));
        assert_eq!(claims(json!("a b")).words("c").single(), None);
    }

    #[test]
    fn a_list_makes_no_value_larger() {
        assert_eq!(size_of::<Option<AttributeValue<'_>>>(), size_of::<Option<Cow<'_, [u8]>>>());
    }

    fn expectation() -> impl Strategy<Value = Expectation> {
        let some = || prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", "7", ""]), 1..3);
        let one = prop_oneof![
            some().prop_map(|some| Expectation::AnyOf(texts(&some))),
            some().prop_map(|some| Expectation::Not(texts(&some))),
            "[ab7]{0,2}".prop_map(|text| Expectation::Prefix(text.into_bytes())),
            "[ab7]{0,2}".prop_map(|text| Expectation::Suffix(text.into_bytes())),
            "[ab7]{0,2}".prop_map(|text| Expectation::Regex(Regex::new(&text).unwrap())),
            any::<bool>().prop_map(Expectation::Present),
        ];
        prop_oneof![3 => one.clone(), 1 => prop::collection::vec(one, 2..4).prop_map(Expectation::All)]
    }

    proptest! {
        #[test]
        fn a_list_of_one_element_matches_as_the_element_does(
            expectation in expectation(),
            element in prop_oneof!["[ab7]{0,3}".prop_map(Value::from), any::<i64>().prop_map(Value::from)],
        ) {
            let holds = |claim: Value| expectation.holds_for(&claims(claim).value("c"), CLIENT);
            prop_assert_eq!(holds(json!([element])), holds(element.clone()));
            // A text that is a single word gives the same result as its words. An empty text has no words.
            if element != json!("") {
                let words = claims(element.clone());
                prop_assert_eq!(expectation.holds_for(&words.words("c"), CLIENT), holds(element));
            }
        }
    }
}
