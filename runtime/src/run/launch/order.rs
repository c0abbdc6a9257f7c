//! In which order the rows of several matrices are divided among threads.
//!
//! They lie one behind the other as granules with a cost, and parts are cut at equal costs: on one NUMA node matrix after matrix. On several
//! comes first what lies on the first node, of each matrix, then what lies on the next, and each node's takes as much room as it has
//! threads, which are neighbours: so threads have what lies on their node, and who is done early helps others.

use crate::memory::homes::{Homes, Share};
use std::ops::Range;

/// Nodes that are told apart at most. Where there are more the order is as on one.
const MOST: usize = 16;

/// The nodes of threads, in the order of the threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeOrder {
    nodes: [usize; MOST],
    /// Threads on each node and those in front of it.
    upto: [usize; MOST],
    /// Nodes; one of no number where nodes make no difference.
    count: usize,
}

/// The rows of a matrix that a job computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'w> {
    /// Who reads which panels; empty where nobody in particular does.
    pub(super) shares: &'w [Share],
    /// Rows of a panel.
    pub(super) panel: usize,
    /// First row, at which a panel begins.
    pub(super) first: usize,
    /// How many.
    pub(super) count: usize,
    /// Rows of a granule: whole panels.
    pub(super) granule: usize,
    /// What a granule costs, beside those of other matrices; not 0.
    pub(super) cost: usize,
}

impl NodeOrder {
    pub(crate) fn of(homes: Option<&Homes>) -> NodeOrder {
        let one = NodeOrder { nodes: [0; MOST], upto: [1; MOST], count: 1 };
        let Some(homes) = homes else { return one };
        let mut order = NodeOrder { count: 0, ..one };
        for (thread, home) in homes.threads.iter().enumerate() {
            let known = &order.nodes[..order.count];
            if known.last() != Some(&home.node) {
                // Threads of a node that are not neighbours were put there by somebody who knows better.
                if known.contains(&home.node) || known.len() == MOST {
                    return one;
                }
                order.nodes[order.count] = home.node;
                order.count += 1;
            }
            order.upto[order.count - 1] = thread + 1;
        }
        order
    }

    /// The place in this order of a node; of one that is not there the last.
    fn place(&self, node: usize) -> usize {
        self.nodes[..self.count].iter().position(|known| *known == node).unwrap_or(self.count - 1)
    }

    /// The rows that come at a place of this order, counted from the first that is computed. Every row comes once: a share
    /// begins where the one in front of it ends.
    fn ranges<'w>(&self, place: usize, of: Rows<'w>) -> impl Iterator<Item = Range<usize>> + 'w {
        let order = *self;
        let divided = order.count > 1;
        let shares = if divided { of.shares } else { &[] };
        // The end of a share, or of a place where there are none.
        let end = move |index: usize| match shares.get(index) {
            Some(_) if index + 1 == shares.len() => of.count,
            Some(share) => share.panels.end.saturating_mul(of.panel).saturating_sub(of.first).min(of.count),
            None if index + 1 >= order.count => of.count,
            None => {
                let panels = of.count.div_ceil(of.panel.max(1)) as u128;
                let before = panels * order.upto[index] as u128 / order.upto[order.count - 1].max(1) as u128;
                usize::try_from(before).unwrap_or(usize::MAX).saturating_mul(of.panel).min(of.count)
            }
        };
        let all = if shares.is_empty() { place..place + 1 } else { 0..shares.len() };
        let here =
            move |index: &usize| shares.get(*index).is_none_or(|share| order.place(share.home.node) == place);
        all.filter(here).map(move |index| {
            let begin = if index == 0 { 0 } else { end(index - 1) };
            begin..end(index).max(begin)
        })
    }

    /// The rows of matrices in this order; in that of one node where nodes have too different shares of them.
    pub(super) fn lay<'w, I: Iterator<Item = Rows<'w>>>(self, all: impl Fn() -> I) -> Laid {
        let laid = self.laid(all());
        if laid.is_even() { laid } else { NodeOrder::of(None).laid(all()) }
    }

    fn laid<'w>(self, all: impl Iterator<Item = Rows<'w>>) -> Laid {
        let mut laid = Laid { order: self, costs: [0; MOST], granules: 0 };
        for rows in all {
            for place in 0..self.count {
                for range in self.ranges(place, rows) {
                    let own = range.len().div_ceil(rows.granule);
                    laid.granules = laid.granules.saturating_add(own);
                    laid.costs[place] = laid.costs[place].saturating_add(own.saturating_mul(rows.cost));
                }
            }
        }
        laid
    }
}

/// Room that a thread has in what is divided on several nodes.
const ROOM: usize = 1 << 20;

/// Rows of matrices, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Laid {
    order: NodeOrder,
    /// What the rows at each place of the order cost.
    costs: [usize; MOST],
    /// Granules of all.
    pub(super) granules: usize,
}

impl Laid {
    /// What is divided: numbers from 0 on, as many as this.
    pub(super) fn room(&self) -> usize {
        self.end(self.order.count - 1)
    }

    /// The end of what lies at a place of the order.
    fn end(&self, place: usize) -> usize {
        if self.order.count == 1 { self.costs[0] } else { self.order.upto[place].saturating_mul(ROOM) }
    }

    /// Whether no node has more than twice as much to do for each of its threads as the mean.
    fn is_even(&self) -> bool {
        let all: u128 = self.costs.iter().map(|cost| *cost as u128).sum();
        let threads = self.order.upto[self.order.count - 1] as u128;
        let mut before = 0;
        (0..self.order.count).all(|place| {
            let own = self.order.upto[place] - std::mem::replace(&mut before, self.order.upto[place]);
            self.costs[place] as u128 * threads <= 2 * all * own as u128
        })
    }

    /// Calls `visit` with each matrix of which some rows are in a part, and these: whole granules, of which a part has those in which a
    /// first unit of cost lies there. `all` gives what was laid.
    pub(super) fn visit<'w, T, I: Iterator<Item = (T, Rows<'w>)>>(
        &self,
        all: impl Fn() -> I,
        part: Range<usize>,
        mut visit: impl FnMut(&T, Range<usize>),
    ) {
        let mut begin = 0;
        for place in 0..self.order.count {
            let room = begin..self.end(place);
            begin = room.end;
            if part.start >= room.end || part.end <= room.start {
                continue;
            }
            // In costs, as if the room were as large as they are.
            let cost = |at: usize| {
                let at = at.clamp(room.start, room.end) - room.start;
                let cost = at as u128 * self.costs[place] as u128 / (room.len().max(1)) as u128;
                usize::try_from(cost).unwrap_or(usize::MAX)
            };
            let own = cost(part.start)..cost(part.end);
            let mut base = 0usize;
            for (matrix, rows) in all() {
                if base >= own.end {
                    break;
                }
                for range in self.order.ranges(place, rows) {
                    let granules = range.len().div_ceil(rows.granule);
                    let granule = |at: usize| at.saturating_sub(base).div_ceil(rows.cost).min(granules);
                    let row = |granule: usize| (range.start + granule * rows.granule).min(range.end);
                    let here = row(granule(own.start))..row(granule(own.end));
                    base = base.saturating_add(granules.saturating_mul(rows.cost));
                    if !here.is_empty() {
                        visit(&matrix, here);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Node, Topology};
    use crate::error::Error;
    use crate::parallel::division::{granule_rows, of_place, places, split_range, thread_at};
    use crate::threads::{ThreadOptions, Threads};

    /// Threads on a machine with so many nodes of so many cores each.
    fn threads(nodes: usize, cores: usize, count: usize) -> Result<Threads, Error> {
        let node = |id: usize| Node { id, cpus: (id * cores..(id + 1) * cores).collect(), ..Node::default() };
        let topology = Topology { nodes: (0..nodes).map(node).collect(), ..Topology::default() };
        let options = ThreadOptions { count, topology, ..ThreadOptions::default() };
        Ok(Threads::with_options(&options)?.with_grain(1))
    }

    /// Rows of matrices with 4096 values, and bytes of a row.
    const MATRICES: [&[(usize, usize)]; 4] = [
        &[(4096, 2304), (1024, 2304), (1024, 3360)],
        &[(14_336, 2304), (14_336, 2816)],
        &[(2560, 640), (16, 8192)],
        &[(640, 2304), (640, 1024), (6912, 640), (100, 4096), (32, 64)],
    ];

    /// Whatever the parts, each row of each matrix is in one of them; and a thread's rows lie on its node.
    #[test]
    fn every_row_comes_once_and_near_its_weights() -> Result<(), Error> {
        let mut near = 0;
        for (nodes, count) in [(1, 4), (2, 4), (2, 7), (4, 16), (8, 16), (8, 8), (8, 3), (20, 40)] {
            let threads = threads(nodes, 4, count)?;
            let of_threads = threads.nodes();
            let order = threads.node_order();
            assert_eq!(order.count, if (2..=MOST).contains(&nodes) { nodes.min(count) } else { 1 });
            for (matrices, placed) in MATRICES.into_iter().flat_map(|all| [(all, true), (all, false)]) {
                let shares: Vec<Vec<Share>> = matrices
                    .iter()
                    .map(|(n, _)| if placed { threads.shares(*n, 16, 4096) } else { Vec::new() })
                    .collect();
                let rows = |index: usize| {
                    let (count, cost) = matrices[index];
                    let granule = granule_rows(count, 16, 16, 4);
                    Rows { shares: &shares[index], panel: 16, first: 0, count, granule, cost }
                };
                let all = || (0..matrices.len()).map(|index| (index, rows(index)));
                let laid = order.lay(|| all().map(|(_, rows)| rows));
                let parts = crate::parallel::division::parts(count, usize::MAX, laid.granules);
                let places = places(parts, count);
                let mut seen: Vec<Vec<u8>> = matrices.iter().map(|(n, _)| vec![0; *n]).collect();
                let (mut remote, mut read) = (0, 0);
                let mut rest = 0..laid.room();
                for place in 0..places {
                    let own = of_place(parts, places, place);
                    let (part, after) = split_range(rest, own.len(), parts - own.start);
                    rest = after;
                    let thread = thread_at(place, places, count, of_threads.is_some());
                    laid.visit(all, part, |index, rows| {
                        seen[*index][rows.clone()].iter_mut().for_each(|times| *times += 1);
                        assert!(rows.start.is_multiple_of(16), "{rows:?}");
                        for row in rows {
                            let on = shares[*index].iter().find(|share| share.panels.contains(&(row / 16)));
                            let node = of_threads.as_ref().map(|nodes| nodes[thread]);
                            read += matrices[*index].1;
                            let far = on.is_some_and(|share| Some(share.home.node) != node);
                            remote += if far { matrices[*index].1 } else { 0 };
                        }
                    });
                }
                assert!(seen.iter().flatten().all(|times| *times == 1), "{nodes} nodes, {matrices:?}");
                if placed && laid.order.count > 1 && places == count {
                    assert!(
                        remote * 20 <= read,
                        "{nodes} nodes, {count} threads: {remote} of {read}, {matrices:?}"
                    );
                    near += 1;
                }
            }
        }
        assert!(near >= 16, "{near}");
        Ok(())
    }

    /// A job of some rows of a matrix, which begin within a share.
    #[test]
    fn rows_of_a_range_come_once() -> Result<(), Error> {
        let threads = threads(2, 2, 4)?;
        let (order, shares) = (threads.node_order(), threads.shares(1024, 16, 4096));
        for (first, count) in [(0, 1024), (16, 1000), (480, 60), (512, 512), (1008, 16), (1008, 3), (64, 0)] {
            let rows = Rows { shares: &shares, panel: 16, first, count, granule: 32, cost: 3 };
            let mut seen = vec![0; count];
            let laid = order.lay(|| std::iter::once(rows));
            let room = laid.room();
            for part in [0..room / 3, room / 3..room / 2, room / 2..room] {
                laid.visit(
                    || std::iter::once(((), rows)),
                    part,
                    |(), own| {
                        assert!(own.start.is_multiple_of(16));
                        seen[own].iter_mut().for_each(|times| *times += 1);
                    },
                );
            }
            assert!(seen.iter().all(|times| *times == 1), "{first}, {count}: {seen:?}");
        }
        Ok(())
    }

    #[test]
    fn threads_in_another_order_are_as_on_one_node() -> Result<(), Error> {
        let here = core_affinity::get_core_ids().unwrap_or_default();
        if here.len() < 2 {
            eprintln!("skipped: fewer than two processors");
            return Ok(());
        }
        let (a, b) = (here[0].id, here[1].id);
        let node = |id: usize, cpu: usize| Node { id, cpus: vec![cpu], ..Node::default() };
        let topology = Topology { nodes: vec![node(0, a), node(1, b)], ..Topology::default() };
        let options = ThreadOptions { count: 3, topology, cpus: vec![a, b], ..ThreadOptions::default() };
        let neighbours = Threads::with_options(&options)?;
        assert_eq!((neighbours.nodes(), neighbours.node_order().count), (Some(vec![0, 0, 1]), 2));
        let apart = Threads::with_options(&ThreadOptions { count: 4, cpus: vec![a, b, a], ..options })?;
        assert_eq!((apart.nodes(), apart.node_order().count), (Some(vec![0, 0, 1, 0]), 1));
        Ok(())
    }
}
