//! Bans in PostgreSQL.

use crate::support::Postgres;
use crate::support::bans::{
    ban_by_each_limit_of_a_meter, forget_a_lifted_ban, play, refuse_without_room, remember_for_longer,
};

fn run(play: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(play);
}

#[test]
fn gateways_share_bans_in_postgresql() {
    let postgres = Postgres::start();
    run(play(&postgres.settings().into()));
}

#[test]
fn a_full_disk_refuses_what_is_beyond_a_limit_although_no_ban_can_begin() {
    let postgres = Postgres::start();
    let settings = postgres.settings().into();
    // The server reports each write of a row as it reports one to a full disk.
    postgres.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$",
    );
    let fill = || {
        postgres.sql("CREATE TRIGGER full_disk BEFORE UPDATE ON tollgate_bucket EXECUTE FUNCTION full_disk()");
    };
    let free = || {
        postgres.sql("DROP TRIGGER full_disk ON tollgate_bucket");
    };
    run(refuse_without_room(&settings, fill, free));
}

#[test]
fn a_longer_memory_of_bans_keeps_the_row_for_longer() {
    let postgres = Postgres::start();
    let settings = postgres.settings().into();
    let kept_for = || {
        let seconds =
            "SELECT (max(until) / 1000000 - extract(epoch FROM clock_timestamp()))::bigint FROM tollgate_bucket";
        postgres.sql(seconds).parse().unwrap()
    };
    run(remember_for_longer(&settings, kept_for));
}

#[test]
fn a_ban_that_was_lifted_is_not_known_any_more() {
    let postgres = Postgres::start();
    run(forget_a_lifted_ban(&postgres.settings().into()));
}

#[test]
fn each_limit_of_a_meter_begins_its_ban_in_postgresql() {
    let postgres = Postgres::start();
    run(ban_by_each_limit_of_a_meter(&postgres.settings().into()));
}
