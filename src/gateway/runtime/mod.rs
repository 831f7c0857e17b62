//! Building blocks for the process: supervised tasks, the open-file budget, the memory limit, the log throttle, the
//! memory for request bodies, and write back-pressure.

pub(super) mod fd_limit;
pub(super) mod inspected_bytes;
pub(super) mod log_throttle;
pub(super) mod memory_limit;
pub(super) mod peer_user;
pub(super) mod response_buffers;
pub(super) mod supervise;
pub(super) mod write_backpressure;
