// Verifies requests, one JSON object per line: v1 with the published Standard Webhooks library, v1a, which that library
// skips, with Node's own Ed25519 and nothing of ours.
const crypto = require("node:crypto");
const readline = require("node:readline");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

function verifyV1(request, body) {
  try {
    new Webhook(request.key).verify(body, request.headers, { jsonParse: false });
    return true;
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    return false;
  }
}

function verifyV1a(request, body) {
  const { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": header } = request.headers;
  const x = Buffer.from(request.key.slice("whpk_".length), "base64").toString("base64url");
  const key = crypto.createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const signed = Buffer.concat([Buffer.from(`${id}.${timestamp}.`), body]);
  return header
    .split(" ")
    .filter((one) => one.startsWith("v1a,"))
    .some((one) => crypto.verify(null, signed, key, Buffer.from(one.slice(4), "base64")));
}

readline.createInterface({ input: process.stdin, terminal: false }).on("line", (line) => {
  const request = JSON.parse(line);
  const body = Buffer.from(request.body, "base64");
  const valid = request.form === "v1a" ? verifyV1a(request, body) : verifyV1(request, body);
  process.stdout.write(`${valid}\n`);
});
