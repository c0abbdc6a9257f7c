//! Products of several matrices in one launch, whose CUDA blocks look up their own; and the kernels around them.

use super::generated::{Kernel, generated, kernels, least, same_f32, text_of};
use super::matmul::{
    Activations, Product, WeightBuffers, agrees_with_the_oracle, on_the_cpu, pack, product, unit_of,
};
use super::support::{Buffer, Unit, can_run};
use super::verify::inputs::{Tokens, Weights};
use gristmill::oracle::Random;
use gristmill_codegen::cuda::{EXPERTS, Launch};
use gristmill_spec::vocab::Op;

/// A kernel's grouped form.
fn grouped(kernel: &Kernel) -> Option<&'static str> {
    match &kernel.listed.plan.launch {
        Launch::Matmul { grouped, .. } => grouped.as_deref(),
        _ => None,
    }
}

/// int8 rows in the kernel's layout, and the sums of their units.
fn laid_out(kernel: &Kernel, q: &[i8], k: usize) -> (Vec<i8>, Vec<i32>) {
    let (elements, padded, units) = unit_of(kernel, k);
    let (mut rows, mut sums) = (vec![0i8; q.len() / k * units * padded], Vec::new());
    for (from, to) in q.chunks(k).zip(rows.chunks_mut(units * padded)) {
        for (from, to) in from.chunks(elements).zip(to.chunks_mut(padded)) {
            to[..from.len()].copy_from_slice(from);
            sums.push(from.iter().map(|q| i32::from(*q)).sum::<i32>());
        }
    }
    (rows, sums)
}

/// One launch over all `experts`, whose tokens lie one expert behind the other; the tiles are taken in an order of their own, and
/// results lie `apart` rows further on than tokens.
fn run(kernel: &Kernel, experts: &[Product], apart: usize, seed: u64) -> Result<Vec<f32>, String> {
    let (n, k) = (experts[0].n, experts[0].k);
    let q: Vec<i8> = experts.iter().flat_map(|expert| expert.x.q.clone()).collect();
    let (q, sums) = laid_out(kernel, &q, k);
    let scales: Vec<f32> = experts.iter().flat_map(|expert| expert.x.scales.clone()).collect();
    let tokens: usize = experts.iter().map(|expert| expert.m).sum();
    let weights: Vec<WeightBuffers> =
        experts.iter().map(|expert| WeightBuffers::of(kernel, &pack(kernel, expert))).collect();
    let addresses: Vec<u64> = weights.iter().flat_map(WeightBuffers::addresses).collect();
    let mut tiles = Vec::new();
    let mut first = 0;
    for (expert, Product { m, .. }) in experts.iter().enumerate() {
        let of_a_tile = kernel.number("tokens");
        for tile in 0..m.div_ceil(of_a_tile) {
            let row = first + tile * of_a_tile;
            let count = of_a_tile.min(m - tile * of_a_tile);
            tiles.push([expert, row, row + apart, count].map(|number| number as u32));
        }
        first += m;
    }
    tiles.reverse();
    // Who sorts tokens and who quantizes them are launched right in front.
    let sent: Vec<u32> = tiles.concat();
    let (tile_numbers, addresses) =
        (Buffer::input("tiles", &sent).fresh(), Buffer::input("experts", &addresses));
    let (x, x_scales, x_sums) = (
        Buffer::input("x", &q).fresh(),
        Buffer::input("x_scales", &scales).fresh(),
        Buffer::input("x_sums", &sums).fresh(),
    );
    let y = Buffer::<f32>::output("y", &vec![7.0; (apart + tokens) * n]);
    let mut arguments = weights[0].arguments(kernel, k, scales.len() / tokens);
    for address in
        [x.address(), (q.len() / tokens) as u64, x_scales.address(), x_sums.address(), 0, y.address()]
    {
        arguments.extend(address.to_le_bytes());
    }
    arguments.extend(0u32.to_le_bytes());
    arguments.extend((n as u32).to_le_bytes());
    arguments.extend(0u64.to_le_bytes());
    let stack = [addresses.address().to_le_bytes(), tile_numbers.address().to_le_bytes()].concat();
    let name = grouped(kernel).expect("it has a grouped form");
    let grid = (n.div_ceil(kernel.number("rows")) as u32, tiles.len() as u32);
    let launch = kernel.unit.launch(name).grid(grid.0, grid.1).threads(kernel.number("threads") as u32);
    let launch = launch.structure(&arguments).structure(&stack);
    launch.overlapping(kernel.listed.plan.overlaps).seed(seed).run()?;
    let y = y.try_read()?;
    assert!(y[..apart * n].iter().all(|y| *y == 7.0), "{name}: rows in front of the results are written");
    Ok(y[apart * n..].to_vec())
}

#[test]
fn grouped_products_are_those_of_each_matrix() {
    if !can_run("grouped products") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Matmul).into_iter().filter(|kernel| grouped(kernel).is_some()) {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let elements = oracle.format().elements as usize;
        let mut random = Random::new(17, &kernel.listed.name);
        let tile = kernel.number("tokens");
        // Several tiles of one expert, one token, no token of an expert between them, a full tile.
        for (n, blocks, counts) in
            [(33, 2, [2 * tile + 1, 0, 1, tile]), (7, 3, [1, 1, 1, 1]), (65, 1, [0, 2, 0, 0])]
        {
            let k = blocks * elements;
            let experts: Vec<Product> = counts
                .iter()
                .map(|m| {
                    // No token at all has no scales to count.
                    let shape = (*m.max(&1), n, k);
                    let made =
                        product(kernel.format(), &mut random, shape, Weights::Random, Tokens::I8, false);
                    let x = if *m == 0 { Activations { q: Vec::new(), scales: Vec::new() } } else { made.x };
                    Product { m: *m, x, ..made }
                })
                .collect();
            let case = format!("{} n={n} k={k} {counts:?}", kernel.listed.name);
            let y = run(&kernel, &experts, cases % 3, cases as u64);
            let y = y.unwrap_or_else(|report| panic!("{case}: {report}"));
            let mut rest = &y[..];
            for expert in experts.iter().filter(|expert| expert.m > 0) {
                let (own, behind) = rest.split_at(expert.m * n);
                same_f32(&case, own, &on_the_cpu(kernel.format(), expert));
                agrees_with_the_oracle(&case, &oracle, expert, own, false);
                rest = behind;
            }
            assert!(rest.is_empty(), "{case}");
            cases += 1;
        }
    }
    println!("{cases} grouped products");
    assert!(cases >= least(30), "only {cases} grouped products were computed");
}

/// Rows in another order, products in the caller's, and weighted sums with each step rounded.
#[test]
fn rows_and_results_find_their_places() {
    if !can_run("experts") {
        return;
    }
    let unit = Unit::new(EXPERTS, &text_of(EXPERTS));
    let mut random = Random::new(19, "experts");
    // A row of words, blocks and units: fewer and more than a CUDA block has threads.
    for (words, blocks, units, blocks_of_grid) in [(3, 1, 1, 1), (300, 270, 5, 3)] {
        let rows = [2u32, 0, 2, 1];
        let q: Vec<u32> = (0..3 * words).map(|_| random.below(1 << 31) as u32).collect();
        let scales: Vec<f32> = random.gauss_vec(3 * blocks, 1.0);
        let sums: Vec<i32> = (0..3 * units).map(|i| i as i32 - 4).collect();
        let (list, from_q) = (Buffer::input("rows", &rows), Buffer::input("q", &q));
        let (from_scales, from_sums) = (Buffer::input("scales", &scales), Buffer::input("sums", &sums));
        let to_q = Buffer::<u32>::unset("q_to", rows.len() * words);
        let to_scales = Buffer::<f32>::unset("scales_to", rows.len() * blocks);
        let to_sums = Buffer::<i32>::unset("sums_to", rows.len() * units);
        let launch = unit.launch("gather").grid(blocks_of_grid, 1);
        let launch =
            launch.arg(&list).arg(rows.len() as u32).arg(words as u32).arg(blocks as u32).arg(units as u32);
        let launch = launch.arg(&from_q).arg(&from_scales).arg(&from_sums);
        launch.arg(&to_q).arg(&to_scales).arg(&to_sums).run().unwrap_or_else(|report| panic!("{report}"));
        let (found_q, found_scales, found_sums) = (to_q.read(), to_scales.read(), to_sums.read());
        for (to, from) in rows.iter().enumerate() {
            let from = *from as usize;
            assert_eq!(found_q[to * words..][..words], q[from * words..][..words]);
            assert_eq!(found_scales[to * blocks..][..blocks], scales[from * blocks..][..blocks]);
            assert_eq!(found_sums[to * units..][..units], sums[from * units..][..units]);
        }
    }
    for n in [1usize, 37, 400] {
        // Token 1 has no expert.
        let (places, ends) = ([4u32, 0, 2, 1, 3], [2u32, 2, 5]);
        let products = random.gauss_vec(places.len() * n, 1.0);
        let factors = [0.3f32, -0.7, 1e-3, 2.5, -1.0 / 3.0];
        let lists = [Buffer::input("places", &places), Buffer::input("ends", &ends)];
        let (from, weights) = (Buffer::input("products", &products), Buffer::input("weights", &factors));
        let y = Buffer::<f32>::unset("y", places.len() * n);
        let launch = unit.launch("combine").grid(2, 1).arg(&from).arg(&lists[0]).arg(&lists[1]).null();
        launch
            .arg(places.len() as u32)
            .arg(n as u32)
            .arg(&y)
            .run()
            .unwrap_or_else(|report| panic!("{report}"));
        let expected: Vec<f32> =
            places.iter().flat_map(|place| products[*place as usize * n..][..n].to_vec()).collect();
        same_f32("places", &y.read(), &expected);
        let sums = Buffer::<f32>::unset("y", ends.len() * n);
        let launch = unit.launch("combine").grid(2, 1).arg(&from).arg(&lists[0]).arg(&lists[1]).arg(&weights);
        launch
            .arg(ends.len() as u32)
            .arg(n as u32)
            .arg(&sums)
            .run()
            .unwrap_or_else(|report| panic!("{report}"));
        let mut expected = vec![0.0f32; ends.len() * n];
        let mut begin = 0;
        for (token, end) in ends.iter().enumerate() {
            for pair in begin..*end as usize {
                for column in 0..n {
                    expected[token * n + column] +=
                        factors[pair] * products[places[pair] as usize * n + column];
                }
            }
            begin = *end as usize;
        }
        same_f32("sums", &sums.read(), &expected);
    }
}

/// What the kernel makes of a list: starts, tiles, rows, places, ends, and the fault.
struct Sorted {
    starts: Vec<u32>,
    tiles: Vec<u32>,
    rows: Vec<u32>,
    places: Vec<u32>,
    ends: Vec<u32>,
    fault: u64,
}

fn sorted(unit: &Unit, list: &[u32], each: usize, experts: usize, by_pair: bool, of_a_tile: usize) -> Sorted {
    let (pairs, tokens) = (list.len(), list.len() / each);
    let most = pairs.min(pairs / of_a_tile + experts);
    let input = Buffer::input("list", list);
    let starts = Buffer::<u32>::unset("starts", 2 * experts + 2);
    let tiles = Buffer::<u32>::unset("tiles", 4 * most);
    let [rows, places] = ["rows", "places"].map(|name| Buffer::<u32>::unset(name, pairs));
    let ends = Buffer::<u32>::unset("ends", tokens);
    let fault = Buffer::output("fault", &[u64::MAX]);
    let launch = unit.launch("route");
    let counts = Buffer::<u32>::unset("counts", launch.warps() * experts);
    let launch = launch.arg(&input).arg(tokens as u32).arg(each as u32).arg(experts as u32);
    let launch = launch.arg(u32::from(by_pair)).arg(of_a_tile as u32).arg(most as u32);
    let launch = launch.arg(&counts).arg(&starts).arg(&tiles).arg(&rows).arg(&places).arg(&ends).arg(&fault);
    launch.run().unwrap_or_else(|report| panic!("{report}"));
    Sorted {
        starts: starts.read(),
        tiles: tiles.read(),
        rows: rows.read(),
        places: places.read(),
        ends: ends.read(),
        fault: fault.read()[0],
    }
}

/// Every pair has a place of its own among those of its expert, in the order of tokens, and is in one tile.
#[test]
fn lists_are_sorted_by_expert() {
    if !can_run("experts") {
        return;
    }
    let unit = Unit::new(EXPERTS, &text_of(EXPERTS));
    let mut random = Random::new(20, "lists");
    // More experts and more pairs than a CUDA block has threads, one of each, one expert for all.
    for (tokens, each, experts, of_a_tile) in [
        (1, 1, 1, 8),
        (1, 8, 300, 1),
        (150, 2, 5, 8),
        (7, 3, 64, 32),
        (40, 1, 1, 8),
        (70, 4, 260, 2),
        (700, 2, 40, 16),
    ] {
        let mut list = Vec::new();
        for token in 0..tokens {
            while list.len() < (token + 1) * each {
                let expert = random.below(experts as u64) as u32;
                if !list[token * each..].contains(&expert) {
                    list.push(expert);
                }
            }
        }
        for by_pair in [false, true] {
            let case = format!("{tokens} tokens, {each} of {experts}, {of_a_tile}, {by_pair}");
            let Sorted { starts, tiles, rows, places, ends, fault } =
                sorted(&unit, &list, each, experts, by_pair, of_a_tile);
            assert_eq!(fault, u64::MAX, "{case}");
            let mut order: Vec<usize> = (0..list.len()).collect();
            order.sort_by_key(|pair| (list[*pair], *pair));
            let row = |pair: usize| if by_pair { pair } else { pair / each } as u32;
            assert_eq!(rows, order.iter().map(|pair| row(*pair)).collect::<Vec<_>>(), "{case}");
            assert!(order.iter().enumerate().all(|(place, pair)| places[*pair] == place as u32), "{case}");
            assert_eq!(ends, (1..=tokens).map(|token| (token * each) as u32).collect::<Vec<_>>(), "{case}");
            let of = |expert: usize| list.iter().filter(|to| **to as usize == expert).count();
            let (mut first, mut expected) = (0, Vec::new());
            for (expert, start) in starts[..experts].iter().enumerate() {
                assert_eq!(*start, first as u32, "{case}");
                for begin in (0..of(expert)).step_by(of_a_tile) {
                    let count = of_a_tile.min(of(expert) - begin);
                    expected
                        .extend([expert, first + begin, first + begin, count].map(|number| number as u32));
                }
                first += of(expert);
            }
            expected.resize(tiles.len(), 0);
            assert_eq!(tiles, expected, "{case}");
        }
    }
    // The first thing that is wrong, and lists that name places all the same.
    for (list, fault) in [
        (vec![0, 3, 1, 0], (1u64 << 32 | 3) * 4),
        (vec![2, 1, 2, 2], (3u64 << 32 | 2) * 4 + 1),
        (vec![u32::MAX, u32::MAX, 9, 0], u64::from(u32::MAX) * 4),
    ] {
        let made = sorted(&unit, &list, 2, 3, false, 8);
        assert_eq!(made.fault, fault, "{list:?}");
        assert!(
            made.rows.iter().all(|row| *row < 2) && made.places.iter().all(|place| *place < 4),
            "{list:?}"
        );
        assert!(made.tiles.chunks(4).all(|tile| tile[0] < 3 && tile[1] + tile[3] <= 4), "{list:?}");
    }
}
