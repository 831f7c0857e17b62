//! A Redis that sentinels move from server to server, and a Redis whose host name is moved.

mod discovery;
mod failover;
mod logins;
mod moved_name;
mod ordered_failover;
mod slots;
