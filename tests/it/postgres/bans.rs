//! Bans in PostgreSQL.

use crate::support::Postgres;
use crate::support::bans::play;

#[test]
fn gateways_share_bans_in_postgresql() {
    let postgres = Postgres::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(&postgres.settings().into()));
}
