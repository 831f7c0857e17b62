//! Reads lists of networks.

use ipnet::IpNet;

use crate::language::reader::all;
use crate::language::shape::{List, Shape};
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types::NETWORK;

const TEXT: &str = "list of networks or addresses";

/// The kind of value for a list of networks. The list may be empty.
pub(crate) const NETWORKS: ValueKind<ReadField<Vec<IpNet>>> =
    ValueKind::new(TEXT, Shape::List(List::of(&NETWORK)), |field| all(field.list()?, |member| member.network()));

/// The kind of value for a list of networks that has at least one network.
pub(crate) const SOME_NETWORKS: ValueKind<ReadField<Vec<IpNet>>> =
    ValueKind::new(TEXT, Shape::List(List::non_empty(&NETWORK, "have at least one network")), |field| {
        all(field.list()?, |member| member.network())
    });
