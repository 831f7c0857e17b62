//! Decisions for other proxies: the doors, and each proxy of docs/edges.md with the configuration of that page.

mod connections;
mod edge;
mod envoy;
mod envoy_gateway;
mod every_call;
mod grpc_caller;
mod grpc_doors;
mod http_door;
mod lost_gateways;
mod proxies;
mod store_deadlines;
mod withheld_keys;
