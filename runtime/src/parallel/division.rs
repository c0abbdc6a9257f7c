//! Into how many parts a job goes, and whose they are: pure arithmetic, so that a test can model machines that are not there.

use std::ops::Range;

/// Parts handed out for each thread, so that a thread that the system held up is helped by the others.
pub(crate) const PARTS_PER_THREAD: usize = 4;

/// Rows that a part of a product takes at least, where there are enough: a multiple of the row tiles that kernels use.
const ROWS_PER_GRANULE: usize = 64;

/// Into how many parts a job goes that can be cut in `granules` pieces of equal cost and is worth `wanted` parts, on so many
/// threads; at least 1.
///
/// Each thread has parts of its own, and whoever has done his takes those of others, so the number of parts is a multiple of the
/// threads that get some: otherwise the last round keeps a few of them busy and the others waiting. Where fewer threads are done as early, since pieces can't
/// be cut, there are parts for these alone.
pub(crate) fn parts(threads: usize, wanted: usize, granules: usize) -> usize {
    let most = threads.min(wanted).min(granules).max(1);
    let threads = granules.div_ceil(granules.div_ceil(most).max(1)).max(1);
    let of_a_thread = PARTS_PER_THREAD.min(wanted / threads).min(granules / threads).max(1);
    threads.saturating_mul(of_a_thread)
}

/// How many rows of a matrix a thread takes at a time at least, of `n` in panels of `panel`, so that there are `parts` and
/// nobody of so many threads gets more than with single panels. Narrow matrices are cut as finely as the packing allows, or some
/// threads would have nothing.
pub(crate) fn granule_rows(n: usize, panel: usize, parts: usize, threads: usize) -> usize {
    let wide = panel * ROWS_PER_GRANULE.div_ceil(panel);
    // Rows of the thread with most to do.
    let longest = |granule: usize| n.div_ceil(granule).div_ceil(threads.max(1)) * granule;
    if n / wide >= parts && longest(wide) <= longest(panel) { wide } else { panel }
}

/// How many of `threads` threads have parts of their own, of `parts` parts: where fewer threads are done as early, these alone, as
/// [`parts`] meant it.
pub(crate) fn places(parts: usize, threads: usize) -> usize {
    let rounds = parts.div_ceil(threads.max(1)).max(1);
    if parts.is_multiple_of(rounds) { parts / rounds } else { parts.min(threads.max(1)) }
}

/// [`places`] where parts take as long as they take: all threads that there are parts for, since nobody knows who is done early.
pub(crate) fn places_of_unequal(parts: usize, threads: usize) -> usize {
    parts.min(threads.max(1))
}

/// Of `pieces` in a row, those that a place has of `places`: as many for each, the last ones one more where that does not come out even.
/// The same whatever the pieces are cut into afterwards, so that a thread has the same rows of a matrix in each run on as many threads.
pub(crate) fn of_place(pieces: usize, places: usize, place: usize) -> Range<usize> {
    let places = places.max(1);
    let (each, more) = (pieces / places, pieces % places);
    let start = |place: usize| place * each + (place + more).saturating_sub(places);
    start(place)..start(place + 1)
}

/// Rows of a matrix of `n` that a place has of `places`, in pieces of `granule`.
pub(crate) fn rows_of_place(n: usize, granule: usize, places: usize, place: usize) -> Range<usize> {
    let granules = of_place(n.div_ceil(granule.max(1)), places, place);
    granules.start.saturating_mul(granule).min(n)..granules.end.saturating_mul(granule).min(n)
}

/// Which of `threads` threads has a place of a job of `places`: the first ones, on several NUMA nodes as many of each.
pub(crate) fn thread_at(place: usize, places: usize, threads: usize, several_nodes: bool) -> usize {
    match several_nodes {
        // Numbers below 2^16.
        true => place * threads / places.max(1),
        false => place,
    }
}

/// The place of a thread, if it has one.
pub(crate) fn place_of(thread: usize, places: usize, threads: usize, several_nodes: bool) -> Option<usize> {
    let place = match several_nodes {
        true => (thread * places).div_ceil(threads.max(1)),
        false => thread,
    };
    (place < places && thread_at(place, places, threads, several_nodes) == thread).then_some(place)
}

/// How many of `pieces` go to the first `left` of `all` parts.
pub(crate) fn share(pieces: usize, left: usize, all: usize) -> usize {
    // u128: the product of two lengths.
    let share = pieces as u128 * left as u128 / all.max(1) as u128;
    usize::try_from(share).unwrap_or(pieces)
}

/// [`share`] of a range of pieces, and what is left of it.
pub(crate) fn split_range(pieces: Range<usize>, left: usize, all: usize) -> (Range<usize>, Range<usize>) {
    let mid = pieces.start + share(pieces.len(), left, all);
    (pieces.start..mid, mid..pieces.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that the busiest of `threads` threads computes, where each does its own parts and a row takes as long on each: who helps
    /// another only shortens that.
    fn model(n: usize, panel: usize, wanted: usize, threads: usize) -> usize {
        let granule = granule_rows(n, panel, threads * PARTS_PER_THREAD, threads);
        let granules = n.div_ceil(granule);
        let parts = parts(threads, wanted, granules);
        let places = places(parts, threads);
        assert_eq!(parts % places, 0, "each has as many parts");
        let mut longest = 0;
        let mut next = 0;
        for place in 0..places {
            let own = of_place(granules, places, place);
            assert_eq!(own.start, next, "granules follow one another");
            next = own.end;
            let own_parts = of_place(parts, places, place).len();
            assert!((1..=own.len()).contains(&own_parts), "no part is empty");
            // A panel is computed whole.
            longest = longest.max(rows_of_place(n, granule, places, place).len().next_multiple_of(panel));
        }
        assert_eq!(next, granules, "{n} rows on {threads} threads");
        longest
    }

    /// Rows of matrices of known models, and some that nothing divides.
    const ROWS: [usize; 11] = [640, 1000, 2560, 2561, 4096, 6912, 11_008, 14_336, 32_000, 128_256, 151_936];

    #[test]
    fn threads_have_the_same_to_do_where_there_is_enough_of_it() {
        let mut balanced = 0;
        for n in ROWS {
            for panel in [16, 32, 64] {
                for threads in 1..=128 {
                    for wanted in [n / 205, 8 * n / 205, usize::MAX].map(|wanted| wanted.max(1)) {
                        let longest = model(n, panel, wanted, threads);
                        let panels = n.div_ceil(panel);
                        let even = panels * panel;
                        // The fewest threads that are done at that time.
                        let used = even.div_ceil(longest);
                        let case = format!(
                            "{n} rows in panels of {panel}, {wanted} parts, {used} of {threads} threads"
                        );
                        // Nobody does more than if single panels were dealt to all threads that are worth it.
                        let all = threads.min(wanted).min(panels);
                        let dealt = panels.div_ceil(all) * panel;
                        assert!(longest <= dealt, "{case}: {longest} rows instead of {dealt}");
                        // With fewer panels one more is over 5 %.
                        if panels >= 20 * used {
                            assert!(longest * used * 100 <= even * 105, "{case}: {longest} of {even} rows");
                            balanced += 1;
                        }
                    }
                }
            }
        }
        assert!(balanced > 3000, "{balanced}");
    }

    #[test]
    fn parts_go_evenly_over_threads() {
        assert_eq!(parts(1, 100, 100), 4);
        // 2560 rows in panels of 32, worth twelve parts: not four idle threads in the second round.
        assert_eq!(parts(8, 12, 80), 8);
        assert_eq!(parts(10, 12, 80), 10);
        // Nine rounds on 9 threads and on 10: nine have the same to do.
        assert_eq!(parts(10, usize::MAX, 81) % 9, 0);
        assert_eq!(parts(32, 12, 80), 12);
        assert_eq!(parts(2, usize::MAX, 3), 2);
        for (threads, wanted, granules) in [(1, 1, 1), (7, 1, 100), (7, 100, 1), (7, 100, 0), (0, 0, 0)] {
            assert!(parts(threads, wanted, granules) >= 1);
        }
        assert_eq!(parts(usize::MAX, usize::MAX, usize::MAX), usize::MAX);
    }

    /// What a place has when the first of so many are cut off one after the other, each its share of what is left.
    #[test]
    fn a_place_has_its_share() {
        for pieces in 0..200 {
            for places in 1..=40 {
                let mut rest = 0..pieces;
                for place in 0..places {
                    let (own, after) = split_range(rest, 1, places - place);
                    assert_eq!(of_place(pieces, places, place), own, "{pieces} {places} {place}");
                    rest = after;
                }
            }
        }
        assert_eq!(of_place(5, 0, 0), 0..5);
    }

    #[test]
    fn as_many_threads_have_parts_as_are_done_early() {
        // Twelve parts for six of eight threads; 13 items can't be dealt out evenly.
        assert_eq!(
            [places(12, 8), places(36, 10), places(13, 8), places(5, 8), places(32, 8)],
            [6, 9, 8, 5, 8]
        );
        assert_eq!([places(0, 8), places(7, 0), places(7, 1)], [0, 1, 1]);
    }

    #[test]
    fn every_place_has_one_thread_and_places_of_nodes_are_even() {
        for threads in 1..=130 {
            for places in 1..=threads {
                for several in [false, true] {
                    let at: Vec<usize> =
                        (0..places).map(|place| thread_at(place, places, threads, several)).collect();
                    assert_eq!(at[0], 0);
                    assert!(at.is_sorted_by(|a, b| a < b) && at[places - 1] < threads);
                    let places_of = (0..threads).map(|thread| place_of(thread, places, threads, several));
                    for (thread, place) in places_of.enumerate() {
                        assert_eq!(at.iter().position(|at| *at == thread), place, "{threads} {places}");
                    }
                    // Of both halves of the threads.
                    let first = at.iter().filter(|thread| **thread < threads.div_ceil(2)).count();
                    assert!(
                        !several || first.abs_diff(places.div_ceil(2)) <= 1,
                        "{threads} {places} {first}"
                    );
                }
            }
        }
    }

    /// Rows of a matrix, piece by piece, each with the node of the thread whose it is first, in a product of `m` tokens with `k` values.
    fn nodes_of_rows(
        [m, n, k]: [usize; 3],
        panel: usize,
        threads: usize,
        nodes: usize,
    ) -> Vec<(Range<usize>, usize)> {
        let granule = granule_rows(n, panel, threads * PARTS_PER_THREAD, threads);
        // A part of at least 2^19 multiply-accumulates, as `Threads` has it.
        let parts = parts(threads, (m * n * k) >> 19, n.div_ceil(granule));
        let places = places(parts, threads);
        let mut of_rows: Vec<(Range<usize>, usize)> = Vec::new();
        for place in 0..places {
            let node = thread_at(place, places, threads, nodes > 1) * nodes / threads;
            let rows = rows_of_place(n, granule, places, place);
            assert_eq!(rows.start, of_rows.last().map_or(0, |(before, _)| before.end));
            of_rows.push((rows, node));
        }
        assert_eq!(of_rows.last().map(|(rows, _)| rows.end), Some(n));
        of_rows
    }

    /// Rows that are on one node in `placed` and on another in `read`.
    fn rows_apart(placed: &[(Range<usize>, usize)], read: &[(Range<usize>, usize)]) -> usize {
        let pairs = placed.iter().flat_map(|from| read.iter().map(move |by| (from, by)));
        let apart = pairs.filter(|((_, from), (_, by))| from != by);
        apart.map(|((a, _), (b, _))| a.end.min(b.end).saturating_sub(a.start.max(b.start))).sum()
    }

    /// Weights lie on the nodes of the threads that read them for one token. Without stealing, nobody reads another node's memory, whatever
    /// the number of tokens, where as many threads work on the product; where fewer are worth it for one token, next to nobody does.
    #[test]
    fn rows_are_read_from_the_memory_that_is_near() {
        let mut same = 0;
        for (n, k) in ROWS
            .iter()
            .skip(if cfg!(miri) { ROWS.len() - 1 } else { 0 })
            .flat_map(|n| [(*n, 2560), (*n, 14_336)])
        {
            for panel in [16, 32, 64] {
                for (nodes, threads) in
                    [1, 2, 8].into_iter().flat_map(|nodes| [1, 4, 12].map(|of_each| (nodes, nodes * of_each)))
                {
                    let placed = nodes_of_rows([1, n, k], panel, threads, nodes);
                    for m in [1, 2, 16, 512] {
                        let reads = nodes_of_rows([m, n, k], panel, threads, nodes);
                        let remote = rows_apart(&placed, &reads);
                        let case =
                            format!("{m} tokens, {n}x{k} in {panel}, {threads} threads on {nodes} nodes");
                        let granules =
                            n.div_ceil(granule_rows(n, panel, threads * PARTS_PER_THREAD, threads));
                        let count = |m: usize| places(parts(threads, (m * n * k) >> 19, granules), threads);
                        if m == 1 || nodes == 1 || count(m) == count(1) {
                            assert_eq!(remote, 0, "{case}");
                            same += usize::from(m > 1 && nodes > 1);
                        }
                        // Where all nodes have threads that work on it.
                        if count(1).is_multiple_of(nodes) && count(m).is_multiple_of(nodes) {
                            let most =
                                nodes * granule_rows(n, panel, threads * PARTS_PER_THREAD, threads) * nodes;
                            assert!(
                                remote <= most,
                                "{case}: {remote} rows, from {} to {}",
                                count(1),
                                count(m)
                            );
                        }
                    }
                    let granule = granule_rows(n, panel, threads * PARTS_PER_THREAD, threads);
                    if places(parts(threads, (n * k) >> 19, n.div_ceil(granule)), threads) == threads {
                        // All threads have some, so each node has its share but for a granule a thread.
                        let has = |node: usize| -> usize {
                            placed.iter().filter(|of| of.1 == node).map(|of| of.0.len()).sum()
                        };
                        let least = n / nodes - (threads / nodes) * granule.min(n / threads);
                        assert!(
                            (0..nodes).all(|node| has(node) > least),
                            "{n}x{k}, {threads} threads, {nodes}"
                        );
                    }
                }
            }
        }
        assert!(same > if cfg!(miri) { 20 } else { 500 }, "{same}");
    }
}
