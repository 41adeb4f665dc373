"""The classic webhook worker, to compare with: see README.md."""

import argparse
import base64
import hashlib
import hmac
import time

import psycopg2
import psycopg2.extras
import requests

CLAIM = """
SELECT d.id, d.attempts, e.id AS event_id, e.type, e.payload, p.url, p.secret
FROM deliveries d JOIN events e ON e.id = d.event_id JOIN endpoints p ON p.id = d.endpoint_id
WHERE d.status IN ('pending', 'failed') AND d.next_attempt_at <= now()
ORDER BY d.next_attempt_at LIMIT %s FOR UPDATE OF d SKIP LOCKED"""
DELIVERED = "UPDATE deliveries SET status = 'delivered', attempts = attempts + 1, updated_at = now() WHERE id = %s"
FAILED = """
UPDATE deliveries SET status = %s, attempts = attempts + 1, last_error = %s, updated_at = now(),
       next_attempt_at = now() + %s * interval '1 s' WHERE id = %s"""
ATTEMPT = "INSERT INTO attempts (delivery_id, status_code, error, duration_ms) VALUES (%s, %s, %s, %s)"

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
MOST_ATTEMPTS = 15


def type_id(prefix, value):
    """The receiver knows ids by their form."""
    number = value.int
    return prefix + "_" + "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def sign(secret, webhook_id, timestamp, body):
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, b".".join([webhook_id.encode(), timestamp.encode(), body]), hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def send(session, row, deadline):
    """Status code or None, error or None."""
    body = row["payload"].encode()
    webhook_id, timestamp = type_id("evt", row["event_id"]), str(int(time.time()))
    headers = {
        "content-type": "application/json",
        "webhook-id": webhook_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign(row["secret"], webhook_id, timestamp, body),
        "postrider-event-type": row["type"],
        "postrider-delivery-id": type_id("dlv", row["id"]),
    }
    try:
        reply = session.post(row["url"], data=body, headers=headers, timeout=deadline, allow_redirects=False)
    except requests.RequestException as error:
        return None, type(error).__name__
    return reply.status_code, None if 200 <= reply.status_code < 300 else f"answered {reply.status_code}"


def work(connection, session, arguments):
    """One batch in one transaction; how many were due."""
    with connection, connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
        cursor.execute(CLAIM, [arguments.batch])
        rows = cursor.fetchall()
        for row in rows:
            began = time.monotonic()
            status, error = send(session, row, arguments.deadline)
            took = int((time.monotonic() - began) * 1000)
            if error is None:
                cursor.execute(DELIVERED, [row["id"]])
            else:
                given_up = row["attempts"] + 1 >= MOST_ATTEMPTS
                backoff = min(2 ** row["attempts"], 4)
                cursor.execute(FAILED, ["dead" if given_up else "failed", error, backoff, row["id"]])
            cursor.execute(ATTEMPT, [row["id"], status, error, took])
    return len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--poll", type=float, default=0.5, help="seconds")
    parser.add_argument("--always-sleep", action="store_true", help="after a full batch too")
    parser.add_argument("--deadline", type=float, default=15.0, help="of a request, in seconds")
    arguments = parser.parse_args()
    connection = psycopg2.connect(arguments.database)
    psycopg2.extras.register_uuid(None, connection)
    session = requests.Session()
    session.trust_env = False
    while True:
        due = work(connection, session, arguments)
        if due < arguments.batch or arguments.always_sleep:
            time.sleep(arguments.poll)


if __name__ == "__main__":
    main()
