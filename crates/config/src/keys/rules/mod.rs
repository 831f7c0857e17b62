//! Reads rules: the requests that each rule matches, and what the rule charges or does.

pub(crate) mod algorithms;
pub(crate) mod attribute;
pub(crate) mod ban;
pub(crate) mod claimed_number;
pub(crate) mod cost;
pub(crate) mod exempt;
pub(crate) mod expires;
pub(crate) mod limit_keys;
pub(crate) mod list_files;
pub(crate) mod meters;
pub(crate) mod names;
pub(crate) mod on_store_failure;
pub(crate) mod overrides;
pub(crate) mod overrides_file;
pub(crate) mod policies;
pub(crate) mod reserve;
pub(crate) mod restricted_match;
pub(crate) mod rule_limits;
pub(crate) mod rule_match;
pub(crate) mod scope;
pub(crate) mod settled_cost;
pub(crate) mod weights;

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::keys::rules::ban::BAN;
use crate::keys::rules::claimed_number::NumberReader;
use crate::keys::rules::expires::{EXPIRES, expires};
use crate::keys::rules::limit_keys::LIMIT_KEYS;
use crate::keys::rules::list_files::LIST;
use crate::keys::rules::meters::Meters;
use crate::keys::rules::names::unique;
use crate::keys::rules::on_store_failure::{ON_STORE_FAILURE, on_store_failure};
use crate::keys::rules::overrides::OverrideReader;
use crate::keys::rules::rule_limits::{SharedSettings, WrittenExpose, rule_limits};
use crate::keys::rules::rule_match::{CONDITIONS, ConditionReader};
use crate::keys::rules::scope::{HomeTerms, LEASE, SCOPE};
use crate::language::key::{BOOLEAN, Key, Mapping, NAME, Type, names};
use crate::language::reader::{Field, Section, all};
use crate::language::shape::Shape;
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types::NAME_PATTERN;
use rules::rule::{Action, Expose, Limit, LimitKey, Mode, OnStoreFailure, Otherwise, RefusalStatus, Rule};

const MODES: [(&str, Mode); 2] = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow)];
const ACTIONS: [(&str, Otherwise); 2] = [("allow", Otherwise::Allow), ("deny", Otherwise::Deny)];
const STATUSES: [(&str, RefusalStatus); 2] =
    [("429", RefusalStatus::QuotaExceeded), ("503", RefusalStatus::ReducedCapacity)];
/// The keys that are only allowed in a rule that charges.
const OF_CHARGES: [&str; 12] = [
    "algorithm",
    "algorithm_config",
    "limits",
    "meter",
    "ban",
    "scope",
    "lease",
    "overrides",
    "overrides_file",
    "expose",
    "status",
    "on_store_failure",
];

pub(crate) const MODE: Type = Type::Choice(&names(&MODES));

const STATUS: ValueKind<ReadField<RefusalStatus>> =
    ValueKind::new("`429`, `503`", Shape::Numerals(&names(&STATUSES)), |field| field.choice(&STATUSES));

pub(crate) static RULE: Mapping = Mapping {
    heading: Some("key of a rule"),
    definition: Some("rule"),
    keys: &[
        Key::required(
            "name",
            NAME,
            "1 to 64 of letters, digits, `_`, `.` and `-`; unique, shown to clients and in metrics.",
        ),
        Key::optional("match", CONDITIONS, "Conditions; all must hold."),
        Key::depends(
            "limit_keys",
            LIMIT_KEYS.declared(),
            "required, unless there is an `action`",
            "Attributes; each set of their values has its own bucket.",
        ),
        algorithms::ALGORITHM,
        Key::optional("algorithm_config", Type::OneOf(algorithms::LIMIT), "The numbers of one limit."),
        Key::optional("limits", Type::NamedOneOf(algorithms::LIMIT), "Several limits, instead of `algorithm_config`."),
        Key::optional("meter", NAME, "The counter that it shares with other rules."),
        BAN,
        SCOPE,
        LEASE,
        Key::optional("overrides", Type::NamedOneOf(algorithms::NUMBERS), "Other numbers for some values."),
        Key::optional("overrides_file", LIST, "Overrides in a file."),
        Key::depends(
            "expose",
            BOOLEAN,
            "`true`; `false` for `limit_keys: []` and for limits on money",
            "Whether clients see the rule's name and numbers.",
        ),
        Key::default(
            "status",
            STATUS.declared(),
            "429",
            "The status of a refusal: of the client's own limit, or of one for all.",
        ),
        Key::default("mode", MODE, "enforce", "`shadow` counts and refuses nothing."),
        Key::depends("on_store_failure", ON_STORE_FAILURE, "that of the file", "The same for the limits of this rule."),
        Key::optional(
            "action",
            Type::Choice(&names(&ACTIONS)),
            "Instead of limits: `allow` ends the policy without a charge, `deny` refuses with 403.",
        ),
        Key::optional("expires", EXPIRES.declared(), "With an `action`: when the rule ends, by RFC 3339."),
    ],
    constraints: rule_constraints,
};

fn rule_constraints() -> Value {
    let without_charges: Value = OF_CHARGES.iter().map(|key| ((*key).to_owned(), json!(false))).collect();
    let mut constraints = json!({
        "dependencies": {
            "expires": ["action"],
            "limits": {"properties": {
                "algorithm_config": false,
                "meter": false,
                "ban": false,
                "scope": false,
                "lease": false,
                "overrides": {"additionalProperties": {"additionalProperties": {
                    "type": "object",
                    "additionalProperties": true
                }}}
            }},
            "algorithm_config": {"properties": {
                "overrides": {"additionalProperties": {"additionalProperties": {
                    "not": {"type": "object", "additionalProperties": true}
                }}}
            }},
            "overrides": {"properties": {"limit_keys": {"minItems": 1}}},
            "overrides_file": {"properties": {"limit_keys": {"minItems": 1}}}
        },
        "allOf": [
            {"properties": {"limits": {
                "minProperties": 1,
                "propertyNames": {
                    "pattern": NAME_PATTERN,
                    "patternErrorMessage": "must be 1 to 64 of letters, digits, _ . and -"
                }
            }}},
            {
                "if": {
                    "properties": {"limit_keys": {
                        "type": "array",
                        "anyOf": [{"minItems": 2}, {"contains": {"type": "string", "pattern": "\\|"}}]
                    }},
                    "required": ["limit_keys"]
                },
                "then": {"properties": {"overrides": {"propertyNames": {
                    "pattern": "^[^=]+=",
                    "patternErrorMessage": "must name the limit key that it is a value of: attribute=value"
                }}}}
            },
            {
                "if": {"required": ["action"]},
                "then": {"properties": without_charges},
                "else": {"required": ["limit_keys"], "anyOf": [{"required": ["algorithm_config"]}, {"required": ["limits"]}]}
            },
            {
                "if": {"properties": {"mode": {"const": "shadow"}}, "required": ["mode"]},
                "then": {"$ref": "#/definitions/without_candidates"}
            }
        ]
    });
    if let Some(all) = constraints.get_mut("allOf").and_then(Value::as_array_mut) {
        all.extend(algorithms::rule_constraints());
    }
    constraints
}

/// The settings outside of `rules` that affect how every rule is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleDefaults<'k> {
    pub conditions: ConditionReader<'k>,
    /// The value of `on_store_failure` for a rule that has no value of its own.
    pub on_store_failure: OnStoreFailure,
    pub has_prices: bool,
    /// What limits over several regions need to know of home. `None` if the file has no home.
    pub home: Option<HomeTerms>,
}

/// Reads the rules of all policies of a file. Remembers the names of rules and limits.
#[derive(Debug)]
pub(crate) struct RuleReader<'k> {
    pub defaults: RuleDefaults<'k>,
    /// The names of rules, and the names of limits as clients see them.
    names: HashSet<String>,
    meters: Meters,
}

/// Reads the `mode` of a policy or rule: enforced, or only counted.
pub(crate) fn mode(section: &Section<'_>) -> Option<Mode> {
    section.choice("mode", &MODES)
}

impl<'k> RuleReader<'k> {
    pub(crate) fn new(defaults: RuleDefaults<'k>) -> RuleReader<'k> {
        RuleReader { defaults, names: HashSet::new(), meters: Meters::default() }
    }

    /// Reads the rules of one policy. `of_policy` is the mode of this policy.
    pub(crate) fn rules(&mut self, field: Field<'_>, of_policy: Mode) -> Option<Vec<Rule>> {
        self.meters.begin_policy();
        all(field.list_of_mappings()?, |member| self.rule(member, of_policy))
    }

    fn rule(&mut self, field: Field<'_>, of_policy: Mode) -> Option<Rule> {
        self.meters.begin_rule();
        let whole = field.clone();
        let section = field.section(&RULE)?;
        let name = unique(&section, &mut self.names);
        let conditions = self.defaults.conditions.matches(&section);
        let mode = mode(&section);
        let action = match section.get("action") {
            Some(field) => self.action(&section, &field),
            None => self.charges(&section),
        };
        let until = expires(&section);
        section.close();
        let ((action, keys), position) = (action?, whole.position());
        let rule = Rule { name: name?, conditions: conditions?, keys, mode: mode?, action, until: until?, position };
        self.check_shown(&whole, rule, of_policy)
    }

    /// Reads an `action`, and the limit keys beside it.
    fn action(&self, section: &Section<'_>, field: &Field<'_>) -> Option<(Action, Vec<LimitKey>)> {
        for key in OF_CHARGES {
            section.unwanted(key, "must not stand beside `action`, which charges nothing");
        }
        let action = field.choice(&ACTIONS).map(|action| match action {
            Otherwise::Allow => Action::Allow,
            Otherwise::Deny => Action::Deny,
        });
        let keys = section.get("limit_keys").map_or(Some(Vec::new()), |field| self.limit_keys(&field));
        action.zip(keys)
    }

    /// Reads the charges of a rule, and its limit keys.
    fn charges(&mut self, section: &Section<'_>) -> Option<(Action, Vec<LimitKey>)> {
        let keys = section.need("limit_keys").and_then(|field| self.limit_keys(&field));
        let expose = match section.get("expose") {
            Some(field) => {
                field.boolean().map(|expose| WrittenExpose::Written(if expose { Expose::Yes } else { Expose::No }))
            }
            // Without limit keys, all clients share one bucket. Its level would tell about other clients' traffic.
            None if keys.as_ref().is_some_and(Vec::is_empty) => Some(WrittenExpose::Default(Expose::No)),
            None => Some(WrittenExpose::Default(Expose::Yes)),
        };
        let refusal = section.value("status", |field| STATUS.read(field));
        let (on_store_failure, global_on_store_failure) = match section.get("on_store_failure") {
            Some(field) => {
                let written = on_store_failure(field);
                (written, written)
            }
            // Each gateway that decides alone would exceed a limit over several regions.
            None => (Some(self.defaults.on_store_failure), Some(OnStoreFailure::Deny)),
        };
        // Invalid settings have been reported. The limits are still checked, so that their problems are reported too.
        let shared = SharedSettings {
            expose: expose.unwrap_or(WrittenExpose::Default(Expose::Yes)),
            refusal: refusal.unwrap_or(RefusalStatus::QuotaExceeded),
            on_store_failure: on_store_failure.unwrap_or(OnStoreFailure::Local),
            global_on_store_failure: global_on_store_failure.unwrap_or(OnStoreFailure::Deny),
            has_prices: self.defaults.has_prices,
            home: self.defaults.home,
            numbers: NumberReader::new(self.defaults.conditions.attributes),
        };
        let ipv6_prefix = self.defaults.conditions.ipv6_prefix;
        let environment = self.defaults.conditions.environment;
        let overrides = OverrideReader { keys: keys.as_deref(), ipv6_prefix, environment };
        let limits = rule_limits(section, shared, overrides, &mut self.meters);
        let (keys, limits) = (keys?, limits?);
        expose.and(refusal).and(on_store_failure).map(|_| (Action::Charge(limits), keys))
    }

    fn limit_keys(&self, field: &Field<'_>) -> Option<Vec<LimitKey>> {
        (LIMIT_KEYS.checked(field)?)(field.clone(), self.defaults.conditions.attributes)
    }

    /// Checks the names of a rule that clients would see. Each of several limits is shown as `rule.limit`, which must
    /// not be the name of another rule. A limit in shadow mode must not have a `shadow`.
    fn check_shown(&mut self, field: &Field<'_>, rule: Rule, of_policy: Mode) -> Option<Rule> {
        let Action::Charge(limits) = &rule.action else { return Some(rule) };
        for limit in limits.iter().filter(|limit| !limit.name.is_empty()) {
            let shown = format!("{}.{}", rule.name, limit.name);
            if !self.names.insert(shown.clone()) {
                field.wrong(format_args!("a limit is shown as `{shown}`, which must be unique"), None);
                return None;
            }
        }
        let candidate = |limit: &Limit| limit.candidate.is_some();
        if (of_policy == Mode::Shadow || rule.mode == Mode::Shadow) && limits.iter().any(candidate) {
            field.wrong("`shadow` beside a limit's numbers must not be under `mode: shadow`", None);
            return None;
        }
        Some(rule)
    }
}
