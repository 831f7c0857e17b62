//! Counts the tokens that language models have used, by model and by kind of token.
//!
//! The names of models come from responses, so their number and their length are limited: a name beyond these limits counts as
//! [`OTHER`].

use std::collections::HashMap;
use std::sync::Arc;

use metrics::Counter;
use parking_lot::RwLock;

use super::registry::Registry;
use llm::usage::Usage;

/// The maximum number of models with series of their own.
const MAX_MODELS: usize = 100;
/// The longest name of such a model, in bytes.
const LONGEST_NAME: usize = 100;
/// The label of all models beyond [`MAX_MODELS`], and of names that cannot be labels.
const OTHER: &str = "other";
/// The label of responses that name no model.
const UNNAMED: &str = "unnamed";

#[derive(Debug)]
pub(crate) struct ModelTokens {
    registry: Arc<Registry>,
    models: RwLock<HashMap<Box<str>, Arc<KindCounters>>>,
}

/// The counters of one model.
#[derive(Debug)]
struct KindCounters {
    input: Counter,
    output: Counter,
    cached: Counter,
    cache_write: Counter,
}

impl ModelTokens {
    pub(crate) fn new(registry: &Arc<Registry>) -> ModelTokens {
        ModelTokens { registry: Arc::clone(registry), models: RwLock::default() }
    }

    /// Counts what one response has used. `model` is the name of its model. `None` if the response names no model.
    pub(crate) fn count(&self, model: Option<&str>, usage: &Usage) {
        let name = model.unwrap_or(UNNAMED);
        let name = if is_label(name) { name } else { OTHER };
        let known = self.models.read().get(name).map(Arc::clone);
        known.unwrap_or_else(|| self.add(name)).count(usage);
    }

    /// Returns the counters of a model, and makes them if the model is new. Beyond [`MAX_MODELS`], a new model has the
    /// counters of [`OTHER`].
    fn add(&self, name: &str) -> Arc<KindCounters> {
        let mut models = self.models.write();
        let is_further = models.len() >= MAX_MODELS && !models.contains_key(name);
        let name = if is_further { OTHER } else { name };
        Arc::clone(models.entry(name.into()).or_insert_with(|| Arc::new(KindCounters::new(name, &self.registry))))
    }
}

impl KindCounters {
    fn new(model: &str, registry: &Registry) -> KindCounters {
        let kind = |kind| registry.counter("tollgate_llm_tokens_total", &[("model", model), ("kind", kind)]);
        KindCounters {
            input: kind("input"),
            output: kind("output"),
            cached: kind("cached"),
            cache_write: kind("cache_write"),
        }
    }

    fn count(&self, usage: &Usage) {
        let Usage { input, output, cached, cache_write } = *usage;
        self.input.increment(input);
        self.output.increment(output);
        self.cached.increment(cached);
        self.cache_write.increment(cache_write);
    }
}

/// Returns whether a name may be a label: it is short, and has no character that the exporter would change.
fn is_label(name: &str) -> bool {
    name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: &str = "tollgate_llm_tokens_total";

    fn count(registry: &Registry, model: &str, kind: &str) -> Option<u64> {
        let readings = registry.counters(TOKENS);
        let of = readings.iter().find(|one| one.label("model") == model && one.label("kind") == kind);
        of.map(|reading| reading.value)
    }

    #[test]
    fn tokens_are_counted_by_model_and_kind() {
        let registry = Arc::new(Registry::default());
        let tokens = ModelTokens::new(&registry);
        let usage = Usage { input: 20, output: 3, cached: 7, cache_write: 1 };
        tokens.count(Some("m-1"), &usage);
        tokens.count(Some("m-1"), &usage);
        tokens.count(Some("vendor/m@2"), &usage);
        tokens.count(None, &usage);
        let of = |model| ["input", "output", "cached", "cache_write"].map(|kind| count(&registry, model, kind));
        assert_eq!(of("m-1"), [40, 6, 14, 2].map(Some));
        assert_eq!(of("vendor/m@2"), [20, 3, 7, 1].map(Some));
        assert_eq!(of("unnamed"), [20, 3, 7, 1].map(Some));
        assert_eq!((of("other"), of("m-2")), ([None; 4], [None; 4]));
    }

    #[test]
    fn many_long_and_strange_names_are_counted_together() {
        let registry = Arc::new(Registry::default());
        let tokens = ModelTokens::new(&registry);
        let usage = Usage { input: 1, ..Usage::default() };
        let long = "m".repeat(LONGEST_NAME + 1);
        for name in [long.as_str(), "a b", "a\nb", "a\"b", "a\\b", "mod\u{e8}le", "\u{202e}m"] {
            tokens.count(Some(name), &usage);
        }
        assert_eq!((count(&registry, OTHER, "input"), registry.counters(TOKENS).len()), (Some(7), 4));
        for _ in 0..2 {
            (0..MAX_MODELS + 5).for_each(|number| tokens.count(Some(&format!("m-{number}")), &usage));
        }
        // The label `other`, which the names in the first loop have, is one of the `MAX_MODELS` labels.
        assert_eq!(registry.counters(TOKENS).len(), 4 * MAX_MODELS);
        assert_eq!((count(&registry, OTHER, "input"), count(&registry, "m-98", "input")), (Some(7 + 12), Some(2)));
        assert_eq!(count(&registry, "m-99", "input"), None);
    }
}
