//! Name suggestions: what somebody may have meant.

/// The known name that is closest to `name`, if one is close enough to be meant.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_ascii_lowercase();
    let limit = (wanted.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A list for people: `a, b, c`, or `none`.
pub(crate) struct List<'a, T>(pub(crate) &'a [T]);

impl<T: std::fmt::Display> std::fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, item) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{item}")?;
        }
        Ok(())
    }
}

/// ` (did you mean `x`?)`, or nothing.
pub(crate) struct Meant<'a>(pub(crate) &'a Option<&'static str>);

impl std::fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(name) => write!(f, " (did you mean `{name}`?)"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_only_what_is_close() {
        let known = ["i2_s", "q4_0", "q4_k", "tq2_0"];
        assert_eq!(nearest("i2s", known), Some("i2_s"));
        assert_eq!(nearest("Q4_0", known), Some("q4_0"));
        assert_eq!(nearest("bfloat", known), None);
        assert_eq!(nearest("", known), None);
    }
}
