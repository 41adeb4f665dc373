//! How an endpoint's requests are signed, in its document: `signature` and `signing`.

use serde_json::Value;
use shared::domain::signature::{SignatureStyle, Signing, WrongSchemes};

use crate::json::Fields;

pub(super) fn read(fields: &mut Fields) -> (SignatureStyle, Signing) {
    let style = style(fields).unwrap_or_default();
    let signing = signing(fields).unwrap_or_default();
    if signing != Signing::default() {
        let what = match style {
            SignatureStyle::Standard => None,
            SignatureStyle::Stripe => Some("`\"signature\": \"stripe\"` has one scheme only"),
            SignatureStyle::None => Some("`\"signature\": \"none\"` signs nothing"),
        };
        if let Some(what) = what {
            let name = fields.blamed("signing", "signature");
            fields.wrong(name, format!("{what}: it goes with `\"signing\": null`"));
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
