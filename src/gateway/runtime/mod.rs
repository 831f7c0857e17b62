//! Process-level building blocks: supervised tasks, the file-descriptor budget, log throttling, write back-pressure.

pub mod fd_limit;
pub mod log_throttle;
pub mod supervise;
pub mod write_backpressure;
