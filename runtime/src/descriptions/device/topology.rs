//! Where a machine's processors, caches and memory are: NUMA nodes, cores and shared caches, as Linux tells them in files.
//!
//! Read by hand, in a folder that can be given: crates for this either need hwloc's or libnuma's C library, or read the one fixed
//! place, so that no machine but the present one could be tried.

use crate::parallel::affinity;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Where Linux keeps the files.
const SYSTEM: &str = "/sys/devices/system";

/// Processors, nodes and caches are numbered below this: more than any kernel is built for.
const MOST: usize = 1 << 16;

/// Caches of a processor that are read: more than any has.
const MOST_CACHES: usize = 16;

/// Bytes of a file that are read: more than any of these files has.
const MOST_BYTES: u64 = 1 << 16;

/// A NUMA node: processors and memory that lie together.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Node {
    /// Its number.
    pub id: usize,
    /// Its processors, as the system numbers them, in order; none where it has memory alone.
    pub cpus: Vec<usize>,
    /// Bytes of its memory: 0 where it has processors alone, `None` where the system does not say.
    pub memory: Option<u64>,
    /// How far its processors are from the memory of each node: numbers of nodes, and 10 for its own memory, more for others.
    pub distances: Vec<(usize, u32)>,
    /// MB (1e6 bytes) a second that all its cores together read of its own memory; `None` where nobody measured it
    /// ([`CpuProfile::measured`](crate::CpuProfile::measured) does).
    pub read_mb_s: Option<u64>,
}

/// A cache, and who shares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedCache {
    /// Its level, from 1.
    pub level: u32,
    /// Whether it holds instructions alone.
    pub instructions: bool,
    /// Bytes; `None` where the system does not say.
    pub bytes: Option<usize>,
    /// The processors that share it.
    pub cpus: Vec<usize>,
}

/// Where processors, caches and memory are. What the system does not say is empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Topology {
    /// NUMA nodes, in order of their numbers. None where the system does not say, or contradicts itself (see `problems`).
    pub nodes: Vec<Node>,
    /// Processors of each physical core.
    pub cores: Vec<Vec<usize>>,
    /// Caches, the lowest level first. In [`CpuProfile::detect`](crate::CpuProfile::detect) those of one processor alone, since a large
    /// machine has thousands of files about them; [`Topology::of_this_machine`] reads all.
    pub caches: Vec<SharedCache>,
    /// Files that could not be understood, with the reason. What they were to say is left out.
    pub problems: Vec<String>,
}

impl Topology {
    /// Of the machine whose `/sys/devices/system`, or a copy of it, is `root`. Whatever the files hold, this never fails: what can't be read is
    /// left out, and what can't be understood is in [`problems`](Topology::problems) besides.
    pub fn read(root: &Path) -> Topology {
        Topology::read_for(root, &[], CachesOf::All)
    }

    /// Of this machine, with the processors that this program may use, and all their caches. Read at each call; empty where the system is not
    /// Linux.
    pub fn of_this_machine() -> Topology {
        let allowed = affinity::of_caller();
        Topology::here(allowed.as_deref().unwrap_or_default(), CachesOf::All).allowed(allowed.as_deref())
    }

    /// Of this machine, as [`read_for`](Topology::read_for).
    pub(super) fn here(allowed: &[usize], caches: CachesOf) -> Topology {
        // Elsewhere this path would be one of the present drive.
        match cfg!(target_os = "linux") {
            true => Topology::read_for(Path::new(SYSTEM), allowed, caches),
            false => Topology::default(),
        }
    }

    /// Of the machine whose files are in `root`, where a program may use the processors `allowed`: these are there, though `cpu/online` may
    /// not name them. (In a container it may be made up.)
    pub(super) fn read_for(root: &Path, allowed: &[usize], caches: CachesOf) -> Topology {
        let mut reader = Reader { root, problems: Vec::new() };
        let online = reader.list("cpu/online");
        let is_online = |cpu: &usize| {
            online.as_ref().is_none_or(|online| online.binary_search(cpu).is_ok()) || allowed.contains(cpu)
        };
        let nodes = reader.nodes(&is_online);
        let mut all: BTreeSet<usize> = match &online {
            Some(online) => online.iter().copied().collect(),
            None => nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect(),
        };
        all.extend(allowed);
        let cores = reader.cores(&all);
        let of: Vec<usize> = match caches {
            CachesOf::All => all.iter().copied().collect(),
            CachesOf::One => allowed.iter().min().or(all.first()).copied().into_iter().collect(),
        };
        let caches = reader.caches(&of, &all);
        Topology { nodes, cores, caches, problems: reader.problems }
    }

    /// The same without processors other than these: those that a program may use.
    pub fn restricted_to(mut self, cpus: &[usize]) -> Topology {
        let keep = |list: &mut Vec<usize>| list.retain(|cpu| cpus.contains(cpu));
        self.nodes.iter_mut().for_each(|node| keep(&mut node.cpus));
        self.cores.iter_mut().for_each(keep);
        self.cores.retain(|core| !core.is_empty());
        self.caches.iter_mut().for_each(|cache| keep(&mut cache.cpus));
        self.caches.retain(|cache| !cache.cpus.is_empty());
        self
    }

    /// The same without processors that a program may not use; the whole, where the system does not say which it may.
    pub(crate) fn allowed(self, cpus: Option<&[usize]>) -> Topology {
        match cpus {
            Some(cpus) => self.restricted_to(cpus),
            None => self,
        }
    }

    /// The nodes that have processors.
    pub fn nodes_with_processors(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.cpus.is_empty())
    }

    /// The node of a processor.
    pub fn node_of(&self, cpu: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.cpus.contains(&cpu))
    }

    /// The node whose memory the processors of `node` should use: itself, or the nearest that has some.
    pub fn memory_of(&self, node: usize) -> Option<&Node> {
        let own = self.nodes.iter().find(|own| own.id == node)?;
        if own.memory != Some(0) {
            return Some(own);
        }
        let far =
            |of: &Node| own.distances.iter().find(|(id, _)| *id == of.id).map_or(u32::MAX, |(_, far)| *far);
        self.nodes
            .iter()
            .filter(|node| node.memory.is_some_and(|bytes| bytes > 0))
            .min_by_key(|node| far(node))
    }

    /// A processor of each physical core of a node; every one of its processors where cores are not known.
    pub fn cores_of(&self, node: &Node) -> Vec<usize> {
        let first = |cpu: &usize| match self.cores.iter().find(|core| core.contains(cpu)) {
            Some(core) => core.iter().find(|cpu| node.cpus.contains(cpu)) == Some(cpu),
            None => true,
        };
        node.cpus.iter().copied().filter(first).collect()
    }
}

/// Nodes, a line each: for people.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes.is_empty() {
            writeln!(f, "NUMA nodes: the system does not say")?;
        }
        for node in &self.nodes {
            write!(f, "node {}: processors {}", node.id, list_text(&node.cpus))?;
            match node.memory {
                Some(0) => write!(f, "; no memory")?,
                Some(bytes) => write!(f, "; {:.1} GiB", bytes as f64 / f64::from(1 << 30))?,
                None => {}
            }
            if let Some(rate) = node.read_mb_s {
                write!(f, ", read at {:.1} GB/s", rate as f64 / 1e3)?;
            }
            if self.nodes.len() > 1 && !node.distances.is_empty() {
                let far: Vec<String> =
                    node.distances.iter().map(|(id, far)| format!("{far} to {id}")).collect();
                write!(f, "; distances {}", far.join(", "))?;
            }
            writeln!(f)?;
        }
        writeln!(f, "physical cores: {}", self.cores.len())?;
        let mut caches = self.caches.iter().filter(|cache| !cache.instructions).peekable();
        while let Some(cache) = caches.next() {
            let like = |other: &&SharedCache| {
                (other.level, other.bytes, other.cpus.len()) == (cache.level, cache.bytes, cache.cpus.len())
            };
            let mut count = 1;
            while caches.next_if(like).is_some() {
                count += 1;
            }
            let bytes =
                cache.bytes.map_or("of unknown size".to_owned(), |bytes| format!("of {} KiB", bytes >> 10));
            writeln!(
                f,
                "level {} caches: {count} {bytes}, {} processors each",
                cache.level,
                cache.cpus.len()
            )?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(f, "not understood: {problem}"))
    }
}

/// `0-3,8` for 0, 1, 2, 3, 8; `none` for nothing.
fn list_text(numbers: &[usize]) -> String {
    if numbers.is_empty() {
        return "none".to_owned();
    }
    let ranges = numbers.chunk_by(|a, b| a + 1 == *b);
    let ranges: Vec<String> = ranges
        .filter_map(|range| match range {
            [] => None,
            [one] => Some(one.to_string()),
            [first, .., last] => Some(format!("{first}-{last}")),
        })
        .collect();
    ranges.join(",")
}

/// The processors whose caches are read.
#[derive(Clone, Copy)]
pub(super) enum CachesOf {
    All,
    /// The first that the program may use.
    One,
}

/// Files below a root.
struct Reader<'r> {
    root: &'r Path,
    problems: Vec<String>,
}

impl Reader<'_> {
    /// The text of a file, without white space at its ends; `None` if there is none, or none to be read.
    fn text(&self, file: &str) -> Option<String> {
        let mut text = String::new();
        std::fs::File::open(self.root.join(file)).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    /// A file's content as `parse` reads it; where it is there and can't be understood, that is a problem.
    fn read<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(file)?;
        let value = parse(&text);
        if value.is_none() {
            let shown: String = text.chars().take(60).collect();
            self.problems.push(format!("{file}: `{}`", shown.escape_default()));
        }
        value
    }

    fn list(&mut self, file: &str) -> Option<Vec<usize>> {
        self.read(file, parse_list)
    }

    /// Nodes, without processors that are not online. None at all where what is told of them can't be true.
    fn nodes(&mut self, is_online: &dyn Fn(&usize) -> bool) -> Vec<Node> {
        let before = self.problems.len();
        // `online` is what the kernel writes; a copy of a part of the files may have the nodes alone.
        let ids = match self.list("node/online") {
            Some(ids) => ids,
            None if self.problems.len() > before => return Vec::new(),
            None => self.node_folders(),
        };
        let mut nodes = Vec::new();
        let mut seen = BTreeSet::new();
        for &id in &ids {
            let known = self.problems.len();
            let Some(mut cpus) = self.list(&format!("node/node{id}/cpulist")) else {
                if self.problems.len() == known {
                    self.problems.push(format!("node/node{id}/cpulist: not there"));
                }
                return Vec::new();
            };
            cpus.retain(is_online);
            if let Some(twice) = cpus.iter().find(|cpu| !seen.insert(**cpu)) {
                self.problems
                    .push(format!("node/node{id}/cpulist: processor {twice} is of another node too"));
                return Vec::new();
            }
            let memory = self.read(&format!("node/node{id}/meminfo"), parse_memory);
            let distances = self.read(&format!("node/node{id}/distance"), |text| parse_distances(text, &ids));
            nodes.push(Node { id, cpus, memory, distances: distances.unwrap_or_default(), read_mb_s: None });
        }
        nodes
    }

    fn node_folders(&self) -> Vec<usize> {
        let Ok(entries) = std::fs::read_dir(self.root.join("node")) else { return Vec::new() };
        let number = |name: &str| name.strip_prefix("node").and_then(parse_number);
        let mut ids: Vec<usize> =
            entries.filter_map(|entry| number(entry.ok()?.file_name().to_str()?)).collect();
        ids.sort_unstable();
        ids
    }

    /// Processors of each core; none if one processor's is not known. Files of processors whose core is known are not read: on large machines
    /// there are thousands.
    fn cores(&mut self, cpus: &BTreeSet<usize>) -> Vec<Vec<usize>> {
        let mut known = BTreeSet::new();
        let mut cores = Vec::new();
        for cpu in cpus {
            if known.contains(cpu) {
                continue;
            }
            let Some(mut core) = self.list(&format!("cpu/cpu{cpu}/topology/thread_siblings_list")) else {
                return Vec::new();
            };
            core.retain(|cpu| cpus.contains(cpu));
            if core.is_empty() {
                core.push(*cpu);
            }
            known.extend(core.iter().copied());
            cores.push(core);
        }
        cores
    }

    /// Caches of the processors `cpus`, each read where the first that shares it names it; those that share it are among `all`.
    fn caches(&mut self, cpus: &[usize], all: &BTreeSet<usize>) -> Vec<SharedCache> {
        let mut caches = Vec::new();
        // For each index that a processor had, the processors whose cache of this index is known.
        let mut known: Vec<BTreeSet<usize>> = Vec::new();
        for cpu in cpus {
            if !known.is_empty() && known.iter().all(|known| known.contains(cpu)) {
                continue;
            }
            for index in 0..MOST_CACHES {
                if known.get(index).is_some_and(|known| known.contains(cpu)) {
                    continue;
                }
                let of = |what: &str| format!("cpu/cpu{cpu}/cache/index{index}/{what}");
                let Some(level) = self.read(&of("level"), |text| text.parse().ok()) else { break };
                let instructions = self.text(&of("type")).is_some_and(|kind| kind == "Instruction");
                let bytes = self.read(&of("size"), size_in_bytes);
                let mut sharing = self.list(&of("shared_cpu_list")).unwrap_or_default();
                sharing.retain(|cpu| all.contains(cpu));
                if sharing.is_empty() {
                    sharing.push(*cpu);
                }
                match known.get_mut(index) {
                    Some(known) => known.extend(sharing.iter().copied()),
                    None => known.push(sharing.iter().copied().collect()),
                }
                caches.push(SharedCache { level, instructions, bytes, cpus: sharing });
            }
        }
        caches.sort();
        caches.dedup();
        caches
    }
}

/// A number below [`MOST`], in digits alone.
fn parse_number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number < MOST)
}

/// `0-3,8,10-11` as the kernel writes lists: numbers in order, each once. An empty text is an empty list.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (parse_number(first)?, parse_number(last)?);
        if first > last || numbers.last().is_some_and(|before| *before >= first) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// `Node 0 MemTotal: 131072 kB`, among other lines, in bytes.
fn parse_memory(text: &str) -> Option<u64> {
    let (_, total) = text.split_once("MemTotal:")?;
    let mut words = total.split_whitespace();
    let (number, unit) = (words.next()?.parse::<u64>().ok()?, words.next()?);
    (unit == "kB").then(|| number.checked_mul(1 << 10)).flatten()
}

/// `10 21`: a distance to each node, in their order.
fn parse_distances(text: &str, ids: &[usize]) -> Option<Vec<(usize, u32)>> {
    let far: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let far = far.filter(|far| far.len() == ids.len())?;
    Some(ids.iter().copied().zip(far).collect())
}

/// `48K`, `1024K`, `32M` as the kernel writes them.
fn size_in_bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        b'0'..=b'9' => (text, 1),
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list(""), Some(Vec::new()));
        for wrong in
            [",", "3-1", "1,1", "2,1", "a", "-1", "1-", "+1", "0-99999999999", "0-65536", "0x1", "1 2"]
        {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
        for numbers in [vec![], vec![4], vec![0, 1, 2, 7, 9, 10]] {
            let text = list_text(&numbers);
            assert_eq!(parse_list(text.trim_start_matches("none")), Some(numbers));
        }
    }

    #[test]
    fn numbers_in_other_files() {
        assert_eq!(parse_memory("Node 0 MemTotal:       131072 kB\nNode 0 MemFree: 1 kB"), Some(128 << 20));
        for wrong in
            ["", "MemTotal:", "MemTotal: x kB", "MemTotal: 5 MB", "MemTotal: 99999999999999999999 kB"]
        {
            assert_eq!(parse_memory(wrong), None, "{wrong}");
        }
        assert_eq!(parse_distances("10 21", &[0, 2]), Some(vec![(0, 10), (2, 21)]));
        assert_eq!(parse_distances("10", &[0, 2]), None);
        assert_eq!(parse_distances("10 x", &[0, 2]), None);
    }

    #[cfg(not(miri))]
    fn machine(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies").join(name)
    }

    #[test]
    #[cfg(not(miri))]
    fn caches_of_one_processor_are_read_from_its_files_alone() {
        let of_cpu_0 = |topology: &Topology| topology.problems.iter().any(|file| file.contains("cpu0/cache"));
        // Processor 0 has a file that can't be understood.
        assert!(of_cpu_0(&Topology::read(&machine("malformed"))));
        assert!(of_cpu_0(&Topology::read_for(&machine("malformed"), &[0, 1], CachesOf::One)));
        assert!(!of_cpu_0(&Topology::read_for(&machine("malformed"), &[1, 2], CachesOf::One)));
        let one = Topology::read_for(&machine("two"), &[5, 6], CachesOf::One);
        assert!(!one.caches.is_empty() && one.caches.iter().all(|cache| cache.cpus.contains(&5)), "{one}");
        let all = Topology::read(&machine("two"));
        let of_5: Vec<&SharedCache> = all.caches.iter().filter(|cache| cache.cpus.contains(&5)).collect();
        assert!(all.caches.len() > of_5.len());
        assert_eq!(one.caches.iter().collect::<Vec<_>>(), of_5);
    }

    #[test]
    #[cfg(not(miri))]
    fn processors_that_a_program_may_use_are_there() {
        // The machine's file says 0-2,4,7.
        let offline = Topology::read_for(&machine("offline"), &[0, 3], CachesOf::One);
        let of_nodes: Vec<&[usize]> = offline.nodes.iter().map(|node| &*node.cpus).collect();
        assert_eq!(of_nodes, [&[0, 1, 2, 3][..], &[4, 7]]);
    }

    #[test]
    fn sizes() {
        assert_eq!(size_in_bytes("48K"), Some(48 << 10));
        assert_eq!(size_in_bytes("32M"), Some(32 << 20));
        assert_eq!(size_in_bytes("512"), Some(512));
        assert_eq!(size_in_bytes("K"), None);
        assert_eq!(size_in_bytes(""), None);
        assert_eq!(size_in_bytes("12X"), None);
    }
}
