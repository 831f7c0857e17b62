//! Process-level building blocks: supervised tasks, the file-descriptor budget, the memory limit, log throttling, write
//! back-pressure.

pub mod fd_limit;
pub mod log_throttle;
pub mod memory_limit;
pub mod response_buffers;
pub mod supervise;
pub mod write_backpressure;
