//! Products: the cases, and what they must give.

use super::super::error::CliError;
use super::case::{Activations, Case, Expected};
use super::guard::Edge;
use super::inputs::{self, Tokens, Weights};
use super::packed::Run;
use super::scales::{self, Spread};
use super::session::{Kernel, Session, Subject, agree};
use gristmill::Shape;
use gristmill::oracle::Random;
use gristmill::registry::{DimRule, ShapeRules};
use gristmill::vocab::{Op, Precision};

/// Rows of which no case of a quick run has more.
pub(super) const MANY_ROWS: u64 = 1024;

/// The longest rows that are tried.
const LONG: usize = 131_072;

/// Elements of rows that kernels which decode codes once for many tokens take in several parts, the last one shorter.
const STAGED: usize = 1792;

/// `elements` are those of a block of weights, `block` those of a block of activations.
fn cases(elements: usize, block: usize, quick: bool) -> Vec<Case> {
    use Tokens::{All, Alternating, Bf16, F16, F32, I8};
    use Weights::{EveryCode, Highest, Lowest, Random};
    let both = of_whole_blocks(elements, block);
    let case = |(m, n, blocks), weights, tokens: Tokens, bias, threads| {
        let k: usize = blocks * if tokens.are_floats() { both } else { elements };
        Case { m, n, k, weights, tokens, bias, threads }
    };
    let mut cases = vec![
        case((1, 7, 1), Random, F32, false, 1),
        case((1, 33, 3), Random, F16, true, 1),
        case((3, 16, 2), EveryCode, Bf16, true, 1),
        case((5, 65, 2), Random, I8, false, 2),
        case((1, 16, 2), Highest, All(127), false, 1),
        case((4, 17, 1), Lowest, All(-128), true, 1),
        case((17, 33, 5), Random, F32, true, 2),
        // Tokens and k enough for kernels that decode codes once for many.
        case((37, 33, STAGED.div_ceil(elements)), Random, I8, true, 1),
    ];
    if quick {
        return cases;
    }
    let long = LONG / elements;
    cases.extend([
        case((1, 1, 1), Random, I8, true, 1),
        case((2, 7, 4), Random, Bf16, false, 1),
        case((1, 65, 7), Random, F32, true, 2),
        case((3, 33, 2), Highest, Alternating, false, 1),
        case((8, 16, 4), Highest, All(-128), false, 1),
        case((8, 65, 1), Random, F16, true, 1),
        case((5, 7, 2), Lowest, All(127), false, 1),
        case((17, 1, 3), Random, I8, false, 1),
        case((2, 33, 1), EveryCode, F32, true, 1),
        case((1, 17, long), Highest, All(127), false, 1),
        case((5, 16, long), Highest, All(-128), true, 1),
        case((2, 9, long), Random, I8, false, 2),
        case((4, 16, long), Lowest, All(127), false, 1),
        // More tokens than wait at once.
        case((203, 17, STAGED.div_ceil(elements)), Highest, Alternating, false, 1),
    ]);
    cases
}

/// Elements of the shortest row of whole blocks of weights and whole blocks of activations, which are quantized on the way.
fn of_whole_blocks(elements: usize, block: usize) -> usize {
    (1..=block).map(|blocks| blocks * elements).find(|k| k % block == 0).unwrap_or(elements)
}

/// A case for a kernel whose shape rules exclude all others: as small as they allow, and not a whole number of tiles. Rows are a multiple of
/// `shortest`.
fn case_of_rules(rules: &ShapeRules, shortest: usize) -> Case {
    let least = |rule: DimRule, other: u64| {
        let least = rule.min.max(other).min(rule.max);
        usize::try_from(least).unwrap_or(usize::MAX)
    };
    // Where rows are many, short ones do.
    let (times, more) = if rules.n.min > MANY_ROWS { (1, 0) } else { (3, 5) };
    let n = least(rules.n, (rules.n.min + 17).max(33));
    let k = least(rules.k, times * shortest as u64);
    let m = least(rules.m, rules.m.min + more);
    Case { m, n, k, weights: Weights::Random, tokens: Tokens::F32, bias: true, threads: 1 }
}

/// The expected result; an error against f64 says nothing where scales are as large as they get, so those have none.
fn expected(
    subject: Subject<'_>,
    case: &Case,
    tensor: &[u8],
    x: &Activations,
    bias: Option<&[f32]>,
    moderate: bool,
) -> Result<Expected, CliError> {
    let Case { m, n, k, .. } = *case;
    let (oracle, exact) = (subject.oracle, subject.oracle.is_exact() || !moderate);
    let mut expected =
        Expected { bits: vec![0.0; m * n], f64s: vec![0.0; if exact { 0 } else { m * n }], rows: Vec::new() };
    let blocks = x.scales.len() / m.max(1);
    let token = |t: usize| oracle.activations_f64(&x.q[t * k..][..k], &x.scales[t * blocks..][..blocks]);
    let tokens: Vec<Vec<f64>> = (0..m).map(token).collect();
    for row in 0..n {
        let decoded = oracle.row(tensor, n, k, row)?;
        let bias = bias.map(|bias| bias[row]);
        for (t, token) in tokens.iter().enumerate() {
            let (q, scales) = (&x.q[t * k..][..k], &x.scales[t * blocks..][..blocks]);
            expected.bits[t * n + row] = oracle.product_f32(&decoded, q, scales, bias);
            if !exact {
                expected.f64s[t * n + row] = oracle.product_f64(&decoded, token, bias);
            }
        }
        // The first and last rows are enough for unpacking.
        let unpacked = moderate && (row < 2 || row + 2 >= n);
        expected.rows.push(if unpacked { decoded.f32s } else { Vec::new() });
    }
    Ok(expected)
}

/// Whether a kernel's own rules let it take a shape.
fn takes(kernel: &Kernel, shape: Shape) -> bool {
    let rules = &kernel.entry.shape;
    [(rules.m, shape.m), (rules.n, shape.n), (rules.k, shape.k)].into_iter().all(|(rule, value)| {
        let value = value as u64;
        value >= rule.min && value <= rule.max && value.is_multiple_of(rule.multiple_of.max(1))
    })
}

/// Every matmul kernel of a format.
pub fn matmul(session: &mut Session<'_>, subject: Subject<'_>) -> Result<(), CliError> {
    let mut kernels = session.kernels(Op::Matmul, subject.index);
    // Those of floats have a check of their own.
    kernels.retain(|kernel| kernel.entry.precision() == Some(Precision::Int8));
    if kernels.is_empty() {
        return Ok(());
    }
    let mut random = Random::new(4, subject.info.name);
    let block = subject.oracle.activations().block.map_or(1, |block| block.max(1) as usize);
    for (number, case) in cases(subject.info.elements, block, session.quick).into_iter().enumerate() {
        let name =
            format!("{} {}, {}", Shape::new(case.m, case.n, case.k), case.weights.name(), case.tokens.name());
        let tensor = inputs::tensor(subject.oracle, &mut random, case.n, case.k, case.weights);
        let edge = if number % 2 == 0 { Edge::End } else { Edge::Start };
        one(
            session,
            subject,
            &kernels,
            &mut random,
            case,
            Weighted { name: &name, tensor: &tensor, edge, moderate: true },
        )?;
    }
    let shortest = of_whole_blocks(subject.info.elements, block);
    let mut apart = Random::new(5, subject.info.name);
    for kernel in kernels.clone() {
        // Tiles for many rows are others' too, which have their shapes here.
        if session.reports[kernel.index].cases > 0 || session.quick && kernel.entry.shape.n.min > MANY_ROWS {
            continue;
        }
        let case = case_of_rules(&kernel.entry.shape, shortest);
        let name = format!("{} random weights, f32", Shape::new(case.m, case.n, case.k));
        let tensor = inputs::tensor(subject.oracle, &mut apart, case.n, case.k, case.weights);
        let weighted = Weighted { name: &name, tensor: &tensor, edge: Edge::End, moderate: true };
        // Which kernels there are is not to show in the digest.
        let digest = session.digest;
        one(session, subject, &kernels, &mut apart, case, weighted)?;
        session.digest = digest;
    }
    for sweep in scales::sweeps(subject.oracle, false) {
        for swept in sweep.tensors(subject.oracle, &mut random, Spread::ByRow) {
            // One token and several go through different loops.
            for (m, edge) in [(1, Edge::End), (5, Edge::Start)] {
                let (n, k) = (swept.n, swept.blocks * subject.info.elements);
                let (weights, tokens) = (Weights::Random, Tokens::I8);
                let case = Case { m, n, k, weights, tokens, bias: false, threads: 1 };
                let name = format!("{} {}, {}", Shape::new(m, n, k), sweep.name, tokens.name());
                let weighted = Weighted { name: &name, tensor: &swept.bytes, edge, moderate: false };
                one(session, subject, &kernels, &mut random, case, weighted)?;
            }
        }
    }
    Ok(())
}

/// The weights of a case.
#[derive(Clone, Copy)]
struct Weighted<'w> {
    /// The case in words.
    name: &'w str,
    tensor: &'w [u8],
    edge: Edge,
    /// Scales are of moderate size.
    moderate: bool,
}

/// One case through every kernel that takes it.
fn one(
    session: &mut Session<'_>,
    subject: Subject<'_>,
    kernels: &[Kernel],
    random: &mut Random,
    case: Case,
    weighted: Weighted<'_>,
) -> Result<(), CliError> {
    let Weighted { name, tensor, edge, moderate } = weighted;
    let shape = Shape::new(case.m, case.n, case.k);
    let takes = |kernel: &&Kernel| {
        takes(kernel, shape)
            && kernel.reads(case.tokens.dtype())
            && (case.tokens.are_floats() || !kernel.entry.quantizes_activations())
    };
    let kernels: Vec<Kernel> = kernels.iter().filter(takes).copied().collect();
    let x = match Activations::new(subject, random, &case) {
        Ok(x) => x,
        Err(refused) => {
            // The inputs are moderate, so this is a defect of a spec or of the oracle.
            let Some(first) = kernels.first() else { return Ok(()) };
            let found = format!("{refused:?}");
            return session.case(*first, || Ok(agree(name, "activations", &"taken".to_owned(), &found)));
        }
    };
    let bias = case.bias.then(|| random.gauss_vec(case.n, 3.0));
    let expected = expected(subject, &case, tensor, &x, bias.as_deref(), moderate)?;
    session.digest_f32(&expected.bits);
    let run = Run { subject, case, name, tensor, x: &x, bias: bias.as_deref(), edge };
    let mut packed = Vec::new();
    for kernel in &kernels {
        let mut nmse = None;
        session.case(*kernel, || run.kernel(*kernel, &mut packed, &expected, &mut nmse))?;
        if let Some(nmse) = nmse {
            let report = &mut session.reports[kernel.index];
            report.nmse = Some(report.nmse.map_or(nmse, |worst| worst.max(nmse)));
        }
    }
    Ok(())
}
