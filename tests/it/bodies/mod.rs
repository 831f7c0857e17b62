//! Request bodies that are read before the decision, because rules need values from them.

mod ambiguous_bodies;
mod bounds;
mod costs;
mod forwarding;
mod http2_bodies;
mod json_bodies;
mod models;
mod values;

/// A rule that limits each model to one request, and one that counts by a field of a form.
const BY_MODEL: &str = "
policies:
  - name: models
    match: {path: /llm/*}
    rules:
      - {name: model, limit_keys: [request_json:/model], algorithm_config: {rps: 0.001, burst: 1}}
  - name: users
    match: {path: /login}
    rules:
      - {name: user, limit_keys: [\"lower(request_form:user name)\"], algorithm_config: {rps: 0.001, burst: 1}}
";

/// Listens for HTTP/1.1 and HTTP/2.
const LISTENERS: &str = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]\n";
