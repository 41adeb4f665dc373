"""Runs a snippet of the documentation over what a receiver got: a line of JSON in, its verdict out."""

import base64
import json
import sys

import stripe
from standardwebhooks import WebhookVerificationError


def verdict(case):
    body, headers = base64.b64decode(case["body"]), case["headers"]
    names = {"body": body, "headers": headers}
    try:
        exec(case["snippet"], names)
    except (WebhookVerificationError, stripe.SignatureVerificationError):
        return False
    check = names.get("is_genuine")
    return check(body, headers, case["public_keys"]) if check else True


for line in sys.stdin:
    print("true" if verdict(json.loads(line)) else "false")
