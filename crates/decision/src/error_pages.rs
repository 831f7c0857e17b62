//! Holds the operator's texts for responses of the gateway (`error_pages`), and inserts values of a response.

use http::HeaderValue;
use http::header::HeaderName;

use request::request::Request;
use rules::rule::{Condition, hold};

/// The entries of `error_pages`. The first entry that matches a request and the response's status gives the response's body.
#[derive(Clone, Debug)]
pub struct ErrorPages(pub Vec<ErrorPage>);

#[derive(Clone, Debug)]
pub struct ErrorPage {
    pub conditions: Vec<Condition>,
    /// The statuses for which the page is used. An empty list means every status.
    pub statuses: Vec<u16>,
    pub body: Template,
    pub content_type: HeaderValue,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl ErrorPages {
    /// Returns the page for a response with this status, and the page's index. `request` is `None` if its head could
    /// not be read: then only pages without conditions match.
    pub fn find(&self, request: Option<&Request<'_>>, status: u16) -> Option<(usize, &ErrorPage)> {
        let is_for = |page: &ErrorPage| {
            (page.statuses.is_empty() || page.statuses.contains(&status))
                && match request {
                    Some(request) => hold(&page.conditions, request),
                    None => page.conditions.is_empty(),
                }
        };
        self.0.iter().enumerate().find(|(_, page)| is_for(page))
    }
}

/// The values of a response that a page can show.
#[derive(Clone, Copy, Debug)]
pub struct PlaceholderValues<'f> {
    pub status: u16,
    pub request_id: &'f str,
    /// The value of `Retry-After` in seconds, if the response has this field.
    pub retry_after: Option<u64>,
}

/// A text with the placeholders `{request_id}`, `{retry_after}` and `{status}`. All other braces stay unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    syntax: Syntax,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    RequestId,
    RetryAfter,
    Status,
}

const PLACEHOLDERS: [(&str, Part); 3] =
    [("{request_id}", Part::RequestId), ("{retry_after}", Part::RetryAfter), ("{status}", Part::Status)];

/// The syntax of a text, which determines how values in it are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    Plain,
    Markup,
    Json,
}

impl Syntax {
    /// Returns the syntax for the type of a body, such as `text/html` or `application/problem+json; charset=utf-8`.
    fn of(content_type: &str) -> Syntax {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.rsplit(['/', '+']).next() {
            Some("html" | "xml") => Syntax::Markup,
            Some("json") => Syntax::Json,
            _ => Syntax::Plain,
        }
    }
}

impl Template {
    pub fn new(text: &str, content_type: &str) -> Template {
        let mut parts = Vec::new();
        let (mut text_from, mut at) = (0, 0);
        while let Some(found) = text.get(at..).and_then(|rest| rest.find('{')) {
            at += found;
            let rest = text.get(at..).unwrap_or_default();
            match PLACEHOLDERS.iter().find(|(name, _)| rest.starts_with(name)) {
                Some((name, part)) => {
                    push_text(&mut parts, text.get(text_from..at).unwrap_or_default());
                    parts.push(part.clone());
                    at += name.len();
                    text_from = at;
                }
                None => at += 1,
            }
        }
        push_text(&mut parts, text.get(text_from..).unwrap_or_default());
        Template { parts, syntax: Syntax::of(content_type) }
    }

    /// Returns the text with the values of a response in place of the placeholders. If the response has no `Retry-After`,
    /// `{retry_after}` becomes empty, or `null` in JSON.
    pub fn fill(&self, placeholder_values: PlaceholderValues<'_>) -> String {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::RequestId => self.push_escaped(&mut filled, placeholder_values.request_id),
                Part::Status => filled.push_str(&placeholder_values.status.to_string()),
                Part::RetryAfter => match placeholder_values.retry_after {
                    Some(seconds) => filled.push_str(&seconds.to_string()),
                    None if self.syntax == Syntax::Json => filled.push_str("null"),
                    None => {}
                },
            }
        }
        filled
    }

    /// Appends a value with the escapes of the syntax.
    fn push_escaped(&self, filled: &mut String, text: &str) {
        for character in text.chars() {
            match (self.syntax, character) {
                (Syntax::Markup, '&') => filled.push_str("&amp;"),
                (Syntax::Markup, '<') => filled.push_str("&lt;"),
                (Syntax::Markup, '>') => filled.push_str("&gt;"),
                (Syntax::Markup, '"') => filled.push_str("&quot;"),
                (Syntax::Markup, '\'') => filled.push_str("&#39;"),
                (Syntax::Json, '"' | '\\') => filled.extend(['\\', character]),
                (Syntax::Json, character) if character.is_control() => {
                    filled.push_str(&format!("\\u{:04x}", u32::from(character)));
                }
                _ => filled.push(character),
            }
        }
    }
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_rules::{has_header, head, request};
    use super::*;

    fn filled(text: &str, content_type: &str, request_id: &str, retry_after: Option<u64>) -> String {
        Template::new(text, content_type).fill(PlaceholderValues { status: 429, request_id, retry_after })
    }

    #[test]
    fn placeholders_are_filled_in_and_other_braces_stay() {
        let text = "a{}b{status}{{retry_after}}{request_id} {x} p{color:red} é{statu {status";
        let expected = "a{}b429{7}id {x} p{color:red} é{statu {status";
        assert_eq!(filled(text, "text/plain", "id", Some(7)), expected);
        assert_eq!(filled("in {retry_after} s", "text/html", "id", None), "in  s");
        assert_eq!(filled(r#"{"in":{retry_after}}"#, "application/json", "id", None), r#"{"in":null}"#);
        assert_eq!(filled("", "text/html", "id", None), "");
    }

    #[test]
    fn what_is_filled_in_is_escaped_for_the_type_of_the_text() {
        let id = "<a>&\"'\\\n";
        for (content_type, expected) in [
            ("text/html; charset=utf-8", "&lt;a&gt;&amp;&quot;&#39;\\\n"),
            ("application/xhtml+xml", "&lt;a&gt;&amp;&quot;&#39;\\\n"),
            ("Application/Problem+JSON", "<a>&\\\"'\\\\\\u000a"),
            ("text/plain", id),
        ] {
            assert_eq!(filled("{request_id}", content_type, id, None), expected, "{content_type}");
        }
    }

    #[test]
    fn the_first_page_for_the_request_and_the_status_is_taken() {
        let page = |conditions, statuses: &[u16]| ErrorPage {
            conditions,
            statuses: statuses.to_vec(),
            body: Template::new("", ""),
            content_type: HeaderValue::from_static("text/html"),
            headers: Vec::new(),
        };
        let pages = ErrorPages(vec![page(vec![has_header("x-a")], &[429]), page(Vec::new(), &[429, 503])]);
        let with = head(&[("x-a", "1")]);
        let without = head(&[]);
        let find = |request: Option<&Request<'_>>, status| pages.find(request, status).map(|(index, _)| index);
        assert_eq!(find(Some(&request(&with)), 429), Some(0));
        assert_eq!(find(Some(&request(&without)), 429), Some(1));
        assert_eq!(find(Some(&request(&with)), 503), Some(1));
        assert_eq!(find(Some(&request(&with)), 401), None);
        assert_eq!(find(None, 429), Some(1));
    }
}
