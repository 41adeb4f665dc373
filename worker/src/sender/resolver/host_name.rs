//! A name as DNS could hold it: what is not is refused without asking anybody.

use std::fmt;
use std::sync::Arc;

use hickory_resolver::proto::rr::Name;

use super::LookupFailed;

const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A checked name, in lower case and without its last dot.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct HostName(Arc<str>);

impl fmt::Debug for HostName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl HostName {
    /// Checks a name; one last dot makes no difference.
    pub(super) fn parse(name: &str) -> Result<Self, LookupFailed> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let fits = name.len() <= LONGEST_NAME
            && name.split('.').all(is_label)
            && !name.rsplit('.').next().is_some_and(is_number);
        if !fits {
            return Err(LookupFailed::MalformedName);
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    /// RFC 6761: `localhost` and all below it are this machine, whatever a server says.
    pub(super) fn is_localhost(&self) -> bool {
        &*self.0 == "localhost" || self.0.ends_with(".localhost")
    }

    /// The name to ask for: from the root, so that no search domain is ever put behind it.
    pub(super) fn absolute(&self) -> Result<Name, LookupFailed> {
        let labels = self.0.split('.').map(str::as_bytes);
        let mut name =
            Name::from_labels(labels).map_err(|_too_long| LookupFailed::MalformedName)?;
        name.set_fqdn(true);
        Ok(name)
    }
}

fn is_label(label: &str) -> bool {
    (1..=LONGEST_LABEL).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What a URL parser takes for the end of an IPv4 address: asked for as a name, it could be one
/// under another spelling.
fn is_number(label: &str) -> bool {
    let hexadecimal = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"))
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hexadecimal || label.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_dns_cannot_hold_is_refused() {
        let label = "x".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "x".repeat(61));
        for name in [
            "a",
            "a.example",
            "A.example.",
            "_x.a-b.example",
            "1.example",
            "0xg",
            &longest,
        ] {
            assert!(HostName::parse(name).is_ok(), "{name}");
        }
        let long_label = format!("{label}x.example");
        let too_long = format!("x{longest}");
        for name in [
            "",
            ".",
            "..",
            "a..example",
            ".a",
            "a.example..",
            "a b",
            "ä.example",
            "a.\0",
            "127.1",
            "10.0.0.1",
            "a.0x7f",
            "1",
            &long_label,
            &too_long,
        ] {
            let refused = HostName::parse(name).err();
            assert_eq!(refused, Some(LookupFailed::MalformedName), "{name}");
        }
    }

    #[test]
    fn only_localhost_and_what_is_below_it_is_this_machine() {
        for (name, is) in [
            ("localhost", true),
            ("LOCALHOST.", true),
            ("a.b.localhost", true),
            ("alocalhost", false),
            ("localhost.example", false),
        ] {
            assert_eq!(HostName::parse(name).unwrap().is_localhost(), is, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_name_that_passes_can_be_asked_for(text in "[ -~]{0,80}(\\.[!-~]{1,70}){0,6}") {
            if let Ok(name) = HostName::parse(&text) {
                let asked = name.absolute();
                prop_assert!(asked.is_ok_and(|asked| asked.is_fqdn()), "{name:?}");
            }
        }
    }
}
