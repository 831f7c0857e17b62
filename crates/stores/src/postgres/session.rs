//! Holds a connection for calls. The statements of calls are prepared by name, so that the server need not parse them
//! each time. Through a pooler, statements are sent as texts, because another server process may get the next call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

/// The addresses of both ends of a TCP connection, as this process sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketAddresses {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

/// Queries the addresses of both ends of the connection, as the server sees them.
const ENDS: &str = "SELECT host(inet_client_addr()), inet_client_port(), host(inet_server_addr()), inet_server_port()";

/// The steps of a call. Each step is one SQL statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallStatement {
    Insert,
    Lock,
    Clock,
    Write,
    Remove,
    /// Commits a transaction that changes no row. The commit waits until all earlier commits are durable.
    Flush,
}

/// One value of the type `T` for each statement of a call.
#[derive(Debug)]
pub(crate) struct CallStatements<T> {
    pub insert: T,
    pub lock: T,
    pub clock: T,
    pub write: T,
    pub remove: T,
    pub flush: T,
}

/// The text of an SQL statement, with the types of its parameters.
#[derive(Debug)]
pub(crate) struct Statement {
    pub text: String,
    pub types: &'static [Type],
}

pub(super) struct Session {
    pub client: Client,
    statements: Arc<CallStatements<Statement>>,
    /// The prepared statements. `None` if there may be a pooler between this process and the server.
    prepared: Option<CallStatements<tokio_postgres::Statement>>,
    can_flush: bool,
}

/// Queries whether the user may run the function of [`CallStatement::Flush`].
const CAN_FLUSH: &str = "SELECT coalesce(has_function_privilege(to_regprocedure('pg_logical_emit_message(boolean, text, text)'), \
                         'EXECUTE'), false)";

impl<T> CallStatements<T> {
    fn of(&self, statement: CallStatement) -> &T {
        match statement {
            CallStatement::Insert => &self.insert,
            CallStatement::Lock => &self.lock,
            CallStatement::Clock => &self.clock,
            CallStatement::Write => &self.write,
            CallStatement::Remove => &self.remove,
            CallStatement::Flush => &self.flush,
        }
    }
}

impl Session {
    /// Makes a session on this connection. Prepares the statements of calls, if the connection leads to no pooler.
    ///
    /// # Errors
    ///
    /// When the connection ends, or the server refuses a statement.
    pub(super) async fn begin(
        client: Client,
        ends: SocketAddresses,
        statements: Arc<CallStatements<Statement>>,
    ) -> Result<Session, Error> {
        let is_direct = leads_to_the_server(&client, ends).await?;
        // The second commit of a call (`Flush`) shows that the first is not lost. Behind a pooler it may go to another
        // server.
        let can_flush = is_direct && can_flush(&client).await?;
        let prepared = if is_direct { Some(prepare(&client, &statements, can_flush).await?) } else { None };
        Ok(Session { client, statements, prepared, can_flush })
    }

    /// Whether a later commit on this connection can wait until earlier commits are on the disk.
    pub(crate) fn can_flush(&self) -> bool {
        self.can_flush
    }

    /// Runs a statement, and returns the rows.
    ///
    /// # Errors
    ///
    /// When the connection ends, or the server refuses the statement.
    pub(super) async fn query(
        &self,
        statement: CallStatement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        match &self.prepared {
            Some(prepared) => self.client.query(prepared.of(statement), parameters).await,
            None => {
                let Statement { text, types } = self.statements.of(statement);
                let typed: Vec<_> = parameters.iter().copied().zip(types.iter().cloned()).collect();
                self.client.query_typed(text, &typed).await
            }
        }
    }

    /// Runs a statement, and returns how many rows it has changed.
    ///
    /// # Errors
    ///
    /// When the connection ends, or the server refuses the statement.
    pub(super) async fn execute(
        &self,
        statement: CallStatement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        match &self.prepared {
            Some(prepared) => self.client.execute(prepared.of(statement), parameters).await,
            None => {
                let Statement { text, types } = self.statements.of(statement);
                let typed: Vec<_> = parameters.iter().copied().zip(types.iter().cloned()).collect();
                self.client.execute_typed(text, &typed).await
            }
        }
    }
}

async fn prepare(
    client: &Client,
    statements: &CallStatements<Statement>,
    can_flush: bool,
) -> Result<CallStatements<tokio_postgres::Statement>, Error> {
    let prepare = |statement: CallStatement| {
        let Statement { text, types } = statements.of(statement);
        client.prepare_typed(text, types)
    };
    // Without permission to flush, `Flush` is never used, so a statement that works takes its place.
    let flush = if can_flush { CallStatement::Flush } else { CallStatement::Clock };
    let (insert, lock, clock, write, remove, flush) = tokio::try_join!(
        prepare(CallStatement::Insert),
        prepare(CallStatement::Lock),
        prepare(CallStatement::Clock),
        prepare(CallStatement::Write),
        prepare(CallStatement::Remove),
        prepare(flush),
    )?;
    Ok(CallStatements { insert, lock, clock, write, remove, flush })
}

async fn can_flush(client: &Client) -> Result<bool, Error> {
    match client.query_typed(CAN_FLUSH, &[]).await {
        Ok(rows) => Ok(rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or(false)),
        // A server that is not PostgreSQL may not know the function.
        Err(error) if error.as_db_error().is_some() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the connection leads to the server without a pooler. If so, the server reports the same addresses and ports
/// as this process sees.
async fn leads_to_the_server(client: &Client, SocketAddresses { local, peer }: SocketAddresses) -> Result<bool, Error> {
    let rows = match client.query_typed(ENDS, &[]).await {
        Ok(rows) => rows,
        // Some servers do not report the addresses. So there may be a pooler.
        Err(error) if error.as_db_error().is_some() => return Ok(false),
        Err(error) => return Err(error),
    };
    let Some(row) = rows.first() else { return Ok(false) };
    let seen = |index: usize| {
        let address: IpAddr = row.try_get::<_, Option<&str>>(index).ok()??.parse().ok()?;
        let port = u16::try_from(row.try_get::<_, Option<i32>>(index + 1).ok()??).ok()?;
        Some((address.to_canonical(), port))
    };
    let here = |end: SocketAddr| Some((end.ip().to_canonical(), end.port()));
    Ok(seen(0) == here(local) && seen(2) == here(peer))
}
