//! Where the terms of super-blocks stand in a panel: the number that their runs share, the integers and the flags of each run.

use super::terms;
use crate::plan::{Integers, MatmulPlan, SuperBlock, Term, TermTypes};
use std::fmt::Write;

/// Which terms of super-blocks are read.
#[derive(Clone, Copy)]
pub(super) struct TermsRead {
    /// The numbers that super-blocks share.
    pub values: bool,
    /// The integers of their runs.
    pub integers: bool,
}

/// Constants by which terms of super-blocks are found.
pub(super) fn constants(plan: &MatmulPlan<'_>, superblock: &SuperBlock) -> String {
    let (types, runs, rows) = (plan.pack.terms, superblock.runs, plan.pack.packing.rows);
    let minima = superblock.min.is_some();
    let mut out = format!(
        "/// Runs of a super-block.
         const RUNS: usize = {runs};
         /// Words that its terms take in a panel.
         const WORDS: usize = {};\n",
        types.words(Term::Scale, runs, rows)
    );
    if minima {
        let _ = writeln!(
            out,
            "/// Words that its minima take.\nconst MIN_WORDS: usize = {};",
            types.words(Term::Min, runs, rows)
        );
    }
    let shared = |integers| matches!(integers, Integers::Nibbles { .. });
    if shared(types.scale_integers) || (minima && shared(types.min_integers)) {
        out.push_str(
            "/// Rows to a half of a panel. Their integers share bytes with those of the other half.
             const HALF: usize = ROWS / 2;\n",
        );
    }
    out
}

/// Where the numbers that super-blocks share begin, and the integers of their minima; `integers`: those of their scales, too.
pub(super) fn terms_of_superblocks(plan: &MatmulPlan<'_>, superblock: &SuperBlock, integers: bool) -> String {
    let mut out = terms_of_rows(plan, Term::Scale, TermsRead { values: true, integers });
    if superblock.min.is_some() {
        out.push_str(&terms_of_rows(plan, Term::Min, TermsRead { values: true, integers: true }));
    }
    out
}

/// Where a term of the rows of `V` vectors begins.
pub(super) fn terms_of_rows(plan: &MatmulPlan<'_>, term: Term, read: TermsRead) -> String {
    let (types, rows) = (plan.pack.terms, plan.pack.packing.rows);
    let (name, words, integers) = (term.one(), words(term), types.integers(term));
    // Integers of minima lie in pairs of runs.
    let each = if term == Term::Min { 2 } else { 1 };
    let shared = types.shared_words(rows);
    let pointer = terms::pointer(types, term);
    let values = terms::cast_words(types, "panel");
    let whole_panel = plan.primitives.lanes == rows;
    let nibbles = matches!(integers, Integers::Nibbles { .. });
    let (byte, within) = if nibbles { ("u8", "within") } else { ("i8", "row % ROWS") };
    let mut declared = String::new();
    let mut set = String::new();
    if read.values {
        let _ = writeln!(declared, "let mut {name}s = [{pointer}; V];");
        let _ = writeln!(set, "{name}s[i] = {values}.add({within});");
    }
    if read.integers {
        let _ = writeln!(declared, "let mut {name}_integers = [a.{name}s.cast::<{byte}>(); V];");
        let row = if nibbles { "within % HALF" } else { within };
        let _ =
            writeln!(set, "{name}_integers[i] = panel.add({shared}).cast::<{byte}>().add({row} * {each});");
        // A vector that is a panel has both halves, which are taken apart otherwise.
        if nibbles && !whole_panel {
            let _ = writeln!(declared, "let mut {name}_shifts = [0; V];");
            let _ = writeln!(set, "{name}_shifts[i] = (within / HALF * 4) as i32;");
        }
    }
    let place = if nibbles {
        "// Where a tile is a panel, the compiler sees its halves, and that both are loaded once.
         let (first, within) =
             if V * LANES == ROWS { (row, i * LANES) } else { (row + i * LANES, (row + i * LANES) % ROWS) };"
    } else {
        "let row = row + i * LANES;"
    };
    let first = if nibbles { "first" } else { "row" };
    format!(
        "{declared}for i in 0..V {{
             {place}
             let panel = a.{name}s.add({first} / ROWS * (a.units / RUNS * {words}));
             {set}}}\n"
    )
}

/// The constant that says how many words a term of a super-block takes in a panel.
pub(super) fn words(term: Term) -> &'static str {
    match term {
        Term::Scale => "WORDS",
        Term::Min => "MIN_WORDS",
    }
}

/// What words of a panel are multiplied by to count its values, in front of which ` * ` stands.
pub(super) fn values_of_words(types: TermTypes) -> String {
    match 32 / types.scale.bits() {
        1 => String::new(),
        values => format!(" * {values}"),
    }
}

/// Rows whose integers lie side by side.
fn rows_of_integers(of: Integers) -> &'static str {
    if of == Integers::Bytes { "ROWS" } else { "HALF" }
}

/// The integers of run `run` of super-block `block`, of vector `i`.
pub(super) fn integers_of_run(plan: &MatmulPlan<'_>) -> String {
    let of = plan.pack.terms.scale_integers;
    let bytes = format!("scale_integers[i].add(block * WORDS * 4 + run * {})", rows_of_integers(of));
    terms::integers(plan, of, &bytes, "scale_shifts[i]", false)
}

/// The integers of the minima of pair `pair` of runs of super-block `block`, of vector `i`.
pub(super) fn integers_of_pair(plan: &MatmulPlan<'_>) -> String {
    let of = plan.pack.terms.min_integers;
    let bytes = format!("min_integers[i].add(block * MIN_WORDS * 4 + pair * {} * 2)", rows_of_integers(of));
    terms::integers(plan, of, &bytes, "min_shifts[i]", true)
}

/// Where the flags of the rows of `V` vectors begin.
pub(super) fn flag_words(plan: &MatmulPlan<'_>, superblock: &SuperBlock) -> String {
    let types = plan.pack.terms;
    format!(
        "let mut flag_words = [a.scales.cast::<i8>(); V];
         for i in 0..V {{
             let row = row + i * LANES;
             let panel = a.scales.add(row / ROWS * (a.units / RUNS * WORDS));
             flag_words[i] = panel.add({}).cast::<i8>().add(row % ROWS * {});
         }}\n",
        types.words_before_flags(superblock.runs, plan.pack.packing.rows),
        types.flag_bits() / 8
    )
}

/// Statements that load the flags of super-block `block`, and those that go on to its next run; none where codes hold shifts.
pub(super) fn flags_of_runs(plan: &MatmulPlan<'_>) -> (String, String) {
    let Some(shifted) = plan.pack.shifted else { return Default::default() };
    let load = match plan.pack.terms.flag_bits() {
        8 => "simd::integers(flag_words[i].add(block * WORDS * 4))",
        _ => "simd::load(flag_words[i].add(block * WORDS * 4).cast())",
    };
    (
        format!(
            "let mut flags = [simd::zero(); V];
             for i in 0..V {{ flags[i] = {load}; }}\n"
        ),
        format!("for i in 0..V {{ flags[i] = simd::shift_lanes::<{}>(flags[i]); }}\n", shifted.of_run),
    )
}
