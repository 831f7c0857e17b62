//! Decisions for other proxies and for services: the doors, and each proxy of docs/edges.md with the configuration of that
//! page.

mod connections;
pub mod edge;
mod envoy;
mod envoy_gateway;
mod every_call;
mod grpc_caller;
mod grpc_doors;
mod hold_ends;
pub mod holds;
mod http_door;
pub mod json_door;
mod json_door_openapi;
mod lost_gateways;
mod proxies;
mod recorded_descriptors;
mod store_deadlines;
mod withheld_keys;
