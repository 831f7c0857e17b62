//! Determines which server accepts writes (the primary), for all connections of a gateway. While there is no primary,
//! only this watch logs in at the hosts.

use tokio::sync::{Notify, watch};

use super::connect::{Checks, Endpoint};
use super::primary_search::{ASK_AGAIN, connect_to_primary};
use super::settings::Settings;
use crate::error::{Fault, StoreError};
use crate::events::EventSink;
use crate::remote::login::CurrentLogin;

#[derive(Debug)]
pub(crate) struct PrimaryWatch {
    search: watch::Sender<Search>,
    /// Notified by a connection that needs the primary while no search is under way.
    wanted: Notify,
}

/// The last search for the server that accepts writes.
#[derive(Debug)]
struct Search {
    /// The number of searches that have ended.
    ended: u64,
    /// Whether the next search is under way, or follows soon.
    under_way: bool,
    found: Result<Endpoint, Fault>,
}

impl PrimaryWatch {
    pub(super) fn new() -> PrimaryWatch {
        let nothing = Fault::new(StoreError::Unreachable, "no server was asked");
        let search = Search { ended: 0, under_way: false, found: Err(nothing) };
        PrimaryWatch { search: watch::Sender::new(search), wanted: Notify::new() }
    }

    /// Searches for the primary whenever a connection needs it, and repeats the search until the primary is found.
    /// Never returns.
    pub(super) async fn run(&self, settings: &Settings, login: &CurrentLogin, events: &EventSink) {
        loop {
            self.wanted.notified().await;
            loop {
                self.search.send_modify(|search| search.under_way = true);
                let found = connect_to_primary(settings, login, Checks::Schema, events).await;
                let found = found.map(|connection| connection.endpoint);
                let under_way = found.is_err();
                self.search.send_modify(|search| *search = Search { ended: search.ended + 1, under_way, found });
                if !under_way {
                    break;
                }
                // The pause is jittered, so that gateways do not all log in at the same time.
                tokio::time::sleep(ASK_AGAIN.mul_f64(0.5 + fastrand::f64())).await;
            }
        }
    }

    /// Returns the server that accepts writes. Waits for the result of a search.
    ///
    /// # Errors
    ///
    /// Returns the reason why no server can be used.
    pub(super) async fn primary(&self) -> Result<Endpoint, Fault> {
        let mut searches = self.search.subscribe();
        let (ended, under_way) = {
            let search = searches.borrow_and_update();
            (search.ended, search.under_way)
        };
        if !under_way {
            self.wanted.notify_one();
        }
        // The wait fails only if the channel is closed, which never happens.
        let search = searches.wait_for(|search| search.ended > ended).await;
        search
            .map_or_else(|_| Err(Fault::new(StoreError::Closed, "the watch has ended")), |search| search.found.clone())
    }

    /// Returns the server that the last search found.
    pub(crate) fn last_primary(&self) -> Option<Endpoint> {
        self.search.borrow().found.as_ref().ok().cloned()
    }

    /// Waits until a search finds the primary. An earlier search does not count.
    pub(crate) async fn found_again(&self) {
        let mut searches = self.search.subscribe();
        let ended = searches.borrow_and_update().ended;
        if searches.wait_for(|search| search.ended > ended && search.found.is_ok()).await.is_err() {
            std::future::pending().await
        }
    }
}
