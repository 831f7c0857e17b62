//! The files for deployment (image, compose files, units, alerts) agree with the program.

mod cluster;
mod compose;
mod compose_sentinel;
mod debian;
mod envoy_gateway;
mod helm;
mod helm_alerts;
mod helm_decide;
mod helm_memory;
mod helm_shapes;
mod image;
mod kubernetes;
mod postgres;
mod processes;
mod sentinel;
mod systemd;
mod watching;

use std::path::Path;

use config::{Config, Environment};
use serde_yaml::Value;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
pub fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns a manifest or another YAML file of a folder in `deploy`.
#[track_caller]
pub fn manifest(folder: &str, name: &str) -> Value {
    serde_yaml::from_str(&read(&format!("deploy/{folder}/{name}.yaml"))).unwrap()
}

/// Asserts that the folder patches these manifests of deploy/kubernetes, and that each patch is applied to its manifest.
#[track_caller]
pub fn assert_patches(folder: &str, patches: &[&str]) {
    let kustomization = manifest(folder, "kustomization");
    assert_eq!(texts(&kustomization, "resources").first(), Some(&"../kubernetes"));
    let listed = at(&kustomization, "patches").as_sequence().unwrap();
    let named: Vec<_> = listed.iter().map(|patch| text(patch, "path").trim_end_matches(".yaml")).collect();
    assert_eq!(named, patches);
    for name in patches {
        let (own, base) = (manifest(folder, name), manifest("kubernetes", name));
        for path in ["apiVersion", "kind", "metadata name"] {
            assert_eq!(text(&own, path), text(&base, path), "{name}");
        }
    }
}

/// Returns the lines of a gateway.yaml before and after its store settings.
pub fn around_store<'f>(file: &'f str, store: &str) -> (&'f str, &'f str) {
    let (before, rest) = file.split_once(&format!("  {store}:\n")).unwrap();
    (before, rest.split_once("  # As in deployment.yaml.\n").unwrap().1)
}

/// Returns the value at a path in a YAML document. Keys are separated by spaces, because some contain dots.
pub fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split(' ').fold(value, |value, key| match key.parse::<usize>() {
        Ok(index) if value.is_sequence() => &value[index],
        _ => &value[key],
    })
}

#[track_caller]
pub fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    at(value, path).as_str().unwrap_or_else(|| panic!("{path} is no text in {value:?}"))
}

/// Returns the texts of a list; empty if there is no list.
pub fn texts<'v>(value: &'v Value, path: &str) -> Vec<&'v str> {
    at(value, path).as_sequence().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Parses a gateway.yaml as in the container: without variables, and with the secrets at their mount paths.
#[track_caller]
pub fn parse(text: &str, secrets: &[(&str, &str)]) -> Config {
    let read = |path: &Path| {
        let found = secrets.iter().find(|(name, _)| path == Path::new(name));
        found.map(|(_, secret)| secret.as_bytes().to_vec()).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    };
    let surroundings = Environment { variable: &|_| None, folder: Path::new("/etc/tollgate"), read: &read };
    Config::parse("gateway.yaml", text.as_bytes(), surroundings).unwrap_or_else(|problems| panic!("{problems}"))
}

#[track_caller]
pub fn redis_of(config: &Config) -> &stores::redis::Settings {
    match &config.store {
        stores::Settings::Redis(redis) => redis,
        _ => panic!("no Redis"),
    }
}
