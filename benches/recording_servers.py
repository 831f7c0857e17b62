"""Servers as they are installed here, each with an application that answers with what it has read of a request, and writes it down."""

import glob
import os
import re
import shutil
import socket
import subprocess
import sys

import rig

APPLICATIONS = rig.ROOT / "benches/recorder"
# Each proxies to an application of its own, which records what the proxy has read; lenient where it can be.
NGINX = """
daemon off; pid {folder}/pid; error_log /dev/null; events {{}}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder}; client_max_body_size 0; ignore_invalid_headers off; underscores_in_headers on;
  upstream application {{ server 127.0.0.1:{behind}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port}{http2};
    location / {{
      proxy_pass http://application; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_set_header Connection ""; proxy_set_header X-Connection $connection;
    }}
  }}
}}
"""
HAPROXY = """
defaults
  mode http
  option accept-invalid-http-request
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen all
  bind 127.0.0.1:{port}{http2}
  http-request set-header X-Connection %[src_port]
  http-reuse always
  server application 127.0.0.1:{behind}
"""
CADDY = """
{{
  admin off
  auto_https off
  servers {{
    protocols h1 h2c
  }}
}}
:{port} {{
  bind 127.0.0.1
  reverse_proxy 127.0.0.1:{behind} {{
    header_up X-Connection {{remote_port}}
  }}
}}
"""
APACHE = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/pid
ErrorLog /dev/null
Listen 127.0.0.1:{port}
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule headers_module {modules}/mod_headers.so
LoadModule proxy_module {modules}/mod_proxy.so
LoadModule proxy_http_module {modules}/mod_proxy_http.so
User nobody
Group nogroup
KeepAlive On
MaxKeepAliveRequests 0
AllowEncodedSlashes NoDecode
HttpProtocolOptions Unsafe LenientMethods
RequestHeader set X-Connection expr=%{{REMOTE_PORT}}
ProxyPass / http://127.0.0.1:{behind}/ nocanon
"""
APACHE_MODULES = "/usr/lib/apache2/modules"


class Server:
    """A server that is ready: its processes, its port, and the file of its records. Raises `Missing` if it is not installed."""

    def __init__(self, name, folder):
        path = folder / re.sub(r"\W", "-", name)
        path.mkdir()
        path.chmod(0o777)
        self.folder, self.records, self.processes = rig.Folder(path), path / "records", []
        self.port = rig.free_port()
        self.records.touch()
        self.records.chmod(0o666)
        self.name = name
        self.kind, _, self.variant = name.partition(", ")
        # HTTP/2 towards it, without TLS.
        self.protocol = "h2c" if self.variant == "HTTP/2" else "http/1.1"
        try:
            getattr(self, self.kind.lower())()
            listens(name, self.port)
        except BaseException:
            self.end()
            raise

    def start(self, *command, **environment):
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.processes.append(process)

    def proxy(self, program, text, *arguments):
        """A proxy, and the application behind it."""
        found, behind = installed(program), rig.free_port()
        self.start(sys.executable, APPLICATIONS / "recorder.py", behind, self.records)
        listens("its application", behind)
        http2 = {"nginx": " http2", "haproxy": " proto h2"}.get(program, "") if self.protocol == "h2c" else ""
        file = self.folder.write(
            "file", text.format(folder=self.folder.path, port=self.port, behind=behind, http2=http2, modules=APACHE_MODULES)
        )
        self.start(found, *arguments, file)

    def python(self):
        self.start(sys.executable, APPLICATIONS / "recorder.py", self.port, self.records)

    def nginx(self):
        self.proxy("nginx", NGINX, "-c")

    def haproxy(self):
        self.proxy("haproxy", HAPROXY, "-db", "-f")

    def caddy(self):
        self.proxy("caddy", CADDY, "run", "--adapter", "caddyfile", "--config")

    def apache(self):
        self.proxy("apache2", APACHE, "-D", "FOREGROUND", "-f")

    def node(self):
        options = ["--insecure-http-parser"] if self.variant == "lenient" else []
        self.start(installed("node"), *options, APPLICATIONS / "recorder.js", self.port, self.records, self.protocol)

    def go(self):
        program = self.folder.path / "recorder"
        subprocess.run([installed("go"), "build", "-o", program, APPLICATIONS / "recorder.go"], check=True)
        self.start(program, self.port, self.records)

    def tomcat(self):
        if not (classes := ":".join(glob.glob("/usr/share/java/tomcat10-*.jar"))):
            raise Missing("libtomcat10-java")
        # From the sources, which only a development kit can do.
        installed("javac")
        self.start(installed("java"), "-cp", classes, APPLICATIONS / "Recorder.java", self.port, self.records, self.folder.path)

    def uwsgi(self):
        # Its own server keeps connections, and so does the router before it.
        listening = {
            "router": ["--plugin", "http", "--http", f"127.0.0.1:{self.port}", "--http-keepalive", "--http-chunked-input"],
            "": ["--http11-socket", f"127.0.0.1:{self.port}"],
        }[self.variant]
        if not glob.glob("/usr/lib/uwsgi/plugins/python3_plugin.so"):
            raise Missing("uwsgi-plugin-python3")
        self.start(
            installed("uwsgi"),
            "--plugin",
            "python3",
            *listening,
            "--wsgi-file",
            APPLICATIONS / "recorder.py",
            "--threads",
            "32",
            "--master",
            "--die-on-term",
            RECORDS=str(self.records),
        )

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


class Missing(Exception):
    """The program that is not installed."""


def listens(name, port):
    """Waits until there is a server: a Java program may take a while."""

    def connected():
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close() is None
        except OSError:
            return False

    rig.soon(f"{name} listens", connected)


def installed(program):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if not found:
        raise Missing(program)
    return found


NAMES = [
    "Python",
    "nginx",
    "nginx, HTTP/2",
    "HAProxy",
    "HAProxy, HTTP/2",
    "Caddy",
    "Caddy, HTTP/2",
    "Apache",
    "Tomcat",
    "Tomcat, HTTP/2",
    "uWSGI",
    "uWSGI, router",
    "Node",
    "Node, lenient",
    "Node, HTTP/2",
    "Go",
]
# Names of hostile requests that it does not get: nginx closes the connection of all requests for trailers over HTTP/2.
SKIPPED = {"nginx, HTTP/2": "trailer|a second head"}
# With the programs that the tests need anyway.
SHORT = ["Python", "nginx", "HAProxy", "Caddy"]
