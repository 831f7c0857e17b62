//! Reads the rate limits of Kong's declarative file, and writes a gateway.yaml that limits the same requests.
//!
//! Of the plugins with one name that are bound to a request's consumer, route and service, Kong runs one: the one that is bound most
//! closely. In a policy the first rule that matches decides. So each name has a policy, the rules stand in that order, and routes in
//! the order in which Kong tries them. A route without a limit has a rule that allows, if others follow.

mod key_auth;
mod plugins;
mod routes;
mod values;

use std::collections::HashSet;

use super::gateway_yaml::scalar;
use super::names::unique;
use super::written_rules::{WrittenPolicy, WrittenRule, write};
use super::{Import, ImportedFile, Losses, checked};
use crate::language::problem::{Problem, Problems, Report};
use crate::language::tree::{self, Node, Value};
use key_auth::KeyAuth;
use plugins::{LimitPlugin, PluginKind, PluginStore, charge, store};
use routes::Route;
use values::{Kind, Names, get, members, name, text_of};

const HEAD: &str = "\
# Imported from Kong's declarative file by `tollgate import kong`.
#
# Only its rate limits are imported. A path matches whole segments here: /v1 does not match /v1x.
";

const KEYS: &str = "\
# Of each consumer, api-keys.txt has a line with its name as the id: see `tollgate key -h`.
";

const UPSTREAM: &str = "upstream: http://127.0.0.1:9000          # or `upstreams` and `routes`, for several services\n";

/// What an import has read of the file.
struct KongFile<'f> {
    name: &'f str,
    keys: Option<KeyAuth>,
    routes: Vec<Route>,
    plugins: Vec<LimitPlugin>,
    store: Option<PluginStore>,
}

/// Converts the rate limits of a declarative file of Kong to a gateway.yaml.
///
/// # Errors
/// When the file is no YAML, or no declarative file of Kong. A rule that gateway.yaml does not accept.
pub fn import_kong(file: &ImportedFile<'_>) -> Result<Import, Problems> {
    let report = Report::default();
    let mut problems = Vec::new();
    let root = tree::read(file.bytes, &report).map_err(|problem| problems.push(problem)).ok();
    problems.extend(report.into_problems());
    let root = root.filter(|_| problems.is_empty());
    let Some(root) = root.filter(|root| {
        let is_kong = get(root, "_format_version").is_some() && matches!(root.value, Value::Map(_));
        if !is_kong {
            let what = "must be a declarative file of Kong, with `_format_version`".to_owned();
            let position = Some(root.position);
            problems.push(Problem { file: None, position, path: String::new(), what, hint: None });
        }
        is_kong
    }) else {
        return Err(Problems { file: file.name.to_owned(), problems, warnings: Vec::new() });
    };
    let mut losses = Losses::default();
    let read = read(&root, file.name, &mut losses);
    let (mut policies, mut names) = (Vec::new(), HashSet::new());
    for (kind, name) in [(PluginKind::Simple, "kong"), (PluginKind::Advanced, "kong-advanced")] {
        policies.push(WrittenPolicy { name: name.to_owned(), rules: rules(&read, kind, &mut names, &mut losses) });
    }
    policies.retain(|policy| !policy.rules.is_empty());
    let mut losses = losses.0;
    losses.sort_by_key(|loss| loss.remark.position);
    checked(Import { text: write(HEAD, &settings(&read), &policies, &losses), losses })
}

fn settings(read: &KongFile<'_>) -> String {
    let mut text = UPSTREAM.to_owned();
    if let Some(PluginStore { host, port, is_fault_tolerant }) = &read.store {
        let failure = if *is_fault_tolerant { "allow" } else { "deny" };
        text.push_str(&format!("store: {{redis: {{url: \"redis://{host}:{port}\"}}}}\non_store_failure: {failure}\n"));
    }
    if let Some(KeyAuth { places, is_hidden }) = &read.keys {
        let places: Vec<String> = places.iter().map(|place| scalar(place)).collect();
        let forward = if *is_hidden { ", forward: false" } else { "" };
        text.push_str(KEYS);
        text.push_str(&format!("api_keys: {{from: [{}], file: api-keys.txt{forward}}}\n", places.join(", ")));
    }
    text
}

/// A plugin with the entities around it in the file, or to which it refers.
struct Bound<'n> {
    plugin: &'n Node,
    consumer: Option<String>,
    route: Option<String>,
    service: Option<String>,
}

/// The entities to which the plugins of the file are bound.
struct Binder<'f> {
    names: Names,
    file: &'f str,
}

impl Binder<'_> {
    /// Returns the plugins of a list, each with the entities around it and those to which it refers.
    fn plugins<'n>(&self, node: &'n Node, around: &[(Kind, &str)], losses: &mut Losses) -> Vec<Bound<'n>> {
        let is_enabled = |plugin: &&Node| text_of(plugin, "enabled") != Some("false");
        let bound = members(node, "plugins").iter().filter(is_enabled).filter_map(|plugin| {
            if let Some(group) = get(plugin, "consumer_group") {
                losses.add(self.file, group.position, "consumer_group", "is not imported: the plugin is left out");
                return None;
            }
            let mut of = |kind: Kind| match around.iter().find(|(other, _)| *other == kind) {
                Some((_, name)) => Some(Some((*name).to_owned())),
                None => self.names.referred(kind, plugin, self.file, losses),
            };
            let (consumer, route, service) = (of(Kind::Consumer), of(Kind::Route), of(Kind::Service));
            Some(Bound { plugin, consumer: consumer?, route: route?, service: service? })
        });
        bound.collect()
    }
}

fn read<'f>(root: &Node, file: &'f str, losses: &mut Losses) -> KongFile<'f> {
    let (mut routes, mut bound) = (Vec::new(), Vec::new());
    let binder = Binder { names: Names::read(root), file };
    if let Some(first) = members(root, "services").first() {
        losses.add(file, first.position, "services", "are not imported: set `upstream`, or `upstreams` and `routes`");
    }
    for service in members(root, "services") {
        let of = name(Kind::Service, service);
        bound.extend(binder.plugins(service, &[(Kind::Service, &of)], losses));
        for route in members(service, "routes") {
            routes.push(Route::read(route, Some(of.clone()), file, losses));
            bound.extend(binder.plugins(route, &[(Kind::Route, &name(Kind::Route, route))], losses));
        }
    }
    for route in members(root, "routes") {
        let service = binder.names.referred(Kind::Service, route, file, losses).flatten();
        routes.push(Route::read(route, service, file, losses));
        bound.extend(binder.plugins(route, &[(Kind::Route, &name(Kind::Route, route))], losses));
    }
    for consumer in members(root, "consumers") {
        bound.extend(binder.plugins(consumer, &[(Kind::Consumer, &name(Kind::Consumer, consumer))], losses));
    }
    bound.extend(binder.plugins(root, &[], losses));
    if let Some(groups) = get(root, "consumer_groups") {
        losses.add(file, groups.position, "consumer_groups", "are not imported");
    }
    Route::sort(&mut routes);
    let keys = bound.iter().find(|bound| text_of(bound.plugin, "name") == Some("key-auth"));
    let keys = keys.map(|bound| KeyAuth::read(bound.plugin, file, losses));
    let has_keys = keys.is_some();
    let (mut plugins, mut first_store): (Vec<LimitPlugin>, Option<PluginStore>) = (Vec::new(), None);
    let mut first_local = None;
    for Bound { plugin, consumer, route, service } in &bound {
        let position = plugin.position;
        match text_of(plugin, "name") {
            Some(kind @ ("rate-limiting" | "rate-limiting-advanced")) => {
                let kind = if kind == "rate-limiting" { PluginKind::Simple } else { PluginKind::Advanced };
                let charge = charge(plugin, has_keys, file, losses);
                let [consumer, route, service] = [consumer, route, service].map(Clone::clone);
                if consumer.is_some() && !has_keys {
                    losses.add(file, position, "consumer", "is not known without `key-auth`: the plugin is left out");
                    continue;
                }
                let Some(charge) = charge else { continue };
                plugins.push(LimitPlugin { position, kind, consumer, route, service, charge });
                let own = store(plugin, file, losses);
                if own.is_some() && first_store.is_some() && own != first_store {
                    let what = "counts in another Redis, or with another `fault_tolerant`, than a plugin before it";
                    losses.add(file, position, "config.redis", what);
                }
                if own.is_none() {
                    first_local = first_local.or(Some(position));
                }
                first_store = first_store.or(own);
            }
            Some("key-auth") => {}
            other => {
                let what = format!("the plugin {} is not imported", other.unwrap_or("without a name"));
                losses.add(file, position, "plugins", what);
            }
        }
    }
    if let (Some(position), Some(_)) = (first_local, &first_store) {
        let what =
            "counts in each node of Kong for itself, and here in the Redis of the others, with their `fault_tolerant`";
        losses.add(file, position, "config.policy", what);
    }
    KongFile { name: file, keys, routes, plugins, store: first_store }
}

/// Returns the rules of the plugins of this kind, in the order in which they decide.
fn rules(read: &KongFile<'_>, kind: PluginKind, names: &mut HashSet<String>, losses: &mut Losses) -> Vec<WrittenRule> {
    let mut rules: Vec<(Option<usize>, WrittenRule)> = Vec::new();
    let none = vec![Vec::new()];
    let mut add = |wanted: String, alternatives: &[Vec<String>], plugin: Option<usize>| {
        let found = plugin.and_then(|plugin| read.plugins.get(plugin));
        let consumer = found.and_then(|plugin| plugin.consumer.as_ref());
        let line = found.map(|plugin| plugin.position.line);
        for conditions in alternatives {
            let mut conditions = conditions.clone();
            conditions.extend(consumer.map(|consumer| format!("\"key:id\": {}", scalar(consumer))));
            let place = format!("{}:{}", read.name, line.unwrap_or(1));
            let charge = found.map(|plugin| plugin.charge.clone());
            rules.push((plugin, WrittenRule { name: wanted.clone(), place, conditions, is_shadow: false, charge }));
        }
    };
    let of_route = |name: &str| {
        let found = read.routes.iter().find(|route| route.name == name);
        found.map(|route| route.alternatives.clone()).unwrap_or_default()
    };
    let of_service = |name: &str| {
        let found = read.routes.iter().filter(|route| route.service.as_deref() == Some(name));
        found.flat_map(|route| route.alternatives.clone()).collect::<Vec<_>>()
    };
    // Plugins that are bound to a consumer decide first, and those that are also bound to a route before all others.
    let closeness = |plugin: &LimitPlugin| (plugin.route.is_none(), plugin.service.is_none());
    let of_kind = || read.plugins.iter().enumerate().filter(|(_, plugin)| plugin.kind == kind);
    let mut of_consumers: Vec<_> = of_kind().filter(|(_, one)| one.consumer.is_some()).collect();
    of_consumers.sort_by_key(|(_, plugin)| closeness(plugin));
    for (index, plugin) in of_consumers {
        let alternatives = match (&plugin.route, &plugin.service) {
            (Some(route), _) => of_route(route),
            (None, Some(service)) => of_service(service),
            (None, None) => none.clone(),
        };
        add(plugin.consumer.clone().unwrap_or_default(), &alternatives, Some(index));
    }
    let of_all = |wanted: &dyn Fn(&LimitPlugin) -> bool| {
        let found = of_kind().find(|(_, plugin)| plugin.consumer.is_none() && wanted(plugin));
        found.map(|(index, _)| index)
    };
    let global = of_all(&|plugin| plugin.route.is_none() && plugin.service.is_none());
    for route in &read.routes {
        let own = of_all(&|plugin| plugin.route.as_ref() == Some(&route.name));
        let of_service =
            || of_all(&|plugin| plugin.route.is_none() && plugin.service.is_some() && plugin.service == route.service);
        let plugin = own.or_else(of_service).or(global);
        let wanted = if plugin.is_some() { route.name.clone() } else { format!("no-limit-{}", route.name) };
        add(wanted, &route.alternatives, plugin);
    }
    if let Some(global) = global {
        // Rules of routes that only repeat the global limit are not needed.
        let is_only_global = |(plugin, rule): &(Option<usize>, WrittenRule)| {
            *plugin == Some(global) || rule.conditions.iter().any(|one| one.starts_with("\"key:id\""))
        };
        if rules.iter().all(is_only_global) {
            rules.retain(|(plugin, _)| *plugin != Some(global));
        }
        let (place, charge) = match read.plugins.get(global) {
            Some(plugin) => (format!("{}:{}", read.name, plugin.position.line), Some(plugin.charge.clone())),
            None => (read.name.to_owned(), None),
        };
        let (name, conditions) = ("global".to_owned(), Vec::new());
        rules.push((Some(global), WrittenRule { name, place, conditions, is_shadow: false, charge }));
    }
    while rules.last().is_some_and(|(_, last)| last.charge.is_none()) {
        rules.pop();
    }
    for (index, plugin) in of_kind() {
        if rules.iter().all(|(other, _)| *other != Some(index)) {
            let what = "no rule comes of this plugin: no request reaches it, or another plugin limits the same ones";
            losses.add(read.name, plugin.position, "plugins", what);
        }
    }
    named(rules, names)
}

/// Gives each rule a name of its own. Rules of one plugin share its counters.
fn named(rules: Vec<(Option<usize>, WrittenRule)>, names: &mut HashSet<String>) -> Vec<WrittenRule> {
    let count = |plugin: Option<usize>| rules.iter().filter(|(other, _)| *other == plugin).count();
    let counts: Vec<usize> = rules.iter().map(|(plugin, _)| count(*plugin)).collect();
    let finish = |((plugin, mut rule), count): ((Option<usize>, WrittenRule), usize)| {
        rule.name = unique(&rule.name, names);
        if let (Some(charge), Some(plugin), 2..) = (&mut rule.charge, plugin, count) {
            charge.meter = Some(format!("plugin-{}", plugin + 1));
        }
        rule
    };
    rules.into_iter().zip(counts).map(finish).collect()
}
