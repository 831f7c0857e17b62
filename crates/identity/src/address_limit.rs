//! Limits something that clients do before any rule, with one bucket for each client address, in the memory of this process.

use std::sync::Arc;

use smallvec::smallvec;

use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::TokenBucket;
use ledger::bucket_key::{Descriptor, KeySeed, LimitIdentity};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan, Settlement};
use ledger::cost::Cost;
use request::client_address::ClientAddress;
use stores::memory;
use stores::memory::Memory;

/// The largest number of client addresses that are remembered.
const ADDRESSES: usize = 100_000;

/// A limit with one bucket for each client address.
#[derive(Debug)]
pub struct AddressLimit {
    bucket: TokenBucket,
    seed: KeySeed,
    buckets: Arc<Memory>,
}

/// The bucket of an address has too little left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceededAddressLimit {
    /// The time until the bucket has enough.
    pub wait: Micros,
    /// A number that is fixed for the bucket. It spreads `Retry-After` over the clients.
    pub spread: u32,
}

impl AddressLimit {
    /// Makes the limit that replaces `before`, and keeps its buckets. `name` is the key of the limit in gateway.yaml.
    pub fn after(before: Option<&AddressLimit>, name: &str, bucket: TokenBucket, clock: Clock) -> AddressLimit {
        let algorithm = Algorithm::TokenBucket(bucket);
        let identity = LimitIdentity {
            policy: "",
            rule: name,
            limit: "",
            mode: "enforce",
            algorithm: algorithm.kind(),
            keys: &["ip:address".to_owned()],
        };
        let settings = memory::Settings { max_buckets: ADDRESSES, ..memory::Settings::default() };
        let buckets = before.map(|before| Arc::clone(&before.buckets));
        let buckets = buckets.unwrap_or_else(|| Memory::new(&settings, clock));
        AddressLimit { bucket, seed: KeySeed::new(&identity), buckets }
    }

    /// Removes the buckets that are full again. The caller must call this about every second.
    pub fn sweep(&self) {
        self.buckets.sweep();
    }

    /// Charges the bucket of this address.
    ///
    /// # Errors
    /// If the bucket has too little left. Then nothing is charged.
    pub fn take(&self, client: ClientAddress) -> Result<(), ExceededAddressLimit> {
        let plan = self.plan(client);
        exceeded(&plan, &self.buckets.take(&plan).settlement)
    }

    /// Checks whether the bucket of this address has enough left, without a charge.
    ///
    /// # Errors
    /// If the bucket has too little left.
    pub fn check(&self, client: ClientAddress) -> Result<(), ExceededAddressLimit> {
        let plan = self.plan(client);
        exceeded(&plan, &self.buckets.peek(&plan))
    }

    /// Returns the number that is fixed for the bucket of this address.
    pub fn spread(&self, client: ClientAddress) -> u32 {
        spread(&self.plan(client))
    }

    fn plan(&self, client: ClientAddress) -> Plan {
        let mut descriptor = Descriptor::default();
        descriptor.push(0, client.text().as_bytes());
        let charge = Charge {
            key: self.seed.key(&descriptor),
            algorithm: Algorithm::TokenBucket(self.bucket),
            cost: Cost::ONE,
            limit: LimitId(0),
            variant: 0,
            tag: self.seed.tag(),
            purpose: ChargePurpose::Spend,
        };
        Plan { enforced: smallvec![charge], shadow: smallvec![] }
    }
}

fn exceeded(plan: &Plan, settlement: &Settlement) -> Result<(), ExceededAddressLimit> {
    if settlement.is_granted() {
        return Ok(());
    }
    let wait = settlement.enforced.first().map_or(Micros(0), |outcome| outcome.retry_after);
    Err(ExceededAddressLimit { wait, spread: spread(plan) })
}

fn spread(plan: &Plan) -> u32 {
    plan.enforced.first().map_or(0, |charge| charge.key.spread())
}
