//! Machines that are not there, as folders of the files in which Linux describes them.

use gristmill_runtime::Topology;
use std::path::{Path, PathBuf};

fn folder(machine: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies").join(machine)
}

fn read(machine: &str) -> Topology {
    Topology::read(&folder(machine))
}

fn processors(topology: &Topology) -> Vec<Vec<usize>> {
    topology.nodes.iter().map(|node| node.cpus.clone()).collect()
}

#[test]
fn one_node() {
    let one = read("one");
    assert_eq!(processors(&one), [[0, 1, 2, 3]]);
    assert_eq!(one.nodes[0].memory, Some(64 << 30));
    assert_eq!(one.nodes[0].distances, [(0, 10)]);
    assert_eq!(one.cores, [[0, 2], [1, 3]]);
    // First and second levels of two cores, and one third that all share.
    let data = one.caches.iter().filter(|cache| !cache.instructions);
    let levels: Vec<(u32, usize)> = data.map(|cache| (cache.level, cache.cpus.len())).collect();
    assert_eq!(levels, [(1, 2), (1, 2), (2, 2), (2, 2), (3, 4)]);
    assert_eq!(one.caches.last().and_then(|cache| cache.bytes), Some(32 << 20));
    assert_eq!(one.problems, [""; 0]);
    assert_eq!(one.cores_of(&one.nodes[0]), [0, 1]);
}

#[test]
fn two_and_eight_nodes() {
    let two = read("two");
    assert_eq!(processors(&two), [[0, 1, 4, 5], [2, 3, 6, 7]]);
    assert_eq!(two.nodes[1].distances, [(0, 21), (1, 10)]);
    assert_eq!(two.node_of(6).map(|node| node.id), Some(1));
    assert_eq!(two.node_of(8), None);
    assert_eq!(two.cores_of(&two.nodes[1]), [2, 3], "a thread of each core");
    assert_eq!(two.problems, [""; 0]);
    let eight = read("eight");
    assert_eq!(eight.nodes.len(), 8);
    assert_eq!(eight.nodes[7].cpus, [14, 15]);
    assert_eq!(eight.nodes[7].distances[3..5], [(3, 32), (4, 12)]);
    assert_eq!(eight.caches.iter().filter(|cache| cache.level == 3).count(), 8);
}

#[test]
fn processors_that_are_offline_or_forbidden_are_left_out() {
    let offline = read("offline");
    assert_eq!(processors(&offline), [vec![0, 1, 2], vec![4, 7]]);
    assert_eq!(offline.cores.len(), 5);
    let allowed = read("two").restricted_to(&[1, 5, 900]);
    assert_eq!(processors(&allowed), [vec![1, 5], vec![]]);
    assert_eq!(allowed.nodes_with_processors().count(), 1);
    assert_eq!(allowed.cores, [[1, 5]]);
}

#[test]
fn a_node_without_memory_uses_the_nearest() {
    let machine = read("no-memory");
    assert_eq!(processors(&machine), [vec![0, 1], vec![2, 3], vec![]]);
    assert_eq!(machine.nodes[1].memory, Some(0));
    assert_eq!(machine.nodes_with_processors().count(), 2);
    let memory_of = |node| machine.memory_of(node).map(|node| node.id);
    // From node 1 it is 21 to node 0, 28 to node 2.
    assert_eq!([0, 1, 2, 3].map(memory_of), [Some(0), Some(0), Some(2), None]);
}

#[test]
fn what_can_not_be_understood_is_told_and_left_out() {
    let machine = read("malformed");
    assert!(machine.nodes.is_empty(), "one node's processors are not known: {:?}", machine.nodes);
    assert!(machine.cores.is_empty(), "one processor's core is not known");
    assert!(machine.caches.iter().any(|cache| cache.level == 3 && cache.bytes.is_none()));
    let told = machine.problems.join("\n");
    for part in [
        "node/node1/cpulist: `2-9999999999999`",
        "node/node0/meminfo: `Node 0 MemTotal: much`",
        "node/node0/distance: `10`",
        "cpu/cpu0/cache/index0/size: `big`",
        "cpu/cpu2/topology/thread_siblings_list: `\\u{0}\\u{1}`",
    ] {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
    assert_eq!(machine.problems.len(), 5);
}

#[test]
fn no_folder_is_no_topology() {
    assert_eq!(read("nowhere"), Topology::default());
}

#[test]
fn contradictions_and_noise_never_panic() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("topology-noise");
    // An earlier run of this test may have left files.
    let _ = std::fs::remove_dir_all(&root);
    let write = |file: &str, bytes: &[u8]| {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("written");
    };
    write("node/online", b"0-1\n");
    write("node/node0/cpulist", b"0-3\n");
    write("node/node1/cpulist", b"3-4\n");
    let twice = Topology::read(&root);
    assert!(twice.nodes.is_empty());
    assert_eq!(twice.problems, ["node/node1/cpulist: processor 3 is of another node too"]);
    // What is missing is told beside what is malformed.
    write("node/node0/meminfo", b"MemTotal: much");
    std::fs::remove_file(root.join("node/node1/cpulist")).expect("removed");
    let missing = Topology::read(&root);
    assert_eq!(missing.problems, ["node/node0/meminfo: `MemTotal: much`", "node/node1/cpulist: not there"]);
    // Every byte that differs in one file, and long ones.
    for byte in 0..=255u8 {
        write("node/node1/cpulist", &[b'4', byte, b'5']);
        write("node/node1/distance", &[byte, byte]);
        write("cpu/cpu4/cache/index0/level", &[byte]);
        let topology = Topology::read(&root);
        let _ = topology.to_string();
        assert!(topology.nodes.is_empty() || topology.nodes[1].cpus.len() <= 2, "{byte}");
    }
    write("node/online", &vec![b'1'; 1 << 20]);
    assert!(Topology::read(&root).nodes.is_empty());
}

#[test]
fn this_machine_is_a_whole() {
    let here = &gristmill_runtime::CpuProfile::detect().topology;
    if here.nodes.is_empty() {
        eprintln!("skipped: the system tells of no nodes");
        return;
    }
    let of_nodes: usize = here.nodes.iter().map(|node| node.cpus.len()).sum();
    let of_cores: usize = here.cores.iter().map(Vec::len).sum();
    assert_eq!(of_nodes, of_cores, "{here}");
    assert!(here.nodes.iter().all(|node| here.memory_of(node.id).is_some()), "{here}");
}
