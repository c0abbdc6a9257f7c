//! What needs processes of its own: restrictions from the environment, threads that the system refuses, and forks.

#[path = "toy/mod.rs"]
mod toy;

use gristmill_runtime::{Error, Linear, LinearOptions, Prepared, QuantizedMatrix, Request, Shape, Threads};
use std::process::Command;

/// Tells a process that it is the child of a test.
const CHILD: &str = "GRISTMILL_TEST_CHILD";

/// What the test `name` says in a process with these variables.
fn said_by(name: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its own program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name);
    for variable in ["GRISTMILL_ISA", "GRISTMILL_KERNEL", "GRISTMILL_DISABLE", "GRISTMILL_TUNING"] {
        command.env_remove(variable);
    }
    let output = command.envs(variables.iter().copied()).output().expect("the program of this test starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.split("said: ").nth(1).unwrap_or_else(|| panic!("{name} says nothing: {output:?}"));
    said.split(" :end").next().unwrap_or_default().to_owned()
}

/// Whether this process was started to run the test `name` alone.
fn is_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == name)
}

/// What a process with these variables chooses for one token.
fn chosen_with(variables: &[(&str, &str)]) -> String {
    said_by("print_the_choice", variables)
}

/// The child process of the other tests; without their variable there is nothing to print.
#[test]
fn print_the_choice() {
    if !is_child("print_the_choice") {
        return;
    }
    let shape = Shape::new(1, 8, 16);
    let request = Request::matmul("tail2", shape);
    let unrestricted = |prepared: &Prepared| {
        let chosen = prepared.decide(shape).chosen().map(|entry| entry.name);
        assert_eq!(chosen, Some("matmul.tail2.avx2.decode"), "the environment counted");
    };
    unrestricted(&toy::REGISTRY.prepare(&request).expect("nothing to misunderstand"));
    let bytes = toy::tail2(8, 16);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TAIL2], 8, 16, &bytes).expect("sizes agree");
    let layer = |options: &LinearOptions| Linear::new(&toy::REGISTRY, &matrix, options, &Threads::single());
    unrestricted(layer(&LinearOptions::default()).expect("nothing to misunderstand").prepared());
    let outcome =
        toy::REGISTRY.prepare_from_env(&request).and_then(|prepared| prepared.decide(shape).kernel());
    // A layer that is made by the environment says the same.
    let of_layer = layer(&LinearOptions::from_env())
        .and_then(|layer| layer.prepared().decide(shape).kernel().map(|entry| entry.name));
    assert_eq!(
        of_layer.map_err(|error| error.to_string()),
        outcome.as_ref().map(|e| e.name).map_err(|e| e.to_string())
    );
    match outcome {
        Ok(entry) => println!("said: {} :end", entry.name),
        Err(error) => println!("said: error: {error} :end"),
    }
}

#[test]
fn the_environment_restricts() {
    assert_eq!(chosen_with(&[]), "matmul.tail2.avx2.decode");
    assert_eq!(chosen_with(&[("GRISTMILL_ISA", "sse4.1")]), "matmul.tail2.scalar");
    assert_eq!(chosen_with(&[("GRISTMILL_ISA", "")]), "matmul.tail2.avx2.decode");
    assert_eq!(chosen_with(&[("GRISTMILL_KERNEL", "matmul.tail2.scalar")]), "matmul.tail2.scalar");
    let disabled = "matmul.tail2.avx2.decode, matmul.tail2.scalar";
    let refused = chosen_with(&[("GRISTMILL_DISABLE", disabled)]);
    assert!(refused.contains("- matmul.tail2.{avx2.decode, scalar}: disabled by name"), "{refused}");
    assert!(refused.contains("help: lift the restriction (GRISTMILL_DISABLE)"), "{refused}");
    assert_eq!(chosen_with(&[("GRISTMILL_DISABLE", "*.avx2.*")]), "matmul.tail2.scalar");
}

#[test]
fn nonsense_in_the_environment_is_an_error() {
    let error = chosen_with(&[("GRISTMILL_ISA", "avx3")]);
    assert!(error.contains("GRISTMILL_ISA is `avx3`") && error.contains("did you mean `avx2`?"), "{error}");
    let error = chosen_with(&[("GRISTMILL_KERNEL", "matmul.tail2.scalr")]);
    assert!(error.contains("did you mean `matmul.tail2.scalar`?"), "{error}");
    let error = chosen_with(&[("GRISTMILL_DISABLE", "matmul.tail2.scalar, *.avx3.*")]);
    assert!(error.contains("unknown kernel `*.avx3.*`"), "{error}");
    let error = chosen_with(&[("GRISTMILL_TUNING", "/no/such/tuning")]);
    let expected =
        "error: environment variable GRISTMILL_TUNING is `/no/such/tuning`: the file can't be read: ";
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(chosen_with(&[("GRISTMILL_TUNING", "")]), "matmul.tail2.avx2.decode");
}

/// A system that has no room for the stack of a thread.
#[cfg(unix)]
#[test]
fn a_thread_without_room_is_an_error() {
    const NAME: &str = "a_thread_without_room_is_an_error";
    if !is_child(NAME) {
        let said = said_by(NAME, &[("RUST_MIN_STACK", "4611686018427387904")]);
        assert!(said.starts_with("can't start 3 threads: "), "{said}");
        return;
    }
    let refused = Threads::new(3).expect_err("no address space is as large as the stack that was asked for");
    assert!(matches!(refused, Error::Threads { count: 3, .. }), "{refused:?}");
    println!("said: {refused} :end");
}

/// A system that lets this user have some threads, but not all that are asked for: those that started end again.
#[cfg(target_os = "linux")]
#[test]
fn threads_beyond_a_limit_are_an_error_and_leave_none_behind() {
    const NAME: &str = "threads_beyond_a_limit_are_an_error_and_leave_none_behind";
    if !is_child(NAME) {
        let said = said_by(NAME, &[]);
        if said == "no limit" {
            eprintln!("skipped: the limit on threads does not hold for this user");
            return;
        }
        assert!(
            said.starts_with("can't start 64 threads: ") && said.ends_with(" threads are left"),
            "{said}"
        );
        return;
    }
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux").count();
    let before = threads();
    // SAFETY: sets numbers of this process, which runs nothing but this test. Root has no limit, so it becomes nobody first.
    unsafe {
        libc::setgid(65534);
        libc::setuid(65534);
        let few = libc::rlimit { rlim_cur: 12, rlim_max: 12 };
        libc::setrlimit(libc::RLIMIT_NPROC, &raw const few);
    }
    match Threads::new(64) {
        Ok(_) => println!("said: no limit :end"),
        Err(refused) => {
            // A thread that was joined may stand in the list for a moment.
            let started = std::time::Instant::now();
            while threads() > before && started.elapsed().as_secs() < 20 {
                std::thread::yield_now();
            }
            assert_eq!(threads(), before);
            println!("said: {refused}; {before} threads are left :end");
        }
    }
}

/// Forks. `child` runs in the new process, which ends with what it returns, or 99 after a panic; that is given back here.
#[cfg(unix)]
fn forked(child: impl FnOnce() -> i32) -> i32 {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    // SAFETY: the child runs what was given, on the one thread it has, and ends without coming back here. The allocator is
    // usable there, as the systems of these tests see to.
    let id = unsafe { libc::fork() };
    if id == 0 {
        let status = catch_unwind(AssertUnwindSafe(child)).unwrap_or(99);
        // SAFETY: ends the process; nothing of the parent's is run or flushed.
        unsafe { libc::_exit(status) };
    }
    end_of(id)
}

/// What a child process ended with; -1 if it had to be killed after half a minute, for it waits for somebody.
#[cfg(unix)]
fn end_of(id: libc::pid_t) -> i32 {
    assert!(id > 0, "{}", std::io::Error::last_os_error());
    let started = std::time::Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the process is a child of this one, and `status` a place for its status.
        match unsafe { libc::waitpid(id, &raw mut status, libc::WNOHANG) } {
            0 if started.elapsed().as_secs() >= 30 => {
                // SAFETY: as above.
                unsafe { libc::kill(id, libc::SIGKILL) };
            }
            0 => std::thread::sleep(std::time::Duration::from_millis(5)),
            _ => return if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 },
        }
    }
}

#[cfg(unix)]
fn sum_of(threads: &Threads) -> usize {
    let mut items: Vec<usize> = (0..200).collect();
    let done = threads.awake(|| {
        threads.each(&mut items, |item| {
            *item += 1;
            Ok::<(), Error>(())
        })
    });
    assert_eq!(done, Ok(()));
    items.iter().sum()
}

#[cfg(unix)]
#[test]
fn a_forked_child_works_alone_and_waits_for_nobody() -> Result<(), Error> {
    let threads = Threads::new(3)?;
    let sum = sum_of(&threads);
    // Awake, so that workers are looking for jobs while the process forks, and asleep.
    for pause in [0, 20] {
        std::thread::sleep(std::time::Duration::from_millis(pause));
        let child = || {
            // One that the parent keeps, and one that is dropped here.
            let right = sum_of(&threads) == sum;
            // SAFETY: the original is the parent's: this process ends without dropping it.
            drop(unsafe { std::ptr::read(&raw const threads) });
            i32::from(!right)
        };
        assert_eq!(forked(child), 0);
    }
    let child = || {
        let own = Threads::new(3).expect("threads of its own");
        let right = sum_of(&own) == sum;
        drop(own);
        i32::from(!right)
    };
    assert_eq!(forked(child), 0);
    assert_eq!(sum_of(&threads), sum);
    Ok(())
}

/// The one case in which the child can't do what was asked: it says so and does not wait.
#[cfg(unix)]
#[test]
fn a_child_of_a_part_does_not_wait_for_the_other_parts() -> Result<(), Error> {
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
    let threads = Threads::new(2)?;
    let (inside, over, status) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicI32::new(-1));
    let parent = std::thread::current().id();
    let started = std::time::Instant::now();
    let part = |_: &mut usize| {
        inside.fetch_add(1, Ordering::SeqCst);
        // Until each thread is in the middle of a part, or the system held one up for too long.
        while inside.load(Ordering::SeqCst) < 2 && started.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        if std::thread::current().id() == parent && !over.load(Ordering::SeqCst) {
            // SAFETY: the child goes on with the part, and ends at the end of the job.
            let id = unsafe { libc::fork() };
            if id == 0 {
                status.store(0, Ordering::SeqCst);
                return Err(());
            }
            status.store(end_of(id), Ordering::SeqCst);
            over.store(true, Ordering::SeqCst);
        }
        while !over.load(Ordering::SeqCst) && started.elapsed().as_secs() < 60 {
            std::thread::yield_now();
        }
        Ok(())
    };
    let job = || threads.awake(|| threads.each(&mut [0usize, 1], part));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    if status.load(Ordering::SeqCst) == 0 && !over.load(Ordering::SeqCst) {
        // SAFETY: the child ends here.
        unsafe { libc::_exit(if outcome.is_err() { 7 } else { 8 }) };
    }
    assert_eq!(outcome.ok(), Some(Ok(())));
    assert_eq!(status.into_inner(), 7, "what the child ended with");
    Ok(())
}
