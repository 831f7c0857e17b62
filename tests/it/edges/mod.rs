//! Decisions for other proxies: the door itself, and each of the proxies in docs/edges.md, as that page configures it.

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
