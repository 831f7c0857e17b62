//! Runs the script for acts of leases on a server, and loads it there first.

use std::slice::from_ref;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::codec::LeaseCall;
use super::fault_injection::Hooks;
use super::handshake::load;
use super::noscript::load_if_unknown;
use super::script;
use crate::error::{Fault, StoreError};
use crate::remote::Route;
use base::time::{Clock, Timestamp};

/// The script for acts of leases, and whether it was ever loaded.
#[derive(Debug)]
pub(super) struct LeaseScript {
    clock: Clock,
    hooks: Hooks,
    /// The SHA-1 hash that names the script, which is equal on all servers. Empty before the script is loaded.
    sha: Mutex<String>,
}

impl LeaseScript {
    pub(super) fn new(clock: Clock, hooks: Hooks) -> LeaseScript {
        LeaseScript { clock, hooks, sha: Mutex::default() }
    }

    /// Sends a call, and returns the server's reply to it. `prefix` begins the names of the buckets. A node to which the buckets are
    /// moving gets ASKING first.
    ///
    /// # Errors
    ///
    /// When the script cannot be loaded.
    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        call: &LeaseCall<'_>,
        prefix: &str,
        near: Timestamp,
        route: Route,
    ) -> Result<Result<Value, RedisError>, Fault> {
        let text = || self.hooks.timed(script::leases(), &self.clock);
        let near = self.hooks.near(near, || self.clock.now());
        let mut sha = self.sha.lock().clone();
        if sha.is_empty() {
            sha = load(connection, &text()).await?;
            self.sha.lock().clone_from(&sha);
        }
        let command = call.command(&sha, prefix, near, self.hooks.moment(&self.clock));
        let mut reply = send(connection, &command, route).await?;
        if load_if_unknown(connection, &mut sha, from_ref(&reply), text).await? {
            reply = send(connection, &command, route).await?;
        }
        Ok(reply)
    }
}

async fn send(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    route: Route,
) -> Result<Result<Value, RedisError>, Fault> {
    let mut pipeline = Pipeline::with_capacity(2);
    if route == Route::Next {
        pipeline.add_command(Cmd::new().arg("ASKING").clone());
    }
    pipeline.add_command(command.clone());
    let mut replies = connection.send_packed_commands(&pipeline, 0, pipeline.len()).await?;
    let reply = replies.pop().ok_or_else(|| Fault::new(StoreError::UnexpectedReply, "a pipeline has no reply"))?;
    Ok(reply.extract_error())
}
