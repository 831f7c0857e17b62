//! Reads buckets on the open connection, besides its calls.

use super::Connection;
use crate::error::StoreError;
use crate::remote::queue::Route;
use crate::remote::transport::{ReadStates, Transport};
use base::time::timeout;
use ledger::bucket_key::BucketKey;

impl<T: Transport> Connection<T> {
    /// Reads the states of buckets, and changes nothing. Waits at most for the store's timeout. Neither the breaker nor a
    /// metric counts the result.
    ///
    /// # Errors
    ///
    /// Returns the reason why the states could not be read.
    pub(crate) async fn read(&self, keys: &[BucketKey], route: Route) -> Result<ReadStates, StoreError> {
        let reading = async {
            let _turn = self.reading.lock().await;
            let mut link = self.link().await?.link;
            let read = self.transport.read(&mut link, keys, route).await.map_err(|fault| fault.error)?;
            if read.states.len() == keys.len() { Ok(read) } else { Err(StoreError::UnexpectedReply) }
        };
        timeout(self.timeout.into(), reading).await.unwrap_or(Err(StoreError::Timeout))
    }
}
