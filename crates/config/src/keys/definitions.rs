//! Defines, for the JSON Schema, the constraints of gateway.yaml that the shapes of keys cannot express.

use serde_json::{Value, json};

/// Returns definitions of the schema, each with its name: conditions, and constraints on several keys.
pub(crate) fn definitions() -> Vec<(&'static str, Value)> {
    let reference = json!({"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"});
    [vec![("reference", reference)], conditions(), limits()].concat()
}

fn conditions() -> Vec<(&'static str, Value)> {
    let expectation = |description| json!({"$ref": "#/definitions/expectation", "description": description});
    let address = json!({"$ref": "#/definitions/address"});
    vec![
        (
            "conditions",
            json!({
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "key:id": expectation("The id of the request's API key."),
                    "key:plan": expectation("The plan of the request's API key."),
                    "ip:address": {
                        "allOf": [{"$ref": "#/definitions/operators_or_texts"}, {"$ref": "#/definitions/addresses"}],
                        "description": "The client: an address, or {cidr: [10.0.0.0/8]}."
                    },
                    "method": expectation("The method, as sent."),
                    "host": expectation("The requested host, without port, in lower case."),
                    "scheme": expectation("http or https."),
                    "listener": expectation("The name of the listener."),
                    "tls:sni": expectation("The name that the client asked for in TLS, in lower case."),
                    "tls:client_fingerprint": expectation("SHA-256 of the client's certificate, in lower-case hexadecimal digits."),
                    "tls:client_subject": expectation("The subject of the client's certificate, as RFC 4514 writes it."),
                    "tls:client_dns": expectation("The only DNS name of the client's certificate."),
                    "tls:client_uri": expectation("The only URI of the client's certificate."),
                    "path": expectation("The path without query, normalised. /v1/* stands for /v1 and everything below."),
                    "route": expectation("The name of the route; default in a file without routes."),
                    "upstream": expectation("The name of the upstream; default in a file without upstreams."),
                    "llm:model": expectation("The model that a request to a language model asks for."),
                    "door": expectation("Where the decision is asked for: proxy, http, ext_authz, rls or json.")
                },
                "patternProperties": {
                    r"^jwt:[\s\S]": expectation("A claim of a verified token; of a list, any element."),
                    "^key:[A-Za-z0-9_.-]{1,64}$": expectation("A column of the file of API keys, which names it itself."),
                    r"^\s*(lower|trim)\([\s\S]+\)\s*$": expectation("An attribute in lower case, or without white space around it; both nest."),
                    r"^words\(\s*jwt:[\s\S]+\)$": expectation("A claim of a verified token, split at spaces: any of its words."),
                    "^path_segment:([1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])$": expectation("A segment of the normalised path, by its number from 1."),
                    "^header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$": expectation("A header, trimmed; its name in any case."),
                    r"^query:[\s\S]": expectation("A query parameter, decoded; its name is case-sensitive."),
                    r"^descriptor:[\s\S]": expectation("An entry of the descriptor that another proxy sends; domain is the domain of the call, entries the keys of all entries with / between."),
                    r"^request_json:/([^~]|~[01])*$": expectation("A text, integer or boolean in a JSON body, at a JSON pointer."),
                    r"^request_form:[\s\S]": expectation("A field of a form in the body, decoded; its name is case-sensitive."),
                    r"^cookie:[\s\S]": expectation("A cookie, without quotes around it, decoded; its name is case-sensitive.")
                }
            }),
        ),
        (
            "expectation",
            json!({"allOf": [{"$ref": "#/definitions/operators_or_texts"}], "properties": {"cidr": false, "cidr_file": false}}),
        ),
        (
            "operators_or_texts",
            json!({"anyOf": [{"$ref": "#/definitions/texts"}, {"$ref": "#/definitions/operators"}]}),
        ),
        (
            "addresses",
            json!({
                "$comment": "What the texts of ip:address must be, in any of their places.",
                "allOf": [address],
                "items": address,
                "properties": {"in": {"items": address}, "not": {"allOf": [address], "items": address}, "in_file": false}
            }),
        ),
        (
            "address",
            json!({
                "pattern": r"^[0-9A-Fa-f:.]+$|\$\{",
                "patternErrorMessage": "must be an IP address; for a network write {cidr: [10.0.0.0/8]}"
            }),
        ),
    ]
}

fn limits() -> Vec<(&'static str, Value)> {
    vec![
        (
            "without_candidates",
            json!({
                "$comment": "Numbers to try belong to a limit that is enforced.",
                "properties": {
                    "algorithm_config": {"properties": {"shadow": false}},
                    "limits": {"additionalProperties": {"properties": {"shadow": false}}}
                }
            }),
        ),
        (
            "budget",
            json!({
                "$comment": "A cost of the response is settled later, and something is reserved until then.",
                "if": {
                    "properties": {"cost_source": {"pattern": r"^(response_|llm_)|\$\{"}},
                    "required": ["cost_source"]
                },
                "then": {
                    "if": {"properties": {"cost_source": {"pattern": r"\$\{"}}},
                    "else": {
                        "required": ["reserve"],
                        "properties": {"count_on": false, "reset_on": false, "fixed_cost": false, "min_cost": false, "max_cost": false}
                    }
                },
                "else": {"properties": {"reserve": false, "weights": false, "default_cost": {"$ref": "#/definitions/amount"}}},
                "dependencies": {"reset_on": ["count_on"]}
            }),
        ),
        (
            "money",
            json!({
                "$comment": "Only amounts of money may have decimals where other amounts are whole.",
                "if": {
                    "properties": {"cost_source": {"pattern": r"^llm_cost$|\$\{"}},
                    "required": ["cost_source"]
                },
                "then": {
                    "if": {"properties": {"cost_source": {"const": "llm_cost"}}},
                    "then": {"properties": {"weights": false}}
                },
                "else": {"properties": {
                    "limit": {"anyOf": [{"$ref": "#/definitions/window_limit"}, {"$ref": "#/definitions/claimed_number"}]},
                    "burst": {"anyOf": [{"$ref": "#/definitions/burst"}, {"$ref": "#/definitions/claimed_number"}]},
                    "rate": {"$ref": "#/definitions/rate"}
                }}
            }),
        ),
        (
            "rated",
            json!({
                "$comment": "A rate is rate, or rps with burst.",
                "if": {"required": ["rate"]},
                "then": {"properties": {"rps": false, "tokens_per_second": false}},
                "else": {"required": ["burst"], "anyOf": [{"required": ["rps"]}, {"required": ["tokens_per_second"]}]}
            }),
        ),
    ]
}
