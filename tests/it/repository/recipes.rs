//! Runs each recipe of docs/recipes.md as it is written, and compares the results with its table of requests.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use regex::Regex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::docs;
use crate::support::mint::{Signer, epoch};
use crate::support::{Gateway, Response, Upstream, now};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// The longest time of a run. In a recipe, the next token comes back after at least a second, so a longer run proves nothing.
const A_MOMENT: Duration = Duration::from_millis(800);

struct Recipe<'p> {
    title: &'p str,
    yaml: &'p str,
    lines: Vec<Line<'p>>,
}

/// A line of a recipe's table.
enum Line<'p> {
    /// For example `5x GET /  jwt:sub=ann  -> 429 by free`.
    Request { times: u32, method: &'p str, target: &'p str, attributes: Vec<(&'p str, &'p str)>, answer: Answer },
    /// For example `name{label="value"} 3`.
    Metric { name: &'p str, labels: Vec<&'p str>, value: f64 },
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    /// The name of the upstream, if the recipe has several.
    from: Option<String>,
    /// The names of limits.
    by: Vec<String>,
}

fn line(text: &str) -> Line<'_> {
    let Some((request, answer)) = text.split_once("->") else {
        let (series, value) = text.rsplit_once(' ').unwrap();
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap();
        return Line::Metric { name, labels: labels.split(',').collect(), value: value.parse().unwrap() };
    };
    let mut words = request.split_whitespace().peekable();
    let times = words.next_if(|word| word.ends_with('x')).map_or(1, |word| word.trim_end_matches('x').parse().unwrap());
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let attributes = words.map(|word| word.split_once('=').unwrap_or_else(|| panic!("{text}"))).collect();
    let mut answer = answer.split_whitespace().peekable();
    let status = answer.next().unwrap().parse().unwrap();
    let from = answer.next_if_eq(&"from").and_then(|_| answer.next()).map(str::to_owned);
    assert!(matches!(answer.next(), None | Some("by")), "{text}");
    Line::Request {
        times,
        method,
        target,
        attributes,
        answer: Answer { status, from, by: answer.map(str::to_owned).collect() },
    }
}

fn recipes(page: &str) -> Vec<Recipe<'_>> {
    let sections = page.split("\n## ").skip(1);
    sections
        .map(|section| {
            let title = section.lines().next().unwrap();
            let (yaml, tables) = (docs::blocks(section, "yaml"), docs::blocks(section, "text"));
            let ([yaml], [table]) = (&yaml[..], &tables[..]) else { panic!("{title}: one file and one table") };
            Recipe { title, yaml, lines: table.lines().map(line).collect() }
        })
        .collect()
}

/// The time at which a recipe is played: before or after its rules expire.
#[derive(Clone, Copy)]
enum When {
    Before,
    After,
}

/// Returns the gateway's configuration except the upstream. A recipe in JSON that contains it is converted to YAML.
fn rest(yaml: &str, when: When) -> String {
    let yaml = yaml.replace("${JWT_SECRET}", SECRET);
    let moment = match when {
        When::Before => "expires: 2126-11-29T00:00:00+01:00",
        When::After => "expires: 2016-11-25T00:00:00+01:00",
    };
    let yaml = Regex::new(r"expires: [-0-9T:+]+").unwrap().replace_all(&yaml, moment).into_owned();
    let mut rest = yaml.clone();
    if yaml.starts_with('{') {
        let mut whole: serde_yaml::Mapping = serde_yaml::from_str(&yaml).unwrap();
        whole.remove("upstream");
        rest = serde_yaml::to_string(&whole).unwrap();
    }
    // The addresses of a table are those that a proxy in front tells of.
    assert!(!rest.contains("client_ip:"));
    rest + "\nclient_ip: {trusted_proxies: [127.0.0.1]}"
}

fn key_of(id: &str) -> String {
    format!("the-key-of-{id}")
}

/// Returns the file of API keys. It has a key for every id of the table.
fn known_keys(recipe: &Recipe<'_>) -> String {
    let mut ids = BTreeSet::new();
    for line in &recipe.lines {
        if let Line::Request { attributes, .. } = line {
            ids.extend(attributes.iter().filter(|(name, _)| *name == "key:id").map(|(_, id)| *id));
        }
    }
    let hash = |id| Sha256::digest(key_of(id)).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    ids.into_iter().map(|id| format!("{} {id} standard\n", hash(id))).collect::<String>() + "# these\n"
}

/// Returns the header fields with which a request has these attributes.
fn fields(attributes: &[(&str, &str)]) -> Vec<(String, String)> {
    let (mut fields, mut claims, mut address) = (Vec::new(), Map::new(), "198.51.100.1");
    for &(name, value) in attributes {
        match name.split_once(':') {
            Some(("jwt", "scope")) => drop(claims.insert("scope".to_owned(), json!(value.replace('+', " ")))),
            Some(("jwt", claim)) => {
                let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let list = list.map(|members| json!(members.split(',').collect::<Vec<_>>()));
                claims.insert(claim.to_owned(), list.unwrap_or_else(|| json!(value)));
            }
            Some(("ip", "address")) => address = value,
            Some(("key", "id")) => fields.push(("X-API-Key".to_owned(), key_of(value))),
            Some(("request_form", _)) => {
                fields.push(("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned()));
            }
            Some(("descriptor", _)) => fields.push(("Content-Type".to_owned(), "application/json".to_owned())),
            None if name == "cost" => {}
            Some(("header", header)) => fields.push((header.to_owned(), value.to_owned())),
            _ => panic!("a table cannot say {name}"),
        }
    }
    fields.push(("X-Forwarded-For".to_owned(), address.to_owned()));
    if !claims.is_empty() {
        claims.insert("exp".to_owned(), json!(epoch() + 600));
        let token = Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), &Value::Object(claims));
        fields.push(("Authorization".to_owned(), format!("Bearer {token}")));
    }
    fields
}

/// Returns the body of a request with these attributes: the call of a service, or a form.
fn body(attributes: &[(&str, &str)]) -> String {
    let entries: Map<String, Value> = attributes
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("descriptor:")?.to_owned(), json!(value))))
        .collect();
    if !entries.is_empty() {
        let cost =
            attributes.iter().find(|(name, _)| *name == "cost").map_or(1, |(_, cost)| cost.parse::<u64>().unwrap());
        return json!({"entries": entries, "cost": cost}).to_string();
    }
    let form = attributes.iter().filter_map(|(name, value)| Some((name.strip_prefix("request_form:")?, value)));
    form.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn answer(response: &Response) -> Answer {
    let by = match response.status {
        200 => {
            let policies = response.field("RateLimit-Policy").unwrap_or_default();
            policies.split(", ").filter_map(|member| Some(member.split('"').nth(1)?.to_owned())).collect()
        }
        _ if response.field("Content-Type").as_deref() == Some("application/problem+json") => {
            let violated = response.json()["violated-policies"].clone();
            serde_json::from_value(violated).unwrap_or_default()
        }
        // A service sees the limits in the body.
        429 => {
            let limits = response.json()["limits"].as_array().cloned().unwrap_or_default();
            limits.iter().map(|limit| limit["name"].as_str().unwrap().to_owned()).collect()
        }
        _ => Vec::new(),
    };
    Answer { status: response.status, from: response.field("X-Answered-By"), by }
}

/// Starts a server for each upstream in the text, and replaces its address. A server answers with its name.
fn with_servers(yaml: &str) -> (String, Vec<Upstream>) {
    let (mut text, mut servers) = (yaml.to_owned(), Vec::new());
    let urls = Regex::new(r"http://[0-9.:]+").unwrap();
    for found in Regex::new(r"(\w+): \{endpoints: \[([^\]]*)\]").unwrap().captures_iter(yaml) {
        for url in urls.find_iter(&found[2]) {
            let name = found[1].to_owned();
            let server = Upstream::answering(move |_, stream| {
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nX-Answered-By: {name}\r\nContent-Length: 2\r\n\r\nok");
            });
            text = text.replace(url.as_str(), &format!("http://{}", server.address));
            servers.push(server);
        }
    }
    (text, servers)
}

/// Plays a recipe. Returns whether this was fast enough. Only then the results are compared with the table.
fn play(recipe: &Recipe<'_>, when: When) -> bool {
    let (yaml, servers) = with_servers(&rest(recipe.yaml, when));
    let upstream = Upstream::answering(|request, stream| {
        let status = request.field("X-Answer").unwrap_or("200");
        let _ = write!(stream, "HTTP/1.1 {status} Some\r\nContent-Length: 2\r\n\r\nok");
    });
    let (yaml, is_alone) =
        (yaml.replace("127.0.0.1:9100", "127.0.0.1:0"), !servers.is_empty() || yaml.contains("decide:"));
    let gateway = if is_alone { Gateway::before_url("") } else { Gateway::before(&upstream) };
    let gateway = gateway.with(&yaml).file("api-keys.txt", &known_keys(recipe)).start();
    let (mut client, begun) = (gateway.client(), now());
    let mut wrong = Vec::new();
    for line in &recipe.lines {
        let Line::Request { times, method, target, attributes, answer: expected } = line else { continue };
        let fields = fields(attributes);
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        for time in 1..=*times {
            let found = answer(&client.send(method, target, &fields, &body(attributes)));
            if found != *expected {
                wrong.push(format!("{method} {target} {attributes:?}, time {time}: {found:?}, not {expected:?}"));
            }
        }
    }
    if begun.elapsed() > A_MOMENT {
        return false;
    }
    assert!(wrong.is_empty(), "{}:\n{}", recipe.title, wrong.join("\n"));
    for line in &recipe.lines {
        if let Line::Metric { name, labels, value } = line {
            gateway.expect(name, labels, *value);
        }
    }
    true
}

#[test]
fn every_recipe_answers_as_its_table_documents() {
    let page = docs::read("docs/recipes.md");
    let recipes = recipes(&page);
    assert!(recipes.len() >= 12, "{} recipes", recipes.len());
    for recipe in &recipes {
        assert!(recipe.lines.len() >= 2, "{}: what does it do?", recipe.title);
        assert!((0..10).any(|_| play(recipe, When::Before)), "{}: never played in a moment", recipe.title);
    }
}

#[test]
fn the_contents_name_every_recipe() {
    let page = docs::read("docs/recipes.md");
    for recipe in recipes(&page) {
        let anchor = recipe.title.to_lowercase().replace(' ', "-").replace(',', "");
        assert!(page.contains(&format!("](#{anchor})")), "{}", recipe.title);
    }
}

/// Tiers in the form in which a program writes them. Only the issuer of the plan is configured separately.
const PASTED: &str = r#"
## Tiers as JSON
```yaml
{
  "jwt": {"algorithms": ["HS256"], "keys": {"secret": "${JWT_SECRET}"}},
  "rules": [
    {
      "name": "enterprise",
      "limit_keys": ["header:x-api-key"],
      "algorithm": "token_bucket",
      "algorithm_config": { "rps": 1000, "burst": 2000 },
      "match": { "jwt:plan": "enterprise" }
    },
    {
      "name": "free",
      "limit_keys": ["header:x-api-key"],
      "algorithm": "token_bucket",
      "algorithm_config": { "rps": 1, "burst": 20 }
    }
  ]
}
```
```text
20x GET /  header:x-api-key=a                     -> 200 by free
    GET /  header:x-api-key=a                     -> 429 by free
    GET /  header:x-api-key=b                     -> 200 by free
30x GET /  header:x-api-key=c jwt:plan=enterprise -> 200 by enterprise
    GET /  header:x-api-key=c jwt:plan=other      -> 200 by free
    GET /                                         -> 200
```
"#;

#[test]
fn tiers_pasted_as_json_work_as_documented() {
    for recipe in recipes(PASTED) {
        assert!((0..10).any(|_| play(&recipe, When::Before)));
    }
}

#[test]
fn a_request_denied_until_a_moment_passes_after_it() {
    let page = docs::read("docs/recipes.md");
    let mut recipe = recipes(&page).into_iter().find(|recipe| recipe.yaml.contains("expires:")).unwrap();
    let mut ended = 0;
    for line in &mut recipe.lines {
        if let Line::Request { answer, .. } = line
            && answer.status == 403
        {
            *answer = Answer { status: 200, from: None, by: vec!["per-address".to_owned()] };
            ended += 1;
        }
    }
    assert!(ended > 0 && (0..10).any(|_| play(&recipe, When::After)));
}
