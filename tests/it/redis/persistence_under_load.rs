//! Real gateways under load while a Redis with an append-only file is killed and restarted: the amounts in the file still
//! count.

use super::faults_under_load::{Bound, kill_and_restart, survive};
use crate::support::{Redis, short_or_long};

#[track_caller]
fn limits_hold_while_it_is_killed(fsync: &str, bound: fn(u64) -> Bound) {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", fsync]);
    let port = redis.port;
    let times = short_or_long(3, 50);
    let fault = format!("kill -9 and restart, appendfsync {fsync}, {times} times");
    survive(&fault, bound(times), &mut redis, port, |redis| kill_and_restart(redis, times));
}

#[test]
fn a_redis_that_writes_before_it_answers_forgets_nothing() {
    limits_hold_while_it_is_killed("always", |_| Bound::Nothing);
}

/// Lost is what the process had not yet passed to the kernel. Mostly this is nothing, as long as the machine runs.
#[test]
fn a_redis_that_writes_each_second_forgets_at_most_what_was_spent() {
    limits_hold_while_it_is_killed("everysec", |times| Bound::LostAtMost { times });
}
