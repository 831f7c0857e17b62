//! Reads Kong's plugin `key-auth`: where requests have their keys, and whether upstreams see them.

use super::super::Losses;
use super::values::{get, text_of, texts};
use crate::language::tree::Node;

/// Where requests have API keys.
#[derive(Clone, Debug)]
pub(super) struct KeyAuth {
    /// The places, as `from` of `api_keys` names them.
    pub places: Vec<String>,
    /// Whether keys are taken out of requests.
    pub is_hidden: bool,
}

impl KeyAuth {
    /// Reads a plugin. Adds a loss for what is different here.
    pub(super) fn read(plugin: &Node, file: &str, losses: &mut Losses) -> KeyAuth {
        let config = get(plugin, "config");
        let is = |key: &str, value: &str| config.is_some_and(|config| text_of(config, key) == Some(value));
        let mut names = config.map_or_else(Vec::new, |config| texts(config, "key_names"));
        if names.is_empty() {
            names.push("apikey".to_owned());
        }
        let in_header = !is("key_in_header", "false");
        let mut places = Vec::new();
        for name in names {
            if in_header {
                places.push(format!("header:{}", name.to_ascii_lowercase()));
            }
            if is("key_in_query", "true") || !in_header {
                places.push(format!("query:{name}"));
            }
        }
        if is("key_in_body", "true") {
            losses.add(file, plugin.position, "config.key_in_body", "is not imported");
        }
        if config.is_none_or(|config| get(config, "anonymous").is_none()) {
            let what = "answers 401 without a key, and here such a request passes: begin a policy with the rule \
                        {name: key, match: {key:id: {present: false}}, action: deny}";
            losses.add(file, plugin.position, "key-auth", what);
        }
        KeyAuth { places, is_hidden: is("hide_credentials", "true") }
    }
}
