//! Assembles the scripts: the Lua twins of all algorithms, and `take.lua`, `give_back.lua` or
//! `leases.lua`.

use std::fmt::Write;

use ledger::algorithm::{TWINS, raise};

const FRAME: &str = include_str!("take.lua");
const GIVE_BACK: &str = include_str!("give_back.lua");
const LEASES: &str = include_str!("leases.lua");

/// A script that replaces the value of a bucket that has not changed since it was read.
pub(crate) const REPLACE: &str = include_str!("replace.lua");

/// A script that tries every command of the other scripts, and returns the refused ones.
pub(crate) const PROBE: &str = include_str!("probe.lua");

/// Lua text that reads the server's clock.
const MOMENT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
";

/// Returns the complete script that takes from buckets.
pub fn take() -> String {
    twins() + MOMENT + FRAME
}

/// Returns the complete script that gives back amounts: those that an operator grants, and undone charges.
pub fn give_back() -> String {
    twins() + MOMENT + GIVE_BACK
}

/// Returns the complete script that lets purses and homes hear acts and words.
pub fn leases() -> String {
    twins() + MOMENT + LEASES
}

/// Lua text that is put before a script, so that TIME returns the last argument. Keys do not expire, because Redis
/// would use its own clock.
#[cfg(feature = "test-hooks")]
const CHOSEN_MOMENT: &str = "
-- tollgate test-hooks: the moment can be an argument
local redis = (function(server, chosen)
  local function call(command, key, value)
    if command == 'TIME' then return {0, chosen} end
    return server.call(command, key, value)
  end
  local function pcall(command, key, value)
    if command == 'SET' then return server.pcall(command, key, value) end
    return server.pcall(command, key)
  end
  return {call = call, pcall = pcall}
end)(redis, table.remove(ARGV))
";

/// Puts lines before the script, so that a test can choose its time.
#[cfg(feature = "test-hooks")]
pub fn at_chosen_moment(script: &str) -> String {
    CHOSEN_MOMENT.to_owned() + script
}

/// Returns the Lua function `make_twin`, which runs the text of one twin when it is needed, and `make_raises`, which does so with
/// the text of raises. Each twin is in a block, so that twins share no local variables.
fn twins() -> String {
    let mut text = "local function make_twin(index)\n".to_owned();
    for (index, twin) in (1..).zip(TWINS) {
        let _ = write!(text, "if index == {index} then\n{twin}\nend\n");
    }
    let _ = write!(text, "end\nlocal function make_raises()\n{}\nend\n", raise::TWIN);
    text
}
