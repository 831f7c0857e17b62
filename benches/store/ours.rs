//! Calls the gateway's own store. Its only worker runs on the callers' thread, as in the gateway.

use std::sync::Arc;

use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use smallvec::smallvec;
use stores::redis::{Login, Settings, Target};
use stores::{EventSink, Store, StoreError, Worker, breaker};

use super::Failure;
use super::bucket::{Answer, COST, Limit};
use super::server::Server;

/// The commands that it sends, as INFO calls them.
pub const COMMANDS: &[&str] = &["evalsha"];

const LANE: Worker = Worker(0);

#[derive(Debug)]
pub struct Ours {
    store: Arc<Store>,
    plans: Vec<Plan>,
}

impl Ours {
    pub async fn open(server: &Server, limit: Limit, buckets: usize) -> Result<Ours, Failure> {
        let settings = stores::Settings::Redis(Settings {
            target: Target::at("127.0.0.1", server.port),
            login: Login::default(),
            timeout: Micros(5_000_000),
            prefix: "tollgate".to_owned(),
            breaker: breaker::Settings::default(),
            gateways: 1,
        });
        let store = Arc::new(Store::open(&settings, 1, Clock::system(), EventSink::new(|_| {})));
        tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.run(LANE).await }
        });
        store.first_attempt().await;
        let rate = Rate { amount: Cost::from_tokens(limit.per_second.into()), period: Micros(1_000_000) };
        let bucket = TokenBucket::new(rate, limit.burst.into()).map_err(|unfit| format!("{limit:?}: {unfit:?}"))?;
        let plans = (0..buckets as u128).map(|key| plan(key, Algorithm::TokenBucket(bucket))).collect();
        Ok(Ours { store, plans })
    }

    pub async fn take(&self, bucket: usize) -> Result<Answer, StoreError> {
        let taken = self.store.take(LANE, &self.plans[bucket], None).await.map_err(|failure| failure.error)?;
        let granted = taken.is_some_and(|taken| taken.settlement.is_granted());
        Ok(if granted { Answer::Granted } else { Answer::Refused })
    }
}

fn plan(key: u128, algorithm: Algorithm) -> Plan {
    // Spread like the bytes of a hash.
    let key = BucketKey(key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes());
    let charge = Charge::new(key, algorithm, Cost::from_tokens(COST.into()));
    Plan { enforced: smallvec![charge], shadow: smallvec![] }
}
