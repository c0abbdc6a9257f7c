//! Which architectures' machine code is assembled from the same PTX. Compiling to PTX takes as long as assembling it, and
//! a text that looks at `__CUDA_ARCH__` in a few places only gives the same PTX for all architectures between two of them.

use crate::cuda::Part;
use crate::cuda::arch::plain;
use gristmill_spec::vocab::CudaArch;
use std::collections::BTreeSet;

/// Images that are made together: `(architecture, PTX)`, in the order in which they were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// What their PTX is compiled for; `None` where an image is compiled on its own.
    pub(super) front: Option<CudaArch>,
    pub(super) images: Vec<(CudaArch, bool)>,
}

/// Divides the images of one text. PTX for another architecture than its group's stands alone.
pub(super) fn groups(text: &str, images: &[(CudaArch, bool)]) -> Vec<Group> {
    let alone = |image: &(CudaArch, bool)| Group { front: None, images: vec![*image] };
    let Some(steps) = steps(text) else { return images.iter().map(alone).collect() };
    let level = |arch: CudaArch| steps.iter().filter(|step| **step <= arch.cc()).count();
    let mut groups = Vec::new();
    for at in 0..=steps.len() {
        let here = || images.iter().filter(move |(arch, _)| level(*arch) == at);
        let Some((major, minor)) = here().map(|(arch, _)| arch.cc()).min() else { continue };
        // Where all are bound to their devices, the PTX of each serves its own images.
        let fronts: BTreeSet<CudaArch> = if here().all(|(arch, _)| arch.specific) {
            here().map(|(arch, _)| *arch).collect()
        } else {
            BTreeSet::from([plain(major, minor)])
        };
        let bound = fronts.iter().any(|front| front.specific);
        let served = |front: CudaArch, (arch, ptx): (CudaArch, bool)| arch == front || (!ptx && !bound);
        for front in &fronts {
            let together: Vec<_> = here().copied().filter(|image| served(*front, *image)).collect();
            if let [image] = &together[..] {
                groups.push(alone(image));
            } else if !together.is_empty() {
                groups.push(Group { front: Some(*front), images: together });
            }
        }
        let apart = here().filter(|image| !fronts.iter().any(|front| served(*front, **image)));
        groups.extend(apart.map(alone));
    }
    groups
}

/// Those of `archs` (ascending) whose text differs from that of the one before: what an older one's PTX says, a newer one's need
/// not say again.
pub(in crate::cuda) fn distinct(text: &str, archs: &[CudaArch]) -> Vec<CudaArch> {
    let Some(steps) = steps(text) else { return archs.to_vec() };
    let level = |arch: &CudaArch| steps.iter().filter(|step| **step <= arch.cc()).count();
    let mut distinct = archs.to_vec();
    distinct.dedup_by_key(|arch| level(arch));
    distinct
}

/// The text without what stands under an `#ifdef` of a part of the vocabulary that it does not define.
fn without_parts(text: &str) -> Option<String> {
    let defined: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("#define ")).collect();
    let mut kept = String::with_capacity(text.len());
    // How many conditions are open since the one that does not hold.
    let mut depth = 0;
    for line in text.lines() {
        let part =
            line.strip_prefix("#ifdef ").filter(|name| Part::ALL.iter().any(|part| part.name() == *name));
        match depth {
            0 if part.is_some_and(|name| !defined.contains(name)) => depth = 1,
            0 => {
                kept.push_str(line);
                kept.push('\n');
            }
            // An alternative to what is left out: nobody writes that.
            1 if line.starts_with("#el") => return None,
            _ if line.starts_with("#if") => depth += 1,
            _ if line.starts_with("#endif") => depth -= 1,
            _ => {}
        }
    }
    Some(kept)
}

/// The compute capabilities from which on the text is another one, ascending; `None` where it asks for the architecture
/// in other ways than `defined(__CUDA_ARCH__)` and comparisons with numbers.
fn steps(text: &str) -> Option<Vec<(u8, u8)>> {
    const WORD: &str = "__CUDA_ARCH";
    let text = &without_parts(text)?;
    let mut steps = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(WORD).map(|found| from + found) {
        from = at + WORD.len();
        let rest = text[from..].strip_prefix("__")?;
        if text[..at].ends_with("defined(") && rest.starts_with(')') {
            continue;
        }
        let rest = rest.trim_start_matches(' ');
        let number = rest.strip_prefix("< ").or_else(|| rest.strip_prefix(">= "))?.trim_start_matches(' ');
        let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        let number: u16 = number[..digits].parse().ok()?;
        steps.push((u8::try_from(number / 100).ok()?, u8::try_from(number % 100 / 10).ok()?));
    }
    steps.sort_unstable();
    steps.dedup();
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch(name: &str) -> CudaArch {
        CudaArch::from_name(name).unwrap()
    }

    fn shown(text: &str, machine: &[&str], ptx: Option<&str>) -> Vec<String> {
        let mut images: Vec<_> = machine.iter().map(|name| (arch(name), false)).collect();
        images.extend(ptx.map(|name| (arch(name), true)));
        let show = |group: &Group| {
            let front = group.front.map_or("alone".to_string(), |front| front.to_string());
            let images: Vec<String> = group
                .images
                .iter()
                .map(|(arch, ptx)| format!("{}{arch}", if *ptx { "p" } else { "" }))
                .collect();
            format!("{front}: {}", images.join(" "))
        };
        groups(text, &images).iter().map(show).collect()
    }

    #[test]
    fn steps_divide_architectures() {
        let text =
            "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800\n#endif\n#if __CUDA_ARCH__ >= 900\n#endif\n";
        assert_eq!(steps(text), Some(vec![(8, 0), (9, 0)]));
        assert_eq!(
            shown(text, &["75", "80", "86", "90a", "120"], Some("90")),
            ["alone: 75", "80: 80 86", "90: 90a 120 p90"]
        );
        assert_eq!(shown(text, &["90a"], None), ["alone: 90a"]);
        assert_eq!(shown(text, &["90a"], Some("90a")), ["90a: 90a p90a"]);
        assert_eq!(shown(text, &["120a", "121a"], Some("121a")), ["alone: 120a", "121a: 121a p121a"]);
        // Compiled for 8.6, PTX does not serve 8.0.
        assert_eq!(shown(text, &["86", "89"], Some("89")), ["86: 86 89", "alone: p89"]);
        assert_eq!(shown("", &["75", "90a"], Some("75")), ["75: 75 90a p75"]);
    }

    #[test]
    fn parts_that_are_not_defined_do_not_count() {
        let text = "#ifdef GM_COPIES\n#if __CUDA_ARCH__ < 800\n#else\n#endif\n#endif\n\
                    #ifdef GM_OVERLAP\n#if __CUDA_ARCH__ < 900\n#endif\n#endif\n";
        let with = |names: &[&str]| {
            let defined: String = names.iter().map(|name| format!("#define {name}\n")).collect();
            steps(&(defined + text))
        };
        assert_eq!(with(&[]), Some(vec![]));
        assert_eq!(with(&["GM_COPIES"]), Some(vec![(8, 0)]));
        assert_eq!(with(&["GM_OVERLAP", "GM_COPIES"]), Some(vec![(8, 0), (9, 0)]));
        // Other conditions may hold.
        assert_eq!(steps("#ifdef OTHER\n#if __CUDA_ARCH__ < 800\n#endif\n#endif"), Some(vec![(8, 0)]));
        assert_eq!(steps("#ifdef GM_COPIES\n#else\n#if __CUDA_ARCH__ < 800\n#endif\n#endif"), None);
    }

    #[test]
    fn ptx_is_made_where_it_differs() {
        let archs = ["75", "80", "86", "90"].map(arch);
        let shown = |text| distinct(text, &archs).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            shown("#if __CUDA_ARCH__ < 800\n#endif\n#if __CUDA_ARCH__ >= 900\n#endif"),
            ["75", "80", "90"]
        );
        assert_eq!(shown("#if __CUDA_ARCH__ >= 900\n#endif"), ["75", "90"]);
        assert_eq!(shown(""), ["75"]);
        assert_eq!(shown("#if __CUDA_ARCH__ == 860"), ["75", "80", "86", "90"]);
    }

    #[test]
    fn other_questions_keep_architectures_apart() {
        for text in [
            "#if __CUDA_ARCH__ == 900",
            "#if __CUDA_ARCH__ <= 890",
            "int arch = __CUDA_ARCH__;",
            "#ifdef __CUDA_ARCH_FEAT_SM90_ALL",
            "#if __CUDA_ARCH__ < SOME",
        ] {
            assert_eq!(steps(text), None, "{text}");
            assert_eq!(shown(text, &["80", "86"], None), ["alone: 80", "alone: 86"]);
        }
        assert_eq!(steps("#if !defined(__CUDA_ARCH__)"), Some(Vec::new()));
    }
}
