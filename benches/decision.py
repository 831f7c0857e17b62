#!/usr/bin/env python3
"""CPU per decision that another proxy asks for by HTTP, against proxying the same request.

    python3 benches/decision.py [--rounds 12] [--seconds 1]

Starts a gateway that proxies to an nginx that answers `ok` from memory, and one that answers calls of `/decide` about the same
request in each form, all with one rule in memory, and drives each in turn with wrk over 64 keep-alive connections.
"""

import subprocess
import tempfile

import rig
from rig import ROOT, UPSTREAM, free_port

RULE = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000000, burst: 1000000}}]\n"
FIELDS = {"Host": "api.example.com", "User-Agent": "bench", "Accept": "*/*", "Authorization": "Bearer 0123456789abcdef"}
ADDRESS = {"X-Forwarded-For": "203.0.113.7"}
FORMS = {
    "x-forwarded": ("/decide", {"X-Forwarded-Method": "GET", "X-Forwarded-Proto": "https",
                                "X-Forwarded-Host": "api.example.com", "X-Forwarded-Uri": "/v1/users?page=2"}),
    "x-original": ("/decide", {"X-Original-Method": "GET", "X-Original-URL": "https://api.example.com/v1/users?page=2"}),
    "path": ("/decide/v1/users?page=2", {"X-Forwarded-Proto": "https"}),
}
BUDGET = 0.70


def main():
    arguments = rig.arguments(__doc__, rounds=12, seconds=1)
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk"], check=True)
    tollgate = rig.cargo("--bin", "tollgate") / "tollgate"

    with tempfile.TemporaryDirectory() as folder:
        folder = rig.Folder(folder)

        def load(name, path, fields):
            lines = [f'wrk.headers["{field}"] = "{value}"' for field, value in {**FIELDS, **ADDRESS, **fields}.items()]
            return ["-s", folder.write(f"{name}.lua", "\n".join([f'wrk.path = "{path}"', *lines]) + "\n")]

        def gateway(name, listener, rest, path, fields):
            port = free_port()
            text = f"listeners: [{{address: 127.0.0.1:{port}{listener}}}]\n{rest}{RULE}"
            command = [tollgate, "run", "-c", folder.write(f"{name}.yaml", text)]
            return (command, port, *load(name, path, fields))

        trust = "client_ip: {trusted_proxies: [127.0.0.0/8]}\n"
        proxied = f"upstream: http://127.0.0.1:{UPSTREAM}\n{trust}"
        subjects = {"proxied": gateway("proxied", "", proxied, "/v1/users?page=2", {})}
        for form, (path, fields) in FORMS.items():
            decide = f", decide: [http], clients: [127.0.0.0/8], original_request: {form}"
            subjects[f"decided, {form}"] = gateway(form, decide, "", path, fields)
        rounds = rig.rounds_beside_upstream(folder, subjects, arguments)

    print(f"{rig.headline(arguments)}\n")

    def compared(name):
        return ["", "", ""] if name == "proxied" else [rig.ratio(rounds, name, "proxied"), f"{BUDGET:.2f}"]

    rig.keep(arguments, rig.table(rounds, more_heads=("ratio", "middle half", "budget"), more=compared))


if __name__ == "__main__":
    main()
