//! Says whether reports may show a value, and takes the values that they may not show out of messages.

use std::borrow::Cow;

/// Whether a report may show a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disclosure {
    #[default]
    Shown,
    /// An environment variable is part of the value.
    FromVariable,
    /// The value may be a secret.
    Hidden,
}

impl Disclosure {
    /// Returns why a report does not show the value. `None`: it shows it.
    pub(crate) fn why_not(self) -> Option<&'static str> {
        match self {
            Disclosure::Shown => None,
            Disclosure::FromVariable => Some("the value is not shown: it comes from a variable"),
            Disclosure::Hidden => Some("the value is not shown: it may hold a secret"),
        }
    }
}

/// Returns the message with `…` in place of each quoted part that is a part of `text`.
pub(crate) fn without_quotations(message: &str, text: &str) -> String {
    let escaped = text.escape_debug().to_string();
    let is_of_text = |part: &str| !part.is_empty() && (text.contains(part) || escaped.contains(part));
    let parts = message.split('`').enumerate();
    // The parts at odd indexes are those between quotation marks.
    let shown = parts.map(|(index, part)| if index % 2 == 1 && is_of_text(part) { "…" } else { part });
    shown.collect::<Vec<_>>().join("`")
}

/// Words that end the name of a secret.
const SECRETS: [&str; 4] = ["password", "secret", "token", "_key"];

/// Returns the text up to a secret in it, as in `a password:…`: two lines are one text if the space after the colon is missing.
pub(crate) fn without_secret(text: &str) -> Cow<'_, str> {
    let ends = text.match_indices(':').map(|(at, _)| text.split_at(at).0);
    match ends.into_iter().find(|before| SECRETS.iter().any(|secret| before.ends_with(secret))) {
        Some(before) => Cow::Owned(format!("{before}:…")),
        None => Cow::Borrowed(text),
    }
}

/// The texts that no message of a report may have in it: values of environment variables, and secrets in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConcealedTexts(Vec<String>);

impl ConcealedTexts {
    /// The shortest text that is looked for, in bytes. A shorter text may be a part of any word.
    const SHORTEST: usize = 8;

    /// Adds the lines of a text.
    pub(crate) fn add(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| line.len() >= Self::SHORTEST) {
            for form in [line.to_owned(), line.escape_debug().to_string()] {
                if !self.0.contains(&form) {
                    self.0.push(form);
                }
            }
        }
    }

    /// Replaces these texts in a message by `…`.
    pub(crate) fn remove_from(&self, message: &mut String) {
        for text in self.0.iter().filter(|text| !text.is_empty()) {
            if message.contains(text) {
                *message = message.replace(text, "…");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_of_the_text_are_taken_out() {
        for (message, text, shown) in [
            ("`jwt:x` needs `jwt`", "Bearer {jwt:x}", "`…` needs `…`"),
            ("`a\\nb` is no name", "a\nb", "`…` is no name"),
            ("`kid` is missing", "hunter2", "`kid` is missing"),
            ("must be text", "text", "must be text"),
        ] {
            assert_eq!(without_quotations(message, text), shown);
        }
    }

    #[test]
    fn a_secret_behind_its_name_is_taken_out() {
        assert_eq!(without_secret("a password:hunter2"), "a password:…");
        assert_eq!(without_secret("http://a:9000"), "http://a:9000");
    }

    #[test]
    fn a_concealed_text_is_found_in_every_form() {
        let mut concealed = ConcealedTexts::default();
        concealed.add("short");
        concealed.add(" sk-\"secret\"-1\n-second-line-\n");
        let mut message = "short, sk-\"secret\"-1, sk-\\\"secret\\\"-1, is -second-line-".to_owned();
        concealed.remove_from(&mut message);
        assert_eq!(message, "short, …, …, is …");
    }
}
