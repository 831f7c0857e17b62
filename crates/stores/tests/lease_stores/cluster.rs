//! Acts on the nodes of a Redis Cluster, while hash slots move and masters die.

use ledger::charge::Plan;
use ledger::cost::Cost;
use stores::{ActResult, BucketAct, Settings};

use crate::region::{PATIENCE, Region, at_home, open, purse_alone, without_times};
use crate::support::redis::Redis;
use crate::support::redis_cluster::RedisCluster;

/// Returns words of a region about this number of buckets, whose keys are spread over all hash tags.
async fn words(region: &mut Region, buckets: u8) -> Vec<BucketAct> {
    let mut words = Vec::new();
    for key in 1..=buckets {
        words.push(at_home(key, region.id, region.mark(key).await));
    }
    words
}

/// Returns the results of acts without what time changes.
fn answers(results: &[ActResult]) -> Vec<String> {
    let answer = |result: &ActResult| match result {
        ActResult::Done(reply) => without_times(reply),
        other => panic!("{other:?}"),
    };
    results.iter().map(answer).collect()
}

#[tokio::test]
async fn acts_are_done_once_while_their_hash_slot_moves() {
    let (cluster, redis) = (RedisCluster::start(), Redis::start(&[]));
    // All buckets are in one hash slot.
    let home = open(&Settings::Redis(cluster.settings(1))).await;
    let mut region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let words = words(&mut region, 12).await;
    let first = answers(&home.act(&words[..8], PATIENCE).await.unwrap().results);
    let owner = (0..3).find(|master| cluster.masters[*master].command::<usize>(&["DBSIZE"]) > 0).unwrap();
    let (slot, to) = (cluster.slot_of_a_key(owner), (owner + 1) % 3);
    cluster.begin_move(slot, owner, to);
    // Some buckets have moved, some not yet, and four are new.
    cluster.move_keys(slot, 4, owner, to);
    let during = answers(&home.act(&words, PATIENCE).await.unwrap().results);
    assert_eq!(during[..8], first[..]);
    cluster.move_keys(slot, 100, owner, to);
    let moved = answers(&home.act(&words, PATIENCE).await.unwrap().results);
    cluster.end_move(slot, owner, to);
    let after = answers(&home.act(&words, PATIENCE).await.unwrap().results);
    assert_eq!((&moved, &after), (&during, &during));
    let keys: [usize; 2] = [owner, to].map(|master| cluster.masters[master].command(&["DBSIZE"]));
    assert_eq!(keys, [0, 12]);
}

#[tokio::test]
async fn the_acts_of_a_dead_master_have_no_answer_and_the_others_do() {
    let (mut cluster, redis) = (RedisCluster::start(), Redis::start(&[]));
    let home = open(&Settings::Redis(cluster.settings(16))).await;
    let mut region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let words = words(&mut region, 32).await;
    let first = home.act(&words, PATIENCE).await.unwrap();
    assert_eq!(answers(&first.results).len(), 32);
    cluster.masters[0].kill();
    let second = home.act(&words, PATIENCE).await.unwrap();
    let lost = second.results.iter().filter(|result| matches!(result, ActResult::NoAnswer(_))).count();
    let done = second.results.iter().filter(|result| matches!(result, ActResult::Done(_))).count();
    assert!(lost >= 8 && done >= 16 && lost + done == 32, "{second:?}");
    // The other nodes are not away.
    let dead: Vec<bool> = second.results.iter().map(|result| matches!(result, ActResult::NoAnswer(_))).collect();
    let away = || words.iter().map(|word| home.is_away(&word.key)).collect::<Vec<_>>();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while away() != dead {
        assert!(std::time::Instant::now() < until, "{:?} are away, and {dead:?} are dead", away());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for master in &mut cluster.masters[1..] {
        master.kill();
    }
    assert!(home.act(&words, PATIENCE).await.is_err());
}

/// Returns a plan of one request to several purses, and nothing else.
fn purses(keys: &[u8]) -> Plan {
    let mut all = Plan::default();
    keys.iter().for_each(|key| all.enforced.extend(purse_alone(*key).enforced));
    all
}

#[tokio::test]
async fn a_request_that_a_purse_refuses_gives_back_what_purses_under_other_hash_tags_have_paid() {
    let (cluster, redis) = (RedisCluster::start(), Redis::start(&[]));
    let home = open(&Settings::Redis(redis.settings())).await;
    let mut region = Region::new("eu", &Settings::Redis(cluster.settings(16))).await;
    for key in 1..=16 {
        let word = region.mark(key).await;
        region.lease(key, &home, word).await;
    }
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    for (key, empty) in (1..=16).flat_map(|key| (100..104).map(move |empty| (key, empty))) {
        assert!(!region.take(&purses(&[key, empty])).await.0);
        // The client does not wait until the charge is given back.
        while region.left(key).await < Cost::from_tokens(6) {
            assert!(std::time::Instant::now() < until, "purse {key} has paid for a refused request");
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
}
