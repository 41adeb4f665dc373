//! What is wrong with a configuration: all of it at once, each with its fix.

use std::fmt;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting or name that it is about.
    pub setting: String,
    /// What is wrong and what to do about it. Never holds a secret.
    pub detail: String,
}

/// Every problem of a configuration. Never empty when returned as an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<Problem>);

impl ConfigErrors {
    /// One problem.
    #[must_use]
    pub fn one(setting: impl Into<String>, detail: impl Into<String>) -> Self {
        let mut errors = Self::default();
        errors.add(setting, detail);
        errors
    }

    /// Notes a problem.
    pub fn add(&mut self, setting: impl Into<String>, detail: impl Into<String>) {
        self.0.push(Problem {
            setting: setting.into(),
            detail: detail.into(),
        });
    }

    /// Takes over the problems of another part.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// `Ok` when nothing was noted.
    ///
    /// # Errors
    /// Itself, when anything was.
    pub fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the configuration cannot be used:")?;
        for problem in &self.0 {
            write!(out, "\n  {}: {}", problem.setting, problem.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The known name nearest to an unknown one, if one is near enough to be meant.
pub(super) fn did_you_mean<'a>(
    unknown: &str,
    known: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let most = unknown.len() / 4 + 1;
    known
        .map(|name| (distance(unknown, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein: how many letters to add, drop or change.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(b.chars()) {
            let changed = diagonal + usize::from(from != to);
            diagonal = *cell;
            left = changed.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_two_words_counts_letters_to_change() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
            ("same", "same", 0),
        ] {
            assert_eq!(distance(a, b), expected, "{a} → {b}");
        }
    }

    #[test]
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        let known = ["POSTRIDER_API_ADDR", "POSTRIDER_LEASE_TTL"];

        let near = did_you_mean("POSTRIDER_API_ADR", known.into_iter());
        let far = did_you_mean("POSTRIDER_COLOUR_OF_SKY", known.into_iter());

        assert_eq!(near, Some("POSTRIDER_API_ADDR"));
        assert_eq!(far, None);
    }
}
