//! Holds a connection to one sentinel: asks it for the master and for other sentinels, and receives its announcements.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, PushInfo, PushKind, Value, from_redis_value};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::error::{Fault, StoreError};
use crate::redis::dial::{connection_info, dial};
use crate::redis::handshake::send;
use crate::remote::login::CurrentLogin;
use base::host_port::HostPort;

/// The longest time that connecting, or an answer, may take before the next sentinel is asked.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);
/// The channel on which a sentinel announces that it has moved a master.
const SWITCHED: &str = "+switch-master";
/// The channel on which a sentinel announces that it has chosen a replica, and is about to promote it.
const PROMOTES: &str = "+failover-state-send-slaveof-noone";

/// A connection to a sentinel. Dropping it closes the connection.
pub(crate) struct SentinelLink {
    /// The address of the sentinel's end of the connection.
    pub peer: SocketAddr,
    connection: MultiplexedConnection,
    driver: AbortHandle,
}

/// The fields that a sentinel returns for each of several servers.
type Fields = Vec<HashMap<String, String>>;

/// A sentinel's answer about the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub master: HostPort,
    /// The replica that this sentinel is promoting. The sentinel names it as the master up to a second later.
    pub promoted: Option<HostPort>,
    /// The version of the sentinel's knowledge: the answer with the highest version is right. 0 if the sentinel
    /// returns no version.
    pub epoch: u64,
}

impl SentinelLink {
    /// Connects to the sentinel at this address. Notifies `switched` when the sentinel announces a new address of
    /// `master`, or the promotion of one of its replicas.
    ///
    /// # Errors
    ///
    /// When the sentinel cannot be reached in time, or refuses the login.
    pub(super) async fn open(
        address: &HostPort,
        login: &CurrentLogin,
        master: &str,
        switched: &Arc<Notify>,
    ) -> Result<SentinelLink, Fault> {
        let opening = async {
            let credentials = login.read(SENTINEL_TIMEOUT).await?;
            let info = connection_info(&credentials, 0).set_protocol(ProtocolVersion::RESP3);
            let (master, switched) = (master.to_owned(), Arc::clone(switched));
            let hear = move |push: PushInfo| {
                if announces(&push, &master) {
                    switched.notify_one();
                }
                Ok::<(), ()>(())
            };
            let config = AsyncConnectionConfig::new().set_push_sender(hear);
            dial(address, credentials.tls, &info, config).await
        };
        let opened = within(opening, "connecting", StoreError::Unreachable).await?;
        let link = SentinelLink {
            peer: opened.peer,
            connection: opened.connection,
            driver: tokio::spawn(opened.driver).abort_handle(),
        };
        let mut connection = link.connection.clone();
        // A sentinel that does not permit SUBSCRIBE can still be asked.
        for channel in [SWITCHED, PROMOTES] {
            drop(timeout(SENTINEL_TIMEOUT, connection.subscribe(channel)).await);
        }
        Ok(link)
    }

    /// Asks the sentinel for the master with this name.
    ///
    /// # Errors
    ///
    /// When there is no answer in time, or the sentinel knows no master of this name.
    pub(super) async fn master(&mut self, name: &str) -> Result<Answer, Fault> {
        let mut pipeline = Pipeline::with_capacity(3);
        for question in ["GET-MASTER-ADDR-BY-NAME", "MASTER", "REPLICAS"] {
            pipeline.cmd("SENTINEL").arg(question).arg(name);
        }
        let asking = async { Ok(self.connection.send_packed_commands(&pipeline, 0, 3).await?) };
        let mut answers = within(asking, "the answer", StoreError::Timeout).await?.into_iter();
        let address = answers.next().ok_or_else(unexpected_reply)?.extract_error()?;
        // These answers are optional, because the user may have no permission for them.
        let mut optional = || answers.next().and_then(|answer| answer.extract_error().ok());
        let (epoch, promoted) = (optional().map_or(0, epoch), optional().and_then(promoted));
        Ok(Answer { master: named(name, address)?, promoted, epoch })
    }

    /// Asks the sentinel for the addresses of the other sentinels of this master. Sentinels that the asked one cannot
    /// reach are left out.
    ///
    /// # Errors
    ///
    /// When there is no answer in time, or the user may not ask.
    pub(super) async fn others(&mut self, name: &str) -> Result<Vec<HostPort>, Fault> {
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg("SENTINELS").arg(name);
        let asking = async { Ok(send(&mut self.connection, &command).await?) };
        let others: Fields = from_redis_value(within(asking, "the answer", StoreError::Timeout).await?)
            .map_err(|_| unexpected_reply())?;
        Ok(living(&others))
    }
}

impl Drop for SentinelLink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl std::fmt::Debug for SentinelLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SentinelLink({})", self.peer)
    }
}

async fn within<T>(work: impl Future<Output = Result<T, Fault>>, what: &str, error: StoreError) -> Result<T, Fault> {
    let overdue = |_| Fault::new(error, format!("{what} took longer than {SENTINEL_TIMEOUT:?}"));
    timeout(SENTINEL_TIMEOUT, work).await.map_err(overdue)?
}

/// Whether an announcement says that this master has moved, or that a replica of it is being promoted. The messages
/// are `NAME OLD-IP OLD-PORT NEW-IP NEW-PORT` and `slave REPLICA IP PORT @ NAME IP PORT`.
fn announces(push: &PushInfo, master: &str) -> bool {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    let (Some(channel), Some(message)) = (push.data.first().and_then(text), push.data.get(1).and_then(text)) else {
        return false;
    };
    let name = match &*channel {
        SWITCHED => message.split(' ').next(),
        PROMOTES => message.split(' ').skip_while(|word| *word != "@").nth(1),
        _ => None,
    };
    push.kind == PushKind::Message && name == Some(master)
}

fn named(name: &str, answer: Value) -> Result<HostPort, Fault> {
    let named: Option<(String, u16)> = from_redis_value(answer).map_err(|_| unexpected_reply())?;
    let unknown = || Fault::new(StoreError::Unreachable, format!("knows no master `{name}`"));
    let (host, port) = named.ok_or_else(unknown)?;
    if host.is_empty() || port == 0 {
        return Err(unexpected_reply());
    }
    Ok(HostPort { host, port })
}

fn epoch(answer: Value) -> u64 {
    let fields: HashMap<String, String> = from_redis_value(answer).unwrap_or_default();
    fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0)
}

fn address(fields: &HashMap<String, String>) -> Option<HostPort> {
    let port = fields.get("port")?.parse().ok().filter(|port| *port != 0)?;
    let host = fields.get("ip").filter(|host| !host.is_empty())?;
    Some(HostPort::new(host.as_str(), port))
}

/// Returns the addresses of the listed sentinels that the asked sentinel can reach.
fn living(sentinels: &Fields) -> Vec<HostPort> {
    let is_lost = |flags: &String| flags.split(',').any(|flag| ["s_down", "o_down", "disconnected"].contains(&flag));
    let living = sentinels.iter().filter(|sentinel| !sentinel.get("flags").is_some_and(is_lost));
    living.filter_map(address).collect()
}

fn promoted(replicas: Value) -> Option<HostPort> {
    let replicas: Fields = from_redis_value(replicas).ok()?;
    let is_promoted = |flags: &String| flags.split(',').any(|flag| flag == "promoted");
    replicas.iter().find(|replica| replica.get("flags").is_some_and(is_promoted)).and_then(address)
}

fn unexpected_reply() -> Fault {
    Fault::new(StoreError::UnexpectedReply, "SENTINEL was answered with something else: is it a sentinel?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn an_answer_is_an_address_or_nothing() {
        let answer = Value::Array(vec![text("10.0.0.1"), text("6379")]);
        assert_eq!(named("m", answer), Ok(HostPort::new("10.0.0.1", 6379)));
        assert_eq!(named("m", Value::Nil).unwrap_err().detail, "knows no master `m`");
        for wrong in [
            text("OK"),
            Value::Array(Vec::new()),
            Value::Array(vec![text("10.0.0.1")]),
            Value::Array(vec![text("10.0.0.1"), text("0")]),
            Value::Array(vec![text("10.0.0.1"), text("66000")]),
            Value::Array(vec![text(""), text("6379")]),
            Value::Int(1),
        ] {
            assert_eq!(named("m", wrong.clone()).unwrap_err().error, StoreError::UnexpectedReply, "{wrong:?}");
        }
    }

    #[test]
    fn an_epoch_is_read_from_either_protocol_and_missing_ones_are_zero() {
        let fields = [("name", "m"), ("config-epoch", "12")];
        let flat = Value::Array(fields.iter().flat_map(|(key, value)| [text(key), text(value)]).collect());
        let map = Value::Map(fields.iter().map(|(key, value)| (text(key), text(value))).collect());
        assert_eq!((epoch(flat), epoch(map)), (12, 12));
        assert_eq!([Value::Nil, text("x"), Value::Array(Vec::new())].map(epoch), [0; 3]);
    }

    #[test]
    fn a_replica_is_promoted_by_its_flags() {
        let replica = |port: &str, flags: &str| {
            let fields = [("ip", "10.0.0.1"), ("port", port), ("flags", flags)];
            Value::Map(fields.iter().map(|(key, value)| (text(key), text(value))).collect())
        };
        let list = |flags: &str| Value::Array(vec![replica("1", "slave"), replica("2", flags)]);
        assert_eq!(promoted(list("slave,promoted")), Some(HostPort::new("10.0.0.1", 2)));
        assert_eq!(promoted(list("slave,reconf_done,unpromoted")), None);
        assert_eq!([Value::Nil, text("x"), Value::Array(Vec::new())].map(promoted), [None, None, None]);
    }

    #[test]
    fn sentinels_that_cannot_be_reached_are_left_out() {
        let sentinel = |(port, flags): (&str, &str)| {
            let fields = [("ip", "10.0.0.1"), ("port", port), ("flags", flags)];
            fields.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
        };
        let flags =
            [("1", "sentinel"), ("2", "s_down,sentinel"), ("3", "sentinel,disconnected"), ("4", "sentinel,o_down")];
        assert_eq!(living(&flags.map(sentinel).into()), [HostPort::new("10.0.0.1", 1)]);
        assert_eq!(
            living(&vec![HashMap::from([("ip".to_owned(), "a".to_owned()), ("port".to_owned(), "5".to_owned())])])
                .len(),
            1
        );
    }

    #[test]
    fn only_announcements_of_this_master_count() {
        let push = |kind, channel, message: &str| PushInfo { kind, data: vec![text(channel), text(message)] };
        for (channel, message) in [
            (SWITCHED, "mymaster 10.0.0.1 6379 10.0.0.2 6379"),
            (PROMOTES, "slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379"),
        ] {
            assert!(announces(&push(PushKind::Message, channel, message), "mymaster"));
            assert!(!announces(&push(PushKind::Message, channel, message), "my"));
            assert!(!announces(&push(PushKind::Message, channel, message), "slave"));
            assert!(!announces(&push(PushKind::Subscribe, channel, message), "mymaster"));
            assert!(!announces(&push(PushKind::Message, "+sdown", message), "mymaster"));
        }
        assert!(!announces(&PushInfo { kind: PushKind::Message, data: Vec::new() }, "mymaster"));
    }
}
