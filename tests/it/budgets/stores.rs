//! Budgets that two gateways share in one Redis or one PostgreSQL.

use super::{becomes, begin, budget, get, shows, upstream};
use crate::support::{Gateway, Postgres, Redis, eventually};

#[test]
fn two_gateways_on_one_redis_share_what_is_spent_and_held() {
    let redis = Redis::start();
    share(&redis.patient_store());
}

#[test]
fn two_gateways_on_one_postgresql_share_what_is_spent_and_held() {
    let postgres = Postgres::start();
    postgres.settings();
    share(&postgres.store_with(", timeout: 10s", "deny"));
}

fn share(store: &str) {
    let (upstream, finish) = upstream::start();
    let config = format!("{store}{}", budget());
    let [one, two] = [(); 2].map(|()| Gateway::start(&upstream, &config));
    assert_eq!(get(&one, "/cost/7", "ann").status, 200);
    becomes(&two, "ann", 7);
    assert_eq!(get(&two, "/cost/40", "ann").status, 200);
    becomes(&one, "ann", 47);
    let before = upstream.count();
    let mut running = begin(&one, "/hold/cost/100", "ann");
    eventually("the request runs", || upstream.count() > before);
    shows(&two, "ann", 52);
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
    becomes(&two, "ann", 147);
    becomes(&one, "ann", 147);
    let cut = begin(&two, "/hold/cost/100", "ann");
    shows(&one, "ann", 152);
    drop(cut);
    becomes(&one, "ann", 150);
    let errors =
        one.metric("rate_limiter_store_errors_total", &[]) + two.metric("rate_limiter_store_errors_total", &[]);
    assert!(errors == 0.0, "{errors}");
}
