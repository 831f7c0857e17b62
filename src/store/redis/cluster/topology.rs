//! Asks a node of a cluster which node has which slots.

use redis::Cmd;

use super::slots::{SlotRange, slot_ranges};
use crate::base::host_port::HostPort;
use crate::store::error::{Fault, StoreError};
use crate::store::redis::handshake::{reach, send};
use crate::store::redis::settings::Settings;
use crate::store::remote::login::CurrentLogin;

/// Connects for this one question.
///
/// # Errors
///
/// When the node cannot be reached, refuses, or answers with something else.
pub async fn read_slots(
    address: &HostPort,
    settings: &Settings,
    login: &CurrentLogin,
) -> Result<Vec<SlotRange>, Fault> {
    let ready = reach(settings, address, login).await?;
    let mut connection = ready.connection;
    let mut command = Cmd::new();
    command.arg("CLUSTER").arg("SLOTS");
    let reply = tokio::select! {
        biased;
        reply = send(&mut connection, &command) => reply?,
        () = ready.driver => return Err(Fault::new(StoreError::Closed, "the connection was closed")),
    };
    let unexpected = || Fault::new(StoreError::UnexpectedReply, "CLUSTER SLOTS was answered with something else");
    slot_ranges(&reply, address).ok_or_else(unexpected)
}
