//! Holds the lines about bans and thresholds that wait for the thread, in bounded memory.

/// The most lines that wait, and their most bytes.
const MOST: usize = 10_000;
const MOST_BYTES: usize = 16 << 20;

/// Lines that wait for the thread.
#[derive(Debug, Default)]
pub(super) struct NoticeQueue {
    lines: Vec<Vec<u8>>,
    bytes: usize,
}

impl NoticeQueue {
    /// Adds a line. Returns `false` if there is no room for the line.
    pub(super) fn add(&mut self, line: Vec<u8>) -> bool {
        let fits = self.lines.len() < MOST && self.bytes + line.len() <= MOST_BYTES;
        if fits {
            self.bytes += line.len();
            self.lines.push(line);
        }
        fits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Takes all lines out.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(self).lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_bounded_in_lines_and_bytes() {
        for (length, fit) in [(1, MOST), (1 << 20, 16), (3 << 20, 5)] {
            let mut queue = NoticeQueue::default();
            for _ in 0..2 {
                assert_eq!((0..MOST + 9).filter(|_| queue.add(vec![b'x'; length])).count(), fit);
                assert_eq!((queue.take().len(), queue.is_empty()), (fit, true));
            }
        }
    }
}
