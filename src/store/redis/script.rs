//! Puts together the script that takes: the Lua twins of all algorithms, the moment, and the frame around them.

use std::fmt::Write;

use crate::limit::algorithm::TWINS;

const FRAME: &str = include_str!("take.lua");

/// Tries every command that the script uses, and names what is refused.
pub const PROBE: &str = include_str!("probe.lua");

/// The server's own clock: no gateway's clock ever counts.
#[cfg(not(feature = "test-hooks"))]
const MOMENT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
";

/// As above, unless a test names the moment in one more argument. Then nothing expires: the server's clock, by which it
/// would, is not the one that counts.
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

/// The whole text.
pub fn take() -> String {
    let mut text = "local twins = {\n".to_owned();
    for twin in TWINS {
        // Each in a function of its own: what is local to one twin is not seen by another.
        let _ = write!(text, "(function()\n{twin}\nend)(),\n");
    }
    text + "}\n" + MOMENT + FRAME
}
