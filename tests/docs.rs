//! The generated pages under `docs/` say what the specs say.
#![cfg(feature = "cli")]

use std::path::Path;
use std::process::Command;

#[test]
fn compatibility_page_is_up_to_date() -> Result<(), Box<dyn std::error::Error>> {
    let output = Command::new(env!("CARGO_BIN_EXE_gristmill")).arg("docs").output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let generated = String::from_utf8(output.stdout)?;
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&page, &generated)?;
    }
    let found = std::fs::read_to_string(&page)?;
    let differs = found.lines().zip(generated.lines()).position(|(found, generated)| found != generated);
    assert!(
        found == generated,
        "docs/compatibility.md is not what `gristmill docs` prints (first difference in line {}); \
         rewrite it with `BLESS=1 cargo test --test docs`",
        differs.map_or(found.lines().count().min(generated.lines().count()), |line| line) + 1
    );
    Ok(())
}
