// Runs a snippet of the documentation over what a receiver got: a line of JSON in, its verdict out.
const readline = require("node:readline");
const { WebhookVerificationError } = require("standardwebhooks");

function verdict({ snippet, form, body: text, headers, secret, key_set }) {
  const body = Buffer.from(text, "base64");
  const check = `return typeof isGenuine === "function" ? isGenuine : undefined;`;
  const run = new Function("require", "body", "headers", `${snippet}\n${check}`);
  try {
    const isGenuine = run(require, body, headers);
    if (!isGenuine) return true;
    return form === "stripe"
      ? isGenuine(body, headers["postrider-signature"], secret)
      : isGenuine(body, headers, key_set);
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    return false;
  }
}

readline.createInterface({ input: process.stdin, terminal: false }).on("line", (line) => {
  process.stdout.write(`${verdict(JSON.parse(line)) === true}\n`);
});
