//! Products whose runs have integers: sums are multiplied with those, added up over a super-block, and scaled once.

use super::operands::{Over, guard, split};
use super::runs::{Extent, start};
use super::sums::{integer_sums, needs_sum, sums_of_words, sums_times_factors};
use super::superblock_terms::{
    self, constants, flag_words, flags_of_runs, integers_of_pair, integers_of_run, terms_of_superblocks,
    values_of_words,
};
use super::terms;
use crate::lower::ir::i32;
use crate::plan::{Dot, MatmulPlan, Scaled, SuperBlock, Term};
use crate::text::when;

/// Runs with integers: their sums times those, added up over a super-block, and scaled once.
pub(super) fn by_superblock(plan: &MatmulPlan<'_>, superblock: &SuperBlock, extent: &Extent) -> String {
    let tiles = plan.format.k_group_tiles(plan.pack.tile.k);
    let has_min = superblock.min.is_some();
    let first = match extent.first {
        None => format!("unit * {tiles}"),
        Some(first) => format!("((block - {first}) * RUNS + run) * {tiles}"),
    };
    let mut out = terms_of_superblocks(plan, superblock, !extent.integers);
    let (flags, next_flags) = match plan.pack.shifted {
        None => (String::new(), String::new()),
        Some(_) => {
            out.push_str(&flag_words(plan, superblock));
            flags_of_runs(plan)
        }
    };
    let runs = Runs { plan, of_row: extent.first.is_none(), first, tiles, next_flags };
    let widens = plan.widens_by_integers();
    let x_sums = when(has_min || widens && needs_sum(plan), || sum_pairs(plan));
    format!(
        "{constants}
         {out}
         let mut y = {y};
         for block in {blocks} {{
             {prefetch}
             {x_sums}
             let mut total = [[simd::zero(); V]; T];
             {flags}
             {runs}
             {scaled}
         }}\n",
        prefetch = prefetch_of_terms(plan),
        runs = match widens {
            true if extent.integers => runs.times_waiting_integers(extent),
            true => runs.times_integers(),
            false => runs.then_integers(),
        },
        scaled = scaled_sums(plan, superblock, "total[t][i]"),
        constants = when(!extent.integers, || constants(plan, superblock)),
        y = extent.y,
        blocks = extent.range(true),
    )
}

/// The runs of super-block `block`, whose sums are to be added up in `total`, times their integers.
struct Runs<'a> {
    plan: &'a MatmulPlan<'a>,
    /// Whether tiles are counted from the row's first one, and so runs.
    of_row: bool,
    /// The first tile of run `run`, as an expression, and how many it has.
    first: String,
    tiles: u32,
    /// Statements that go on to the flags of the next run.
    next_flags: String,
}

impl Runs<'_> {
    /// The tiles of run `run`.
    fn over(&self) -> Over<'_> {
        Over::From { first: &self.first, count: self.tiles }
    }

    /// The number of run `run`: for its zero-point correction (`corrected`), and for where its codes are.
    fn number(&self, corrected: bool) -> &'static str {
        if corrected || self.of_row { "let unit = block * RUNS + run;" } else { "" }
    }

    /// Sums in i32, which are multiplied.
    fn then_integers(&self) -> String {
        let Runs { plan, next_flags, .. } = self;
        format!(
            "{halves}
             for run in 0..RUNS {{
                 {number}
                 {start}
                 {of_run}
                 {sums}
                 for i in 0..V {{
                     let integer = {integers_of_run};
                     for t in 0..T {{ total[t][i] = simd::add_product(total[t][i], dot[t][i], integer); }}
                 }}
                 {next_flags}
             }}\n",
            halves = split(plan, "RUNS", "block * RUNS", "RUNS"),
            number = self.number(needs_sum(plan)),
            start = start(plan),
            of_run = when(plan.dot == Dot::Split, || "let halves = &halves[run];".to_string()),
            sums = integer_sums(plan, self.over(), needs_sum(plan)),
            integers_of_run = integers_of_run(plan),
        )
    }

    /// Sums in i16, which are multiplied as they are widened. The zero point is then corrected for two runs at once: by the sums of their
    /// activations times their integers, times the smallest value.
    fn times_integers(&self) -> String {
        let Runs { plan, next_flags, .. } = self;
        let (begin, of_pair, end) = match needs_sum(plan) {
            false => ("", String::new(), ""),
            true => (
                "let mut x_sums = [[simd::zero(); V]; T];\n",
                add_sums_of_pair(plan, "x_sums", "simd::both(integers[0][i], integers[1][i])"),
                "let min = simd::splat(a.min);
                 for t in 0..T { for i in 0..V { total[t][i] = simd::add_product(total[t][i], x_sums[t][i], min); } }\n",
            ),
        };
        let factors = format!(
            "let mut factors = [simd::zero(); V];
             for i in 0..V {{
                 integers[of_pair][i] = {};
                 factors[i] = simd::factor(integers[of_pair][i]);
             }}\n",
            integers_of_run(plan)
        );
        format!(
            "{begin}
             for pair in 0..RUNS / 2 {{
                 let mut integers = [[simd::zero(); V]; 2];
                 for of_pair in 0..2 {{
                     let run = 2 * pair + of_pair;
                     {number}
                     {sums}
                     {next_flags}
                 }}
                 {of_pair}
             }}
             {end}",
            number = self.number(false),
            sums = sums_times_factors(plan, self.over(), &factors),
        )
    }

    /// The same with integers that wait, as factors. The zero point comes first, so that nothing but `total` is added to in the loops.
    fn times_waiting_integers(&self, extent: &Extent) -> String {
        let plan = self.plan;
        let block = extent.counted("block");
        let of_run = |run: &str| {
            format!("simd::load(integers.add(({block} * RUNS + {run}) * ROWS * 4 + i * LANES * 4))")
        };
        let zero_point = when(needs_sum(plan), || {
            format!(
                "for pair in 0..RUNS / 2 {{
                     let mut both = [simd::zero(); V];
                     for i in 0..V {{ both[i] = simd::both({first}, {second}); }}
                     {of_pair}
                 }}
                 let min = simd::splat(a.min);
                 for t in 0..T {{ for i in 0..V {{ total[t][i] = simd::add_product(simd::zero(), total[t][i], min); }} }}
                 {whole}",
                first = of_run("2 * pair"),
                second = of_run("2 * pair + 1"),
                of_pair = add_sums_of_pair(plan, "total", "both[i]"),
                whole = when(extent.halved, || {
                    "let start = total;\ntotal = [[simd::zero(); V]; T];\n".to_string()
                }),
            )
        });
        let whole = when(extent.halved, || {
            let start =
                when(needs_sum(plan), || "total[t][i] = simd::add(total[t][i], start[t][i]);".to_string());
            format!(
                "for t in 0..T {{ for i in 0..V {{
                     total[t][i] = simd::add(total[t][i], total[t][i]);
                     {start}
                 }} }}\n"
            )
        });
        let factors = format!(
            "let mut factors = [simd::zero(); V];
             for i in 0..V {{ factors[i] = {}; }}\n",
            of_run("run")
        );
        format!(
            "{zero_point}
             for run in 0..RUNS {{
                 {sums}
             }}
             {whole}",
            sums = sums_times_factors(plan, self.over(), &factors),
        )
    }
}

/// Statements that put the sums of activations of each two runs of super-block `block` side by side, where the ISA's loops want them so.
fn sum_pairs(plan: &MatmulPlan<'_>) -> String {
    when(plan.sums_in_pairs(), || {
        "// Two by two as i16, from where loads broadcast them.
         let mut of_pairs = [[0; RUNS / 2]; T];
         for t in 0..T { of_pairs[t] = simd::sum_pairs(a.x_sums.add((token + t) * a.units + block * RUNS)); }
         let of_pairs = std::hint::black_box(&of_pairs);\n"
            .to_string()
    })
}

/// Statements that add to `sum[t][i]` the sums of activations of the runs of pair `pair` of super-block `block`, times the integers of
/// both in the halves of lanes (an expression).
fn add_sums_of_pair(plan: &MatmulPlan<'_>, sum: &str, integers: &str) -> String {
    if plan.sums_in_pairs() {
        return format!(
            "for t in 0..T {{
                 let x = simd::splat(of_pairs[t][pair]);
                 for i in 0..V {{ {sum}[t][i] = simd::add_products({sum}[t][i], {integers}, x); }}
             }}\n"
        );
    }
    format!(
        "for t in 0..T {{
             let of_two = a.x_sums.add((token + t) * a.units + block * RUNS + 2 * pair);
             // Both fit in sixteen bits.
             let x = simd::splat(*of_two & 0xffff | *of_two.add(1) << 16);
             for i in 0..V {{ {sum}[t][i] = simd::add_products({sum}[t][i], {integers}, x); }}
         }}\n"
    )
}

/// Operands that are values times the integers of their runs: their sums over a super-block, scaled once.
pub(super) fn by_products(
    plan: &MatmulPlan<'_>,
    superblock: &SuperBlock,
    extent: &Extent,
    scaled: Scaled,
) -> String {
    let terms = terms_of_superblocks(plan, superblock, false);
    let sums = match scaled {
        Scaled::Bytes { zero, halved } => sums_of_bytes(plan, superblock, extent, zero, halved),
        Scaled::Words => sums_of_superblock_of_words(plan, extent),
    };
    format!(
        "{terms}
         let mut y = {y};
         for block in {blocks} {{
             {sums}
             {scaled}
         }}\n",
        y = extent.y,
        blocks = extent.range(true),
        scaled = scaled_sums(plan, superblock, "dot[t][i]"),
    )
}

/// Statements that sum up products of super-block `block` with operands that lie as bytes, less `zero`, or as half of that.
fn sums_of_bytes(
    plan: &MatmulPlan<'_>,
    superblock: &SuperBlock,
    extent: &Extent,
    zero: i32,
    halved: bool,
) -> String {
    let tiles = plan.format.k_group * superblock.runs / plan.pack.tile.k;
    let start = when(zero != 0, || {
        format!(
            "let mut start = [simd::zero(); T];
             for t in 0..T {{
                 let x_sums = a.x_sums.add((token + t) * a.units + block * RUNS);
                 let mut x_sum = 0;
                 for run in 0..RUNS {{ x_sum += *x_sums.add(run); }}
                 start[t] = simd::splat(x_sum * {zero});
             }}\n"
        )
    });
    let first = format!("{} * {tiles}", extent.counted("block"));
    let sums = integer_sums(plan, Over::From { first: &first, count: tiles }, zero != 0 && !halved);
    let whole = match halved {
        true => {
            "for t in 0..T { for i in 0..V { dot[t][i] = simd::add(simd::add(dot[t][i], dot[t][i]), start[t]); } }\n"
        }
        false => "",
    };
    format!("{start}{sums}{whole}")
}

/// The same with operands as i16.
fn sums_of_superblock_of_words(plan: &MatmulPlan<'_>, extent: &Extent) -> String {
    format!(
        "let mut dot = [[simd::zero(); V]; T];
         for run in 0..RUNS {{ {} }}\n",
        sums_of_words(plan, &format!("({} * RUNS + run)", extent.counted("block"))),
    )
}

/// Statements that scale the integer sums of super-block `block` (an expression, of token `t` and vector `i`) and add them to `y`.
fn scaled_sums(plan: &MatmulPlan<'_>, superblock: &SuperBlock, sum: &str) -> String {
    let (format, types) = (plan.format, plan.pack.terms);
    let has_min = superblock.min.is_some();
    let each = values_of_words(types);
    let add = terms::add(format, "y[t][i]", sum, has_min.then(|| i32("lows[t][i]")), |term| {
        terms::load(types, term, &format!("block * {}{each}", superblock_terms::words(term)))
    });
    format!(
        "{lows}
         for t in 0..T {{
             {x_scale}
             for i in 0..V {{ {add} }}
         }}\n",
        lows = when(has_min, || sums_of_minima(plan)),
        x_scale = terms::x_scale(format, "(token + t)", "block", format.k_group * superblock.runs),
    )
}

/// Statements that prefetch the terms of a later super-block.
fn prefetch_of_terms(plan: &MatmulPlan<'_>) -> String {
    let Some(prefetch) = plan.prefetch else { return String::new() };
    // Panel follows panel, so what comes after the last super-block is the next panel's first one.
    let (ahead, [begin, end]) = (prefetch.terms, guard(prefetch));
    let each = values_of_words(plan.pack.terms);
    let of = |term: Term| {
        format!(
            "for line in 0..{words}.div_ceil(LINE) {{
                 simd::prefetch({name}[0].wrapping_add(((block + {ahead}) * {words} + line * LINE){each}).cast());
             }}\n",
            name = term.array(),
            words = superblock_terms::words(term),
        )
    };
    format!("{begin}{}{end}", plan.format.terms().map(of).collect::<String>())
}

/// Statements that add up `lows`: the sums of activations times the integers of minima.
fn sums_of_minima(plan: &MatmulPlan<'_>) -> String {
    format!(
        "let mut lows = [[simd::zero(); V]; T];
         for pair in 0..RUNS / 2 {{
             let mut integers = [simd::zero(); V];
             for i in 0..V {{ integers[i] = {}; }}
             {}
         }}\n",
        integers_of_pair(plan),
        add_sums_of_pair(plan, "lows", "integers[i]"),
    )
}
