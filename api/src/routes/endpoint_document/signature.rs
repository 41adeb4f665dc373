//! How an endpoint's requests are signed, in its document: `signature` and `signing`.

use serde_json::Value;
use shared::domain::signature::{SignatureStyle, Signing, WrongSchemes};

use crate::json::Fields;

pub(super) fn read(fields: &mut Fields) -> (SignatureStyle, Signing) {
    let style = style(fields).unwrap_or_default();
    let signing = signing(fields).unwrap_or_default();
    if signing != Signing::default() {
        match style {
            SignatureStyle::Standard => {}
            SignatureStyle::Stripe => fields.wrong(
                "signing",
                "must be left out or null with `\"signature\": \"stripe\"`, which has one scheme only",
            ),
            SignatureStyle::None => fields.wrong(
                "signing",
                "must be left out or null with `\"signature\": \"none\"`, which signs nothing",
            ),
        }
    }
    (style, signing)
}

fn style(fields: &mut Fields) -> Option<SignatureStyle> {
    let text = fields.text("signature")?;
    let style = serde_json::from_value(Value::String(text));
    style
        .map_err(|_unknown| fields.wrong("signature", "must be `standard`, `stripe` or `none`"))
        .ok()
}

fn signing(fields: &mut Fields) -> Option<Signing> {
    let value = fields.take("signing")?;
    serde_json::from_value(value)
        .map_err(|_other| fields.wrong("signing", WrongSchemes.to_string()))
        .ok()
}
