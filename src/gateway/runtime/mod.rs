//! Process-level building blocks: supervised tasks, the file-descriptor budget, the memory limit, log throttling, write
//! back-pressure.

pub(super) mod fd_limit;
pub(super) mod log_throttle;
pub(super) mod memory_limit;
pub(super) mod response_buffers;
pub(super) mod supervise;
pub(super) mod write_backpressure;
