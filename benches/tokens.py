#!/usr/bin/env python3
"""What tokens cost: CPU per request of the gateway for none, for good ones, and for a flood of bad ones.

    python3 benches/tokens.py [--rounds 5] [--seconds 4]

Over 64 keep-alive connections, with one rule in memory. `again` is one good token that comes with every request, `new` are
good ones that have never been seen, `bad` are as well made and signed by somebody else. With `limited` an address may
show five of them a second. HS256 costs little to verify; ES256 is the dearest. Good tokens go through to the upstream,
bad ones are answered at once.
"""

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import tempfile
import time

import rig
from rig import PROXY, ROOT, UPSTREAM

SECRET = "0123456789abcdef0123456789abcdef"
# A public key on P-256 to which nobody has the other half here: whatever it is asked to verify is bad.
POINT = {"kty": "EC", "crv": "P-256", "kid": "k",
         "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}
FILE = f"listen: 127.0.0.1:{PROXY}\nupstream: http://127.0.0.1:{UPSTREAM}\n"
RULE = "rules: [{name: all, limit_keys: ['%s'], algorithm_config: {rps: 1000000, burst: 1000000}}]\n"
HS256 = f"jwt:\n  algorithms: [HS256]\n  keys: {{secret: {SECRET}}}\n"
ES256 = "jwt:\n  algorithms: [ES256]\n  keys: {jwks_file: keys.json}\n"
LIMIT = "  invalid_limit: {rps: 5, burst: 50}\n"
ALL = "  invalid_limit: {rps: 1000000, burst: 1000000}\n"
# Each request has the next token of a file; wrk has one thread.
SCRIPT = """
local tokens, at = {}, 0
for line in io.lines("%s") do tokens[#tokens + 1] = "Bearer " .. line end
request = function()
  at = at %% #tokens + 1
  return wrk.format("GET", "/", {["Authorization"] = tokens[at]})
end
"""


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(header, number, signature):
    claims = {"sub": "alice", "plan": "free", "jti": number, "exp": int(time.time()) + 86400}
    message = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
    return f"{message}.{encode(signature(message.encode()))}"


def hs256(number, secret):
    return token({"alg": "HS256"}, number, lambda message: hmac.new(secret.encode(), message, hashlib.sha256).digest())


def es256(number):
    return token({"alg": "ES256", "kid": "k"}, number, lambda message: hashlib.sha512(message).digest())


def main():
    arguments = rig.arguments(__doc__)
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk"], check=True)
    tollgate = rig.cargo("--bin", "tollgate") / "tollgate"
    # More than a run can ask for: none comes twice.
    many = range(100_000 * (arguments.seconds + 1))

    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        folder.write("keys.json", json.dumps({"keys": [POINT]}))

        def gateway(name, jwt):
            rule = RULE % ("jwt:sub|ip:address" if jwt else "ip:address")
            return [tollgate, "run", "-c", folder.write(f"{name}.yaml", FILE + jwt + rule)]

        def tokens(name, made):
            lines = folder.write(f"{name}.txt", "\n".join(made) + "\n")
            return ["-s", folder.write(f"{name}.lua", SCRIPT % lines)]

        again = ["-H", f"Authorization: Bearer {hs256(0, SECRET)}"]
        new = tokens("new", (hs256(number, SECRET) for number in many))
        bad = tokens("bad", (hs256(number, "somebody else's secret, just as long") for number in many))
        bad_es = tokens("bad-es", (es256(number) for number in many))
        subjects = {
            "no token, no `jwt`": (gateway("none", ""), []),
            "no token": (gateway("hs", HS256), []),
            "good, again": (gateway("hs", HS256), again),
            "good, new, HS256": (gateway("hs", HS256), new),
            "bad, HS256": (gateway("hs-all", HS256 + ALL), bad),
            "bad, HS256, limited": (gateway("hs-limited", HS256 + LIMIT), bad),
            "bad, ES256": (gateway("es-all", ES256 + ALL), bad_es),
            "bad, ES256, limited": (gateway("es-limited", ES256 + LIMIT), bad_es),
        }
        upstream = folder.upstream()
        try:
            rounds = []
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
                rounds.append({
                    name: rig.measure(command, arguments.seconds, *options, refusals="bad" in name)
                    for name, (command, options) in subjects.items()
                })
        finally:
            upstream.terminate()
            upstream.wait()

    print(f"{rig.headline(arguments)}\n")
    rig.keep(arguments, rig.table(rounds))


if __name__ == "__main__":
    main()
