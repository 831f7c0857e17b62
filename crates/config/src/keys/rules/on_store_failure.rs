//! Reads `on_store_failure`, for the file or for one rule: what happens to a request while the store does not answer.

use crate::language::key::{Type, names};
use crate::language::reader::Field;
use rules::rule::OnStoreFailure;

const CHOICES: [(&str, OnStoreFailure); 3] =
    [("local", OnStoreFailure::Local), ("allow", OnStoreFailure::Allow), ("deny", OnStoreFailure::Deny)];

pub(crate) const ON_STORE_FAILURE: Type = Type::Choice(&names(&CHOICES));

pub(crate) fn on_store_failure(field: Field<'_>) -> Option<OnStoreFailure> {
    field.choice(&CHOICES)
}
