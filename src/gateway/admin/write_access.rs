//! Decides who may change buckets and list clients through the admin listener: those that reach a loopback address, or connect to the
//! socket of `admin.write`, or send one of its tokens.

use http::header::AUTHORIZATION;
use http::request::Parts;
use sha2::{Digest, Sha256};

use crate::gateway::runtime::peer_user::PeerUser;
use config::{AdminToken, AdminWrite, Config};

/// The listener through which a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminListener {
    Address,
    /// The socket of `admin.write`.
    Socket,
}

/// Who changes buckets, or lists clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    /// Somebody on this machine. The command reports a name, which is not verified.
    Unverified,
    /// The user at the other end of the socket, or the name of a token.
    Verified(String),
}

impl Operator {
    /// Returns who wants to change buckets, or to list clients.
    ///
    /// # Errors
    /// If the request may do neither. The error has a status code and a text.
    pub(super) fn of(
        config: &Config,
        listener: AdminListener,
        user: Option<PeerUser>,
        head: &Parts,
    ) -> Result<Operator, (u16, &'static str)> {
        match (listener, &config.admin_write) {
            (AdminListener::Socket, _) => {
                user.map(|user| Operator::Verified(user.name())).ok_or((403, "the user is not known"))
            }
            (AdminListener::Address, Some(AdminWrite::Unix(_))) => {
                Err((403, "buckets are changed, and clients listed, only through the socket of `admin.write`"))
            }
            (AdminListener::Address, Some(AdminWrite::Tokens(tokens))) => {
                let name = named(tokens, head)
                    .ok_or((401, "a change, or a list of clients, needs `Authorization: Bearer TOKEN`"))?;
                Ok(Operator::Verified(name.to_owned()))
            }
            (AdminListener::Address, None) => match config.admin {
                Some(address) if address.ip().to_canonical().is_loopback() => Ok(Operator::Unverified),
                _ => Err((
                    403,
                    "this address is not loopback: buckets are changed, and clients listed, only with `admin.write`",
                )),
            },
        }
    }

    /// Returns the name, or for somebody whose name is not verified the one that was `reported`.
    pub(super) fn name_or(&self, reported: String) -> String {
        match self {
            Operator::Unverified => reported,
            Operator::Verified(name) => name.clone(),
        }
    }
}

/// Returns the name of the token that a request shows. Hashes are compared, so the time shows nothing of a token.
fn named<'t>(tokens: &'t [AdminToken], head: &Parts) -> Option<&'t str> {
    let shown = head.headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, shown) = shown.split_at_checked("Bearer ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Bearer ") {
        return None;
    }
    let shown = Sha256::digest(shown);
    tokens.iter().find(|one| Sha256::digest(one.token.reveal()) == shown).map(|one| &*one.name)
}
