//! Which threads are on which NUMA nodes, and where the weights that they read are to lie. On one node there are no homes, and nothing is
//! done for any.

use crate::device::{Node, Topology};
use crate::parallel::pool::{Seat, Seats};
use std::ops::Range;
use std::sync::Arc;

/// A NUMA node that threads are on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Its number.
    pub(crate) node: usize,
    /// The node whose memory its threads get: itself, or where it has none the nearest.
    pub(crate) memory: usize,
    /// Its processors.
    pub(crate) cpus: Vec<usize>,
}

/// The home of each thread, the calling one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Homes {
    pub(crate) threads: Vec<Arc<Home>>,
}

/// Neighbouring panels of a matrix whose first readers are on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) panels: Range<usize>,
    pub(crate) home: Arc<Home>,
}

/// Where `count` threads are to be on a machine, if `cpus` says nothing else of the workers among them, and their homes where these are
/// several: as many on each node as it has cores beside those of the others, neighbours together.
pub(crate) fn seats(topology: &Topology, count: usize, cpus: &[usize]) -> (Seats, Option<Homes>) {
    let mut seats = Seats {
        workers: cpus.iter().map(|cpu| Seat { cpus: vec![*cpu], must: true }).collect(),
        nodes: Vec::new(),
    };
    let nodes: Vec<&Node> = topology.nodes_with_processors().collect();
    if nodes.len() < 2 || count < 2 {
        return (seats, None);
    }
    let home = |node: &&Node| {
        let memory = topology.memory_of(node.id).map_or(node.id, |memory| memory.id);
        Arc::new(Home { node: node.id, memory, cpus: node.cpus.clone() })
    };
    let homes: Vec<Arc<Home>> = nodes.iter().map(home).collect();
    let cores: Vec<usize> = nodes.iter().map(|node| topology.cores_of(node).len().max(1)).collect();
    let all: usize = cores.iter().sum();
    let dealt = |thread: usize| {
        let mut core = (thread as u128 * all as u128 / count as u128) as usize;
        let node = cores.iter().position(|cores| {
            let here = core < *cores;
            core = core.saturating_sub(*cores);
            here
        });
        node.unwrap_or(homes.len() - 1)
    };
    let of_cpu = |cpu: &usize| homes.iter().position(|home| home.cpus.contains(cpu));
    let threads: Vec<usize> = (0..count)
        .map(|thread| {
            // Who says where the workers are will have the calling thread beside the first.
            let said = cpus.get(thread.saturating_sub(1)).and_then(of_cpu);
            said.unwrap_or_else(|| dealt(thread))
        })
        .collect();
    if threads.iter().all(|home| *home == threads[0]) {
        return (seats, None);
    }
    for home in threads.iter().skip(1 + seats.workers.len()) {
        // It is no error if the system does not let a thread stay there: results are the same.
        seats.workers.push(Seat { cpus: homes[*home].cpus.clone(), must: false });
    }
    seats.nodes = threads.iter().map(|home| homes[*home].node).collect();
    (seats, Some(Homes { threads: threads.iter().map(|home| Arc::clone(&homes[*home])).collect() }))
}

/// Neighbours with one home as one share.
pub(crate) fn merged(shares: impl Iterator<Item = Share>) -> Vec<Share> {
    let mut merged: Vec<Share> = Vec::new();
    for share in shares.filter(|share| !share.panels.is_empty()) {
        match merged.last_mut() {
            Some(last) if last.home == share.home && last.panels.end >= share.panels.start => {
                last.panels.end = share.panels.end;
            }
            _ => merged.push(share),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(nodes: &[&[usize]], cores: &[&[usize]]) -> Topology {
        let node = |(id, cpus): (usize, &&[usize])| Node { id, cpus: cpus.to_vec(), ..Node::default() };
        Topology {
            nodes: nodes.iter().enumerate().map(node).collect(),
            cores: cores.iter().map(|core| core.to_vec()).collect(),
            ..Topology::default()
        }
    }

    fn nodes_of(topology: &Topology, count: usize, cpus: &[usize]) -> Vec<usize> {
        let (seats, homes) = seats(topology, count, cpus);
        let of_homes = homes.map(|homes| homes.threads.iter().map(|home| home.node).collect::<Vec<_>>());
        assert_eq!(of_homes.unwrap_or_default(), seats.nodes);
        seats.nodes
    }

    #[test]
    fn threads_are_dealt_to_nodes_by_their_cores() {
        let two = machine(&[&[0, 1, 4, 5], &[2, 3, 6, 7]], &[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]);
        assert_eq!(nodes_of(&two, 4, &[]), [0, 0, 1, 1]);
        assert_eq!(nodes_of(&two, 2, &[]), [0, 1]);
        assert_eq!(nodes_of(&two, 7, &[]), [0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(nodes_of(&two, 1, &[]), [0; 0], "a thread alone");
        // Three cores against one.
        let uneven = machine(&[&[0, 1, 2], &[3], &[]], &[&[0], &[1], &[2], &[3]]);
        assert_eq!(nodes_of(&uneven, 4, &[]), [0, 0, 0, 1]);
        assert_eq!(nodes_of(&uneven, 8, &[]), [0, 0, 0, 0, 0, 0, 1, 1]);
        let (seats, _) = seats(&two, 4, &[]);
        let on: Vec<&[usize]> = seats.workers.iter().map(|seat| &*seat.cpus).collect();
        assert_eq!(on, [&[0, 1, 4, 5], &[2, 3, 6, 7], &[2, 3, 6, 7]]);
        assert!(seats.workers.iter().all(|seat| !seat.must));
    }

    #[test]
    fn one_node_or_none_changes_nothing() {
        for topology in
            [Topology::default(), machine(&[&[0, 1]], &[&[0], &[1]]), machine(&[&[0, 1], &[]], &[])]
        {
            let (none, homes) = seats(&topology, 8, &[]);
            assert!(none.workers.is_empty() && none.nodes.is_empty() && homes.is_none());
            let (pinned, homes) = seats(&topology, 3, &[1, 0]);
            assert!(homes.is_none() && pinned.nodes.is_empty());
            assert!(pinned.workers.iter().all(|seat| seat.must && seat.cpus.len() == 1));
        }
    }

    #[test]
    fn who_says_where_threads_are_is_believed() {
        let two = machine(&[&[0, 1], &[2, 3]], &[]);
        assert_eq!(nodes_of(&two, 4, &[3, 0, 1]), [1, 1, 0, 0]);
        assert_eq!(nodes_of(&two, 3, &[2, 3]), [0; 0], "all on one");
        // Where one worker is said, the others are dealt.
        assert_eq!(nodes_of(&two, 4, &[0]), [0, 0, 1, 1]);
    }

    #[test]
    fn without_memory_a_home_is_the_nearest() {
        let mut three = machine(&[&[0], &[1], &[]], &[]);
        for (node, memory) in three.nodes.iter_mut().zip([1 << 30, 0, 1 << 30]) {
            node.memory = Some(memory);
        }
        three.nodes[1].distances = vec![(0, 21), (1, 10), (2, 14)];
        let (_, homes) = seats(&three, 2, &[]);
        let homes: Vec<_> = homes.expect("two").threads.iter().map(|home| (home.node, home.memory)).collect();
        assert_eq!(homes, [(0, 0), (1, 2)]);
    }

    #[test]
    fn neighbours_with_one_home_are_one_share() {
        let home = |node| Arc::new(Home { node, memory: node, cpus: vec![node] });
        let share = |panels, node| Share { panels, home: home(node) };
        let parts = [share(0..2, 0), share(2..4, 0), share(4..4, 1), share(4..6, 1), share(6..7, 0)];
        assert_eq!(merged(parts.into_iter()), [share(0..4, 0), share(4..6, 1), share(6..7, 0)]);
    }
}
