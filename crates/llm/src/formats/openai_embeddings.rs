//! OpenAI's embeddings: `POST …/v1/embeddings`. An answer has no text.

use std::sync::LazyLock;

use super::request_table::RequestRole;
use super::table::{Role, Table};
use crate::usage::Count;

pub(super) static WHOLE: LazyLock<Table> = LazyLock::new(|| {
    Table::new([
        ("/model", Role::Model),
        ("/usage", Role::Usage),
        // Some servers send only the total, which is the same.
        ("/usage/total_tokens", Role::Tokens(Count::Input)),
        ("/usage/prompt_tokens", Role::Tokens(Count::Input)),
    ])
});

/// The pointers into a request, each with the meaning of its value. The answer to this request has no tokens of output.
pub(super) const REQUEST: &[(&str, RequestRole)] = &[("/model", RequestRole::Model)];
