//! Reads `usage`: the path at which clients ask what they have left, and the limit of such requests.

use crate::keys::routes::path_rewrite::normal_path;
use crate::keys::rules::algorithms::token_bucket::{NUMBERS, fixed_bucket};
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use ledger::algorithm::token_bucket::TokenBucket;
use request::path::normalise;
use request::request::Request;

/// The settings of the path at which clients ask what they have left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The path in its normalised form.
    path: String,
    /// The limit of such requests, for each client address.
    pub limit: TokenBucket,
}

impl Usage {
    /// Whether this request is one to the path.
    pub fn is_asked(&self, request: &Request<'_>) -> bool {
        normalise(request.head.uri.path().as_bytes()).is_ok_and(|path| *path == *self.path.as_bytes())
    }
}

const USAGE_PATH: ValueKind<ParseText<String>> = ValueKind::new(
    "path",
    Shape::Text(Text::new(Scalars::Spelling, &["^/"], "be a path in its normalised form, like /.well-known/ratelimit")),
    normal_path,
);

pub(crate) static USAGE: Mapping = Mapping {
    heading: Some("key in `usage`"),
    definition: None,
    keys: &[
        Key::required("path", USAGE_PATH.declared(), "The path of these requests, on every listener without `decide`."),
        Key::default(
            "limit",
            Type::Mapping(&NUMBERS),
            "{rps: 1, burst: 10}",
            "These requests for each client address. Beyond: 429.",
        ),
    ],
    constraints: unconstrained,
};

pub(crate) fn usage(field: Field<'_>) -> Option<Usage> {
    let section = field.section(&USAGE)?;
    let path = section.need("path").and_then(|field| USAGE_PATH.read(field));
    let limit = section.value("limit", |field| {
        let section = field.section(&NUMBERS)?;
        let bucket = fixed_bucket(&section);
        section.close();
        bucket
    });
    section.close();
    Some(Usage { path: path?, limit: limit? })
}
