// Verifies requests, one JSON object per line, with the published Standard Webhooks library.
const readline = require("node:readline");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

readline.createInterface({ input: process.stdin, terminal: false }).on("line", (line) => {
  const request = JSON.parse(line);
  const body = Buffer.from(request.body, "base64");
  try {
    new Webhook(request.secret).verify(body, request.headers);
    process.stdout.write("true\n");
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    process.stdout.write("false\n");
  }
});
