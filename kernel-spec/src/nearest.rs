//! What may have been meant by a name.

/// The name most like `name`, if one is alike enough to have been meant.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A name of kilobytes is no slip of the finger, and the distance takes quadratic time.
    if name.len() > 64 {
        return None;
    }
    let allowed = 1 + name.chars().count() / 4;
    names
        .into_iter()
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}
