//! Finds the PostgreSQL host that accepts writes, the primary. Asks all hosts at once, repeatedly.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::connect::{Checks, Endpoint, ReadyConnection, STEP, connect, resolve};
use super::settings::Settings;
use crate::error::{Fault, StoreError};
use crate::events::EventSink;
use crate::remote::login::{Credentials, CurrentLogin};
use base::host_port::HostPort;

/// The time after which a server that could not be used is asked again.
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Connects to the server that accepts writes. All servers are asked at once. A server that cannot be used is asked
/// again until the others have answered, because it may be promoted.
///
/// # Errors
///
/// Returns the reason why no server can be used.
pub(crate) async fn connect_to_primary(
    settings: &Settings,
    login: &CurrentLogin,
    checks: Checks,
    events: &EventSink,
) -> Result<ReadyConnection, Fault> {
    let credentials = login.read(STEP).await?;
    let (failed, mut failures) = mpsc::unbounded_channel();
    let mut searches = JoinSet::new();
    for host in &settings.hosts {
        let (settings, credentials, events) = (settings.clone(), credentials.clone(), events.clone());
        let search = HostSearch { host: host.clone(), settings, credentials, checks, events };
        searches.spawn(search.run(failed.clone()));
    }
    let mut faults: Vec<(HostPort, Fault)> = Vec::new();
    while !settings.hosts.iter().all(|host| faults.iter().any(|(failed, _)| failed == host)) {
        tokio::select! {
            biased;
            Some(Ok(connection)) = searches.join_next() => return Ok(connection),
            Some((host, fault)) = failures.recv() => {
                faults.retain(|(other, _)| *other != host);
                faults.push((host, fault));
            }
        }
    }
    if let [(_, fault)] = &faults[..] {
        return Err(fault.clone());
    }
    // An error that a server has sent tells more than a failed connection.
    let error = faults.iter().map(|(_, fault)| fault.error).find(|error| *error != StoreError::Unreachable);
    let details: Vec<String> = faults.iter().map(|(host, fault)| format!("{host}: {}", fault.detail)).collect();
    Err(Fault::new(error.unwrap_or(StoreError::Unreachable), details.join("; ")))
}

/// The search for a usable server at one host.
#[derive(Clone)]
struct HostSearch {
    host: HostPort,
    settings: Settings,
    credentials: Credentials,
    checks: Checks,
    events: EventSink,
}

impl HostSearch {
    /// Asks every address of the host until a connection succeeds. Reports each round in which none succeeds. Each
    /// round resolves the name again.
    async fn run(self, failed: mpsc::UnboundedSender<(HostPort, Fault)>) -> ReadyConnection {
        let fail = |fault: Fault| drop(failed.send((self.host.clone(), fault)));
        let (mut attempts, mut under_way) = (JoinSet::new(), Vec::new());
        loop {
            let mut again = std::pin::pin!(tokio::time::sleep(ASK_AGAIN));
            match resolve(&self.host).await {
                Ok(addresses) => {
                    for address in addresses {
                        if !under_way.contains(&address) {
                            under_way.push(address);
                            attempts.spawn(self.clone().attempt(address));
                        }
                    }
                }
                Err(fault) if under_way.is_empty() => fail(fault),
                Err(_) => {}
            }
            loop {
                let (address, fault) = tokio::select! {
                    biased;
                    Some(attempted) = attempts.join_next() => match attempted {
                        Ok((_, Ok(connection))) => return connection,
                        Ok((address, Err(fault))) => (address, fault),
                        // Never happens, because the task is not cancelled and does not panic.
                        Err(_) => continue,
                    },
                    () = &mut again => break,
                };
                under_way.retain(|other| *other != address);
                if under_way.is_empty() {
                    fail(fault);
                }
            }
        }
    }

    async fn attempt(self, address: SocketAddr) -> (SocketAddr, Result<ReadyConnection, Fault>) {
        let HostSearch { host, settings, credentials, checks, events } = self;
        let endpoint = Endpoint { host, address };
        (address, connect(&settings, &endpoint, &credentials, checks, &events).await)
    }
}
