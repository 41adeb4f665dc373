//! The words both sides speak: types and legal values, no IO.

pub mod attempt;
pub mod audit;
pub mod delivery;
pub mod endpoint;
pub mod idempotency;
pub mod limits;
pub mod notice;
pub mod order;
pub mod pause;
pub mod postback;
pub mod replay;
pub mod signature;
pub mod trace;

/// A code stored in the database that this program does not know: written by a newer version, or damage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} code {code} in the database: written by a newer program?")]
pub struct UnknownCode {
    /// Which enumeration.
    pub what: &'static str,
    /// The code found.
    pub code: i16,
}

/// An enumeration with a stable code in SQL and a stable name everywhere else.
macro_rules! coded {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// Every value, in the order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code in SQL. Never reused.
            #[must_use]
            pub const fn code(self) -> i16 {
                match self { $(Self::$variant => $code),+ }
            }

            /// The name in the API, in metrics and in logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value of a name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }

        impl TryFrom<i16> for $name {
            type Error = $crate::domain::UnknownCode;

            fn try_from(code: i16) -> Result<Self, Self::Error> {
                match code {
                    $($code => Ok(Self::$variant),)+
                    _ => Err($crate::domain::UnknownCode { what: $what, code }),
                }
            }
        }
    };
}
pub(crate) use coded;
