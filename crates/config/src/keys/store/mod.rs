//! Reads `store`: where buckets are stored.

pub(crate) mod breaker;
pub(crate) mod cluster;
pub(crate) mod home;
pub(crate) mod host_ports;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod sentinel;
pub(crate) mod store_login;
pub(crate) mod store_role;

use serde_json::json;

use crate::keys::store::breaker::{BREAKER, breaker};
use crate::keys::store::home::{HOME, Home, home};
use crate::keys::store::postgres::{POSTGRES, postgres as read_postgres};
use crate::keys::store::redis::{REDIS, redis as read_redis};
use crate::keys::store::store_role::StoreRole;
use crate::language::duration::{self, units};
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, Type};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::time::Micros;
use stores::memory::bucket_file::BucketFileSettings;
use stores::{Settings, memory};

/// A larger number of gateways is a typing error, because each gateway's share of a limit would be almost zero.
const MOST_GATEWAYS: u64 = 1_000;

pub(crate) static STORE: Mapping = Mapping {
    heading: Some("key in `store`"),
    definition: None,
    keys: &[
        Key::optional("memory", Type::Mapping(&MEMORY), "Buckets live in the process."),
        Key::optional("redis", Type::Mapping(&REDIS), "Buckets live in a Redis."),
        Key::optional("postgres", Type::Mapping(&POSTGRES), "Buckets live in a PostgreSQL."),
        Key::default("breaker", Type::Mapping(&BREAKER), "{}", "When a shared store is not asked for a while."),
        Key::default(
            "gateways",
            Type::Whole { least: 1, most: MOST_GATEWAYS },
            "1",
            "The least number of gateways that share the limits, by which `local` divides.",
        ),
        Key::optional(
            "home",
            Type::Mapping(&HOME),
            "Where limits with `scope: global` live, which hold over several regions.",
        ),
    ],
    constraints: || {
        json!({
            "dependencies": {
                "redis": {"properties": {"memory": false, "postgres": false}},
                "postgres": {"properties": {"memory": false, "redis": false}},
                "gateways": {"anyOf": [{"required": ["redis"]}, {"required": ["postgres"]}]}
            }
        })
    },
};

static MEMORY: Mapping = Mapping {
    heading: Some("key in `memory`"),
    definition: None,
    keys: &[
        Key::default(
            "max_buckets",
            Type::Whole { least: 1, most: 1_000_000_000 },
            "1000000",
            "The largest number of buckets that are kept.",
        ),
        Key::optional("file", PATH, "Keeps buckets over a restart and a crash. Each gateway needs its own."),
        Key::default(
            "save_every",
            SAVE_EVERY.declared(),
            "1m",
            "How often `file` is written, which is what a crash may forget.",
        ),
    ],
    constraints: || json!({"dependencies": {"save_every": ["file"]}}),
};

/// The interval at which the file is written. A shorter interval would keep a disk busy all the time.
const SAVE_EVERY: ValueKind<ParseText<Micros>> = ValueKind::reporting(
    "duration of at least `1s`",
    Shape::Text(Text::new(
        Scalars::Spelling,
        &[concat!("^(0*[1-9][0-9]*(", units!(), ")|0*[1-9][0-9]{3,}ms)$")],
        "be a duration of at least 1s, like 10s, 1m or 1h",
    )),
    duration::parse,
    |field, _| {
        if field.duration().is_some() {
            field.must("be at least 1s");
        }
    },
);

/// Reads the store of this region, and the home of the limits that hold over several regions.
pub(crate) fn store(field: Field<'_>, environment: Environment<'_>) -> Option<(Settings, Option<Home>)> {
    if !field.is_map() {
        let hint = match field.text_if_any() {
            Some("memory") => "write `store: {memory: {}}`, or leave it out",
            Some("postgres") => "write `store: {postgres: {url: \"postgres://USER@HOST/DATABASE\"}}`",
            _ => "write `store: {redis: {url: \"redis://HOST:6379\"}}`",
        };
        // Only a plain word is shown in the message. Any other text may contain a password.
        let is_name = field.text_if_any().is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_alphabetic()));
        let field = if is_name { field } else { field.hidden() };
        field.must_hinting("be a mapping", Some(hint.to_owned()));
        return None;
    }
    let section = field.section(&STORE)?;
    let memory = section.optional("memory", |field| memory(field, environment));
    let breaker = section.value("breaker", breaker);
    let redis = section.optional("redis", |field| read_redis(field.hidden(), environment, StoreRole::Region));
    let postgres = section.optional("postgres", |field| read_postgres(field.hidden(), environment, StoreRole::Region));
    let gateways = section.whole("gateways");
    let home = section.optional("home", |field| home(field, environment));
    let present: Vec<&str> = ["redis", "postgres", "memory"].into_iter().filter(|key| section.has(key)).collect();
    if matches!(present[..], [] | ["memory"]) && section.has("gateways") {
        section.unwanted("gateways", "must stand beside `redis` or `postgres`: buckets in memory are not shared");
    }
    let several = match present[..] {
        [first, ref others @ ..] => {
            for key in others {
                let what = format_args!("must not stand beside `{first}`: buckets live in one place");
                section.unwanted(key, what);
            }
            !others.is_empty()
        }
        [] => false,
    };
    section.close();
    let settings = match (memory?, redis?, postgres?) {
        _ if several => None,
        (_, Some(redis), _) => Some(stores::redis::Settings { breaker: breaker?, gateways: gateways?, ..redis }.into()),
        (_, _, Some(postgres)) => {
            Some(stores::postgres::Settings { breaker: breaker?, gateways: gateways?, ..postgres }.into())
        }
        // The memory store never fails, so it needs no breaker.
        (memory, None, None) => breaker.and(gateways).map(|_| memory.unwrap_or_default().into()),
    };
    settings.zip(home)
}

fn memory(field: Field<'_>, environment: Environment<'_>) -> Option<memory::Settings> {
    let section = field.section(&MEMORY)?;
    let max_buckets = section.count("max_buckets");
    let path = section.optional("file", |field| environment.new_file(&field));
    let save_every = section.value("save_every", |field| SAVE_EVERY.read(field));
    if !section.has("file") {
        section.unwanted("save_every", "must stand beside `file`");
    }
    section.close();
    let (path, save_every) = (path?, save_every?);
    Some(memory::Settings { max_buckets: max_buckets?, file: path.map(|path| BucketFileSettings { path, save_every }) })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::language::problem::Report;
    use crate::language::tree;

    #[test]
    fn the_declared_defaults_are_those_of_the_settings() {
        let report = Report::default();
        let tree = tree::read(b"{}", &report).unwrap();
        let root = Field::root(&tree, &report);
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let environment = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
        assert_eq!(memory(root.clone(), environment), Some(memory::Settings::default()));
        assert_eq!(breaker(root), Some(stores::breaker::Settings::default()));
    }
}
