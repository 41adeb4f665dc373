//! What must not be found, in each form that a program may write it.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Secrets, with what each is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Needles(Vec<Needle>);

#[derive(Debug, Clone)]
struct Needle {
    what: String,
    forms: Vec<(&'static str, String)>,
}

impl Needles {
    pub(crate) fn add(&mut self, what: &str, secret: impl AsRef<[u8]>) {
        self.0.push(Needle {
            what: what.to_owned(),
            forms: forms(secret.as_ref()),
        });
    }

    /// All but those whose description begins so.
    pub(crate) fn without(&self, what: &str) -> Self {
        let mut rest = self.clone();
        rest.0.retain(|needle| !needle.what.starts_with(what));
        rest
    }

    /// Which ones are in a text, and in what form.
    pub(crate) fn in_text(&self, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for needle in &self.0 {
            for (form, written) in &needle.forms {
                if text.contains(written) {
                    found.push(format!("{} ({form})", needle.what));
                }
            }
        }
        found
    }

    /// Every form of every one, with what [`Needles::in_text`] says about it.
    pub(crate) fn all(&self) -> impl Iterator<Item = (String, &str)> {
        self.0.iter().flat_map(|needle| {
            let told = |form: &str| format!("{} ({form})", needle.what);
            let forms = needle.forms.iter();
            forms.map(move |(form, written)| (told(form), written.as_str()))
        })
    }
}

fn forms(secret: &[u8]) -> Vec<(&'static str, String)> {
    let list = |separator: &str, one: fn(&u8) -> String| {
        let all: Vec<String> = secret.iter().map(one).collect();
        all.join(separator)
    };
    let mut forms = vec![
        ("hex", list("", |byte| format!("{byte:02x}"))),
        ("HEX", list("", |byte| format!("{byte:02X}"))),
        ("percent", list("", |byte| format!("%{byte:02X}"))),
        ("bytes", list(", ", u8::to_string)),
        ("percent where needed", list("", percent_where_needed)),
    ];
    for (offset, name) in ["base64", "base64 + 1", "base64 + 2"]
        .into_iter()
        .enumerate()
    {
        forms.push((name, base64(&STANDARD_NO_PAD, offset, secret)));
        forms.push((name, base64(&URL_SAFE_NO_PAD, offset, secret)));
    }
    if let Ok(text) = std::str::from_utf8(secret) {
        forms.push(("as it is", text.to_owned()));
        forms.push(("escaped", text.escape_debug().to_string()));
    }
    forms
}

fn percent_where_needed(byte: &u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
        char::from(*byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// What of a longer base64 text shows that the secret stands in it, so many bytes behind a multiple of three.
fn base64(engine: &impl Engine, offset: usize, secret: &[u8]) -> String {
    let text = engine.encode([vec![0; offset], secret.to_vec()].concat());
    let (first, after) = ((offset * 8).div_ceil(6), (offset + secret.len()) * 8 / 6);
    text.get(first..after).unwrap().to_owned()
}
