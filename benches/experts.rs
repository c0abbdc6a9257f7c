//! Experts beside what they replace: one token through 8 of 256 beside one dense matrix of the same bytes, and 32 tokens beside a loop
//! over the products of each token and expert, and beside a loop over experts whose tokens were brought together by hand.
//!
//! Both ways take turns, so their ratio holds better than the times do. Which experts a token goes to changes from run to run, and
//! so does the dense matrix, of which there are as many as make the bytes of all experts: weights come from where so many bytes lie.

use gristmill::{
    Error, ExpertInput, Experts, Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Request,
    Routes, Threads, Workspace,
};
use std::time::{Duration, Instant};
use values::values;

#[path = "operands/values.rs"]
mod values;

const EXPERTS: usize = 256;
/// Experts of a token.
const EACH: usize = 8;
/// Rows and elements of an expert.
const N: usize = 1024;
const K: usize = 4096;
const ROUNDS: usize = 150;

/// Everything of a format: experts, the same matrices as layers, and dense matrices of as many bytes as a token's experts.
struct Case {
    experts: Experts,
    layers: Vec<Linear>,
    dense: Vec<Linear>,
}

impl Case {
    fn new(format: &str, threads: &Threads) -> Result<Case, Error> {
        let info = REGISTRY.format(format)?.1;
        let mut bytes = vec![0; info.tensor_bytes(N, K)?];
        let prepared = REGISTRY.prepare_from_env(&Request::quantize(format, None, N, K))?;
        Quantizer::new(&prepared.decide_as_asked())?.run(&values(N * K), N, K, &mut bytes)?;
        // Packed once for each, so that each has memory of its own.
        let one = QuantizedMatrix::new(info, N, K, &bytes)?;
        let (matrices, options) = (vec![one; EXPERTS], LinearOptions::from_env());
        let layer = |count: usize| Linear::stacked(&REGISTRY, &matrices[..count], &options, threads);
        Ok(Case {
            experts: Experts::new(&REGISTRY, &matrices, &options, threads)?,
            layers: (0..EXPERTS).map(|_| layer(1)).collect::<Result<_, _>>()?,
            dense: (0..EXPERTS / EACH).map(|_| layer(EACH)).collect::<Result<_, _>>()?,
        })
    }
}

/// Lists of experts that differ within a token, another one each time (xorshift).
struct Router(u64);

impl Router {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % count
    }

    fn lists(&mut self, tokens: usize) -> Vec<u32> {
        let mut lists = Vec::with_capacity(tokens * EACH);
        for token in 0..tokens {
            while lists.len() < (token + 1) * EACH {
                let expert = self.below(EXPERTS) as u32;
                if !lists[token * EACH..].contains(&expert) {
                    lists.push(expert);
                }
            }
        }
        lists
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn timed(into: &mut Vec<Duration>, run: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let begin = Instant::now();
    run()?;
    into.push(begin.elapsed());
    Ok(())
}

/// Seconds of one token through experts, and through a dense matrix.
fn one_token(case: &Case, threads: &Threads) -> Result<[f64; 2], Error> {
    let (x, mut y) = (values(K), vec![0.0; EACH * N]);
    let mut own = case.experts.workspace(1, EACH, threads)?;
    let mut workspace = Workspace::for_all(&case.dense, 1, threads)?;
    let mut router = Router(0x2545_f491_4f6c_dd1d);
    let (mut grouped, mut dense) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let list = router.lists(1);
        let routes = Routes::each(1, EACH, &list)?;
        timed(&mut grouped, || {
            let input = ExpertInput::Tokens(Input::F32(&x));
            case.experts.forward(input, &routes, None, &mut y, &mut own, threads)
        })?;
        let dense_matrix = &case.dense[(round * 7 + router.below(3)) % case.dense.len()];
        timed(&mut dense, || dense_matrix.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, threads))?;
    }
    Ok([median(grouped), median(dense)])
}

/// Seconds of `m` tokens through experts, product by product, and expert by expert.
fn many_tokens(case: &Case, m: usize, threads: &Threads) -> Result<[f64; 3], Error> {
    let pairs = m * EACH;
    let (x, mut y) = (values(m * K), vec![0.0; pairs * N]);
    let mut own = case.experts.workspace(m, pairs, threads)?;
    let mut workspace = Workspace::for_all(&case.layers, m, threads)?;
    let mut router = Router(0x9e37_79b9_7f4a_7c15);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS / 10 {
        let list = router.lists(m);
        let routes = Routes::each(m, EACH, &list)?;
        timed(&mut times[0], || {
            let input = ExpertInput::Tokens(Input::F32(&x));
            case.experts.forward(input, &routes, None, &mut y, &mut own, threads)
        })?;
        timed(&mut times[1], || {
            for (pair, (expert, y)) in list.iter().zip(y.chunks_exact_mut(N)).enumerate() {
                let row = Input::F32(&x[pair / EACH * K..][..K]);
                case.layers[*expert as usize].forward(row, 1, None, y, &mut workspace, threads)?;
            }
            Ok(())
        })?;
        // As a loop that knows better would do it: rows are copied together, and results back.
        let (mut rows, mut results) = (vec![0.0; m * K], vec![0.0; m * N]);
        timed(&mut times[2], || {
            for (expert, layer) in case.layers.iter().enumerate() {
                let own = || list.iter().enumerate().filter(|(_, to)| **to as usize == expert);
                let count = own().count();
                if count == 0 {
                    continue;
                }
                for ((pair, _), row) in own().zip(rows.chunks_exact_mut(K)) {
                    row.copy_from_slice(&x[pair / EACH * K..][..K]);
                }
                let (rows, results) = (Input::F32(&rows[..count * K]), &mut results[..count * N]);
                layer.forward(rows, count, None, results, &mut workspace, threads)?;
                for ((pair, _), result) in own().zip(results.chunks_exact(N)) {
                    y[pair * N..][..N].copy_from_slice(result);
                }
            }
            Ok(())
        })?;
    }
    Ok(times.map(median))
}

fn main() -> Result<(), Error> {
    println!(
        "{EXPERTS} experts of {N}x{K}, {EACH} for each token; goals: 0.90 of the dense matrix's speed at m = 1, 1.5 times a loop at m = 32"
    );
    println!("format  threads  m   experts us  beside                         us  experts' speed to its");
    let most = std::thread::available_parallelism().map_or(1, |count| count.get());
    let mut counts = vec![1, most];
    counts.dedup();
    for format in ["i2_s", "q4_k", "q8_0"] {
        if REGISTRY.format(format).is_err() {
            println!("{format}: skipped, this build does not hold the format");
            continue;
        }
        let case = Case::new(format, &Threads::new(most)?)?;
        for count in &counts {
            let threads = Threads::new(*count)?;
            let line = |m: usize, [own, other]: [f64; 2], beside: &str| {
                let (own_us, other_us) = (own * 1e6, other * 1e6);
                println!(
                    "{format:<6}  {count:<7}  {m:<2}  {own_us:>10.0}  {beside:<24}  {other_us:>8.0}  {:>21.2}",
                    other / own
                );
            };
            line(1, one_token(&case, &threads)?, "a dense matrix");
            let [own, each, together] = many_tokens(&case, 32, &threads)?;
            line(32, [own, each], "a loop over products");
            line(32, [own, together], "a loop over experts");
        }
    }
    Ok(())
}
