//! Into how many parts a job goes: pure arithmetic, so that a test can model machines that are not there.

/// Parts handed out for each thread, so that a thread that the system held up is helped by the others.
pub(crate) const PARTS_PER_THREAD: usize = 4;

/// Rows that a part of a product takes at least, where there are enough: a multiple of the row tiles that kernels use.
const ROWS_PER_GRANULE: usize = 64;

/// Into how many parts a job goes that can be cut in `granules` pieces of equal cost and is worth `wanted` parts, on so many
/// threads; at least 1.
///
/// Whoever is free takes the next part, so the number of parts is a multiple of the threads that get some: otherwise the
/// last round keeps a few of them busy and the others waiting. Where fewer threads are done as early, since pieces can't
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::split_range;

    /// Rows that the busiest of `threads` threads has computed when a matrix is done, where each takes the next part when it
    /// is free and a row takes as long on each.
    fn model(n: usize, panel: usize, wanted: usize, threads: usize) -> usize {
        let granule = granule_rows(n, panel, threads * PARTS_PER_THREAD, threads);
        let granules = n.div_ceil(granule);
        let parts = parts(threads, wanted, granules);
        let mut busy = vec![0usize; threads];
        let mut rest = 0..granules;
        for part in 0..parts {
            let (piece, after) = split_range(rest, 1, parts - part);
            rest = after;
            let rows = (piece.end * granule).min(n) - (piece.start * granule).min(n);
            // A panel is computed whole.
            let free = (0..threads).min_by_key(|thread| busy[*thread]).expect("a thread");
            busy[free] += rows.next_multiple_of(panel);
        }
        assert!(rest.is_empty(), "{n} rows on {threads} threads: {rest:?} left");
        busy.into_iter().max().unwrap_or(0)
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
}
