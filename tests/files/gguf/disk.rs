//! Files on the disk: read where they are asked for, mapped, shortened, too large.

use super::{FILES, bytes_of, data, raw, sizes};
use gristmill::gguf::{ArrayBuf, Gguf, GgufFile, GgufWriter, NoDataReason, Value};
use std::path::Path;

/// A file whose header is longer than what is read of a file at first.
fn wordy() -> Vec<u8> {
    let words: Vec<String> = (0..200_000).map(|i| format!("word {i}")).collect();
    let mut writer = GgufWriter::new();
    writer.metadata("before", Value::U32(1)).unwrap();
    writer.metadata("words", ArrayBuf::strings(words.iter().map(String::as_str)).value()).unwrap();
    writer.metadata("scores", ArrayBuf::f32s((0..200_000).map(|i| i as f32)).value()).unwrap();
    writer.tensor("w", &[8], 0, 32).unwrap();
    let mut stream = writer.write_to(Vec::new()).unwrap();
    stream.data("w", &[5; 32]).unwrap();
    stream.finish().unwrap()
}

/// What a file on the disk says is what its bytes say, defects included.
fn same_from_disk(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let at = format!("{}: ", path.display());
    match (GgufFile::open(path, &sizes), Gguf::parse(bytes, &sizes)) {
        (Err(disk), Err(memory)) => {
            assert_eq!(disk.to_string().strip_prefix(&at).unwrap(), memory.to_string());
        }
        (Ok(disk), Ok(memory)) => {
            assert_eq!(disk.metadata().collect::<Vec<_>>(), memory.metadata().collect::<Vec<_>>());
            assert_eq!(disk.tensors().len(), memory.tensors().len());
            for (disk, memory) in disk.tensors().zip(memory.tensors()) {
                assert_eq!((disk.name(), disk.dims()), (memory.name(), memory.dims()));
                assert_eq!((disk.type_id(), disk.offset()), (memory.type_id(), memory.offset()));
                assert_eq!(disk.data(), memory.data());
            }
        }
        (disk, memory) => panic!("{:?} of the file, {:?} of its bytes", disk.err(), memory.err()),
    }
}

#[test]
fn a_file_on_the_disk_is_what_its_bytes_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for name in FILES {
        let bytes = bytes_of(name);
        same_from_disk(&path, &bytes);
        for length in (0..bytes.len()).step_by(7) {
            same_from_disk(&path, &bytes[..length]);
        }
    }
    let bytes = wordy();
    assert!(bytes.len() > 4 << 20);
    same_from_disk(&path, &bytes);
    for length in [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 1 << 21, bytes.len() - 32, bytes.len() - 1] {
        same_from_disk(&path, &bytes[..length]);
    }
    // A string that is said to be longer than what was read so far, and one that is longer than the file.
    let raw_string =
        |length: u64| [b"GGUF\x03\0\0\0", &[0; 8][..], &1u64.to_le_bytes(), &length.to_le_bytes()].concat();
    for length in [2 << 20, 4 << 20] {
        same_from_disk(&path, &[raw_string(length), vec![b'x'; 3 << 20]].concat());
    }
}

/// A file with the tensor `w` of so many bytes of zeros, of which the disk holds nothing.
fn sparse(path: &Path, bytes: u64) {
    let mut header = Vec::new();
    let mut writer = GgufWriter::new();
    writer.tensor("w", &[bytes / 4], 0, bytes).unwrap();
    drop(writer.write_to(&mut header).unwrap());
    std::fs::write(path, &header).unwrap();
    let handle = std::fs::File::options().write(true).open(path).unwrap();
    handle.set_len(header.len() as u64 + bytes).unwrap();
}

#[test]
fn data_is_read_where_it_is_asked_for_and_mapped_data_is_lent() {
    use std::borrow::Cow;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // Half a terabyte: who reads more of it than is asked for has no memory for it.
    sparse(&path, 1 << 39);
    let file = GgufFile::open(&path, &sizes).unwrap();
    let tensor = file.tensor("w").unwrap();
    let part = tensor.part((1 << 39) - 5, 5).unwrap();
    assert!(matches!(part, Cow::Owned(_)));
    assert_eq!(*part, [0; 5]);
    let beyond = tensor.part((1 << 39) - 5, 6).unwrap_err();
    assert!(matches!(beyond.reason, NoDataReason::Range { length: 6, .. }), "{beyond}");
    assert!(tensor.part(u64::MAX, 2).is_err());

    // SAFETY: nobody else knows the file, and this test does not change it.
    let mapped = unsafe { GgufFile::map(&data("i2_s.gguf"), &sizes) }.unwrap();
    let read = GgufFile::open(&data("i2_s.gguf"), &sizes).unwrap();
    for (mapped, read) in mapped.tensors().zip(read.tensors()) {
        assert!(matches!(mapped.data().unwrap(), Cow::Borrowed(_)));
        assert!(matches!(read.data().unwrap(), Cow::Owned(_)));
        assert_eq!(mapped.data(), read.data());
        assert_eq!(mapped.part(3, 20), read.part(3, 20));
        // The same into memory of the caller's.
        for tensor in [mapped, read] {
            let mut bytes = [0xee; 20];
            tensor.read(3, &mut bytes).unwrap();
            assert_eq!(bytes[..], *mapped.part(3, 20).unwrap());
            let beyond = tensor.read(tensor.size().unwrap() - 19, &mut bytes).unwrap_err();
            assert!(matches!(beyond.reason, NoDataReason::Range { length: 20, .. }), "{beyond}");
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = wordy();
    std::fs::write(&path, &bytes).unwrap();
    let file = GgufFile::open(&path, &sizes).unwrap();
    let tensor = file.tensor("w").unwrap();
    let handle = std::fs::File::options().write(true).open(&path).unwrap();
    for length in [bytes.len() as u64 - 1, 4096, 0] {
        handle.set_len(length).unwrap();
        let error = tensor.data().unwrap_err();
        assert_eq!(error.reason, NoDataReason::Changed);
        assert!(error.to_string().ends_with("the file has become shorter since it was opened"), "{error}");
        assert_eq!(tensor.read(0, &mut [0; 32]).unwrap_err(), error);
        // What stood in the header was read when the file was opened.
        let words = file.value("words").unwrap().as_array().unwrap();
        assert_eq!(words.elements().last().unwrap().unwrap(), Value::String("word 199999"));
    }
    // Longer again, with other bytes: what is there now is read.
    handle.set_len(bytes.len() as u64).unwrap();
    assert_eq!(*tensor.data().unwrap(), [0; 32]);
}

/// A word of the header that is as long as the file says, and longer than a header may be, is not read.
#[test]
fn a_header_beyond_its_limit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wordy.gguf");
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    // No tensors, one entry, whose key has one letter, of the type of strings.
    for count in [0u64, 1, 1] {
        head.extend(count.to_le_bytes());
    }
    head.push(b'k');
    head.extend(8u32.to_le_bytes());
    head.extend((3u64 << 29).to_le_bytes());
    std::fs::write(&path, &head).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(2 << 30).unwrap();
    let error = GgufFile::open(&path, &sizes).unwrap_err().to_string();
    assert!(error.contains("1073741824"), "{error}");
}

/// In a process that may have four gigabytes, a tensor of sixteen.
#[cfg(unix)]
#[test]
fn a_tensor_larger_than_memory_is_an_error_with_its_bytes() {
    const BYTES: u64 = 16 << 30;
    let name = "a_tensor_larger_than_memory_is_an_error_with_its_bytes";
    if let Some(said) = super::limited(&format!("{}::{name}", module_path!()), 4_000_000) {
        assert!(said.contains("no memory for its 17179869184 bytes of data"), "{said}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    sparse(&path, BYTES);
    let file = GgufFile::open(&path, &sizes).unwrap();
    let error = file.tensor("w").unwrap().data().unwrap_err();
    assert_eq!(error.reason, NoDataReason::Memory(BYTES));
    println!("{error}");
}

/// Processes that came apart by a fork have one position in a file between them, as copies of a handle do: a read has to say itself where it
/// begins, or one process reads where the other one was.
#[cfg(target_os = "linux")]
#[test]
fn reads_neither_use_nor_move_the_position_that_copies_of_a_handle_share() {
    use std::io::{Seek, SeekFrom};
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    const BYTES: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("model.gguf");
    let data: Vec<u8> = (0..BYTES).map(|i| (i ^ i >> 8) as u8).collect();
    std::fs::write(&path, raw(&[], &[("w", &[BYTES as u64 / 4], 0, 0)], &data)).unwrap();
    let file = GgufFile::open(&path, &sizes).unwrap();
    let tensor = file.tensor("w").unwrap();
    let of_path = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.unwrap().path();
        let leads_there = std::fs::read_link(&name).is_ok_and(|to| to == path);
        leads_there.then(|| name.file_name().unwrap().to_str().unwrap().parse().unwrap())
    };
    let number = std::fs::read_dir("/proc/self/fd").unwrap().find_map(of_path).unwrap();
    // SAFETY: it is the handle of `file`, which lives on.
    let handle = unsafe { BorrowedFd::borrow_raw(number) };
    let mut copy = std::fs::File::from(handle.try_clone_to_owned().unwrap());

    copy.seek(SeekFrom::Start(7)).unwrap();
    let mut bytes = vec![0; 5000];
    tensor.read(70, &mut bytes).unwrap();
    assert_eq!(bytes, data[70..5070]);
    assert_eq!(*tensor.part(BYTES as u64 - 9, 9).unwrap(), data[BYTES - 9..]);
    assert_eq!(copy.stream_position().unwrap(), 7);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                (&copy).seek(SeekFrom::Start(3)).unwrap();
            }
        });
        let wrong = (0..200).filter(|_| *tensor.data().unwrap() != data).count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(wrong, 0);
    });
}

/// Opening a pipe waits for somebody who writes: what is no file has to be refused before.
#[cfg(unix)]
#[test]
fn a_pipe_that_nobody_writes_to_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("model.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        send.send(GgufFile::open(&pipe, &sizes).unwrap_err().to_string()).unwrap();
        // SAFETY: there are no bytes that somebody could change.
        send.send(unsafe { GgufFile::map(&pipe, &sizes) }.unwrap_err().to_string()).unwrap();
    });
    for way in ["read", "mapped"] {
        let said = receive.recv_timeout(std::time::Duration::from_secs(20)).expect(way);
        assert!(said.contains("model.gguf: cannot") && said.contains("it is a pipe or a device"), "{said}");
    }
}
