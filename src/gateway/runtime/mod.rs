//! Building blocks for the process: supervised tasks, the open-file budget, the memory limit, the log throttle, and write
//! back-pressure.

pub(super) mod fd_limit;
pub(super) mod log_throttle;
pub(super) mod memory_limit;
pub(super) mod response_buffers;
pub(super) mod supervise;
pub(super) mod write_backpressure;
