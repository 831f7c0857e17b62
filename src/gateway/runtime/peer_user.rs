//! Holds the user of the process at the other end of a Unix domain socket, as the kernel has noted it when it connected.

use nix::unistd::{Uid, User};
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::raw_connect::ProxyDigest;
use tokio::net::UnixStream;

/// The user of a client's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerUser(u32);

impl PeerUser {
    /// Returns the user at the other end of a connection. `None` if the kernel does not tell it.
    pub(crate) fn of(connection: &UnixStream) -> Option<PeerUser> {
        connection.peer_cred().ok().map(|credentials| PeerUser(credentials.uid()))
    }

    /// Notes the user in a stream of Pingora. Only its digest of a proxy has room for a value of ours, and there is no proxy.
    pub(crate) fn note_in(self, stream: &mut Stream) {
        if let Ok(head) = ResponseHeader::build(200, None) {
            stream.set_proxy_digest(ProxyDigest::new(Box::new(head), Some(Box::new(self))));
        }
    }

    /// Returns the user who has sent a request. `None` for a connection that is not one of a Unix domain socket.
    pub(crate) fn of_session(session: &ServerSession) -> Option<PeerUser> {
        session.digest()?.proxy_digest.as_ref()?.user_data.as_ref()?.downcast_ref::<PeerUser>().copied()
    }

    /// Returns the name of the user, or the number of a user without a name.
    pub(crate) fn name(self) -> String {
        let name = User::from_uid(Uid::from_raw(self.0)).ok().flatten().map(|user| user.name);
        name.unwrap_or_else(|| self.0.to_string())
    }
}
