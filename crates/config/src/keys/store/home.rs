//! Reads `home` in `store`: where limits live that hold over several regions, and which regions there are.

use std::collections::HashSet;

use serde_json::json;

use crate::keys::rules::scope::{HomeFailure, HomeTerms};
use crate::keys::store::breaker::{BREAKER, breaker};
use crate::keys::store::postgres::{HOME_POSTGRES, postgres};
use crate::keys::store::redis::{HOME_REDIS, redis};
use crate::keys::store::store_role::StoreRole;
use crate::language::duration;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, NAME, POSITIVE_DURATION, Type, names};
use crate::language::reader::{Field, Section, all};
use crate::language::shape::{List, Shape};
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types;
use base::time::Micros;
use ledger::algorithm::fixed_window;
use stores::Settings;

/// The largest number of regions. With more, almost nothing of a limit could lie in the purse of each.
const MOST_REGIONS: usize = 64;

/// The longest time for which a region waits or keeps what it does not use, as long as the longest window.
const LONGEST: Micros = fixed_window::LONGEST;

const REGIONS: ValueKind<ReadField<Vec<String>>> = ValueKind::new(
    "list of 1 to 64 names, made like that of a rule",
    Shape::List(List {
        most: MOST_REGIONS,
        members: "regions",
        unique: true,
        ..List::non_empty(&value_types::NAME, "have at least one region")
    }),
    regions,
);

/// What happens while home gives no answer.
const ON_FAILURE: [(&str, HomeFailure); 2] = [("deny", HomeFailure::Deny), ("local", HomeFailure::Local)];

pub(crate) static HOME: Mapping = Mapping {
    heading: Some("key in `home`"),
    definition: None,
    keys: &[
        Key::optional("redis", Type::Mapping(&HOME_REDIS), "Home is a Redis: the keys of `store.redis` but `timeout`."),
        Key::optional(
            "postgres",
            Type::Mapping(&HOME_POSTGRES),
            "Home is a PostgreSQL: the keys of `store.postgres` but `timeout`.",
        ),
        Key::default(
            "timeout",
            POSITIVE_DURATION,
            "500ms",
            "How long an answer of home is expected, and how long a request waits for it.",
        ),
        Key::required("region", NAME, "The region of this gateway, one of `regions`."),
        Key::required("regions", REGIONS.declared(), "All regions that share limits; the same in every region."),
        Key::depends(
            "return_after",
            POSITIVE_DURATION,
            "3 % of the limit's window, at least 10s",
            "How long a region keeps what it does not use, and how long home is believed to have nothing.",
        ),
        Key::default("breaker", Type::Mapping(&BREAKER), "{}", "When home is not asked for a while."),
        Key::default(
            "on_failure",
            Type::Choice(&names(&ON_FAILURE)),
            "deny",
            "What decides about requests that a purse cannot pay while home gives no answer: `deny` answers 503, `local` is the region's share of the limit.",
        ),
    ],
    constraints: || json!({"oneOf": [{"required": ["redis"]}, {"required": ["postgres"]}]}),
};

/// Where limits live that hold over several regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub store: Settings,
    /// How long an answer is expected.
    pub timeout: Micros,
    /// The region of this gateway, one of the regions.
    pub region: String,
    pub regions: Vec<String>,
    /// After how long a region gives back what it does not use. `None`: it depends on the limit.
    pub return_after: Option<Micros>,
    pub on_failure: HomeFailure,
}

impl Home {
    /// Returns the home in force after a reload of a file with `newer` in place of this one. Another store, or another region of this
    /// gateway, needs a restart, and is only accepted without limits that live at home. So does another `timeout`.
    pub(crate) fn with_reload_of(&self, newer: &Home) -> Home {
        match self.store.has_same_buckets(&newer.store) && self.region == newer.region {
            true => Home { store: self.store.with_login_of(&newer.store), timeout: self.timeout, ..newer.clone() },
            false => self.clone(),
        }
    }

    /// Returns the names of the keys that differ in `newer`, and take effect only after a restart.
    pub(crate) fn restart_keys(&self, newer: &Home) -> Vec<&'static str> {
        let is_other_store = !self.store.has_same_buckets(&newer.store);
        let store = self.store.with_login_of(&newer.store).with_timeout(newer.timeout);
        let changes = [
            (is_other_store || store != newer.store, "store.home"),
            (self.region != newer.region, "store.home.region"),
            (self.timeout != newer.timeout, "store.home.timeout"),
        ];
        changes.into_iter().filter(|(is, _)| *is).map(|(_, key)| key).collect()
    }

    /// Returns what differs in `newer` and takes effect with a reload.
    pub(crate) fn changes(&self, newer: &Home) -> Vec<String> {
        let changes = [self, newer].map(|home| {
            let on_failure = ON_FAILURE.iter().find(|(_, failure)| *failure == home.on_failure);
            [
                ("regions", format!("[{}]", home.regions.join(", "))),
                ("return_after", home.return_after.map_or_else(|| "unset".to_owned(), duration::print)),
                ("on_failure", on_failure.map_or_else(String::new, |(name, _)| (*name).to_owned())),
            ]
        });
        let [before, after] = changes;
        let pairs = before.into_iter().zip(after).filter(|((_, was), (_, is))| was != is);
        pairs.map(|((key, was), (_, is))| format!("{key} was {was}, is {is}")).collect()
    }

    /// Returns what the limits of the file need to know of home.
    pub(crate) fn terms(&self) -> HomeTerms {
        let regions = u64::try_from(self.regions.len()).unwrap_or(u64::MAX);
        HomeTerms { regions, timeout: self.timeout, return_after: self.return_after, on_failure: self.on_failure }
    }
}

pub(crate) fn home(field: Field<'_>, environment: Environment<'_>) -> Option<Home> {
    if !field.is_map() {
        let hint = "write `home: {redis: {url: \"redis://HOST:6379\"}, region: HERE, regions: [HERE, THERE]}`";
        // The value may be a URL with a password.
        field.hidden().must_hinting("be a mapping", Some(hint.to_owned()));
        return None;
    }
    let section = field.section(&HOME)?;
    let breaker = section.value("breaker", breaker);
    let on_failure = section.choice("on_failure", &ON_FAILURE);
    let timeout = section.value("timeout", up_to_a_year);
    let role = StoreRole::Home { timeout };
    let redis = section.optional("redis", |field| redis(field.hidden(), environment, role));
    let postgres = section.optional("postgres", |field| postgres(field.hidden(), environment, role));
    let is_one = match (section.has("redis"), section.has("postgres")) {
        (true, true) => {
            section.unwanted("postgres", "must not stand beside `redis`: a limit has one home");
            false
        }
        (false, false) => {
            section.wrong("redis", "missing; home is a `redis` or a `postgres`");
            false
        }
        _ => true,
    };
    let return_after = section.optional("return_after", up_to_a_year);
    let regions = section.need("regions").and_then(|field| REGIONS.read(field));
    let region = region(&section, regions.as_deref());
    section.close();
    let (timeout, breaker, on_failure) = (timeout?, breaker?, on_failure?);
    let store: Settings = match (redis?, postgres?) {
        _ if !is_one => return None,
        (Some(redis), _) => stores::redis::Settings { breaker, ..redis }.into(),
        (None, Some(postgres)) => stores::postgres::Settings { breaker, ..postgres }.into(),
        (None, None) => return None,
    };
    Some(Home { store, timeout, region: region?, regions: regions?, return_after: return_after?, on_failure })
}

/// Reads a time that leases can count.
fn up_to_a_year(field: Field<'_>) -> Option<Micros> {
    let time = field.positive_duration()?;
    if time > LONGEST {
        field.must("be at most 366d");
        return None;
    }
    Some(time)
}

/// Reads the names of all regions. Each may be listed only once.
fn regions(field: Field<'_>) -> Option<Vec<String>> {
    let mut seen = HashSet::new();
    all(field.list()?, |member| {
        member.check(&value_types::NAME)?;
        let name = member.written()?;
        if !seen.insert(name) {
            member.wrong(format_args!("must be unique, `{name}` is there twice"), None);
            return None;
        }
        Some(name.to_owned())
    })
}

/// Reads the region of this gateway. An unknown region becomes the first one.
fn region(section: &Section<'_>, regions: Option<&[String]>) -> Option<String> {
    let field = section.need("region")?;
    let first = regions.and_then(<[String]>::first);
    if field.is_unknown() {
        return first.cloned();
    }
    field.check(&value_types::NAME)?;
    let region = field.written()?;
    if regions.is_some_and(|regions| !regions.iter().any(|one| one == region)) {
        field.must("be one of `regions`");
        return None;
    }
    Some(region.to_owned())
}
