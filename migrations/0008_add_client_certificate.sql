-- What an endpoint shows to a receiver that asks for a certificate (mutual TLS): JSON with two PEM texts, encrypted.
ALTER TABLE endpoints ADD sealed_client_certificate bytea;
