//! The page of a report in a real browser, without a window: everything is laid out, and nothing is asked for.
//!
//! The browser is what `CHROME` names, or chromium or Chrome in `PATH`. Where there is none, or it does not start here, the test says so and
//! counts it; `GRISTMILL_NO_SKIP=1` turns that into a failure.

use gristmill_ops::report::Report;
use gristmill_ops::{Record, Records, Source, Work};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn bench(kernel: &str, at: u64, us: f64) -> Record {
    Record {
        source: Source::Bench,
        at,
        machine: "a machine".to_owned(),
        compiler: None,
        kernel: kernel.to_owned(),
        id: format!("id of {kernel}"),
        work: Work::Shape {
            m: 1,
            n: 2560,
            k: 2560,
            threads: 1,
            memory: "hot".to_owned(),
            quantizes: Some(true),
            input: None,
        },
        us: Some(us),
        rounds_us: (0..7).map(|round| us * (1.0 + 0.001 * f64::from(round))).collect(),
        percent: Some(if kernel.ends_with("far") { 12.0 } else { 80.0 }),
        ceiling: Some("read".to_owned()),
        memory_gb_s: None,
        serves: None,
        load: None,
        program: None,
    }
}

/// Looks at the page in the page itself, and leaves what it saw where the browser prints it.
const LOOK: &str = r#"<script>
window.addEventListener("load", function () {
  var box = function (element) { return element.getBoundingClientRect(); };
  var inside = function (inner, outer) {
    return inner.left >= outer.left - 1 && inner.right <= outer.right + 1 && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  };
  var all = function (what) { return Array.from(document.querySelectorAll(what)); };
  var seen = {
    title: document.title,
    plots: all("polyline").length,
    plots_drawn: all("polyline").filter(function (line) {
      var own = box(line);
      return own.width > 20 && inside(own, box(line.ownerSVGElement));
    }).length,
    plots_that_rise: all("polyline").filter(function (line) { return box(line).height > 10; }).length,
    rows: all("tr").length,
    rows_seen: all("tr").filter(function (row) { return box(row).height > 5 && row.innerText.trim() !== ""; }).length,
    headings: all("h1, h2").filter(function (heading) { return box(heading).height > 5; }).map(function (heading) { return heading.innerText; }),
    to_do: all("li").map(function (item) { return item.innerText; }),
    too_wide: document.documentElement.scrollWidth > window.innerWidth,
    stroke: getComputedStyle(document.querySelector("polyline")).stroke,
    requests: performance.getEntriesByType("resource").length
  };
  var out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.appendChild(out);
});
</script></body>"#;

/// The browser, or why there is none.
fn browser() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("CHROME") {
        return Ok(PathBuf::from(named));
    }
    let folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
    let found = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file());
    found.ok_or_else(|| format!("none of {} is in PATH, and CHROME is not set", names.join(", ")))
}

/// What the page holds once it is loaded.
fn loaded(browser: &Path, page: &Path, profile: &Path) -> Result<String, String> {
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--window-size=1280,900", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("`{}` does not start: {error}", browser.display()))?;
    let started = Instant::now();
    let output = child.stdout.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut pipe, &mut text).map(|_| text)
        })
    });
    let ended = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if started.elapsed() > Duration::from_secs(120) => break None,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    if ended.is_none() {
        let _ = child.kill();
        return Err(format!("`{}` did not end within two minutes", browser.display()));
    }
    let text = output.and_then(|output| output.join().ok()).and_then(Result::ok).unwrap_or_default();
    if text.trim().is_empty() {
        return Err(format!("`{}` printed nothing", browser.display()));
    }
    Ok(text)
}

#[test]
fn a_browser_lays_the_page_out_and_asks_for_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let skip = |why: String| -> Result<(), Box<dyn std::error::Error>> {
        if std::env::var_os("GRISTMILL_NO_SKIP").is_some_and(|value| value == "1") {
            return Err(why.into());
        }
        println!("ran 0 of 1; skipped 1: no browser: {why}");
        Ok(())
    };
    let browser = match browser() {
        Ok(browser) => browser,
        Err(why) => return skip(why),
    };
    let empty = folder.path().join("empty.html");
    std::fs::write(&empty, "<html><body>begins</body></html>")?;
    // What does not even show this page is no browser that could show another one.
    match loaded(&browser, &empty, &folder.path().join("first")) {
        Ok(text) if text.contains("begins") => {}
        Ok(text) => return skip(format!("it shows something else: {text}")),
        Err(why) => return skip(why),
    }

    let mut records = Records::default();
    for at in 0..5 {
        for (kernel, us) in
            [("matmul.steady", 100.0), ("matmul.grown", 100.0 + 40.0 * at as f64), ("matmul.far", 9.0)]
        {
            records.records.push(bench(kernel, 1_700_000_000 + 86_400 * at, us));
        }
    }
    let report = Report::of(&records);
    let page = folder.path().join("report.html");
    std::fs::write(&page, report.to_html()?.replace("</body>", LOOK))?;
    let text = loaded(&browser, &page, &folder.path().join("second"))?;
    let seen = text
        .split_once("<pre id=\"seen\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(seen, _)| seen);
    let seen = seen
        .ok_or("the page's script did not run")?
        .replace("&gt;", ">")
        .replace("&lt;", "<")
        .replace("&amp;", "&");
    let seen: Value = serde_json::from_str(&seen)?;
    assert_eq!(seen["title"], "gristmill report", "{seen}");
    assert_eq!(
        (&seen["plots"], &seen["plots_drawn"]),
        (&report.trends.len().into(), &report.trends.len().into()),
        "{seen}"
    );
    // One of them grew; times that stayed are flat lines.
    assert_eq!(seen["plots_that_rise"], 1, "{seen}");
    assert_eq!(seen["rows"], seen["rows_seen"], "{seen}");
    assert!(seen["rows"].as_u64().is_some_and(|rows| rows > report.trends.len() as u64), "{seen}");
    assert_eq!((&seen["too_wide"], &seen["requests"]), (&false.into(), &0.into()), "{seen}");
    assert_eq!(seen["stroke"], "rgb(0, 102, 204)", "the style counts: {seen}");
    let headings: Vec<&str> =
        seen["headings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(headings.contains(&"To do") && headings.contains(&"Trends"), "{seen}");
    let to_do: Vec<&str> = seen["to_do"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(
        report.recommendations.iter().all(|it| to_do.iter().any(|shown| shown.contains(&it.because))),
        "{seen}"
    );
    println!("ran 1 of 1: {}", browser.display());
    Ok(())
}
