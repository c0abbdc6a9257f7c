//! `run --monitor`, `history` and `report`, on what this command itself measured.

use crate::common::{gristmill, words};
use gristmill::RecoveryStep;
use serde_json::Value;
use std::fs;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

/// The page of recovery has a section for each step, to which its table leads, and a section says what to do.
#[test]
fn every_step_of_recovery_has_its_section() -> Result {
    let page = fs::read_to_string("docs/recovery.md")?;
    let (head, sections) = page.split_once("\n## ").ok_or("no sections")?;
    let sections: Vec<_> = sections.split("\n## ").collect();
    for step in RecoveryStep::ALL.iter().map(|step| step.name()) {
        let row = format!("| [`{step}`](#{step}) |");
        assert_eq!(head.lines().filter(|line| line.starts_with(&row)).count(), 1, "{step}");
        let section: Vec<_> =
            sections.iter().filter(|text| text.starts_with(&format!("`{step}`\n"))).collect();
        assert!(matches!(section[..], [text] if text.contains("- **What to do:**")), "{step}");
    }
    let known = |text: &&&str| text.starts_with('`');
    assert_eq!(sections.iter().filter(known).count(), RecoveryStep::ALL.len(), "a section of no step");
    Ok(())
}

#[test]
fn what_was_measured_is_kept_compared_and_reported() -> Result {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (store, monitor, base, page) = (at("h"), at("monitor.json"), at("base.json"), at("page.html"));

    // Each of seven tensors at two numbers of tokens.
    let receipt = at("receipt.json");
    gristmill(["run", "--m", "1,8", "--monitor", &monitor, "--receipt", &receipt]).code(0);
    let seen: Value = serde_json::from_slice(&fs::read(&monitor)?)?;
    let ran: Value = serde_json::from_slice(&fs::read(&receipt)?)?;
    let launches = |name: &Value| -> u64 {
        let loads = seen["kernels"].as_array().into_iter().flatten();
        loads.filter(|load| load["kernel"] == *name).filter_map(|load| load["launches"].as_u64()).sum()
    };
    // The receipt counts the same launches in another way.
    let kernels = ran["kernels"].as_array().ok_or("a receipt")?;
    assert!(
        kernels.iter().any(|kernel| kernel["name"].as_str().is_some_and(|name| name.starts_with("matmul.")))
    );
    for kernel in kernels {
        assert_eq!(Some(launches(&kernel["name"])), kernel["launches"].as_u64(), "{kernel}");
    }
    assert!(seen["compiler"].as_str().is_some_and(|compiler| compiler.starts_with("rustc ")), "{seen}");

    // A live view of what a program left: a look, and one that finds nothing newer. Piped, so without a terminal's sequences.
    let top = gristmill(["top", &monitor, "--count", "2", "--every", "0.01"]).code(0);
    let mut looks = top.stdout.split("\n\n");
    let look = looks.next().ok_or("a look")?;
    assert!(look.contains("since the monitor began") && look.contains("launches/s"), "{look}");
    let one_token = |line: &str| line.contains("  matmul.i2_s.") && line.contains(" m=0-1 ");
    assert!(look.lines().any(one_token), "{look}");
    assert!(looks.next().is_some_and(|look| look.starts_with("nothing newer than ")), "{}", top.stdout);
    assert!(!top.stdout.contains('\u{1b}'), "{}", top.stdout);
    assert_eq!(fs::read_dir(folder.path())?.count(), 2, "the monitor's file and the receipt");
    let shown = gristmill(["top", "tests/data/operations/monitor.json", "--count", "1"]).code(0).stdout;
    assert!(
        fs::read_to_string("docs/operations.md")?.contains(&shown),
        "the page shows something else:\n{shown}"
    );
    gristmill(["top", &at("none")]).code(1).complains("can't read");

    let records =
        gristmill(words("bench --quick --json --format i2_s --m 1 --shape 256x512 --memory hot")).code(0);
    fs::write(&base, &records.stdout)?;
    let added = gristmill(["history", "--store", &store, "--add", &monitor, "--add", &base]).code(0);
    assert!(added.stdout.contains("base.json: 1 record added, 0 known already"), "{}", added.stdout);
    let again = gristmill(["history", "--store", &store, "--add", &base]).code(0);
    assert!(again.stdout.contains("0 records added, 1 known already"), "{}", again.stdout);

    // The same measurement an hour later, and half as fast on a machine that is as fast as before.
    let mut later: Value = serde_json::from_slice(&fs::read(&base)?)?;
    let record = &mut later[0];
    record["at"] = (record["at"].as_u64().ok_or("a time")? + 3600).into();
    record["us"] = (2.0 * record["us"].as_f64().ok_or("a time")?).into();
    record["percent"] = (record["percent"].as_f64().ok_or("a part")? / 2.0).into();
    let rounds = record["rounds_us"].as_array().ok_or("rounds")?;
    let rounds: Vec<f64> = rounds.iter().filter_map(Value::as_f64).collect();
    record["rounds_us"] = (0..7).map(|round| 2.0 * rounds[round % rounds.len()]).collect();
    let name = record["kernel"].as_str().ok_or("a name")?.to_owned();
    fs::write(at("later.json"), later.to_string())?;
    gristmill(["history", "--store", &store, "--add", &at("later.json")]);
    let past = gristmill(["history", &name, "--store", &store, "--json"]).json();
    let of_bench =
        past["records"].as_array().into_iter().flatten().filter(|record| record["source"] == "bench");
    assert_eq!(of_bench.count(), 2);
    let compared = past["comparisons"].as_array().ok_or("comparisons")?;
    let verdict = compared.iter().find(|verdict| verdict["source"] == "bench").ok_or("one of the bench")?;
    let ratio = verdict["ratio"].as_f64().ok_or("a ratio")?;
    assert!((1.5..2.5).contains(&ratio), "{verdict}");

    let report = gristmill(["report", &store, "--json", "--html", &page]).code(0).json();
    assert!(report["cost"].as_array().is_some_and(|cost| !cost.is_empty()), "{report}");
    let trend = &report["trends"][0];
    assert_eq!((&trend["kernel"], &trend["ratio"]), (&Value::from(name.clone()), &Value::from(2.0)));
    assert!(fs::read_to_string(&page)?.contains(&name));
    // A page is never written over what it is made of.
    gristmill(["report", &store, "--html", &store]).code(1);
    gristmill(["history", "--store", &store]);
    Ok(())
}

/// The snapshot in the tests' data with something changed.
fn monitor(change: impl FnOnce(&mut Value)) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let mut seen: Value = serde_json::from_slice(&fs::read("tests/data/operations/monitor.json")?)?;
    change(&mut seen);
    Ok(seen.to_string())
}

/// Counts as large as they can be are added up without a panic.
#[test]
fn the_largest_counts_are_shown() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("most.json").display().to_string();
    let most = monitor(|seen| {
        for load in seen["kernels"].as_array_mut().into_iter().flatten() {
            for field in ["launches", "bytes_in", "faults"] {
                load[field] = u64::MAX.into();
            }
        }
        let fallback = serde_json::json!({
            "policy": "cpu", "op": "matmul", "format": "f", "device": "cuda:0", "reason": "r", "instead": "i", "runs": u64::MAX
        });
        seen["fallbacks"] = vec![fallback; 2].into();
        let copies = |kind| serde_json::json!({ "kind": kind, "device": "cuda:0", "copies": u64::MAX, "bytes": u64::MAX });
        seen["transfers"] = ["to-device", "from-device"].map(copies).to_vec().into();
        seen["caches"] = serde_json::json!([{ "cache": "workspace", "device": "cpu", "hits": u64::MAX, "misses": u64::MAX }]);
    })?;
    fs::write(&path, most)?;
    let top = gristmill(["top", &path, "--count", "1"]).code(0).stdout;
    assert!(top.contains("18446744073709551615 fallbacks"), "{top}");
    let report = gristmill(["report", &path]).code(0).stdout;
    assert!(report.contains("memory of workspaces for cpu is made again and again"), "{report}");
    Ok(())
}

/// A pipe that nobody writes to is told, and not waited for.
#[cfg(unix)]
#[test]
fn pipes_are_not_waited_for() -> Result {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (pipe, store) = (at("pipe"), at("h"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status()?.success());
    gristmill(["report", &pipe]).code(1).complains("no regular file");
    gristmill(["top", &pipe]).code(1).complains("no regular file");
    gristmill(["history", "--store", &store, "--add", &pipe]).code(1).complains("no regular file");
    gristmill(["history", "--store", &pipe]).code(1).complains("no regular file");
    gristmill(["history", "--store", &store]).code(1).complains("there is no history");
    Ok(())
}

#[test]
fn what_is_no_record_is_refused_and_changes_nothing() -> Result {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (store, bad) = (at("h"), at("bad.json"));
    for (text, said) in [
        ("[1]", "record 0: invalid type"),
        ("[{\"kernel\": \"a\"}]", "record 0: missing field `format`"),
        ("{\"schema\": \"gristmill monitor 9\"}", "gristmill monitor 9"),
        ("\u{1b}[2J", "holds no records"),
        ("3", "neither an array nor an object"),
        ("", "EOF while parsing"),
        (monitor(|seen| seen["seconds"] = (-5.0).into())?.as_str(), "`seconds`: -5"),
        (monitor(|seen| seen["seconds"] = 1e308.into())?.as_str(), "`seconds`: 1e308"),
        (
            monitor(|seen| seen["kernels"][0]["kernel"] = "a\nb".into())?.as_str(),
            r#"`kernels.kernel`: "a\nb" holds"#,
        ),
        (monitor(|seen| seen["kernels"][0]["time"]["samples"] = 0.into())?.as_str(), "is of 0 samples"),
        (monitor(|seen| seen["kernels"] = Value::Null)?.as_str(), "`kernels`: invalid type: null"),
    ] {
        fs::write(&bad, text)?;
        let refused = gristmill(["history", "--store", &store, "--add", &bad]).code(1);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
        assert!(!folder.path().join("h").exists());
        gristmill(["report", &bad]).code(1);
        gristmill(["top", &bad, "--count", "1"]).code(1).complains("holds no");
    }
    fs::write(&store, "not a history")?;
    let refused = gristmill(["history", "--store", &store]).code(1);
    assert!(refused.stderr.contains("is no history"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&store)?, "not a history");
    Ok(())
}
