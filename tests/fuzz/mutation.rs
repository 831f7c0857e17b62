//! Makes inputs from a corpus. Each is changed in a few places, and kept for further changes if its answer was new.
//!
//! An input is new if the target's answer to it is new. So no instrumented build and no nightly toolchain is needed.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

const LONGEST: usize = 64 << 10;
/// The largest number of new inputs that are kept beside the corpus.
const KEPT: usize = 4096;
/// The largest amount of memory in bytes. No target has a reason to need more.
const MOST_MEMORY: u64 = 600 << 20;
const SLOWEST: Duration = Duration::from_secs(2);

thread_local! {
    static PLANTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the reader of a target is to make its mistake.
pub fn is_bug_planted() -> bool {
    PLANTED.get()
}

/// Whether a target notices that its reader makes a mistake.
pub fn finds(target: fn()) -> bool {
    PLANTED.set(true);
    let found = catch_unwind(target).is_err();
    PLANTED.set(false);
    found
}

/// Plays a target on its corpus, and then on what becomes of it until the time is over. `check` returns its
/// answer, as coarse as answers should be distinguished.
#[allow(clippy::print_stdout, clippy::disallowed_methods, reason = "says how much was tried, in real time")]
pub fn fuzz<A: Hash>(target: &str, words: &[&[u8]], check: impl Fn(&[u8]) -> A) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    // With a planted bug, the run ends as soon as the bug is found.
    let budget = Duration::from_secs(if is_bug_planted() { 20 } else { number("FUZZ_SECONDS").unwrap_or(1) });
    let seed = number("FUZZ_SEED").unwrap_or(1);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut inputs = corpus(target);
    assert!(!inputs.is_empty(), "there is no corpus of {target}");
    let given = inputs.len();
    let mut seen = HashSet::new();
    let start = Instant::now();
    let mut tried: u64 = 0;
    loop {
        let index = usize::try_from(tried).unwrap_or(usize::MAX);
        let input = if index < given { inputs[index].clone() } else { mutated(&inputs, words, &mut random) };
        let before = Instant::now();
        let answer = catch_unwind(AssertUnwindSafe(|| check(&input))).unwrap_or_else(|panic| {
            println!("{target}, seed {seed}, input {tried}, escaped:\n{}", input.escape_ascii());
            resume_unwind(panic)
        });
        let mut took = before.elapsed();
        if took >= SLOWEST {
            // The input is tried again, because another process may have caused the delay.
            let before = Instant::now();
            check(&input);
            took = took.min(before.elapsed());
        }
        assert!(took < SLOWEST, "{target}: {took:?} for {} bytes: {}", input.len(), input.escape_ascii());
        let mut hasher = DefaultHasher::new();
        answer.hash(&mut hasher);
        if seen.insert(hasher.finish()) && index >= given && inputs.len() < given + KEPT {
            inputs.push(input);
        }
        tried += 1;
        if index >= given && (tried.is_multiple_of(64) || took > Duration::from_millis(10)) && start.elapsed() >= budget
        {
            break;
        }
    }
    let memory = most_memory();
    println!("{target}: {tried} inputs, {} answers, {} MiB at most, seed {seed}", seen.len(), memory >> 20);
    assert!(memory < MOST_MEMORY, "{target}: {memory} bytes");
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn mutated(inputs: &[Vec<u8>], words: &[&[u8]], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = inputs[random.usize(..inputs.len())].clone();
    for _ in 0..=random.usize(..4) {
        let at = random.usize(..=bytes.len());
        let most = (bytes.len() - at).min(1 << random.usize(..8));
        let length = random.usize(..=most);
        let range = at..at + length;
        match random.u8(..11) {
            0 => drop(bytes.drain(range)),
            1 => bytes.truncate(at),
            2 => {
                let part = bytes[range].to_vec();
                bytes.splice(at..at, part);
            }
            3 => {
                let part = bytes[range].repeat(random.usize(1..=32));
                bytes.splice(at..at, part);
            }
            4 => {
                let other = &inputs[random.usize(..inputs.len())];
                let from = random.usize(..=other.len());
                let to = random.usize(from..=other.len());
                bytes.splice(range, other[from..to].iter().copied());
            }
            5 => {
                let mut number = String::new();
                let edge =
                    [0, 1, 127, 255, 4096, 65_536, 1 << 31, 1 << 53, u64::MAX >> 1, u64::MAX][random.usize(..10)];
                let near = edge.wrapping_add_signed(random.i64(-2..=2));
                let _ = if random.bool() { write!(number, "{near}") } else { write!(number, "{near:x}") };
                bytes.splice(range, number.into_bytes());
            }
            6..=7 if !words.is_empty() => {
                let word = words[random.usize(..words.len())];
                let end = if random.bool() { at } else { range.end };
                bytes.splice(at..end, word.iter().copied());
            }
            8 if length > 0 => bytes[at] ^= 1 << random.u8(..8),
            9 if length > 0 => bytes[at] = random.u8(..),
            _ => bytes.insert(at, random.u8(..)),
        }
        bytes.truncate(LONGEST);
    }
    bytes
}

/// Returns the largest amount of memory that this process has ever held, in bytes.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
