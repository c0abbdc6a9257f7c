//! On which NUMA nodes packed weights lie: as expected, and as the system tells.

use crate::error::Error;
use crate::memory::aligned::{Aligned, Plain, is_placed, page, rounded_to_pages};
use crate::memory::homes::Share;
use crate::threads::Threads;
use std::ops::Range;

/// Where packed weights lie on a machine with several NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Placement {
    /// Nodes on which some are expected or found, in order of their numbers.
    pub nodes: Vec<NodeBytes>,
    /// Bytes that a product of one token reads from another node's memory, if nobody does another's part: what shares a page with the weights
    /// of a neighbour, small buffers, which are not divided, and all that is read on nodes without memory.
    pub remote_bytes: usize,
}

/// Bytes of packed weights on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeBytes {
    /// The node's number.
    pub node: usize,
    /// Bytes that were to be placed there.
    pub expected: usize,
    /// Bytes of these and others that lie there; `None` where the system does not tell, as in most containers.
    pub found: Option<usize>,
}

impl Placement {
    /// Of buffers whose `panels` panels are divided into `shares`, and of `small` bytes that are not.
    pub(crate) fn of(shares: &[Share], panels: usize, buffers: &[&[u8]], small: usize) -> Placement {
        let mut placement = Placement { remote_bytes: small, ..Placement::default() };
        for buffer in buffers {
            placement.count(buffer.len(), buffer.len() / panels.max(1), shares);
        }
        for buffer in buffers.iter().filter(|buffer| is_placed(buffer.len())) {
            let Some(found) = nodes_of_pages(buffer) else {
                placement.nodes.iter_mut().for_each(|place| place.found = None);
                break;
            };
            for (node, bytes) in found {
                let place = placement.place(node);
                place.found = place.found.map(|known| known + bytes);
            }
        }
        placement
    }

    /// Adds up what of two packings lies where.
    pub(crate) fn and(mut self, other: Placement) -> Placement {
        for NodeBytes { node, expected, found } in other.nodes {
            let place = self.place(node);
            place.expected += expected;
            place.found = place.found.zip(found).map(|(a, b)| a + b);
        }
        self.remote_bytes += other.remote_bytes;
        self
    }

    fn place(&mut self, node: usize) -> &mut NodeBytes {
        let at = match self.nodes.binary_search_by_key(&node, |place| place.node) {
            Ok(at) => at,
            Err(at) => {
                self.nodes.insert(at, NodeBytes { node, expected: 0, found: Some(0) });
                at
            }
        };
        &mut self.nodes[at]
    }

    /// Counts a buffer of `bytes` bytes, `of_panel` to a panel.
    fn count(&mut self, bytes: usize, of_panel: usize, shares: &[Share]) {
        if !is_placed(bytes) {
            self.remote_bytes += bytes;
            return;
        }
        for share in shares {
            let read = bytes_of(&share.panels, of_panel);
            let lies = rounded_to_pages(&read);
            let lies = lies.start.min(bytes)..lies.end.min(bytes);
            let near = lies.end.min(read.end).saturating_sub(lies.start.max(read.start));
            self.place(share.home.memory).expected += lies.len();
            self.remote_bytes +=
                if share.home.memory == share.home.node { read.len() - near } else { read.len() };
        }
    }
}

fn bytes_of(panels: &Range<usize>, of_panel: usize) -> Range<usize> {
    panels.start.saturating_mul(of_panel)..panels.end.saturating_mul(of_panel)
}

/// A buffer of `len` values, `of_panel` to a panel, each share near who reads it; without shares `threads` write it first.
pub(crate) fn buffer<T: Plain>(
    len: usize,
    of_panel: usize,
    shares: &[Share],
    threads: &Threads,
) -> Result<Aligned<T>, Error> {
    let bytes = of_panel.saturating_mul(size_of::<T>());
    if shares.is_empty() {
        return Aligned::long_lived(len, threads);
    }
    let places: Vec<(Range<usize>, &[usize])> =
        shares.iter().map(|share| (bytes_of(&share.panels, bytes), &*share.home.cpus)).collect();
    Aligned::placed(len, &places)
}

/// How many bytes of a buffer lie on each node; `None` where the system does not tell.
#[cfg(all(target_os = "linux", not(miri)))]
fn nodes_of_pages(buffer: &[u8]) -> Option<Vec<(usize, usize)>> {
    let page = page();
    let start = buffer.as_ptr() as usize / page * page;
    let end = buffer.as_ptr() as usize + buffer.len();
    let mut found: Vec<(usize, usize)> = Vec::new();
    let pages: Vec<usize> = (start..end).step_by(page).collect();
    for pages in pages.chunks(1 << 14) {
        let mut status = vec![libc::c_int::MIN; pages.len()];
        // SAFETY: with no nodes given the call moves nothing and writes where each page lies; `status` has a place for each. Addresses
        // are those of a buffer that is alive, and are not written through.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                std::ptr::null::<libc::c_int>(),
                status.as_mut_ptr(),
                0,
            )
        };
        if answer != 0 {
            return None;
        }
        for (at, node) in pages.iter().zip(status) {
            // A page that is not in memory is on no node.
            let Ok(node) = usize::try_from(node) else { continue };
            let bytes = (at + page).min(end) - (*at).max(buffer.as_ptr() as usize);
            match found.iter_mut().find(|(known, _)| *known == node) {
                Some((_, sum)) => *sum += bytes,
                None => found.push((node, bytes)),
            }
        }
    }
    Some(found)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn nodes_of_pages(_: &[u8]) -> Option<Vec<(usize, usize)>> {
    let _ = page;
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::homes::Home;
    use std::sync::Arc;

    fn share(panels: Range<usize>, node: usize, memory: usize) -> Share {
        Share { panels, home: Arc::new(Home { node, memory, cpus: Vec::new() }) }
    }

    #[test]
    fn what_shares_a_page_is_read_from_afar() {
        let page = page();
        // Twenty of them are enough to be divided.
        let panel = 32 * page;
        let shares = [share(0..10, 0, 0), share(10..20, 1, 1)];
        let mut whole = Placement::default();
        // Panels of whole pages: nothing is read from afar.
        whole.count(20 * panel, panel, &shares);
        assert_eq!(whole.remote_bytes, 0);
        let expected = |placement: &Placement| -> Vec<(usize, usize)> {
            placement.nodes.iter().map(|place| (place.node, place.expected)).collect()
        };
        assert_eq!(expected(&whole), [(0, 10 * panel), (1, 10 * panel)]);
        // The second share begins 10 bytes into a page, the rest of which is its own and lies with the first.
        let mut apart = Placement::default();
        apart.count(20 * (panel + 1), panel + 1, &shares);
        assert_eq!(apart.remote_bytes, page - 10);
        assert_eq!(expected(&apart), [(0, 10 * panel + page), (1, 10 * panel - page + 20)]);
        // Small buffers are not divided.
        let mut small = Placement::default();
        small.count(1000, 50, &shares);
        assert_eq!((small.remote_bytes, small.nodes.len()), (1000, 0));
        // A node without memory reads all of its share from another's.
        let mut without = Placement::default();
        without.count(20 * panel, panel, &[share(0..10, 0, 0), share(10..20, 1, 2)]);
        assert_eq!(without.remote_bytes, 10 * panel);
        assert_eq!(expected(&without), [(0, 10 * panel), (2, 10 * panel)]);
        let both = whole.and(without);
        assert_eq!(expected(&both), [(0, 20 * panel), (1, 10 * panel), (2, 10 * panel)]);
        assert_eq!(both.remote_bytes, 10 * panel);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn the_system_tells_where_pages_lie() -> Result<(), Error> {
        let mut buffer = Aligned::<u8>::long_lived(1 << 20, &Threads::single())?;
        buffer.fill(1);
        let Some(found) = nodes_of_pages(&buffer) else {
            eprintln!("skipped: the system does not tell");
            return Ok(());
        };
        assert_eq!(found.iter().map(|(_, bytes)| bytes).sum::<usize>(), 1 << 20, "{found:?}");
        Ok(())
    }
}
