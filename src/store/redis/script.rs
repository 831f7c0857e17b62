//! Assembles the script that takes: the Lua twins of all algorithms, the time, and `take.lua` around them. The script that
//! gives back has `give_back.lua` in its place.

use std::fmt::Write;

use crate::limit::algorithm::TWINS;

const FRAME: &str = include_str!("take.lua");
const UNDO: &str = include_str!("undo.lua");
const GIVE_BACK: &str = include_str!("give_back.lua");

/// Tries every command that the script uses, and returns the refused ones.
pub const PROBE: &str = include_str!("probe.lua");

/// Reads the server's own clock: a gateway's clock is never used.
#[cfg(not(feature = "test-hooks"))]
const MOMENT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
";

/// As above, unless a test passes the time as one more argument. Then nothing expires, because expiry would follow the
/// server's clock.
#[cfg(feature = "test-hooks")]
const MOMENT: &str = "
-- tollgate test-hooks: the moment can be an argument
local now = tonumber(table.remove(ARGV))
local redis = redis
if now then
  local server = redis
  redis = {pcall = server.pcall, call = function(command, key, value) return server.call(command, key, value) end}
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
";

/// The complete script.
pub fn take() -> String {
    twins() + MOMENT + FRAME
}

/// The complete script that undoes charges.
pub fn undo() -> String {
    twins() + MOMENT + UNDO
}

/// The complete script that gives back, for an operator.
pub fn give_back() -> String {
    twins() + GIVE_BACK
}

/// A function `make_twin` that runs the text of a twin: all together take longer than the rest of a small call. In one function,
/// because each one that is made takes time; in blocks, so that local variables are not shared.
fn twins() -> String {
    let mut text = "local function make_twin(index)\n".to_owned();
    for (index, twin) in (1..).zip(TWINS) {
        let _ = write!(text, "if index == {index} then\n{twin}\nend\n");
    }
    text + "end\n"
}
