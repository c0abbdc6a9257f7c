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

/// Names of kernels, what they begin with said once: `matmul.i2_s.{avx2.decode, avx2.prefill}`.
pub(crate) struct Kernels<'a>(pub(crate) &'a [&'a str]);

impl std::fmt::Display for Kernels<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (first, others) = match self.0 {
            [] => return Ok(()),
            [one] => return f.write_str(one),
            [first, others @ ..] => (*first, others),
        };
        let shared = others.iter().fold(first.len(), |shared, other| shared_facts(first, other).min(shared));
        let rests: Vec<&str> = self.0.iter().map(|name| &name[shared..]).collect();
        write!(f, "{}{{{}}}", &first[..shared], List(&rests))
    }
}

/// Bytes of the facts that both names begin with, their dots included, the last fact of neither.
pub(crate) const fn shared_facts(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let (mut shared, mut at) = (0, 0);
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
        if a[at - 1] == b'.' {
            shared = at;
        }
    }
    shared
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
    use super::{Kernels, nearest};

    #[test]
    fn shared_facts_are_said_once() {
        let said = |names: &[&str]| Kernels(names).to_string();
        assert_eq!(
            said(&["matmul.a.cuda.mma.wide", "matmul.a.cuda.mma", "matmul.a.cuda.dp4a"]),
            "matmul.a.cuda.{mma.wide, mma, dp4a}"
        );
        assert_eq!(said(&["matmul.a.cuda", "matmul.a.cuda.mma"]), "matmul.a.{cuda, cuda.mma}");
        assert_eq!(said(&["matmul.a.avx2", "matmul.a.avx512"]), "matmul.a.{avx2, avx512}");
        assert_eq!(
            (said(&["a.b"]), said(&["a", "b"]), said(&["é.a", "è.a"])),
            ("a.b".into(), "{a, b}".into(), "{é.a, è.a}".into())
        );
    }

    #[test]
    fn suggests_only_what_is_close() {
        let known = ["i2_s", "q4_0", "q4_k", "tq2_0"];
        assert_eq!(nearest("i2s", known), Some("i2_s"));
        assert_eq!(nearest("Q4_0", known), Some("q4_0"));
        assert_eq!(nearest("bfloat", known), None);
        assert_eq!(nearest("", known), None);
    }
}
