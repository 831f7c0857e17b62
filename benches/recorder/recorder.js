// As recorder.py: recorder.js PORT FILE [h2c].
const fs = require("fs");
const [port, path, protocol] = process.argv.slice(2);

function answer(request, response) {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("error", () => {});
  request.on("end", () => {
    if (!request.complete) return;
    const fields = [];
    for (let i = 0; i < request.rawHeaders.length; i += 2) fields.push(request.rawHeaders.slice(i, i + 2));
    const body = Buffer.concat(parts);
    const line = JSON.stringify({
      method: request.method,
      target: request.url,
      fields,
      connection: request.socket?.remotePort ?? null,
      body: body.toString("latin1").slice(0, 4096),
      length: body.length,
    }) + "\n";
    fs.appendFileSync(path, line);
    response.writeHead(200, { "content-length": Buffer.byteLength(line) });
    response.end(request.method === "HEAD" ? undefined : line);
  });
}

require(protocol === "h2c" ? "http2" : "http").createServer(answer).listen(Number(port), "127.0.0.1");
