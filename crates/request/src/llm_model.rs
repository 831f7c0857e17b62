//! Finds the model that a request to a language model asks for: in its path, or in its JSON body.
//!
//! The model is read from the normalised path, as in rules about paths, because an upstream may unescape the path.

use std::borrow::Cow;

use http::Method;
use http::request::Parts;
use llm::formats::{Endpoint, Format};

use super::path;

/// Returns the format of a request to a language model. `None` for another method or path, and for a path that can be
/// read in more than one way.
pub fn format_of(head: &Parts) -> Option<Format> {
    if head.method != Method::POST {
        return None;
    }
    let path = path::normalise(head.uri.path().as_bytes()).ok()?;
    Endpoint::of_path(&path).map(|endpoint| endpoint.format)
}

/// Returns the model that the path of a request names. `None` if the path names no model.
pub fn model_in_path(head: &Parts) -> Option<String> {
    match ModelPlace::of(head) {
        ModelPlace::Path(model) => Some(String::from_utf8_lossy(&model).into_owned()),
        ModelPlace::Body | ModelPlace::Nowhere => None,
    }
}

/// The part of a request that names the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelPlace<'r> {
    /// The path names this model.
    Path(Cow<'r, [u8]>),
    /// The JSON body names the model in its member `model`.
    Body,
    /// The request is not for a language model.
    Nowhere,
}

impl<'r> ModelPlace<'r> {
    pub(crate) fn of(head: &'r Parts) -> ModelPlace<'r> {
        if head.method != Method::POST {
            return ModelPlace::Nowhere;
        }
        // A path with more than one reading names no model here, because it is refused before any rule reads it.
        let endpoint = match path::normalise(head.uri.path().as_bytes()) {
            Ok(Cow::Borrowed(path)) => Endpoint::of_path(path).map(|endpoint| endpoint.model.map(Cow::Borrowed)),
            Ok(Cow::Owned(path)) => {
                Endpoint::of_path(&path).map(|endpoint| endpoint.model.map(|model| Cow::Owned(model.to_vec())))
            }
            Err(path::Unreadable) => None,
        };
        match endpoint {
            None => ModelPlace::Nowhere,
            Some(None) => ModelPlace::Body,
            Some(Some(model)) => ModelPlace::Path(model),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, target: &str, expected: &ModelPlace<'_>) {
        let (head, ()) = http::Request::builder().method(method).uri(target).body(()).unwrap().into_parts();
        assert_eq!(ModelPlace::of(&head), *expected, "{method} {target}");
    }

    #[test]
    fn the_path_says_where_the_model_is() {
        let path = |model: &'static str| ModelPlace::Path(Cow::Borrowed(model.as_bytes()));
        check("POST", "/v1/chat/completions", &ModelPlace::Body);
        check("POST", "/v1/chat/%63ompletions?a=b", &ModelPlace::Body);
        check("POST", "/x/../v1//messages;a=b", &ModelPlace::Body);
        check("POST", "/openai/deployments/gpt-4o/chat/completions", &path("gpt-4o"));
        check("POST", "/v1beta/models/gemini%2D2.5:generateContent", &path("gemini-2.5"));
        check("GET", "/v1/chat/completions", &ModelPlace::Nowhere);
        check("POST", "/v1/models", &ModelPlace::Nowhere);
        check("POST", "/v1/chat%2fcompletions", &ModelPlace::Nowhere);
    }
}
