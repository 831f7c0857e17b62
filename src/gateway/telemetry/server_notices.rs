//! Logs the messages that the database sends beside its answers, each at its own level. Each text is logged at most once a
//! second, with the number of times that it came.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::gateway::runtime::log_throttle::LogThrottle;
use base::time::Timestamp;
use stores::{NoticeLevel, ServerNotice};

/// The largest number of different messages that are counted apart. Further ones share one line.
const MOST_TEXTS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct ServerNotices {
    recent: Mutex<Vec<RecentNotice>>,
    others: LogThrottle,
}

#[derive(Debug)]
struct RecentNotice {
    notice: ServerNotice,
    last: Timestamp,
    throttle: Arc<LogThrottle>,
}

impl ServerNotices {
    pub(super) fn record(&self, server: &str, notice: &ServerNotice, now: Timestamp) {
        let Some(count) = self.admit(notice, now) else { return };
        let detail = &*notice.text;
        match notice.level {
            NoticeLevel::Warning => log::warn!(server, warnings = count, detail; "store warns"),
            NoticeLevel::Notice => log::info!(server, notices = count, detail; "store notes"),
            NoticeLevel::Debug => log::debug!(server, notices = count, detail; "store notes in detail"),
        }
    }

    /// Returns how many messages a line covers. `None` if no line must be logged now.
    fn admit(&self, notice: &ServerNotice, now: Timestamp) -> Option<u64> {
        let throttle = {
            let mut recent = self.recent.lock();
            match recent.iter_mut().find(|one| one.notice == *notice) {
                Some(known) => {
                    known.last = now;
                    Some(Arc::clone(&known.throttle))
                }
                None => {
                    if recent.len() >= MOST_TEXTS {
                        // What did not come within the last second makes room.
                        recent.retain(|one| now.0 / 1_000_000 == one.last.0 / 1_000_000);
                    }
                    (recent.len() < MOST_TEXTS).then(|| {
                        let throttle = Arc::new(LogThrottle::default());
                        recent.push(RecentNotice {
                            notice: notice.clone(),
                            last: now,
                            throttle: Arc::clone(&throttle),
                        });
                        throttle
                    })
                }
            }
        };
        throttle.as_deref().unwrap_or(&self.others).admit(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(text: &str) -> ServerNotice {
        ServerNotice { level: NoticeLevel::Warning, text: text.to_owned() }
    }

    #[test]
    fn different_messages_have_lines_of_their_own_and_equal_ones_share_one() {
        let notices = ServerNotices::default();
        let at = |seconds: u64, text: &str| notices.admit(&warning(text), Timestamp(seconds * 1_000_000));
        assert_eq!((at(10, "a"), at(10, "b"), at(10, "a"), at(10, "a")), (Some(1), Some(1), None, None));
        assert_eq!((at(11, "a"), at(11, "b")), (Some(3), Some(1)));
        // A message of another level is another message.
        let notice = ServerNotice { level: NoticeLevel::Notice, ..warning("a") };
        assert_eq!(notices.admit(&notice, Timestamp(11_000_000)), Some(1));
    }

    #[test]
    fn more_messages_than_can_be_kept_share_a_line() {
        let notices = ServerNotices::default();
        let at = |seconds: u64, text: u64| notices.admit(&warning(&text.to_string()), Timestamp(seconds * 1_000_000));
        let lines = |seconds: u64| (0..1000).filter_map(|text| at(seconds, text)).count();
        assert_eq!(lines(10), MOST_TEXTS + 1);
        assert_eq!(notices.recent.lock().len(), MOST_TEXTS);
        // Old ones make room for new ones.
        assert_eq!(at(12, 5000), Some(1));
        assert_eq!(notices.recent.lock().len(), 1);
    }
}
