"""Verifies requests, one JSON object per line, with the published libraries of Standard Webhooks and Stripe."""

import base64
import json
import sys

import stripe
from standardwebhooks import Webhook, WebhookVerificationError


def verify(request, body):
    headers, key = request["headers"], request["key"]
    if request["form"] == "stripe":
        stripe.WebhookSignature.verify_header(body, headers["postrider-signature"], key, 300)
    else:
        Webhook(key).verify(body, headers, json_parse=False)


for line in sys.stdin:
    request = json.loads(line)
    try:
        verify(request, base64.b64decode(request["body"]))
        print("true")
    except (WebhookVerificationError, stripe.SignatureVerificationError):
        print("false")
