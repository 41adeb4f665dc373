"""Verifies requests, one JSON object per line, with the published Standard Webhooks library."""

import base64
import json
import sys

from standardwebhooks import Webhook, WebhookVerificationError

for line in sys.stdin:
    request = json.loads(line)
    body = base64.b64decode(request["body"])
    try:
        Webhook(request["secret"]).verify(body, request["headers"], json_parse=bool(body))
        print("true")
    except WebhookVerificationError:
        print("false")
